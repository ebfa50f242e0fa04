/* SPDX-License-Identifier: MIT */
/*
 * Scratch (G7, G8, G17, G19, G21, G27, G28, G33, S7, S8, S9, S27, S32): grow-only buffers by tag and stream, what is
 * retired and when it goes back, and the latch as the op cache sees it.
 */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "liboc/backend.h"
#include "liboc/model.h"
#include "rcu/map.h"
#include "rcu/mem.h"
#include "tests/world.h"
#include "tests/wrap.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static oc_backend *b;
static oc_model *m;
static oc_opcache *c;
static oc_pool *pool;

static void model_on(oc_model_options opt) {
  m = fx_model_opt(b, opt);
  c = oc_model_opcache(m);
  pool = oc_model_pool(m);
}

static void open_with(struct fx_options opt) {
  b = fx_open(&opt);
  model_on((oc_model_options){0});
}

static void close_model(void) {
  ck_ok(oc_pool_check(pool));
  ck_ok(oc_model_destroy(m));
}

static void close_all(void) {
  close_model();
  fx_close(b);
}

static oc_pool_stats stats(void) {
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(pool, &s));
  return s;
}

static oc_devptr scratch(const char *tag, size_t bytes) {
  oc_devptr p = 0;
  ck_ok(oc_opcache_scratch(c, tag, bytes, &p));
  ck_assert_uint_ne(p, 0);
  ck_assert_uint_eq(p % 256, 0);
  return p;
}

static oc_devptr scratch_on(const char *tag, oc_stream s, size_t bytes) {
  oc_devptr p = 0;
  ck_ok(oc_opcache_scratch_on(c, tag, s, bytes, &p));
  return p;
}

static void queue_work(oc_devptr p, oc_stream s) {
  ck_ok(oc_backend_table(b)->memset(oc_backend_self(b), p, 7, 256, s));
}

/* ---- G7: grow-only ---- */

START_TEST(g7_what_fits_is_the_same_buffer) {
  oc_tag_key key = OC_TAG_KEY("act");
  oc_devptr p, q = 0;
  open_with((struct fx_options){0});
  p = scratch("act", 1 * MIB);
  ck_assert_uint_eq(scratch("act", 1), p);
  ck_assert_uint_eq(scratch("act", 1 * MIB), p);
  ck_ok(oc_opcache_scratch_k(c, &key, 1 * MIB, &q));
  ck_assert_uint_eq(q, p);
  ck_assert_uint_ne(scratch("other", 1 * MIB), p);
  ck_assert_uint_eq(oc_opcache_scratches(c), 2);
  ck_ok(oc_opcache_scratch_on(c, "act", NULL, 1 * MIB, &q));   /* the default stream's own is another one */
  ck_assert_uint_ne(q, p);
  p = q;
  ck_ok(oc_opcache_scratch_on_k(c, &key, NULL, 1 * MIB, &q));
  ck_assert_uint_eq(q, p);
  ck_assert_uint_eq(oc_opcache_scratches(c), 3);
  ck_assert_uint_eq(stats().retired_bytes, 0);
  close_all();
}
END_TEST

/* Bytes of the pool's live blocks, of which the buffer is the only one. */
static void grows_by_half_at_least(size_t first, size_t then) {
  static unsigned n;
  char tag[16];
  snprintf(tag, sizeof tag, "tag %u", n++);
  uint64_t before = stats().live_bytes, retired = stats().retired_bytes;
  oc_devptr p = scratch(tag, first);
  uint64_t old = stats().live_bytes - before;
  oc_devptr q = scratch(tag, then);
  uint64_t now = stats().live_bytes - before;
  ck_assert_uint_ne(p, q);
  ck_assert_msg(2 * now >= 3 * old && now >= then, "%zu, then %zu: a block of %llu, then one of %llu", first, then,
                (unsigned long long)old, (unsigned long long)now);
  ck_assert_uint_eq(stats().retired_bytes - retired, old);
  ck_assert_uint_eq(scratch(tag, first + first / 2), q);
}

START_TEST(g7_a_larger_one_is_half_as_large_again_at_least) {
  static const size_t sizes[] = {1, 2, 3, 100, 255, 256, 257, 511, 512, 513, 1000, 4096, 65537, 1000000, 3 * MIB + 1};
  open_with((struct fx_options){0});
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    grows_by_half_at_least(sizes[i], sizes[i] + 1);
    grows_by_half_at_least(sizes[i], sizes[i] * 2);
    grows_by_half_at_least(sizes[i], sizes[i] * 10 + 7);
  }
  close_all();
}
END_TEST

static void retired_is_bounded(void) {
  oc_pool_stats s = stats();
  ck_assert_msg(s.retired_bytes <= 2 * s.live_bytes, "%llu bytes retired, %llu live", (unsigned long long)s.retired_bytes,
                (unsigned long long)s.live_bytes);
  ck_assert_uint_eq(s.live_bytes + s.retired_bytes + s.free_bytes, s.arena_bytes);
}

START_TEST(s32_retired_bytes_are_at_most_twice_the_live_ones) {
  open_with((struct fx_options){0});
  for (size_t n = 1; n <= 512; n++) {
    oc_devptr p = scratch("act", n * MIB);
    ck_assert_uint_eq(scratch("act", n * MIB), p);
    retired_is_bounded();
  }
  ck_assert_uint_gt(stats().retired_bytes, 0);
  close_all();
}
END_TEST

START_TEST(g7_small_buffers_are_bounded_too) {
  open_with((struct fx_options){0});
  for (size_t n = 1; n <= 3000; n++) {
    scratch("act", n);
    retired_is_bounded();
  }
  close_all();
}
END_TEST

START_TEST(g7_retired_bytes_show_everywhere) {
  char text[256];
  open_with((struct fx_options){0});
  scratch("act", 1 * MIB);
  scratch("act", 2 * MIB);
  ck_assert_uint_eq(stats().retired_bytes, 1 * MIB);
  ck_assert_uint_eq(stats().live_bytes, 2 * MIB);
  ck_assert_uint_eq(oc_opcache_scratches(c), 1);
  oc_opcache_describe(c, text, sizeof text);
  ck_assert_msg(strstr(text, "scratch buffers: 1, scratch bytes: 2097152, retired bytes: 1048576") != NULL, "%s", text);
  char *report = oc_pool_report_text(pool, 0);
  ck_assert_msg(strstr(report, "scratch act") != NULL && strstr(report, "test_scratch.c") != NULL, "%s", report);
  oc_string_free(report);
  close_all();
}
END_TEST

/* S7: what a graph, or work that is queued, may still use, stays as it is. */
START_TEST(s7_an_outgrown_buffer_stays_alive) {
  open_with((struct fx_options){0});
  oc_devptr old = scratch("act", 1 * MIB), p;
  uint32_t word = 0x01020304, back = 0;
  fx_write(b, old, &word, 4);
  scratch("act", 2 * MIB);
  for (int i = 0; i < 100; i++) {   /* nothing else gets its memory */
    ck_ok(oc_pool_alloc(pool, 512 * KIB, 0, &p));
    ck_assert(p + 512 * KIB <= old || p >= old + 1 * MIB);
  }
  fx_read(b, &back, old, 4);
  ck_assert_uint_eq(back, word);
  ck_status(oc_pool_free(pool, old), OC_E_NOT_OWNED);
  close_all();
}
END_TEST

/* ---- misuse ---- */

START_TEST(g33_nonsense_is_refused) {
  oc_tag_key key = OC_TAG_KEY("act"), none = OC_TAG_KEY(NULL);
  oc_devptr p = 7;
  open_with((struct fx_options){0});
  ck_status(oc_opcache_scratch(NULL, "act", 1, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch(c, NULL, 1, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch(c, "act", 1, NULL), OC_E_INVALID);
  ck_status(oc_opcache_scratch(c, "act", 0, &p), OC_E_INVALID);
  ck_words("oc_opcache_scratch(act): 0 bytes");
  ck_status(oc_opcache_scratch_on(NULL, "act", NULL, 1, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch_on(c, NULL, NULL, 1, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch_on(c, "act", NULL, 0, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch_k(NULL, &key, 1, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch_k(c, NULL, 1, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch_k(c, &none, 1, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch_k(c, &key, 0, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch_on_k(c, &none, NULL, 1, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch_on_k(c, &key, NULL, 1, NULL), OC_E_INVALID);
  ck_status(oc_opcache_scratch(c, "act", SIZE_MAX, &p), OC_E_INVALID);
  ck_assert_uint_eq(p, 7);
  ck_assert_uint_eq(oc_opcache_scratches(c), 0);
  ck_assert_uint_eq(oc_opcache_scratches(NULL), 0);
  ck_assert_uint_eq(fx_calls(b, "alloc"), 0);
  p = scratch("act", 4096);
  ck_status(oc_opcache_scratch(c, "act", SIZE_MAX, &p), OC_E_INVALID);   /* and what was there stays */
  ck_status(oc_opcache_scratch(c, "act", 0, &p), OC_E_INVALID);
  ck_assert_uint_eq(scratch("act", 4096), p);
  ck_assert_uint_eq(stats().retired_bytes, 0);
  ck_status(oc_opcache_release(NULL), OC_E_INVALID);
  close_all();
}
END_TEST

START_TEST(g21_scratch_is_not_the_callers_to_free) {
  open_with((struct fx_options){0});
  oc_devptr p = scratch("act", 4096);
  uint64_t v;
  ck_status(oc_pool_free(pool, p), OC_E_NOT_OWNED);
  ck_status(oc_pool_free_on(pool, p, NULL), OC_E_NOT_OWNED);
  ck_status(oc_pool_free(pool, p + 256), OC_E_INTERIOR);
  ck_status(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 64, p, &v), OC_E_NOT_OWNED);
  ck_assert_uint_eq(scratch("act", 4096), p);
  close_all();
}
END_TEST

/* G8: the per-thread default stream names many streams. Handle 2 on CUDA; here the backend is told so. */
static void name_stream(void *stream) {
  ck_ok(oc_model_use_stream(m, stream));
}

/* Both find that it has no name, and wait for the lock: the second one finds that it has. */
START_TEST(g8_two_threads_name_one_stream) {
  open_with((struct fx_options){0});
  oc_stream s = fx_stream(b);
  struct side sides[2];
  pthread_mutex_lock(&m->lock);
  for (int i = 0; i < 2; i++) side_start(&sides[i], name_stream, s);
  for (int i = 0; i < 2; i++) side_waits(&sides[i]);
  pthread_mutex_unlock(&m->lock);
  for (int i = 0; i < 2; i++) side_join(&sides[i]);
  close_model();
  ck_assert_uint_eq(fx_calls(b, "synchronize"), 1);   /* teardown waited for it once */
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* By all that takes a stream, after the default stream's buffer is there, too. */
static void check_refused(oc_stream s, const char *words) {
  oc_tag_key key = OC_TAG_KEY("act");
  oc_devptr p;
  ck_status(oc_opcache_scratch_on(c, "act", s, 4096, &p), OC_E_INVALID);
  ck_words(words);
  ck_status(oc_opcache_scratch_on_k(c, &key, s, 4096, &p), OC_E_INVALID);
  ck_status(oc_model_use_stream(m, s), OC_E_INVALID);
  ck_status(oc_capture_enter(m, s), OC_E_INVALID);
  oc_derived *d = oc_model_derived(m);
  oc_build *build;
  uint64_t v[2] = {0};
  ck_ok(oc_pool_alloc(pool, 256, 0, &p));
  ck_status(oc_pool_free_on(pool, p, s), OC_E_INVALID);
  ck_status(oc_derived_begin(d, OC_BF16, (uint64_t)(uintptr_t)s, &build, v), OC_MISS);
  ck_status(oc_build_on_stream(build, s), OC_E_INVALID);
  ck_ok(oc_build_commit(build, (uint64_t[2]){p, 0}, NULL));
  ck_status(oc_derived_get_ptr_on(d, OC_BF16, (uint64_t)(uintptr_t)s, s, v), OC_E_INVALID);
  ck_words(words);
  ck_assert_uint_eq(v[0], 0);
}

START_TEST(g8_handles_that_name_many_streams_or_none_are_refused) {
  oc_stream per_thread = (oc_stream)2, none = (oc_stream)UINTPTR_MAX;
  oc_devptr p;
  open_with((struct fx_options){0});
  b->per_thread_stream = per_thread;
  ck_status(oc_opcache_scratch_on(c, "act", per_thread, 4096, &p), OC_E_INVALID);
  ck_status(oc_opcache_scratch_on(c, "act", none, 4096, &p), OC_E_INVALID);
  ck_assert_uint_eq(oc_opcache_scratches(c), 0);
  ck_assert_uint_eq(fx_calls(b, "alloc"), 0);
  scratch_on("act", NULL, 4096);
  scratch("act", 4096);
  check_refused(per_thread, "per-thread default stream");
  check_refused(none, "no stream's handle");
  ck_ok(oc_model_forget_stream(m, none));   /* never named */
  close_all();
}
END_TEST

START_TEST(g3_after_teardown_nothing_is_answered) {
  oc_tag_key key = OC_TAG_KEY("act");
  oc_devptr p = 7;
  open_with((struct fx_options){0});
  scratch("act", 4096);
  ck_ok(oc_opcache_scratch_k(c, &key, 4096, &p));
  scratch_on("act", NULL, 4096);
  ck_ok(oc_model_teardown(m, NULL));
  p = 7;
  uint64_t before = fx_all_calls(b);
  ck_status(oc_opcache_scratch(c, "act", 4096, &p), OC_E_RELEASED);
  ck_status(oc_opcache_scratch(c, "new", 4096, &p), OC_E_RELEASED);
  ck_status(oc_opcache_scratch_k(c, &key, 4096, &p), OC_E_RELEASED);
  ck_status(oc_opcache_scratch_on(c, "act", NULL, 4096, &p), OC_E_RELEASED);
  ck_status(oc_opcache_scratch_on_k(c, &key, NULL, 4096, &p), OC_E_RELEASED);
  ck_status(oc_opcache_release(c), OC_E_RELEASED);
  ck_assert_uint_eq(p, 7);
  ck_assert_uint_eq(fx_all_calls(b), before);
  ck_assert_uint_eq(oc_opcache_scratches(c), 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- G8: streams that go ---- */

START_TEST(g8_all_buffers_of_a_forgotten_stream_go_back_after_its_work) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  open_with((struct fx_options){0});
  oc_stream s = fx_stream(b), other = fx_stream(b);
  fx_stall(b, s, true);
  queue_work(scratch_on("act", s, 1 * MIB), s);
  queue_work(scratch_on("act", s, 4 * MIB), s);   /* one outgrown, which is the stream's as well */
  scratch_on("norm", s, 1 * MIB);
  scratch_on("act", other, 1 * MIB);
  scratch_on("act", other, 2 * MIB);
  scratch("act", 1 * MIB);
  ck_assert_uint_eq(oc_opcache_scratches(c), 4);
  ck_ok(oc_model_forget_stream(m, s));
  ck_assert_uint_eq(oc_opcache_scratches(c), 2);
  ck_assert_uint_eq(stats().retired_bytes, 7 * MIB);
  ck_assert_uint_eq(stats().live_bytes, 3 * MIB);
  fx_stall(b, s, false);
  fx_until(stats().retired_bytes == 1 * MIB);   /* the other stream's */
  fx_stream_free(b, s);
  ck_ok(oc_model_forget_stream(m, other));
  fx_until(stats().retired_bytes == 0);
  ck_assert_uint_eq(stats().live_bytes, 1 * MIB);
  fx_stream_free(b, other);
  close_all();
}
END_TEST

START_TEST(g8_what_a_capture_got_is_retired_when_its_stream_goes) {
  open_with((struct fx_options){0});
  oc_stream s = fx_stream(b);
  scratch_on("act", s, 1 * MIB);
  ck_ok(oc_capture_enter(m, s));
  scratch_on("act", s, 1 * MIB);
  oc_capture_leave(m);
  scratch_on("act", s, 2 * MIB);
  scratch_on("act", s, 4 * MIB);   /* the one of 2 MiB was in no graph */
  ck_assert_uint_eq(stats().retired_bytes, 3 * MIB);
  ck_ok(oc_model_forget_stream(m, s));
  fx_sync(b, s);
  fx_until(stats().retired_bytes == 1 * MIB);
  fx_stream_free(b, s);
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_eq(stats().retired_bytes, 0);
  ck_assert_uint_eq(stats().live_bytes, 0);
  close_all();
}
END_TEST

START_TEST(g8_without_events_they_go_back_when_the_stream_was_waited_for) {
  open_with((struct fx_options){.no_events = true});
  oc_stream s = fx_stream(b);
  queue_work(scratch_on("act", s, 1 * MIB), s);
  queue_work(scratch_on("act", s, 2 * MIB), s);
  ck_ok(oc_model_forget_stream(m, s));
  ck_assert_uint_eq(fx_calls(b, "synchronize"), 1);
  ck_assert_uint_eq(stats().retired_bytes, 0);
  ck_assert_uint_eq(stats().live_bytes, 0);
  close_model();
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* An engine that makes a stream a request, and grows its scratch there each time. */
START_TEST(g8_a_stream_a_request_stays_flat) {
  open_with((struct fx_options){.recycle = true});
  uint64_t arenas = 0;
  for (unsigned i = 0; i < 600; i++) {
    oc_stream s = fx_stream(b);
    queue_work(scratch_on("act", s, 1 * MIB), s);
    queue_work(scratch_on("act", s, 2 * MIB), s);
    ck_ok(oc_model_forget_stream(m, s));
    fx_sync(b, s);   /* with what marks its end */
    fx_stream_free(b, s);
    if (i == 20) arenas = stats().arena_bytes;
  }
  ck_assert_uint_eq(stats().arena_bytes, arenas);
  fx_until(stats().retired_bytes == 0);
  ck_assert_uint_eq(oc_opcache_scratches(c), 0);
  close_all();
}
END_TEST

/* Marking an event may fail: then nothing is handed out too early, and nothing is lost. */
static uint64_t guard_waits(void) {
  oc_model_stats s = {.struct_size = sizeof s};
  ck_ok(oc_model_get_stats(m, &s));
  return s.guard_waits;
}

/* G27: inside a guard the records of forgotten streams pile up; outside they are used again after one wait for many. */
START_TEST(g27_forgetting_inside_a_guard_waits_for_nobody) {
  open_with((struct fx_options){.recycle = true});
  for (int outside = 0; outside < 2; outside++) {
    uint64_t waits = guard_waits();
    if (!outside) oc_guard_enter();
    for (unsigned i = 0; i < 300; i++) {
      oc_stream s = fx_stream(b);
      scratch_on("act", s, 256);
      ck_ok(oc_model_forget_stream(m, s));
      fx_stream_free(b, s);
    }
    if (!outside) oc_guard_leave();
    ck_assert_uint_eq(guard_waits() - waits, outside ? 2 : 0);   /* at the first of them, and 256 later */
  }
  close_all();
}
END_TEST

START_TEST(a_stream_that_cannot_be_marked_keeps_its_buffers_until_graphs_gone) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failing calls"); return; }
  open_with((struct fx_options){0});
  oc_stream s = fx_stream(b);
  scratch_on("act", s, 1 * MIB);
  scratch_on("act", s, 2 * MIB);
  fx_fail(b, "event_record", 2, 2, OC_E_BACKEND);   /* the farewell works, the buffers' events do not */
  ck_ok(oc_model_forget_stream(m, s));
  ck_assert_uint_eq(stats().retired_bytes, 3 * MIB);
  ck_assert_uint_eq(stats().live_bytes, 0);
  fx_stream_free(b, s);
  ck_ok(oc_opcache_release(c));
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_eq(stats().retired_bytes, 0);
  close_all();
}
END_TEST

/* ---- release ---- */

START_TEST(g22_release_gives_all_back_and_calls_miss_afresh) {
  open_with((struct fx_options){0});
  oc_stream s = fx_stream(b);
  oc_kernel k;
  fx_load(m, "test");
  ck_ok(oc_opcache_kernel(c, "test", "add", &k));
  ck_assert(oc_opcache_once(c, "gate"));
  scratch("act", 1 * MIB);
  scratch("act", 2 * MIB);
  scratch_on("act", s, 1 * MIB);
  queue_work(scratch_on("act", s, 2 * MIB), s);
  ck_assert_uint_eq(stats().retired_bytes, 2 * MIB);
  ck_ok(oc_opcache_release(c));
  ck_assert_uint_eq(oc_opcache_scratches(c), 0);
  ck_assert_uint_eq(stats().live_bytes, 0);
  ck_assert_uint_eq(stats().retired_bytes, 0);
  ck_ok(oc_opcache_release(c));   /* idempotent */
  ck_assert_uint_eq(oc_opcache_kernels(c), 1);
  ck_assert(!oc_opcache_once(c, "gate"));
  scratch("act", 512 * KIB);
  ck_assert_uint_eq(stats().live_bytes, 512 * KIB);   /* nothing is remembered of how large it was */
  scratch_on("act", s, 1 * MIB);
  ck_assert_uint_eq(oc_opcache_scratches(c), 2);
  ck_ok(oc_opcache_release(c));
  close_model();
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

static void call_opcache_release(void *arg) {
  ck_ok(oc_opcache_release(arg));
}

/* A reader has what it got before the release, outgrown or not, until its guard ends. */
START_TEST(g22_release_waits_for_guards) {
  open_with((struct fx_options){0});
  struct guarded reader;
  struct side other;
  scratch("act", 1 * MIB);
  scratch("act", 2 * MIB);
  guarded_start(&reader);
  side_start(&other, call_opcache_release, c);
  fx_until(oc_opcache_scratches(c) == 0);
  side_waits(&other);
  ck_assert_uint_eq(stats().live_bytes, 2 * MIB);
  ck_assert_uint_eq(stats().retired_bytes, 1 * MIB);
  guarded_end(&reader);
  side_join(&other);
  ck_assert_uint_eq(stats().live_bytes, 0);
  ck_assert_uint_eq(stats().retired_bytes, 0);
  close_all();
}
END_TEST

START_TEST(g27_release_does_not_wait_inside_a_guard_or_a_capture) {
  open_with((struct fx_options){0});
  oc_devptr p = scratch("act", 4096);
  oc_guard_enter();
  ck_status(oc_opcache_release(c), OC_E_GUARDED);
  ck_assert_uint_eq(scratch("act", 4096), p);
  ck_assert_uint_ne(scratch("act", 100 * MIB), p);   /* growth only asks the driver */
  oc_guard_leave();
  ck_ok(oc_capture_enter(m, NULL));
  ck_status(oc_opcache_release(c), OC_E_CAPTURING);
  oc_capture_leave(m);
  ck_assert_uint_eq(oc_opcache_scratches(c), 1);
  close_all();
}
END_TEST

START_TEST(g28_release_retires_what_a_capture_got) {
  open_with((struct fx_options){0});
  scratch("act", 1 * MIB);
  scratch("norm", 1 * MIB);
  ck_ok(oc_capture_enter(m, NULL));
  scratch("act", 1 * MIB);
  oc_capture_leave(m);
  scratch("act", 2 * MIB);
  ck_ok(oc_capture_enter(m, NULL));
  scratch("act", 2 * MIB);
  oc_capture_leave(m);
  ck_ok(oc_opcache_release(c));
  ck_assert_uint_eq(stats().live_bytes, 0);
  ck_assert_uint_eq(stats().retired_bytes, 3 * MIB);
  ck_ok(oc_opcache_release(c));
  ck_assert_uint_eq(stats().retired_bytes, 3 * MIB);
  oc_devptr p = scratch("act", 1 * MIB);
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_eq(stats().retired_bytes, 0);
  ck_assert_uint_eq(scratch("act", 1 * MIB), p);
  ck_ok(oc_opcache_release(c));
  ck_assert_uint_eq(stats().retired_bytes, 0);   /* what was captured before, in graphs that are gone, counts no more */
  close_all();
}
END_TEST

/* A stream that another thread captures on is not waited for: the blocks may be in its graph. */
struct capturing {
  oc_stream s;
  bool in, leave;   /* atomic */
};

static void *capture_until_told(void *arg) {
  struct capturing *x = arg;
  ck_ok(oc_capture_enter(m, x->s));
  __atomic_store_n(&x->in, true, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&x->leave, __ATOMIC_ACQUIRE)) fx_msleep(1);
  oc_capture_leave(m);
  return NULL;
}

START_TEST(g28_release_beside_a_capture_keeps_the_blocks) {
  open_with((struct fx_options){0});
  struct capturing x = {.s = fx_stream(b)};
  pthread_t thread;
  scratch_on("act", x.s, 1 * MIB);
  scratch("act", 2 * MIB);
  pthread_create(&thread, NULL, capture_until_told, &x);
  fx_until(__atomic_load_n(&x.in, __ATOMIC_ACQUIRE));
  ck_ok(oc_opcache_release(c));
  ck_assert_uint_eq(oc_opcache_scratches(c), 0);
  ck_assert_uint_eq(stats().retired_bytes, 3 * MIB);
  ck_status(oc_model_graphs_gone(m), OC_E_BUSY);
  ck_assert_uint_eq(stats().retired_bytes, 3 * MIB);
  __atomic_store_n(&x.leave, true, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_eq(stats().retired_bytes, 0);
  close_model();
  fx_stream_free(b, x.s);
  fx_close(b);
}
END_TEST

/* ---- graphs_gone beside those who have outgrown buffers in hand ---- */

/* The nth event_record (or synchronize) from now on is held up until `go`. */
struct hold_up {
  oc_stream s;
  const char *entry;
  unsigned nth;
  bool held, go;
};
static bool hold_up(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)arg;
  (void)answer;
  struct hold_up *h = w->hook_arg;
  if (strcmp(entry, h->entry) != 0 || __atomic_sub_fetch(&h->nth, 1, __ATOMIC_ACQ_REL) != 0) return false;
  __atomic_store_n(&h->held, true, __ATOMIC_RELEASE);
  fx_until(__atomic_load_n(&h->go, __ATOMIC_ACQUIRE));
  return false;
}
static void *forget_a_stream(void *arg) {
  struct hold_up *h = arg;
  ck_ok(oc_model_forget_stream(m, h->s));
  return NULL;
}
static void *release_all(void *arg) {
  (void)arg;
  ck_ok(oc_opcache_release(c));
  return NULL;
}

/* Another block at that address, retired for a graph. */
static void retire_again_at(oc_devptr at, size_t bytes) {
  oc_devptr p = 0;
  for (int i = 0; i < 64 && p != at; i++) ck_ok(oc_pool_alloc(pool, bytes, 0, &p));
  ck_assert_uint_eq(p, at);
  ck_ok(oc_capture_enter(m, NULL));
  ck_ok(oc_pool_free(pool, p));
  oc_capture_leave(m);
}

/* forget_stream, or release, has the record of an outgrown buffer in hand when graphs_gone gives its block back; the next
   block there is not theirs. */
static void graphs_go_beside(void *(*call)(void *), struct hold_up *h) {
  struct wrap w;
  pthread_t thread;
  wrap_open(&w, NULL);
  b = w.outer;
  model_on((oc_model_options){0});
  h->s = fx_stream(w.inner);
  oc_devptr old = scratch_on("act", h->s, 64 * KIB);
  scratch_on("act", h->s, 128 * KIB);
  ck_assert_uint_eq(stats().retired_bytes, 64 * KIB);
  w.hook_arg = h;
  w.hook = hold_up;
  pthread_create(&thread, NULL, call, h);
  fx_until(__atomic_load_n(&h->held, __ATOMIC_ACQUIRE));
  ck_ok(oc_model_graphs_gone(m));
  retire_again_at(old, 64 * KIB);
  __atomic_store_n(&h->go, true, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  fx_sync(w.inner, h->s);
  ck_ok(oc_opcache_release(c));   /* nor later */
  ck_assert_uint_eq(stats().retired_bytes, 64 * KIB);
  ck_ok(oc_model_graphs_gone(m));
  ck_assert_uint_eq(stats().retired_bytes, 0);
  close_model();
  fx_stream_free(w.inner, h->s);
  wrap_close(&w);
}

START_TEST(g28_graphs_gone_beside_a_forget) {
  /* events: the farewell's, that of the buffer, that of the outgrown one */
  for (unsigned nth = 2; nth <= 3; nth++) graphs_go_beside(forget_a_stream, &(struct hold_up){.entry = "event_record", .nth = nth});
}
END_TEST

START_TEST(g28_graphs_gone_beside_a_release) {
  graphs_go_beside(release_all, &(struct hold_up){.entry = "synchronize", .nth = 1});
}
END_TEST

/* One that could not be given back then is not put back on the list either. */
START_TEST(g28_graphs_gone_beside_a_forget_that_fails) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failing calls"); return; }
  struct hold_up h = {.entry = "event_record", .nth = 3};
  struct wrap w;
  pthread_t thread;
  wrap_open(&w, NULL);
  b = w.outer;
  model_on((oc_model_options){0});
  h.s = fx_stream(w.inner);
  scratch_on("act", h.s, 64 * KIB);
  scratch_on("act", h.s, 128 * KIB);
  w.hook_arg = &h;
  w.hook = hold_up;
  pthread_create(&thread, NULL, forget_a_stream, &h);
  fx_until(__atomic_load_n(&h.held, __ATOMIC_ACQUIRE));
  ck_ok(oc_model_graphs_gone(m));
  fx_fail(w.inner, "event_record", 1, 1, OC_E_BACKEND);
  __atomic_store_n(&h.go, true, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  char text[200];
  ck_assert_int_gt(oc_opcache_describe(c, text, sizeof text), 0);
  ck_assert_msg(strstr(text, "retired bytes: 0,") != NULL, "%s", text);
  fx_sync(w.inner, h.s);
  ck_assert_uint_eq(stats().retired_bytes, 0);
  close_model();
  fx_stream_free(w.inner, h.s);
  wrap_close(&w);
}
END_TEST

START_TEST(release_that_cannot_drain_keeps_the_blocks) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failing calls"); return; }
  open_with((struct fx_options){0});
  oc_stream s = fx_stream(b);
  scratch_on("act", s, 1 * MIB);
  scratch_on("act", s, 2 * MIB);
  fx_fail(b, "synchronize", 1, 1, OC_E_BACKEND);
  ck_status(oc_opcache_release(c), OC_E_BACKEND);
  ck_assert_uint_eq(stats().retired_bytes, 3 * MIB);   /* its work may still run */
  ck_assert_uint_eq(oc_opcache_scratches(c), 0);
  ck_ok(oc_opcache_release(c));
  ck_assert_uint_eq(stats().retired_bytes, 0);
  close_model();
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

static bool no_memory(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  return true;
}

/* What a release had to keep, for it could not wait, goes back with its stream all the same; where there was no memory to find
   it by then, with graphs_gone. */
START_TEST(g8_what_a_release_kept_goes_back_with_its_stream) {
  open_with((struct fx_options){0});
  for (int starving = 0; starving < 2; starving++) {
    oc_stream s = fx_stream(b);
    scratch_on("act", s, 1 * MIB);
    scratch_on("act", s, 2 * MIB);
    scratch("act", 4 * MIB);
    struct capturing x = {.s = s};
    pthread_t thread;
    pthread_create(&thread, NULL, capture_until_told, &x);
    fx_until(__atomic_load_n(&x.in, __ATOMIC_ACQUIRE));
    if (starving) oci_mem_set_fault(no_memory, NULL);
    ck_ok(oc_opcache_release(c));
    oci_mem_set_fault(NULL, NULL);
    ck_assert_uint_eq(stats().retired_bytes, 7 * MIB);
    __atomic_store_n(&x.leave, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    scratch_on("act", s, 1 * MIB);   /* a new one is the stream's too */
    ck_ok(oc_model_forget_stream(m, s));
    ck_assert_uint_eq(oc_opcache_scratches(c), 0);
    fx_until(stats().retired_bytes == (starving ? 7 : 4) * MIB && stats().live_bytes == 0);
    ck_ok(oc_model_graphs_gone(m));
    ck_assert_uint_eq(stats().retired_bytes, 0);
    fx_stream_free(b, s);
  }
  close_all();
}
END_TEST

/* ---- S8: captures ---- */

START_TEST(s8_growth_in_a_capture_reaches_no_driver) {
  open_with((struct fx_options){0});
  oc_stream s = fx_stream(b);
  oc_tag_key key = OC_TAG_KEY("act");
  oc_devptr p = scratch("act", 1 * MIB), q = scratch_on("act", s, 1 * MIB), out = 7;
  ck_ok(oc_capture_enter(m, s));
  uint64_t before = fx_all_calls(b);
  ck_status(oc_opcache_scratch(c, "act", 2 * MIB, &out), OC_E_CAPTURING);
  ck_words("oc_opcache_scratch(act)");
  ck_words("2097152");
  ck_status(oc_opcache_scratch(c, "new", 1, &out), OC_E_CAPTURING);   /* even where an arena has room */
  ck_status(oc_opcache_scratch_on(c, "act", NULL, 1, &out), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch_on(c, "act", s, 2 * MIB, &out), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch_k(c, &key, 2 * MIB, &out), OC_E_CAPTURING);
  ck_status(oc_opcache_scratch_on_k(c, &key, s, 2 * MIB, &out), OC_E_CAPTURING);
  ck_assert_uint_eq(out, 7);
  ck_assert_uint_eq(scratch("act", 1 * MIB), p);
  ck_assert_uint_eq(scratch_on("act", s, 1 * MIB), q);
  ck_assert_uint_eq(fx_all_calls(b), before);
  oc_capture_leave(m);
  ck_assert_uint_eq(stats().retired_bytes, 0);
  ck_ok(oc_opcache_release(c));
  ck_assert_uint_eq(stats().retired_bytes, 2 * MIB);
  close_model();
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

struct beside {
  oc_stream s;
  unsigned wrong;      /* atomic */
  uint32_t stop;       /* atomic */
};

static void grow_or_capture(void *arg, unsigned i) {
  struct beside *x = arg;
  oc_devptr p;
  if (i == 0) {
    for (size_t n = 1; n < 2000; n++)
      if (oc_opcache_scratch_on(c, "act", x->s, n * 512, &p) != OC_OK) __atomic_add_fetch(&x->wrong, 1, __ATOMIC_RELAXED);
    for (int round = 0; round < 300; round++) {
      char tag[16];
      snprintf(tag, sizeof tag, "t%d", round % 3);
      for (size_t n = 1; n < 10; n++) (void)!oc_opcache_scratch_on(c, tag, x->s, (size_t)round * 4096 + n * 300, &p);
    }
    __atomic_store_n(&x->stop, 1, __ATOMIC_RELAXED);
    return;
  }
  if (oc_capture_enter(m, x->s) != OC_OK) __atomic_add_fetch(&x->wrong, 1, __ATOMIC_RELAXED);
  while (!__atomic_load_n(&x->stop, __ATOMIC_RELAXED)) {
    static const char *const tags[] = {"act", "t0", "t1", "t2"};
    for (int t = 0; t < 4; t++)
      if (oc_opcache_scratch_on(c, tags[t], x->s, 100, &p) != OC_OK) __atomic_add_fetch(&x->wrong, 1, __ATOMIC_RELAXED);
  }
  oc_capture_leave(m);
}

/* A hit stays a hit, in a capture too, while another thread replaces the buffer by a larger one. */
START_TEST(g28_a_warm_hit_is_one_while_the_buffer_grows) {
  open_with((struct fx_options){0});
  struct beside x = {.s = fx_stream(b)};
  static const char *const tags[] = {"act", "t0", "t1", "t2"};
  for (int t = 0; t < 4; t++) scratch_on(tags[t], x.s, 256);
  fx_threads(3, grow_or_capture, &x);
  ck_assert_uint_eq(x.wrong, 0);
  ck_ok(oc_model_graphs_gone(m));
  close_model();
  fx_stream_free(b, x.s);
  fx_close(b);
}
END_TEST

/* ---- many threads ---- */

struct same {
  size_t bytes;
  oc_devptr got[64];
};

static void ask_same(void *arg, unsigned i) {
  struct same *s = arg;
  if (oc_opcache_scratch(c, "act", s->bytes, &s->got[i]) != OC_OK) s->got[i] = 0;
}

START_TEST(g17_growth_at_once_is_one_sequence) {
  open_with((struct fx_options){0});
  fx_delay(b, "alloc", 30000000);
  for (size_t round = 1; round <= 4; round++) {
    struct same s = {.bytes = round * 100 * MIB};
    uint64_t before = fx_calls(b, "alloc");
    fx_threads(16, ask_same, &s);
    for (int i = 0; i < 16; i++) ck_assert_uint_eq(s.got[i], s.got[0]);
    ck_assert_uint_ne(s.got[0], 0);
    ck_assert_uint_le(fx_calls(b, "alloc") - before, 1);
    ck_assert_uint_eq(oc_opcache_scratches(c), 1);
  }
  close_all();
}
END_TEST

static void ask_growing(void *arg, unsigned i) {
  unsigned *wrong = arg;
  uint64_t seed = i;
  oc_devptr p;
  for (int n = 0; n < 500; n++) {
    size_t bytes = 1 + fx_random(&seed) % (64 * KIB) * (size_t)(n / 50 + 1);
    oc_status st = n % 2 ? oc_opcache_scratch(c, "a", bytes, &p) : oc_opcache_scratch_on(c, "b", NULL, bytes, &p);
    if (st != OC_OK) __atomic_add_fetch(wrong, 1, __ATOMIC_RELAXED);
  }
}

START_TEST(g7_growth_from_all_sides_stays_bounded) {
  unsigned wrong = 0;
  open_with((struct fx_options){0});
  fx_threads(8, ask_growing, &wrong);
  ck_assert_uint_eq(wrong, 0);
  retired_is_bounded();
  ck_assert_uint_eq(oc_opcache_scratches(c), 2);
  close_all();
}
END_TEST

/* The hook holds back driver allocations of at least `from` bytes. */
struct gate {
  size_t from;
  unsigned inside, open;   /* atomic */
};

static bool hold_back(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct gate *g = w->hook_arg;
  (void)answer;
  if (strcmp(entry, "alloc") != 0 || arg < g->from) return false;
  __atomic_add_fetch(&g->inside, 1, __ATOMIC_RELAXED);
  while (!__atomic_load_n(&g->open, __ATOMIC_ACQUIRE)) fx_msleep(1);
  return false;
}

static struct wrap wrapped;
static struct gate gate;
static oc_stream streams[40];

static void open_wrapped(void) {
  wrap_open(&wrapped, NULL);
  b = wrapped.outer;
  model_on((oc_model_options){0});
  gate = (struct gate){.from = 100 * MIB};
  wrapped.hook = hold_back;
  wrapped.hook_arg = &gate;
}

static void one_grows_slowly(void *arg, unsigned i) {
  unsigned *right = arg;
  oc_devptr p;
  if (i == 0) {
    if (oc_opcache_scratch_on(c, "act", streams[0], 200 * MIB, &p) == OC_OK) __atomic_add_fetch(right, 1, __ATOMIC_RELAXED);
    return;
  }
  while (!__atomic_load_n(&gate.inside, __ATOMIC_RELAXED)) fx_msleep(1);
  bool good = true;
  /* hits, and what an existing arena can serve: of other tags, of the same tag on other streams and on none */
  good &= oc_opcache_scratch_on(c, "act", streams[0], 4096, &p) == OC_OK;
  good &= oc_opcache_scratch_on(c, "act", streams[1], 8192, &p) == OC_OK;
  good &= oc_opcache_scratch_on(c, "act", NULL, 8192, &p) == OC_OK;
  good &= oc_opcache_scratch(c, "act", 8192, &p) == OC_OK;
  good &= oc_opcache_scratch(c, "norm", 8192, &p) == OC_OK;
  good &= oc_opcache_once(c, "act") && oc_opcache_first_shape(c, "act", 1, 2, 3) && oc_opcache_first_n(c, "act", 1);
  if (good && !__atomic_load_n(&gate.open, __ATOMIC_RELAXED)) __atomic_add_fetch(right, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&gate.open, 1, __ATOMIC_RELEASE);
}

START_TEST(g19_while_one_buffer_is_made_all_others_go_on) {
  unsigned right = 0;
  open_wrapped();
  for (int i = 0; i < 2; i++) {
    streams[i] = fx_stream(b);
    scratch_on("act", streams[i], 4096);
  }
  scratch("act", 4096);
  fx_threads(2, one_grows_slowly, &right);
  ck_assert_uint_eq(right, 2);
  ck_assert_uint_eq(oc_opcache_scratches(c), 5);
  close_model();
  for (int i = 0; i < 2; i++) fx_stream_free(b, streams[i]);
  wrap_close(&wrapped);
}
END_TEST

static void all_grow_slowly(void *arg, unsigned i) {
  oc_devptr p;
  if (i == 0) {
    while (!__atomic_load_n(&gate.inside, __ATOMIC_RELAXED)) fx_msleep(1);
    fx_msleep(50);   /* all others have come as far as they can */
    __atomic_store_n(&gate.open, 1, __ATOMIC_RELEASE);
    return;
  }
  if (oc_opcache_scratch_on(c, "act", streams[i - 1], 100 * MIB + i * 4096, &p) == OC_OK) __atomic_add_fetch((unsigned *)arg, 1, __ATOMIC_RELAXED);
}

START_TEST(many_streams_of_one_tag_grow_at_once) {
  unsigned right = 0;
  open_wrapped();
  for (int i = 0; i < 40; i++) streams[i] = fx_stream(b);
  fx_threads(41, all_grow_slowly, &right);
  ck_assert_uint_eq(right, 40);
  ck_assert_uint_eq(oc_opcache_scratches(c), 40);
  oc_devptr seen[40];
  for (int i = 0; i < 40; i++) {
    seen[i] = scratch_on("act", streams[i], 100 * MIB);
    for (int n = 0; n < i; n++) ck_assert_uint_ne(seen[n], seen[i]);
  }
  close_model();
  for (int i = 0; i < 40; i++) fx_stream_free(b, streams[i]);
  wrap_close(&wrapped);
}
END_TEST

static oc_status of_itself;

static bool come_back(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  oc_devptr p;
  (void)arg;
  (void)answer;
  if (strcmp(entry, "alloc") != 0) return false;
  w->hook = NULL;
  of_itself = oc_opcache_scratch(c, "act", 4096, &p);
  return false;
}

START_TEST(a_backend_that_comes_back_for_the_same_buffer_does_not_hang) {
  open_wrapped();
  wrapped.hook = come_back;
  scratch("act", 4096);
  ck_assert_int_eq(of_itself, OC_E_REENTRANT);
  close_model();
  wrap_close(&wrapped);
}
END_TEST

/* A tag that is new to the model has no room for its record: said of the call, there being no tag yet. */
static bool no_memory_at_all(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  return true;
}

START_TEST(g33_a_new_tag_needs_memory) {
  oc_devptr p = 7;
  char name[24];
  bool met = false;
  open_with((struct fx_options){0});
  ck_status(oc_opcache_scratch(NULL, "act", 1, &p), OC_E_INVALID);   /* this thread's error text is there */
  oci_mem_set_fault(no_memory_at_all, NULL);
  for (unsigned n = 0; n < 10000 && !met; n++) {   /* records are made several at a time */
    snprintf(name, sizeof name, "new tag %u", n);
    oc_tag_key key = OC_TAG_KEY(name);
    ck_status(oc_opcache_scratch_k(c, &key, 4096, &p), OC_E_HOST_NOMEM);
    met = strstr(oc_last_error(), "oc_opcache_scratch_k: out of host memory");
  }
  oci_mem_set_fault(NULL, NULL);
  ck_assert(met);
  ck_assert_uint_eq(p, 7);
  ck_assert_uint_eq(oc_opcache_scratches(c), 0);
  scratch(name, 4096);
  close_all();
}
END_TEST

/* While a stream's buffer is made others take the room in the tag's map, and then host memory is out. */
static unsigned others;
static bool starved;
static char crowded[16];

static bool starve(void *arg, size_t bytes) {
  (void)arg;
  return starved && bytes > sizeof(struct map_table) + sizeof(struct map_line);   /* not the record of an arena */
}

static bool crowd_the_map(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)w;
  (void)answer;
  if (strcmp(entry, "alloc") != 0 || arg < 100 * MIB) return false;
  for (unsigned i = 1; i <= others; i++) scratch_on(crowded, streams[i], 256);
  starved = true;
  return false;
}

START_TEST(g33_room_in_the_map_may_go_while_a_buffer_is_made) {
  bool met = false;
  oc_devptr p = 7;
  open_wrapped();
  close_model();
  model_on((oc_model_options){.arena_min = 2 * MIB, .arena_max = 2 * MIB});   /* each large buffer is the driver's to make */
  ck_status(oc_opcache_scratch(NULL, "act", 1, &p), OC_E_INVALID);   /* this thread's error text is there */
  wrapped.hook = crowd_the_map;
  for (int i = 0; i < 40; i++) streams[i] = fx_stream(wrapped.inner);
  oci_mem_set_fault(starve, NULL);
  for (unsigned n = 1; n < 40 && !met; n++) {
    others = n;
    snprintf(crowded, sizeof crowded, "tag %u", n);
    scratch_on("an arena with room", streams[0], 256);
    p = 7;
    oc_status st = oc_opcache_scratch_on(c, crowded, streams[0], 100 * MIB, &p);
    starved = false;
    met = st == OC_E_HOST_NOMEM && strstr(oc_last_error(), crowded);
  }
  oci_mem_set_fault(NULL, NULL);
  ck_assert(met);
  ck_assert_uint_eq(p, 7);
  others = 0;
  oc_pool_stats s = stats();
  ck_ok(oc_opcache_scratch_on(c, crowded, streams[0], 100 * MIB, &p));   /* the block that was made is free again */
  ck_assert_uint_eq(stats().arenas, s.arenas);
  ck_assert_uint_eq(stats().live_blocks, s.live_blocks + 1);
  close_model();
  for (int i = 0; i < 40; i++) fx_stream_free(wrapped.inner, streams[i]);
  wrap_close(&wrapped);
}
END_TEST

/* A capture that asks for a buffer which another thread is just publishing: it waits for that, and has it. */
struct asked {
  oc_status st;
  oc_devptr p;
};
static struct side asker;
static struct asked asked;

static void ask_in_capture(void *arg) {
  struct asked *a = arg;
  ck_ok(oc_capture_enter(m, streams[39]));
  a->st = oc_opcache_scratch_on(c, crowded, streams[0], 100 * MIB, &a->p);
  oc_capture_leave(m);
}

/* In the growth of the tag's map, of which nobody sees anything before the lock is given back. */
static bool ask_meanwhile(void *arg, size_t bytes) {
  if (!starve(arg, bytes)) return false;
  starved = false;
  side_start(&asker, ask_in_capture, &asked);
  side_waits(&asker);
  return false;
}

START_TEST(g28_a_buffer_may_be_published_while_a_capture_asks) {
  oc_devptr p = 0;
  open_wrapped();
  wrapped.hook = crowd_the_map;
  for (int i = 0; i < 40; i++) streams[i] = fx_stream(wrapped.inner);
  oci_mem_set_fault(ask_meanwhile, NULL);
  for (others = 1; others < 39 && !asker.fn; others++) {
    snprintf(crowded, sizeof crowded, "tag %u", others);
    close_model();   /* each large buffer is the driver's to make */
    model_on((oc_model_options){.arena_min = 2 * MIB, .arena_max = 2 * MIB});
    scratch_on("an arena with room", streams[0], 256);
    ck_ok(oc_opcache_scratch_on(c, crowded, streams[0], 100 * MIB, &p));
    starved = false;
  }
  oci_mem_set_fault(NULL, NULL);
  ck_assert_msg(asker.fn != NULL, "no map had to grow");
  side_join(&asker);
  ck_ok(asked.st);
  ck_assert_uint_eq(asked.p, p);
  ck_ok(oc_model_graphs_gone(m));
  close_model();
  for (int i = 0; i < 40; i++) fx_stream_free(wrapped.inner, streams[i]);
  wrap_close(&wrapped);
}
END_TEST

/* ---- G17: out of memory ---- */

START_TEST(g17_out_of_memory_leaves_the_old_buffer_in_place) {
  open_with((struct fx_options){.device_bytes = 256 * MIB, .no_managed = true});
  oc_stream s = fx_stream(b);
  oc_devptr p = scratch("act", 20 * MIB), q = scratch_on("act", s, 20 * MIB), out = 7;
  for (int i = 0; i < 3; i++) {
    ck_status(oc_opcache_scratch(c, "act", 300 * MIB, &out), OC_E_DEVICE_NOMEM);
    ck_status(oc_opcache_scratch_on(c, "act", s, 300 * MIB, &out), OC_E_DEVICE_NOMEM);
    ck_assert_uint_eq(out, 7);
    ck_assert_uint_eq(scratch("act", 20 * MIB), p);
    ck_assert_uint_eq(scratch_on("act", s, 20 * MIB), q);
  }
  ck_assert_uint_eq(oc_opcache_scratches(c), 2);
  ck_assert_uint_eq(stats().retired_bytes, 0);
  ck_assert_uint_eq(stats().live_bytes, 40 * MIB);
  ck_assert(!oc_opcache_alloc_fell_back(c));
  ck_assert_uint_ne(scratch("act", 30 * MIB), p);   /* what fits still grows */
  close_model();
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

START_TEST(g17_only_out_of_memory_moves_the_latch) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failing calls"); return; }
  static const oc_status fails[] = {OC_E_BACKEND, OC_E_INVALID, OC_E_UNSUPPORTED, OC_E_CAPTURING};
  oc_devptr p;
  open_with((struct fx_options){0});
  for (size_t i = 0; i < sizeof fails / sizeof *fails; i++) {
    fx_fail(b, "alloc", 1, 1, fails[i]);
    ck_status(oc_opcache_scratch(c, "act", 4096, &p), fails[i]);
    ck_words("alloc(");
    ck_assert(!oc_opcache_alloc_fell_back(c));
    ck_assert_uint_eq(oc_opcache_scratches(c), 0);
  }
  ck_assert_uint_eq(fx_calls(b, "alloc_managed"), 0);
  scratch("act", 4096);
  fx_fail(b, "alloc", 1, 0, OC_E_DEVICE_NOMEM);
  ck_ok(oc_opcache_scratch(c, "act", 200 * MIB, &p));
  ck_assert(oc_opcache_alloc_fell_back(c));
  ck_assert_uint_eq(stats().fell_back, 1);
  ck_assert_uint_ge(stats().managed_arenas, 1);
  uint64_t tries = fx_calls(b, "alloc");
  scratch("norm", 200 * MIB);
  ck_assert_uint_eq(fx_calls(b, "alloc"), tries);   /* the driver is not asked for device memory again */
  fx_fail(b, "alloc", 0, 0, OC_OK);
  oc_model *next = fx_model(b);
  ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(next)));   /* the latch is the model's */
  ck_ok(oc_opcache_scratch(oc_model_opcache(next), "act", 4096, &p));
  ck_assert_uint_gt(fx_calls(b, "alloc"), tries);
  ck_ok(oc_model_destroy(next));
  close_all();
}
END_TEST

static unsigned lines;

static void count_line(void *arg, int level, const char *line) {
  (void)arg;
  (void)level;
  ck_assert_msg(strstr(line, "managed") != NULL, "%s", line);
  lines++;
}

START_TEST(g17_a_noted_fallback_makes_new_arenas_managed) {
  char text[256];
  open_with((struct fx_options){0});
  oc_opcache_note_alloc_fallback(NULL);
  ck_assert(!oc_opcache_alloc_fell_back(NULL));
  ck_assert(!oc_opcache_alloc_fell_back(c));
  scratch("act", 1 * MIB);
  oc_opcache_describe(c, text, sizeof text);
  ck_assert_msg(strstr(text, "fell back: no") != NULL, "%s", text);
  oc_opcache_note_alloc_fallback(c);
  oc_opcache_note_alloc_fallback(c);
  ck_assert(oc_opcache_alloc_fell_back(c));
  uint64_t device = fx_calls(b, "alloc");
  scratch("norm", 1 * MIB);   /* the arena that is there has room */
  ck_assert_uint_eq(stats().managed_arenas, 0);
  scratch("big", 200 * MIB);
  ck_assert_uint_eq(stats().managed_arenas, 1);
  ck_assert_uint_eq(fx_calls(b, "alloc"), device);
  ck_assert_uint_eq(fx_calls(b, "alloc_managed"), 1);
  oc_opcache_describe(c, text, sizeof text);
  ck_assert_msg(strstr(text, "fell back: yes") != NULL, "%s", text);
  ck_ok(oc_model_teardown(m, NULL));
  ck_assert(!oc_opcache_alloc_fell_back(c));
  oc_opcache_note_alloc_fallback(c);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

static void noting_has_no_effect(void) {
  oc_devptr p;
  lines = 0;
  oc_set_log(count_line, NULL);
  oc_opcache_note_alloc_fallback(c);
  oc_set_log(NULL, NULL);
  ck_assert_uint_eq(lines, 1);
  ck_assert(!oc_opcache_alloc_fell_back(c));
  scratch("act", 1 * MIB);
  ck_assert_uint_eq(fx_calls(b, "alloc"), 1);
  ck_status(oc_opcache_scratch(c, "act", 600 * MIB, &p), OC_E_DEVICE_NOMEM);
  ck_assert(!oc_opcache_alloc_fell_back(c));
  ck_assert_uint_eq(fx_calls(b, "alloc_managed"), 0);
}

START_TEST(s15_where_it_is_forbidden_a_noted_fallback_has_no_effect) {
  b = fx_open(&(struct fx_options){.device_bytes = 512 * MIB});
  model_on((oc_model_options){.flags = OC_MODEL_NO_MANAGED});
  noting_has_no_effect();
  close_all();
}
END_TEST

START_TEST(s15_where_it_is_unsupported_a_noted_fallback_has_no_effect) {
  open_with((struct fx_options){.device_bytes = 512 * MIB, .no_managed = true});
  noting_has_no_effect();
  close_all();
}
END_TEST

/* ---- host memory ---- */

static unsigned allocations, fail_at;

static bool fail_nth(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  return ++allocations == fail_at;
}

START_TEST(g33_host_memory_may_run_out_anywhere) {
  oc_devptr p, first = 0;
  unsigned failed = 0;
  open_with((struct fx_options){0});
  oc_stream s = fx_stream(b);
  ck_status(oc_opcache_scratch(NULL, "act", 1, &p), OC_E_INVALID);   /* this thread's error text is there */
  oci_mem_set_fault(fail_nth, NULL);
  for (int way = 0; way < 3; way++) {
    for (unsigned n = 1;; n++) {
      char tag[24];
      snprintf(tag, sizeof tag, "way%d-%u", way, n);
      oc_tag_key key = OC_TAG_KEY(tag);
      fail_at = 0;
      if (way == 2) first = scratch(tag, 4096);   /* growth of one that is there */
      oc_pool_stats before = stats();
      size_t buffers = oc_opcache_scratches(c);
      allocations = 0;
      fail_at = n;
      oc_status st = way == 0 ? oc_opcache_scratch_k(c, &key, 4096, &p) : way == 1 ? oc_opcache_scratch_on(c, tag, s, 4096, &p)
                                                                        : oc_opcache_scratch(c, tag, 200 * MIB, &p);
      fail_at = 0;
      if (st == OC_OK && allocations < n) break;
      if (st == OC_OK) continue;
      failed++;
      ck_assert_msg(st == OC_E_HOST_NOMEM, "%s: %s", oc_status_name(st), oc_last_error());
      ck_assert_uint_eq(stats().live_blocks, before.live_blocks);
      ck_assert_uint_eq(stats().retired_bytes, before.retired_bytes);
      ck_assert_uint_eq(oc_opcache_scratches(c), buffers);
      if (way == 2) ck_assert_uint_eq(scratch(tag, 4096), first);
      ck_ok(oc_pool_check(pool));
    }
  }
  oci_mem_set_fault(NULL, NULL);
  ck_assert_uint_ge(failed, 6);
  close_model();
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

START_TEST(g1_a_hit_asks_nobody_and_allocates_nothing) {
  oc_tag_key key = OC_TAG_KEY("act");
  oc_devptr p;
  open_with((struct fx_options){0});
  oc_stream s = fx_stream(b);
  scratch("act", 4096);
  scratch_on("act", s, 4096);
  ck_ok(oc_opcache_scratch_k(c, &key, 4096, &p));
  oci_mem_set_fault(fail_nth, NULL);
  fail_at = allocations = 0;
  uint64_t before = fx_all_calls(b);
  for (int i = 0; i < 1000; i++) {
    scratch("act", 4096);
    scratch_on("act", s, 1);
    ck_ok(oc_opcache_scratch_k(c, &key, 4096, &p));
    ck_ok(oc_opcache_scratch_on_k(c, &key, s, 4096, &p));
  }
  ck_assert_uint_eq(allocations, 0);
  ck_assert_uint_eq(fx_all_calls(b), before);
  oci_mem_set_fault(NULL, NULL);
  close_model();
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {
    g7_what_fits_is_the_same_buffer, g7_a_larger_one_is_half_as_large_again_at_least,
    s32_retired_bytes_are_at_most_twice_the_live_ones, g7_small_buffers_are_bounded_too, g7_retired_bytes_show_everywhere,
    s7_an_outgrown_buffer_stays_alive, g33_nonsense_is_refused, g21_scratch_is_not_the_callers_to_free,
    g8_two_threads_name_one_stream, g8_handles_that_name_many_streams_or_none_are_refused, g3_after_teardown_nothing_is_answered,
    g8_all_buffers_of_a_forgotten_stream_go_back_after_its_work, g8_what_a_capture_got_is_retired_when_its_stream_goes,
    g8_without_events_they_go_back_when_the_stream_was_waited_for, g8_a_stream_a_request_stays_flat,
    g27_forgetting_inside_a_guard_waits_for_nobody, g33_room_in_the_map_may_go_while_a_buffer_is_made,
    g28_a_buffer_may_be_published_while_a_capture_asks, g33_a_new_tag_needs_memory,
    a_stream_that_cannot_be_marked_keeps_its_buffers_until_graphs_gone, g22_release_gives_all_back_and_calls_miss_afresh,
    g22_release_waits_for_guards, g27_release_does_not_wait_inside_a_guard_or_a_capture, g28_release_retires_what_a_capture_got,
    g28_graphs_gone_beside_a_forget, g28_graphs_gone_beside_a_release, g28_graphs_gone_beside_a_forget_that_fails,
    g28_release_beside_a_capture_keeps_the_blocks, release_that_cannot_drain_keeps_the_blocks,
    g8_what_a_release_kept_goes_back_with_its_stream, s8_growth_in_a_capture_reaches_no_driver,
    g28_a_warm_hit_is_one_while_the_buffer_grows, g17_growth_at_once_is_one_sequence, g7_growth_from_all_sides_stays_bounded,
    g19_while_one_buffer_is_made_all_others_go_on, many_streams_of_one_tag_grow_at_once,
    a_backend_that_comes_back_for_the_same_buffer_does_not_hang, g17_out_of_memory_leaves_the_old_buffer_in_place,
    g17_only_out_of_memory_moves_the_latch, g17_a_noted_fallback_makes_new_arenas_managed,
    s15_where_it_is_forbidden_a_noted_fallback_has_no_effect, s15_where_it_is_unsupported_a_noted_fallback_has_no_effect,
    g33_host_memory_may_run_out_anywhere, g1_a_hit_asks_nobody_and_allocates_nothing,
  };
  Suite *s = suite_create("scratch");
  TCase *t = tcase_create("scratch");
  tcase_set_timeout(t, 20);
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) tcase_add_test(t, tests[i]);
  suite_add_tcase(s, t);
  return fx_run(s);
}
