/* SPDX-License-Identifier: MIT */
/* Captures (G28, S7, S8, and S26 as far as a host device shows it): what works inside one, what is refused without a
   driver call, what a graph keeps alive and for how long. */
#include "config.h"

#include <pthread.h>
#include <string.h>

#include "tests/world.h"
#include "tests/wrap.h"

static oc_pool_stats stats(oc_model *m) {
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &s));
  return s;
}

static oc_devptr block(oc_model *m, size_t bytes) {
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(m), bytes, 0, &p));
  return p;
}

static oc_status no_build(oc_build *b, void *arg, uint64_t *out) {
  (void)b;
  (void)out;
  *(unsigned *)arg += 1;
  return OC_E_IO;
}

/* ---- S8 ---- */

/* Every miss and everything that gives back through the driver, on m, by a thread that is in a capture. Teardown says
   BUSY where the capture is on m (G22). */
static void check_refused(oc_model *m, oc_devptr live, oc_status teardown) {
  oc_opcache *c = oc_model_opcache(m);
  oc_derived *d = oc_model_derived(m);
  oc_pool *p = oc_model_pool(m);
  static oc_kernel_key unseen = OC_KERNEL_KEY("test", "fill");
  oc_kernel_key *keys[] = {&unseen};
  oc_tag_key tag = OC_TAG_KEY("unseen");
  oc_devptr out = 42;
  uint64_t v[2] = {42, 42};
  oc_kernel k;
  oc_build *build;
  unsigned built = 0;
  int image = 0;
  ck_status(oc_opcache_kernel(c, "test", "fill", &k), OC_E_CAPTURING);
  ck_status(oc_opcache_kernel(c, "none", "such", &k), OC_E_CAPTURING);
  ck_status(oc_opcache_kernel_k(c, &unseen, &k), OC_E_CAPTURING);
  ck_status(oc_opcache_warm(c, keys, 1), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch(c, "act", 2 * MiB, &out), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch(c, "new", 16, &out), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch_on(c, "act", NULL, 16, &out), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch_k(c, &tag, 16, &out), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch_on_k(c, &tag, NULL, 16, &out), OC_E_CAPTURING);
  ck_status(oc_opcache_release(c), OC_E_CAPTURING);
  ck_status(oc_derived_begin(d, OC_BF16, 99, &build, v), OC_E_CAPTURING);
  ck_status(oc_derived_get_or_build_ptr(d, OC_BF16, 99, no_build, &built, v), OC_E_CAPTURING);
  ck_status(oc_derived_invalidate(d, 1), OC_E_CAPTURING);
  ck_status(oc_derived_invalidate_n(d, v, 1), OC_E_CAPTURING);
  ck_status(oc_derived_settle(d), OC_E_CAPTURING);
  ck_status(oc_derived_release(d), OC_E_CAPTURING);
  ck_status(oc_model_graphs_gone(m), OC_E_CAPTURING);
  ck_status(oc_model_teardown(m, NULL), teardown);
  ck_status(oc_model_destroy(m), teardown);
  ck_status(oc_model_load_module(m, "late", &image, sizeof image), OC_E_CAPTURING);
  ck_status(oc_pool_alloc(p, 300 * MiB, 0, &out), OC_E_CAPTURING);
  ck_status(oc_pool_alloc_owned(p, "kv", 300 * MiB, 0, &out), OC_E_CAPTURING);
  ck_status(oc_pool_free_on(p, live, NULL), OC_E_CAPTURING);
  ck_assert_uint_eq(built, 0);
  ck_assert_uint_eq(out, 42);
  ck_assert_uint_eq(v[0], 42);
}

/* What is warm, and gates, and what an arena has room for. */
static void check_warm(oc_model *m, const char *gate) {
  static oc_kernel_key seen = OC_KERNEL_KEY("test", "add");
  oc_opcache *c = oc_model_opcache(m);
  oc_kernel k;
  oc_devptr p;
  uint64_t v;
  ck_ok(oc_opcache_kernel(c, "test", "add", &k));
  ck_ok(oc_opcache_kernel_k(c, &seen, &k));
  ck_ok(oc_opcache_scratch(c, "act", MiB, &p));
  ck_ok(oc_derived_get_ptr(oc_model_derived(m), OC_BF16, 1, &v));
  ck_ok(oc_derived_get_ptr_on(oc_model_derived(m), OC_BF16, 1, NULL, &v));
  ck_assert(oc_opcache_once(c, gate));
  ck_assert(!oc_opcache_once(c, gate));
  ck_assert(oc_opcache_first_n(c, gate, 1));
  ck_assert(oc_opcache_first_shape(c, gate, 1, 2, 3));
  ck_ok(oc_model_enter(m));
  oc_model_leave(m);
  ck_ok(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p));
  ck_ok(oc_pool_free(oc_model_pool(m), p));
}

static oc_model *warm_model(oc_backend *b) {
  static oc_kernel_key seen = OC_KERNEL_KEY("test", "add");
  oc_model *m = fx_model(b);
  oc_kernel k;
  oc_devptr p;
  fx_load(m, "test");
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(m), &seen, &k));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", MiB, &p));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 1, block(m, 4096), NULL));
  return m;
}

START_TEST(s8_misses_are_refused_without_a_driver_call_and_hits_work) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = warm_model(b), *other = warm_model(b);
  oc_devptr p = block(m, 512), q = block(other, 512);
  ck_ok(oc_model_use_stream(m, NULL));
  ck_ok(oc_model_use_stream(other, NULL));
  ck_ok(oc_capture_enter(m, NULL));
  uint64_t before = fx_all_calls(b);
  check_refused(m, p, OC_E_BUSY);
  check_refused(other, q, OC_E_CAPTURING);   /* for every model on this thread */
  check_warm(m, "gate");
  check_warm(other, "gate");
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_capture_leave(m);
  oc_kernel k;
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "test", "fill", &k));
  ck_ok(oc_pool_free(oc_model_pool(m), p));      /* stayed the caller's */
  ck_ok(oc_pool_free_on(oc_model_pool(other), q, NULL));
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_model_destroy(other));
  fx_close(b);
}
END_TEST

/* The capture is the thread's: another one misses, allocates, loads as ever (S26's host side). */
static void *free_thread(void *arg) {
  oc_model *m = arg;
  oc_kernel k;
  oc_devptr p;
  fx_load(m, "another");
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "another", "fill", &k));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "other", 100 * MiB, &p));
  ck_ok(oc_pool_alloc(oc_model_pool(m), 300 * MiB, 0, &p));
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, NULL));
  oc_capture_leave(m);   /* this thread has entered none */
  return NULL;
}
START_TEST(a_capture_is_its_threads) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = warm_model(b);
  oc_stream s = fx_stream(b);
  pthread_t t;
  oc_devptr p;
  ck_ok(oc_capture_enter(m, s));
  pthread_create(&t, NULL, free_thread, m);
  pthread_join(t, NULL);
  ck_status(oc_opcache_scratch(oc_model_opcache(m), "third", 16, &p), OC_E_CAPTURING);   /* still in it */
  oc_capture_leave(m);
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "third", 16, &p));
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

static bool capturing(oc_model *m) {
  oc_kernel k;
  oc_status st = oc_opcache_kernel(oc_model_opcache(m), "none", "such", &k);
  ck_assert(st == OC_E_CAPTURING || st == OC_E_NOT_FOUND);
  return st == OC_E_CAPTURING;
}

START_TEST(captures_nest_over_models_and_streams_and_leave_in_any_order) {
  oc_backend *b = fx_open(NULL), *other = fx_open(NULL);
  oc_model *m = fx_model(b), *n = fx_model(b), *far = fx_model(other);
  oc_stream s = fx_stream(b), t = fx_stream(b);
  oc_capture_leave(m);                 /* none yet: ignored */
  oc_capture_leave(NULL);
  ck_assert(!capturing(m));
  ck_ok(oc_capture_enter(m, s));
  ck_ok(oc_capture_enter(m, t));
  ck_ok(oc_capture_enter(n, s));
  ck_ok(oc_capture_enter(far, NULL));
  oc_capture_leave(m);
  oc_capture_leave(n);
  oc_capture_leave(n);                 /* one too many: ignored, the others stand */
  ck_assert(capturing(m) && capturing(n) && capturing(far));
  oc_capture_leave(far);
  ck_assert(capturing(m) && capturing(far));
  oc_capture_leave(m);
  oc_capture_leave(m);
  ck_assert(!capturing(m) && !capturing(n) && !capturing(far));
  ck_status(oc_capture_enter(NULL, s), OC_E_INVALID);
  ck_assert(!capturing(m));
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_model_destroy(n));
  ck_ok(oc_model_destroy(far));
  fx_stream_free(b, s);
  fx_stream_free(b, t);
  fx_close(other);
  fx_close(b);
}
END_TEST

/* ---- what a graph keeps ---- */

START_TEST(s7_outgrown_scratch_of_a_graph_stays) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_kernel k;
  oc_devptr old, grown;
  uint32_t words[4] = {0};
  fx_load(m, "test");
  ck_ok(oc_opcache_kernel(oc_model_opcache(m), "test", "add", &k));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", MiB, &old));
  fx_write(b, old, words, sizeof words);
  ck_ok(oc_capture_enter(m, NULL));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", MiB, &old));
  oc_capture_leave(m);
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 2 * MiB, &grown));
  ck_assert_uint_ne(old, grown);
  ck_assert_uint_eq(stats(m).retired_bytes, MiB);
  for (int i = 0; i < 3; i++) fx_launch_add(b, k, NULL, old, 5);   /* the graph's replays */
  fx_read(b, words, old, sizeof words);
  ck_assert_uint_eq(words[0], 15);
  oc_devptr p = block(m, MiB);
  ck_assert_msg(p != old, "the retired block was handed out");
  char text[256];
  ck_assert_int_gt(oc_opcache_describe(oc_model_opcache(m), text, sizeof text), 0);
  ck_assert_ptr_nonnull(strstr(text, "1048576"));
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_eq(stats(m).retired_bytes, 0);
  ck_ok(oc_pool_check(oc_model_pool(m)));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Each thing that a capture was handed, made to go in each way: retired until graphs_gone. */
START_TEST(g28_what_a_capture_was_handed_is_retired) {
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b);
  for (int way = 0; way < 5; way++) {
    oc_model *m = fx_model(b);
    oc_devptr act, value = block(m, 4096);
    uint64_t v;
    ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 1, value, NULL));
    ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", s, 8192, &act));
    for (int captured = 0; captured < 2; captured++) {
      if (captured) {
        ck_ok(oc_capture_enter(m, s));
        ck_ok(oc_derived_get_ptr(oc_model_derived(m), OC_BF16, 1, &v));
        ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", s, 8192, &act));
        oc_capture_leave(m);
      }
      uint64_t retired = stats(m).retired_bytes, want = captured ? (way < 3 ? 4096 : 8192) : 0;
      if (way == 0) ck_ok(oc_derived_invalidate(oc_model_derived(m), 1));
      if (way == 1) ck_ok(oc_derived_release(oc_model_derived(m)));
      if (way == 2) { uint64_t keys[] = {1, 7}; ck_ok(oc_derived_invalidate_n(oc_model_derived(m), keys, 2)); }
      if (way == 3) ck_ok(oc_opcache_release(oc_model_opcache(m)));
      if (way == 4) { ck_ok(oc_model_forget_stream(m, s)); fx_sync(b, s); }
      ck_assert_msg(stats(m).retired_bytes - retired == want, "way %d, captured %d: %zu retired", way, captured,
                    (size_t)(stats(m).retired_bytes - retired));
      if (captured) break;
      ck_ok(oc_derived_release(oc_model_derived(m)));
      ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 1, block(m, 4096), NULL));
      ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", s, 8192, &act));
    }
    ck_ok(oc_model_graphs_gone(m));
    ck_assert_uint_eq(stats(m).retired_bytes, 0);
    ck_ok(oc_pool_check(oc_model_pool(m)));
    ck_ok(oc_model_destroy(m));
  }
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

START_TEST(g28_frees_in_a_capture_are_retired) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p = block(m, 4096), q = block(m, 4096), keyed = block(m, 4096);
  ck_ok(oc_model_use_stream(m, NULL));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, keyed + 256, q, NULL));
  ck_ok(oc_capture_enter(m, NULL));
  uint64_t before = fx_all_calls(b);
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  ck_status(oc_pool_free(oc_model_pool(m), p), OC_E_NOT_OWNED);
  ck_status(oc_pool_free(oc_model_pool(m), keyed), OC_E_CAPTURING);   /* it would wait, and changes nothing */
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_capture_leave(m);
  ck_assert_uint_eq(oc_derived_len(oc_model_derived(m)), 1);
  ck_assert_uint_eq(stats(m).retired_bytes, 4096);
  ck_ok(oc_pool_free(oc_model_pool(m), keyed));
  ck_assert_uint_eq(oc_derived_len(oc_model_derived(m)), 0);
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_eq(stats(m).retired_bytes, 0);
  ck_assert_uint_eq(stats(m).live_bytes, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* A build that is begun before, committed on a stream inside: refused; without a stream it needs no driver. */
START_TEST(g28_commits_in_a_capture) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_build *on, *off;
  uint64_t out[2];
  oc_devptr p, q;
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 1, &on, out), OC_MISS);
  ck_ok(oc_build_alloc(on, 4096, 0, &p));
  ck_ok(oc_build_on_stream(on, s));
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 2, &off, out), OC_MISS);
  ck_ok(oc_build_alloc(off, 4096, 0, &q));
  ck_ok(oc_capture_enter(m, NULL));
  uint64_t before = fx_all_calls(b);
  ck_status(oc_build_commit(on, (uint64_t[]){p, 0}, NULL), OC_E_CAPTURING);
  ck_ok(oc_build_commit(off, (uint64_t[]){q, 0}, NULL));
  ck_ok(oc_derived_get_ptr(oc_model_derived(m), OC_BF16, 2, out));
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_capture_leave(m);
  ck_assert_uint_eq(oc_derived_len(oc_model_derived(m)), 1);
  ck_assert_uint_eq(stats(m).retired_bytes, 4096);   /* the refused build's block */
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* A value not yet seen finished is refused on a stream inside a capture; settle before makes it a hit. */
START_TEST(g28_unfinished_values_must_be_settled_first) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b), cap = fx_stream(b);
  oc_build *build;
  uint64_t out[2];
  oc_devptr p;
  ck_ok(oc_model_use_stream(m, cap));
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 1, &build, out), OC_MISS);
  ck_ok(oc_build_alloc(build, 4096, 0, &p));
  ck_ok(oc_build_on_stream(build, s));
  fx_stall(b, s, true);
  ck_ok(oc_backend_table(b)->memset(oc_backend_self(b), p, 1, 4096, s));
  ck_ok(oc_build_commit(build, (uint64_t[]){p, 0}, NULL));
  ck_ok(oc_capture_enter(m, cap));
  uint64_t before = fx_all_calls(b);
  ck_status(oc_derived_get_ptr_on(oc_model_derived(m), OC_BF16, 1, cap, out), OC_E_CAPTURING);
  ck_ok(oc_derived_get_ptr(oc_model_derived(m), OC_BF16, 1, out));   /* the order is the caller's */
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_capture_leave(m);
  fx_stall(b, s, false);
  ck_ok(oc_derived_settle(oc_model_derived(m)));
  ck_ok(oc_capture_enter(m, cap));
  before = fx_all_calls(b);
  ck_ok(oc_derived_get_ptr_on(oc_model_derived(m), OC_BF16, 1, cap, out));
  ck_assert_uint_eq(out[0], p);
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_capture_leave(m);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_stream_free(b, cap);
  fx_close(b);
}
END_TEST

/* ---- graphs_gone ---- */

struct other_capture {
  oc_model *m;
  oc_stream s;
  pthread_t thread;
  bool in, leave;
};
static void *capture_thread(void *arg) {
  struct other_capture *o = arg;
  ck_ok(oc_capture_enter(o->m, o->s));
  __atomic_store_n(&o->in, true, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&o->leave, __ATOMIC_ACQUIRE)) fx_msleep(1);
  oc_capture_leave(o->m);
  return NULL;
}
static void capture_begins(struct other_capture *o) {
  pthread_create(&o->thread, NULL, capture_thread, o);
  fx_until(__atomic_load_n(&o->in, __ATOMIC_ACQUIRE));
}
static void capture_ends(struct other_capture *o) {
  __atomic_store_n(&o->leave, true, __ATOMIC_RELEASE);
  pthread_join(o->thread, NULL);
}

/* While another thread captures: graphs_gone is BUSY; invalidate works, and its blocks are retired for that graph. */
START_TEST(g28_while_another_thread_captures) {
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b), mine = fx_stream(b);
  struct other_capture o = {.m = fx_model(b), .s = s};
  oc_devptr value = block(o.m, 4096);
  ck_ok(oc_derived_insert_ptr(oc_model_derived(o.m), OC_BF16, 1, value, NULL));
  ck_ok(oc_model_use_stream(o.m, mine));
  capture_begins(&o);
  ck_status(oc_model_graphs_gone(o.m), OC_E_BUSY);
  uint64_t syncs = fx_calls(b, "synchronize");
  ck_ok(oc_derived_invalidate(oc_model_derived(o.m), 1));
  ck_assert_uint_eq(fx_calls(b, "synchronize"), syncs + 1);   /* not the stream that captures */
  ck_assert_uint_eq(fx_calls(b, "synchronize_all"), 0);
  ck_assert_uint_eq(stats(o.m).retired_bytes, 4096);
  capture_ends(&o);
  ck_assert_uint_eq(stats(o.m).retired_bytes, 4096);
  ck_ok(oc_model_graphs_gone(o.m));
  ck_assert_uint_eq(stats(o.m).retired_bytes, 0);
  ck_ok(oc_model_destroy(o.m));
  fx_stream_free(b, s);
  fx_stream_free(b, mine);
  fx_close(b);
}
END_TEST

/* The driver is asked whether a stream captures, and answers only when it is told to. */
struct slow_driver {
  oc_model *m;
  bool slow, asked;
  oc_status gone;
};
static bool answer_slowly(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)arg;
  (void)answer;
  struct slow_driver *d = w->hook_arg;
  if (strcmp(entry, "capturing") != 0 || !__atomic_load_n(&d->slow, __ATOMIC_ACQUIRE)) return false;
  __atomic_store_n(&d->asked, true, __ATOMIC_RELEASE);
  fx_until(!__atomic_load_n(&d->slow, __ATOMIC_ACQUIRE));
  return false;
}
static void *graphs_gone(void *arg) {
  struct slow_driver *d = arg;
  d->gone = oc_model_graphs_gone(d->m);
  return NULL;
}

/* A capture that comes while graphs_gone is at it, and perhaps leaves before it is done, keeps what it was handed. */
START_TEST(g28_a_capture_that_comes_while_graphs_go) {
  for (int left = 0; left < 2; left++) {
    struct wrap w;
    wrap_open(&w, NULL);
    oc_stream s = fx_stream(w.inner);
    struct slow_driver d = {.m = fx_model(w.outer), .slow = true};
    pthread_t t;
    uint64_t v;
    oc_devptr value = block(d.m, 4096), p = block(d.m, 8192);
    ck_ok(oc_model_use_stream(d.m, s));
    ck_ok(oc_derived_insert_ptr(oc_model_derived(d.m), OC_BF16, 1, value, NULL));
    w.hook_arg = &d;
    w.hook = answer_slowly;
    pthread_create(&t, NULL, graphs_gone, &d);
    fx_until(__atomic_load_n(&d.asked, __ATOMIC_ACQUIRE));
    ck_ok(oc_capture_enter(d.m, s));
    ck_ok(oc_derived_get_ptr(oc_model_derived(d.m), OC_BF16, 1, &v));
    ck_ok(oc_pool_free(oc_model_pool(d.m), p));
    if (left) oc_capture_leave(d.m);
    __atomic_store_n(&d.slow, false, __ATOMIC_RELEASE);
    pthread_join(t, NULL);
    if (!left) oc_capture_leave(d.m);
    ck_status(d.gone, OC_E_BUSY);
    ck_assert_uint_eq(stats(d.m).retired_bytes, 8192);
    ck_ok(oc_derived_invalidate(oc_model_derived(d.m), 1));
    ck_assert_uint_eq(stats(d.m).retired_bytes, 4096 + 8192);
    ck_ok(oc_model_graphs_gone(d.m));
    ck_assert_uint_eq(stats(d.m).retired_bytes, 0);
    ck_ok(oc_model_destroy(d.m));
    fx_stream_free(w.inner, s);
    wrap_close(&w);
  }
}
END_TEST

/* A foreign value that a graph holds is freed with graphs_gone, or by teardown: once. */
START_TEST(g28_foreign_values_wait_for_the_graphs_too) {
  for (int gone = 0; gone < 2; gone++) {
    oc_backend *b = fx_open(NULL);
    oc_model *m = fx_model(b);
    oc_devptr value;
    uint64_t v;
    ck_ok(oc_backend_table(b)->alloc(oc_backend_self(b), 4096, &value));
    ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 1, value, NULL));
    ck_ok(oc_capture_enter(m, NULL));
    ck_ok(oc_derived_get_ptr(oc_model_derived(m), OC_BF16, 1, &v));
    oc_capture_leave(m);
    ck_ok(oc_derived_invalidate(oc_model_derived(m), 1));
    ck_assert_uint_eq(fx_calls(b, "free"), 0);
    if (gone) ck_ok(oc_model_graphs_gone(m));
    if (gone) ck_assert_uint_eq(fx_calls(b, "free"), 1);
    ck_ok(oc_model_destroy(m));
    ck_assert_uint_eq(fx_calls(b, "free"), 1);
    fx_close(b);
  }
}
END_TEST

/* graphs_gone waits for queued work, and where the wait fails, all stays retired. */
START_TEST(g28_graphs_gone_that_fails_keeps_all) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p = block(m, 4096), act;
  ck_ok(oc_model_use_stream(m, NULL));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 4096, &act));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 8192, &act));
  ck_ok(oc_capture_enter(m, NULL));
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  oc_capture_leave(m);
  uint64_t retired = stats(m).retired_bytes;
  ck_assert_uint_eq(retired, 8192);
  fx_fail(b, "synchronize", 1, 1, OC_E_BACKEND);
  ck_status(oc_model_graphs_gone(m), OC_E_BACKEND);
  ck_assert_uint_eq(stats(m).retired_bytes, retired);
  ck_ok(oc_pool_check(oc_model_pool(m)));
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_eq(stats(m).retired_bytes, 0);
  ck_ok(oc_model_graphs_gone(m));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(g28_graphs_gone_waits_for_queued_work) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b);
  struct other_capture o = {.m = fx_model(b)};
  oc_devptr p = block(o.m, 4096);
  ck_ok(oc_model_use_stream(o.m, s));
  ck_ok(oc_capture_enter(o.m, s));
  ck_ok(oc_pool_free(oc_model_pool(o.m), p));
  oc_capture_leave(o.m);
  fx_delay(b, "synchronize", 50000000);
  uint64_t syncs = fx_calls(b, "synchronize");
  ck_ok(oc_model_graphs_gone(o.m));
  ck_assert_uint_eq(fx_calls(b, "synchronize"), syncs + 1);
  ck_assert_uint_eq(stats(o.m).retired_bytes, 0);
  ck_ok(oc_model_destroy(o.m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

static void call_graphs_gone(void *arg) {
  ck_ok(oc_model_graphs_gone(arg));
}

/* What a capture's free retired, and a value that a capture was handed, may be in a reader's hands too. */
START_TEST(g28_graphs_gone_waits_for_guards) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  struct guarded reader;
  struct side other;
  oc_devptr p = block(m, 4096), act;
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 4096, &act));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 8192, &act));
  ck_ok(oc_capture_enter(m, NULL));
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  oc_capture_leave(m);
  guarded_start(&reader);
  side_start(&other, call_graphs_gone, m);
  side_waits(&other);
  ck_assert_uint_eq(stats(m).retired_bytes, 8192);
  ck_assert_uint_ne(block(m, 4096), p);
  guarded_end(&reader);
  side_join(&other);
  ck_assert_uint_eq(stats(m).retired_bytes, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- a capture that nobody declared ---- */

START_TEST(g28_undeclared_captures) {
  if (!fx_can(FX_CAPTURE)) { fx_skip("needs captures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_devptr p = block(m, 4096), q;
  oc_build *build;
  uint64_t out[2];
  ck_ok(oc_model_use_stream(m, s));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 7, block(m, 4096), NULL));
  fx_capturing(b, s, true);
  uint64_t events = fx_calls(b, "event_record") + fx_calls(b, "event_wait") + fx_calls(b, "synchronize");
  ck_status(oc_pool_free_on(oc_model_pool(m), p, s), OC_E_CAPTURING);
  ck_ok(oc_pool_alloc(oc_model_pool(m), 100 * MiB, 0, &q));   /* allocation works */
  ck_status(oc_model_forget_stream(m, s), OC_E_CAPTURING);
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 1, &build, out), OC_MISS);
  ck_ok(oc_build_alloc(build, 4096, 0, &q));
  ck_ok(oc_build_on_stream(build, s));
  ck_status(oc_build_commit(build, (uint64_t[]){q, 0}, NULL), OC_E_CAPTURING);
  ck_status(oc_derived_invalidate(oc_model_derived(m), 7), OC_E_CAPTURING);
  ck_status(oc_derived_release(oc_model_derived(m)), OC_E_CAPTURING);
  ck_status(oc_opcache_release(oc_model_opcache(m)), OC_E_CAPTURING);
  ck_status(oc_model_graphs_gone(m), OC_E_CAPTURING);
  ck_assert_uint_eq(fx_calls(b, "event_record") + fx_calls(b, "event_wait") + fx_calls(b, "synchronize"), events);
  ck_assert_uint_eq(oc_derived_len(oc_model_derived(m)), 1);
  fx_capturing(b, s, false);
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, s));             /* it stayed the caller's */
  ck_ok(oc_model_graphs_gone(m));
  fx_sync(b, s);
  ck_assert_uint_eq(stats(m).retired_bytes, 0);
  ck_ok(oc_pool_check(oc_model_pool(m)));
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* S26's host side: B captures on its stream, A with a stream of its own loads, allocates, is torn down. */
START_TEST(s26_another_models_whole_life_beside_a_capture) {
  if (!fx_can(FX_CAPTURE)) { fx_skip("needs captures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_stream bs = fx_stream(b), as = fx_stream(b);
  struct other_capture o = {.m = fx_model(b), .s = bs};
  oc_devptr p;
  oc_kernel k;
  capture_begins(&o);
  fx_capturing(b, bs, true);
  oc_model *a = fx_model(b);
  ck_ok(oc_model_use_stream(a, as));
  fx_load(a, "test");
  ck_ok(oc_opcache_kernel(oc_model_opcache(a), "test", "add", &k));
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(a), "act", as, MiB, &p));
  fx_launch_add(b, k, as, p, 1);
  p = block(a, MiB);
  ck_ok(oc_pool_free_on(oc_model_pool(a), p, as));
  ck_ok(oc_model_destroy(a));
  ck_assert_uint_eq(fx_calls(b, "synchronize_all"), 0);
  fx_capturing(b, bs, false);
  capture_ends(&o);
  ck_ok(oc_model_destroy(o.m));
  fx_stream_free(b, as);
  fx_stream_free(b, bs);
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("capture");
  TCase *t = tcase_create("capture");
  tcase_set_timeout(t, 30);
  suite_add_tcase(s, t);
  tcase_add_test(t, s8_misses_are_refused_without_a_driver_call_and_hits_work);
  tcase_add_test(t, a_capture_is_its_threads);
  tcase_add_test(t, captures_nest_over_models_and_streams_and_leave_in_any_order);
  tcase_add_test(t, s7_outgrown_scratch_of_a_graph_stays);
  tcase_add_test(t, g28_what_a_capture_was_handed_is_retired);
  tcase_add_test(t, g28_frees_in_a_capture_are_retired);
  tcase_add_test(t, g28_commits_in_a_capture);
  tcase_add_test(t, g28_unfinished_values_must_be_settled_first);
  tcase_add_test(t, g28_while_another_thread_captures);
  tcase_add_test(t, g28_a_capture_that_comes_while_graphs_go);
  tcase_add_test(t, g28_foreign_values_wait_for_the_graphs_too);
  tcase_add_test(t, g28_graphs_gone_that_fails_keeps_all);
  tcase_add_test(t, g28_graphs_gone_waits_for_queued_work);
  tcase_add_test(t, g28_graphs_gone_waits_for_guards);
  tcase_add_test(t, g28_undeclared_captures);
  tcase_add_test(t, s26_another_models_whole_life_beside_a_capture);
  return s;
}

int main(void) { return fx_run(suite()); }
