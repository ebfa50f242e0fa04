/* SPDX-License-Identifier: MIT */
/* Teardown (G3, G22 to G27; S3, S4, S11, S18, S21, S22, S29): its order, what refuses it, what fails in it, its report. */
#include "config.h"

#include <dirent.h>
#include <jansson.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/wrap.h"

#define MiB ((size_t)1 << 20)

/* ---- reading a report ---- */

/* The detail of the first row of that label; NULL: none. */
static const char *row(const oc_report *r, const char *label, oc_status *st) {
  for (size_t i = 0; i < oc_report_count(r); i++) {
    const char *l, *d;
    oc_status s;
    ck_ok(oc_report_row(r, i, &l, &s, &d));
    if (strcmp(l, label) != 0) continue;
    if (st) *st = s;
    return d;
  }
  return NULL;
}

static int row_at(const oc_report *r, const char *label) {
  for (size_t i = 0; i < oc_report_count(r); i++) {
    const char *l;
    ck_ok(oc_report_row(r, i, &l, NULL, NULL));
    if (strcmp(l, label) == 0) return (int)i;
  }
  return -1;
}

static void check_row(const oc_report *r, const char *label, oc_status want, const char *part) {
  oc_status st = OC_MISS;
  const char *d = row(r, label, &st);
  ck_assert_msg(d != NULL, "no row %s", label);
  ck_assert_msg(st == want, "row %s: %s", label, oc_status_name(st));
  ck_assert_msg(strstr(d, part) != NULL, "row %s: \"%s\" is not in: %s", label, part, d);
}

static unsigned failed_rows(const oc_report *r) {
  unsigned n = 0;
  for (size_t i = 0; i < oc_report_count(r); i++) {
    oc_status st;
    ck_ok(oc_report_row(r, i, NULL, &st, NULL));
    n += st != OC_OK;
  }
  return n;
}

/* ---- a model with one of everything ---- */

static oc_devptr foreign(oc_backend *b) {
  oc_devptr p;
  ck_ok(oc_backend_table(b)->alloc(oc_backend_self(b), 4096, &p));
  return p;
}

static void fill(oc_backend *b, oc_model *m, oc_stream s, oc_devptr *foreign_value) {
  oc_devptr p;
  oc_kernel k;
  fx_load(m, "one");
  fx_load(m, "two");
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "one", "add", &k));
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", s, 4096, &p));
  ck_ok(oc_pool_alloc(oc_model_pool(m), 8192, 0, &p));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 0x7f0000, p, NULL));
  *foreign_value = foreign(b);
  ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 0x7f1000, *foreign_value, NULL));
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "weights", 1000, 0, &p));
  ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "kv cache", 3 * MiB, 0, &p));
  ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "weights", 2 * MiB, 0, &p));
}

static struct wrap *resource_wrap;
static oc_status note_release(void *self, oc_backend *b) {
  oc_devptr p;
  /* seen in the log as an alloc of this many bytes */
  ck_ok(oc_backend_table(b)->alloc(oc_backend_self(b), 100 + *(unsigned *)self, &p));
  ck_ok(oc_backend_table(b)->free(oc_backend_self(b), p));
  ck_assert_ptr_eq(b, resource_wrap->outer);
  return OC_OK;
}

/* G22: streams, resources newest first, foreign values, one free an arena, modules; and nothing else is freed. */
START_TEST(g22_the_order_of_release) {
  struct wrap w;
  wrap_open(&w, NULL);
  resource_wrap = &w;
  oc_stream s = fx_stream(w.outer);
  oc_model *m = fx_model_opt(w.outer, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB, .name = "ordered"});
  oc_devptr value;
  fill(w.outer, m, s, &value);
  unsigned first = 1, second = 2;
  const oc_resource_ops ops = {sizeof ops, "graph", note_release};
  ck_ok(oc_model_push(m, &ops, &first));
  ck_ok(oc_model_push(m, &ops, &second));
  unsigned arenas = wrap_calls(&w, "alloc") - 1;
  wrap_forget(&w);
  oc_report *r;
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_int_ge(wrap_at_arg(&w, "synchronize", (uint64_t)(uintptr_t)s), 0);
  ck_assert_uint_eq(wrap_calls(&w, "synchronize"), 1);          /* the named stream alone */
  ck_assert_uint_eq(wrap_calls(&w, "synchronize_all"), 0);
  ck_assert_int_lt(wrap_at(&w, "synchronize", 1), wrap_at_arg(&w, "alloc", 102));
  ck_assert_int_lt(wrap_at_arg(&w, "alloc", 102), wrap_at_arg(&w, "alloc", 101));
  ck_assert_int_lt(wrap_at_arg(&w, "alloc", 101), wrap_at_arg(&w, "free", value));
  ck_assert_uint_eq(wrap_calls(&w, "free"), 2 + 1 + arenas);    /* the resources' own, the foreign value, the arenas */
  ck_assert_int_lt(wrap_at_arg(&w, "free", value), wrap_at(&w, "free", 4));
  ck_assert_int_lt(wrap_at(&w, "free", 3 + arenas), wrap_at(&w, "module_unload", 1));
  ck_assert_uint_eq(wrap_calls(&w, "module_unload"), 2);
  /* the report says the same, in the same order */
  ck_assert_uint_eq(oc_report_arenas_freed(r), arenas);
  ck_assert_uint_eq(oc_report_modules_unloaded(r), 2);
  ck_assert_uint_eq(oc_report_blocks_swept(r), 1);
  check_row(r, "graph", OC_OK, "released");
  check_row(r, "op scratch", OC_OK, "1 buffers");
  check_row(r, "derived weights", OC_OK, "2 entries, 1 values");
  check_row(r, "weights", OC_OK, "2 blocks, 2098176 bytes");
  check_row(r, "kv cache", OC_OK, "1 blocks, 3145728 bytes");
  check_row(r, "unowned blocks", OC_OK, "256 B in 1 blocks, largest site ");
  check_row(r, "module two", OC_OK, "unloaded");
  ck_assert_int_lt(row_at(r, "graph"), row_at(r, "op scratch"));
  ck_assert_int_lt(row_at(r, "derived weights"), row_at(r, "arenas"));
  ck_assert_int_lt(row_at(r, "arenas"), row_at(r, "module two"));
  ck_assert_int_lt(row_at(r, "module two"), row_at(r, "module one"));
  ck_assert_uint_eq(failed_rows(r), 0);
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(w.outer, s);
  wrap_close(&w);
}
END_TEST

START_TEST(g22_no_stream_named_drains_the_device) {
  struct wrap w;
  wrap_open(&w, NULL);
  oc_model *m = fx_model(w.outer);
  fx_load(m, "test");
  ck_ok(oc_model_destroy(m));
  ck_assert_uint_eq(wrap_calls(&w, "synchronize_all"), 1);
  ck_assert_int_lt(wrap_at(&w, "synchronize_all", 1), wrap_at(&w, "module_unload", 1));
  wrap_close(&w);
}
END_TEST

/* ---- waiting ---- */

struct teardown_call {
  oc_model *m;
  pthread_t thread;
  oc_status st;
  oc_report *report;
  bool done;
};
static void *tear_down(void *arg) {
  struct teardown_call *c = arg;
  c->st = oc_model_teardown(c->m, &c->report);
  __atomic_store_n(&c->done, true, __ATOMIC_RELEASE);
  return NULL;
}
static void start(struct teardown_call *c, oc_model *m) {
  *c = (struct teardown_call){.m = m};
  ck_assert_int_eq(pthread_create(&c->thread, NULL, tear_down, c), 0);
}
static bool done(struct teardown_call *c) { return __atomic_load_n(&c->done, __ATOMIC_ACQUIRE); }
static bool stopped(oc_model *m) {
  oc_module h;
  return oc_model_module(m, "none", &h) == OC_E_RELEASED;
}
static oc_status join(struct teardown_call *c) {
  pthread_join(c->thread, NULL);
  oc_report_free(c->report);
  return c->st;
}

/* S4: kernels queued, not yet run: nothing is freed or unloaded before they ran. */
START_TEST(s4_queued_work_runs_before_the_first_free) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b);
  oc_model *m = fx_model(b);
  oc_kernel k;
  oc_devptr p;
  fx_load(m, "test");
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "test", "add", &k));
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", s, 4096, &p));
  fx_stall(b, s, true);
  for (int i = 0; i < 50; i++) fx_launch_add(b, k, s, p, 1);
  struct teardown_call c;
  start(&c, m);
  fx_until(stopped(m));
  fx_until(fx_calls(b, "synchronize") > 0);
  ck_assert(!done(&c));
  ck_assert_uint_eq(fx_calls(b, "free") + fx_calls(b, "module_unload"), 0);
  fx_stall(b, s, false);
  ck_status(join(&c), OC_OK);
  ck_assert_uint_eq(fx_stale(b), 0);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* Another model's stalled stream keeps nobody: only the model's own streams are drained. */
START_TEST(g22_only_the_models_streams_are_drained) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(NULL);
  oc_stream mine = fx_stream(b), other = fx_stream(b);
  oc_model *m = fx_model(b);
  oc_kernel k;
  oc_devptr p = foreign(b);
  fx_load(m, "test");
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "test", "add", &k));
  ck_ok(oc_model_use_stream(m, mine));
  fx_stall(b, other, true);
  ck_ok(oc_backend_table(b)->memset(oc_backend_self(b), p, 0, 16, other));
  ck_ok(oc_model_destroy(m));
  fx_stall(b, other, false);
  fx_sync(b, other);
  ck_ok(oc_backend_table(b)->free(oc_backend_self(b), p));
  fx_stream_free(b, mine);
  fx_stream_free(b, other);
  fx_close(b);
}
END_TEST

struct guard_holder {
  oc_model *m;
  pthread_t thread;
  bool in, leave;
  oc_devptr p;
  oc_kernel k;
};
static void *hold_guard(void *arg) {
  struct guard_holder *g = arg;
  ck_ok(oc_model_enter(g->m));
  oc_guard_enter();                    /* nested: the outermost leave counts */
  ck_ok(oc_opcache_kernel(oc_model_opcache(g->m), "test", "add", &g->k));
  ck_ok(oc_opcache_scratch(oc_model_opcache(g->m), "act", 4096, &g->p));
  oc_guard_leave();
  __atomic_store_n(&g->in, true, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&g->leave, __ATOMIC_ACQUIRE)) fx_msleep(1);
  oc_model_leave(g->m);
  return NULL;
}

/* G2, G22: a guard entered before keeps everything alive; a new one finds the model gone. */
START_TEST(g22_waits_for_guards) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  struct guard_holder g = {.m = m};
  struct teardown_call c;
  fx_load(m, "test");
  pthread_create(&g.thread, NULL, hold_guard, &g);
  fx_until(__atomic_load_n(&g.in, __ATOMIC_ACQUIRE));
  start(&c, m);
  fx_until(stopped(m));
  ck_status(oc_model_enter(m), OC_E_RELEASED);
  fx_msleep(20);
  ck_assert(!done(&c));
  ck_assert_uint_eq(fx_calls(b, "free") + fx_calls(b, "module_unload"), 0);
  __atomic_store_n(&g.leave, true, __ATOMIC_RELEASE);
  pthread_join(g.thread, NULL);
  ck_status(join(&c), OC_OK);
  ck_assert_uint_eq(fx_calls(b, "module_unload"), 1);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* A call in flight (inside the driver) is waited for. */
static void *load_slowly(void *arg) {
  fx_load(arg, "slow");
  return NULL;
}
START_TEST(g22_waits_for_calls_in_flight) {
  if (!fx_can(FX_DELAY)) { fx_skip("needs slow calls"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  pthread_t t;
  fx_delay(b, "module_load", 200000000);
  pthread_create(&t, NULL, load_slowly, m);
  fx_until(fx_calls(b, "module_load") == 1);
  oc_report *r;
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_uint_eq(oc_report_modules_unloaded(r), 1);
  pthread_join(t, NULL);
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* One that does not end in teardown_wait_ms refuses, by the function's name. */
START_TEST(g24_a_call_in_flight_refuses_by_name) {
  if (!fx_can(FX_DELAY)) { fx_skip("needs slow calls"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.teardown_wait_ms = 20});
  oc_devptr p;
  pthread_t t;
  fx_delay(b, "module_load", 400000000);
  pthread_create(&t, NULL, load_slowly, m);
  fx_until(fx_calls(b, "module_load") == 1);
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_words("oc_model_load_module");
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  pthread_join(t, NULL);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Those who wait for a build are woken; the build itself ends with RELEASED; its abort lets teardown go on. */
struct waiter {
  oc_model *m;
  pthread_t thread;
  oc_status st;
};
static void *wait_for_build(void *arg) {
  struct waiter *w = arg;
  oc_build *b;
  uint64_t out[2];
  w->st = oc_derived_begin(oc_model_derived(w->m), OC_BF16, 5, &b, out);
  return NULL;
}
START_TEST(g22_builds_end_and_waiters_are_woken) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  struct waiter w = {.m = m};
  struct teardown_call c;
  oc_build *build;
  uint64_t out[2];
  oc_devptr p;
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 5, &build, out), OC_MISS);
  ck_ok(oc_build_alloc(build, 4096, 0, &p));
  pthread_create(&w.thread, NULL, wait_for_build, &w);
  fx_msleep(5);
  start(&c, m);
  pthread_join(w.thread, NULL);         /* before the build ended */
  ck_status(w.st, OC_E_RELEASED);
  ck_assert(!done(&c));
  ck_status(oc_build_alloc(build, 4096, 0, &p), OC_E_RELEASED);
  out[0] = p;
  ck_status(oc_build_commit(build, out, NULL), OC_E_RELEASED);
  ck_status(join(&c), OC_OK);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- what refuses ---- */

static void check_works(oc_backend *b, oc_model *m) {
  oc_devptr p;
  oc_kernel k;
  uint64_t v;
  ck_ok(oc_model_enter(m));
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "one", "add", &k));
  ck_ok(oc_derived_get_ptr(oc_model_derived(m), OC_BF16, 0x7f0000, &v));
  oc_model_leave(m);
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "more", 70 * MiB, &p));   /* grows */
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "two", "fill", &k));
  fx_launch_fill(b, k, NULL, p, 7, 16);
  fx_sync(b, NULL);
  ck_ok(oc_pool_check(oc_model_pool(m)));
}

START_TEST(s21_a_forgotten_holder_refuses_by_name) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.teardown_wait_ms = 5});
  oc_report *r = (oc_report *)&r;
  oc_devptr value;
  fill(b, m, NULL, &value);
  size_t used = fx_used(b);
  ck_ok(oc_model_retain(m, "sampler thread"));
  for (int i = 0; i < 3; i++) {
    ck_status(oc_model_teardown(m, &r), OC_E_BUSY);
    ck_words("sampler thread");
    ck_assert_ptr_null(r);
    ck_assert_uint_eq(fx_used(b), used);
    ck_assert_uint_eq(fx_calls(b, "free") + fx_calls(b, "module_unload"), 0);
  }
  check_works(b, m);
  ck_ok(oc_model_release_hold(m, "sampler thread"));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

static oc_build *nameless[3];
static void *begin_three(void *arg) {
  uint64_t out[2];
  for (uint64_t i = 0; i < 3; i++)
    ck_status(oc_derived_begin_at(oc_model_derived(arg), OC_BF16, 0xB0 + i, NULL, &nameless[i], out), OC_MISS);
  return NULL;
}

/* Eight of them by name, the rest by number; a build whose site is not known says so. */
START_TEST(g24_many_that_keep_it_are_counted) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.teardown_wait_ms = 5});
  char who[16];
  pthread_t t;
  pthread_create(&t, NULL, begin_three, m);
  pthread_join(t, NULL);
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_words("the build of bf16 0xb2 begun at an unknown site:0 (?)");
  ck_assert_ptr_null(strstr(oc_last_error(), "more"));
  for (int i = 0; i < 10; i++) {
    snprintf(who, sizeof who, "holder %d", i);
    ck_ok(oc_model_retain(m, who));
  }
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_words("the holder holder 7 (1); and 5 more");   /* two holders, three builds */
  for (int i = 0; i < 3; i++) oc_build_abort(nameless[i]);
  for (int i = 0; i < 10; i++) {
    snprintf(who, sizeof who, "holder %d", i);
    ck_ok(oc_model_release_hold(m, who));
  }
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* A holder that lets go while teardown waits for it. */
START_TEST(g24_a_holder_that_lets_go_is_waited_for) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  struct teardown_call c;
  ck_ok(oc_model_retain(m, "miss"));
  start(&c, m);
  fx_until(stopped(m));
  ck_assert(!done(&c));
  ck_ok(oc_model_release_hold(m, "miss"));
  ck_status(join(&c), OC_OK);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* S29: a build whose thread never ends it, with kind, key and call site; after abort, from any thread, it works. */
static oc_build *lost_build;
static unsigned lost_line;
static void *begin_and_die(void *m) {
  uint64_t out[2];
  lost_line = __LINE__ + 1;
  ck_status(oc_derived_begin(oc_model_derived(m), OC_CUTLASS_NVFP4_T, 0xABCDE0, &lost_build, out), OC_MISS);
  return NULL;
}
START_TEST(s29_an_open_build_refuses_with_kind_key_and_site) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.teardown_wait_ms = 5});
  pthread_t t;
  char site[64];
  pthread_create(&t, NULL, begin_and_die, m);
  pthread_join(t, NULL);
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_words("nvfp4-t");
  ck_words("0xabcde0");
  snprintf(site, sizeof site, "test_teardown.c:%u", lost_line);
  ck_words(site);
  ck_words("begin_and_die");
  oc_build_abort(lost_build);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

static void *capture_elsewhere(void *arg) {
  struct guard_holder *g = arg;
  ck_ok(oc_capture_enter(g->m, NULL));
  __atomic_store_n(&g->in, true, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&g->leave, __ATOMIC_ACQUIRE)) fx_msleep(1);
  oc_capture_leave(g->m);
  return NULL;
}
START_TEST(g22_a_capture_refuses) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *n = fx_model(b), *named = fx_model(b);
  oc_stream s = fx_stream(b);
  struct guard_holder g = {.m = m};
  ck_ok(oc_model_use_stream(named, s));
  pthread_create(&g.thread, NULL, capture_elsewhere, &g);
  fx_until(__atomic_load_n(&g.in, __ATOMIC_ACQUIRE));
  uint64_t before = fx_all_calls(b);
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_words("capture");
  ck_status(oc_model_teardown(n, NULL), OC_E_BUSY);   /* n named no stream: it would wait for the whole device */
  ck_words("whole device");
  ck_assert_uint_eq(fx_calls(b, "synchronize_all") + fx_calls(b, "synchronize"), 0);
  ck_assert_uint_le(fx_all_calls(b) - before, fx_calls(b, "capturing"));
  ck_ok(oc_model_teardown(named, NULL));              /* its own streams do not capture */
  __atomic_store_n(&g.leave, true, __ATOMIC_RELEASE);
  pthread_join(g.thread, NULL);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_model_destroy(n));
  ck_ok(oc_model_destroy(named));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* The same on the thread that captures: BUSY for what G22 names, and G28's answer for a model that is not concerned. */
START_TEST(g22_this_threads_capture_refuses) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *n = fx_model(b), *named = fx_model(b);
  oc_model *gone = fx_model(b);
  oc_stream s = fx_stream(b), t = fx_stream(b);
  ck_ok(oc_model_teardown(gone, NULL));
  ck_ok(oc_model_use_stream(named, t));
  ck_ok(oc_capture_enter(m, s));
  uint64_t before = fx_all_calls(b);
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_status(oc_model_destroy(m), OC_E_BUSY);
  ck_words("capture");
  ck_status(oc_model_teardown(n, NULL), OC_E_BUSY);
  ck_words("whole device");
  ck_status(oc_model_teardown(named, NULL), OC_E_CAPTURING);
  ck_status(oc_model_teardown(gone, NULL), OC_E_CAPTURING);   /* nothing is waited for any more: not the whole device either */
  oc_guard_enter();
  ck_status(oc_model_teardown(m, NULL), OC_E_GUARDED);
  oc_guard_leave();
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_capture_leave(m);
  ck_ok(oc_model_destroy(gone));
  oc_model *all[] = {m, n, named};
  for (int i = 0; i < 3; i++) {
    oc_devptr p;
    ck_ok(oc_pool_alloc(oc_model_pool(all[i]), 256, 0, &p));
    ck_ok(oc_model_destroy(all[i]));
  }
  fx_stream_free(b, s);
  fx_stream_free(b, t);
  fx_close(b);
}
END_TEST

START_TEST(g22_an_undeclared_capture_refuses) {
  if (!fx_can(FX_CAPTURE)) { fx_skip("needs captures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b);
  oc_model *m = fx_model(b);
  ck_ok(oc_model_use_stream(m, s));
  fx_capturing(b, s, true);
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_assert_uint_eq(fx_calls(b, "synchronize"), 0);
  fx_capturing(b, s, false);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* S18, G27 */
START_TEST(s18_in_a_guard) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_report *r = (oc_report *)&r;
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 1, p, NULL));
  ck_ok(oc_model_enter(m));
  oc_build *build;
  uint64_t out[2], k1 = 1;
  ck_status(oc_model_teardown(m, &r), OC_E_GUARDED);
  ck_assert_ptr_null(r);
  ck_status(oc_model_destroy(m), OC_E_GUARDED);
  ck_status(oc_opcache_release(oc_model_opcache(m)), OC_E_GUARDED);
  ck_status(oc_derived_release(oc_model_derived(m)), OC_E_GUARDED);
  ck_status(oc_derived_invalidate(oc_model_derived(m), 1), OC_E_GUARDED);
  ck_status(oc_derived_invalidate_n(oc_model_derived(m), &k1, 1), OC_E_GUARDED);
  ck_status(oc_derived_settle(oc_model_derived(m)), OC_E_GUARDED);
  ck_status(oc_model_graphs_gone(m), OC_E_GUARDED);
  ck_status(oc_backend_close(b), OC_E_GUARDED);
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 2, &build, out), OC_E_GUARDED);
  ck_ok(oc_derived_begin(oc_model_derived(m), OC_BF16, 1, &build, out));   /* a hit */
  ck_ok(oc_pool_alloc(oc_model_pool(m), 100 * MiB, 0, &p));                /* misses that only ask the driver work */
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 200 * MiB, &p));
  fx_load(m, "test");
  oc_model_leave(m);
  ck_assert_uint_eq(oc_derived_len(oc_model_derived(m)), 1);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- failures ---- */

/* G23: the nth free and unload fail, a resource fails: each a row, the rest is attempted. */
static oc_status failing_release(void *self, oc_backend *b) {
  (void)b;
  return *(oc_status *)self;
}
/* A release that fails by a call of ours: that call's words are the row's, not those of a failure before. */
static oc_status release_stranger(void *self, oc_backend *b) {
  (void)b;
  return oc_pool_free(oc_model_pool(self), 0x123400);
}
START_TEST(g23_a_row_has_the_words_of_its_own_failure) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_status bad = OC_E_IO;
  const oc_resource_ops ops[] = {{sizeof *ops, "graphs", release_stranger}, {sizeof *ops, "cache", failing_release}};
  ck_ok(oc_model_push(m, &ops[1], &bad));
  ck_ok(oc_model_push(m, &ops[0], m));
  oc_report *r;
  ck_status(oc_model_teardown(m, &r), OC_E_TEARDOWN);
  check_row(r, "graphs", OC_E_NOT_OWNED, "0x123400 is in no arena");
  check_row(r, "cache", OC_E_IO, oc_status_text(OC_E_IO));
  oc_report_free(r);
  ck_status(oc_model_destroy(m), OC_E_TEARDOWN);
  fx_close(b);
}
END_TEST

START_TEST(g23_every_failure_is_a_row_and_the_rest_goes_on) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  for (uint64_t nth = 1; nth <= 3; nth++) {
    oc_backend *b = fx_open(NULL);
    oc_model *m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB});
    oc_devptr p;
    for (int i = 0; i < 3; i++) ck_ok(oc_pool_alloc(oc_model_pool(m), 2 * MiB, 0, &p));
    fx_load(m, "one");
    fx_load(m, "two");
    oc_status bad = OC_E_IO, odd = OC_EXISTS, good = OC_OK;
    const oc_resource_ops ops[] = {{sizeof *ops, "bad", failing_release}, {sizeof *ops, "odd", failing_release},
                                   {sizeof *ops, NULL, failing_release}};
    ck_ok(oc_model_push(m, &ops[0], &bad));
    ck_ok(oc_model_push(m, &ops[1], &odd));
    ck_ok(oc_model_push(m, &ops[2], &good));
    fx_fail(b, "free", nth, 1, OC_E_BACKEND);
    fx_fail(b, "module_unload", 1, 1, OC_E_INVALID);
    oc_report *r, *again;
    ck_status(oc_model_teardown(m, &r), OC_E_TEARDOWN);
    ck_words("report");
    ck_assert_uint_eq(failed_rows(r), 4);
    check_row(r, "bad", OC_E_IO, "");
    check_row(r, "odd", OC_E_INVALID, "");
    check_row(r, "arenas", OC_E_BACKEND, "2 freed, 4194304 bytes; 1 (2097152 bytes) could not be: ");
    check_row(r, "module two", OC_E_INVALID, "module_unload");
    check_row(r, "module one", OC_OK, "unloaded");
    char *text = oc_report_text(r);
    ck_assert_ptr_nonnull(strstr(text, ": OC_E_TEARDOWN; 2 arenas, 4194304 bytes freed"));
    ck_assert_ptr_nonnull(strstr(text, "\n  arenas             OC_E_BACKEND "));
    ck_assert_ptr_nonnull(strstr(text, "\n  bad                OC_E_IO "));
    ck_assert_ptr_null(strstr(text, "module one"));
    oc_string_free(text);
    ck_assert_uint_eq(oc_report_arenas_freed(r), 2);
    ck_assert_uint_eq(oc_report_modules_unloaded(r), 1);
    ck_assert_uint_eq(fx_calls(b, "free"), 3);
    ck_assert_uint_eq(fx_calls(b, "module_unload"), 2);
    /* a second call does nothing, says the same, gives an equal report */
    uint64_t before = fx_all_calls(b);
    ck_status(oc_model_teardown(m, &again), OC_E_TEARDOWN);
    ck_assert_uint_eq(fx_all_calls(b), before);
    char *x = oc_report_json(r), *y = oc_report_json(again);
    ck_assert_str_eq(x, y);
    oc_string_free(x);
    oc_string_free(y);
    oc_report_free(again);
    ck_status(oc_model_teardown(m, NULL), OC_E_TEARDOWN);
    ck_status(oc_model_destroy(m), OC_E_TEARDOWN);
    ck_assert_uint_eq(oc_report_arenas_freed(r), 2);   /* outlives its model */
    oc_report_free(r);
    ck_ok(oc_backend_close(b));
  }
}
END_TEST

static void fail_one(const char *entry, const char *label) {
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b);
  oc_model *m = fx_model(b);
  oc_devptr value;
  oc_report *r;
  fill(b, m, s, &value);
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, s));
  fx_fail(b, entry, 1, 1, OC_E_BACKEND);
  ck_status(oc_model_teardown(m, &r), OC_E_TEARDOWN);
  ck_assert_uint_eq(failed_rows(r), 1);
  check_row(r, label, OC_E_BACKEND, entry);
  oc_report_free(r);
  ck_status(oc_model_destroy(m), OC_E_TEARDOWN);
  ck_ok(oc_backend_close(b));
}
START_TEST(g23_a_failed_wait_or_foreign_free_is_a_row) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  fail_one("synchronize", "streams");
  fail_one("event_destroy", "events");
  fail_one("free", "derived weights");   /* the foreign value is freed first */
}
END_TEST

/* ---- S22, G25: the context is gone ---- */

struct loss {
  const char *from;   /* the entry that says so first; from then on every entry does */
  unsigned nth;
  bool lost;
  unsigned after;     /* calls after the loss */
};
static bool lose(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct loss *l = w->hook_arg;
  (void)arg;
  if (!l->lost && strcmp(entry, l->from) == 0 && --l->nth == 0) l->lost = true;
  else if (l->lost) l->after++;
  *answer = OC_E_DEVICE_LOST;
  return l->lost;
}
static void check_loss(const char *from, unsigned nth, unsigned most_after) {
  struct wrap w;
  struct loss l = {.from = from, .nth = nth};
  wrap_open(&w, NULL);
  oc_stream s = fx_stream(w.outer);
  oc_model *m = fx_model_opt(w.outer, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB});
  oc_devptr value, p;
  fill(w.outer, m, s, &value);
  for (int i = 0; i < 300; i++) ck_ok(oc_pool_alloc(oc_model_pool(m), 2 * MiB, 0, &p));
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, s));
  oc_status good = OC_OK;
  const oc_resource_ops ops = {sizeof ops, "graph", failing_release};
  ck_ok(oc_model_push(m, &ops, &good));
  w.hook = lose;
  w.hook_arg = &l;
  oc_report *r;
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_uint_eq(failed_rows(r), 0);
  unsigned gone = 0;
  for (size_t i = 0; i < oc_report_count(r); i++) {
    const char *label;
    ck_ok(oc_report_row(r, i, &label, NULL, NULL));
    gone += strcmp(label, "context gone") == 0;
  }
  ck_assert_uint_eq(gone, 1);
  ck_assert_msg(l.after <= most_after, "lost in %s: %u calls to a driver that was gone", from, l.after);
  oc_report_free(r);
  ck_ok(oc_model_teardown(m, NULL));
  ck_ok(oc_model_destroy(m));
  ck_assert_uint_le(l.after, most_after);
  wrap_close_dirty(&w);
}
START_TEST(s22_a_lost_context_is_one_row) {
  check_loss("capturing", 1, 2);      /* lost before: the question whether a stream captures, then the drain */
  check_loss("synchronize", 1, 0);
  check_loss("free", 1, 0);           /* the foreign value */
  check_loss("free", 2, 0);           /* an arena */
  check_loss("free", 150, 0);
  check_loss("module_unload", 1, 0);
  check_loss("module_unload", 2, 0);
  check_loss("event_destroy", 1, 8);
}
END_TEST

struct refusals {
  const oc_status *as;   /* [2]: the answers to the first two */
  unsigned met;
};

/* The events stay pending until then, so that there are several. */
static bool refuse_events(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct refusals *r = w->hook_arg;
  (void)arg;
  *answer = OC_MISS;
  if (strcmp(entry, "event_query") == 0) return true;
  if (strcmp(entry, "event_destroy") != 0) return false;
  if (r->met < 2) *answer = r->as[r->met];
  return r->met++ < 2;
}

/* G23, G25: of events that could not be destroyed the first has its words in a row; but a context that went is said, and
   none is tried after that. */
START_TEST(g25_refused_events) {
  const oc_status again[] = {OC_E_BACKEND, OC_E_IO}, gone[] = {OC_E_BACKEND, OC_E_DEVICE_LOST};
  for (int lost = 0; lost < 2; lost++) {
    struct wrap w;
    struct refusals r = {.as = lost ? gone : again};
    oc_report *report;
    oc_devptr p;
    wrap_open(&w, NULL);
    w.hook_arg = &r;
    w.hook = refuse_events;
    oc_model *m = fx_model(w.outer);
    for (int i = 0; i < 4; i++) {
      ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
      ck_ok(oc_pool_free_on(oc_model_pool(m), p, NULL));
    }
    ck_status(oc_model_teardown(m, &report), lost ? OC_OK : OC_E_TEARDOWN);
    ck_assert_uint_eq(r.met, lost ? 2 : 4);
    if (lost) check_row(report, "context gone", OC_OK, "event_destroy");
    else check_row(report, "events", OC_E_BACKEND, "event_destroy");
    oc_report_free(report);
    (void)!oc_model_destroy(m);
    wrap_close_dirty(&w);
  }
}
END_TEST

/* The same of arenas: the first failure has its words in the row, unless the context went. */
struct bad_frees {
  const oc_status *as;   /* [3]: the answers to the first three */
  unsigned met;
};
static bool refuse_frees(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct bad_frees *f = w->hook_arg;
  (void)arg;
  if (strcmp(entry, "free") != 0 || f->met == 3) return false;
  *answer = f->as[f->met++];
  return true;
}
START_TEST(g23_the_first_arena_that_is_refused_has_the_words) {
  const oc_status again[] = {OC_E_BACKEND, OC_E_IO, OC_E_IO}, gone[] = {OC_E_BACKEND, OC_E_DEVICE_LOST, OC_E_IO};
  for (int lost = 0; lost < 2; lost++) {
    struct wrap w;
    struct bad_frees f = {.as = lost ? gone : again};
    oc_devptr p;
    oc_report *r;
    wrap_open(&w, NULL);
    oc_model *m = fx_model_opt(w.outer, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB});
    for (int i = 0; i < 4; i++) ck_ok(oc_pool_alloc(oc_model_pool(m), 2 * MiB, 0, &p));
    w.hook_arg = &f;
    w.hook = refuse_frees;
    ck_status(oc_model_teardown(m, &r), lost ? OC_OK : OC_E_TEARDOWN);
    ck_assert_uint_eq(f.met, lost ? 2 : 3);   /* a lost context's driver is not called again */
    if (lost) check_row(r, "context gone", OC_OK, "0 freed, 0 bytes; 4 (8388608 bytes) could not be: ");
    else check_row(r, "arenas", OC_E_BACKEND, "1 freed, 2097152 bytes; 3 (6291456 bytes) could not be: ");
    const char *words = row(r, lost ? "context gone" : "arenas", NULL);
    ck_assert_msg(strstr(words, oc_status_name(lost ? OC_E_DEVICE_LOST : OC_E_BACKEND)) != NULL, "%s", words);
    oc_report_free(r);
    ck_status(oc_model_destroy(m), lost ? OC_OK : OC_E_TEARDOWN);
    wrap_close_dirty(&w);
  }
}
END_TEST

/* ---- resources ---- */

struct trace {
  oc_model *m;
  char order[64];
  oc_devptr block;
  oc_stream stream;
  int other;
  oc_status st[8];
};
struct part {
  struct trace *t;
  char name;
};
static oc_status release_part(void *self, oc_backend *b) {
  struct part *p = self;
  (void)b;
  strncat(p->t->order, &p->name, 1);
  return OC_OK;
}

START_TEST(resources_go_newest_first_and_pop_takes_off) {
  oc_backend *b = fx_open(NULL);
  struct trace t = {.m = fx_model(b)};
  struct part parts[] = {{&t, 'a'}, {&t, 'b'}, {&t, 'c'}, {&t, 'd'}};
  char label[] = "part";
  oc_resource_ops ops = {sizeof ops, label, release_part};
  for (int i = 0; i < 4; i++) ck_ok(oc_model_push(t.m, &ops, &parts[i]));
  memset(label, 'x', 4);
  memset(&ops, 0, sizeof ops);         /* copied */
  oc_resource_ops again = {sizeof again, "again", release_part};
  ck_status(oc_model_push(t.m, &again, &parts[1]), OC_EXISTS);
  ck_ok(oc_model_pop(t.m, &parts[2]));
  ck_status(oc_model_pop(t.m, &parts[2]), OC_E_NOT_FOUND);
  ck_ok(oc_model_pop(t.m, &parts[0]));
  ck_ok(oc_model_push(t.m, &again, &parts[0]));   /* the newest now */
  struct { oc_resource_ops ops; uint64_t tail; } longer = {.ops = again};
  longer.ops.struct_size = sizeof longer;
  ck_ok(oc_model_push(t.m, &longer.ops, &t));
  ck_ok(oc_model_pop(t.m, &t));
  longer.tail = 1;
  ck_status(oc_model_push(t.m, &longer.ops, &t), OC_E_INVALID);
  again.struct_size--;
  ck_status(oc_model_push(t.m, &again, &t), OC_E_INVALID);
  again.struct_size++;
  again.release = NULL;
  ck_status(oc_model_push(t.m, &again, &t), OC_E_INVALID);
  oc_report *r;
  ck_ok(oc_model_teardown(t.m, &r));
  ck_assert_str_eq(t.order, "adb");
  check_row(r, "part", OC_OK, "released");
  check_row(r, "again", OC_OK, "released");
  oc_report_free(r);
  ck_ok(oc_model_destroy(t.m));
  ck_assert_str_eq(t.order, "adb");
  fx_close(b);
}
END_TEST

/* G3: what a release may and may not do. */
static oc_status meddle(void *self, oc_backend *b) {
  struct trace *t = self;
  oc_devptr p;
  uint64_t v;
  oc_report *r = NULL;
  (void)b;
  t->st[0] = oc_model_pop(t->m, &t->other);
  t->st[1] = oc_pool_free(oc_model_pool(t->m), t->block);
  t->st[2] = oc_pool_free(oc_model_pool(t->m), t->block);
  t->st[3] = oc_model_teardown(t->m, &r);
  t->st[4] = oc_model_destroy(t->m);
  t->st[5] = oc_pool_alloc(oc_model_pool(t->m), 256, 0, &p);
  t->st[6] = oc_derived_get_ptr(oc_model_derived(t->m), OC_BF16, 0x10, &v);
  t->st[7] = oc_model_forget_stream(t->m, t->stream);
  return r ? OC_E_INVALID : OC_OK;
}
START_TEST(g3_what_a_release_may_do) {
  oc_backend *b = fx_open(NULL);
  struct trace t = {.m = fx_model(b), .stream = fx_stream(b)};
  const oc_resource_ops ops = {sizeof ops, "graphs", meddle}, other = {sizeof other, "other", release_part};
  oc_devptr p;
  ck_ok(oc_model_use_stream(t.m, t.stream));
  ck_ok(oc_pool_alloc(oc_model_pool(t.m), 256, 0, &t.block));
  ck_ok(oc_pool_alloc(oc_model_pool(t.m), 256, 0, &p));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(t.m), OC_BF16, t.block + 16, p, NULL));   /* a key in it: freeing it waits */
  ck_ok(oc_model_push(t.m, &other, &t.other));
  ck_ok(oc_model_push(t.m, &ops, &t));
  oc_report *r;
  ck_ok(oc_model_teardown(t.m, &r));
  ck_status(t.st[0], OC_OK);
  ck_status(t.st[1], OC_OK);
  ck_status(t.st[2], OC_E_NOT_OWNED);
  ck_status(t.st[3], OC_E_REENTRANT);
  ck_status(t.st[4], OC_E_REENTRANT);
  ck_status(t.st[5], OC_E_RELEASED);
  ck_status(t.st[6], OC_E_RELEASED);
  ck_status(t.st[7], OC_OK);
  ck_assert_ptr_null(row(r, "other", NULL));
  ck_assert_str_eq(t.order, "");
  oc_report_free(r);
  ck_ok(oc_model_destroy(t.m));
  fx_stream_free(b, t.stream);
  fx_close(b);
}
END_TEST

/* Work that a release queues on a stream that it then forgets is waited for before the memory goes. */
struct last_work {
  oc_model *m;
  oc_stream s;
  oc_devptr p;
};
static oc_status queue_and_forget(void *self, oc_backend *b) {
  struct last_work *l = self;
  fx_stall(b, l->s, true);
  ck_ok(oc_backend_table(b)->memset(oc_backend_self(b), l->p, 1, 4096, l->s));
  ck_ok(oc_model_forget_stream(l->m, l->s));
  return OC_OK;
}
START_TEST(g22_a_farewell_in_a_release_is_awaited) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(NULL);
  struct last_work l = {.m = fx_model(b), .s = fx_stream(b)};
  const oc_resource_ops ops = {sizeof ops, "writer", queue_and_forget};
  struct teardown_call c;
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(l.m), "act", l.s, 4096, &l.p));
  ck_ok(oc_model_push(l.m, &ops, &l));
  start(&c, l.m);
  fx_until(fx_calls(b, "event_query") > 3);
  ck_assert(!done(&c));
  ck_assert_uint_eq(fx_calls(b, "free"), 0);
  fx_stall(b, l.s, false);
  ck_status(join(&c), OC_OK);
  ck_ok(oc_model_destroy(l.m));
  fx_stream_free(b, l.s);
  fx_close(b);   /* no event is left */
}
END_TEST

/* Teardown from a kernel's init, where it would wait for the lookup that runs it. */
static oc_status init_tears_down(oc_backend *b, oc_kernel k, void *arg) {
  (void)b;
  (void)k;
  oc_report *r;
  ck_status(oc_model_teardown(arg, &r), OC_E_REENTRANT);
  ck_assert_ptr_null(r);
  ck_status(oc_model_destroy(arg), OC_E_REENTRANT);
  return OC_OK;
}
static oc_status build_tears_down(oc_build *b, void *arg, uint64_t *out) {
  ck_status(oc_model_teardown(arg, NULL), OC_E_REENTRANT);
  return oc_build_alloc(b, 256, 0, out);
}
START_TEST(teardown_from_a_callback_is_reentrant) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_kernel_key key = OC_KERNEL_KEY_INIT("test", "add", init_tears_down, m);
  oc_kernel k;
  uint64_t v;
  fx_load(m, "test");
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(m), &key, &k));
  ck_ok(oc_derived_get_or_build_ptr(oc_model_derived(m), OC_BF16, 9, build_tears_down, m, &v));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Two teardowns, each from a release of the other's model: a circle is REENTRANT, not a hang. */
struct pair {
  oc_model *m[2];
  pthread_barrier_t both;
  oc_status inner[2];
};
struct side {
  struct pair *p;
  int i;
};
static oc_status tear_other(void *self, oc_backend *b) {
  struct side *s = self;
  (void)b;
  pthread_barrier_wait(&s->p->both);
  s->p->inner[s->i] = oc_model_teardown(s->p->m[!s->i], NULL);
  return OC_OK;
}
static void tear_mine(void *arg, unsigned i) {
  struct pair *p = arg;
  ck_ok(oc_model_teardown(p->m[i], NULL));
}
START_TEST(g11_a_circle_of_teardowns_is_reentrant) {
  oc_backend *b = fx_open(NULL);
  struct pair p = {.m = {fx_model(b), fx_model(b)}};
  struct side sides[] = {{&p, 0}, {&p, 1}};
  const oc_resource_ops ops = {sizeof ops, "other model", tear_other};
  pthread_barrier_init(&p.both, NULL, 2);
  for (int i = 0; i < 2; i++) ck_ok(oc_model_push(p.m[i], &ops, &sides[i]));
  fx_threads(2, tear_mine, &p);
  ck_assert_msg((p.inner[0] == OC_E_REENTRANT) + (p.inner[1] == OC_E_REENTRANT) >= 1, "%s, %s", oc_status_name(p.inner[0]),
                oc_status_name(p.inner[1]));
  for (int i = 0; i < 2; i++) ck_assert(p.inner[i] == OC_OK || p.inner[i] == OC_E_REENTRANT);
  ck_ok(oc_model_destroy(p.m[0]));
  ck_ok(oc_model_destroy(p.m[1]));
  pthread_barrier_destroy(&p.both);
  fx_close(b);
}
END_TEST

/* This thread's build keeps the teardown that runs on another thread: asking for one too ends at once. */
START_TEST(g11_teardown_with_an_own_build_while_another_waits) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  struct teardown_call c;
  oc_build *build;
  uint64_t out[2];
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 3, &build, out), OC_MISS);
  start(&c, m);
  fx_until(stopped(m));
  ck_status(oc_model_teardown(m, NULL), OC_E_REENTRANT);
  ck_assert(!done(&c));
  oc_build_abort(build);
  ck_status(join(&c), OC_OK);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- many at once ---- */

struct many {
  oc_model *m;
  char *json[8];
};
static void tear_and_print(void *arg, unsigned i) {
  struct many *c = arg;
  oc_report *r;
  ck_ok(oc_model_teardown(c->m, &r));
  c->json[i] = oc_report_json(r);
  oc_report_free(r);
}
START_TEST(g23_concurrent_teardowns_agree) {
  oc_backend *b = fx_open(NULL);
  for (int round = 0; round < 10; round++) {
    struct many c = {.m = fx_model(b)};
    oc_devptr value;
    fill(b, c.m, NULL, &value);
    uint64_t unloads = fx_calls(b, "module_unload");
    fx_threads(8, tear_and_print, &c);
    ck_assert_uint_eq(fx_calls(b, "module_unload") - unloads, 2);
    for (int i = 0; i < 8; i++) ck_assert_str_eq(c.json[i], c.json[0]);
    for (int i = 0; i < 8; i++) oc_string_free(c.json[i]);
    ck_ok(oc_model_destroy(c.m));
  }
  fx_close(b);
}
END_TEST

/* Every call of every kind while teardown starts: each works or says RELEASED, and nothing is left. */
struct storm {
  oc_backend *b;
  oc_model *m;
  unsigned kind;
};
static bool over(oc_status st) {
  ck_assert_msg(st == OC_OK || st == OC_E_RELEASED || st == OC_EXISTS || st == OC_MISS, "%s: %s", oc_status_name(st), oc_last_error());
  return st == OC_E_RELEASED;
}
static void storm(void *arg, unsigned i) {
  struct storm *s = arg;
  oc_devptr p;
  oc_kernel k;
  uint64_t out[2];
  oc_build *build;
  if (i == 7) {
    fx_msleep(3);
    ck_ok(oc_model_teardown(s->m, NULL));
    return;
  }
  for (uint64_t n = 1; n < 1000000; n++) {
    oc_status st = OC_OK;
    if (i == 0) { st = oc_pool_alloc(oc_model_pool(s->m), 3 * MiB, 0, &p); if (!st) over(oc_pool_free(oc_model_pool(s->m), p)); }
    if (i == 1) st = oc_opcache_scratch_on(oc_model_opcache(s->m), "t", (oc_stream)NULL, n * 4096, &p);
    if (i == 2) st = oc_opcache_kernel(oc_model_opcache(s->m), "test", n & 1 ? "add" : "fill", &k);
    if (i == 3) {
      st = oc_derived_begin(oc_model_derived(s->m), OC_BF16, n, &build, out);
      if (st == OC_MISS && !over(oc_build_alloc(build, 256, 0, &out[0]))) st = oc_build_commit(build, out, NULL);
      else if (st == OC_MISS) oc_build_abort(build);
    }
    if (i == 4) st = oc_derived_invalidate(oc_model_derived(s->m), n);
    if (i == 5) { st = oc_pool_alloc(oc_model_pool(s->m), 300, 0, &p); if (!st) over(oc_pool_free_on(oc_model_pool(s->m), p, NULL)); }
    if (i == 6) { st = oc_model_retain(s->m, "storm"); if (!st) ck_ok(oc_model_release_hold(s->m, "storm")); }
    if (over(st)) return;
  }
}
START_TEST(g22_teardown_in_a_storm_of_calls) {
  oc_backend *b = fx_open(NULL);
  for (int round = 0; round < 15; round++) {
    struct storm s = {.b = b, .m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB})};
    fx_load(s.m, "test");
    fx_threads(8, storm, &s);
    ck_ok(oc_model_destroy(s.m));
    ck_assert_uint_eq(fx_blocks(b), 0);
  }
  fx_close(b);
}
END_TEST

/* ---- afterwards ---- */

START_TEST(g3_everything_after_teardown_is_released) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_opcache *c = oc_model_opcache(m);
  oc_derived *d = oc_model_derived(m);
  oc_pool *p = oc_model_pool(m);
  oc_devptr value, out = 42;
  uint64_t v[2] = {42, 42}, key = 0x7f0000;
  oc_kernel k;
  oc_module h;
  oc_build *build;
  static oc_kernel_key kk = OC_KERNEL_KEY("one", "add");
  static oc_tag_key tk = OC_TAG_KEY("act");
  oc_kernel_key *keys[] = {&kk};
  oc_pool_stats s = {.struct_size = sizeof s};
  int image = 0;
  const oc_resource_ops ops = {sizeof ops, "late", failing_release};
  fill(b, m, NULL, &value);
  ck_ok(oc_opcache_kernel_k(c, &kk, &k));
  ck_ok(oc_opcache_scratch_k(c, &tk, 256, &out));
  ck_assert(oc_opcache_once(c, "gate"));
  oc_opcache_note_alloc_fallback(c);
  ck_ok(oc_model_teardown(m, NULL));
  uint64_t before = fx_all_calls(b);
  out = 42;
  ck_status(oc_model_enter(m), OC_E_RELEASED);
  ck_status(oc_model_load_module(m, "x", &image, sizeof image), OC_E_RELEASED);
  ck_status(oc_model_adopt_module(m, "x", (oc_module)&image), OC_E_RELEASED);
  ck_status(oc_model_module(m, "one", &h), OC_E_RELEASED);
  ck_status(oc_model_retain(m, "x"), OC_E_RELEASED);
  ck_status(oc_model_release_hold(m, "x"), OC_E_RELEASED);
  ck_status(oc_model_use_stream(m, NULL), OC_E_RELEASED);
  ck_status(oc_model_forget_stream(m, NULL), OC_E_RELEASED);
  ck_status(oc_model_push(m, &ops, &image), OC_E_RELEASED);
  ck_status(oc_model_pop(m, &image), OC_E_RELEASED);
  ck_status(oc_capture_enter(m, NULL), OC_E_RELEASED);
  oc_capture_leave(m);
  ck_status(oc_model_graphs_gone(m), OC_E_RELEASED);
  ck_status(oc_opcache_kernel(c, "one", "add", &k), OC_E_RELEASED);
  ck_status(oc_opcache_kernel_k(c, &kk, &k), OC_E_RELEASED);
  ck_status(oc_opcache_warm(c, keys, 1), OC_E_RELEASED);
  ck_status(oc_opcache_warm(c, keys, 0), OC_E_RELEASED);
  ck_status(oc_opcache_scratch(c, "act", 16, &out), OC_E_RELEASED);
  ck_status(oc_opcache_scratch_k(c, &tk, 16, &out), OC_E_RELEASED);
  ck_status(oc_opcache_scratch_on(c, "act", NULL, 16, &out), OC_E_RELEASED);
  ck_status(oc_opcache_scratch_on_k(c, &tk, NULL, 16, &out), OC_E_RELEASED);
  ck_status(oc_opcache_release(c), OC_E_RELEASED);
  ck_assert(!oc_opcache_once(c, "new") && !oc_opcache_first_n(c, "new", 9) && !oc_opcache_first_shape(c, "new", 1, 2, 3));
  ck_assert(!oc_opcache_once_k(c, &tk) && !oc_opcache_first_n_k(c, &tk, 9) && !oc_opcache_first_shape_k(c, &tk, 1, 2, 3));
  ck_assert(!oc_opcache_alloc_fell_back(c));
  oc_opcache_note_alloc_fallback(c);
  ck_status(oc_derived_get_ptr(d, OC_BF16, key, v), OC_E_RELEASED);
  ck_status(oc_derived_get_ptr_on(d, OC_BF16, key, NULL, v), OC_E_RELEASED);
  ck_status(oc_derived_get_pair(d, OC_ROWWISE_FP8, key, v), OC_E_RELEASED);
  ck_status(oc_derived_get_pair_on(d, OC_ROWWISE_FP8, key, NULL, v), OC_E_RELEASED);
  ck_status(oc_derived_insert_ptr(d, OC_BF16, 1, 2, NULL), OC_E_RELEASED);
  ck_status(oc_derived_insert_pair(d, OC_ROWWISE_FP8, 1, v, NULL), OC_E_RELEASED);
  ck_status(oc_derived_begin(d, OC_BF16, 1, &build, v), OC_E_RELEASED);
  ck_status(oc_derived_get_or_build_ptr(d, OC_BF16, 1, build_tears_down, m, v), OC_E_RELEASED);
  ck_status(oc_derived_invalidate(d, key), OC_E_RELEASED);
  ck_status(oc_derived_invalidate_n(d, &key, 1), OC_E_RELEASED);
  ck_status(oc_derived_settle(d), OC_E_RELEASED);
  ck_status(oc_derived_release(d), OC_E_RELEASED);
  ck_status(oc_pool_alloc(p, 256, 0, &out), OC_E_RELEASED);
  ck_status(oc_pool_alloc_owned(p, "w", 256, 0, &out), OC_E_RELEASED);
  ck_status(oc_pool_free(p, value), OC_E_RELEASED);
  ck_status(oc_pool_free_on(p, value, NULL), OC_E_RELEASED);
  ck_status(oc_pool_note_external(p, 256, 256, "x"), OC_E_RELEASED);
  ck_status(oc_pool_forget_external(p, 256), OC_E_RELEASED);
  ck_status(oc_pool_get_stats(p, &s), OC_E_RELEASED);
  ck_status(oc_pool_check(p), OC_E_RELEASED);
  ck_assert_uint_eq(out, 42);
  ck_assert_uint_eq(v[0] + v[1], 84);
  ck_assert_uint_eq(fx_all_calls(b), before);
  ck_assert_uint_ne(oc_model_generation(m), 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- S11, G26 ---- */

static int unowned_rows(const oc_report *r) {
  int n = 0;
  for (size_t i = 0; i < oc_report_count(r); i++) {
    const char *label;
    ck_ok(oc_report_row(r, i, &label, NULL, NULL));
    n += strncmp(label, "unowned", 7) == 0;
  }
  return n;
}

START_TEST(s11_unowned_blocks_are_swept_and_named) {
  oc_backend *b = fx_open(NULL);
  oc_devptr p;
  size_t used = fx_used(b);
  for (int cycle = 0; cycle < 6; cycle++) {
    oc_model *m = fx_model(b);
    const oc_site loader = {"loader.c", 812, "load"}, other = {"other.c", 7, "more"};
    for (int i = 0; i < 432; i++) ck_ok(oc_pool_alloc_at(oc_model_pool(m), 5000000, 0, &loader, &p));
    ck_ok(oc_pool_alloc_at(oc_model_pool(m), 5000000, 0, &other, &p));
    ck_ok(oc_pool_alloc_at(oc_model_pool(m), 5000000, 0, NULL, &p));
    ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "kv cache", 5000000, 0, &p));
    ck_ok(oc_pool_note_external(oc_model_pool(m), 0x123400000, 5000000, NULL));   /* another allocator's to sweep */
    oc_report *r;
    ck_ok(oc_model_teardown(m, &r));
    ck_assert_uint_eq(oc_report_blocks_swept(r), 434);
    check_row(r, "unowned blocks", OC_OK, "2.17 GB in 434 blocks, largest site loader.c:812");
    check_row(r, "unowned at other.c:7", OC_OK, "in 1 blocks");
    check_row(r, "unowned at unknown:0", OC_OK, "in 1 blocks");
    ck_assert_int_eq(unowned_rows(r), 4);   /* and their sum */
    check_row(r, "unowned at loader.c:812", OC_OK, "2.16 GB in 432 blocks");
    char *text = oc_report_text(r);
    ck_assert_ptr_nonnull(strstr(text, ": leaked; "));
    ck_assert_ptr_nonnull(strstr(text, "largest site loader.c:812"));
    ck_assert_ptr_nonnull(strstr(text, "unowned at other.c:7"));
    ck_assert_ptr_null(strstr(text, "kv cache"));   /* went with its owner's leave */
    text[5] = 0;   /* the caller may write to it */
    oc_string_free(text);
    oc_report_free(r);
    ck_ok(oc_model_destroy(m));
    ck_assert_uint_eq(fx_used(b), used);
  }
  fx_close(b);
}
END_TEST

START_TEST(g26_where_no_site_is_known) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p;
  oc_report *r;
  ck_ok(oc_pool_alloc_at(oc_model_pool(m), 256, 0, NULL, &p));
  ck_ok(oc_model_teardown(m, &r));
  check_row(r, "unowned blocks", OC_OK, "256 B in 1 blocks, largest site unknown:0");
  ck_assert_int_eq(unowned_rows(r), 1);   /* of a single site the sum says it all */
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* One row an owner, whatever their number, and whatever they are called: an engine may say what our own say. */
START_TEST(g22_every_owner_has_its_row) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p;
  char owner[32];
  for (int i = 0; i < 300; i++) {
    snprintf(owner, sizeof owner, "owner %d", i);
    ck_ok(oc_pool_alloc_owned(oc_model_pool(m), owner, 256 * (size_t)(i + 1), 0, &p));
  }
  ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "scratch pads", 256, 0, &p));
  ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "derived tables", 256, 0, &p));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 256, &p));
  oc_report *r;
  ck_ok(oc_model_teardown(m, &r));
  for (int i = 0; i < 300; i++) {
    char detail[64];
    snprintf(owner, sizeof owner, "owner %d", i);
    snprintf(detail, sizeof detail, "1 blocks, %d bytes", 256 * (i + 1));
    check_row(r, owner, OC_OK, detail);
  }
  check_row(r, "scratch pads", OC_OK, "1 blocks, 256 bytes");
  check_row(r, "derived tables", OC_OK, "1 blocks, 256 bytes");
  check_row(r, "op scratch", OC_OK, "1 buffers, 256 bytes");
  ck_assert_int_eq(row_at(r, "scratch act"), -1);
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- text and JSON ---- */

START_TEST(the_report_in_json_is_the_report) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.name = "a \"model\""});
  oc_devptr value, p;
  fill(b, m, NULL, &value);
  const oc_site odd = {"dir\\with \"quotes\"\n.c", 1, "f"};
  ck_ok(oc_pool_alloc_at(oc_model_pool(m), 5000, 0, &odd, &p));
  ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "owner \xFF\" odd", 1, 0, &p));
  oc_report *r;
  ck_ok(oc_model_teardown(m, &r));
  char *text = oc_report_json(r);
  json_error_t e;
  json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &e);
  ck_assert_msg(j != NULL, "%s in %s", e.text, text);
  ck_assert_str_eq(json_string_value(json_object_get(j, "model")), "a \"model\"");
  ck_assert_int_eq(json_integer_value(json_object_get(j, "generation")), (json_int_t)oc_model_generation(m));
  ck_assert_str_eq(json_string_value(json_object_get(j, "status")), "OC_OK");
  ck_assert_int_eq(json_integer_value(json_object_get(j, "arenas_freed")), (json_int_t)oc_report_arenas_freed(r));
  ck_assert_int_eq(json_integer_value(json_object_get(j, "bytes_freed")), (json_int_t)oc_report_bytes_freed(r));
  ck_assert_int_eq(json_integer_value(json_object_get(j, "blocks_swept")), (json_int_t)oc_report_blocks_swept(r));
  ck_assert_int_eq(json_integer_value(json_object_get(j, "modules_unloaded")), 2);
  const json_t *rows = json_object_get(j, "rows");
  ck_assert_uint_eq(json_array_size(rows), oc_report_count(r));
  for (size_t i = 0; i < oc_report_count(r); i++)
    ck_assert_ptr_nonnull(json_string_value(json_object_get(json_array_get(rows, i), "detail")));
  const char *label = "unset";
  ck_status(oc_report_row(r, oc_report_count(r), &label, NULL, NULL), OC_E_INVALID);
  ck_assert_str_eq(label, "unset");
  ck_ok(oc_report_row(r, 0, NULL, NULL, NULL));
  json_decref(j);
  oc_string_free(text);
  ck_ok(oc_model_destroy(m));
  text = oc_report_text(r);
  ck_assert_ptr_nonnull(strstr(text, "a \"model\""));
  oc_string_free(text);
  oc_report_free(r);
  fx_close(b);
}
END_TEST

/* ---- S3: flat ---- */

struct footprint {
  size_t host, device, maps, fds, threads;
};
static size_t count_lines(const char *path) {
  FILE *f = fopen(path, "r");
  size_t n = 0;
  for (int ch; f && (ch = getc(f)) != EOF;) n += ch == '\n';
  if (f) fclose(f);
  return n;
}
static size_t count_entries(const char *path) {
  DIR *d = opendir(path);
  size_t n = 0;
  while (d && readdir(d)) n++;
  if (d) closedir(d);
  return n;
}
static struct footprint footprint(oc_backend *b) {
  return (struct footprint){.host = mallinfo2().uordblks, .device = fx_used(b), .maps = count_lines("/proc/self/maps"),
                            .fds = count_entries("/proc/self/fd"), .threads = count_entries("/proc/self/task")};
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CYCLES 60
#else
#define CYCLES 1000
#endif

static void cycle(oc_backend *b) {
  oc_model *m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 8 * MiB});
  char name[16];
  oc_kernel k;
  oc_devptr p;
  for (int i = 0; i < 4; i++) {
    snprintf(name, sizeof name, "module-%d", i);
    fx_load(m, name);
  }
  for (int i = 0; i < 4; i++) {
    snprintf(name, sizeof name, "module-%d", i);
    for (int f = 0; f < 100; f++) ck_ok(oc_opcache_kernel(oc_model_opcache(m), name, f & 1 ? "add" : "fill", &k));
  }
  for (uint64_t i = 1; i <= 2000; i++) {
    ck_ok(oc_pool_alloc(oc_model_pool(m), 1000, 0, &p));
    ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, i << 20, p, NULL));
  }
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", NULL, 5000, &p));
  ck_ok(oc_pool_alloc(oc_model_pool(m), 1000, 0, &p));
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, NULL));
  ck_ok(oc_model_destroy(m));
}

START_TEST(s3_a_thousand_cycles_are_flat) {
  oc_backend *b = fx_open(NULL);
  for (int i = 0; i < 5; i++) cycle(b);
  struct footprint first = footprint(b);
  for (int i = 0; i < CYCLES; i++) cycle(b);
  struct footprint last = footprint(b);
  ck_assert_uint_eq(last.device, 0);
  ck_assert_uint_eq(fx_modules(b), 0);
  ck_assert_uint_eq(fx_events(b), 0);
  ck_assert_uint_eq(last.fds, first.fds);
  ck_assert_uint_eq(last.threads, first.threads);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)   /* they keep books of their own */
  ck_assert_msg(last.maps <= first.maps + 4, "%zu mappings, %zu before", last.maps, first.maps);
  ck_assert_msg(last.host <= first.host + 65536, "%zu host bytes, %zu before", last.host, first.host);
#endif
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("teardown");
  TCase *t = tcase_create("teardown");
  tcase_set_timeout(t, 60);
  suite_add_tcase(s, t);
  tcase_add_test(t, g22_the_order_of_release);
  tcase_add_test(t, g22_no_stream_named_drains_the_device);
  tcase_add_test(t, s4_queued_work_runs_before_the_first_free);
  tcase_add_test(t, g22_only_the_models_streams_are_drained);
  tcase_add_test(t, g22_waits_for_guards);
  tcase_add_test(t, g22_waits_for_calls_in_flight);
  tcase_add_test(t, g24_a_call_in_flight_refuses_by_name);
  tcase_add_test(t, g22_builds_end_and_waiters_are_woken);
  tcase_add_test(t, s21_a_forgotten_holder_refuses_by_name);
  tcase_add_test(t, g24_many_that_keep_it_are_counted);
  tcase_add_test(t, g24_a_holder_that_lets_go_is_waited_for);
  tcase_add_test(t, s29_an_open_build_refuses_with_kind_key_and_site);
  tcase_add_test(t, g22_a_capture_refuses);
  tcase_add_test(t, g22_this_threads_capture_refuses);
  tcase_add_test(t, g22_an_undeclared_capture_refuses);
  tcase_add_test(t, s18_in_a_guard);
  tcase_add_test(t, g23_a_row_has_the_words_of_its_own_failure);
  tcase_add_test(t, g23_every_failure_is_a_row_and_the_rest_goes_on);
  tcase_add_test(t, g23_a_failed_wait_or_foreign_free_is_a_row);
  tcase_add_test(t, s22_a_lost_context_is_one_row);
  tcase_add_test(t, g25_refused_events);
  tcase_add_test(t, g23_the_first_arena_that_is_refused_has_the_words);
  tcase_add_test(t, resources_go_newest_first_and_pop_takes_off);
  tcase_add_test(t, g3_what_a_release_may_do);
  tcase_add_test(t, g22_a_farewell_in_a_release_is_awaited);
  tcase_add_test(t, teardown_from_a_callback_is_reentrant);
  tcase_add_test(t, g11_a_circle_of_teardowns_is_reentrant);
  tcase_add_test(t, g11_teardown_with_an_own_build_while_another_waits);
  tcase_add_test(t, g23_concurrent_teardowns_agree);
  tcase_add_test(t, g22_teardown_in_a_storm_of_calls);
  tcase_add_test(t, g3_everything_after_teardown_is_released);
  tcase_add_test(t, s11_unowned_blocks_are_swept_and_named);
  tcase_add_test(t, g26_where_no_site_is_known);
  tcase_add_test(t, g22_every_owner_has_its_row);
  tcase_add_test(t, the_report_in_json_is_the_report);
  tcase_add_test(t, s3_a_thousand_cycles_are_flat);
  return s;
}

int main(void) { return fx_run(suite()); }
