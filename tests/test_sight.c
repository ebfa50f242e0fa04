/* SPDX-License-Identifier: MIT */
/* What a model says it has done: each thing counted once, where it happened, and hits not at all (G1, G6, G7, G11, G22). */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/world.h"

static oc_model_stats stats(oc_model *m) {
  oc_model_stats s = {.struct_size = sizeof s};
  ck_ok(oc_model_get_stats(m, &s));
  ck_assert_uint_eq(s.struct_size, sizeof s);
  return s;
}

static oc_status cook(oc_build *b, void *arg, uint64_t *out) {
  fx_msleep(2);
  oc_status *as = arg;
  return *as ? *as : oc_build_alloc(b, 1000, 0, out);
}

/* ---- figures ---- */

START_TEST(misses_are_counted_and_hits_are_not) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  fx_load(m, "test");
  oc_opcache *c = oc_model_opcache(m);
  oc_derived *d = oc_model_derived(m);
  static oc_kernel_key key = OC_KERNEL_KEY("test", "add");
  static oc_tag_key tag = OC_TAG_KEY("sight");
  static oc_status fine = OC_OK;
  oc_kernel k;
  oc_devptr p;
  uint64_t value;
  for (int i = 0; i < 100; i++) {
    ck_ok(oc_opcache_kernel_k(c, &key, &k));
    ck_ok(oc_opcache_kernel(c, "test", "add", &k));
    ck_ok(oc_opcache_scratch_k(c, &tag, 1000, &p));
    ck_ok(oc_derived_get_or_build_ptr(d, OC_BF16, 0x7f0000, cook, &fine, &value));
    ck_ok(oc_derived_get_ptr(d, OC_BF16, 0x7f0000, &value));
  }
  oc_model_stats s = stats(m);
  ck_assert_uint_eq(s.generation, oc_model_generation(m));
  ck_assert_uint_eq(s.kernel_misses, 1);
  ck_assert_uint_eq(s.scratch_misses, 1);
  ck_assert_uint_eq(s.scratch_growths, 1);
  ck_assert_uint_eq(s.derived_misses, 1);
  ck_assert_uint_eq(s.builds, 1);
  ck_assert_uint_eq(s.build_failures, 0);
  ck_assert_uint_ge(s.build_ns, 2000000);
  ck_assert_uint_eq(s.arena_growths, 1);
  ck_assert_uint_eq(s.driver[OC_CALL_ALLOC].calls, 1);
  ck_assert_uint_eq(s.driver[OC_CALL_MODULE].calls, 1);
  ck_assert_uint_eq(s.driver[OC_CALL_KERNEL].calls, 1);
  ck_assert_uint_gt(s.driver[OC_CALL_ALLOC].ns, 0);
  ck_assert_uint_eq(s.driver[OC_CALL_FREE].calls, 0);
  ck_ok(oc_opcache_scratch_k(c, &tag, 5000, &p));
  s = stats(m);
  ck_assert_uint_eq(s.scratch_misses, 2);
  ck_assert_uint_eq(s.scratch_growths, 2);
  ck_assert_uint_ge(s.retired_bytes, 1000);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(a_build_without_a_value_is_a_failure) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_derived *d = oc_model_derived(m);
  oc_status refuse = OC_E_IO;
  uint64_t value, out[2];
  oc_devptr first, second;
  ck_status(oc_derived_get_or_build_ptr(d, OC_BF16, 0x7f0000, cook, &refuse, &value), OC_E_IO);
  oc_build *build;
  ck_status(oc_derived_begin(d, OC_BF16, 0x7f0000, &build, out), OC_MISS);
  oc_build_abort(build);
  ck_status(oc_derived_begin(d, OC_BF16, 0x7f0000, &build, out), OC_MISS);
  ck_ok(oc_build_alloc(build, 100, 0, &second));
  ck_ok(oc_pool_alloc(oc_model_pool(m), 100, 0, &first));
  ck_ok(oc_derived_insert_ptr(d, OC_BF16, 0x7f0000, first, NULL));
  ck_status(oc_build_commit(build, (uint64_t[2]){second, 0}, out), OC_EXISTS);
  oc_model_stats s = stats(m);
  ck_assert_uint_eq(s.derived_misses, 3);
  ck_assert_uint_eq(s.builds, 0);
  ck_assert_uint_eq(s.build_failures, 3);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

struct two { oc_derived *d; unsigned inside; };

static oc_status slow(oc_build *b, void *arg, uint64_t *out) {
  struct two *t = arg;
  __atomic_store_n(&t->inside, 1, __ATOMIC_RELEASE);
  fx_msleep(20);
  return oc_build_alloc(b, 100, 0, out);
}

static void ask(void *arg, unsigned i) {
  struct two *t = arg;
  uint64_t value;
  if (i) fx_until(__atomic_load_n(&t->inside, __ATOMIC_ACQUIRE));
  ck_ok(oc_derived_get_or_build_ptr(t->d, OC_BF16, 0x7f0000, slow, t, &value));
}

START_TEST(g11_a_wait_for_a_build_is_counted) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  struct two t = {.d = oc_model_derived(m)};
  fx_threads(2, ask, &t);
  oc_model_stats s = stats(m);
  ck_assert_uint_eq(s.builds, 1);
  ck_assert_uint_eq(s.derived_misses, 2);
  ck_assert_uint_eq(s.build_waits, 1);
  ck_assert_uint_gt(s.build_wait_ns, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(what_the_driver_refuses_is_counted) {
  if (!fx_can(FX_FAIL)) {
    fx_skip("this driver does not fail on demand");
    return;
  }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.flags = OC_MODEL_NO_MANAGED});
  oc_devptr p;
  fx_fail(b, "alloc", 1, 1, OC_E_BACKEND);
  ck_status(oc_pool_alloc(oc_model_pool(m), 1000, 0, &p), OC_E_BACKEND);
  ck_ok(oc_pool_alloc(oc_model_pool(m), 1000, 0, &p));
  oc_model_stats s = stats(m);
  ck_assert_uint_eq(s.driver[OC_CALL_ALLOC].calls, 2);
  ck_assert_uint_eq(s.driver[OC_CALL_ALLOC].failures, 1);
  ck_assert_uint_eq(s.arena_growths, 1);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Every call that the driver saw is in one of the kinds, and after teardown the figures stand. */
START_TEST(all_calls_are_counted_to_the_end) {
  oc_backend *b = fx_open(NULL);
  oc_stream stream = fx_stream(b);
  uint64_t before[] = {fx_calls(b, "alloc"), fx_calls(b, "free"), fx_calls(b, "event_record"), fx_calls(b, "synchronize")};
  oc_model *m = fx_model(b);
  fx_load(m, "test");
  oc_devptr p;
  for (int i = 0; i < 3; i++) {
    ck_ok(oc_pool_alloc(oc_model_pool(m), 1000, 0, &p));
    ck_ok(oc_pool_free_on(oc_model_pool(m), p, stream));
  }
  ck_ok(oc_model_teardown(m, NULL));
  oc_model_stats s = stats(m);
  ck_assert_uint_eq(s.driver[OC_CALL_MODULE].calls, 2);
  ck_assert_uint_eq(s.driver[OC_CALL_FREE].calls, 1);
  ck_assert_uint_eq(s.guard_waits, 1);
  ck_assert_uint_eq(s.retired_bytes, 0);
  if (fx_can(FX_CALLS)) {
    ck_assert_uint_eq(s.driver[OC_CALL_ALLOC].calls, fx_calls(b, "alloc") - before[0]);
    ck_assert_uint_eq(s.driver[OC_CALL_FREE].calls, fx_calls(b, "free") - before[1]);
    ck_assert_uint_ge(s.driver[OC_CALL_EVENT].calls, fx_calls(b, "event_record") - before[2]);
    ck_assert_uint_eq(s.driver[OC_CALL_SYNC].calls, fx_calls(b, "synchronize") - before[3]);
  }
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, stream);
  fx_close(b);
}
END_TEST

/* Two models on one backend do not mix. */
START_TEST(figures_are_a_models_own) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *other = fx_model(b);
  fx_load(m, "test");
  oc_model_stats s = stats(other);
  for (int i = 0; i < OC_CALL_KINDS; i++) ck_assert_uint_eq(s.driver[i].calls, 0);
  ck_assert_uint_eq(stats(m).driver[OC_CALL_MODULE].calls, 1);
  ck_ok(oc_model_destroy(other));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(g33_nonsense_is_refused) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  struct { oc_model_stats s; uint64_t later[2]; } longer = {.later = {7, 7}};
  ck_status(oc_model_get_stats(NULL, &longer.s), OC_E_INVALID);
  ck_status(oc_model_get_stats(m, NULL), OC_E_INVALID);
  ck_status(oc_model_get_stats(m, &longer.s), OC_E_INVALID);
  ck_words("struct_size 0");
  longer.s.struct_size = sizeof longer.s - 1;
  ck_status(oc_model_get_stats(m, &longer.s), OC_E_INVALID);
  longer.s.struct_size = 1u << 30;
  ck_status(oc_model_get_stats(m, &longer.s), OC_E_INVALID);
  ck_assert_uint_eq(longer.later[0], 7);
  longer.s.struct_size = sizeof longer;
  ck_ok(oc_model_get_stats(m, &longer.s));
  ck_assert_uint_eq(longer.later[1], 0);
  ck_assert_int_eq(oc_metrics_prometheus(NULL, 5), -1);
  ck_words("buf is NULL");
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- metrics ---- */

static char *metrics(void) {
  int n = oc_metrics_prometheus(NULL, 0);
  ck_assert_int_gt(n, 0);
  char *text = malloc((size_t)n + 1);
  ck_assert_int_eq(oc_metrics_prometheus(text, (size_t)n + 1), n);
  ck_assert_uint_eq(strlen(text), (size_t)n);
  return text;
}

static void has(const char *text, const char *line) {
  ck_assert_msg(strstr(text, line) != NULL, "\"%s\" is not in:\n%s", line, text);
}

/* The format's own checker, where it is installed: of Debian's package prometheus. */
static void check_format(const char *text) {
  if (system("command -v promtool >/dev/null 2>&1") != 0) {
    fx_skip("promtool is not installed: the format is not checked by it");
    return;
  }
  FILE *f = popen("promtool check metrics", "w");
  ck_assert_ptr_nonnull(f);
  ck_assert_int_ge(fputs(text, f), 0);
  ck_assert_msg(pclose(f) == 0, "promtool objects to:\n%s", text);
}

START_TEST(metrics_without_a_model) {
  char *text = metrics();
  has(text, "\nliboc_models 0\n");
  ck_assert_ptr_null(strstr(text, "liboc_misses_total"));
  check_format(text);
  free(text);
}
END_TEST

START_TEST(metrics_are_in_the_exposition_format) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.name = "a \"quoted\" \\ name,\nof two lines"});
  oc_model *other = fx_model_opt(b, (oc_model_options){.name = "m\xC3\xBCller \xFF{}"});
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p));
  ck_ok(oc_stats_publish(NULL));   /* with hits among them */
  char *text = metrics();
  ck_ok(oc_stats_unpublish());
  has(text, "\nliboc_hits_total{what=\"kernel\"} ");
  char line[256];
  has(text, "\nliboc_models 2\n");
  snprintf(line, sizeof line, "\nliboc_live_bytes{model=\"a \\\"quoted\\\" \\\\ name,?of two lines\",generation=\"%llu\",backend=\"%s\"} 4096\n",
           (unsigned long long)oc_model_generation(m), oc_backend_table(b)->name);
  has(text, line);
  snprintf(line, sizeof line, "\nliboc_live_bytes{model=\"m\xC3\xBCller ?{}\",generation=\"%llu\",backend=\"%s\"} 0\n",
           (unsigned long long)oc_model_generation(other), oc_backend_table(b)->name);
  has(text, line);
  has(text, "call=\"alloc\"} 1\n");
  check_format(text);
  free(text);
  ck_ok(oc_model_destroy(other));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* As snprintf: whatever room there is, no byte more is written, and the answer is the same. */
START_TEST(metrics_are_cut_to_the_room_there_is) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  char *text = metrics();
  for (size_t n = 1; n < 200; n += 33) {
    char buf[256];
    memset(buf, 'x', sizeof buf);
    ck_assert_uint_eq((size_t)oc_metrics_prometheus(buf, n), strlen(text));
    ck_assert_uint_eq(strlen(buf), n - 1);
    ck_assert_int_eq(memcmp(buf, text, n - 1), 0);
    ck_assert_int_eq(buf[n], 'x');
  }
  free(text);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("sight");
  TCase *figures = tcase_create("figures");
  tcase_add_test(figures, misses_are_counted_and_hits_are_not);
  tcase_add_test(figures, a_build_without_a_value_is_a_failure);
  tcase_add_test(figures, g11_a_wait_for_a_build_is_counted);
  tcase_add_test(figures, what_the_driver_refuses_is_counted);
  tcase_add_test(figures, all_calls_are_counted_to_the_end);
  tcase_add_test(figures, figures_are_a_models_own);
  tcase_add_test(figures, g33_nonsense_is_refused);
  suite_add_tcase(s, figures);
  TCase *exposition = tcase_create("exposition");
  tcase_add_test(exposition, metrics_without_a_model);
  tcase_add_test(exposition, metrics_are_in_the_exposition_format);
  tcase_add_test(exposition, metrics_are_cut_to_the_room_there_is);
  suite_add_tcase(s, exposition);
  return s;
}

int main(void) { return fx_run(suite()); }
