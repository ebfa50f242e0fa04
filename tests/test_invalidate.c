/* SPDX-License-Identifier: MIT */
/* Forgetting derived values: what is waited for, what goes, what a graph keeps (G2, G15, G19, G27, G28; S2, S18). */
#include "config.h"

#include "tests/wrap.h"
#include "tests/world.h"

#define ANY 0x7f0000u

/* ---- what is waited for ---- */

struct reader {
  struct world *w;
  unsigned in, leave;
  uint64_t value;
};

/* Inside a guard, with a value in hand, until told to leave. */
static void read_in_guard(void *arg) {
  struct reader *r = arg;
  oc_guard_enter();
  r->value = value_of(r->w, OC_BF16, ANY);
  __atomic_store_n(&r->in, 1, __ATOMIC_RELEASE);
  fx_until(__atomic_load_n(&r->leave, __ATOMIC_ACQUIRE));
  oc_guard_leave();
}

static void reader_start(struct side *s, struct reader *r, struct world *w) {
  *r = (struct reader){.w = w};
  side_start(s, read_in_guard, r);
  fx_until(__atomic_load_n(&r->in, __ATOMIC_ACQUIRE));
}

static void reader_end(struct side *s, struct reader *r) {
  __atomic_store_n(&r->leave, 1, __ATOMIC_RELEASE);
  side_join(s);
}

/* G15, G2: the value is out of the memo at once, but its block lives as long as the guard; others go on (G19). */
START_TEST(g15_waits_for_guards) {
  struct world w = world_open();
  struct reader r;
  struct side reader, other;
  oc_devptr p = block_of(&w, 256);
  put(&w, OC_BF16, ANY, p);
  reader_start(&reader, &r, &w);
  ck_assert_uint_eq(r.value, p);
  struct call c = {.w = &w, .key = ANY};
  side_start(&other, call_invalidate, &c);
  fx_until(value_of(&w, OC_BF16, ANY) == 0);
  side_waits(&other);
  ck_assert_uint_eq(live_blocks(&w), 1);
  oc_devptr q = block_of(&w, 256);
  ck_assert_uint_ne(q, p);
  put(&w, OC_BF16, ANY, q);                        /* a new value of the same key, meanwhile */
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), q);
  reader_end(&reader, &r);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), q);   /* it stayed */
  ck_assert_uint_eq(live_blocks(&w), 1);
  world_close(&w);
}
END_TEST

/* The same of a free of the source, of a borrowed value's block, of release, of forget_external. */
static void call_forget(void *arg) {
  struct call *c = arg;
  call_ended(c, oc_pool_forget_external(c->w->p, c->key));
}

START_TEST(g2_every_way_to_forget_waits_for_guards) {
  struct world w = world_open();
  void (*const ways[])(void *) = {call_free, call_free, call_release, call_forget, call_invalidate_n};
  for (unsigned way = 0; way < 5; way++) {
    oc_devptr src = block_of(&w, 256), p = block_of(&w, 256), tied;
    ck_ok(oc_pool_alloc_owned(w.p, "weights", 256, 0, &tied));
    ck_ok(oc_pool_note_external(w.p, 0x4000, 4096, "framework"));
    /* ANY is read; each way forgets it */
    const uint64_t keys[2] = {ANY, ANY};
    put(&w, OC_BF16, ANY, way == 1 ? tied : way == 3 ? 0x4100 : p);
    put(&w, OC_CUTLASS_NVFP4_T, src, src);
    if (way == 0) {
      ck_ok(oc_derived_invalidate(w.d, ANY));
      p = block_of(&w, 256);
      put(&w, OC_BF16, src, p);
    }
    struct reader r;
    struct side reader, other;
    reader_start(&reader, &r, &w);
    struct call c = {.w = &w, .key = way == 0 ? src : way == 1 ? tied : 0x4000, .keys = keys, .n = 2};
    side_start(&other, ways[way], &c);
    side_waits(&other);
    ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), 0);
    ck_assert_uint_eq(live_blocks(&w), 3);
    reader_end(&reader, &r);
    side_join(&other);
    ck_assert_int_eq(c.status, OC_OK);
    ck_ok(oc_derived_release(w.d));
    if (way != 0) ck_ok(oc_pool_free(w.p, src));
    if (way == 1 || way == 3) ck_ok(oc_pool_free(w.p, p));
    if (way != 1) ck_ok(oc_pool_free(w.p, tied));
    if (way != 3) ck_ok(oc_pool_forget_external(w.p, 0x4000));
    ck_assert_uint_eq(live_blocks(&w), 0);
  }
  world_close(&w);
}
END_TEST

/* An invalidate is not over for a second caller before it is for the first: what the first unpublished has readers. */
START_TEST(g15_a_second_invalidate_waits_too) {
  struct world w = world_open();
  struct reader r;
  struct side reader, first, second;
  oc_devptr tied;
  ck_ok(oc_pool_alloc_owned(w.p, "weights", 256, 0, &tied));
  put(&w, OC_BF16, ANY, tied);
  reader_start(&reader, &r, &w);
  struct call a = {.w = &w, .key = ANY}, b = {.w = &w, .key = ANY}, f = {.w = &w, .key = tied};
  struct side freer;
  side_start(&first, call_invalidate, &a);
  fx_until(value_of(&w, OC_BF16, ANY) == 0);
  side_start(&second, call_invalidate, &b);
  side_start(&freer, call_free, &f);               /* the borrowed block: the reader still has it */
  side_waits(&second);
  ck_assert(!side_done(&freer));
  ck_assert_uint_eq(live_blocks(&w), 1);
  reader_end(&reader, &r);
  side_join(&first);
  side_join(&second);
  side_join(&freer);
  ck_assert(a.status == OC_OK && b.status == OC_OK && f.status == OC_OK);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* G15: queued work on any of the model's streams; a stream of nobody is not waited for once one is named. */
START_TEST(g15_waits_for_streams) {
  if (!fx_can(FX_STALL)) { fx_skip("no stall"); return; }
  struct world w = world_open();
  oc_stream s = fx_stream(w.b), stranger = fx_stream(w.b);
  oc_devptr p = block_of(&w, 256);
  put(&w, OC_BF16, ANY, p);
  ck_ok(oc_model_use_stream(w.m, s));
  fx_stall(w.b, s, true);
  fx_stall(w.b, stranger, true);
  ck_ok(oc_backend_table(w.b)->memset(oc_backend_self(w.b), p, 1, 256, s));
  ck_ok(oc_backend_table(w.b)->memset(oc_backend_self(w.b), p, 2, 256, stranger));
  struct call c = {.w = &w, .key = ANY};
  struct side other;
  side_start(&other, call_invalidate, &c);
  fx_until(value_of(&w, OC_BF16, ANY) == 0);
  side_waits(&other);
  ck_assert_uint_eq(live_blocks(&w), 1);
  fx_stall(w.b, s, false);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(live_blocks(&w), 0);
  fx_stall(w.b, stranger, false);
  fx_sync(w.b, stranger);
  /* no value, no wait */
  fx_stall(w.b, s, true);
  uint64_t calls = fx_calls(w.b, "synchronize");
  ck_ok(oc_derived_invalidate(w.d, ANY));
  ck_ok(oc_derived_invalidate_n(w.d, (const uint64_t[3]){1, 2, 3}, 3));
  ck_assert_uint_eq(fx_calls(w.b, "synchronize"), calls);
  fx_stall(w.b, s, false);
  ck_ok(oc_model_forget_stream(w.m, s));
  fx_stream_free(w.b, s);
  fx_stream_free(w.b, stranger);
  world_close(&w);
}
END_TEST

/* A forgotten stream's work is waited for by the event it left. */
START_TEST(g15_waits_for_forgotten_streams) {
  if (!fx_can(FX_STALL)) { fx_skip("no stall"); return; }
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_devptr p = block_of(&w, 256);
  put(&w, OC_BF16, ANY, p);
  ck_ok(oc_model_use_stream(w.m, s));
  ck_ok(oc_model_use_stream(w.m, NULL));
  fx_stall(w.b, s, true);
  ck_ok(oc_backend_table(w.b)->memset(oc_backend_self(w.b), p, 1, 256, s));
  ck_ok(oc_model_forget_stream(w.m, s));
  struct call c = {.w = &w, .key = ANY};
  struct side other;
  side_start(&other, call_invalidate, &c);
  side_waits(&other);
  ck_assert_uint_eq(live_blocks(&w), 1);
  fx_stall(w.b, s, false);
  side_join(&other);
  ck_assert_uint_eq(live_blocks(&w), 0);
  fx_stream_free(w.b, s);
  world_close(&w);
}
END_TEST

/* G15: builds begun before it, of its key in any kind, and of every value that goes; not builds begun later. */
START_TEST(g15_waits_for_older_builds_not_for_newer) {
  struct world w = world_open();
  for (unsigned which = 0; which < 3; which++) {
    oc_devptr fp8 = block_of(&w, 512);
    put(&w, OC_BF16, ANY, fp8);
    const uint64_t key = which == 0 ? ANY : which == 1 ? fp8 : fp8 + 100;
    oc_build *older = begin(&w, OC_CUTLASS_NVFP4_T, key), *unrelated = begin(&w, OC_CUTLASS_NVFP4_T, ANY + 50);
    struct call c = {.w = &w, .key = ANY};
    struct side other;
    side_start(&other, call_invalidate, &c);
    side_waits(&other);
    ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), fp8);   /* nothing goes before all of it can */
    oc_build *newer = NULL;
    uint64_t out[2];
    oc_kind pair = OC_ROWWISE_FP8;
    ck_status(oc_derived_begin(w.d, pair, ANY, &newer, out), OC_MISS);
    commit_one(older, build_block(older, 64));
    side_join(&other);
    ck_assert_int_eq(c.status, OC_OK);
    ck_assert_uint_eq(oc_derived_len(w.d), 0);             /* the older build's value went too */
    ck_ok(oc_build_commit(newer, (const uint64_t[2]){build_block(newer, 64), 0}, NULL));
    ck_assert(has_pair(&w, OC_ROWWISE_FP8, ANY));          /* the newer one's stays */
    oc_build_abort(unrelated);
    ck_ok(oc_derived_release(w.d));
    ck_assert_uint_eq(live_blocks(&w), 0);
  }
  world_close(&w);
}
END_TEST

/* Values stored while an invalidate waits: of its key they stay, of what goes they go. */
START_TEST(g15_inserts_while_it_waits) {
  struct world w = world_open();
  oc_devptr fp8 = block_of(&w, 512), fp4 = block_of(&w, 64), bf16 = block_of(&w, 64);
  put_pair(&w, ANY, fp8, 0);
  oc_build *older = begin(&w, OC_CUTLASS_NVFP4_T, ANY);
  struct call c = {.w = &w, .key = ANY};
  struct side other;
  side_start(&other, call_invalidate, &c);
  side_waits(&other);
  put(&w, OC_CUTLASS_NVFP4_T, fp8 + 8, fp4);        /* derived of what is about to go */
  put(&w, OC_BF16, ANY, bf16);                      /* of the source as it is now */
  oc_build_abort(older);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), bf16);
  ck_assert_uint_eq(value_of(&w, OC_CUTLASS_NVFP4_T, fp8 + 8), 0);
  ck_assert_uint_eq(oc_derived_len(w.d), 1);
  ck_assert_uint_eq(live_blocks(&w), 1);
  world_close(&w);
}
END_TEST

/* While the waits run, the block that goes takes nothing in: no key, no value. */
START_TEST(g15_a_block_that_goes_takes_nobody_in) {
  struct world w = world_open();
  struct reader r;
  struct side reader, other;
  oc_devptr p = block_of(&w, 512), q = block_of(&w, 64);
  put(&w, OC_BF16, ANY, p);
  reader_start(&reader, &r, &w);
  struct call c = {.w = &w, .key = ANY};
  side_start(&other, call_invalidate, &c);
  fx_until(value_of(&w, OC_BF16, ANY) == 0);
  ck_status(oc_derived_insert_ptr(w.d, OC_CUTLASS_NVFP4_T, p, q, NULL), OC_E_NOT_OWNED);
  ck_status(oc_derived_insert_ptr(w.d, OC_CUTLASS_NVFP4_T, ANY + 1, p + 8, NULL), OC_E_NOT_OWNED);
  oc_build *b = begin(&w, OC_CUTLASS_NVFP4_T, ANY + 1);
  ck_status(oc_build_commit(b, (const uint64_t[2]){p, 0}, NULL), OC_E_NOT_OWNED);
  reader_end(&reader, &r);
  side_join(&other);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_ok(oc_pool_free(w.p, q));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* ---- invalidate_n ---- */

/* G15: one wait for all of them. */
START_TEST(g15_invalidate_n_waits_once) {
  struct world w = world_open();
  uint64_t keys[1000];
  oc_stream s = fx_stream(w.b);
  ck_ok(oc_model_use_stream(w.m, s));
  for (unsigned i = 0; i < 1000; i++) {
    keys[i] = ANY + i / 2;                          /* each one twice */
    if (i % 2) put(&w, OC_BF16, keys[i], block_of(&w, 64));
  }
  put(&w, OC_BF16, 5, block_of(&w, 64));
  uint64_t syncs = fx_calls(w.b, "synchronize");
  ck_ok(oc_derived_invalidate_n(w.d, keys, 1000));
  ck_assert_uint_eq(fx_calls(w.b, "synchronize"), syncs + 1);
  ck_assert_uint_eq(oc_derived_len(w.d), 1);
  ck_assert_uint_eq(live_blocks(&w), 1);
  world_close_stream(&w, s);
}
END_TEST

/* ---- where it is refused ---- */

static void nothing_changed(struct world *w, oc_devptr p) {
  ck_assert_uint_eq(value_of(w, OC_BF16, ANY), p);
  ck_assert_uint_eq(oc_derived_len(w->d), 1);
  ck_assert_uint_eq(live_blocks(w), 1);
}

/* S18, G27, G28: refused at once, and nothing changes. */
START_TEST(s18_refused_inside_guards_and_captures) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_devptr p = block_of(&w, 64);
  put(&w, OC_BF16, ANY, p);
  for (unsigned where = 0; where < 2; where++) {
    if (where) ck_ok(oc_capture_enter(w.m, s));
    else oc_guard_enter();
    const oc_status want = where ? OC_E_CAPTURING : OC_E_GUARDED;
    uint64_t calls = fx_all_calls(w.b);
    ck_status(oc_derived_invalidate(w.d, ANY), want);
    ck_status(oc_derived_invalidate_n(w.d, (const uint64_t[1]){ANY}, 1), want);
    ck_status(oc_derived_release(w.d), want);
    ck_status(oc_derived_invalidate(w.d, ANY + 1), want);        /* no value there: refused all the same */
    ck_assert_uint_eq(fx_all_calls(w.b), calls);
    nothing_changed(&w, p);
    if (where) oc_capture_leave(w.m);
    else oc_guard_leave();
  }
  ck_ok(oc_derived_invalidate(w.d, ANY));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close_stream(&w, s);
}
END_TEST

/* The last bytes of a block's unit are the block's: a value may lie there, shared by two, and be a key itself. */
START_TEST(g15_a_value_in_the_padding_of_its_block) {
  struct world w = world_open();
  oc_devptr p = block_of(&w, 1), q = block_of(&w, 64), last = p + 255;
  put(&w, OC_BF16, ANY, last);
  put_pair(&w, ANY + 1, last, last);
  put(&w, OC_BF16, last, q);
  ck_ok(oc_derived_invalidate(w.d, ANY + 1));
  ck_assert_uint_eq(value_of(&w, OC_BF16, last), 0);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), last);
  ck_ok(oc_derived_invalidate(w.d, ANY));
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* An undeclared capture on a stream that would have to be waited for. */
START_TEST(g28_refused_while_a_stream_captures_undeclared) {
  if (!fx_can(FX_CAPTURE)) { fx_skip("no undeclared captures"); return; }
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_devptr p = block_of(&w, 64);
  put(&w, OC_BF16, ANY, p);
  ck_ok(oc_model_use_stream(w.m, s));
  fx_capturing(w.b, s, true);
  uint64_t syncs = fx_calls(w.b, "synchronize") + fx_calls(w.b, "synchronize_all");
  ck_status(oc_derived_invalidate(w.d, ANY), OC_E_CAPTURING);
  ck_status(oc_derived_release(w.d), OC_E_CAPTURING);
  nothing_changed(&w, p);
  ck_assert_uint_eq(fx_calls(w.b, "synchronize") + fx_calls(w.b, "synchronize_all"), syncs);
  fx_capturing(w.b, s, false);
  ck_ok(oc_derived_invalidate(w.d, ANY));
  world_close_stream(&w, s);
}
END_TEST

/* A driver that fails the wait: said; the value is out of the memo, its block kept until it is safe. */
START_TEST(g15_a_stream_that_cannot_be_waited_for) {
  if (!fx_can(FX_FAIL)) { fx_skip("no failures"); return; }
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  ck_ok(oc_model_use_stream(w.m, s));
  put(&w, OC_BF16, ANY, block_of(&w, 1024));
  fx_fail(w.b, "synchronize", 1, 1, OC_E_BACKEND);
  ck_status(oc_derived_invalidate(w.d, ANY), OC_E_BACKEND);
  ck_words("synchronize");
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_assert_uint_eq(figures(&w).live_bytes, 0);
  ck_assert_uint_eq(figures(&w).retired_bytes, 1024);
  ck_ok(oc_model_graphs_gone(w.m));
  ck_assert_uint_eq(figures(&w).retired_bytes, 0);
  world_close_stream(&w, s);
}
END_TEST

/* ---- graphs ---- */

static unsigned frees_of(struct wrap *wrap, uint64_t ptr) {
  unsigned n = 0;
  for (unsigned i = 0; i < wrap->count && i < WRAP_LOG; i++)
    n += strcmp(wrap->log[i].entry, "free") == 0 && wrap->log[i].arg == ptr;
  return n;
}

/* G28: a value handed out inside a capture is retired when it is forgotten, by whatever way, and goes back with
   graphs_gone; one that was not handed out there goes at once; a foreign value likewise. */
START_TEST(g28_what_a_graph_was_handed_is_retired) {
  struct wrap wrap;
  wrap_open(&wrap, NULL);
  struct world w = world_on(wrap.outer, (oc_model_options){0});
  oc_stream s = fx_stream(w.b);
  for (unsigned way = 0; way < 3; way++) {
    oc_devptr src = block_of(&w, 256), p = block_of(&w, 1024), q = block_of(&w, 512), ext;
    ck_ok(oc_backend_table(w.b)->alloc(oc_backend_self(w.b), 4096, &ext));
    put(&w, OC_BF16, src, p);
    put(&w, OC_CUTLASS_NVFP4_T, src, q);
    put_pair(&w, src, ext, 0);
    uint64_t v[2];
    ck_ok(oc_capture_enter(w.m, s));
    ck_ok(oc_derived_get_ptr(w.d, OC_BF16, src, &v[0]));
    ck_ok(oc_derived_get_pair(w.d, OC_ROWWISE_FP8, src, v));
    oc_capture_leave(w.m);
    if (way == 0) ck_ok(oc_derived_invalidate(w.d, src));
    if (way == 1) ck_ok(oc_pool_free(w.p, src));
    if (way == 2) ck_ok(oc_derived_release(w.d));
    ck_assert_uint_eq(oc_derived_len(w.d), 0);
    ck_assert_uint_eq(figures(&w).retired_bytes, 1024);
    ck_assert_uint_eq(figures(&w).live_bytes, way == 1 ? 0 : 256);
    ck_assert_uint_eq(frees_of(&wrap, ext), 0);
    ck_status(oc_pool_free(w.p, p), OC_E_NOT_OWNED);
    oc_guard_enter();
    ck_status(oc_model_graphs_gone(w.m), OC_E_GUARDED);
    oc_guard_leave();
    ck_ok(oc_model_graphs_gone(w.m));
    ck_assert_uint_eq(figures(&w).retired_bytes, 0);
    ck_assert_uint_eq(frees_of(&wrap, ext), 1);
    if (way != 1) ck_ok(oc_pool_free(w.p, src));
    ck_assert_uint_eq(live_blocks(&w), 0);
    wrap_forget(&wrap);
  }
  ck_ok(oc_model_forget_stream(w.m, s));
  fx_stream_free(w.b, s);
  ck_ok(oc_pool_check(w.p));
  ck_ok(oc_model_destroy(w.m));
  wrap_close(&wrap);
}
END_TEST

/* Once no graph lives any more, an old mark counts no longer. */
START_TEST(g28_marks_end_with_graphs_gone) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  put(&w, OC_BF16, ANY, block_of(&w, 1024));
  ck_ok(oc_capture_enter(w.m, s));
  ck_assert_uint_ne(value_of(&w, OC_BF16, ANY), 0);
  oc_capture_leave(w.m);
  ck_ok(oc_model_graphs_gone(w.m));
  ck_ok(oc_derived_invalidate(w.d, ANY));
  ck_assert_uint_eq(figures(&w).retired_bytes, 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close_stream(&w, s);
}
END_TEST

/* A shared block is retired if any of its entries was handed to a graph, whichever of them goes last. */
START_TEST(g28_a_shared_block_remembers) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  for (unsigned last = 0; last < 2; last++) {
    oc_devptr p = block_of(&w, 1024);
    put(&w, OC_BF16, ANY, p);
    put(&w, OC_BF16, ANY + 1, p + 256);
    ck_ok(oc_capture_enter(w.m, s));
    ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), p);
    oc_capture_leave(w.m);
    ck_ok(oc_derived_invalidate(w.d, ANY + last));
    ck_assert_uint_eq(figures(&w).live_bytes, 1024);
    ck_ok(oc_derived_invalidate(w.d, ANY + 1 - last));
    ck_assert_uint_eq(figures(&w).live_bytes, 0);
    ck_assert_uint_eq(figures(&w).retired_bytes, 1024);
    ck_ok(oc_model_graphs_gone(w.m));
    ck_assert_uint_eq(figures(&w).retired_bytes, 0);
  }
  world_close_stream(&w, s);
}
END_TEST

/* G15: while another thread captures on the model, what goes is retired: its stream cannot be waited for. */
START_TEST(g15_another_threads_capture) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  put(&w, OC_BF16, ANY, block_of(&w, 1024));
  struct call c = {.w = &w, .key = ANY};
  struct side other;
  ck_ok(oc_capture_enter(w.m, s));
  side_start(&other, call_invalidate, &c);
  side_join(&other);
  ck_assert_int_eq(c.status, OC_OK);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), 0);
  oc_capture_leave(w.m);
  ck_assert_uint_eq(figures(&w).retired_bytes, 1024);
  ck_ok(oc_model_graphs_gone(w.m));
  ck_assert_uint_eq(figures(&w).retired_bytes, 0);
  world_close_stream(&w, s);
}
END_TEST

/* ---- many at once ---- */

struct overlap { struct world *w; unsigned round; };

static void invalidate_overlapping(void *arg, unsigned i) {
  struct overlap *o = arg;
  uint64_t keys[8];
  for (unsigned n = 0; n < 8; n++) keys[n] = ANY + (i + n) % 12;
  if (i % 3 == 0) ck_ok(oc_derived_invalidate_n(o->w->d, keys, 8));
  else if (i % 3 == 1) for (unsigned n = 0; n < 8; n++) ck_ok(oc_derived_invalidate(o->w->d, keys[n]));
  else ck_ok(oc_derived_release(o->w->d));
}

/* Overlapping keys, shared blocks, derivations of derivations: each block freed once. */
START_TEST(g15_invalidates_that_overlap) {
  struct world w = world_open();
  for (unsigned round = 0; round < fx_scale(60); round++) {
    struct overlap o = {.w = &w};
    oc_devptr shared = block_of(&w, 4096);
    for (unsigned i = 0; i < 12; i++) {
      oc_devptr p = block_of(&w, 256);
      put_pair(&w, ANY + i, p, shared + 256 * i);
      put(&w, OC_BF16, p, shared + 256 * i + 8);
      put(&w, OC_CUTLASS_NVFP4_T, shared + 256 * i, block_of(&w, 64));
    }
    fx_threads(6, invalidate_overlapping, &o);
    ck_ok(oc_derived_release(w.d));
    ck_assert_uint_eq(oc_derived_len(w.d), 0);
    ck_assert_uint_eq(live_blocks(&w), 0);
    ck_ok(oc_pool_check(w.p));
  }
  world_close(&w);
}
END_TEST

/* Ever-new keys (G30): host bytes of the model stay bounded; here, that it works for long. */
START_TEST(g30_ever_new_keys) {
  struct world w = world_open();
  const unsigned rounds = fx_scale(3000);
  for (unsigned i = 0; i < rounds; i++) {
    uint64_t key = ANY + 4096 * (uint64_t)i;
    put(&w, OC_BF16, key, block_of(&w, 64));
    ck_ok(oc_derived_invalidate(w.d, key));
  }
  ck_assert_uint_eq(live_blocks(&w), 0);
  ck_assert(oc_derived_is_empty(w.d));
  ck_assert_uint_eq(figures(&w).arenas, 1);
  world_close(&w);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("invalidate", &tc);
  tcase_add_test(tc, g15_waits_for_guards);
  tcase_add_test(tc, g2_every_way_to_forget_waits_for_guards);
  tcase_add_test(tc, g15_a_second_invalidate_waits_too);
  tcase_add_test(tc, g15_waits_for_streams);
  tcase_add_test(tc, g15_waits_for_forgotten_streams);
  tcase_add_test(tc, g15_waits_for_older_builds_not_for_newer);
  tcase_add_test(tc, g15_inserts_while_it_waits);
  tcase_add_test(tc, g15_a_block_that_goes_takes_nobody_in);
  tcase_add_test(tc, g15_invalidate_n_waits_once);
  tcase_add_test(tc, s18_refused_inside_guards_and_captures);
  tcase_add_test(tc, g15_a_value_in_the_padding_of_its_block);
  tcase_add_test(tc, g28_refused_while_a_stream_captures_undeclared);
  tcase_add_test(tc, g15_a_stream_that_cannot_be_waited_for);
  tcase_add_test(tc, g28_what_a_graph_was_handed_is_retired);
  tcase_add_test(tc, g28_marks_end_with_graphs_gone);
  tcase_add_test(tc, g28_a_shared_block_remembers);
  tcase_add_test(tc, g15_another_threads_capture);
  tcase_add_test(tc, g15_invalidates_that_overlap);
  tcase_add_test(tc, g30_ever_new_keys);
  return fx_run(s);
}
