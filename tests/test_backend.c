/* SPDX-License-Identifier: MIT */
/* A backend of the engine's own table: which tables are taken, what stands for missing entries, closing (DESIGN 3.1). */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "tests/wrap.h"

#define MiB ((size_t)1 << 20)

/* ---- a table that needs no device ---- */

static uint64_t next_address = (uint64_t)1 << 40;
static unsigned tiny_closed, tiny_frees;
static oc_status tiny_alloc(void *self, size_t n, oc_devptr *out) {
  (void)self;
  *out = next_address;
  next_address += (n + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
  return OC_OK;
}
static oc_status tiny_free(void *self, oc_devptr p) {
  (void)self;
  (void)p;
  tiny_frees++;
  return OC_OK;
}
static void tiny_close(void *self) {
  (void)self;
  tiny_closed++;
}
static oc_backend_ops tiny_table(void) {
  return (oc_backend_ops){.struct_size = sizeof(oc_backend_ops), .name = "tiny", .alloc = tiny_alloc, .free = tiny_free,
                          .close = tiny_close};
}

/* ---- which tables are taken ---- */

START_TEST(g33_bad_tables_are_refused_and_not_closed) {
  oc_backend *b = (oc_backend *)&b, *was = b;
  oc_backend_ops ops = tiny_table();
  tiny_closed = 0;
  ck_status(oc_backend_create(NULL, NULL, &b), OC_E_INVALID);
  ck_status(oc_backend_create(&ops, NULL, NULL), OC_E_INVALID);
  ops.alloc = NULL;
  ck_status(oc_backend_create(&ops, NULL, &b), OC_E_INVALID);
  ck_words("alloc");
  ops = tiny_table();
  ops.free = NULL;
  ck_status(oc_backend_create(&ops, NULL, &b), OC_E_INVALID);
  ck_words("free");
  const uint32_t sizes[] = {0, 1, sizeof(uint32_t), (uint32_t)offsetof(oc_backend_ops, close), sizeof ops - 1,
                            1u << 20, UINT32_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    ops = tiny_table();
    ops.struct_size = sizes[i];
    ck_status(oc_backend_create(&ops, NULL, &b), OC_E_INVALID);
    ck_words("struct_size");
  }
  ck_assert_ptr_eq(b, was);
  ck_assert_uint_eq(tiny_closed, 0);
}
END_TEST

START_TEST(a_longer_table_is_taken_if_its_tail_is_zero) {
  struct { oc_backend_ops ops; unsigned char tail[64]; } longer = {.ops = tiny_table()};
  longer.ops.struct_size = sizeof longer;
  oc_backend *b;
  ck_ok(oc_backend_create(&longer.ops, NULL, &b));
  ck_assert_uint_eq(oc_backend_table(b)->struct_size, sizeof(oc_backend_ops));
  ck_ok(oc_backend_close(b));
  for (size_t i = 0; i < sizeof longer.tail; i += 21) {
    longer.tail[i] = 1;
    ck_status(oc_backend_create(&longer.ops, NULL, &b), OC_E_INVALID);
    longer.tail[i] = 0;
  }
}
END_TEST

START_TEST(the_table_is_copied_and_self_comes_back) {
  char name[] = "mine";
  oc_backend_ops *ops = malloc(sizeof *ops);
  int self;
  oc_backend *b;
  *ops = tiny_table();
  ops->name = name;
  ck_ok(oc_backend_create(ops, &self, &b));
  memset(ops, 0xEE, sizeof *ops);
  free(ops);
  memset(name, 'x', 4);
  ck_assert_str_eq(oc_backend_table(b)->name, "mine");
  ck_assert(oc_backend_table(b)->alloc == tiny_alloc);
  ck_assert_ptr_eq(oc_backend_self(b), &self);
  ck_assert_ptr_null(oc_cuda_context(b));
  ck_ok(oc_backend_close(b));
}
END_TEST

START_TEST(a_table_without_a_name_has_one) {
  oc_backend_ops ops = tiny_table();
  oc_backend *b;
  ops.name = NULL;
  ops.close = NULL;
  ck_ok(oc_backend_create(&ops, NULL, &b));
  ck_assert_ptr_nonnull(oc_backend_table(b)->name);
  ck_ok(oc_backend_close(b));
}
END_TEST

/* ---- what stands for missing entries ---- */

START_TEST(a_table_of_two_entries_serves_a_whole_model) {
  oc_backend_ops ops = tiny_table();
  oc_backend *b;
  oc_model *m;
  oc_devptr p, q;
  oc_kernel k;
  oc_report *r;
  int image = 0;
  uint64_t v = 0;
  tiny_frees = tiny_closed = 0;
  ck_ok(oc_backend_create(&ops, NULL, &b));
  m = fx_model(b);
  ck_status(oc_model_load_module(m, "m", &image, sizeof image), OC_E_UNSUPPORTED);
  ck_status(oc_opcache_kernel(oc_model_opcache(m), "m", "f", &k), OC_E_UNSUPPORTED);
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "t", (oc_stream)&image, 4096, &p));
  ck_ok(oc_pool_alloc(oc_model_pool(m), 4096, 0, &q));
  /* no events: held until a drain, which is free where nothing is asynchronous */
  ck_ok(oc_pool_free_on(oc_model_pool(m), q, (oc_stream)&image));
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &s));
  ck_assert_uint_eq(s.retired_bytes, 4096);
  ck_ok(oc_opcache_release(oc_model_opcache(m)));
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &s));
  ck_assert_uint_eq(s.retired_bytes, 0);
  ck_assert_uint_eq(s.live_bytes, 0);
  oc_build *build;
  uint64_t out[2];
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 77, &build, out), OC_MISS);
  ck_ok(oc_build_alloc(build, 1000, 0, &p));
  ck_ok(oc_build_on_stream(build, (oc_stream)&image));
  out[0] = p;
  ck_ok(oc_build_commit(build, out, NULL));
  ck_ok(oc_derived_get_ptr_on(oc_model_derived(m), OC_BF16, 77, (oc_stream)&tiny_frees, &v));
  ck_assert_uint_eq(v, p);
  ck_ok(oc_model_forget_stream(m, (oc_stream)&image));
  ck_ok(oc_derived_settle(oc_model_derived(m)));
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_uint_eq(oc_report_arenas_freed(r), 1);
  ck_assert_uint_eq(tiny_frees, 1);
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
  ck_assert_uint_eq(tiny_closed, 1);
}
END_TEST

/* A table with some event entries is one without events. */
START_TEST(half_a_set_of_events_is_none) {
  struct wrap w;
  oc_backend_ops ops = wrap_table();
  ops.event_query = NULL;
  wrap_open_ops(&w, NULL, &ops);
  oc_model *m = fx_model(w.outer);
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p));
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, NULL));
  ck_assert_uint_eq(wrap_calls(&w, "event_create") + wrap_calls(&w, "event_record"), 0);
  ck_ok(oc_model_destroy(m));
  wrap_close(&w);
}
END_TEST

static unsigned kernel_asked;
static oc_status kernel_entry(void *self, const char *module, const char *func, oc_kernel *out) {
  (void)self;
  kernel_asked++;
  if (strcmp(func, "missing") == 0) return OC_E_NOT_FOUND;
  *out = strcmp(func, "null") == 0 ? NULL : (oc_kernel)(uintptr_t)(1000 + strlen(module));
  return OC_OK;
}

START_TEST(the_kernel_entry_serves_lookups_alone) {
  oc_backend_ops ops = tiny_table();
  oc_backend *b;
  oc_kernel k;
  ops.kernel = kernel_entry;
  kernel_asked = 0;
  ck_ok(oc_backend_create(&ops, NULL, &b));
  oc_model *m = fx_model(b);
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "abc", "f", &k));
  ck_assert_ptr_eq(k, (oc_kernel)(uintptr_t)1003);
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "abc", "f", &k));
  ck_assert_uint_eq(kernel_asked, 1);
  ck_status(oc_opcache_kernel(oc_model_opcache(m), "abc", "missing", &k), OC_E_NOT_FOUND);
  ck_status(oc_opcache_kernel(oc_model_opcache(m), "abc", "null", &k), OC_E_NOT_FOUND);   /* S5 */
  ck_assert_uint_eq(oc_opcache_kernels(oc_model_opcache(m)), 1);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
}
END_TEST

START_TEST(two_of_three_module_entries_are_unsupported) {
  for (int missing = 0; missing < 3; missing++) {
    struct wrap w;
    oc_backend_ops ops = wrap_table();
    int image = 0;
    if (missing == 0) ops.module_load = NULL;
    if (missing == 1) ops.module_unload = NULL;
    if (missing == 2) ops.module_function = NULL;
    wrap_open_ops(&w, NULL, &ops);
    oc_model *m = fx_model(w.outer);
    ck_status(oc_model_load_module(m, "m", &image, sizeof image), OC_E_UNSUPPORTED);
    ck_assert_uint_eq(wrap_calls(&w, "module_load"), 0);
    ck_ok(oc_model_destroy(m));
    wrap_close(&w);
  }
}
END_TEST

/* Without synchronize, synchronize_all. */
START_TEST(synchronize_all_stands_for_synchronize) {
  struct wrap w;
  oc_backend_ops ops = wrap_table();
  ops.synchronize = NULL;
  wrap_open_ops(&w, NULL, &ops);
  oc_model *m = fx_model(w.outer);
  ck_ok(oc_model_use_stream(m, NULL));
  ck_ok(oc_model_destroy(m));
  ck_assert_uint_eq(wrap_calls(&w, "synchronize_all"), 1);
  wrap_close(&w);
}
END_TEST

/* ---- answers that make no sense ---- */

static bool positive(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)arg;
  *answer = OC_EXISTS;
  return strcmp(entry, w->hook_arg) == 0;
}
static bool null_success(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)arg;
  *answer = OC_OK;
  return strcmp(entry, w->hook_arg) == 0;
}

START_TEST(odd_answers_are_backend_errors) {
  struct wrap w;
  wrap_open(&w, NULL);
  oc_model *m = fx_model(w.outer);
  oc_devptr p = 42;
  bool (*const hooks[])(struct wrap *, const char *, uint64_t, oc_status *) = {positive, null_success};
  for (int i = 0; i < 2; i++) {
    w.hook = hooks[i];
    w.hook_arg = (char[]){"alloc"};
    ck_status(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p), OC_E_BACKEND);
    ck_words("alloc");
    ck_assert_uint_eq(p, 42);
    w.hook_arg = (char[]){"module_load"};
    ck_status(oc_model_load_module(m, "m", &w, sizeof w), OC_E_BACKEND);
  }
  w.hook = NULL;
  ck_ok(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p));
  ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
  ck_ok(oc_model_destroy(m));
  wrap_close(&w);
}
END_TEST

/* ---- closing ---- */

START_TEST(close_is_busy_while_models_live) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *n = fx_model(b);
  ck_status(oc_backend_close(b), OC_E_BUSY);
  ck_words("2 models");
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_model_teardown(n, NULL));
  ck_status(oc_backend_close(b), OC_E_BUSY);   /* torn down, not destroyed: it still points at the backend */
  ck_ok(oc_model_destroy(n));
  fx_close(b);
}
END_TEST

/* While a table's close runs, the backend is closed to all others, and to it. */
static oc_backend *closing;
static oc_status closed_again, created;
static void close_once_more(void *self) {
  oc_model *m = NULL;
  tiny_close(self);
  closed_again = oc_backend_close(closing);
  ck_words("backend tiny is being closed");
  created = oc_model_create(closing, NULL, &m);
  ck_words("backend tiny is being closed");
  ck_assert_ptr_null(m);
}

START_TEST(a_backend_that_is_closing_is_closed_to_all) {
  oc_backend_ops ops = tiny_table();
  ops.close = close_once_more;
  ck_ok(oc_backend_create(&ops, NULL, &closing));
  tiny_closed = 0;
  ck_ok(oc_backend_close(closing));
  ck_assert_int_eq(closed_again, OC_E_BUSY);
  ck_assert_int_eq(created, OC_E_INVALID);
  ck_assert_uint_eq(tiny_closed, 1);
}
END_TEST

START_TEST(g27_close_in_a_guard) {
  oc_backend *b = fx_open(NULL);
  oc_guard_enter();
  ck_status(oc_backend_close(b), OC_E_GUARDED);
  oc_guard_leave();
  fx_close(b);
}
END_TEST

/* G25's kin: several backends of one process know nothing of each other (S17 without CUDA contexts). */
START_TEST(s17_each_free_reaches_its_own_backend) {
  struct wrap w[2];
  oc_model *m[2];
  oc_devptr p;
  for (int i = 0; i < 2; i++) {
    wrap_open(&w[i], NULL);
    m[i] = fx_model(w[i].outer);
    ck_ok(oc_pool_alloc(oc_model_pool(m[i]), 4096, 0, &p));
    fx_load(m[i], "test");
  }
  ck_ok(oc_model_destroy(m[0]));
  ck_assert_uint_eq(wrap_calls(&w[0], "free"), 1);
  ck_assert_uint_eq(wrap_calls(&w[1], "free"), 0);
  ck_assert_uint_eq(wrap_calls(&w[1], "module_unload"), 0);
  wrap_close(&w[0]);
  ck_assert_uint_eq(w[0].closed, 1);
  ck_ok(oc_pool_alloc(oc_model_pool(m[1]), 4096, 0, &p));
  ck_ok(oc_model_destroy(m[1]));
  ck_assert_uint_eq(wrap_calls(&w[1], "free"), 1);
  wrap_close(&w[1]);
}
END_TEST

static void open_and_close(void *arg, unsigned i) {
  (void)arg;
  (void)i;
  for (int n = 0; n < 20; n++) {
    oc_backend *b = fx_open(NULL);
    ck_ok(oc_model_destroy(fx_model(b)));
    fx_close(b);
  }
}

START_TEST(backends_come_and_go_on_many_threads) { fx_threads(4, open_and_close, NULL); }
END_TEST

/* ---- host options ---- */

START_TEST(host_options) {
  struct { oc_host_options opt; uint32_t tail[4]; } o = {.opt = {.struct_size = sizeof o}};
  oc_backend *b;
  ck_ok(oc_backend_open_host(&o.opt, &b));
  fx_close(b);
  o.tail[3] = 1;
  ck_status(oc_backend_open_host(&o.opt, &b), OC_E_INVALID);
  o.opt.struct_size = sizeof o.opt - 1;
  ck_status(oc_backend_open_host(&o.opt, &b), OC_E_INVALID);
  o.opt.struct_size = 0;
  ck_status(oc_backend_open_host(&o.opt, &b), OC_E_INVALID);
  o.opt.struct_size = UINT32_MAX;
  ck_status(oc_backend_open_host(&o.opt, &b), OC_E_INVALID);
  o.opt.struct_size = sizeof o.opt;
  o.opt.flags = 1u << 31;
  ck_status(oc_backend_open_host(&o.opt, &b), OC_E_INVALID);
  ck_status(oc_backend_open_host(NULL, NULL), OC_E_INVALID);
  ck_ok(oc_backend_open_host(NULL, &b));
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("backend");
  TCase *t = tcase_create("backend");
  suite_add_tcase(s, t);
  tcase_add_test(t, g33_bad_tables_are_refused_and_not_closed);
  tcase_add_test(t, a_longer_table_is_taken_if_its_tail_is_zero);
  tcase_add_test(t, the_table_is_copied_and_self_comes_back);
  tcase_add_test(t, a_table_without_a_name_has_one);
  tcase_add_test(t, a_table_of_two_entries_serves_a_whole_model);
  tcase_add_test(t, half_a_set_of_events_is_none);
  tcase_add_test(t, the_kernel_entry_serves_lookups_alone);
  tcase_add_test(t, two_of_three_module_entries_are_unsupported);
  tcase_add_test(t, synchronize_all_stands_for_synchronize);
  tcase_add_test(t, odd_answers_are_backend_errors);
  tcase_add_test(t, close_is_busy_while_models_live);
  tcase_add_test(t, a_backend_that_is_closing_is_closed_to_all);
  tcase_add_test(t, g27_close_in_a_guard);
  tcase_add_test(t, s17_each_free_reaches_its_own_backend);
  tcase_add_test(t, backends_come_and_go_on_many_threads);
  tcase_add_test(t, host_options);
  return s;
}

int main(void) { return fx_run(suite()); }
