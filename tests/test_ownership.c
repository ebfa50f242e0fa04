/* SPDX-License-Identifier: MIT */
/* Who owns a derived value, and what freeing a block does to those derived from it (G13, G15, G21; S1, S2, S25, S31, S35). */
#include "config.h"

#include "tests/wrap.h"
#include "tests/world.h"

#define ANY 0x7f0000u   /* a source address that is in no pool */

/* A world over a backend that writes calls down. */
struct logged {
  struct wrap wrap;
  struct world w;
};

static void open_logged(struct logged *l) {
  wrap_open(&l->wrap, NULL);
  l->w = world_on(l->wrap.outer, (oc_model_options){0});
}

static void close_logged(struct logged *l) {
  ck_ok(oc_pool_check(l->w.p));
  ck_ok(oc_model_destroy(l->w.m));
  wrap_close(&l->wrap);
}

/* Memory that the engine got from the driver itself. */
static oc_devptr foreign(struct logged *l) {
  oc_devptr p;
  ck_ok(oc_backend_table(l->wrap.outer)->alloc(oc_backend_self(l->wrap.outer), 4096, &p));
  return p;
}

static unsigned frees_of(struct logged *l, uint64_t ptr) {
  unsigned n = 0;
  for (unsigned i = 0; i < l->wrap.count && i < WRAP_LOG; i++)
    n += strcmp(l->wrap.log[i].entry, "free") == 0 && l->wrap.log[i].arg == ptr;
  return n;
}

static void invalidate(struct world *w, uint64_t key) { ck_ok(oc_derived_invalidate(w->d, key)); }

static void refuse_ptr(struct world *w, uint64_t key, uint64_t value) {
  uint64_t kept = 77;
  size_t len = oc_derived_len(w->d);
  ck_status(oc_derived_insert_ptr(w->d, OC_BF16, key, value, &kept), OC_E_NOT_OWNED);
  ck_assert_uint_eq(kept, 77);
  ck_assert_uint_eq(oc_derived_len(w->d), len);
  ck_ok(oc_pool_check(w->p));
}

/* ---- values in blocks of this pool ---- */

/* G13, G21: a block that became a value is the model's, and goes with its entry. */
START_TEST(g13_a_block_of_the_pool) {
  struct world w = world_open();
  oc_devptr a = block_of(&w, 1000);
  put(&w, OC_BF16, ANY, a);
  ck_status(oc_pool_free(w.p, a), OC_E_NOT_OWNED);
  ck_status(oc_pool_free_on(w.p, a, NULL), OC_E_NOT_OWNED);
  ck_status(oc_pool_free(w.p, a + 1), OC_E_INTERIOR);
  ck_assert_uint_eq(live_blocks(&w), 1);
  invalidate(&w, ANY);
  ck_assert_uint_eq(live_blocks(&w), 0);
  ck_status(oc_pool_free(w.p, a), OC_E_NOT_OWNED);
  world_close(&w);
}
END_TEST

/* G13: a value anywhere inside a block, to its last byte, takes the block. */
START_TEST(g13_an_interior_pointer_takes_the_block) {
  struct world w = world_open();
  const size_t at[] = {1, 255, 256, 999};
  for (size_t i = 0; i < 4; i++) {
    oc_devptr a = block_of(&w, 1000);
    put(&w, OC_BF16, ANY, a + at[i]);
    ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), a + at[i]);
    ck_status(oc_pool_free(w.p, a), OC_E_NOT_OWNED);
    invalidate(&w, ANY);
    ck_assert_uint_eq(live_blocks(&w), 0);
  }
  world_close(&w);
}
END_TEST

/* S25: (p, p), (p, 0), (0, p), (p, p + n): one block, freed once; (p, q): both. */
START_TEST(s25_pairs) {
  struct world w = world_open();
  for (unsigned shape = 0; shape < 5; shape++) {
    oc_devptr p = block_of(&w, 2000), q = shape == 4 ? block_of(&w, 10) : 0;
    const uint64_t pairs[5][2] = {{p, p}, {p, 0}, {0, p}, {p + 100, p + 1999}, {p, q}};
    put_pair(&w, ANY, pairs[shape][0], pairs[shape][1]);
    uint64_t out[2];
    ck_ok(oc_derived_get_pair(w.d, OC_ROWWISE_FP8, ANY, out));
    ck_assert(out[0] == pairs[shape][0] && out[1] == pairs[shape][1]);
    ck_status(oc_pool_free(w.p, p), OC_E_NOT_OWNED);
    ck_assert_uint_eq(live_blocks(&w), shape == 4 ? 2 : 1);
    invalidate(&w, ANY);
    ck_assert_uint_eq(live_blocks(&w), 0);
    ck_ok(oc_pool_check(w.p));
  }
  world_close(&w);
}
END_TEST

/* G13: entries of several keys and kinds in one block: it goes with the last of them, in any order. */
START_TEST(g13_the_last_entry_frees_the_block) {
  struct world w = world_open();
  for (unsigned order = 0; order < 6; order++) {
    static const unsigned perm[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    oc_devptr p = block_of(&w, 3000);
    put(&w, OC_BF16, ANY, p);
    put(&w, OC_CUTLASS_NVFP4_T, ANY + 1, p);
    put_pair(&w, ANY + 2, p + 1000, p + 2000);
    for (unsigned i = 0; i < 3; i++) {
      ck_assert_uint_eq(live_blocks(&w), 1);
      invalidate(&w, ANY + perm[order][i]);
    }
    ck_assert_uint_eq(live_blocks(&w), 0);
  }
  world_close(&w);
}
END_TEST

/* What is keyed inside a shared block goes with the block, not before: counts must be right after each step. */
START_TEST(g13_a_key_inside_a_shared_block_goes_with_it) {
  struct world w = world_open();
  for (unsigned round = 0; round < 3; round++) {
    oc_devptr s = block_of(&w, 4096), x = block_of(&w, 256);
    for (unsigned i = 0; i < 4; i++) put(&w, OC_BF16, ANY + i, s + i);
    put(&w, OC_CUTLASS_NVFP4_T, s + 777, x);   /* the key is no entry's value */
    for (unsigned i = 0; i < 3; i++) {
      invalidate(&w, ANY + i);
      ck_assert_uint_eq(oc_derived_len(w.d), 4 - i);
      ck_assert_uint_eq(value_of(&w, OC_CUTLASS_NVFP4_T, s + 777), x);
    }
    invalidate(&w, ANY + 3);
    ck_assert_uint_eq(oc_derived_len(w.d), 0);
    ck_assert_uint_eq(live_blocks(&w), 0);
    ck_ok(oc_pool_check(w.p));
  }
  world_close(&w);
}
END_TEST

/* ---- borrowed values ---- */

/* S35: tied weights. The owner's free forgets the entry; the entry never frees the owner's block. */
START_TEST(s35_tied_weights_are_borrowed) {
  struct world w = world_open();
  oc_devptr tied, own = block_of(&w, 64);
  ck_ok(oc_pool_alloc_owned(w.p, "weights", 5000, 0, &tied));
  put(&w, OC_BF16, ANY, tied);
  put_pair(&w, ANY + 1, tied + 4999, own);
  invalidate(&w, ANY);
  ck_assert_uint_eq(live_blocks(&w), 2);
  put(&w, OC_BF16, ANY, tied);
  ck_ok(oc_pool_free(w.p, tied));                 /* frees once, and what the other half owned */
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  ck_status(oc_pool_free(w.p, tied), OC_E_NOT_OWNED);
  world_close(&w);
}
END_TEST

/* S35 at teardown: borrowed and never freed twice, whichever owner went first. */
START_TEST(s35_teardown_frees_tied_weights_with_their_arena) {
  struct world w = world_open();
  oc_devptr tied;
  ck_ok(oc_pool_alloc_owned(w.p, "weights", 5000, 0, &tied));
  put(&w, OC_BF16, ANY, tied);
  uint64_t frees = fx_calls(w.b, "free");
  ck_ok(oc_model_destroy(w.m));
  ck_assert_uint_eq(fx_calls(w.b, "free"), frees + 1);
  fx_close(w.b);
}
END_TEST

/* G13: external memory is borrowed; forgetting it forgets the entries with keys or values in it. */
START_TEST(g13_external_memory_is_borrowed) {
  struct logged l;
  open_logged(&l);
  oc_devptr ext = foreign(&l), own = block_of(&l.w, 64);
  ck_ok(oc_pool_note_external(l.w.p, ext, 4096, "framework"));
  put(&l.w, OC_BF16, ANY, ext);                     /* value at its start */
  put(&l.w, OC_BF16, ANY + 1, ext + 4095);          /* at its end */
  put(&l.w, OC_CUTLASS_NVFP4_T, ext + 8, own);      /* a key in it */
  invalidate(&l.w, ANY);
  put(&l.w, OC_BF16, ANY, ext);
  ck_status(oc_pool_forget_external(l.w.p, ext + 1), OC_E_INTERIOR);
  ck_status(oc_pool_forget_external(l.w.p, ext + 4096), OC_E_NOT_OWNED);
  oc_guard_enter();
  ck_status(oc_pool_forget_external(l.w.p, ext), OC_E_GUARDED);
  oc_guard_leave();
  ck_assert_uint_eq(oc_derived_len(l.w.d), 3);
  ck_ok(oc_pool_forget_external(l.w.p, ext));
  ck_assert_uint_eq(oc_derived_len(l.w.d), 0);
  ck_assert_uint_eq(live_blocks(&l.w), 0);
  ck_status(oc_pool_forget_external(l.w.p, ext), OC_E_NOT_OWNED);
  ck_assert_uint_eq(frees_of(&l, ext), 0);
  ck_ok(oc_backend_table(l.wrap.outer)->free(oc_backend_self(l.wrap.outer), ext));
  close_logged(&l);
}
END_TEST

/* G13: a value in its own key's block is that block's. */
START_TEST(g13_a_value_in_its_keys_block) {
  struct world w = world_open();
  oc_devptr src = block_of(&w, 1000);
  put(&w, OC_BF16, src, src + 500);
  put_pair(&w, src + 10, src + 20, src + 30);
  ck_assert_uint_eq(oc_derived_len(w.d), 2);
  invalidate(&w, src);
  ck_assert_uint_eq(live_blocks(&w), 1);
  put(&w, OC_BF16, src, src + 500);
  ck_ok(oc_pool_free(w.p, src));                    /* still the caller's */
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* S25: a value equal to its own key is never freed, wherever it is. */
START_TEST(s25_a_value_equal_to_its_key) {
  struct logged l;
  open_logged(&l);
  oc_devptr in_pool = block_of(&l.w, 64), out = foreign(&l), own = block_of(&l.w, 64);
  put(&l.w, OC_BF16, in_pool, in_pool);
  put(&l.w, OC_BF16, out, out);
  put_pair(&l.w, out, out, own);
  invalidate(&l.w, out);
  invalidate(&l.w, in_pool);
  ck_assert_uint_eq(oc_derived_len(l.w.d), 0);
  ck_assert_uint_eq(live_blocks(&l.w), 1);          /* own went with its pair */
  put(&l.w, OC_BF16, in_pool, in_pool);
  put(&l.w, OC_BF16, out, out);
  ck_ok(oc_pool_free(l.w.p, in_pool));
  ck_ok(oc_pool_check(l.w.p));
  ck_ok(oc_model_destroy(l.w.m));
  ck_assert_uint_eq(frees_of(&l, out), 0);
  ck_ok(oc_backend_table(l.wrap.outer)->free(oc_backend_self(l.wrap.outer), out));
  wrap_close(&l.wrap);
}
END_TEST

/* ---- values outside every pool ---- */

/* G13: freed through the backend, once, with the last entry. */
START_TEST(g13_foreign_values_go_back_to_the_driver_once) {
  struct logged l;
  open_logged(&l);
  oc_devptr p = foreign(&l), q = foreign(&l), r = foreign(&l);
  put(&l.w, OC_BF16, ANY, p);
  put(&l.w, OC_BF16, ANY + 1, p);
  put_pair(&l.w, ANY + 2, p, q);
  put_pair(&l.w, ANY + 3, r, r);
  invalidate(&l.w, ANY);
  invalidate(&l.w, ANY + 2);
  ck_assert(frees_of(&l, p) == 0 && frees_of(&l, q) == 1);
  invalidate(&l.w, ANY + 1);
  ck_assert_uint_eq(frees_of(&l, p), 1);
  ck_assert_uint_eq(frees_of(&l, r), 0);
  ck_ok(oc_model_destroy(l.w.m));                   /* teardown does the rest */
  ck_assert(frees_of(&l, p) == 1 && frees_of(&l, q) == 1 && frees_of(&l, r) == 1);
  wrap_close(&l.wrap);
}
END_TEST

static bool refuse_free(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  if (strcmp(entry, "free") != 0 || arg != *(oc_devptr *)w->hook_arg) return false;
  *answer = OC_E_BACKEND;
  return true;
}

/* A driver that refuses the free: said once, forgotten all the same, not tried again. */
START_TEST(g13_a_refused_free_is_said_once) {
  struct logged l;
  open_logged(&l);
  oc_devptr p = foreign(&l), q = foreign(&l);
  const uint64_t keys[2] = {ANY, ANY + 1};
  put(&l.w, OC_BF16, ANY, p);
  put(&l.w, OC_BF16, ANY + 1, q);
  l.wrap.hook_arg = &p;
  l.wrap.hook = refuse_free;
  ck_status(oc_derived_invalidate_n(l.w.d, keys, 2), OC_E_BACKEND);
  l.wrap.hook = NULL;
  ck_assert_uint_eq(oc_derived_len(l.w.d), 0);
  ck_assert(frees_of(&l, p) == 1 && frees_of(&l, q) == 1);
  ck_ok(oc_derived_invalidate_n(l.w.d, keys, 2));
  ck_ok(oc_model_destroy(l.w.m));
  ck_assert_uint_eq(frees_of(&l, p), 1);
  ck_ok(oc_backend_table(l.wrap.inner)->free(oc_backend_self(l.wrap.inner), p));
  wrap_close(&l.wrap);
}
END_TEST

struct refusals {
  const oc_status *as;   /* [n]: the answers to the first n frees */
  unsigned n, met;
};

static bool refuse_frees(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct refusals *r = w->hook_arg;
  (void)arg;
  if (strcmp(entry, "free") != 0) return false;
  if (r->met < r->n) *answer = r->as[r->met];
  return r->met++ < r->n;
}

/* Of several refused the first is said; but none after the context is gone is tried, and that is said. */
START_TEST(g25_refused_frees_of_several_values) {
  const oc_status again[] = {OC_E_BACKEND, OC_E_IO}, gone[] = {OC_E_BACKEND, OC_E_DEVICE_LOST};
  for (int lost = 0; lost < 2; lost++) {
    struct logged l;
    open_logged(&l);
    struct refusals r = {.as = lost ? gone : again, .n = 2};
    for (uint64_t i = 0; i < 3; i++) put(&l.w, OC_BF16, ANY + i, foreign(&l));
    l.wrap.hook_arg = &r;
    l.wrap.hook = refuse_frees;
    ck_status(oc_derived_release(l.w.d), lost ? OC_E_DEVICE_LOST : OC_E_BACKEND);
    ck_assert_uint_eq(r.met, lost ? 2 : 3);
    ck_assert_uint_eq(oc_derived_len(l.w.d), 0);
    l.wrap.hook = NULL;
    ck_ok(oc_model_destroy(l.w.m));
    ck_assert_uint_eq(r.met, lost ? 2 : 3);   /* forgotten: not tried again */
    wrap_close_dirty(&l.wrap);
  }
}
END_TEST

/* ---- values that are refused ---- */

/* G13: another model's pool is its own, whatever class the block has; its model may free it. */
START_TEST(g13_another_models_block_is_refused) {
  struct world w = world_open();
  struct world other = world_on(w.b, (oc_model_options){.name = "other"});
  oc_devptr user = block_of(&other, 100), owned;
  ck_ok(oc_pool_alloc_owned(other.p, "weights", 100, 0, &owned));
  refuse_ptr(&w, ANY, user);
  ck_words("another model");
  refuse_ptr(&w, ANY, user + 50);
  refuse_ptr(&w, ANY, owned);
  const uint64_t halves[2] = {0, user};
  ck_status(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, ANY, halves, NULL), OC_E_NOT_OWNED);
  oc_build *b = begin(&w, OC_BF16, ANY);
  const uint64_t v[2] = {user, 0};
  ck_status(oc_build_commit(b, v, NULL), OC_E_NOT_OWNED);
  put(&w, OC_BF16, user, user);                     /* as a key, and as its own value, it is just a number */
  oc_devptr nobodys;
  ck_ok(oc_backend_table(w.b)->alloc(oc_backend_self(w.b), 100, &nobodys));
  put(&w, OC_BF16, ANY + 1, nobodys);               /* in neither pool: the engine's own, and now the model's to free */
  ck_ok(oc_pool_free(other.p, user));
  ck_ok(oc_pool_free(other.p, owned));
  ck_ok(oc_model_destroy(other.m));
  world_close(&w);
}
END_TEST

/* G13: scratch, freed, pending, retired, and other builds' blocks. */
START_TEST(g13_blocks_that_are_nobodys_to_give_are_refused) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_devptr scratch, freed = block_of(&w, 100), pending = block_of(&w, 100), retired = block_of(&w, 100);
  ck_ok(oc_opcache_scratch(oc_model_opcache(w.m), "act", 1000, &scratch));
  ck_ok(oc_pool_free(w.p, freed));
  fx_stall(w.b, s, true);
  ck_ok(oc_pool_free_on(w.p, pending, s));
  ck_ok(oc_capture_enter(w.m, s));
  ck_ok(oc_pool_free(w.p, retired));
  oc_capture_leave(w.m);
  oc_build *other = begin(&w, OC_CUTLASS_NVFP4_T, ANY);
  oc_devptr theirs = build_block(other, 100);
  const uint64_t bad[] = {scratch, scratch + 999, freed, pending, retired, theirs, theirs + 50};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    refuse_ptr(&w, ANY, bad[i]);
    oc_build *b = begin(&w, OC_BF16, ANY);
    oc_devptr mine = build_block(b, 64);
    const uint64_t v[2] = {bad[i], 0};
    ck_status(oc_build_commit(b, v, NULL), OC_E_NOT_OWNED);   /* ends it, as abort does */
    ck_status(oc_pool_free(w.p, mine), OC_E_NOT_OWNED);
    ck_words("free memory");
  }
  oc_build_abort(other);
  fx_stall(w.b, s, false);
  fx_sync(w.b, s);
  ck_ok(oc_model_graphs_gone(w.m));
  ck_assert_uint_eq(live_blocks(&w), 1);            /* the scratch */
  ck_assert_uint_eq(figures(&w).retired_bytes, 0);
  world_close_stream(&w, s);
}
END_TEST

/* A failure in one half undoes the other: the block is the caller's as before. */
START_TEST(a_refused_half_undoes_the_other) {
  struct world w = world_open();
  oc_devptr scratch, mine = block_of(&w, 100);
  ck_ok(oc_opcache_scratch(oc_model_opcache(w.m), "act", 1000, &scratch));
  const uint64_t a[2] = {mine, scratch}, b[2] = {scratch, mine};
  ck_status(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, ANY, a, NULL), OC_E_NOT_OWNED);
  ck_status(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, ANY, b, NULL), OC_E_NOT_OWNED);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_ok(oc_pool_free(w.p, mine));
  world_close(&w);
}
END_TEST

static void call_invalidate_any(void *arg) { ck_ok(oc_derived_invalidate(((struct world *)arg)->d, ANY)); }

/* Nor is a range forgotten twice in which key and first half lie. The second half is a value on its way out. */
START_TEST(a_refused_half_leaves_the_keys_range) {
  if (!fx_can(FX_STALL)) { fx_skip("no stalls"); return; }
  struct logged l;
  open_logged(&l);
  oc_stream s = fx_stream(l.wrap.inner);
  oc_devptr going = foreign(&l), range = foreign(&l);
  const uint64_t pair[2] = {range + 0x100, going};
  struct side side;
  put(&l.w, OC_BF16, ANY, going);
  ck_ok(oc_model_use_stream(l.w.m, s));
  ck_ok(oc_pool_note_external(l.w.p, range, 4096, "engine"));
  fx_stall(l.wrap.inner, s, true);
  ck_ok(oc_backend_table(l.wrap.inner)->memset(oc_backend_self(l.wrap.inner), going, 1, 64, s));
  side_start(&side, call_invalidate_any, &l.w);
  side_waits(&side);
  ck_status(oc_derived_insert_pair(l.w.d, OC_ROWWISE_FP8, range + 0x10, pair, NULL), OC_E_NOT_OWNED);
  fx_stall(l.wrap.inner, s, false);
  side_join(&side);
  put(&l.w, OC_BF16, range + 0x10, range + 0x200);   /* its span is made anew, and goes with the range */
  ck_ok(oc_pool_forget_external(l.w.p, range));
  ck_assert_uint_eq(oc_derived_len(l.w.d), 0);
  ck_ok(oc_backend_table(l.wrap.inner)->free(oc_backend_self(l.wrap.inner), range));
  ck_ok(oc_model_destroy(l.w.m));
  fx_stream_free(l.wrap.inner, s);
  wrap_close(&l.wrap);
}
END_TEST

/* A value from elsewhere is the model's; noted as another's memory later, what is inserted then is borrowed. One address, two owners. */
START_TEST(a_foreign_value_may_be_noted_later) {
  struct logged l;
  open_logged(&l);
  oc_devptr p = foreign(&l);
  put(&l.w, OC_BF16, ANY, p);
  ck_ok(oc_pool_note_external(l.w.p, p, 4096, "engine"));
  put(&l.w, OC_BF16, ANY + 1, p);
  invalidate(&l.w, ANY);
  ck_assert_uint_eq(frees_of(&l, p), 1);
  ck_assert_uint_eq(value_of(&l.w, OC_BF16, ANY + 1), p);
  invalidate(&l.w, ANY + 1);
  ck_assert_uint_eq(frees_of(&l, p), 1);
  ck_ok(oc_pool_forget_external(l.w.p, p));
  close_logged(&l);
}
END_TEST

struct late_free {
  struct world w;
  oc_devptr source;
  uint64_t value;
  oc_status status;
  size_t len;
};

static void *free_late(void *arg) {
  struct late_free *f = arg;
  f->status = oc_pool_free(f->w.p, f->source);
  f->len = oc_derived_len(f->w.d);
  return NULL;
}

static bool free_meanwhile(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  struct late_free *f = w->hook_arg;
  pthread_t other;
  (void)answer;
  if (strcmp(entry, "free") != 0 || arg != f->value) return false;
  ck_assert_int_eq(pthread_create(&other, NULL, free_late, f), 0);
  pthread_join(other, NULL);
  return false;
}

/* Teardown has forgotten the derived values and frees the one that is not the pool's; a source is freed meanwhile. */
START_TEST(g22_a_source_is_freed_while_values_go) {
  struct logged l;
  open_logged(&l);
  struct late_free f = {.w = l.w, .source = block_of(&l.w, 1000), .value = foreign(&l), .status = OC_MISS, .len = 77};
  put(&l.w, OC_BF16, f.source, block_of(&l.w, 1000));
  put(&l.w, OC_BF16, ANY, f.value);
  l.wrap.hook_arg = &f;
  l.wrap.hook = free_meanwhile;
  oc_report *r;
  ck_ok(oc_model_teardown(l.w.m, &r));
  l.wrap.hook = NULL;
  ck_assert_int_eq(f.status, OC_OK);
  ck_assert_uint_eq(f.len, 0);
  ck_assert_uint_eq(oc_report_blocks_swept(r), 0);
  oc_report_free(r);
  ck_ok(oc_model_destroy(l.w.m));
  wrap_close(&l.wrap);
}
END_TEST

/* ---- freeing a source ---- */

/* G15: a key anywhere in a block; free and free_on; the block is free afterwards. */
START_TEST(g15_freeing_a_block_forgets_its_keys) {
  struct world w = world_open();
  for (unsigned form = 0; form < 2; form++) {
    oc_devptr fused = block_of(&w, 3000);
    const size_t at[] = {0, 1, 1000, 2999};
    for (size_t i = 0; i < 4; i++) put(&w, OC_BF16, fused + at[i], block_of(&w, 64));
    put_pair(&w, fused + 1000, block_of(&w, 64), 0);
    put(&w, OC_BF16, ANY, block_of(&w, 64));
    ck_assert_uint_eq(live_blocks(&w), 7);
    ck_ok(form ? oc_pool_free_on(w.p, fused, NULL) : oc_pool_free(w.p, fused));
    fx_sync(w.b, NULL);
    ck_assert_uint_eq(oc_derived_len(w.d), 1);
    ck_assert_uint_eq(live_blocks(&w), 1);
    for (size_t i = 0; i < 4; i++) ck_assert_uint_eq(value_of(&w, OC_BF16, fused + at[i]), 0);
    invalidate(&w, ANY);
  }
  world_close(&w);
}
END_TEST

/* A scratch buffer's memory is another's when it has grown: what was derived from it would be found for whatever comes there. */
START_TEST(g15_a_key_in_scratch_is_refused) {
  struct world w = world_open();
  oc_opcache *c = oc_model_opcache(w.m);
  oc_devptr scratch, value = block_of(&w, 64);
  oc_build *build = NULL;
  uint64_t got[2];
  ck_ok(oc_opcache_scratch(c, "workspace", 3000, &scratch));
  for (size_t at = 0; at < 3000; at += 2999) {
    ck_status(oc_derived_insert_ptr(w.d, OC_BF16, scratch + at, value, NULL), OC_E_NOT_OWNED);
    ck_assert_ptr_nonnull(strstr(oc_last_error(), "is in a scratch buffer"));
    ck_status(oc_derived_begin(w.d, OC_BF16, scratch + at, &build, got), OC_E_NOT_OWNED);
    ck_assert_ptr_nonnull(strstr(oc_last_error(), "is in a scratch buffer"));
    ck_assert_uint_eq(value_of(&w, OC_BF16, scratch + at), 0);
  }
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  put(&w, OC_BF16, ANY, value);
  invalidate(&w, ANY);
  world_close(&w);
}
END_TEST

/* G15, G27, G28: such a free is refused inside a guard and a capture, and nothing changes; others work there. */
START_TEST(g15_a_free_that_would_wait_is_refused) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_devptr src = block_of(&w, 100), plain = block_of(&w, 100), plain2 = block_of(&w, 100), v = block_of(&w, 100);
  put(&w, OC_BF16, src, v);
  oc_guard_enter();
  ck_status(oc_pool_free(w.p, src), OC_E_GUARDED);
  ck_status(oc_pool_free_on(w.p, src, s), OC_E_GUARDED);
  ck_ok(oc_pool_free(w.p, plain));
  oc_guard_leave();
  ck_ok(oc_capture_enter(w.m, s));
  ck_status(oc_pool_free(w.p, src), OC_E_CAPTURING);
  ck_status(oc_pool_free_on(w.p, src, s), OC_E_CAPTURING);
  ck_ok(oc_pool_free(w.p, plain2));
  oc_capture_leave(w.m);
  ck_assert_uint_eq(value_of(&w, OC_BF16, src), v);
  ck_assert_uint_eq(live_blocks(&w), 2);
  ck_ok(oc_pool_free(w.p, src));
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close_stream(&w, s);
}
END_TEST

/* G15: the first build of a key already counts: whoever frees its source waits for it, and the value goes too. */
START_TEST(g15_freeing_the_source_of_a_first_build_waits_for_it) {
  struct world w = world_open();
  oc_devptr src = block_of(&w, 1000);
  oc_build *b = begin(&w, OC_BF16, src + 100);
  ck_status(oc_pool_free(w.p, src), OC_E_REENTRANT);
  struct call c = {.w = &w, .key = src};
  struct side other;
  side_start(&other, call_free, &c);
  side_waits(&other);
  commit_one(b, build_block(b, 64));
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  /* an aborted build leaves no trace on the block */
  src = block_of(&w, 1000);
  oc_build_abort(begin(&w, OC_BF16, src));
  oc_guard_enter();
  ck_ok(oc_pool_free(w.p, src));
  oc_guard_leave();
  world_close(&w);
}
END_TEST

/* G13: the caller's block becomes a value's, and so the model's, while its free waits for a build: it is refused, and
   the value stays. */
START_TEST(g13_a_block_may_become_a_value_while_its_free_waits) {
  struct world w = world_open();
  oc_devptr block = block_of(&w, 1000);
  oc_build *b = begin(&w, OC_BF16, block + 100);
  put(&w, OC_CUTLASS_NVFP4_T, block, block_of(&w, 64));
  struct call c = {.w = &w, .key = block};
  struct side other;
  side_start(&other, call_free, &c);
  side_waits(&other);
  put(&w, OC_BF16, ANY, block);
  oc_build_abort(b);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_E_NOT_OWNED);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), block);
  ck_assert_uint_eq(value_of(&w, OC_CUTLASS_NVFP4_T, block), 0);   /* of what the caller meant to free */
  ck_assert_uint_eq(live_blocks(&w), 1);
  world_close(&w);
}
END_TEST

/* ---- a block while readers still have an entry of it ---- */

struct reader {
  struct world *w;
  unsigned in, leave;   /* atomic */
};

static void read_on(void *arg) {
  struct reader *r = arg;
  ck_ok(oc_model_enter(r->w->m));
  __atomic_store_n(&r->in, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&r->leave, __ATOMIC_ACQUIRE)) fx_msleep(1);
  oc_model_leave(r->w->m);
}

struct entries_of { oc_devptr block; bool has; };

static oc_status look_for_entries(void *arg, const oc_block_info *info) {
  struct entries_of *e = arg;
  if (info->start == e->block) e->has = info->flags & OC_BLOCK_HAS_ENTRIES;
  return OC_OK;
}

static bool has_entries(struct world *w, oc_devptr block) {
  struct entries_of e = {block, false};
  ck_ok(oc_pool_each_block(w->p, look_for_entries, &e));
  return e.has;
}

/* A build of another key in the block ends meanwhile: the block is known as a source until the readers left. */
START_TEST(g15_a_source_stays_one_until_readers_left) {
  struct world w = world_open();
  oc_devptr src = block_of(&w, 1000);
  put(&w, OC_BF16, src, block_of(&w, 64));
  oc_build *b = begin(&w, OC_BF16, src + 512);
  struct reader r = {.w = &w};
  struct call c = {.w = &w, .key = src};
  struct side reader, other;
  side_start(&reader, read_on, &r);
  fx_until(__atomic_load_n(&r.in, __ATOMIC_ACQUIRE));
  side_start(&other, call_invalidate, &c);
  fx_until(oc_derived_len(w.d) == 0);
  oc_build_abort(b);
  ck_assert(has_entries(&w, src));
  __atomic_store_n(&r.leave, 1, __ATOMIC_RELEASE);
  side_join(&reader);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert(!has_entries(&w, src));
  ck_ok(oc_pool_free(w.p, src));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* Entries made of a block while its free waits for readers of others are forgotten too. */
START_TEST(g15_a_free_forgets_what_is_added_while_it_waits) {
  struct world w = world_open();
  oc_devptr src = block_of(&w, 1000);
  put(&w, OC_BF16, src, block_of(&w, 64));
  struct reader r = {.w = &w};
  struct call c = {.w = &w, .key = src};
  struct side reader, other;
  side_start(&reader, read_on, &r);
  fx_until(__atomic_load_n(&r.in, __ATOMIC_ACQUIRE));
  side_start(&other, call_free, &c);
  fx_until(oc_derived_len(w.d) == 0);
  put(&w, OC_BF16, src + 512, block_of(&w, 64));
  __atomic_store_n(&r.leave, 1, __ATOMIC_RELEASE);
  side_join(&reader);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(value_of(&w, OC_BF16, src + 512), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* Two ranges whose starts have one hash: what is derived of the one is not of the other. */
START_TEST(g15_sources_whose_hashes_collide_are_two) {
  struct world w = world_open();
  const uint64_t a = 0x6f8844795e5d46ffu, b = 0x028d1b1302189386u;
  ck_ok(oc_pool_note_external(w.p, a, 4096, "framework"));
  ck_ok(oc_pool_note_external(w.p, b, 4096, "framework"));
  put(&w, OC_BF16, a + 16, block_of(&w, 64));
  put(&w, OC_BF16, b + 16, block_of(&w, 64));
  ck_ok(oc_pool_forget_external(w.p, a));
  ck_assert_uint_eq(value_of(&w, OC_BF16, a + 16), 0);
  ck_assert_uint_ne(value_of(&w, OC_BF16, b + 16), 0);
  ck_ok(oc_pool_forget_external(w.p, b));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* A key in memory that was given back would be found by whoever gets the address next: refused. */
START_TEST(a_key_in_a_freed_block_is_refused) {
  struct world w = world_open();
  oc_devptr src = block_of(&w, 100), v = block_of(&w, 100), keep = block_of(&w, 100);
  ck_ok(oc_pool_free(w.p, src));
  refuse_ptr(&w, src, v);
  oc_build *b = NULL;
  uint64_t out[2];
  ck_status(oc_derived_begin(w.d, OC_BF16, src, &b, out), OC_E_NOT_OWNED);
  ck_assert_ptr_null(b);
  ck_ok(oc_pool_free(w.p, v));
  ck_ok(oc_pool_free(w.p, keep));
  world_close(&w);
}
END_TEST

/* A derivation of a block that a build has not committed goes when the block goes back. */
START_TEST(what_was_derived_of_a_builds_block_goes_with_it) {
  struct world w = world_open();
  oc_build *b = begin(&w, OC_BF16, ANY);
  oc_devptr tmp = build_block(b, 5000);
  put(&w, OC_CUTLASS_NVFP4_T, tmp + 100, block_of(&w, 64));
  oc_build_abort(b);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  /* and stays where the block is kept */
  b = begin(&w, OC_BF16, ANY);
  tmp = build_block(b, 5000);
  put(&w, OC_CUTLASS_NVFP4_T, tmp + 100, block_of(&w, 64));
  commit_one(b, tmp);
  ck_assert_uint_eq(oc_derived_len(w.d), 2);
  invalidate(&w, ANY);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* Where this thread may not wait for those who may still use them, or the streams cannot be waited for: until teardown. */
START_TEST(what_was_derived_of_a_builds_block_keeps_it_where_nobody_waits) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  ck_ok(oc_model_use_stream(w.m, s));
  bool captures = fx_can(FX_CAPTURE);
  if (!captures) fx_skip("needs undeclared captures");
  for (uint64_t i = 0; i < (captures ? 2u : 1u); i++) {
    oc_build *b = begin(&w, OC_BF16, ANY);
    oc_devptr tmp = build_block(b, 5000), value = block_of(&w, 64);
    put(&w, OC_CUTLASS_NVFP4_T, tmp, value);
    if (i) fx_capturing(w.b, s, true);
    else oc_guard_enter();
    oc_build_abort(b);
    if (i) fx_capturing(w.b, s, false);
    else oc_guard_leave();
    ck_assert_uint_eq(value_of(&w, OC_CUTLASS_NVFP4_T, tmp), value);
    ck_assert_uint_eq(live_blocks(&w), 2 * (i + 1));
    ck_status(oc_pool_free(w.p, tmp), OC_E_NOT_OWNED);
  }
  world_close_stream(&w, s);
}
END_TEST

/* ---- derivations of derivations ---- */

/* S31: both go, each block freed once. */
START_TEST(s31_nvfp4_of_fp8_of_w) {
  struct world w = world_open();
  oc_devptr src = block_of(&w, 1000), fp8 = block_of(&w, 600), scales = block_of(&w, 64), fp4 = block_of(&w, 300);
  const uint64_t v[2] = {fp4, fp4 + 256};
  put_pair(&w, src, fp8, scales);
  ck_ok(oc_derived_insert_pair(w.d, OC_CUTLASS_NVFP4_FROM_FP8, fp8, v, NULL));
  ck_status(oc_pool_free(w.p, fp8), OC_E_NOT_OWNED);
  invalidate(&w, src);
  ck_assert(!has_pair(&w, OC_ROWWISE_FP8, src) && !has_pair(&w, OC_CUTLASS_NVFP4_FROM_FP8, fp8));
  ck_assert_uint_eq(live_blocks(&w), 1);
  ck_ok(oc_pool_free(w.p, src));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* A chain of 100, started by a free; and keys by the second half, by an address inside, by foreign values. */
START_TEST(s31_chains_of_any_length) {
  struct logged l;
  open_logged(&l);
  struct world *w = &l.w;
  oc_devptr src = block_of(w, 1000), at = src;
  for (unsigned i = 0; i < 100; i++) {
    oc_devptr next = i % 10 == 9 ? foreign(&l) : block_of(w, 500);
    if (i % 3 == 0) put_pair(w, at, 0, next);
    else put(w, OC_BF16, at, next);
    at = i % 10 == 9 ? next : next + i % 5;
  }
  ck_assert_uint_eq(oc_derived_len(w->d), 100);
  uint64_t frees = wrap_calls(&l.wrap, "free");
  ck_ok(oc_pool_free(w->p, src));
  ck_assert_uint_eq(oc_derived_len(w->d), 0);
  ck_assert_uint_eq(live_blocks(w), 0);
  ck_assert_uint_eq(wrap_calls(&l.wrap, "free"), frees + 10);
  close_logged(&l);
}
END_TEST

/* A ring of derivations, and a value that two sources share: all goes that loses its source, once. */
START_TEST(s31_rings_and_diamonds) {
  struct world w = world_open();
  oc_devptr a = block_of(&w, 100), b = block_of(&w, 100), c = block_of(&w, 100), d = block_of(&w, 100);
  put(&w, OC_BF16, a, b);
  put(&w, OC_BF16, b, c);
  put(&w, OC_BF16, c, b + 8);          /* back into the ring */
  invalidate(&w, a);
  ck_assert_uint_eq(value_of(&w, OC_BF16, a), 0);
  ck_ok(oc_derived_release(w.d));
  ck_assert_uint_eq(live_blocks(&w), 2);   /* a and d */
  put(&w, OC_BF16, ANY, d);
  put(&w, OC_BF16, ANY + 1, d);
  put(&w, OC_CUTLASS_NVFP4_T, d, block_of(&w, 100));
  invalidate(&w, ANY + 1);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), d);
  invalidate(&w, ANY);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(live_blocks(&w), 1);
  ck_ok(oc_pool_free(w.p, a));
  world_close(&w);
}
END_TEST

/* A borrowed value stays where it is when its entry goes, and so does what was derived of it. */
START_TEST(s31_stops_at_what_is_borrowed) {
  struct world w = world_open();
  oc_devptr tied;
  ck_ok(oc_pool_alloc_owned(w.p, "weights", 100, 0, &tied));
  put(&w, OC_BF16, ANY, tied);
  put(&w, OC_CUTLASS_NVFP4_T, tied, block_of(&w, 64));
  invalidate(&w, ANY);
  ck_assert_uint_ne(value_of(&w, OC_CUTLASS_NVFP4_T, tied), 0);
  ck_ok(oc_pool_free(w.p, tied));
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* ---- recycled addresses ---- */

/* S1: the next model's allocator hands the same address out; it misses. */
START_TEST(s1_the_next_model_misses) {
  struct fx_options opt = {.recycle = true};
  oc_backend *b = fx_open(&opt);
  uint64_t key = 0;
  for (unsigned round = 0; round < 3; round++) {
    struct world w = world_on(b, (oc_model_options){0});
    oc_devptr src = block_of(&w, 1000);
    if (round) ck_assert_uint_eq(src, key);
    key = src;
    ck_assert_uint_eq(value_of(&w, OC_BF16, key), 0);
    ck_assert_uint_eq(value_of(&w, OC_BF16, 0x7f0000), 0);
    put(&w, OC_BF16, key, block_of(&w, 100 + round));
    put(&w, OC_BF16, 0x7f0000, block_of(&w, 100));
    ck_ok(oc_model_destroy(w.m));
  }
  fx_close(b);
}
END_TEST

/* S2: within a model: freed, used again for another weight; a miss in every kind, with invalidate or by the free. */
START_TEST(s2_a_recycled_source_misses) {
  struct world w = world_open();
  uint64_t key = 0;
  for (unsigned round = 0; round < 4; round++) {
    oc_devptr src = block_of(&w, 100000);
    if (round) ck_assert_uint_eq(src, key);
    key = src;
    for (oc_kind k = OC_BF16; k <= OC_CUTLASS_NVFP4_T; k++) ck_assert_uint_eq(value_of(&w, k, key), 0);
    ck_assert(!has_pair(&w, OC_ROWWISE_FP8, key));
    put(&w, OC_BF16, key, block_of(&w, 64));
    put(&w, OC_CUTLASS_NVFP4_T, key, block_of(&w, 64));
    put_pair(&w, key, block_of(&w, 64), block_of(&w, 64));
    if (round % 2) invalidate(&w, key);
    ck_ok(oc_pool_free(w.p, src));
    ck_assert_uint_eq(live_blocks(&w), 0);
  }
  world_close(&w);
}
END_TEST

/* The ledger: a derived block is under its kind's name, no longer under its site alone (G26: not swept). */
START_TEST(derived_blocks_are_not_swept) {
  struct world w = world_open();
  put(&w, OC_BF16, ANY, block_of(&w, 1000));
  (void)block_of(&w, 1000);
  char *text = oc_pool_report_text(w.p, 0);
  ck_assert_ptr_nonnull(strstr(text, "derived bf16"));
  oc_string_free(text);
  oc_report *r;
  ck_ok(oc_model_teardown(w.m, &r));
  ck_assert_uint_eq(oc_report_blocks_swept(r), 1);
  oc_report_free(r);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("ownership", &tc);
  tcase_add_test(tc, g13_a_block_of_the_pool);
  tcase_add_test(tc, g13_an_interior_pointer_takes_the_block);
  tcase_add_test(tc, s25_pairs);
  tcase_add_test(tc, g13_the_last_entry_frees_the_block);
  tcase_add_test(tc, g13_a_key_inside_a_shared_block_goes_with_it);
  tcase_add_test(tc, s35_tied_weights_are_borrowed);
  tcase_add_test(tc, s35_teardown_frees_tied_weights_with_their_arena);
  tcase_add_test(tc, g13_external_memory_is_borrowed);
  tcase_add_test(tc, g13_a_value_in_its_keys_block);
  tcase_add_test(tc, s25_a_value_equal_to_its_key);
  tcase_add_test(tc, g13_foreign_values_go_back_to_the_driver_once);
  tcase_add_test(tc, g13_a_refused_free_is_said_once);
  tcase_add_test(tc, g25_refused_frees_of_several_values);
  tcase_add_test(tc, g13_another_models_block_is_refused);
  tcase_add_test(tc, g13_blocks_that_are_nobodys_to_give_are_refused);
  tcase_add_test(tc, a_refused_half_undoes_the_other);
  tcase_add_test(tc, a_refused_half_leaves_the_keys_range);
  tcase_add_test(tc, a_foreign_value_may_be_noted_later);
  tcase_add_test(tc, g22_a_source_is_freed_while_values_go);
  tcase_add_test(tc, g15_freeing_a_block_forgets_its_keys);
  tcase_add_test(tc, g15_a_key_in_scratch_is_refused);
  tcase_add_test(tc, g15_a_free_that_would_wait_is_refused);
  tcase_add_test(tc, g15_freeing_the_source_of_a_first_build_waits_for_it);
  tcase_add_test(tc, g13_a_block_may_become_a_value_while_its_free_waits);
  tcase_add_test(tc, g15_a_source_stays_one_until_readers_left);
  tcase_add_test(tc, g15_a_free_forgets_what_is_added_while_it_waits);
  tcase_add_test(tc, g15_sources_whose_hashes_collide_are_two);
  tcase_add_test(tc, a_key_in_a_freed_block_is_refused);
  tcase_add_test(tc, what_was_derived_of_a_builds_block_goes_with_it);
  tcase_add_test(tc, what_was_derived_of_a_builds_block_keeps_it_where_nobody_waits);
  tcase_add_test(tc, s31_nvfp4_of_fp8_of_w);
  tcase_add_test(tc, s31_chains_of_any_length);
  tcase_add_test(tc, s31_rings_and_diamonds);
  tcase_add_test(tc, s31_stops_at_what_is_borrowed);
  tcase_add_test(tc, s1_the_next_model_misses);
  tcase_add_test(tc, s2_a_recycled_source_misses);
  tcase_add_test(tc, derived_blocks_are_not_swept);
  return fx_run(s);
}
