/* SPDX-License-Identifier: MIT */
/* Builds: one a key, what they own, how they end (G11, G12, G22, G24, G27, G28; S19, S20, S29). */
#include "config.h"

#include "tests/world.h"
#include "tests/wrap.h"

#define ANY 0x7f0000u

/* ---- recipes ---- */

/* A build function's orders and what it saw. */
struct recipe {
  unsigned runs;            /* atomic */
  unsigned fail;            /* the first so many runs fail ... */
  oc_status as;             /* ... with this */
  unsigned gate;            /* atomic; 1: a run stays inside until it is 0 */
  unsigned inside;          /* atomic */
  size_t bytes;
  oc_stream stream;
  bool on_stream;
  struct world *w;
};

static unsigned peek(unsigned *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void poke(unsigned *p, unsigned v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

static oc_status cook(oc_build *b, void *arg, uint64_t *out) {
  struct recipe *r = arg;
  unsigned run = __atomic_fetch_add(&r->runs, 1, __ATOMIC_ACQ_REL);
  __atomic_fetch_add(&r->inside, 1, __ATOMIC_ACQ_REL);
  oc_status st = OC_OK;
  oc_devptr value = 0, unused;
  if (r->on_stream) st = oc_build_on_stream(b, r->stream);
  if (!st) st = oc_build_alloc(b, r->bytes ? r->bytes : 1000, 0, &value);
  if (!st) st = oc_build_alloc(b, 64, 0, &unused);
  while (peek(&r->gate)) fx_msleep(1);
  __atomic_fetch_sub(&r->inside, 1, __ATOMIC_ACQ_REL);
  if (st) return st;
  if (run < r->fail) return r->as;
  *out = value;
  return OC_OK;
}

static oc_status cook_pair(oc_build *b, void *arg, uint64_t out[2]) {
  oc_status st = cook(b, arg, &out[0]);
  if (!st) out[1] = out[0] + 500;
  return st;
}

static oc_status get_or_cook(struct world *w, struct recipe *r, uint64_t key, uint64_t *out) {
  return oc_derived_get_or_build_ptr(w->d, OC_BF16, key, cook, r, out);
}

/* ---- one build a key ---- */

struct crowd {
  struct world *w;
  struct recipe *r;
  uint64_t value[24];
  oc_status st[24];
  unsigned begun;
};

static void want(void *arg, unsigned i) {
  struct crowd *c = arg;
  __atomic_fetch_add(&c->begun, 1, __ATOMIC_ACQ_REL);
  c->st[i] = get_or_cook(c->w, c->r, ANY, &c->value[i]);
}

static void crowd_main(void *arg) { fx_threads(24, want, arg); }

/* G11, S19: 24 threads, one build; other keys are not delayed by it. */
START_TEST(s19_one_build_for_24_threads) {
  struct world w = world_open();
  struct recipe r = {.gate = 1}, other = {0};
  struct crowd c = {.w = &w, .r = &r};
  struct side crowd;
  side_start(&crowd, crowd_main, &c);
  fx_until(peek(&r.inside) == 1 && peek(&c.begun) == 24);
  uint64_t v = 0;
  ck_ok(get_or_cook(&w, &other, ANY + 1, &v));                     /* another key */
  ck_ok(oc_derived_get_or_build_pair(w.d, OC_ROWWISE_FP8, ANY, cook_pair, &other, (uint64_t[2]){0}));   /* another kind */
  put(&w, OC_CUTLASS_NVFP4_T, ANY, v);
  ck_ok(oc_derived_invalidate(w.d, ANY + 1));
  side_waits(&crowd);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), 0);
  poke(&r.gate, 0);
  side_join(&crowd);
  ck_assert_uint_eq(peek(&r.runs), 1);
  for (unsigned i = 0; i < 24; i++) {
    ck_assert_int_eq(c.st[i], OC_OK);
    ck_assert_uint_eq(c.value[i], value_of(&w, OC_BF16, ANY));
  }
  ck_ok(oc_derived_release(w.d));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* S20, G11, G12: three failures go to those who built; the fourth build's value is for all; nothing is lost. */
START_TEST(s20_failing_builds_then_one_that_works) {
  struct world w = world_open();
  (void)block_of(&w, 100);
  for (unsigned round = 0; round < 10; round++) {
    struct recipe r = {.fail = 3, .as = OC_E_IO};
    struct crowd c = {.w = &w, .r = &r};
    fx_threads(24, want, &c);
    unsigned failed = 0;
    for (unsigned i = 0; i < 24; i++) {
      if (c.st[i] == OC_E_IO) failed++;
      else {
        ck_assert_int_eq(c.st[i], OC_OK);
        ck_assert_uint_eq(c.value[i], value_of(&w, OC_BF16, ANY));
      }
    }
    ck_assert_uint_eq(failed, 3);
    ck_assert_uint_eq(r.runs, 4);
    ck_assert_uint_eq(live_blocks(&w), 2);
    ck_ok(oc_derived_invalidate(w.d, ANY));
    ck_assert_uint_eq(live_blocks(&w), 1);
  }
  world_close(&w);
}
END_TEST

/* One thread: each failure stores nothing and gives back what it had. */
START_TEST(s20_on_one_thread) {
  struct world w = world_open();
  struct recipe r = {.fail = 3, .as = OC_E_UNSUPPORTED};
  uint64_t v = 77;
  for (unsigned i = 0; i < 3; i++) {
    ck_status(get_or_cook(&w, &r, ANY, &v), OC_E_UNSUPPORTED);
    ck_assert_uint_eq(v, 77);
    ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), 0);
    ck_assert_uint_eq(live_blocks(&w), 0);
  }
  ck_ok(get_or_cook(&w, &r, ANY, &v));
  ck_ok(get_or_cook(&w, &r, ANY, &v));
  ck_assert_uint_eq(r.runs, 4);
  ck_assert_uint_eq(live_blocks(&w), 1);
  world_close(&w);
}
END_TEST

/* ---- what a build function may answer ---- */

static oc_status answer_only(oc_build *b, void *arg, uint64_t *out) {
  (void)b;
  const struct { oc_status st; uint64_t value; } *a = arg;
  *out = a->value;
  return a->st;
}

/* Its answer is a failed call's: those words stay. */
static oc_status answer_refused(oc_build *b, void *arg, uint64_t *out) {
  (void)out;
  return oc_build_alloc(b, 0, 0, (oc_devptr *)arg);
}

static oc_status answer_pair(oc_build *b, void *arg, uint64_t out[2]) {
  (void)b;
  memcpy(out, arg, 2 * sizeof *out);
  return OC_OK;
}

START_TEST(odd_answers_of_a_build_function) {
  struct world w = world_open();
  const struct { oc_status st; uint64_t value; oc_status want; } all[] = {
    {OC_OK, 0, OC_E_INVALID}, {OC_MISS, ANY, OC_E_INVALID}, {OC_EXISTS, ANY, OC_E_INVALID}, {(oc_status)99, ANY, OC_E_INVALID},
    {OC_E_DEVICE_LOST, ANY, OC_E_DEVICE_LOST}, {OC_E_REENTRANT, ANY, OC_E_REENTRANT}, {OC_E_RELEASED, ANY, OC_E_RELEASED},
  };
  uint64_t v = 77, two[2];
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, answer_only, (void *)(uintptr_t)&all[i], &v), all[i].want);
    ck_assert_uint_eq(v, 77);
    ck_assert_uint_eq(oc_derived_len(w.d), 0);
    if (all[i].st != OC_OK) ck_words(oc_status_name(all[i].st));   /* not the words of a failure before */
  }
  oc_devptr block;
  for (int i = 0; i < 2; i++) {
    ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, answer_refused, &block, &v), OC_E_INVALID);
    ck_words("0 bytes");
  }
  uint64_t none[2] = {0, 0}, second[2] = {0, ANY};
  ck_status(oc_derived_get_or_build_pair(w.d, OC_ROWWISE_FP8, ANY, answer_pair, none, two), OC_E_INVALID);
  ck_ok(oc_derived_get_or_build_pair(w.d, OC_ROWWISE_FP8, ANY, answer_pair, second, two));
  ck_assert(two[0] == 0 && two[1] == ANY);
  world_close(&w);
}
END_TEST

/* ---- begin and commit ---- */

START_TEST(begin_finds_or_builds) {
  struct world w = world_open();
  uint64_t out[2] = {5, 6};
  oc_build *b = NULL;
  ck_status(oc_derived_begin(w.d, OC_BF16, ANY, &b, out), OC_MISS);
  ck_assert(b && out[0] == 5 && out[1] == 6);
  oc_devptr p = build_block(b, 1000);
  uint64_t kept[2] = {7, 8};
  const uint64_t v[2] = {p, 9};                    /* the second is not read for a pointer kind */
  ck_ok(oc_build_commit(b, v, kept));
  ck_assert(kept[0] == p && kept[1] == 8);
  ck_ok(oc_derived_begin(w.d, OC_BF16, ANY, &b, out));
  ck_assert(!b && out[0] == p && out[1] == 6);
  ck_status(oc_derived_begin(w.d, OC_ROWWISE_FP8, ANY, &b, out), OC_MISS);
  const uint64_t pair[2] = {0, build_block(b, 64)};
  ck_ok(oc_build_commit(b, pair, kept));
  ck_assert_mem_eq(kept, pair, sizeof pair);
  ck_ok(oc_derived_begin(w.d, OC_ROWWISE_FP8, ANY, &b, out));
  ck_assert_mem_eq(out, pair, sizeof pair);
  ck_assert_ptr_null(b);
  world_close(&w);
}
END_TEST

/* A begin on another thread waits: it gets the value, or the next turn. */
START_TEST(g11_begin_waits_for_the_open_build) {
  struct world w = world_open();
  struct call c = {.w = &w, .kind = OC_BF16, .key = ANY};
  struct side other;
  oc_build *b = begin(&w, OC_BF16, ANY);
  side_start(&other, call_begin, &c);
  side_waits(&other);
  oc_build_abort(b);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_MISS);             /* built next, and aborted */
  b = begin(&w, OC_BF16, ANY);
  side_start(&other, call_begin, &c);
  side_waits(&other);
  oc_devptr p = build_block(b, 64);
  commit_one(b, p);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(c.out[0], p);
  world_close(&w);
}
END_TEST

/* G12: what has no value in it goes back; a value anywhere inside, to the last byte, keeps a block. */
START_TEST(g12_blocks_with_values_stay) {
  struct world w = world_open();
  const size_t at[] = {0, 1, 255, 256, 999};
  for (size_t i = 0; i < 5; i++) {
    oc_build *b = begin(&w, OC_BF16, ANY);
    oc_devptr unused = build_block(b, 1000), used = build_block(b, 1000);
    (void)build_block(b, 5000);
    ck_assert_uint_eq(live_blocks(&w), 3);
    ck_status(oc_pool_free(w.p, used), OC_E_NOT_OWNED);          /* G21 */
    ck_status(oc_pool_free_on(w.p, unused, NULL), OC_E_NOT_OWNED);
    commit_one(b, used + at[i]);
    ck_assert_uint_eq(live_blocks(&w), 1);
    ck_status(oc_pool_free(w.p, used), OC_E_NOT_OWNED);
    ck_words("derived");
    ck_ok(oc_derived_invalidate(w.d, ANY));
    ck_assert_uint_eq(live_blocks(&w), 0);
  }
  /* data and scales in one; in two; a hundred blocks */
  oc_build *b = begin(&w, OC_ROWWISE_FP8, ANY);
  oc_devptr p = 0, q;
  for (unsigned i = 0; i < 100; i++) p = build_block(b, 100 + i);
  ck_ok(oc_build_commit(b, (const uint64_t[2]){p, p + 100}, NULL));
  ck_assert_uint_eq(live_blocks(&w), 1);
  ck_ok(oc_derived_invalidate(w.d, ANY));
  b = begin(&w, OC_ROWWISE_FP8, ANY);
  p = build_block(b, 100);
  q = build_block(b, 100);
  ck_ok(oc_build_commit(b, (const uint64_t[2]){p, q}, NULL));
  ck_assert_uint_eq(live_blocks(&w), 2);
  ck_ok(oc_derived_invalidate(w.d, ANY));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* A build may store what is not its own: the caller's block, another entry's, a borrowed one, its key. */
START_TEST(a_build_may_store_other_values) {
  struct world w = world_open();
  oc_devptr mine = block_of(&w, 100), tied;
  ck_ok(oc_pool_alloc_owned(w.p, "weights", 100, 0, &tied));
  const uint64_t values[] = {mine, mine + 10, tied, ANY + 3};
  for (unsigned i = 0; i < 4; i++) {
    oc_build *b = begin(&w, OC_BF16, ANY + i);
    (void)build_block(b, 64);
    commit_one(b, values[i]);
  }
  ck_assert_uint_eq(live_blocks(&w), 2);
  ck_status(oc_pool_free(w.p, mine), OC_E_NOT_OWNED);
  ck_ok(oc_derived_release(w.d));
  ck_assert_uint_eq(live_blocks(&w), 1);
  world_close(&w);
}
END_TEST

/* ---- losing ---- */

/* An engine's insert while the build is open: the build loses, its blocks go back, the first value stays. */
START_TEST(g12_a_build_that_loses) {
  struct world w = world_open();
  oc_build *b = begin(&w, OC_BF16, ANY);
  oc_devptr mine = build_block(b, 1000), theirs = block_of(&w, 64);
  put(&w, OC_BF16, ANY, theirs);
  const uint64_t v[2] = {mine, 0};
  uint64_t kept[2] = {7, 8};
  ck_status(oc_build_commit(b, v, kept), OC_EXISTS);
  ck_assert(kept[0] == theirs && kept[1] == 8);
  ck_assert_uint_eq(live_blocks(&w), 1);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), theirs);
  b = NULL;
  ck_ok(oc_derived_begin(w.d, OC_BF16, ANY, &b, kept));   /* the build has ended */
  world_close(&w);
}
END_TEST

static oc_status overtaken(oc_build *b, void *arg, uint64_t *out) {
  struct recipe *r = arg;
  put(r->w, OC_BF16, ANY, block_of(r->w, 64));
  return cook(b, arg, out);
}

/* get_or_build then gives the value that is there. */
START_TEST(g10_get_or_build_gives_the_first_value) {
  struct world w = world_open();
  struct recipe r = {.w = &w};
  uint64_t v = 0;
  ck_ok(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, overtaken, &r, &v));
  ck_assert_uint_eq(v, value_of(&w, OC_BF16, ANY));
  ck_assert_uint_eq(live_blocks(&w), 1);
  world_close(&w);
}
END_TEST

/* ---- misuse ---- */

struct theft {
  oc_build *b;
  oc_status alloc, stream, commit;
};

static void steal(void *arg) {
  struct theft *t = arg;
  oc_devptr p;
  const uint64_t v[2] = {ANY, 0};
  t->alloc = oc_build_alloc(t->b, 64, 0, &p);
  t->stream = oc_build_on_stream(t->b, NULL);
  t->commit = oc_build_commit(t->b, v, NULL);
}

/* A build belongs to its thread; nonsense is refused and leaves it open. */
START_TEST(misuse_leaves_the_build_open) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_build *b = begin(&w, OC_BF16, ANY);
  struct theft t = {.b = b};
  struct side thief;
  side_start(&thief, steal, &t);
  side_join(&thief);
  ck_assert(t.alloc == OC_E_INVALID && t.stream == OC_E_INVALID && t.commit == OC_E_INVALID);
  oc_devptr p = 77;
  ck_status(oc_build_alloc(b, 0, 0, &p), OC_E_INVALID);
  ck_status(oc_build_alloc(b, SIZE_MAX, 0, &p), OC_E_INVALID);
  ck_status(oc_build_alloc(b, 64, 3, &p), OC_E_INVALID);
  ck_status(oc_build_alloc(b, 64, 0, NULL), OC_E_INVALID);
  ck_assert_uint_eq(p, 77);
  ck_ok(oc_build_on_stream(b, s));
  ck_ok(oc_build_on_stream(b, s));
  ck_status(oc_build_on_stream(b, NULL), OC_E_INVALID);   /* another one */
  const uint64_t none[2] = {0, 5};
  ck_status(oc_build_commit(b, NULL, NULL), OC_E_INVALID);
  ck_status(oc_build_commit(b, none, NULL), OC_E_INVALID);
  ck_assert_uint_eq(live_blocks(&w), 0);
  p = build_block(b, 64);
  commit_one(b, p);
  b = begin(&w, OC_ROWWISE_FP8, ANY);
  ck_status(oc_build_commit(b, (const uint64_t[2]){0, 0}, NULL), OC_E_INVALID);
  oc_build_abort(b);
  ck_assert_uint_eq(oc_derived_len(w.d), 1);
  world_close_stream(&w, s);
}
END_TEST

static void abort_it(void *arg) { oc_build_abort(arg); }

static void abort_elsewhere(oc_build *b) {
  struct side s;
  side_start(&s, abort_it, b);
  side_join(&s);
}

/* Another thread's abort, at every stage: all goes back, those who wait go on, the owner is told, and may abort too. */
START_TEST(g12_abort_from_another_thread) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  for (unsigned stage = 0; stage < 4; stage++) {
    oc_build *b = begin(&w, OC_BF16, ANY);
    if (stage > 0) (void)build_block(b, 1000);
    if (stage > 1) ck_ok(oc_build_on_stream(b, s));
    if (stage > 2) (void)build_block(b, 1000);
    struct call c = {.w = &w, .kind = OC_BF16, .key = ANY};
    struct side waiter;
    side_start(&waiter, call_begin, &c);
    side_waits(&waiter);
    abort_elsewhere(b);
    side_join(&waiter);
    ck_assert_int_eq(c.status, OC_MISS);
    fx_sync(w.b, s);
    ck_assert_uint_eq(live_blocks(&w), 0);
    ck_assert_uint_eq(figures(&w).retired_bytes, 0);
    oc_devptr p = 77;
    ck_status(oc_build_alloc(b, 64, 0, &p), OC_E_INVALID);
    ck_words("aborted");
    ck_status(oc_build_on_stream(b, s), OC_E_INVALID);
    for (unsigned i = 0; i < 2; i++) ck_status(oc_build_commit(b, (const uint64_t[2]){ANY, 0}, NULL), OC_E_INVALID);
    abort_elsewhere(b);                 /* once more: nothing is left to abort, and the record is its owner's */
    ck_status(oc_build_commit(b, (const uint64_t[2]){ANY, 0}, NULL), OC_E_INVALID);
    if (stage % 2) oc_build_abort(b);   /* or it stays until destroy */
    ck_assert(p == 77 && oc_derived_len(w.d) == 0);
  }
  world_close_stream(&w, s);
}
END_TEST

/* Inside the driver's allocation: from another thread, or a teardown's. */
static bool abort_in_alloc(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)arg;
  (void)answer;
  if (strcmp(entry, "alloc") == 0) abort_elsewhere(w->hook_arg);
  return false;
}

START_TEST(g12_an_abort_while_a_block_is_made) {
  struct wrap wrap;
  wrap_open(&wrap, NULL);
  struct world w = world_on(wrap.outer, (oc_model_options){0});
  oc_build *b = begin(&w, OC_BF16, ANY);
  oc_devptr p = 77;
  wrap.hook_arg = b;
  wrap.hook = abort_in_alloc;
  ck_status(oc_build_alloc(b, 1000, 0, &p), OC_E_INVALID);
  wrap.hook = NULL;
  ck_words("aborted");
  ck_assert_uint_eq(wrap_calls(&wrap, "alloc"), 1);
  ck_assert_uint_eq(p, 77);
  ck_assert_uint_eq(live_blocks(&w), 0);
  oc_build_abort(b);
  ck_ok(oc_pool_check(w.p));
  ck_ok(oc_model_destroy(w.m));
  wrap_close(&wrap);
}
END_TEST

/* Of one hash, which the table of open builds tells apart: the same kind with two keys, and two kinds. */
START_TEST(g11_builds_whose_hashes_collide_are_two) {
  struct world w = world_open();
  const uint64_t kind = (uint64_t)OC_BF16 << 56, other = kind ^ (uint64_t)OC_CUTLASS_NVFP4_T << 56;
  const uint64_t a = 0x9e95ef520a349d1bu ^ kind, b = 0xa8e2b21ad51c571du ^ kind;
  oc_build *first = begin(&w, OC_BF16, a), *second = begin(&w, OC_BF16, b), *third = begin(&w, OC_CUTLASS_NVFP4_T, a ^ other);
  struct call c = {.w = &w, .kind = OC_BF16, .key = a};
  struct side waiter;
  side_start(&waiter, call_begin, &c);
  side_waits(&waiter);
  oc_build_abort(third);
  oc_build_abort(second);
  side_waits(&waiter);
  commit_one(first, build_block(first, 100));
  side_join(&waiter);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(value_of(&w, OC_BF16, b), 0);
  world_close(&w);
}
END_TEST

static oc_status abort_inside(oc_build *b, void *arg, uint64_t *out) {
  oc_status st = cook(b, arg, out);
  oc_build_abort(b);
  return st;
}

static oc_status commit_inside(oc_build *b, void *arg, uint64_t *out) {
  oc_status st = cook(b, arg, out);
  ck_status(oc_build_commit(b, (const uint64_t[2]){*out, 0}, NULL), OC_E_INVALID);
  return st;
}

static oc_status aborted_by_another(oc_build *b, void *arg, uint64_t *out) {
  oc_status st = cook(b, arg, out);
  abort_elsewhere(b);
  oc_devptr p;
  ck_status(oc_build_alloc(b, 64, 0, &p), OC_E_INVALID);
  return st;
}

/* A callback that ends its own build, or has it ended: told, nothing stored, nothing lost. */
START_TEST(a_callback_may_not_end_its_build) {
  struct world w = world_open();
  uint64_t v = 77;
  struct recipe r = {0}, failing = {.fail = 9, .as = OC_E_IO};
  ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, abort_inside, &r, &v), OC_E_INVALID);
  ck_words("aborted");
  ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, abort_inside, &failing, &v), OC_E_IO);
  ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, aborted_by_another, &r, &v), OC_E_INVALID);
  ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, aborted_by_another, &failing, &v), OC_E_IO);
  ck_assert(v == 77 && oc_derived_len(w.d) == 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  ck_ok(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, commit_inside, &r, &v));
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), v);
  ck_assert_uint_eq(live_blocks(&w), 1);
  world_close(&w);
}
END_TEST

/* ---- queued work ---- */

/* G12: on a stalled stream nothing of the build goes back before the stream has passed it: unused blocks of a commit,
   all of an abort, of a failure, of a loss. */
START_TEST(g12_blocks_wait_for_queued_work) {
  if (!fx_can(FX_STALL)) { fx_skip("no stall"); return; }
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  for (unsigned way = 0; way < 4; way++) {
    fx_stall(w.b, s, true);
    uint64_t v = 0;
    struct recipe r = {.on_stream = true, .stream = s, .bytes = 1024, .fail = way == 3, .as = OC_E_IO};
    if (way == 3) {
      ck_status(get_or_cook(&w, &r, ANY, &v), OC_E_IO);
    } else {
      oc_build *b = begin(&w, OC_BF16, ANY);
      oc_devptr p = build_block(b, 1024);
      (void)build_block(b, 256);
      ck_ok(oc_build_on_stream(b, s));
      if (way == 0) commit_one(b, p);
      else if (way == 1) oc_build_abort(b);
      else {
        put(&w, OC_BF16, ANY, block_of(&w, 512));
        ck_status(oc_build_commit(b, (const uint64_t[2]){p, 0}, NULL), OC_EXISTS);
      }
    }
    oc_pool_stats f = figures(&w);
    ck_assert_uint_eq(f.live_bytes, way == 0 ? 1024 : way == 2 ? 512 : 0);
    ck_assert_uint_eq(f.retired_bytes, way == 0 ? 256 : 1280);
    if (way == 3) ck_assert_uint_eq(f.live_blocks, 0);
    fx_stall(w.b, s, false);
    fx_sync(w.b, s);
    ck_assert_uint_eq(figures(&w).retired_bytes, 0);
    ck_ok(oc_derived_invalidate(w.d, ANY));
    ck_assert_uint_eq(live_blocks(&w), 0);
  }
  world_close_stream(&w, s);
}
END_TEST

/* A driver that refuses the event: the commit fails in its words, nothing is stored, and the blocks, which may be in
   use for all we know, wait for graphs_gone or teardown. OC_E_INVALID would say that the build is still open. */
static const oc_status refusals[] = {OC_E_BACKEND, OC_E_INVALID};

START_TEST(g12_a_commit_that_cannot_mark_its_stream) {
  if (!fx_can(FX_FAIL)) { fx_skip("no failures"); return; }
  struct world w = world_open();
  oc_build *b = begin(&w, OC_BF16, ANY);
  oc_devptr p = build_block(b, 1024);
  ck_ok(oc_build_on_stream(b, NULL));
  fx_fail(w.b, "event_record", 1, 0, refusals[_i]);
  ck_status(oc_build_commit(b, (const uint64_t[2]){p, 0}, NULL), OC_E_BACKEND);
  fx_fail(w.b, "event_record", 0, 0, OC_OK);
  ck_words("event_record");
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(figures(&w).live_blocks, 0);
  ck_assert_uint_eq(figures(&w).retired_bytes, 1024);
  ck_ok(oc_model_graphs_gone(w.m));
  ck_assert_uint_eq(figures(&w).retired_bytes, 0);
  b = begin(&w, OC_BF16, ANY);                     /* the key is free for the next */
  commit_one(b, build_block(b, 64));
  world_close(&w);
}
END_TEST

/* Device memory that runs out inside a build: its status, and all that it had goes back. */
START_TEST(g12_out_of_device_memory) {
  struct fx_options opt = {.device_bytes = 8 * MiB, .no_managed = true};
  struct world w = world_on(fx_open(&opt), (oc_model_options){.arena_min = 2 * MiB, .arena_max = 2 * MiB});
  struct recipe r = {.bytes = 100 * MiB};
  uint64_t v = 77;
  ck_status(get_or_cook(&w, &r, ANY, &v), OC_E_DEVICE_NOMEM);
  ck_assert_uint_eq(v, 77);
  ck_assert_uint_eq(live_blocks(&w), 0);
  r.bytes = MiB;
  ck_ok(get_or_cook(&w, &r, ANY, &v));
  world_close(&w);
}
END_TEST

/* ---- guards and captures ---- */

/* G27, G28: a miss is refused, the function not called, the driver not asked; a hit works. */
START_TEST(g27_g28_a_miss_is_refused) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  struct recipe r = {0};
  uint64_t v, out[2];
  oc_build *b = NULL;
  put(&w, OC_BF16, ANY + 1, block_of(&w, 64));
  for (unsigned where = 0; where < 2; where++) {
    oc_status want_st = where ? OC_E_CAPTURING : OC_E_GUARDED;
    if (where) ck_ok(oc_capture_enter(w.m, s));
    else oc_guard_enter();
    uint64_t calls = fx_all_calls(w.b);
    ck_status(get_or_cook(&w, &r, ANY, &v), want_st);
    ck_status(oc_derived_begin(w.d, OC_BF16, ANY, &b, out), want_st);
    ck_ok(get_or_cook(&w, &r, ANY + 1, &v));
    ck_ok(oc_derived_begin(w.d, OC_BF16, ANY + 1, &b, out));
    ck_assert_uint_eq(fx_all_calls(w.b), calls);
    if (where) oc_capture_leave(w.m);
    else oc_guard_leave();
  }
  ck_assert_uint_eq(r.runs, 0);
  ck_assert_ptr_null(b);
  world_close_stream(&w, s);
}
END_TEST

/* G28: an open build inside a capture: allocation from an arena works; a commit on a stream is refused and ends it,
   its blocks retired; without a stream it works; an abort retires. */
START_TEST(g28_builds_that_end_inside_a_capture) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_build *on = begin(&w, OC_BF16, ANY), *off = begin(&w, OC_BF16, ANY + 1), *gone = begin(&w, OC_BF16, ANY + 2);
  oc_devptr p = build_block(on, 1024), q = build_block(off, 1024);
  (void)build_block(gone, 512);
  ck_ok(oc_build_on_stream(on, s));
  ck_ok(oc_capture_enter(w.m, s));
  uint64_t calls = fx_all_calls(w.b);
  (void)build_block(off, 256);
  oc_devptr big = 77;
  ck_status(oc_build_alloc(off, 500 * MiB, 0, &big), OC_E_CAPTURING);
  ck_status(oc_build_commit(on, (const uint64_t[2]){p, 0}, NULL), OC_E_CAPTURING);
  ck_ok(oc_build_commit(off, (const uint64_t[2]){q, 0}, NULL));
  oc_build_abort(gone);
  ck_assert_uint_eq(fx_all_calls(w.b), calls);
  oc_capture_leave(w.m);
  ck_assert_uint_eq(big, 77);
  ck_assert_uint_eq(oc_derived_len(w.d), 1);
  ck_assert_uint_eq(figures(&w).live_bytes, 1024);
  ck_assert_uint_eq(figures(&w).retired_bytes, 1024 + 256 + 512);
  ck_ok(oc_model_graphs_gone(w.m));
  ck_assert_uint_eq(figures(&w).retired_bytes, 0);
  world_close_stream(&w, s);
}
END_TEST

/* An undeclared capture: the commit's event would break it. */
START_TEST(g28_commit_on_a_stream_that_captures_undeclared) {
  if (!fx_can(FX_CAPTURE)) { fx_skip("no undeclared captures"); return; }
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_build *b = begin(&w, OC_BF16, ANY);
  oc_devptr p = build_block(b, 1024);
  ck_ok(oc_build_on_stream(b, s));
  fx_capturing(w.b, s, true);
  uint64_t records = fx_calls(w.b, "event_record");
  ck_status(oc_build_commit(b, (const uint64_t[2]){p, 0}, NULL), OC_E_CAPTURING);
  ck_assert_uint_eq(fx_calls(w.b, "event_record"), records);
  fx_capturing(w.b, s, false);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_ok(oc_model_graphs_gone(w.m));
  ck_assert_uint_eq(live_blocks(&w), 0);
  ck_assert_uint_eq(figures(&w).retired_bytes, 0);
  world_close_stream(&w, s);
}
END_TEST

/* Commit, abort and allocation work inside a guard. */
START_TEST(g27_builds_end_inside_a_guard) {
  struct world w = world_open();
  oc_build *a = begin(&w, OC_BF16, ANY), *b = begin(&w, OC_BF16, ANY + 1);
  oc_guard_enter();
  oc_devptr p = build_block(a, 64);
  (void)build_block(b, 64);
  commit_one(a, p);
  oc_build_abort(b);
  oc_guard_leave();
  ck_assert_uint_eq(live_blocks(&w), 1);
  ck_assert_uint_eq(oc_derived_len(w.d), 1);
  world_close(&w);
}
END_TEST

/* ---- other keys, other builds ---- */

static oc_status nested(oc_build *b, void *arg, uint64_t *out) {
  struct recipe *r = arg;
  unsigned depth = r->fail++;
  uint64_t inner = 0;
  oc_status st = depth < 50 ? oc_derived_get_or_build_ptr(r->w->d, OC_BF16, ANY + depth + 1, nested, r, &inner) : OC_OK;
  if (st) return st;
  st = oc_build_alloc(b, 64, 0, out);
  return st;
}

/* G11: a build may ask for other keys, to any depth. */
START_TEST(g11_builds_nest) {
  struct world w = world_open();
  struct recipe r = {.w = &w};
  uint64_t v;
  ck_ok(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, nested, &r, &v));
  ck_assert_uint_eq(oc_derived_len(w.d), 51);
  ck_assert_uint_eq(live_blocks(&w), 51);
  world_close(&w);
}
END_TEST

/* Many open builds of one thread, ended in another order than begun. */
START_TEST(many_open_builds) {
  struct world w = world_open();
  oc_build *b[100];
  for (unsigned i = 0; i < 100; i++) b[i] = begin(&w, OC_BF16, ANY + i);
  for (unsigned i = 0; i < 100; i++) {
    unsigned j = i * 37 % 100;
    if (j % 3) commit_one(b[j], build_block(b[j], 64));
    else oc_build_abort(b[j]);
  }
  ck_assert_uint_eq(oc_derived_len(w.d), 66);
  ck_assert_uint_eq(live_blocks(&w), 66);
  world_close(&w);
}
END_TEST

/* ---- racing builds, by option ---- */

struct racers {
  struct world *w;
  unsigned inside;
  uint64_t value[8];
};

static oc_status race(oc_build *b, void *arg, uint64_t *out) {
  struct racers *r = arg;
  __atomic_fetch_add(&r->inside, 1, __ATOMIC_ACQ_REL);
  fx_until(peek(&r->inside) == 8);
  return oc_build_alloc(b, 64, 0, out);
}

static void run_race(void *arg, unsigned i) {
  struct racers *r = arg;
  ck_ok(oc_derived_get_or_build_ptr(r->w->d, OC_BF16, ANY, race, r, &r->value[i]));
}

/* G11 with BUILD_MAY_RACE: all are inside at once; the first commit wins, seven blocks go back. */
START_TEST(g11_racing_builds) {
  struct world w = world_on(fx_open(NULL), (oc_model_options){.flags = OC_MODEL_BUILD_MAY_RACE});
  struct racers r = {.w = &w};
  fx_threads(8, run_race, &r);
  for (unsigned i = 0; i < 8; i++) ck_assert_uint_eq(r.value[i], value_of(&w, OC_BF16, ANY));
  ck_assert_uint_eq(live_blocks(&w), 1);
  ck_ok(oc_derived_release(w.d));
  /* one thread, twice */
  oc_build *a = begin(&w, OC_BF16, ANY), *b = begin(&w, OC_BF16, ANY);
  oc_devptr p = build_block(a, 64), q = build_block(b, 64);
  uint64_t kept[2];
  commit_one(b, q);
  ck_status(oc_build_commit(a, (const uint64_t[2]){p, 0}, kept), OC_EXISTS);
  ck_assert_uint_eq(kept[0], q);
  ck_assert_uint_eq(live_blocks(&w), 1);
  world_close(&w);
}
END_TEST

/* ---- release and teardown meanwhile ---- */

/* oc_derived_release waits for builds begun before it, up to teardown_wait_ms. */
START_TEST(release_waits_for_open_builds) {
  struct world w = world_on(fx_open(NULL), (oc_model_options){.teardown_wait_ms = 60});
  struct call c = {.w = &w};
  struct side other;
  put(&w, OC_BF16, ANY + 1, block_of(&w, 64));
  oc_build *b = begin(&w, OC_BF16, ANY);
  ck_status(oc_derived_release(w.d), OC_E_REENTRANT);    /* our own build */
  side_start(&other, call_release, &c);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_E_BUSY);
  ck_assert_ptr_nonnull(strstr(c.words, "bf16"));
  ck_assert_uint_ne(value_of(&w, OC_BF16, ANY + 1), 0);  /* and nothing changed */
  commit_one(b, build_block(b, 64));
  ck_ok(oc_derived_release(w.d));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

START_TEST(release_takes_a_build_that_ends_in_time) {
  struct world w = world_open();
  struct call c = {.w = &w};
  struct side other;
  oc_build *b = begin(&w, OC_BF16, ANY);
  side_start(&other, call_release, &c);
  side_waits(&other);
  commit_one(b, build_block(b, 64));
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert(oc_derived_is_empty(w.d));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* S29, G24: a build that nobody ends: BUSY with kind, key and call site; after the abort, teardown works. */
START_TEST(s29_a_build_that_never_ends) {
  struct world w = world_on(fx_open(NULL), (oc_model_options){.teardown_wait_ms = 50});
  struct call c = {.w = &w};
  struct side other;
  static const oc_site site = {"loader.c", 812, "load_layer"};
  oc_build *b = NULL;
  uint64_t out[2];
  ck_status(oc_derived_begin_at(w.d, OC_ROWWISE_FP8, 0xabc00, &site, &b, out), OC_MISS);
  (void)build_block(b, 1000);
  for (unsigned i = 0; i < 2; i++) {
    side_start(&other, call_teardown, &c);
    side_join(&other);
    ck_assert_int_eq(c.status, OC_E_BUSY);
    ck_assert_ptr_nonnull(strstr(c.words, "rowwise-fp8"));
    ck_assert_ptr_nonnull(strstr(c.words, "0xabc00"));
    ck_assert_ptr_nonnull(strstr(c.words, "loader.c:812"));
    put(&w, OC_BF16, ANY + i, ANY + i);                    /* the model works */
  }
  abort_elsewhere(b);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* One that began after release did is of the next time: it is neither waited for nor forgotten. */
START_TEST(release_does_not_wait_for_newer_builds) {
  struct world w = world_open();
  struct call c = {.w = &w};
  struct side release;
  oc_build *older = begin(&w, OC_BF16, ANY);
  side_start(&release, call_release, &c);
  side_waits(&release);
  oc_build *newer = begin(&w, OC_BF16, ANY + 1);
  commit_one(older, build_block(older, 100));
  side_join(&release);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  commit_one(newer, build_block(newer, 100));
  ck_assert_uint_eq(oc_derived_len(w.d), 1);
  world_close(&w);
}
END_TEST

/* G22: what waits for a build is woken by teardown, which waits for that build itself. */
START_TEST(g22_an_invalidate_that_waits_when_teardown_begins) {
  struct world w = world_open();
  struct call down = {.w = &w}, waits = {.w = &w, .key = ANY};
  struct side teardown, waiter;
  oc_build *b = begin(&w, OC_BF16, ANY);
  side_start(&waiter, call_invalidate, &waits);
  side_waits(&waiter);
  side_start(&teardown, call_teardown, &down);
  side_join(&waiter);
  ck_assert_int_eq(waits.status, OC_E_RELEASED);
  ck_assert_ptr_nonnull(strstr(waits.words, "oc_derived_invalidate"));
  ck_assert(!side_done(&teardown));
  oc_build_abort(b);
  side_join(&teardown);
  ck_assert_int_eq(down.status, OC_OK);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

START_TEST(a_site_may_lack_a_name) {
  struct world w = world_on(fx_open(NULL), (oc_model_options){.teardown_wait_ms = 1});
  struct call c = {.w = &w};
  struct side other;
  const oc_site sites[] = {{NULL, 812, "load_layer"}, {"loader.c", 812, NULL}};
  const char *const words[] = {"an unknown site:812 (load_layer)", "loader.c:812 (?)"};
  for (int i = 0; i < 2; i++) {
    oc_build *b = NULL;
    uint64_t out[2];
    ck_status(oc_derived_begin_at(w.d, OC_BF16, ANY, &sites[i], &b, out), OC_MISS);
    side_start(&other, call_teardown, &c);
    side_join(&other);
    ck_assert_int_eq(c.status, OC_E_BUSY);
    ck_assert_ptr_nonnull(strstr(c.words, words[i]));
    oc_build_abort(b);
  }
  world_close(&w);
}
END_TEST

/* G12, G22: once teardown has begun a commit is RELEASED and stores nothing; those who wait for the build are woken. */
START_TEST(g12_a_commit_after_teardown_began) {
  struct world w = world_open();
  struct call down = {.w = &w}, waits = {.w = &w, .kind = OC_BF16, .key = ANY};
  struct side teardown, waiter;
  oc_build *b = begin(&w, OC_BF16, ANY);
  oc_devptr p = build_block(b, 1000);
  side_start(&waiter, call_begin, &waits);
  side_waits(&waiter);
  side_start(&teardown, call_teardown, &down);
  side_join(&waiter);
  ck_assert_int_eq(waits.status, OC_E_RELEASED);
  oc_devptr more = 77;
  ck_status(oc_build_alloc(b, 64, 0, &more), OC_E_RELEASED);
  ck_status(oc_build_on_stream(b, NULL), OC_E_RELEASED);
  ck_assert(!side_done(&teardown));
  ck_status(oc_build_commit(b, (const uint64_t[2]){p, 0}, NULL), OC_E_RELEASED);
  side_join(&teardown);
  ck_assert_int_eq(down.status, OC_OK);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(more, 77);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

/* The ledger knows a build's blocks by their own line. */
START_TEST(a_builds_blocks_have_a_site) {
  struct world w = world_open();
  static const oc_site site = {"quant.c", 77, "pack"};
  oc_build *b = begin(&w, OC_BF16, ANY);
  oc_devptr p;
  ck_ok(oc_build_alloc_at(b, 1000, 0, &site, &p));
  char *text = oc_pool_report_text(w.p, 0);
  ck_assert_ptr_nonnull(strstr(text, "quant.c:77"));
  oc_string_free(text);
  commit_one(b, p);
  text = oc_pool_report_text(w.p, 0);
  ck_assert_ptr_nonnull(strstr(text, "quant.c:77"));
  oc_string_free(text);
  world_close(&w);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("build", &tc);
  tcase_add_test(tc, s19_one_build_for_24_threads);
  tcase_add_test(tc, s20_failing_builds_then_one_that_works);
  tcase_add_test(tc, s20_on_one_thread);
  tcase_add_test(tc, odd_answers_of_a_build_function);
  tcase_add_test(tc, begin_finds_or_builds);
  tcase_add_test(tc, g11_begin_waits_for_the_open_build);
  tcase_add_test(tc, g12_blocks_with_values_stay);
  tcase_add_test(tc, a_build_may_store_other_values);
  tcase_add_test(tc, g12_a_build_that_loses);
  tcase_add_test(tc, g10_get_or_build_gives_the_first_value);
  tcase_add_test(tc, misuse_leaves_the_build_open);
  tcase_add_test(tc, g12_abort_from_another_thread);
  tcase_add_test(tc, g12_an_abort_while_a_block_is_made);
  tcase_add_test(tc, g11_builds_whose_hashes_collide_are_two);
  tcase_add_test(tc, a_callback_may_not_end_its_build);
  tcase_add_test(tc, g12_blocks_wait_for_queued_work);
  tcase_add_loop_test(tc, g12_a_commit_that_cannot_mark_its_stream, 0, 2);
  tcase_add_test(tc, g12_out_of_device_memory);
  tcase_add_test(tc, g27_g28_a_miss_is_refused);
  tcase_add_test(tc, g28_builds_that_end_inside_a_capture);
  tcase_add_test(tc, g28_commit_on_a_stream_that_captures_undeclared);
  tcase_add_test(tc, g27_builds_end_inside_a_guard);
  tcase_add_test(tc, g11_builds_nest);
  tcase_add_test(tc, many_open_builds);
  tcase_add_test(tc, g11_racing_builds);
  tcase_add_test(tc, release_waits_for_open_builds);
  tcase_add_test(tc, release_takes_a_build_that_ends_in_time);
  tcase_add_test(tc, s29_a_build_that_never_ends);
  tcase_add_test(tc, release_does_not_wait_for_newer_builds);
  tcase_add_test(tc, g22_an_invalidate_that_waits_when_teardown_begins);
  tcase_add_test(tc, a_site_may_lack_a_name);
  tcase_add_test(tc, g12_a_commit_after_teardown_began);
  tcase_add_test(tc, a_builds_blocks_have_a_site);
  return fx_run(s);
}
