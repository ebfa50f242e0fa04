/* SPDX-License-Identifier: MIT */
/* Making a model: options, reserve, generations, parts, names, modules, holds; destroying it (DESIGN 3.2). */
#include "config.h"

#include <jansson.h>
#include <string.h>

#include "tests/world.h"
#include "tests/wrap.h"

static oc_pool_stats stats(oc_model *m) {
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &s));
  return s;
}

/* ---- options ---- */

START_TEST(options_may_be_null_longer_but_not_shorter) {
  oc_backend *b = fx_open(NULL);
  struct { oc_model_options opt; uint64_t tail[2]; } o = {.opt = {.struct_size = sizeof o}};
  oc_model *m, *untouched = (oc_model *)&m;
  ck_ok(oc_model_create(b, NULL, &m));
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_model_create(b, &o.opt, &m));
  ck_ok(oc_model_destroy(m));
  m = untouched;
  uint64_t before = fx_all_calls(b);
  o.tail[1] = 1;
  ck_status(oc_model_create(b, &o.opt, &m), OC_E_INVALID);
  const uint32_t sizes[] = {0, 4, (uint32_t)offsetof(oc_model_options, teardown_wait_ms), sizeof o.opt - 1, UINT32_MAX};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    o.opt.struct_size = sizes[i];
    ck_status(oc_model_create(b, &o.opt, &m), OC_E_INVALID);
    ck_words("struct_size");
  }
  ck_assert_ptr_eq(m, untouched);
  ck_assert_uint_eq(fx_all_calls(b), before);
  fx_close(b);
}
END_TEST

START_TEST(bad_options_are_refused) {
  oc_backend *b = fx_open(NULL);
  oc_model *m;
  oc_model_options o = {.struct_size = sizeof o, .flags = 4};
  ck_status(oc_model_create(b, &o, &m), OC_E_INVALID);
  ck_words("flags");
  o = (oc_model_options){.struct_size = sizeof o, .arena_min = 64 * MiB, .arena_max = 2 * MiB};
  ck_status(oc_model_create(b, &o, &m), OC_E_INVALID);
  ck_words("arena_min");
  ck_status(oc_model_create(NULL, NULL, &m), OC_E_INVALID);
  ck_status(oc_model_create(b, NULL, NULL), OC_E_INVALID);
  fx_close(b);
}
END_TEST

START_TEST(nothing_is_allocated_on_demand_until_asked) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  ck_assert_uint_eq(fx_all_calls(b), 0);
  ck_assert_uint_eq(stats(m).arenas, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(arena_sizes_are_the_options) {   /* G18 */
  oc_backend *b = fx_open(NULL);
  oc_devptr p;
  oc_model *m = fx_model(b);
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  ck_assert_uint_eq(fx_used(b), 64 * MiB);
  ck_ok(oc_model_destroy(m));
  m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 4 * MiB});
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  ck_assert_uint_eq(fx_used(b), 2 * MiB);
  ck_ok(oc_model_destroy(m));
  m = fx_model_opt(b, (oc_model_options){.arena_min = 1, .arena_max = 1});   /* as small as arenas can be */
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  ck_assert_uint_eq(fx_used(b), 2 * MiB);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- reserve ---- */

START_TEST(reserve_serves_its_bytes_without_the_driver) {
  oc_backend *b = fx_open(NULL);
  /* 1,000 tensors, each size rounded up to 256 */
  oc_model *m = fx_model_opt(b, (oc_model_options){.reserve_bytes = 1000 * 70144});
  ck_assert_uint_ge(stats(m).free_bytes, 1000 * 70144);
  uint64_t before = fx_calls(b, "alloc");
  oc_devptr p;
  for (int i = 0; i < 1000; i++) ck_ok(oc_pool_alloc(oc_model_pool(m), 70001, 0, &p));
  ck_assert_uint_eq(fx_calls(b, "alloc"), before);
  ck_assert_uint_le(fx_used(b), 1000 * 70144 + 2 * MiB);
  ck_ok(oc_pool_check(oc_model_pool(m)));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(a_reserve_that_cannot_be_met_keeps_nothing) {
  oc_backend *b = fx_open(&(struct fx_options){.device_bytes = 64 * MiB, .no_managed = true});
  oc_model *m = (oc_model *)&m, *was = m;
  oc_model_options o = {.struct_size = sizeof o, .reserve_bytes = 65 * MiB};
  ck_status(oc_model_create(b, &o, &m), OC_E_DEVICE_NOMEM);
  ck_assert_ptr_eq(m, was);
  ck_assert_uint_eq(fx_blocks(b), 0);
  o.reserve_bytes = SIZE_MAX;
  ck_assert_int_lt(oc_model_create(b, &o, &m), 0);
  ck_assert_uint_eq(fx_blocks(b), 0);
  if (fx_can(FX_FAIL)) {
    o.reserve_bytes = 4 * MiB;
    fx_fail(b, "alloc", 1, 1, OC_E_BACKEND);
    ck_status(oc_model_create(b, &o, &m), OC_E_BACKEND);
    ck_assert_uint_eq(fx_blocks(b), 0);
  }
  fx_close(b);   /* no model is left to keep it busy */
}
END_TEST

/* A reserve of several allocations, of which the second fails: the first goes back. */
static bool second_alloc_fails(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)arg;
  *answer = OC_E_BACKEND;
  return strcmp(entry, "alloc") == 0 && wrap_calls(w, "alloc") == 1;
}

static oc_devptr huge_base;
static oc_status huge_alloc(void *self, size_t n, oc_devptr *out) {
  struct wrap *w = self;
  oc_status st = OC_OK;
  if (w->hook(w, "alloc", n, &st)) return st;
  *out = huge_base = (oc_devptr)1 << 44;
  w->log[w->count++] = (struct wrap_call){"alloc", n, OC_OK};
  return OC_OK;
}
static oc_status huge_free(void *self, oc_devptr p) {
  struct wrap *w = self;
  w->log[w->count++] = (struct wrap_call){"free", p, OC_OK};
  return OC_OK;
}

START_TEST(a_reserve_met_in_part_keeps_nothing) {
  struct wrap w;
  oc_backend_ops ops = wrap_table();
  ops.alloc = huge_alloc;
  ops.free = huge_free;
  wrap_open_ops(&w, NULL, &ops);
  w.hook = second_alloc_fails;
  oc_model *m;
  oc_model_options o = {.struct_size = sizeof o, .reserve_bytes = (size_t)3 << 39};   /* 1.5 TiB: two arenas */
  ck_status(oc_model_create(w.outer, &o, &m), OC_E_BACKEND);
  ck_assert_uint_eq(wrap_calls(&w, "alloc"), 1);
  ck_assert_int_ge(wrap_at_arg(&w, "free", huge_base), 0);
  wrap_close(&w);
}
END_TEST

/* A device that has one such arena and not two: the first one doesn't go back to make room for the second. */
static bool one_alloc_fits(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)arg;
  *answer = OC_E_DEVICE_NOMEM;
  return strcmp(entry, "alloc") == 0 && wrap_calls(w, "alloc") > wrap_calls(w, "free");
}

START_TEST(a_reserve_does_not_make_room_out_of_itself) {
  struct wrap w;
  oc_backend_ops ops = wrap_table();
  ops.alloc = huge_alloc;
  ops.free = huge_free;
  wrap_open_ops(&w, NULL, &ops);
  w.hook = one_alloc_fits;
  oc_model *m;
  oc_model_options o = {.struct_size = sizeof o, .flags = OC_MODEL_NO_MANAGED, .reserve_bytes = (size_t)3 << 39};
  ck_status(oc_model_create(w.outer, &o, &m), OC_E_DEVICE_NOMEM);
  ck_assert_uint_eq(wrap_calls(&w, "alloc"), 1);
  ck_assert_uint_eq(wrap_calls(&w, "free"), 1);
  wrap_close(&w);
}
END_TEST

/* Names are the engine's; a log line is one line whatever is in them. */
static char logged[512];

static void keep_line(void *arg, int level, const char *line) {
  (void)arg;
  (void)level;
  snprintf(logged, sizeof logged, "%s", line);
}

START_TEST(a_log_line_is_one_line) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.name = "two\nlines\t\x7f"});
  oc_set_log(keep_line, NULL);
  oc_capture_leave(m);   /* without an enter: logged, with the model's name */
  oc_set_log(NULL, NULL);
  ck_assert_msg(strstr(logged, "two?lines??") != NULL, "%s", logged);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(a_reserve_in_a_capture_asks_no_driver) {   /* G28 */
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *n;
  oc_model_options o = {.struct_size = sizeof o, .reserve_bytes = MiB};
  ck_ok(oc_capture_enter(m, NULL));
  uint64_t before = fx_all_calls(b);
  ck_status(oc_model_create(b, &o, &n), OC_E_CAPTURING);
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_capture_leave(m);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- generations and parts ---- */

struct crowd {
  oc_backend *b;
  uint64_t seen[8][50];
};
static void collect_generations(void *arg, unsigned i) {
  struct crowd *c = arg;
  for (unsigned n = 0; n < 50; n++) {
    oc_model *m = fx_model(c->b);
    c->seen[i][n] = oc_model_generation(m);
    ck_ok(oc_model_destroy(m));
  }
}

START_TEST(generations_are_never_reused) {
  struct crowd c = {.b = fx_open(NULL)};
  fx_threads(8, collect_generations, &c);
  const uint64_t *all = &c.seen[0][0];
  for (unsigned i = 0; i < 400; i++) {
    ck_assert_uint_ne(all[i], 0);
    for (unsigned k = 0; k < i; k++) ck_assert_uint_ne(all[i], all[k]);
    if (i % 50) ck_assert_uint_gt(all[i], all[i - 1]);
  }
  fx_close(c.b);
}
END_TEST

START_TEST(parts_are_the_models_own) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *n = fx_model(b);
  ck_assert_ptr_eq(oc_model_pool(m), oc_model_pool(m));
  ck_assert_ptr_ne(oc_model_pool(m), oc_model_pool(n));
  ck_assert_ptr_ne(oc_model_opcache(m), oc_model_opcache(n));
  ck_assert_ptr_ne(oc_model_derived(m), oc_model_derived(n));
  ck_assert_str_eq(oc_opcache_label(oc_model_opcache(m)), "op scratch");
  ck_assert_str_eq(oc_derived_label(oc_model_derived(m)), "derived weights");
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  ck_status(oc_pool_free(oc_model_pool(n), p), OC_E_NOT_OWNED);
  ck_ok(oc_model_destroy(n));
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- names ---- */

static void check_name(oc_backend *b, const char *name, const char *want) {
  oc_report *r;
  oc_model *m = fx_model_opt(b, (oc_model_options){.name = name});
  ck_ok(oc_model_teardown(m, &r));
  char *text = oc_report_json(r);
  json_error_t e;
  json_t *j = json_loads(text, 0, &e);
  ck_assert_msg(j != NULL, "%s: %s", e.text, text);
  const char *got = json_string_value(json_object_get(j, "model"));
  if (want) ck_assert_str_eq(got, want);
  else ck_assert_ptr_nonnull(got);
  json_decref(j);
  oc_string_free(text);
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
}

START_TEST(names_of_all_kinds_make_whole_reports) {
  oc_backend *b = fx_open(NULL);
  char many[600];
  for (size_t i = 0; i + 2 < sizeof many; i += 2) memcpy(many + i, "\xC3\xA9", 2);
  many[sizeof many - 2] = 0;
  check_name(b, "llama", "llama");
  check_name(b, "a \"quoted\"\n\tname \\ with\x01 all", "a \"quoted\"\n\tname \\ with\x01 all");
  check_name(b, "not utf-8: \xFF\xC3", NULL);
  check_name(b, many, NULL);
  check_name(b, many + 1, NULL);      /* starts inside a character */
  check_name(b, "%s%n%d", "%s%n%d");
  check_name(b, "", NULL);
  check_name(b, NULL, NULL);
  fx_close(b);
}
END_TEST

/* ---- modules ---- */

START_TEST(g5_a_name_is_loaded_once) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_module first, again;
  int image = 0;
  fx_load(m, "test");
  ck_ok(oc_model_module(m, "test", &first));
  uint64_t before = fx_calls(b, "module_load");
  ck_status(oc_model_load_module(m, "test", &image, sizeof image), OC_EXISTS);
  ck_status(oc_model_adopt_module(m, "test", (oc_module)&image), OC_EXISTS);
  ck_ok(oc_model_module(m, "test", &again));
  ck_assert_ptr_eq(first, again);
  ck_assert_uint_eq(fx_calls(b, "module_load"), before);
  ck_status(oc_model_module(m, "other", &again), OC_E_NOT_FOUND);
  ck_status(oc_model_load_module(m, "", &image, sizeof image), OC_E_INVALID);
  ck_status(oc_model_load_module(m, "x", NULL, 4), OC_E_INVALID);
  ck_status(oc_model_load_module(m, "x", &image, 0), OC_E_INVALID);
  ck_status(oc_model_adopt_module(m, "x", NULL), OC_E_INVALID);
  ck_assert_int_lt(oc_model_load_module(m, "broken", &image, sizeof image), 0);
  ck_status(oc_model_module(m, "broken", &again), OC_E_NOT_FOUND);
  fx_load(m, "broken");   /* a name whose loading failed is free */
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

struct loading {
  oc_model *m;
  unsigned loaded, exists;
};
static void load_once(void *arg, unsigned i) {
  struct loading *l = arg;
  int nonsense = (int)i;
  oc_module h;
  (void)nonsense;
  oc_status st = oc_model_adopt_module(l->m, "shared", (oc_module)(uintptr_t)(i + 1));
  if (st == OC_OK) __atomic_add_fetch(&l->loaded, 1, __ATOMIC_RELAXED);
  if (st == OC_EXISTS) __atomic_add_fetch(&l->exists, 1, __ATOMIC_RELAXED);
  ck_ok(oc_model_module(l->m, "shared", &h));
}

START_TEST(one_of_many_threads_names_a_module) {
  oc_backend *b = fx_open(NULL);
  struct loading l = {.m = fx_model(b)};
  fx_threads(8, load_once, &l);
  ck_assert_uint_eq(l.loaded, 1);
  ck_assert_uint_eq(l.exists, 7);
  ck_ok(oc_model_destroy(l.m));
  ck_assert_uint_eq(fx_calls(b, "module_unload"), 0);   /* borrowed: never unloaded by us */
  fx_close(b);
}
END_TEST

START_TEST(an_adopted_module_is_looked_up_and_left_loaded) {
  oc_backend *b = fx_open(NULL);
  oc_model *owner = fx_model(b), *m = fx_model(b);
  oc_module h;
  oc_kernel k, same;
  fx_load(owner, "test");
  ck_ok(oc_model_module(owner, "test", &h));
  ck_ok(oc_model_adopt_module(m, "mine", h));
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "mine", "add", &k));
  ck_ok(oc_opcache_kernel(oc_model_opcache(owner), "test", "add", &same));
  ck_assert_ptr_eq(k, same);
  ck_ok(oc_model_destroy(m));
  ck_assert_uint_eq(fx_modules(b), 1);
  ck_ok(oc_model_destroy(owner));
  fx_close(b);
}
END_TEST

/* ---- holds ---- */

START_TEST(holds_are_counted_by_name) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.teardown_wait_ms = 1});
  char who[] = "miss";
  ck_ok(oc_model_retain(m, who));
  memset(who, 'x', 4);                 /* the name was copied */
  ck_ok(oc_model_retain(m, "miss"));
  ck_ok(oc_model_retain(m, "other"));
  ck_status(oc_model_release_hold(m, "nobody"), OC_E_NOT_FOUND);
  ck_words("nobody");
  ck_ok(oc_model_release_hold(m, "miss"));
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_words("miss");
  ck_words("other");
  ck_ok(oc_model_release_hold(m, "miss"));
  ck_status(oc_model_release_hold(m, "miss"), OC_E_NOT_FOUND);
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_assert_ptr_null(strstr(oc_last_error(), "miss"));
  ck_ok(oc_model_release_hold(m, "other"));
  ck_status(oc_model_retain(m, NULL), OC_E_INVALID);
  ck_status(oc_model_retain(m, ""), OC_E_INVALID);
  ck_status(oc_model_release_hold(m, NULL), OC_E_INVALID);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- destroy ---- */

START_TEST(a_refused_destroy_leaves_a_working_model) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.teardown_wait_ms = 1});
  oc_devptr p;
  ck_status(oc_model_destroy(NULL), OC_E_INVALID);
  ck_ok(oc_model_retain(m, "somebody"));
  ck_status(oc_model_destroy(m), OC_E_BUSY);
  ck_ok(oc_model_release_hold(m, "somebody"));
  oc_guard_enter();
  ck_status(oc_model_destroy(m), OC_E_GUARDED);
  oc_guard_leave();
  ck_ok(oc_capture_enter(m, NULL));
  ck_status(oc_model_destroy(m), OC_E_BUSY);
  oc_capture_leave(m);
  oc_build *build;
  uint64_t out[2];
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 1, &build, out), OC_MISS);
  ck_status(oc_model_destroy(m), OC_E_REENTRANT);
  oc_build_abort(build);
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  ck_ok(oc_model_teardown(m, NULL));
  oc_guard_enter();
  ck_status(oc_model_destroy(m), OC_E_GUARDED);   /* torn down, yet it would wait for this guard */
  oc_guard_leave();
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

static void call_destroy(void *arg) {
  ck_ok(oc_model_destroy(arg));
}

/* A guard entered after teardown, inside which a look-up may still read the model's tables. */
START_TEST(g3_destroy_waits_for_guards) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  struct guarded reader;
  struct side other;
  uint64_t v;
  ck_ok(oc_model_teardown(m, NULL));
  guarded_start(&reader);
  side_start(&other, call_destroy, m);
  side_waits(&other);
  ck_status(oc_derived_get_ptr(oc_model_derived(m), OC_BF16, 1, &v), OC_E_RELEASED);   /* for the reader: it is all there */
  guarded_end(&reader);
  side_join(&other);
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("model");
  TCase *t = tcase_create("model");
  suite_add_tcase(s, t);
  tcase_add_test(t, options_may_be_null_longer_but_not_shorter);
  tcase_add_test(t, bad_options_are_refused);
  tcase_add_test(t, nothing_is_allocated_on_demand_until_asked);
  tcase_add_test(t, arena_sizes_are_the_options);
  tcase_add_test(t, reserve_serves_its_bytes_without_the_driver);
  tcase_add_test(t, a_reserve_that_cannot_be_met_keeps_nothing);
  tcase_add_test(t, a_reserve_met_in_part_keeps_nothing);
  tcase_add_test(t, a_reserve_does_not_make_room_out_of_itself);
  tcase_add_test(t, a_reserve_in_a_capture_asks_no_driver);
  tcase_add_test(t, a_log_line_is_one_line);
  tcase_add_test(t, generations_are_never_reused);
  tcase_add_test(t, parts_are_the_models_own);
  tcase_add_test(t, names_of_all_kinds_make_whole_reports);
  tcase_add_test(t, g5_a_name_is_loaded_once);
  tcase_add_test(t, one_of_many_threads_names_a_module);
  tcase_add_test(t, an_adopted_module_is_looked_up_and_left_loaded);
  tcase_add_test(t, holds_are_counted_by_name);
  tcase_add_test(t, a_refused_destroy_leaves_a_working_model);
  tcase_add_test(t, g3_destroy_waits_for_guards);
  return s;
}

int main(void) { return fx_run(suite()); }
