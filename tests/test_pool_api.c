/* SPDX-License-Identifier: MIT */
/* The pool through its public face (G16 to G21; S12 to S15, S34): blocks, wrong frees, the latch, figures, reports. */
#include "config.h"

#include <jansson.h>
#include <pthread.h>
#include <string.h>

#include "tests/wrap.h"

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)
#define GiB ((size_t)1 << 30)

static oc_pool_stats stats(oc_model *m) {
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &s));
  ck_assert_uint_eq(s.live_bytes + s.retired_bytes + s.free_bytes, s.arena_bytes);   /* G16 */
  ck_assert_uint_le(s.largest_free, s.free_bytes);
  ck_assert_uint_ge(s.peak_live_bytes, s.live_bytes);
  ck_ok(oc_pool_check(oc_model_pool(m)));
  return s;
}

static oc_devptr block(oc_model *m, size_t bytes) {
  oc_devptr p;
  ck_ok(oc_pool_alloc(oc_model_pool(m), bytes, 0, &p));
  return p;
}

/* ---- G16 ---- */

START_TEST(g16_alignment_is_of_the_absolute_address) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  for (size_t align = 1; align <= 64 * MiB; align *= 2) {
    for (size_t bytes = 1; bytes < 3 * MiB; bytes = bytes * 7 + 3) {
      oc_devptr p;
      ck_ok(oc_pool_alloc(oc_model_pool(m), bytes, align, &p));
      ck_assert_uint_eq(p % (align < 256 ? 256 : align), 0);
    }
  }
  stats(m);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* A driver whose addresses are hardly aligned. */
static oc_devptr odd_next = ((oc_devptr)1 << 40) + 256;
static oc_status odd_alloc(void *self, size_t n, oc_devptr *out) {
  (void)self;
  *out = odd_next;
  odd_next += n + 512;
  return OC_OK;
}
static oc_status odd_free(void *self, oc_devptr p) {
  (void)self;
  (void)p;
  return OC_OK;
}
START_TEST(g16_alignment_over_odd_bases) {
  oc_backend_ops ops = {.struct_size = sizeof ops, .alloc = odd_alloc, .free = odd_free};
  oc_backend *b;
  ck_ok(oc_backend_create(&ops, NULL, &b));
  oc_model *m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 4 * MiB});
  for (size_t align = 256; align <= 16 * MiB; align *= 4) {
    oc_devptr p, q;
    ck_ok(oc_pool_alloc(oc_model_pool(m), 100 * KiB, align, &p));
    ck_ok(oc_pool_alloc(oc_model_pool(m), 2 * MiB, align, &q));   /* one of its own */
    ck_assert_uint_eq(p % align, 0);
    ck_assert_uint_eq(q % align, 0);
    ck_assert(p + 100 * KiB <= q || q + 2 * MiB <= p);
  }
  stats(m);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
}
END_TEST

START_TEST(g16_zero_and_overflow_are_invalid_and_ask_nobody) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p = 42;
  const struct { size_t bytes, align; } bad[] = {
    {0, 0}, {0, 256}, {SIZE_MAX, 0}, {SIZE_MAX - 254, 256}, {SIZE_MAX / 2, SIZE_MAX / 2 + 1}, {4096, 3}, {4096, 257},
    {4096, SIZE_MAX}, {4096, 768},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    oc_status st = oc_pool_alloc(oc_model_pool(m), bad[i].bytes, bad[i].align, &p);
    ck_assert_msg(st == OC_E_INVALID || (bad[i].bytes > SIZE_MAX / 4 && st == OC_E_DEVICE_NOMEM), "%zu, %zu: %s", bad[i].bytes,
                  bad[i].align, oc_status_name(st));
    ck_assert_str_ne(oc_last_error(), "");
  }
  ck_status(oc_pool_alloc(oc_model_pool(m), SIZE_MAX, 0, &p), OC_E_INVALID);
  ck_status(oc_pool_alloc(oc_model_pool(m), SIZE_MAX - 4096, 0, &p), OC_E_INVALID);   /* as an arena it overflows */
  ck_status(oc_pool_alloc_owned(oc_model_pool(m), NULL, 16, 0, &p), OC_E_INVALID);
  ck_status(oc_pool_alloc_owned(oc_model_pool(m), "", 16, 0, &p), OC_E_INVALID);
  ck_assert_uint_eq(p, 42);
  ck_assert_uint_eq(fx_calls(b, "alloc") + fx_calls(b, "alloc_managed"), 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(g16_blocks_lie_apart_and_in_one_arena) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB});
  enum { N = 300 };
  oc_devptr p[N];
  size_t bytes[N];
  uint32_t word;
  for (uint32_t i = 0; i < N; i++) {
    bytes[i] = 4 + (size_t)i * 997 % 60000;
    p[i] = block(m, bytes[i]);
    fx_write(b, p[i], &i, sizeof i);   /* the device refuses what is in no one allocation */
    fx_write(b, p[i] + bytes[i] - 4, &i, sizeof i);
  }
  for (uint32_t i = 0; i < N; i++) {
    fx_read(b, &word, p[i] + bytes[i] - 4, sizeof word);
    ck_assert_uint_eq(word, i);
    for (uint32_t k = 0; k < i; k++) ck_assert(p[i] + bytes[i] <= p[k] || p[k] + bytes[k] <= p[i]);
  }
  oc_pool_stats s = stats(m);
  ck_assert_uint_eq(s.live_blocks, N);
  for (uint32_t i = 0; i < N; i++) ck_ok(oc_pool_free(oc_model_pool(m), p[(i * 7) % N]));
  s = stats(m);
  ck_assert_uint_eq(s.live_blocks + s.live_bytes, 0);
  ck_assert_uint_eq(s.free_bytes, s.arena_bytes);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- G21 ---- */

START_TEST(g21_wrong_frees_have_their_status_and_reach_no_driver) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *other = fx_model(b);
  oc_pool *pool = oc_model_pool(m);
  oc_devptr p = block(m, 1000), gone = block(m, 5000), scratch, derived = block(m, 300), q, foreign = block(other, 256);
  oc_build *build;
  uint64_t out[2];
  ck_ok(oc_pool_free(pool, gone));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 4096, &scratch));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, 1, derived, NULL));
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 2, &build, out), OC_MISS);
  ck_ok(oc_build_alloc(build, 700, 0, &q));
  const struct { oc_devptr ptr; oc_status want; } bad[] = {
    {0, OC_E_INVALID},           {1, OC_E_NOT_OWNED},          {UINT64_MAX, OC_E_NOT_OWNED},  {p + 1, OC_E_INTERIOR},
    {p + 256, OC_E_INTERIOR},    {p + 999, OC_E_INTERIOR},     {gone, OC_E_NOT_OWNED},        {scratch, OC_E_NOT_OWNED},
    {scratch + 8, OC_E_INTERIOR}, {derived, OC_E_NOT_OWNED},   {derived + 1, OC_E_INTERIOR},  {q, OC_E_NOT_OWNED},
    {foreign, OC_E_NOT_OWNED},   {(oc_devptr)(uintptr_t)&b, OC_E_NOT_OWNED},
  };
  uint64_t live = stats(m).live_blocks, calls = fx_all_calls(b);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_status(oc_pool_free(pool, bad[i].ptr), bad[i].want);
    if (bad[i].ptr > 1) ck_words("0x");
    ck_assert_uint_eq(fx_all_calls(b), calls);
    ck_status(oc_pool_free_on(pool, bad[i].ptr, NULL), bad[i].want);
    ck_assert_uint_eq(fx_calls(b, "free") + fx_calls(b, "event_record"), 0);
    ck_status(oc_pool_forget_external(pool, bad[i].ptr ? bad[i].ptr : 1), OC_E_NOT_OWNED);
  }
  ck_assert_uint_eq(stats(m).live_blocks, live);
  ck_ok(oc_pool_free(pool, p));
  ck_status(oc_pool_free(pool, p), OC_E_NOT_OWNED);
  ck_words("freed before");
  oc_build_abort(build);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_model_destroy(other));
  fx_close(b);
}
END_TEST

START_TEST(g21_owned_blocks_may_be_freed) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p;
  ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "weights", 4096, 0, &p));
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "weights", 4096, 0, &p));
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, NULL));
  fx_sync(b, NULL);
  ck_assert_uint_eq(stats(m).retired_bytes, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- G20 ---- */

START_TEST(g20_free_on_waits_for_what_is_queued_now) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB});
  oc_stream s = fx_stream(b);
  oc_devptr p = block(m, 2 * MiB);
  fx_stall(b, s, true);
  ck_ok(oc_backend_table(b)->memset(oc_backend_self(b), p, 1, 4096, s));
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, s));
  ck_status(oc_pool_free_on(oc_model_pool(m), p, s), OC_E_NOT_OWNED);
  ck_status(oc_pool_free(oc_model_pool(m), p), OC_E_NOT_OWNED);
  ck_words("waits");
  oc_pool_stats st = stats(m);
  ck_assert_uint_eq(st.retired_bytes, 2 * MiB);
  ck_assert_uint_eq(st.live_blocks, 0);
  ck_assert_uint_ne(block(m, 2 * MiB), p);
  fx_stall(b, s, false);
  fx_sync(b, s);
  ck_assert_uint_eq(stats(m).retired_bytes, 0);            /* collected by stats */
  ck_assert_uint_eq(block(m, 2 * MiB), p);                 /* and used again before the driver is asked */
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

START_TEST(g20_streams_do_not_hold_each_other_up) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream slow = fx_stream(b), fast = fx_stream(b);
  oc_devptr p = block(m, 4096), q = block(m, 8192);
  fx_stall(b, slow, true);
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, slow));
  ck_ok(oc_pool_free_on(oc_model_pool(m), q, fast));
  fx_sync(b, fast);
  ck_assert_uint_eq(stats(m).retired_bytes, 4096);
  fx_stall(b, slow, false);
  ck_ok(oc_model_destroy(m));
  fx_stream_free(b, slow);
  fx_stream_free(b, fast);
  fx_close(b);
}
END_TEST

/* Streams by the hundred, that a driver only names: their work is never done. */
static bool never_done(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)w, (void)arg;
  bool query = strcmp(entry, "event_query") == 0;
  *answer = query ? OC_MISS : OC_OK;
  return query || strcmp(entry, "capturing") == 0 || strcmp(entry, "event_record") == 0 || strcmp(entry, "synchronize") == 0;
}

static unsigned queries_of_an_allocation(unsigned streams) {
  static struct wrap w;
  wrap_open(&w, NULL);
  w.hook = never_done;
  oc_model *m = fx_model(w.outer);
  for (uintptr_t i = 1; i <= streams; i++) ck_ok(oc_pool_free_on(oc_model_pool(m), block(m, 256), (oc_stream)(i << 12)));
  wrap_forget(&w);
  block(m, 256);
  unsigned queries = wrap_calls(&w, "event_query");
  (void)stats(m);
  ck_assert_uint_eq(wrap_calls(&w, "event_query"), queries + streams);   /* figures ask them all */
  ck_ok(oc_model_destroy(m));
  wrap_close(&w);
  return queries;
}

START_TEST(g20_an_allocation_asks_few_streams) {
  ck_assert_uint_ge(queries_of_an_allocation(8), 1);
  ck_assert_uint_le(queries_of_an_allocation(8), 4);
  ck_assert_uint_eq(queries_of_an_allocation(800), queries_of_an_allocation(8));
}
END_TEST

START_TEST(g20_a_free_on_that_fails_keeps_the_block) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p = block(m, 4096);
  const char *const entries[] = {"event_create", "event_record", "capturing"};
  for (int i = 0; i < 3; i++) {
    fx_fail(b, entries[i], 1, 1, OC_E_BACKEND);
    ck_assert_int_lt(oc_pool_free_on(oc_model_pool(m), p, NULL), 0);
    ck_assert_uint_eq(stats(m).live_blocks, 1);
  }
  fx_fail(b, "event_create", 0, 0, OC_OK);
  fx_fail(b, "capturing", 1, 1, OC_E_INVALID);   /* no stream that captures: the record says what is wrong, if anything is */
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, NULL));
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(g20_without_events_a_drain_collects) {
  oc_backend *b = fx_open(&(struct fx_options){.no_events = true});
  oc_model *m = fx_model(b);
  ck_ok(oc_pool_free_on(oc_model_pool(m), block(m, 4096), NULL));
  ck_assert_uint_eq(stats(m).retired_bytes, 4096);
  fx_sync(b, NULL);
  ck_assert_uint_eq(stats(m).retired_bytes, 4096);
  ck_ok(oc_opcache_release(oc_model_opcache(m)));
  ck_assert_uint_eq(stats(m).retired_bytes, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- G17: the latch ---- */

/* Device memory is out from some alloc on. The calls to the driver are counted one by one. */
START_TEST(g17_the_sequence_up_to_the_latch) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b), *next;
  oc_devptr p = block(m, 64 * MiB);
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  (void)block(m, 4096);
  uint64_t allocs = fx_calls(b, "alloc");
  fx_fail(b, "alloc", 1, 0, OC_E_DEVICE_NOMEM);
  oc_devptr q = block(m, 100 * MiB);                                /* managed now */
  ck_assert(oc_opcache_alloc_fell_back(oc_model_opcache(m)));
  ck_assert_uint_le(fx_calls(b, "alloc") - allocs, 3);              /* asked, asked again, a smaller one */
  ck_assert_uint_eq(fx_calls(b, "alloc_managed"), 1);
  oc_pool_stats s = stats(m);
  ck_assert_uint_eq(s.fell_back, 1);
  ck_assert_uint_eq(s.managed_arenas, 1);
  ck_assert_uint_eq(s.managed_bytes, 100 * MiB);
  ck_assert_uint_gt(s.driver_alloc_failures, 0);
  allocs = fx_calls(b, "alloc");
  fx_fail(b, "alloc", 0, 0, OC_OK);
  block(m, 300 * MiB);
  ck_assert_uint_eq(fx_calls(b, "alloc"), allocs);                  /* the device is not asked again, though it has memory */
  ck_assert_uint_eq(stats(m).managed_arenas, 2);
  (void)q;
  next = fx_model(b);                                               /* the latch is the model's */
  block(next, 4096);
  ck_assert_uint_eq(fx_calls(b, "alloc"), allocs + 1);
  ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(next)));
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_model_destroy(next));
  fx_close(b);
}
END_TEST

START_TEST(g17_an_arena_that_just_fits_halves_arena_max) {
  oc_backend *b = fx_open(&(struct fx_options){.device_bytes = 100 * MiB});
  oc_model *m = fx_model(b);
  block(m, 10 * MiB);                          /* 64 MiB */
  block(m, 20 * MiB);
  block(m, 20 * MiB);
  block(m, 12 * MiB);
  oc_devptr p = block(m, 20 * MiB);            /* 64 MiB do not fit any more, 20 do */
  (void)p;
  ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
  ck_assert_uint_eq(fx_used(b), 84 * MiB);
  ck_assert_uint_eq(stats(m).managed_arenas, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Nothing else moves it: each other answer is the call's, and the next call asks the device again (S28 too). */
START_TEST(g17_only_out_of_memory_moves_the_latch) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  const oc_status others[] = {OC_E_BACKEND, OC_E_INVALID, OC_E_UNSUPPORTED, OC_E_DEVICE_LOST, OC_E_HOST_NOMEM, OC_E_CAPTURING};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    if (others[i] == OC_E_HOST_NOMEM && fx_which() == FX_CUDA) {
      fx_skip("the driver has one number for both memories that run out");
      continue;
    }
    oc_backend *b = fx_open(NULL);
    oc_model *m = fx_model(b);
    oc_devptr p = 42;
    fx_fail(b, "alloc", 1, 1, others[i]);
    ck_status(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p), others[i]);
    ck_words("alloc");
    ck_assert_uint_eq(p, 42);
    ck_assert_uint_eq(fx_calls(b, "alloc"), 1);
    ck_assert_uint_eq(fx_calls(b, "alloc_managed"), 0);
    ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
    ck_assert_uint_eq(stats(m).arenas, 0);
    block(m, 4096);
    ck_assert_uint_eq(fx_calls(b, "alloc"), 2);
    ck_ok(oc_model_destroy(m));
    fx_close(b);
  }
}
END_TEST

/* S14: managed memory turns out not to be supported: both drivers' words, no latch, the device is tried again. */
START_TEST(s14_managed_is_unsupported_after_all) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p;
  fx_fail(b, "alloc", 1, 0, OC_E_DEVICE_NOMEM);
  fx_fail(b, "alloc_managed", 1, 0, OC_E_UNSUPPORTED);
  ck_status(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p), OC_E_DEVICE_NOMEM);
  ck_words("alloc(");
  ck_words("alloc_managed(");
  ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
  uint64_t asked = fx_calls(b, "alloc");
  fx_fail(b, "alloc", 0, 0, OC_OK);
  block(m, 4096);
  ck_assert_uint_eq(fx_calls(b, "alloc"), asked + 1);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Managed memory refused for another reason: that is the answer, and why it was asked for is said. */
START_TEST(g17_another_refusal_of_managed_memory_says_both) {
  if (!fx_can(FX_FAIL)) { fx_skip("needs failures by order"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p;
  fx_fail(b, "alloc", 1, 0, OC_E_DEVICE_NOMEM);
  fx_fail(b, "alloc_managed", 1, 0, OC_E_BACKEND);
  ck_status(oc_pool_alloc(oc_model_pool(m), 4096, 0, &p), OC_E_BACKEND);
  ck_words("alloc(");
  ck_words("alloc_managed(");
  ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
  fx_fail(b, "alloc", 0, 0, OC_OK);
  block(m, 4096);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* S15: forbidden, or not there: no managed call. */
START_TEST(s15_no_managed_memory) {
  for (int way = 0; way < 2; way++) {
    oc_backend *b = fx_open(&(struct fx_options){.device_bytes = 64 * MiB, .no_managed = way == 0});
    oc_model *m = fx_model_opt(b, (oc_model_options){.flags = way ? OC_MODEL_NO_MANAGED : 0});
    oc_devptr p;
    ck_status(oc_pool_alloc(oc_model_pool(m), 65 * MiB, 0, &p), OC_E_DEVICE_NOMEM);
    ck_words("alloc(");
    ck_assert_uint_eq(fx_calls(b, "alloc_managed"), 0);
    oc_opcache_note_alloc_fallback(oc_model_opcache(m));
    ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
    block(m, 64 * MiB);
    ck_assert_uint_eq(stats(m).managed_arenas, 0);
    ck_ok(oc_model_destroy(m));
    fx_close(b);
  }
}
END_TEST

/* Both memories are out. */
START_TEST(g17_everything_is_out) {
  oc_backend *b = fx_open(&(struct fx_options){.device_bytes = 64 * MiB, .managed_bytes = 64 * MiB});
  oc_model *m = fx_model(b);
  oc_devptr p;
  ck_status(oc_pool_alloc(oc_model_pool(m), 70 * MiB, 0, &p), OC_E_DEVICE_NOMEM);
  ck_words("alloc(");
  ck_words("alloc_managed(");
  ck_assert_uint_eq(fx_blocks(b), 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* S34, G17: what is empty or only waited for a stream goes back before anything is smaller or managed. */
START_TEST(s34_empty_arenas_go_back_first) {
  oc_backend *b = fx_open(&(struct fx_options){.device_bytes = GiB});
  oc_model *m = fx_model(b);
  oc_devptr p = block(m, 530 * MiB);
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  p = block(m, 540 * MiB);
  ck_assert(!oc_opcache_alloc_fell_back(oc_model_opcache(m)));
  ck_assert_uint_eq(fx_used(b), 540 * MiB);
  ck_ok(oc_pool_free_on(oc_model_pool(m), p, NULL));
  fx_sync(b, NULL);
  (void)block(m, 600 * MiB);
  ck_assert_uint_eq(fx_used(b), 600 * MiB);
  oc_pool_stats s = stats(m);
  ck_assert_uint_eq(s.driver_frees, 2);
  ck_assert_uint_eq(s.fell_back, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* S12 */
START_TEST(s12_alternating_conversions_fit) {
  oc_backend *b = fx_open(&(struct fx_options){.device_bytes = GiB, .no_managed = true});
  oc_model *m = fx_model(b);
  for (int i = 0; i < 100; i++) {
    ck_ok(oc_pool_free(oc_model_pool(m), block(m, 530 * MiB)));
    ck_ok(oc_pool_free(oc_model_pool(m), block(m, 270 * MiB)));
  }
  oc_pool_stats s = stats(m);
  char *text = oc_pool_report_text(oc_model_pool(m), 0);
  ck_assert_uint_gt(s.largest_free, 0);
  ck_assert_ptr_nonnull(strstr(text, "free"));
  ck_assert_ptr_nonnull(strstr(text, "largest"));
  oc_string_free(text);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* S13 */
START_TEST(s13_spans_over_an_arena_have_their_own) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  for (int i = 0; i < 5; i++) block(m, 1152 * MiB);
  oc_pool_stats s = stats(m);
  ck_assert_uint_eq(s.arenas, 5);
  ck_assert_uint_le(s.arena_bytes, (uint64_t)5 * 1152 * MiB / 100 * 101);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(g18_a_dedicated_arena_is_reused) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p = block(m, 40 * MiB + 1);
  ck_assert_uint_eq(stats(m).arena_bytes, 42 * MiB);
  ck_ok(oc_pool_free(oc_model_pool(m), p));
  block(m, 41 * MiB);
  ck_assert_uint_eq(stats(m).arenas, 1);
  ck_assert_uint_eq(fx_calls(b, "alloc"), 1);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(g18_arenas_double_with_live_bytes) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model_opt(b, (oc_model_options){.arena_min = 2 * MiB, .arena_max = 64 * MiB});
  for (int i = 0; i < 2048; i++) block(m, 256 * KiB);   /* 512 MiB */
  oc_pool_stats s = stats(m);
  ck_assert_uint_le(s.arenas, 6 + 8);
  ck_assert_uint_le(s.arena_bytes, 512 * MiB + 64 * MiB);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Several threads run out at once: one sequence. */
static void run_out(void *arg, unsigned i) {
  oc_devptr p;
  (void)i;
  ck_ok(oc_pool_alloc(oc_model_pool(arg), 4096, 0, &p));
}
START_TEST(g17_concurrent_growth_is_one_sequence) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  if (fx_can(FX_DELAY)) fx_delay(b, "alloc", 30000000);
  fx_threads(8, run_out, m);
  ck_assert_uint_eq(fx_calls(b, "alloc"), 1);
  ck_ok(oc_model_destroy(m));
  if (!fx_can(FX_FAIL)) { fx_close(b); return; }
  m = fx_model(b);
  uint64_t before = fx_calls(b, "alloc");
  fx_fail(b, "alloc", 1, 0, OC_E_DEVICE_NOMEM);
  fx_threads(8, run_out, m);
  ck_assert_uint_le(fx_calls(b, "alloc") - before, 3);
  ck_assert_uint_eq(fx_calls(b, "alloc_managed"), 1);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* G19: while one thread is inside a slow alloc, what an existing arena can serve goes on. */
static void *grow_slowly(void *m) {
  block(m, 500 * MiB);
  return NULL;
}
START_TEST(g19_existing_arenas_serve_while_the_driver_is_slow) {
  if (!fx_can(FX_DELAY)) { fx_skip("needs slow calls"); return; }
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  pthread_t t;
  block(m, 4096);
  fx_delay(b, "alloc", 300000000);
  pthread_create(&t, NULL, grow_slowly, m);
  fx_until(fx_calls(b, "alloc") == 2);
  for (int i = 0; i < 1000; i++) ck_ok(oc_pool_free(oc_model_pool(m), block(m, 4096)));
  oc_pool_stats s = stats(m);
  ck_assert_uint_eq(s.driver_allocs, 1);   /* the slow one is still inside */
  pthread_join(t, NULL);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- figures ---- */

START_TEST(figures_by_struct_size) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  struct { oc_pool_stats s; unsigned char tail[40]; } longer;
  memset(&longer, 0xEE, sizeof longer);
  longer.s.struct_size = sizeof longer - 8;
  block(m, 4096);
  ck_ok(oc_pool_get_stats(oc_model_pool(m), &longer.s));
  ck_assert_uint_eq(longer.s.live_bytes, 4096);
  ck_assert_uint_eq(longer.s.struct_size, sizeof longer - 8);
  for (size_t i = 0; i < sizeof longer.tail; i++) ck_assert_uint_eq(longer.tail[i], i < sizeof longer.tail - 8 ? 0 : 0xEE);
  const uint32_t bad[] = {0, 4, sizeof longer.s - 8, UINT32_MAX};
  for (int i = 0; i < 4; i++) {
    memset(&longer, 0xEE, sizeof longer);
    longer.s.struct_size = bad[i];
    ck_status(oc_pool_get_stats(oc_model_pool(m), &longer.s), OC_E_INVALID);
    ck_words("struct_size");
    ck_assert_uint_eq(longer.s.fell_back, 0xEEEEEEEE);
  }
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

START_TEST(figures_add_up_over_a_life) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p[64], act;
  for (size_t i = 0; i < 64; i++) p[i] = block(m, (i + 1) * 10000);
  uint64_t live = stats(m).live_bytes;
  for (size_t i = 0; i < 64; i += 2) ck_ok(oc_pool_free(oc_model_pool(m), p[i]));
  for (size_t i = 1; i < 64; i += 4) ck_ok(oc_pool_free_on(oc_model_pool(m), p[i], NULL));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 50000, &act));
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 100000, &act));
  oc_pool_stats s = stats(m);
  ck_assert_uint_eq(s.peak_live_bytes, live);
  ck_assert_uint_ge(s.retired_bytes, 50000);
  ck_assert_uint_eq(s.driver_allocs, fx_calls(b, "alloc"));
  ck_assert_uint_eq(s.driver_frees, 0);
  ck_assert_uint_gt(s.host_metadata_bytes, 0);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- external memory and reports ---- */

START_TEST(external_memory_is_in_the_ledger_and_never_freed) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_pool *pool = oc_model_pool(m);
  oc_devptr p = block(m, 4096), q = (oc_devptr)1 << 45;
  ck_ok(oc_pool_note_external(pool, q, MiB, "torch"));
  ck_status(oc_pool_note_external(pool, q, MiB, "torch"), OC_EXISTS);
  ck_status(oc_pool_note_external(pool, q + MiB - 1, 1, NULL), OC_EXISTS);
  ck_status(oc_pool_note_external(pool, q - 10, 11, NULL), OC_EXISTS);
  ck_ok(oc_pool_note_external(pool, q + MiB, 16, NULL));
  ck_status(oc_pool_note_external(pool, p + 100, 16, "inside an arena"), OC_E_INVALID);
  ck_status(oc_pool_note_external(pool, 0, 16, NULL), OC_E_INVALID);
  ck_status(oc_pool_note_external(pool, q, 0, NULL), OC_E_INVALID);
  ck_status(oc_pool_note_external(pool, UINT64_MAX - 4, 16, NULL), OC_E_INVALID);
  ck_status(oc_pool_free(pool, q), OC_E_NOT_OWNED);
  ck_status(oc_pool_forget_external(pool, q + 1), OC_E_INTERIOR);
  ck_status(oc_pool_forget_external(pool, p), OC_E_NOT_OWNED);
  char *text = oc_pool_report_text(pool, 0);
  ck_assert_ptr_nonnull(strstr(text, "torch"));
  oc_string_free(text);
  ck_ok(oc_pool_forget_external(pool, q));
  ck_status(oc_pool_forget_external(pool, q), OC_E_NOT_OWNED);
  ck_assert_uint_eq(stats(m).live_bytes, 4096);
  oc_report *r;
  ck_ok(oc_model_teardown(m, &r));
  ck_assert_uint_eq(oc_report_blocks_swept(r), 1);   /* not what is still noted */
  oc_report_free(r);
  ck_ok(oc_model_destroy(m));
  ck_assert_uint_eq(fx_calls(b, "free"), 1);
  fx_close(b);
}
END_TEST

START_TEST(the_report_in_json_adds_up) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_devptr p;
  const oc_site odd = {"we\"ird\\file\n.c", 3, "f\"unc"};
  char *text = oc_pool_report_json(oc_model_pool(m));   /* of an empty pool */
  json_error_t e;
  json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &e);
  ck_assert_msg(j != NULL, "%s in %s", e.text, text);
  json_decref(j);
  oc_string_free(text);
  for (int i = 0; i < 20; i++) {
    ck_ok(oc_pool_alloc_at(oc_model_pool(m), 1000, 0, &odd, &p));
    ck_ok(oc_pool_alloc_owned(oc_model_pool(m), "own\"er\xFF", 3000, 0, &p));
    block(m, 5000);
  }
  text = oc_pool_report_json(oc_model_pool(m));
  j = json_loads(text, JSON_REJECT_DUPLICATES, &e);
  ck_assert_msg(j != NULL, "%s in %s", e.text, text);
  json_decref(j);
  oc_string_free(text);
  text = oc_pool_report_text(oc_model_pool(m), 1);
  ck_assert_ptr_nonnull(strstr(text, "test_pool_api.c"));
  oc_string_free(text);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("pool_api");
  TCase *t = tcase_create("pool_api");
  tcase_set_timeout(t, 30);
  suite_add_tcase(s, t);
  tcase_add_test(t, g16_alignment_is_of_the_absolute_address);
  tcase_add_test(t, g16_alignment_over_odd_bases);
  tcase_add_test(t, g16_zero_and_overflow_are_invalid_and_ask_nobody);
  tcase_add_test(t, g16_blocks_lie_apart_and_in_one_arena);
  tcase_add_test(t, g21_wrong_frees_have_their_status_and_reach_no_driver);
  tcase_add_test(t, g21_owned_blocks_may_be_freed);
  tcase_add_test(t, g20_free_on_waits_for_what_is_queued_now);
  tcase_add_test(t, g20_streams_do_not_hold_each_other_up);
  tcase_add_test(t, g20_an_allocation_asks_few_streams);
  tcase_add_test(t, g20_a_free_on_that_fails_keeps_the_block);
  tcase_add_test(t, g20_without_events_a_drain_collects);
  tcase_add_test(t, g17_the_sequence_up_to_the_latch);
  tcase_add_test(t, g17_an_arena_that_just_fits_halves_arena_max);
  tcase_add_test(t, g17_only_out_of_memory_moves_the_latch);
  tcase_add_test(t, s14_managed_is_unsupported_after_all);
  tcase_add_test(t, g17_another_refusal_of_managed_memory_says_both);
  tcase_add_test(t, s15_no_managed_memory);
  tcase_add_test(t, g17_everything_is_out);
  tcase_add_test(t, s34_empty_arenas_go_back_first);
  tcase_add_test(t, s12_alternating_conversions_fit);
  tcase_add_test(t, s13_spans_over_an_arena_have_their_own);
  tcase_add_test(t, g18_a_dedicated_arena_is_reused);
  tcase_add_test(t, g18_arenas_double_with_live_bytes);
  tcase_add_test(t, g17_concurrent_growth_is_one_sequence);
  tcase_add_test(t, g19_existing_arenas_serve_while_the_driver_is_slow);
  tcase_add_test(t, figures_by_struct_size);
  tcase_add_test(t, figures_add_up_over_a_life);
  tcase_add_test(t, external_memory_is_in_the_ledger_and_never_freed);
  tcase_add_test(t, the_report_in_json_adds_up);
  return s;
}

int main(void) { return fx_run(suite()); }
