/* SPDX-License-Identifier: MIT */
/* The streams that carry a model's work: naming, forgetting, farewells, recycled handles (G8, G20, G22, S9, S27). */
#include "config.h"

#include <pthread.h>
#include <string.h>

#include "tests/wrap.h"

#define MiB ((size_t)1 << 20)

static oc_pool_stats stats(oc_model *m) {
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &s));
  return s;
}

static oc_devptr scratch_on(oc_model *m, oc_stream s) {
  oc_devptr p;
  ck_ok(oc_opcache_scratch_on(oc_model_opcache(m), "act", s, 4096, &p));
  return p;
}

static void queue_work(oc_backend *b, oc_devptr p, oc_stream s) {
  ck_ok(oc_backend_table(b)->memset(oc_backend_self(b), p, 1, 4096, s));
}

START_TEST(named_once_however_often_and_forgotten_once) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  for (int i = 0; i < 3; i++) ck_ok(oc_model_use_stream(m, s));
  scratch_on(m, s);
  ck_ok(oc_model_forget_stream(m, s));
  uint64_t before = fx_all_calls(b);
  ck_ok(oc_model_forget_stream(m, s));      /* not named any more: nothing to do */
  ck_ok(oc_model_forget_stream(m, (oc_stream)&before));
  ck_assert_uint_eq(fx_all_calls(b), before);
  fx_stream_free(b, s);
  ck_ok(oc_model_destroy(m));               /* does not touch the stream that is gone */
  ck_assert_uint_eq(fx_calls(b, "synchronize"), 0);
  ck_assert_uint_eq(fx_calls(b, "synchronize_all"), 0);   /* some stream was named once */
  fx_close(b);
}
END_TEST

/* Each way to name a stream: teardown drains exactly those. */
START_TEST(g22_streams_are_named_by_every_on_call) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s[6];
  oc_devptr p;
  uint64_t v, out[2];
  oc_build *build;
  static oc_tag_key tag = OC_TAG_KEY("k");
  for (int i = 0; i < 6; i++) s[i] = fx_stream(b);
  ck_ok(oc_model_use_stream(m, s[0]));
  scratch_on(m, s[1]);
  ck_ok(oc_opcache_scratch_on_k(oc_model_opcache(m), &tag, s[2], 16, &p));
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 1, &build, out), OC_MISS);
  ck_ok(oc_build_alloc(build, 256, 0, &p));
  ck_ok(oc_build_on_stream(build, s[3]));
  ck_ok(oc_build_commit(build, (uint64_t[]){p, 0}, NULL));
  ck_ok(oc_derived_get_ptr_on(oc_model_derived(m), OC_BF16, 1, s[4], &v));
  ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, s[5]));
  ck_ok(oc_model_destroy(m));
  ck_assert_uint_eq(fx_calls(b, "synchronize"), 6);
  ck_assert_uint_eq(fx_calls(b, "synchronize_all"), 0);
  for (int i = 0; i < 6; i++) fx_stream_free(b, s[i]);
  fx_close(b);
}
END_TEST

/* S9, G8 */
START_TEST(s9_two_streams_two_buffers) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b), t = fx_stream(b);
  oc_devptr x = scratch_on(m, s), y = scratch_on(m, t), z = scratch_on(m, NULL);
  ck_assert(x != y && y != z && x != z);
  ck_assert(x + 4096 <= y || y + 4096 <= x);
  ck_assert_uint_eq(scratch_on(m, s), x);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_stream_free(b, t);
  fx_close(b);
}
END_TEST

/* S27: the handle comes back for a new stream while the old one's work still runs. */
START_TEST(s27_a_recycled_handle_starts_clean) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(&(struct fx_options){.recycle = true});
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_devptr old = scratch_on(m, s);
  fx_stall(b, s, true);
  queue_work(b, old, s);
  ck_ok(oc_model_forget_stream(m, s));
  fx_stream_free(b, s);
  oc_stream again = fx_stream(b);
  ck_assert_ptr_eq(again, s);               /* or this proves nothing */
  oc_devptr fresh = scratch_on(m, again);
  ck_assert_uint_ne(fresh, old);
  ck_assert_uint_eq(stats(m).retired_bytes, 4096);
  fx_stall(b, s, false);
  fx_until(stats(m).retired_bytes == 0);    /* its work is done: collected */
  ck_assert_uint_eq(scratch_on(m, again), fresh);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, again);
  fx_close(b);
}
END_TEST

/* The same for values: a recycled handle is not behind the old stream's work, and a new build there says nothing about
   an old one. */
START_TEST(s27_values_of_the_old_stream_are_waited_for) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(&(struct fx_options){.recycle = true});
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_build *build;
  uint64_t out[2], p[2] = {0};
  for (uint64_t key = 1; key <= 2; key++) {
    ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, key, &build, out), OC_MISS);
    ck_ok(oc_build_alloc(build, 4096, 0, &p[0]));
    ck_ok(oc_build_on_stream(build, s));
    if (key == 1) fx_stall(b, s, true);
    if (key == 1) queue_work(b, p[0], s);
    ck_ok(oc_build_commit(build, p, NULL));
    if (key == 2) break;
    ck_ok(oc_model_forget_stream(m, s));
    fx_stream_free(b, s);
    oc_stream old = s;
    s = fx_stream(b);
    ck_assert_ptr_eq(s, old);
    uint64_t waits = fx_calls(b, "event_wait");
    ck_ok(oc_derived_get_ptr_on(oc_model_derived(m), OC_BF16, 1, s, out));
    ck_assert_uint_eq(fx_calls(b, "event_wait"), waits + 1);
  }
  ck_assert_uint_eq(fx_events(b) >= 2, true);   /* the second build did not take the first one's event */
  fx_stall(b, s, false);
  ck_ok(oc_derived_settle(oc_model_derived(m)));
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

struct teardown_call {
  oc_model *m;
  oc_stream s;
  pthread_t thread;
  bool done;
};
static void *destroy(void *arg) {
  struct teardown_call *c = arg;
  ck_ok(oc_model_destroy(c->m));
  __atomic_store_n(&c->done, true, __ATOMIC_RELEASE);
  return NULL;
}
static void *invalidate(void *arg) {
  struct teardown_call *c = arg;
  ck_ok(oc_derived_invalidate(oc_model_derived(c->m), 1));
  __atomic_store_n(&c->done, true, __ATOMIC_RELEASE);
  return NULL;
}
static bool done(struct teardown_call *c) { return __atomic_load_n(&c->done, __ATOMIC_ACQUIRE); }

/* The farewell of a stream long destroyed is awaited by teardown, and by invalidate. */
START_TEST(farewells_are_awaited) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  for (int way = 0; way < 2; way++) {
    oc_backend *b = fx_open(NULL);
    struct teardown_call c = {.m = fx_model(b)};
    oc_stream s = fx_stream(b);
    oc_devptr p, value;
    ck_ok(oc_pool_alloc(oc_model_pool(c.m), 4096, 0, &value));
    ck_ok(oc_derived_insert_ptr(oc_model_derived(c.m), OC_BF16, 1, value, NULL));
    ck_ok(oc_model_use_stream(c.m, s));
    p = value;
    fx_stall(b, s, true);
    queue_work(b, p, s);
    ck_ok(oc_model_forget_stream(c.m, s));
    fx_stream_free(b, s);
    uint64_t asked = fx_calls(b, "event_query");
    pthread_create(&c.thread, NULL, way ? invalidate : destroy, &c);
    fx_until(fx_calls(b, "event_query") > asked + 3);
    ck_assert(!done(&c));
    ck_assert_uint_eq(fx_calls(b, "free"), 0);
    if (way) ck_assert_uint_eq(stats(c.m).live_bytes, 4096);
    fx_stall(b, s, false);
    pthread_join(c.thread, NULL);
    if (way) ck_assert_uint_eq(stats(c.m).live_bytes, 0);
    if (way) ck_ok(oc_model_destroy(c.m));
    fx_close(b);
  }
}
END_TEST

/* A value that queued work on a stream uses; the stream is forgotten, and destroyed. */
static void leave_a_farewell(oc_model *m, oc_backend *device, oc_stream s) {
  oc_devptr value;
  ck_ok(oc_pool_alloc(oc_model_pool(m), 4096, 0, &value));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 1, value, NULL));
  ck_ok(oc_model_use_stream(m, s));
  fx_stall(device, s, true);
  queue_work(device, value, s);
  ck_ok(oc_model_forget_stream(m, s));
  fx_stream_free(device, s);
}

static void *invalidate_another(void *arg) {
  struct teardown_call *c = arg;
  ck_ok(oc_derived_invalidate(oc_model_derived(c->m), 2));
  return NULL;
}

/* While one thread waits for a farewell it is there for another one too (G15). */
START_TEST(g15_a_farewell_is_awaited_by_each_who_needs_it) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(NULL);
  struct teardown_call i = {.m = fx_model(b)}, other = {.m = i.m};
  oc_stream s = fx_stream(b);
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(i.m), 4096, 0, &p));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(i.m), OC_BF16, 2, p, NULL));
  leave_a_farewell(i.m, b, s);
  uint64_t asked = fx_calls(b, "event_query");
  pthread_create(&other.thread, NULL, invalidate_another, &other);
  fx_until(fx_calls(b, "event_query") > asked + 3);
  pthread_create(&i.thread, NULL, invalidate, &i);
  fx_msleep(30);
  ck_assert(!done(&i));
  ck_assert_uint_eq(stats(i.m).live_bytes, 8192);
  fx_stall(b, s, false);
  pthread_join(i.thread, NULL);
  pthread_join(other.thread, NULL);
  ck_assert_uint_eq(stats(i.m).live_bytes, 0);
  ck_assert_uint_le(fx_events(b), 1);       /* to be used again: once, though two waited for it */
  ck_ok(oc_model_destroy(i.m));
  fx_close(b);
}
END_TEST

/* The first query that is asked while `hold` is set does not come back until it is cleared. */
struct slow_query {
  bool hold, held;
};
static bool hold_one_query(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)arg;
  (void)answer;
  struct slow_query *q = w->hook_arg;
  if (strcmp(entry, "event_query") != 0 || !__atomic_load_n(&q->hold, __ATOMIC_ACQUIRE)) return false;
  if (__atomic_exchange_n(&q->held, true, __ATOMIC_ACQ_REL)) return false;
  fx_until(!__atomic_load_n(&q->hold, __ATOMIC_ACQUIRE));
  return false;
}
static void *forget(void *arg);

/* Nor is it gone while another thread's forget asks whether it has passed. */
START_TEST(g15_a_farewell_that_a_forget_asks_is_awaited) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  struct wrap w;
  struct slow_query q = {0};
  wrap_open(&w, NULL);
  w.hook_arg = &q;
  w.hook = hold_one_query;
  struct teardown_call i = {.m = fx_model(w.outer)}, f = {.m = i.m, .s = fx_stream(w.inner)};
  oc_stream s = fx_stream(w.inner);
  ck_ok(oc_model_use_stream(f.m, f.s));
  leave_a_farewell(i.m, w.inner, s);
  __atomic_store_n(&q.hold, true, __ATOMIC_RELEASE);
  pthread_create(&f.thread, NULL, forget, &f);
  fx_until(__atomic_load_n(&q.held, __ATOMIC_ACQUIRE));
  pthread_create(&i.thread, NULL, invalidate, &i);
  fx_msleep(30);
  ck_assert(!done(&i));
  ck_assert_uint_eq(stats(i.m).live_bytes, 4096);
  fx_stall(w.inner, s, false);
  pthread_join(i.thread, NULL);
  unsigned asked = wrap_calls(&w, "event_query");   /* it has passed: nobody asks again, though it is in use */
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(i.m), 4096, 0, &p));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(i.m), OC_BF16, 1, p, NULL));
  ck_ok(oc_derived_invalidate(oc_model_derived(i.m), 1));
  ck_assert_uint_eq(wrap_calls(&w, "event_query"), asked);
  __atomic_store_n(&q.hold, false, __ATOMIC_RELEASE);
  pthread_join(f.thread, NULL);
  fx_stream_free(w.inner, f.s);
  ck_ok(oc_model_destroy(i.m));
  wrap_close(&w);
}
END_TEST

/* Without events forget synchronises; inside a guard it must not. */
START_TEST(without_events_forget_synchronises) {
  oc_backend *b = fx_open(&(struct fx_options){.no_events = true});
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_devptr p = scratch_on(m, s);
  queue_work(b, p, s);
  oc_guard_enter();
  ck_status(oc_model_forget_stream(m, s), OC_E_GUARDED);
  oc_guard_leave();
  ck_assert_uint_eq(fx_calls(b, "synchronize"), 0);
  ck_ok(oc_model_forget_stream(m, s));
  ck_assert_uint_eq(fx_calls(b, "synchronize"), 1);
  ck_assert_uint_eq(oc_opcache_scratches(oc_model_opcache(m)), 0);
  fx_stream_free(b, s);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* forget comes back only when nobody waits for the stream any more: the caller will destroy it. */
static void *forget(void *arg) {
  struct teardown_call *c = arg;
  ck_ok(oc_model_forget_stream(c->m, c->s));
  __atomic_store_n(&c->done, true, __ATOMIC_RELEASE);
  return NULL;
}
START_TEST(forget_waits_for_those_who_wait_for_the_stream) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b);
  struct teardown_call i = {.m = fx_model(b)}, f = {.m = i.m, .s = s}, other = {.m = i.m};
  oc_devptr value, second;
  ck_ok(oc_pool_alloc(oc_model_pool(i.m), 4096, 0, &value));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(i.m), OC_BF16, 1, value, NULL));
  ck_ok(oc_pool_alloc(oc_model_pool(i.m), 4096, 0, &second));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(i.m), OC_BF16, 2, second, NULL));
  ck_ok(oc_model_use_stream(i.m, s));
  fx_stall(b, s, true);
  queue_work(b, value, s);
  pthread_create(&i.thread, NULL, invalidate, &i);
  fx_until(fx_calls(b, "synchronize") == 1);
  oc_guard_enter();
  ck_status(oc_model_forget_stream(i.m, s), OC_E_GUARDED);
  oc_guard_leave();
  pthread_create(&f.thread, NULL, forget, &f);
  fx_until(fx_calls(b, "event_record") == 1);
  fx_msleep(10);
  ck_assert(!done(&f) && !done(&i));
  uint64_t asked = fx_calls(b, "event_query");
  pthread_create(&other.thread, NULL, invalidate_another, &other);
  fx_until(fx_calls(b, "event_query") > asked + 1);
  ck_assert_uint_eq(fx_calls(b, "synchronize"), 1);   /* who comes now waits for the farewell, and does not keep forget */
  fx_stall(b, s, false);
  pthread_join(i.thread, NULL);
  pthread_join(f.thread, NULL);
  pthread_join(other.thread, NULL);
  fx_stream_free(b, s);
  ck_ok(oc_model_destroy(i.m));
  fx_close(b);
}
END_TEST

START_TEST(forget_in_a_guard_and_in_a_capture) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  scratch_on(m, s);
  ck_ok(oc_capture_enter(m, s));
  uint64_t before = fx_all_calls(b);
  ck_status(oc_model_forget_stream(m, s), OC_E_CAPTURING);
  ck_ok(oc_model_use_stream(m, NULL));   /* no driver is asked */
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_capture_leave(m);
  oc_guard_enter();
  ck_ok(oc_model_forget_stream(m, s));
  oc_guard_leave();
  ck_assert_uint_eq(oc_opcache_scratches(oc_model_opcache(m)), 0);
  fx_stream_free(b, s);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* A forget that the driver refuses changes nothing. */
START_TEST(a_refused_forget_changes_nothing) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_devptr p = scratch_on(m, s);
  fx_fail(b, "event_create", 1, 1, OC_E_BACKEND);
  ck_status(oc_model_forget_stream(m, s), OC_E_BACKEND);
  ck_assert_uint_eq(scratch_on(m, s), p);
  fx_fail(b, "event_record", 1, 1, OC_E_BACKEND);
  ck_status(oc_model_forget_stream(m, s), OC_E_BACKEND);
  ck_assert_uint_eq(scratch_on(m, s), p);
  ck_ok(oc_model_forget_stream(m, s));
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* A commit whose event could not be recorded ends its build, and leaves the earlier ones as they were. */
START_TEST(a_commit_that_fails_to_record_holds_nobody_up) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream s = fx_stream(b);
  oc_build *build;
  uint64_t out[2], p[2] = {0};
  for (uint64_t key = 1; key <= 3; key++) {
    ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, key, &build, out), OC_MISS);
    ck_ok(oc_build_alloc(build, 4096, 0, &p[0]));
    ck_ok(oc_build_on_stream(build, s));
    if (key == 2) fx_fail(b, "event_record", 1, 1, OC_E_BACKEND);
    ck_status(oc_build_commit(build, p, NULL), key == 2 ? OC_E_BACKEND : OC_OK);
  }
  ck_assert_uint_eq(oc_derived_len(oc_model_derived(m)), 2);
  ck_ok(oc_derived_settle(oc_model_derived(m)));
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* An engine that makes a stream a request: events, memory and records stay bounded. */
START_TEST(a_stream_a_request_is_flat) {
  oc_backend *b = fx_open(&(struct fx_options){.recycle = true});
  oc_model *m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB});
  uint64_t events = 0;
  size_t used = 0;
  for (int i = 0; i < 1000; i++) {
    oc_stream s = fx_stream(b);
    oc_devptr p = scratch_on(m, s);
    queue_work(b, p, s);
    ck_ok(oc_model_forget_stream(m, s));
    fx_sync(b, s);
    fx_stream_free(b, s);
    if (i == 100) events = fx_events(b), used = fx_used(b);
  }
  ck_assert_uint_le(fx_events(b), events + 8);
  ck_assert_uint_eq(fx_used(b), used);
  ck_assert_uint_eq(stats(m).live_bytes, 0);
  ck_ok(oc_pool_check(oc_model_pool(m)));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- events to be used again: so many, and no more ---- */

#define SPARE 256u   /* what a model keeps */

struct driver {
  bool pending;         /* no event has passed yet */
  bool lost;
  oc_event refused;     /* the first that it was asked to destroy */
};

static bool drive(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct driver *d = w->hook_arg;
  *answer = d->lost ? OC_E_DEVICE_LOST : OC_MISS;
  if (d->lost || (d->pending && strcmp(entry, "event_query") == 0)) return true;
  if (strcmp(entry, "event_destroy") != 0 || d->refused) return false;
  d->refused = (oc_event)(uintptr_t)arg;
  *answer = OC_E_BACKEND;
  return true;
}

static unsigned warned;
static void count_warnings(void *arg, int level, const char *line) {
  (void)arg;
  (void)level;
  warned += strstr(line, "an event could not be destroyed: ") && strstr(line, "event_destroy");
}

/* 300 blocks wait for their events at once. */
static oc_model *with_300_events(struct wrap *w, struct driver *d) {
  wrap_open(w, NULL);
  w->hook_arg = d;
  w->hook = drive;
  oc_model *m = fx_model(w->outer);
  oc_devptr p;
  for (int i = 0; i < 300; i++) {
    ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
    ck_ok(oc_pool_free_on(oc_model_pool(m), p, NULL));
  }
  ck_assert_uint_eq(fx_events(w->inner), 300);
  return m;
}

START_TEST(events_kept_for_later_are_bounded) {
  struct wrap w;
  struct driver d = {.pending = true};
  oc_model *m = with_300_events(&w, &d);
  oc_set_log(count_warnings, NULL);
  d.pending = false;
  fx_sync(w.inner, NULL);
  ck_assert_uint_eq(stats(m).retired_bytes, 0);   /* all have passed */
  oc_set_log(NULL, NULL);
  ck_assert_uint_eq(wrap_calls(&w, "event_destroy"), 300 - SPARE);
  ck_assert_uint_eq(fx_events(w.inner), SPARE + 1);
  ck_assert_uint_eq(warned, 1);                   /* the one that was refused, and is nobody's now */
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_table(w.inner)->event_destroy(oc_backend_self(w.inner), d.refused));
  wrap_close(&w);
}
END_TEST

/* G25: with the context gone, none that was too many is destroyed either. */
START_TEST(g25_events_of_a_lost_context_are_left) {
  struct wrap w;
  struct driver d = {.pending = true};
  oc_model *m = with_300_events(&w, &d);
  d.lost = true;
  ck_ok(oc_model_destroy(m));
  ck_assert_uint_eq(wrap_calls(&w, "event_destroy"), 0);
  wrap_close_dirty(&w);
}
END_TEST

/* Streams come, work and go on several threads while values are invalidated. */
struct traffic {
  oc_backend *b;
  oc_model *m;
};
static void traffic(void *arg, unsigned i) {
  struct traffic *t = arg;
  for (uint64_t n = 1; n <= 60; n++) {
    if (i == 0) {
      oc_devptr p;
      ck_ok(oc_pool_alloc(oc_model_pool(t->m), 4096, 0, &p));
      ck_ok(oc_derived_insert_ptr(oc_model_derived(t->m), OC_BF16, n, p, NULL));
      ck_ok(oc_derived_invalidate(oc_model_derived(t->m), n));
      continue;
    }
    oc_stream s = fx_stream(t->b);
    oc_devptr p = scratch_on(t->m, s);
    queue_work(t->b, p, s);
    ck_ok(oc_model_forget_stream(t->m, s));
    fx_stream_free(t->b, s);   /* at once, whoever was waiting for it */
  }
}
START_TEST(streams_come_and_go_beside_invalidates) {
  struct traffic t = {.b = fx_open(NULL)};
  t.m = fx_model(t.b);
  fx_threads(4, traffic, &t);
  ck_ok(oc_pool_check(oc_model_pool(t.m)));
  ck_ok(oc_model_destroy(t.m));
  fx_close(t.b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("stream");
  TCase *t = tcase_create("stream");
  tcase_set_timeout(t, 30);
  suite_add_tcase(s, t);
  tcase_add_test(t, named_once_however_often_and_forgotten_once);
  tcase_add_test(t, g22_streams_are_named_by_every_on_call);
  tcase_add_test(t, s9_two_streams_two_buffers);
  tcase_add_test(t, s27_a_recycled_handle_starts_clean);
  tcase_add_test(t, s27_values_of_the_old_stream_are_waited_for);
  tcase_add_test(t, forget_waits_for_those_who_wait_for_the_stream);
  tcase_add_test(t, farewells_are_awaited);
  tcase_add_test(t, g15_a_farewell_is_awaited_by_each_who_needs_it);
  tcase_add_test(t, g15_a_farewell_that_a_forget_asks_is_awaited);
  tcase_add_test(t, without_events_forget_synchronises);
  tcase_add_test(t, forget_in_a_guard_and_in_a_capture);
  tcase_add_test(t, a_refused_forget_changes_nothing);
  tcase_add_test(t, a_commit_that_fails_to_record_holds_nobody_up);
  tcase_add_test(t, a_stream_a_request_is_flat);
  tcase_add_test(t, events_kept_for_later_are_bounded);
  tcase_add_test(t, g25_events_of_a_lost_context_are_left);
  tcase_add_test(t, streams_come_and_go_beside_invalidates);
  return s;
}

int main(void) { return fx_run(suite()); }
