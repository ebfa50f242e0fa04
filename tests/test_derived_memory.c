/* SPDX-License-Identifier: MIT */
/*
 * Derived weights when host memory runs out (G33): each scenario is run with its Nth allocation failing, and with all
 * from the Nth on, for every N, until none fails. A failure is OC_E_HOST_NOMEM and leaves everything as it was; the same call then works.
 */
#include "config.h"

#include <stdio.h>

#include "liboc/model.h"
#include "rcu/mem.h"
#include "tests/world.h"
#include "tests/wrap.h"

#define ANY 0x7f0000u

/* ---- the fault ---- */

struct fault {
  unsigned left;        /* allocations until the one that fails */
  bool all;             /* and those after it */
  bool hit;
};

static bool countdown(void *arg, size_t bytes) {
  (void)bytes;
  struct fault *f = arg;
  if (f->hit) return f->all;
  return f->hit = --f->left == 0;
}

/* ---- scenarios ---- */

struct stage {
  struct world w;
  oc_stream s;
  oc_devptr src, mine, other, foreign;   /* blocks of the caller's */
  unsigned turn;                         /* attempts made, for names not seen before */
};

static oc_status no_op(struct stage *t) { (void)t; return OC_OK; }

static oc_status insert_ptr(struct stage *t) {
  return oc_derived_insert_ptr(t->w.d, OC_BF16, t->src + 8, t->mine, NULL);
}

static oc_status insert_pair(struct stage *t) {
  const uint64_t v[2] = {t->mine, t->other};
  return oc_derived_insert_pair(t->w.d, OC_ROWWISE_FP8, t->src, v, NULL);
}

/* The key's own block is nobody's to take: only the second half has a claim to give up. */
static oc_status insert_second(struct stage *t) {
  const uint64_t v[2] = {t->src, t->mine};
  return oc_derived_insert_pair(t->w.d, OC_ROWWISE_FP8, t->src, v, NULL);
}

static oc_status insert_foreign(struct stage *t) {
  const uint64_t v[2] = {t->mine, t->foreign};
  return oc_derived_insert_pair(t->w.d, OC_ROWWISE_FP8, 0x5000, v, NULL);
}

static oc_status note(struct stage *t) { return oc_pool_note_external(t->w.p, 0x4000, 0x4000, "framework"); }
static void unnote(struct stage *t) { ck_ok(oc_pool_forget_external(t->w.p, 0x4000)); }

static oc_status insert_borrowed(struct stage *t) {
  const uint64_t v[2] = {t->mine, 0x4800};
  return oc_derived_insert_pair(t->w.d, OC_ROWWISE_FP8, 0x5000, v, NULL);
}

static oc_status make(oc_build *b, void *arg, uint64_t *out) {
  struct stage *t = arg;
  oc_devptr p, unused;
  oc_status st = oc_build_on_stream(b, t->s);
  for (unsigned i = 0; i < 6 && !st; i++) st = oc_build_alloc(b, 256, 0, &unused);
  if (!st) st = oc_build_alloc(b, 1024, 0, &p);
  if (!st) *out = p;
  return st;
}

static oc_status build(struct stage *t) {
  uint64_t v;
  return oc_derived_get_or_build_ptr(t->w.d, OC_BF16, t->src + 16, make, t, &v);
}

static oc_status begin_commit(struct stage *t) {
  oc_build *b = NULL;
  uint64_t out[2] = {0, 0};
  oc_status st = oc_derived_begin(t->w.d, OC_BF16, ANY, &b, out);
  if (st != OC_MISS) return st;
  st = make(b, t, out);
  if (!st) return oc_build_commit(b, out, NULL);
  oc_build_abort(b);
  return st;
}

static void fill(struct stage *t) {
  put(&t->w, OC_BF16, t->src, block_of(&t->w, 512));
  put(&t->w, OC_BF16, value_of(&t->w, OC_BF16, t->src), block_of(&t->w, 512));
  ck_ok(build(t));
}

static void sync_on(struct stage *t) { fx_sync(t->w.b, t->s); }

static oc_status invalidate(struct stage *t) { return oc_derived_invalidate(t->w.d, t->src); }
static oc_status release(struct stage *t) { return oc_derived_release(t->w.d); }
static oc_status free_on(struct stage *t) { return oc_pool_free_on(t->w.p, t->src, t->s); }
static oc_status get_on(struct stage *t) {
  uint64_t v;
  return oc_derived_get_ptr_on(t->w.d, OC_BF16, t->src + 16, t->s, &v);
}

static oc_status register_kind(struct stage *t) {
  oc_kind k;
  char name[32];
  snprintf(name, sizeof name, "memory-%u", t->turn);
  return oc_kind_register(name, OC_PTR, &k);
}

static void before_note(struct stage *t) { ck_ok(note(t)); }

/* Put before, try under the fault, take back after. waits_only: a failure may come after the point of no return, when
   the values are out already; then their blocks are kept, retired. frugal: allocates nothing, and so cannot fail. */
struct scenario {
  const char *name;
  void (*before)(struct stage *t);
  oc_status (*run)(struct stage *t);
  void (*after)(struct stage *t);
  bool waits_only, frugal;
};

static const struct scenario scenarios[] = {
  {"nothing", NULL, no_op, NULL, false, true},
  {"insert a pointer", NULL, insert_ptr, NULL, false, false},
  {"insert a pair", NULL, insert_pair, NULL, false, false},
  {"insert a pair of the source and a block", NULL, insert_second, NULL, false, false},
  {"insert a foreign value", NULL, insert_foreign, NULL, false, false},
  {"note external memory", NULL, note, unnote, false, false},
  {"insert a borrowed value", before_note, insert_borrowed, unnote, false, false},
  {"get_or_build", NULL, build, sync_on, false, false},
  {"begin, alloc, commit", NULL, begin_commit, sync_on, false, false},
  {"get_on", fill, get_on, NULL, false, true},
  {"invalidate", fill, invalidate, NULL, false, true},
  {"release", fill, release, NULL, false, true},
  {"free_on of a source", fill, free_on, NULL, true, false},
  {"register a kind", NULL, register_kind, NULL, false, false},
};

/* ---- the loop ---- */

struct state { size_t len; uint64_t live_blocks, live_bytes, device_blocks; };

static struct state look(struct stage *t) {
  ck_ok(oc_pool_check(t->w.p));
  fx_sync(t->w.b, t->s);
  oc_pool_stats f = figures(&t->w);
  return (struct state){oc_derived_len(t->w.d), f.live_blocks, f.live_bytes, fx_blocks(t->w.b)};
}

static void open_stage(struct stage *t, unsigned turn) {
  *t = (struct stage){.w = world_open(), .turn = turn};
  ck_status(oc_derived_invalidate(t->w.d, 0), OC_E_INVALID);   /* the thread has room for its errors' words now */
  t->s = fx_stream(t->w.b);
  t->src = block_of(&t->w, 4096);
  t->mine = block_of(&t->w, 1000);
  t->other = block_of(&t->w, 1000);
  ck_ok(oc_backend_table(t->w.b)->alloc(oc_backend_self(t->w.b), 4096, &t->foreign));
}

static void close_stage(struct stage *t) {
  ck_ok(oc_derived_release(t->w.d));
  ck_ok(oc_model_forget_stream(t->w.m, t->s));
  fx_stream_free(t->w.b, t->s);
  (void)!oc_backend_table(t->w.b)->free(oc_backend_self(t->w.b), t->foreign);   /* unless a value of ours */
  ck_ok(oc_model_destroy(t->w.m));
  ck_ok(oc_backend_close(t->w.b));
}

static void same(const char *name, unsigned n, struct state a, struct state b) {
  ck_assert_msg(memcmp(&a, &b, sizeof a) == 0, "%s, allocation %u: %zu entries, %llu blocks of %llu bytes, %llu device blocks; "
                "before: %zu, %llu of %llu, %llu", name, n, b.len, (unsigned long long)b.live_blocks,
                (unsigned long long)b.live_bytes, (unsigned long long)b.device_blocks, a.len,
                (unsigned long long)a.live_blocks, (unsigned long long)a.live_bytes, (unsigned long long)a.device_blocks);
}

/* One attempt with the nth allocation failing; false: it did not come to that. */
static bool attempt(const struct scenario *c, unsigned n, bool all) {
  struct stage t;
  open_stage(&t, n);
  if (c->before) c->before(&t);
  struct state was = look(&t);
  struct fault f = {.left = n, .all = all};
  oci_mem_set_fault(countdown, &f);
  oc_status st = c->run(&t);
  oci_mem_set_fault(NULL, NULL);
  /* an allocation that only saves work (a spare record, a bigger table) may fail unseen */
  ck_assert_msg(st == OC_OK || (f.hit && st == OC_E_HOST_NOMEM), "%s, allocation %u: %s: %s", c->name, n, oc_status_name(st),
                oc_last_error());
  if (st) {
    ck_words("host memory");
    struct state is = look(&t);
    bool out = c->waits_only && is.len < was.len;
    if (!out) same(c->name, n, was, is);
    ck_ok(oc_model_graphs_gone(t.w.m));
    ck_assert_uint_eq(figures(&t.w).retired_bytes, 0);
    ck_ok(c->run(&t));
  }
  if (c->after) c->after(&t);
  close_stage(&t);
  return f.hit;
}

static void no_complaint(void *arg, int level, const char *line) {
  (void)arg;
  ck_assert_msg(level > 1, "the library logged: %s", line);   /* a heap that was not empty, and the like */
}

START_TEST(g33_fail_each_allocation) {
  oc_set_log(no_complaint, NULL);
  const struct scenario *c = &scenarios[_i / 2];
  unsigned n = 1;
  while (attempt(c, n, _i % 2)) {
    n++;
    ck_assert_uint_lt(n, 1000);
  }
  ck_assert_msg((n == 1) == c->frugal, "%s: %u allocations failed", c->name, n - 1);
}
END_TEST

/* A key's block that could not be tracked would be freed under its entries: an insert that worked counts, whatever
   failed on the way. */
START_TEST(g15_an_insert_that_worked_is_tracked) {
  for (unsigned n = 1; n < 20; n++) {
    struct stage t;
    open_stage(&t, n);
    struct fault f = {.left = n};
    oci_mem_set_fault(countdown, &f);
    oc_status st = insert_ptr(&t);
    oci_mem_set_fault(NULL, NULL);
    oc_guard_enter();
    ck_status(oc_pool_free(t.w.p, t.src), st ? OC_OK : OC_E_GUARDED);
    oc_guard_leave();
    close_stage(&t);
  }
}
END_TEST

/* ---- a free in the middle ---- */

struct thief {
  struct stage *t;
  int freed;
};

/* As another thread would: between the look at the key's block and the note that it is a source. */
static bool free_source(void *arg, size_t bytes) {
  struct thief *f = arg;
  (void)bytes;
  /* the entry's record is there, so that this one is for the span of its key */
  if (!f->t->w.d->entry_records.newest || f->freed != POOL_MISS) return false;
  f->freed = oci_pool_free(f->t->w.p->core, f->t->src, BLOCK_BIT(BLOCK_USER), RELEASE_NOW, NULL, false);
  return false;
}

START_TEST(a_source_may_be_freed_under_an_insert) {
  struct stage t;
  open_stage(&t, 0);
  struct thief f = {.t = &t, .freed = POOL_MISS};
  oci_mem_set_fault(free_source, &f);
  ck_status(insert_ptr(&t), OC_E_NOT_OWNED);
  oci_mem_set_fault(NULL, NULL);
  ck_assert_int_eq(f.freed, POOL_OK);
  ck_words("oc_derived_insert_ptr");
  ck_assert_uint_eq(oc_derived_len(t.w.d), 0);
  ck_ok(oc_pool_free(t.w.p, t.mine));   /* the caller's still */
  ck_ok(oc_pool_check(t.w.p));
  close_stage(&t);
}
END_TEST

/* ---- a value that goes while a stream is named for it ---- */

static oc_status make_on(oc_build *b, void *arg, uint64_t *out) {
  oc_status st = oc_build_on_stream(b, arg);
  return st ? st : oc_build_alloc(b, 256, 0, out);
}
static oc_status make_pair_on(oc_build *b, void *arg, uint64_t out[2]) { return make_on(b, arg, &out[0]); }

struct remover {
  struct call c;
  struct side side;
  bool armed;
};

/* Inside the lookup, which found the value and now makes its stream's record. */
static bool remove_meanwhile(void *arg, size_t bytes) {
  struct remover *r = arg;
  (void)bytes;
  if (!r->armed) return false;
  r->armed = false;
  side_start(&r->side, call_invalidate, &r->c);
  fx_until(oc_derived_len(r->c.w->d) == 0);
  return false;
}

/* Not ordered after an event of what is gone, nor handed out: looked for again, and not there. */
START_TEST(a_value_may_go_while_its_stream_is_named) {
  oc_backend_ops ops = wrap_table();
  ops.capturing = NULL;   /* so that the other thread unpublishes before it needs the model's lock, which we have */
  for (int pair = 0; pair < 2; pair++) {
    struct wrap wrap;
    wrap_open_ops(&wrap, NULL, &ops);
    struct world w = world_on(wrap.outer, (oc_model_options){0});
    oc_stream s = fx_stream(wrap.inner), other = fx_stream(wrap.inner);
    struct remover r = {.c = {.w = &w, .key = ANY}, .armed = true};
    uint64_t v[2];
    if (pair) ck_ok(oc_derived_get_or_build_pair(w.d, OC_ROWWISE_FP8, ANY, make_pair_on, s, v));
    else ck_ok(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, make_on, s, v));
    v[0] = 77;
    oci_mem_set_fault(remove_meanwhile, &r);
    if (pair) ck_status(oc_derived_get_pair_on(w.d, OC_ROWWISE_FP8, ANY, other, v), OC_MISS);
    else ck_status(oc_derived_get_ptr_on(w.d, OC_BF16, ANY, other, v), OC_MISS);
    oci_mem_set_fault(NULL, NULL);
    ck_assert(!r.armed);
    side_join(&r.side);
    ck_assert_int_eq(r.c.status, OC_OK);
    ck_assert_uint_eq(v[0], 77);
    ck_assert_uint_eq(wrap_calls(&wrap, "event_wait"), 0);
    ck_ok(oc_model_destroy(w.m));
    fx_stream_free(wrap.inner, s);
    fx_stream_free(wrap.inner, other);
    wrap_close(&wrap);
  }
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("derived_memory", &tc);
  tcase_add_loop_test(tc, g33_fail_each_allocation, 0, 2 * (int)(sizeof scenarios / sizeof *scenarios));
  tcase_add_test(tc, g15_an_insert_that_worked_is_tracked);
  tcase_add_test(tc, a_source_may_be_freed_under_an_insert);
  tcase_add_test(tc, a_value_may_go_while_its_stream_is_named);
  return fx_run(s);
}
