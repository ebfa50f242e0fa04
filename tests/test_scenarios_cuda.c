/* SPDX-License-Identifier: MIT */
/* The field's faults that need a CUDA driver to happen: scenarios by their numbers. The others run over both backends, in
   the tests of what they are about. */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/fixture.h"
#include "tests/over_cuda.h"

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)

/* None of fx_open's, where there are several. */
static int spare_device(void) { return simcuda_find() ? SIMCUDA_DEVICES_MAX - 1 : 0; }

static void enter(oc_backend *b) { ck_assert_int_eq(d->context_push((cu_context)oc_cuda_context(b)), CU_OK); }

static void leave(void) {
  cu_context was;
  ck_assert_int_eq(d->context_pop(&was), CU_OK);
}

static cu_context current(void) {
  cu_context c;
  ck_assert_int_eq(d->context_current(&c), CU_OK);
  return c;
}

static cu_stream raw(oc_stream s) { return (cu_stream)(void *)s; }

static struct simcuda_stats stats_of(oc_backend *b) {
  struct simcuda_stats s = {0};
  ck_assert(sim->simcuda_read_stats(oc_cuda_context(b), &s));
  return s;
}

static oc_pool_stats pool_of(oc_model *m) {
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &s));
  return s;
}

static uint64_t calls(oc_backend *b, const char *function) { return sim->simcuda_calls(fxc_ordinal(b), function); }
static uint64_t all_calls(void) { return sim->simcuda_calls(SIMCUDA_ANY, NULL); }

/* Rows that say that the context is gone. */
static unsigned gone_rows(const oc_report *r) {
  unsigned n = 0;
  for (size_t i = 0; i < oc_report_count(r); i++) {
    const char *label, *detail;
    oc_status st;
    ck_ok(oc_report_row(r, i, &label, &st, &detail));
    ck_assert_msg(st == OC_OK, "%s: %s: %s", label, oc_status_name(st), detail);
    n += strcmp(label, "context gone") == 0;
  }
  return n;
}

/* Small arenas, so that there are many. */
static oc_model *model_of_arenas(oc_backend *b, unsigned arenas) {
  oc_model *m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB});
  for (unsigned i = 0; i < arenas; i++) {
    oc_devptr p;
    ck_ok(oc_pool_alloc(oc_model_pool(m), 2 * MiB, 0, &p));
  }
  ck_assert_uint_eq(pool_of(m).arenas, arenas);
  return m;
}

/* ---- S5 ---- */

START_TEST(s5_success_and_a_null_handle) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_opcache *c = oc_model_opcache(m);
  oc_kernel k = NULL;
  static oc_kernel_key key = OC_KERNEL_KEY("test", "no_such_kernel");
  fx_load(m, "test");
  sim->simcuda_missing_function(1);
  for (int i = 0; i < 2; i++) {
    ck_status(oc_opcache_kernel(c, "test", "no_such_kernel", &k), OC_E_NOT_FOUND);
    ck_words("no_such_kernel");
    ck_status(oc_opcache_kernel_k(c, &key, &k), OC_E_NOT_FOUND);
  }
  ck_assert_ptr_null(k);
  ck_assert_uint_eq(oc_opcache_kernels(c), 0);
  ck_assert_uint_eq(calls(b, "cuModuleGetFunction"), 4);   /* each asks again */
  ck_ok(oc_opcache_kernel(c, "test", "add", &k));
  sim->simcuda_missing_function(0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- S6, S22: the context goes ---- */

START_TEST(s6_shut_down_before_teardown) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = model_of_arenas(b, 20);
  oc_report *r;
  oc_kernel k;
  fx_load(m, "test");
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "test", "add", &k));
  sim->simcuda_shut_down(true);   /* a second call aborts */
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_uint_eq(gone_rows(r), 1);
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
  ck_assert_uint_eq(sim->simcuda_calls_after_shut_down(), 1);
}
END_TEST

/* What can take the context away, and with which answers. */
enum loss { LOSS_STICKY, LOSS_ASSERT, LOSS_ECC, LOSS_RESET, LOSSES };

static void lose(oc_backend *b, enum loss how) {
  static const int code[] = {CU_E_ILLEGAL_ADDRESS, CU_E_ASSERT, CU_E_ECC_UNCORRECTABLE};
  if (how == LOSS_RESET) ck_assert_int_eq(x->primary_reset(simcuda_find() ? fxc_ordinal(b) : 0), CU_OK);
  else ck_assert(sim->simcuda_lose(oc_cuda_context(b), code[how]));
}

START_TEST(s22_the_context_is_lost_with_300_arenas) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = model_of_arenas(b, 300);
  oc_stream s = fx_stream(b);
  oc_devptr p;
  oc_report *r;
  fx_load(m, "test");
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", s, 4096, &p));
  lose(b, (enum loss)_i);
  uint64_t before = all_calls();
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_uint_eq(gone_rows(r), 1);
  oc_report_free(r);
  ck_assert_uint_le(calls(b, "cuMemFree_v2"), 1);
  ck_assert_uint_le(calls(b, "cuModuleUnload"), 1);
  ck_assert_uint_le(all_calls() - before, 20);   /* no call a block, and nothing tried again */
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
  ck_assert_ptr_null(current());
}
END_TEST

/* In the middle of the release: what came before is freed, what comes after is not tried. */
START_TEST(s22_the_context_is_lost_in_the_middle) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = model_of_arenas(b, 300);
  oc_report *r;
  fx_load(m, "test");
  ck_assert(sim->simcuda_fail(fxc_ordinal(b), "cuMemFree_v2", 100, 0, CU_E_ILLEGAL_ADDRESS));
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_uint_eq(gone_rows(r), 1);
  ck_assert_uint_eq(oc_report_arenas_freed(r), 99);
  oc_report_free(r);
  ck_assert_uint_eq(calls(b, "cuMemFree_v2"), 100);
  ck_assert_uint_eq(calls(b, "cuModuleUnload"), 0);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
}
END_TEST

/* The engine destroys its own context first. */
START_TEST(s22_the_engines_context_is_destroyed) {
  find_driver();
  oc_backend *registers = fx_open(NULL), *b;
  cu_context own;
  oc_report *r;
  ck_assert_int_eq(x->context_create(&own, 0, spare_device()), CU_OK);
  leave();
  oc_cuda_options o = {.struct_size = sizeof o, .context = own};
  ck_ok(oc_backend_open_cuda(&o, &b));
  oc_model *m = model_of_arenas(b, 5);
  fx_load(m, "test");
  ck_assert_int_eq(x->context_destroy(own), CU_OK);
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_uint_eq(gone_rows(r), 1);
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
  fx_close(registers);
}
END_TEST

/* A live model on a lost context: each call says so, and the model can still end. */
START_TEST(s22_calls_on_a_lost_context_say_so) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_devptr p;
  oc_kernel k;
  fx_load(m, "test");
  ck_ok(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p));
  ck_assert(sim->simcuda_lose(oc_cuda_context(b), CU_E_ILLEGAL_ADDRESS));
  ck_status(oc_opcache_kernel(oc_model_opcache(m), "test", "add", &k), OC_E_DEVICE_LOST);
  ck_words("CUDA_ERROR_ILLEGAL_ADDRESS (700)");
  oc_devptr q;
  ck_status(oc_pool_alloc(oc_model_pool(m), 100 * MiB, 0, &q), OC_E_DEVICE_LOST);
  ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
  ck_status(oc_pool_free_on(oc_model_pool(m), p, s), OC_E_DEVICE_LOST);
  ck_ok(oc_pool_free(oc_model_pool(m), p));   /* it stayed the caller's */
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
}
END_TEST

/* ---- S7, S8: captures ---- */

static oc_kernel kernel(oc_model *m, const char *name) {
  oc_kernel k;
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "test", name, &k));
  return k;
}

START_TEST(s7_a_graph_replays_into_scratch_that_grew) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_opcache *c = oc_model_opcache(m);
  oc_stream s = fx_stream(b);
  oc_devptr small, again, large;
  cu_graph g;
  cu_graph_exec exec;
  uint32_t words[4] = {0};
  fx_load(m, "test");
  oc_kernel fill = kernel(m, "fill");
  ck_ok(oc_opcache_scratch_on(c, "act", s, MiB, &small));
  enter(b);
  ck_assert_int_eq(x->begin_capture(raw(s), CU_CAPTURE_GLOBAL), CU_OK);
  ck_ok(oc_capture_enter(m, s));
  ck_ok(oc_opcache_scratch_on(c, "act", s, MiB, &again));
  ck_assert_uint_eq(again, small);
  fx_launch_fill(b, fill, s, again, 77, 4);
  oc_capture_leave(m);
  ck_assert_int_eq(x->end_capture(raw(s), &g), CU_OK);
  ck_assert_int_eq(x->graph_instantiate(&exec, g, 0), CU_OK);
  ck_ok(oc_opcache_scratch_on(c, "act", s, 2 * MiB, &large));
  ck_assert_uint_ne(large, small);
  ck_assert_uint_eq(pool_of(m).retired_bytes, MiB);
  ck_assert_int_eq(x->graph_launch(exec, raw(s)), CU_OK);
  fx_sync(b, s);
  fx_read(b, words, small, sizeof words);
  for (int i = 0; i < 4; i++) ck_assert_uint_eq(words[i], 77);
  ck_assert_int_eq(x->graph_exec_destroy(exec), CU_OK);
  ck_assert_int_eq(x->graph_destroy(g), CU_OK);
  leave();
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_eq(pool_of(m).retired_bytes, 0);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

static oc_status build_none(oc_build *build, void *arg, uint64_t *out) {
  (void)build;
  (void)arg;
  *out = 0;
  return OC_E_BACKEND;
}

START_TEST(s8_misses_in_a_capture_make_no_call) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_opcache *c = oc_model_opcache(m);
  oc_stream s = fx_stream(b);
  oc_devptr warm, p;
  oc_kernel k;
  uint64_t v;
  cu_graph g;
  fx_load(m, "test");
  k = kernel(m, "add");
  ck_ok(oc_opcache_scratch_on(c, "act", s, MiB, &warm));
  ck_ok(oc_pool_alloc(oc_model_pool(m), MiB, 0, &p));
  enter(b);
  ck_assert_int_eq(x->begin_capture(raw(s), CU_CAPTURE_GLOBAL), CU_OK);
  ck_ok(oc_capture_enter(m, s));
  uint64_t before = all_calls();
  ck_status(oc_opcache_kernel(c, "test", "fill", &k), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch_on(c, "act", s, 4 * MiB, &v), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch(c, "new", 100 * MiB, &v), OC_E_CAPTURING);
  ck_status(oc_pool_alloc(oc_model_pool(m), 4096 * MiB, 0, &v), OC_E_CAPTURING);
  ck_status(oc_pool_free_on(oc_model_pool(m), p, s), OC_E_CAPTURING);
  ck_status(oc_derived_get_or_build_ptr(oc_model_derived(m), OC_BF16, p, build_none, NULL, &v), OC_E_CAPTURING);
  ck_status(oc_model_load_module(m, "more", fxc_ptx, fxc_ptx_bytes), OC_E_CAPTURING);
  ck_status(oc_model_forget_stream(m, s), OC_E_CAPTURING);
  ck_status(oc_derived_settle(oc_model_derived(m)), OC_E_CAPTURING);
  ck_status(oc_derived_invalidate(oc_model_derived(m), p), OC_E_CAPTURING);
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_ok(oc_opcache_kernel(c, "test", "add", &k));   /* warm */
  ck_ok(oc_opcache_scratch_on(c, "act", s, MiB, &v));
  ck_assert_uint_eq(v, warm);
  ck_assert_uint_eq(all_calls(), before);
  fx_launch_add(b, k, s, warm, 1);
  oc_capture_leave(m);
  ck_assert_int_eq(x->end_capture(raw(s), &g), CU_OK);   /* valid */
  ck_assert_int_eq(x->graph_destroy(g), CU_OK);
  leave();
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* The engine captures and says nothing, on this thread: events are refused, the capture lives; the pool works. */
START_TEST(s8_an_unannounced_capture_is_not_broken) {
  static const int modes[] = {CU_CAPTURE_GLOBAL, CU_CAPTURE_THREAD_LOCAL, CU_CAPTURE_RELAXED};
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_devptr p, q;
  cu_graph g;
  fx_load(m, "test");
  ck_ok(oc_model_use_stream(m, s));
  ck_ok(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p));
  enter(b);
  ck_assert_int_eq(x->begin_capture(raw(s), modes[_i]), CU_OK);
  ck_status(oc_pool_free_on(oc_model_pool(m), p, s), OC_E_CAPTURING);
  ck_ok(oc_pool_alloc(oc_model_pool(m), 500 * MiB, 0, &q));   /* a new arena */
  ck_ok(oc_model_load_module(m, "more", fxc_ptx, fxc_ptx_bytes));
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_words("capturing");
  ck_assert_int_eq(x->end_capture(raw(s), &g), CU_OK);
  ck_assert_int_eq(x->graph_destroy(g), CU_OK);
  leave();
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* ---- S26: another model's capture ---- */

struct worker {
  oc_backend *b;
  bool done;
};

static oc_status build_on(oc_build *build, void *arg, uint64_t *out) {
  oc_status st = oc_build_alloc(build, 4096, 0, out);
  return st ? st : oc_build_on_stream(build, *(oc_stream *)arg);
}

/* All that a model does in its life, but a wait for the whole device. */
static void live_and_die(oc_backend *b) {
  oc_model *m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB, .reserve_bytes = 8 * MiB});
  oc_derived *derived = oc_model_derived(m);
  oc_stream s = fx_stream(b), other = fx_stream(b);
  oc_devptr p, scratch;
  uint64_t v;
  oc_report *r;
  ck_ok(oc_model_use_stream(m, s));
  fx_load(m, "test");
  oc_kernel add = kernel(m, "add");
  for (int i = 0; i < 5; i++) {
    ck_ok(oc_pool_alloc(oc_model_pool(m), 3 * MiB, 0, &p));
    ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", s, (size_t)(i + 1) * MiB, &scratch));
    fx_launch_add(b, add, s, scratch, 1);
    ck_ok(oc_derived_get_or_build_ptr(derived, OC_BF16, p, build_on, &s, &v));
    ck_ok(oc_derived_get_ptr_on(derived, OC_BF16, p, other, &v));
    ck_ok(oc_derived_settle(derived));
    ck_ok(oc_derived_invalidate(derived, p));
    ck_ok(oc_pool_free_on(oc_model_pool(m), p, s));
    fx_sync(b, s);
    pool_of(m);
  }
  ck_ok(oc_model_graphs_gone(m));
  ck_ok(oc_model_forget_stream(m, other));
  fx_stream_free(b, other);
  ck_ok(oc_opcache_release(oc_model_opcache(m)));
  ck_ok(oc_model_teardown(m, &r));
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
}

static void *live_beside(void *arg) {
  struct worker *w = arg;
  live_and_die(w->b);
  /* Backends come and go too. */
  oc_cuda_options o = {.struct_size = sizeof o, .ordinal = spare_device()};
  oc_backend *more;
  ck_ok(oc_backend_open_cuda(&o, &more));
  ck_ok(oc_backend_close(more));
  w->done = true;
  return NULL;
}

START_TEST(s26_a_model_lives_and_dies_beside_a_capture) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_devptr p;
  cu_graph g;
  fx_load(m, "test");
  oc_kernel add = kernel(m, "add");
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", s, MiB, &p));
  enter(b);
  ck_assert_int_eq(x->begin_capture(raw(s), _i % 3), CU_OK);
  if (_i < 3) ck_ok(oc_capture_enter(m, s));   /* announced, or not */
  fx_launch_add(b, add, s, p, 1);
  struct worker w = {.b = b};
  pthread_t t;
  ck_assert_int_eq(pthread_create(&t, NULL, live_beside, &w), 0);
  pthread_join(t, NULL);
  ck_assert(w.done);
  fx_launch_add(b, add, s, p, 1);
  if (_i < 3) oc_capture_leave(m);
  ck_assert_int_eq(x->end_capture(raw(s), &g), CU_OK);
  ck_assert_int_eq(x->graph_destroy(g), CU_OK);
  leave();
  ck_assert_uint_eq(calls(b, "cuCtxSynchronize"), 0);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

static void *tear_down_busy(void *m) {
  ck_status(oc_model_teardown(m, NULL), OC_E_BUSY);
  ck_words("has named no stream");
  return NULL;
}

/* Where the whole device would have to be waited for, an announced capture is not broken. */
START_TEST(s26_a_model_without_streams_is_busy_meanwhile) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *other = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_devptr p;
  cu_graph g;
  pthread_t t;
  ck_ok(oc_pool_alloc(oc_model_pool(other), 4096, 0, &p));
  enter(b);
  ck_assert_int_eq(x->begin_capture(raw(s), CU_CAPTURE_RELAXED), CU_OK);
  ck_ok(oc_capture_enter(m, s));
  ck_assert_int_eq(pthread_create(&t, NULL, tear_down_busy, other), 0);
  pthread_join(t, NULL);
  oc_capture_leave(m);
  ck_assert_int_eq(x->end_capture(raw(s), &g), CU_OK);
  ck_assert_int_eq(x->graph_destroy(g), CU_OK);
  leave();
  ck_assert_uint_eq(calls(b, "cuCtxSynchronize"), 0);
  ck_ok(oc_model_destroy(other));
  ck_assert_uint_eq(calls(b, "cuCtxSynchronize"), 1);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* ---- S10: slow calls ---- */

static void *slow_load(void *arg) {
  fx_load(arg, "more");
  return NULL;
}

static void *slow_alloc(void *arg) {
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(arg), 200 * MiB, 0, &p));
  return NULL;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Hits, and what an arena at hand can serve, are not delayed by one that is in the driver for 0.6 s. */
START_TEST(s10_hits_go_on_while_the_driver_blocks) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_opcache *c = oc_model_opcache(m);
  oc_devptr p, v;
  oc_kernel k;
  pthread_t t;
  fx_load(m, "test");
  k = kernel(m, "add");
  ck_ok(oc_opcache_scratch(c, "act", 4096, &p));
  const char *entry = _i ? "module_load" : "alloc";
  uint64_t before = fx_calls(b, entry);
  fx_delay(b, entry, 600000000);
  ck_assert_int_eq(pthread_create(&t, NULL, _i ? slow_load : slow_alloc, m), 0);
  fx_until(fx_calls(b, entry) > before);
  double from = now();
  for (int i = 0; i < 1000; i++) {
    ck_ok(oc_opcache_kernel(c, "test", "add", &k));
    ck_ok(oc_opcache_scratch(c, "act", 4096, &v));
    ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &v));
    ck_ok(oc_pool_free(oc_model_pool(m), v));
  }
  double took = now() - from;
  ck_assert_msg(took < 0.4, "1000 rounds of hits took %.3f s", took);
  pthread_join(t, NULL);
  fx_delay(b, entry, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- S14, S15, S28: memory ---- */

START_TEST(s14_no_device_memory_and_managed_not_supported) {
  find_driver();
  oc_backend *registers = fx_open(NULL), *b;
  ck_assert(sim->simcuda_configure(7, &(struct simcuda_options){.device_bytes = 64 * MiB, .managed = SIMCUDA_MANAGED_FAILS}));
  oc_cuda_options o = {.struct_size = sizeof o, .ordinal = 7};
  ck_ok(oc_backend_open_cuda(&o, &b));
  oc_model *m = fx_model(b);
  oc_devptr p;
  for (int i = 0; i < 2; i++) {
    uint64_t tried = sim->simcuda_calls(7, "cuMemAlloc_v2");
    ck_status(oc_pool_alloc(oc_model_pool(m), 100 * MiB, 0, &p), OC_E_DEVICE_NOMEM);
    ck_words("CUDA_ERROR_OUT_OF_MEMORY (2)");
    ck_words("CUDA_ERROR_NOT_SUPPORTED (801)");
    ck_words("cuMemAllocManaged");
    ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
    ck_assert_uint_gt(sim->simcuda_calls(7, "cuMemAlloc_v2"), tried);   /* asked again each time */
  }
  ck_ok(oc_pool_alloc(oc_model_pool(m), 32 * MiB, 0, &p));
  ck_assert_uint_eq(pool_of(m).managed_arenas, 0);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
  fx_close(registers);
}
END_TEST

START_TEST(s15_managed_memory_is_not_asked_for) {
  find_driver();
  const struct fx_options o = {.device_bytes = 64 * MiB, .no_managed = _i == 1};
  oc_backend *b = fx_open(&o);
  oc_model *m = fx_model_opt(b, (oc_model_options){.flags = _i == 0 ? OC_MODEL_NO_MANAGED : 0});
  oc_devptr p;
  ck_status(oc_pool_alloc(oc_model_pool(m), 100 * MiB, 0, &p), OC_E_DEVICE_NOMEM);
  ck_words("CUDA_ERROR_OUT_OF_MEMORY (2)");
  ck_words("bytes free");
  ck_assert_uint_eq(calls(b, "cuMemAllocManaged"), 0);
  ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
  ck_ok(oc_pool_alloc(oc_model_pool(m), 32 * MiB, 0, &p));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Any answer but "out of memory" is the call's alone; the next one asks the device again. */
START_TEST(s28_other_answers_do_not_set_the_latch) {
  static const struct { int code; const char *words; } cases[] = {
    {CU_E_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)"},
    {CU_E_UNKNOWN, "CUDA_ERROR_UNKNOWN (999)"},
    {CU_E_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED (801)"},
    {CU_E_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE (1)"},
    {CU_E_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS (700)"}};
  find_driver();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    oc_backend *b = fx_open(NULL);
    oc_model *m = fx_model(b);
    oc_devptr p;
    ck_assert(sim->simcuda_fail(fxc_ordinal(b), "cuMemAlloc_v2", 1, 1, cases[i].code));
    ck_assert_int_lt(oc_pool_alloc(oc_model_pool(m), MiB, 0, &p), 0);
    ck_words(cases[i].words);
    ck_assert_uint_eq(calls(b, "cuMemAlloc_v2"), 1);
    ck_ok(oc_pool_alloc(oc_model_pool(m), MiB, 0, &p));
    ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
    ck_assert_uint_eq(calls(b, "cuMemAllocManaged"), 0);
    ck_ok(oc_model_destroy(m));
    fx_close(b);
  }
}
END_TEST

/* ---- S16, S17: whose context ---- */

static void *bare_thread(void *arg) {
  oc_backend *b = arg;
  ck_assert_ptr_null(current());
  live_and_die(b);
  ck_assert_ptr_null(current());
  return NULL;
}

START_TEST(s16_a_thread_that_never_touched_cuda) {
  find_driver();
  oc_backend *b = fx_open(NULL);
  pthread_t t;
  ck_assert_int_eq(pthread_create(&t, NULL, bare_thread, b), 0);
  pthread_join(t, NULL);
  fx_close(b);
}
END_TEST

struct elsewhere {
  oc_backend *current_on;
  oc_model *m;
};

static void *tear_down_elsewhere(void *arg) {
  struct elsewhere *e = arg;
  enter(e->current_on);
  ck_ok(oc_model_destroy(e->m));
  ck_assert_ptr_eq(current(), oc_cuda_context(e->current_on));
  leave();
  ck_assert_ptr_null(current());
  return NULL;
}

START_TEST(s17_each_free_reaches_its_owner) {
  find_driver();
  oc_backend *a = fx_open(NULL), *b = fx_open(NULL);
  oc_model *on_a = model_of_arenas(a, 20), *on_b = model_of_arenas(b, 30);
  fx_load(on_a, "test");
  fx_load(on_b, "test");
  ck_assert_int_ne(sim->simcuda_ordinal(oc_cuda_context(a)), sim->simcuda_ordinal(oc_cuda_context(b)));
  struct elsewhere ea = {b, on_a}, eb = {a, on_b};
  pthread_t ta, tb;
  ck_assert_int_eq(pthread_create(&ta, NULL, tear_down_elsewhere, &ea), 0);
  ck_assert_int_eq(pthread_create(&tb, NULL, tear_down_elsewhere, &eb), 0);
  pthread_join(ta, NULL);
  pthread_join(tb, NULL);
  ck_assert_uint_eq(calls(a, "cuMemFree_v2"), 20);
  ck_assert_uint_eq(calls(b, "cuMemFree_v2"), 30);
  ck_assert_uint_eq(stats_of(a).bad_frees + stats_of(b).bad_frees, 0);
  fx_close(a);   /* nothing is left on either */
  fx_close(b);
}
END_TEST

/* ---- S27: recycled stream handles ---- */

START_TEST(s27_a_recycled_stream_gets_another_buffer) {
  find_driver();
  oc_backend *b = fx_open(&(struct fx_options){.recycle = true});
  oc_model *m = fx_model(b);
  oc_opcache *c = oc_model_opcache(m);
  oc_devptr old, fresh;
  fx_load(m, "test");
  oc_kernel fill = kernel(m, "fill");
  oc_stream s = fx_stream(b);
  ck_ok(oc_opcache_scratch_on(c, "act", s, 4096, &old));
  fx_stall(b, s, true);
  fx_launch_fill(b, fill, s, old, 1, 16);   /* still runs when its stream is gone */
  ck_ok(oc_model_forget_stream(m, s));
  fx_stream_free(b, s);
  oc_stream again = fx_stream(b);
  ck_assert_ptr_eq(again, s);
  ck_ok(oc_opcache_scratch_on(c, "act", again, 4096, &fresh));
  ck_assert_uint_ne(fresh, old);
  fx_launch_fill(b, fill, again, fresh, 2, 16);
  fx_sync(b, again);
  fx_stall(b, s, false);   /* the destroyed one runs on */
  uint32_t words[16];
  fx_read(b, words, fresh, sizeof words);
  for (int i = 0; i < 16; i++) ck_assert_uint_eq(words[i], 2);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, again);
  fx_close(b);
}
END_TEST

int main(void) {
  Suite *s = suite_create("scenarios_cuda");
  TCase *t = tcase_create("scenarios_cuda");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, s5_success_and_a_null_handle);
  tcase_add_test(t, s6_shut_down_before_teardown);
  tcase_add_test(t, s7_a_graph_replays_into_scratch_that_grew);
  tcase_add_test(t, s8_misses_in_a_capture_make_no_call);
  tcase_add_loop_test(t, s8_an_unannounced_capture_is_not_broken, 0, 3);
  tcase_add_loop_test(t, s10_hits_go_on_while_the_driver_blocks, 0, 2);
  tcase_add_test(t, s14_no_device_memory_and_managed_not_supported);
  tcase_add_loop_test(t, s15_managed_memory_is_not_asked_for, 0, 2);
  tcase_add_test(t, s16_a_thread_that_never_touched_cuda);
  tcase_add_test(t, s17_each_free_reaches_its_owner);
  tcase_add_loop_test(t, s22_the_context_is_lost_with_300_arenas, 0, LOSSES);
  tcase_add_test(t, s22_the_context_is_lost_in_the_middle);
  tcase_add_test(t, s22_the_engines_context_is_destroyed);
  tcase_add_test(t, s22_calls_on_a_lost_context_say_so);
  tcase_add_loop_test(t, s26_a_model_lives_and_dies_beside_a_capture, 0, 6);
  tcase_add_test(t, s26_a_model_without_streams_is_busy_meanwhile);
  tcase_add_test(t, s27_a_recycled_stream_gets_another_buffer);
  tcase_add_test(t, s28_other_answers_do_not_set_the_latch);
  suite_add_tcase(s, t);
  return fx_run(s);
}
