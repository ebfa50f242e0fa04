/* SPDX-License-Identifier: MIT */
/* Kinds, lookups, inserts and figures of derived weights (DESIGN 3.4; G3, G9, G10, G27, G28, G33). */
#include "config.h"

#include <stdio.h>

#include "tests/world.h"

#define ANY 0x7f0000u   /* a source address that is in no pool */

/* ---- kinds ---- */

/* 3.4: the four of the header are registered, with their arity. */
START_TEST(the_four_kinds_have_names) {
  const struct { const char *name; oc_arity arity; oc_kind kind; } all[] = {
    {"rowwise-fp8", OC_PAIR, OC_ROWWISE_FP8}, {"bf16", OC_PTR, OC_BF16},
    {"nvfp4-t", OC_PTR, OC_CUTLASS_NVFP4_T}, {"nvfp4-from-fp8", OC_PAIR, OC_CUTLASS_NVFP4_FROM_FP8},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    oc_kind k = 999;
    ck_ok(oc_kind_register(all[i].name, all[i].arity, &k));
    ck_assert_uint_eq(k, all[i].kind);
    k = 999;
    ck_status(oc_kind_register(all[i].name, all[i].arity == OC_PTR ? OC_PAIR : OC_PTR, &k), OC_E_KIND);
    ck_words(all[i].name);
    ck_assert_uint_eq(k, 999);
  }
}
END_TEST

/* 3.4: same name, same id; names are compared by content; new ids start at OC_KIND_ENGINE. */
START_TEST(a_name_has_one_id) {
  char name[] = "mine";
  oc_kind a, b, c;
  ck_ok(oc_kind_register(name, OC_PTR, &a));
  ck_assert_uint_ge(a, OC_KIND_ENGINE);
  memset(name, 'x', 4);   /* the caller's buffer is used again */
  ck_ok(oc_kind_register("mine", OC_PTR, &b));
  ck_assert_uint_eq(a, b);
  ck_ok(oc_kind_register(name, OC_PAIR, &c));
  ck_assert_uint_ne(a, c);
  ck_status(oc_kind_register("mine", OC_PAIR, &c), OC_E_KIND);
}
END_TEST

/* G33 */
START_TEST(nonsense_kinds_are_refused) {
  oc_kind k = 999;
  ck_status(oc_kind_register(NULL, OC_PTR, &k), OC_E_INVALID);
  ck_status(oc_kind_register("", OC_PTR, &k), OC_E_INVALID);
  ck_status(oc_kind_register("x", (oc_arity)0, &k), OC_E_INVALID);
  ck_status(oc_kind_register("x", (oc_arity)3, &k), OC_E_INVALID);
  ck_words("arity 3");
  ck_status(oc_kind_register("x", OC_PTR, NULL), OC_E_INVALID);
  ck_assert_uint_eq(k, 999);
}
END_TEST

struct naming { oc_kind id[24][8]; };

static void name_eight(void *arg, unsigned i) {
  struct naming *n = arg;
  for (unsigned j = 0; j < 8; j++) {
    char name[16];
    snprintf(name, sizeof name, "kind-%u", (i + j) % 8);
    ck_ok(oc_kind_register(name, OC_PAIR, &n->id[i][(i + j) % 8]));
  }
}

START_TEST(threads_that_register_one_name_get_one_id) {
  struct naming n;
  fx_threads(24, name_eight, &n);
  for (unsigned i = 1; i < 24; i++) ck_assert_mem_eq(n.id[i], n.id[0], sizeof n.id[0]);
  for (unsigned j = 1; j < 8; j++)
    for (unsigned k = 0; k < j; k++) ck_assert_uint_ne(n.id[0][j], n.id[0][k]);
}
END_TEST

/* Ids run out with a status; what was registered goes on to work. */
START_TEST(kinds_run_out_in_words) {
  oc_kind k = 0, first = 0;
  oc_status st = OC_OK;
  unsigned n = 0;
  for (; n < 1000 && !st; n++) {
    char name[16];
    snprintf(name, sizeof name, "many-%u", n);
    st = oc_kind_register(name, OC_PTR, &k);
    if (n == 0) first = k;
  }
  ck_assert_uint_gt(n, 200);
  ck_assert_int_eq(st, OC_E_INVALID);
  ck_words("no room");
  struct world w = world_open();
  put(&w, k, ANY, ANY);       /* the last id */
  put(&w, first, ANY, ANY);
  ck_assert_uint_eq(oc_derived_len(w.d), 2);
  /* more kinds than a description has room for: whole ones, and a sign that there are more */
  for (oc_kind one = first; one < k; one++) ck_assert_int_ge(oc_derived_insert_ptr(w.d, one, ANY, ANY, NULL), 0);
  char text[2048];
  int written = oc_derived_describe(w.d, text, sizeof text);
  ck_assert_int_eq(written, (int)strlen(text));
  ck_assert_ptr_nonnull(strstr(text, "many-20: 1, "));
  ck_assert_str_eq(text + written - 10, ": 1, ... }");
  ck_ok(oc_derived_invalidate(w.d, ANY));
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  world_close(&w);
}
END_TEST

/* ---- arity ---- */

static unsigned built;
static oc_status never_ptr(oc_build *b, void *arg, uint64_t *out) { (void)b, (void)arg, (void)out; built++; return OC_OK; }
static oc_status never_pair(oc_build *b, void *arg, uint64_t *out) { (void)b, (void)arg, (void)out; built++; return OC_OK; }

static void ptr_calls_are_refused(struct world *w, oc_kind kind) {
  uint64_t v = 77, kept = 78;
  ck_status(oc_derived_get_ptr(w->d, kind, ANY, &v), OC_E_KIND);
  ck_status(oc_derived_get_ptr_on(w->d, kind, ANY, NULL, &v), OC_E_KIND);
  ck_status(oc_derived_insert_ptr(w->d, kind, ANY, 5, &kept), OC_E_KIND);
  ck_status(oc_derived_get_or_build_ptr(w->d, kind, ANY, never_ptr, NULL, &v), OC_E_KIND);
  ck_assert_uint_eq(v, 77);
  ck_assert_uint_eq(kept, 78);
}

static void pair_calls_are_refused(struct world *w, oc_kind kind) {
  uint64_t v[2] = {77, 78}, kept[2] = {79, 80};
  const uint64_t value[2] = {5, 6};
  ck_status(oc_derived_get_pair(w->d, kind, ANY, v), OC_E_KIND);
  ck_status(oc_derived_get_pair_on(w->d, kind, ANY, NULL, v), OC_E_KIND);
  ck_status(oc_derived_insert_pair(w->d, kind, ANY, value, kept), OC_E_KIND);
  ck_status(oc_derived_get_or_build_pair(w->d, kind, ANY, never_pair, NULL, v), OC_E_KIND);
  ck_assert(v[0] == 77 && v[1] == 78 && kept[0] == 79 && kept[1] == 80);
}

/* G9: the wrong arity is OC_E_KIND everywhere, and changes nothing; a kind nobody registered likewise. */
START_TEST(g9_wrong_arity_changes_nothing) {
  struct world w = world_open();
  uint64_t calls = fx_all_calls(w.b);
  built = 0;
  oc_kind mine;
  ck_ok(oc_kind_register("g9-pair", OC_PAIR, &mine));
  for (int filled = 0; filled < 2; filled++) {
    const oc_kind pairs[] = {OC_ROWWISE_FP8, OC_CUTLASS_NVFP4_FROM_FP8, mine}, ptrs[] = {OC_BF16, OC_CUTLASS_NVFP4_T};
    for (size_t i = 0; i < 3; i++) ptr_calls_are_refused(&w, pairs[i]);
    for (size_t i = 0; i < 2; i++) pair_calls_are_refused(&w, ptrs[i]);
    const oc_kind unknown[] = {4, 15, 200, 255, 256, UINT32_MAX};
    for (size_t i = 0; i < 6; i++) {
      ptr_calls_are_refused(&w, unknown[i]);
      pair_calls_are_refused(&w, unknown[i]);
      oc_build *b = (oc_build *)&w;
      uint64_t out[2] = {1, 2};
      ck_status(oc_derived_begin(w.d, unknown[i], ANY, &b, out), OC_E_KIND);
      ck_assert(b == (oc_build *)&w && out[0] == 1 && out[1] == 2);
    }
    ck_assert_uint_eq(oc_derived_len(w.d), filled ? 2 : 0);
    if (filled) break;
    put(&w, OC_BF16, ANY, ANY);       /* a hit of the other arity is no hit */
    put_pair(&w, ANY, ANY, 0);
  }
  ck_assert_uint_eq(built, 0);
  ck_assert_uint_eq(fx_all_calls(w.b), calls);
  world_close(&w);
}
END_TEST

START_TEST(g9_each_kind_has_its_own_keys) {
  struct world w = world_open();
  oc_kind mine[12];
  for (unsigned i = 0; i < 12; i++) {
    char name[16];
    snprintf(name, sizeof name, "space-%u", i);
    ck_ok(oc_kind_register(name, OC_PTR, &mine[i]));
    put(&w, mine[i], ANY, block_of(&w, 256));
  }
  for (unsigned i = 0; i < 12; i++)
    for (unsigned j = 0; j < i; j++) ck_assert_uint_ne(value_of(&w, mine[i], ANY), value_of(&w, mine[j], ANY));
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), 0);
  ck_assert(!has_pair(&w, OC_ROWWISE_FP8, ANY));
  ck_assert_uint_eq(oc_derived_len(w.d), 12);
  ck_ok(oc_derived_invalidate(w.d, ANY));   /* G15: in every kind */
  for (unsigned i = 0; i < 12; i++) ck_assert_uint_eq(value_of(&w, mine[i], ANY), 0);
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* ---- values ---- */

/* G9, G33: 0 is no value and no key. */
START_TEST(g9_zero_is_no_value_and_no_key) {
  struct world w = world_open();
  uint64_t v = 77, kept = 78;
  const uint64_t none[2] = {0, 0}, some[2] = {ANY, 0};
  ck_status(oc_derived_insert_ptr(w.d, OC_BF16, ANY, 0, &kept), OC_E_INVALID);
  ck_status(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, ANY, none, NULL), OC_E_INVALID);
  ck_status(oc_derived_insert_ptr(w.d, OC_BF16, 0, ANY, &kept), OC_E_INVALID);
  ck_status(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, 0, some, NULL), OC_E_INVALID);
  ck_status(oc_derived_get_ptr(w.d, OC_BF16, 0, &v), OC_E_INVALID);
  ck_status(oc_derived_get_ptr_on(w.d, OC_BF16, 0, NULL, &v), OC_E_INVALID);
  uint64_t pair[2];
  ck_status(oc_derived_get_pair(w.d, OC_ROWWISE_FP8, 0, pair), OC_E_INVALID);
  ck_status(oc_derived_get_pair_on(w.d, OC_ROWWISE_FP8, 0, NULL, pair), OC_E_INVALID);
  ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, 0, never_ptr, NULL, &v), OC_E_INVALID);
  ck_status(oc_derived_invalidate(w.d, 0), OC_E_INVALID);
  const uint64_t keys[3] = {ANY, 0, ANY + 1};
  put(&w, OC_BF16, ANY, ANY);
  ck_status(oc_derived_invalidate_n(w.d, keys, 3), OC_E_INVALID);
  ck_words("key 1");
  ck_assert_uint_eq(oc_derived_len(w.d), 1);   /* and changed nothing */
  ck_assert(v == 77 && kept == 78);
  world_close(&w);
}
END_TEST

/* G10: the first value stays; the second one stays the caller's. */
START_TEST(g10_the_first_value_is_the_one) {
  struct world w = world_open();
  oc_devptr first = block_of(&w, 1000), second = block_of(&w, 1000);
  uint64_t kept = 0;
  ck_ok(oc_derived_insert_ptr(w.d, OC_BF16, ANY, first, &kept));
  ck_assert_uint_eq(kept, first);
  kept = 0;
  ck_status(oc_derived_insert_ptr(w.d, OC_BF16, ANY, second, &kept), OC_EXISTS);
  ck_assert_uint_eq(kept, first);
  ck_status(oc_derived_insert_ptr(w.d, OC_BF16, ANY, second, NULL), OC_EXISTS);
  ck_status(oc_derived_insert_ptr(w.d, OC_BF16, ANY, first, &kept), OC_EXISTS);   /* the same once more */
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), first);
  ck_status(oc_pool_free(w.p, first), OC_E_NOT_OWNED);
  ck_ok(oc_pool_free(w.p, second));
  ck_ok(oc_derived_invalidate(w.d, ANY));
  ck_assert_uint_eq(live_blocks(&w), 0);
  /* another round: after an invalidate the next first value counts */
  second = block_of(&w, 1000);
  put(&w, OC_BF16, ANY, second);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), second);
  world_close(&w);
}
END_TEST

START_TEST(g10_pairs_too_and_kept_may_be_the_value) {
  struct world w = world_open();
  uint64_t v[2] = {block_of(&w, 64), block_of(&w, 64)}, again[2] = {block_of(&w, 64), block_of(&w, 64)}, out[2];
  const uint64_t mine[2] = {again[0], again[1]};
  ck_ok(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, ANY, v, v));
  ck_status(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, ANY, again, again), OC_EXISTS);
  ck_assert_mem_eq(again, v, sizeof v);
  ck_ok(oc_derived_get_pair(w.d, OC_ROWWISE_FP8, ANY, out));
  ck_assert_mem_eq(out, v, sizeof v);
  ck_ok(oc_pool_free(w.p, mine[0]));
  ck_ok(oc_pool_free(w.p, mine[1]));
  world_close(&w);
}
END_TEST

struct race { struct world *w; oc_devptr mine[24]; uint64_t kept[24]; oc_status st[24]; };

static void insert_mine(void *arg, unsigned i) {
  struct race *r = arg;
  r->st[i] = oc_derived_insert_ptr(r->w->d, OC_BF16, ANY, r->mine[i], &r->kept[i]);
}

/* G10 under threads: one wins, all are told the same value, 23 blocks are still their callers'. */
START_TEST(g10_one_insert_wins) {
  struct world w = world_open();
  for (unsigned round = 0; round < 20; round++) {
    struct race r = {.w = &w};
    for (unsigned i = 0; i < 24; i++) r.mine[i] = block_of(&w, 256);
    fx_threads(24, insert_mine, &r);
    unsigned won = 0;
    for (unsigned i = 0; i < 24; i++) {
      won += r.st[i] == OC_OK;
      ck_assert(r.st[i] == OC_OK || r.st[i] == OC_EXISTS);
      ck_assert_uint_eq(r.kept[i], value_of(&w, OC_BF16, ANY));
      if (r.st[i] == OC_EXISTS) ck_ok(oc_pool_free(w.p, r.mine[i]));
    }
    ck_assert_uint_eq(won, 1);
    ck_assert_uint_eq(live_blocks(&w), 1);
    ck_ok(oc_derived_invalidate(w.d, ANY));
  }
  ck_assert_uint_eq(live_blocks(&w), 0);
  world_close(&w);
}
END_TEST

/* Any number is a key: the smallest, the largest, neighbours. */
START_TEST(keys_are_all_numbers_but_0) {
  struct world w = world_open();
  const uint64_t keys[] = {1, 2, 255, 256, UINT32_MAX, (uint64_t)UINT32_MAX + 1, (uint64_t)1 << 63, UINT64_MAX - 1, UINT64_MAX};
  const size_t n = sizeof keys / sizeof *keys;
  for (size_t i = 0; i < n; i++) put(&w, OC_BF16, keys[i], keys[i]);
  for (size_t i = 0; i < n; i++) ck_assert_uint_eq(value_of(&w, OC_BF16, keys[i]), keys[i]);
  ck_assert_uint_eq(value_of(&w, OC_BF16, 3), 0);
  ck_assert_uint_eq(oc_derived_len(w.d), n);
  ck_ok(oc_derived_invalidate_n(w.d, keys, n));
  ck_assert(oc_derived_is_empty(w.d));
  world_close(&w);
}
END_TEST

/* G4: many keys through several growths; every one is found, no other. */
START_TEST(g4_twenty_thousand_keys) {
  struct world w = world_open();
  const uint64_t n = fx_scale(20000);
  for (uint64_t i = 1; i <= n; i++) put(&w, OC_BF16, i << 12, i << 12);
  for (uint64_t i = 1; i <= n; i++) {
    ck_assert_uint_eq(value_of(&w, OC_BF16, i << 12), i << 12);
    ck_assert_uint_eq(value_of(&w, OC_BF16, (i << 12) + 1), 0);
  }
  ck_assert_uint_eq(oc_derived_len(w.d), n);
  for (uint64_t i = 2; i <= n; i += 2) ck_ok(oc_derived_invalidate(w.d, i << 12));
  ck_assert_uint_eq(oc_derived_len(w.d), n - n / 2);
  for (uint64_t i = 1; i <= n; i++) ck_assert_uint_eq(value_of(&w, OC_BF16, i << 12), i % 2 ? i << 12 : 0);
  world_close(&w);
}
END_TEST

/* ---- figures ---- */

START_TEST(len_label_describe) {
  struct world w = world_open();
  char line[200], small[10];
  ck_assert_str_eq(oc_derived_label(w.d), "derived weights");
  ck_assert(oc_derived_is_empty(w.d));
  int n = oc_derived_describe(w.d, line, sizeof line);
  ck_assert_int_eq(n, (int)strlen(line));
  ck_assert_ptr_nonnull(strstr(line, "entries: 0"));
  put(&w, OC_BF16, ANY, ANY);
  put(&w, OC_BF16, ANY + 1, ANY + 1);
  put_pair(&w, ANY, ANY, 0);
  ck_assert_uint_eq(oc_derived_len(w.d), 3);
  ck_assert(!oc_derived_is_empty(w.d));
  n = oc_derived_describe(w.d, line, sizeof line);
  ck_assert_int_eq(n, (int)strlen(line));
  ck_assert_ptr_nonnull(strstr(line, "entries: 3"));
  ck_assert_ptr_nonnull(strstr(line, "bf16: 2"));
  ck_assert_ptr_nonnull(strstr(line, "rowwise-fp8: 1"));
  /* as snprintf */
  ck_assert_int_eq(oc_derived_describe(w.d, NULL, 0), n);
  memset(small, 'x', sizeof small);
  ck_assert_int_eq(oc_derived_describe(w.d, small, sizeof small), n);
  ck_assert_uint_eq(strlen(small), sizeof small - 1);
  ck_assert_mem_eq(small, line, sizeof small - 1);
  ck_assert_int_lt(oc_derived_describe(w.d, NULL, 10), 0);
  world_close(&w);
}
END_TEST

/* G33: NULL everywhere. */
START_TEST(g33_null_has_a_status) {
  struct world w = world_open();
  uint64_t v, two[2] = {ANY, ANY};
  oc_build *b;
  ck_status(oc_derived_get_ptr(NULL, OC_BF16, ANY, &v), OC_E_INVALID);
  ck_status(oc_derived_get_ptr(w.d, OC_BF16, ANY, NULL), OC_E_INVALID);
  ck_status(oc_derived_get_pair(NULL, OC_ROWWISE_FP8, ANY, two), OC_E_INVALID);
  ck_status(oc_derived_get_pair(w.d, OC_ROWWISE_FP8, ANY, NULL), OC_E_INVALID);
  ck_status(oc_derived_get_ptr_on(NULL, OC_BF16, ANY, NULL, &v), OC_E_INVALID);
  ck_status(oc_derived_get_ptr_on(w.d, OC_BF16, ANY, NULL, NULL), OC_E_INVALID);
  ck_status(oc_derived_get_pair_on(NULL, OC_ROWWISE_FP8, ANY, NULL, two), OC_E_INVALID);
  ck_status(oc_derived_get_pair_on(w.d, OC_ROWWISE_FP8, ANY, NULL, NULL), OC_E_INVALID);
  ck_status(oc_derived_insert_ptr(NULL, OC_BF16, ANY, ANY, &v), OC_E_INVALID);
  ck_status(oc_derived_insert_pair(NULL, OC_ROWWISE_FP8, ANY, two, two), OC_E_INVALID);
  ck_status(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, ANY, NULL, two), OC_E_INVALID);
  ck_status(oc_derived_get_or_build_ptr(NULL, OC_BF16, ANY, never_ptr, NULL, &v), OC_E_INVALID);
  ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, NULL, NULL, &v), OC_E_INVALID);
  ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, never_ptr, NULL, NULL), OC_E_INVALID);
  ck_status(oc_derived_get_or_build_pair(NULL, OC_ROWWISE_FP8, ANY, never_pair, NULL, two), OC_E_INVALID);
  ck_status(oc_derived_get_or_build_pair(w.d, OC_ROWWISE_FP8, ANY, NULL, NULL, two), OC_E_INVALID);
  ck_status(oc_derived_get_or_build_pair(w.d, OC_ROWWISE_FP8, ANY, never_pair, NULL, NULL), OC_E_INVALID);
  ck_status(oc_derived_begin(NULL, OC_BF16, ANY, &b, two), OC_E_INVALID);
  ck_status(oc_derived_begin(w.d, OC_BF16, ANY, NULL, two), OC_E_INVALID);
  ck_status(oc_derived_begin(w.d, OC_BF16, ANY, &b, NULL), OC_E_INVALID);
  ck_status(oc_build_alloc(NULL, 1, 0, &v), OC_E_INVALID);
  ck_status(oc_build_on_stream(NULL, NULL), OC_E_INVALID);
  ck_status(oc_build_commit(NULL, two, NULL), OC_E_INVALID);
  oc_build_abort(NULL);
  ck_status(oc_derived_settle(NULL), OC_E_INVALID);
  ck_status(oc_derived_invalidate(NULL, ANY), OC_E_INVALID);
  ck_status(oc_derived_invalidate_n(NULL, two, 2), OC_E_INVALID);
  ck_status(oc_derived_invalidate_n(w.d, NULL, 1), OC_E_INVALID);
  ck_ok(oc_derived_invalidate_n(w.d, NULL, 0));
  ck_status(oc_derived_release(NULL), OC_E_INVALID);
  ck_assert_uint_eq(oc_derived_len(NULL), 0);
  ck_assert(oc_derived_is_empty(NULL));
  ck_assert_ptr_null(oc_derived_label(NULL));
  ck_assert_int_lt(oc_derived_describe(NULL, NULL, 0), 0);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  world_close(&w);
}
END_TEST

/* ---- where it is called ---- */

/* G27, G28: lookups and inserts work inside a guard and inside a capture, without a driver call. */
START_TEST(g27_g28_hits_and_inserts_work_everywhere) {
  struct world w = world_open();
  oc_stream s = fx_stream(w.b);
  oc_devptr a = block_of(&w, 256), c = block_of(&w, 256);
  uint64_t calls = fx_all_calls(w.b), v;
  oc_guard_enter();
  put(&w, OC_BF16, ANY, a);
  ck_assert_uint_eq(value_of(&w, OC_BF16, ANY), a);
  oc_guard_leave();
  ck_ok(oc_capture_enter(w.m, s));
  put(&w, OC_CUTLASS_NVFP4_T, ANY, c);
  ck_assert_uint_eq(value_of(&w, OC_CUTLASS_NVFP4_T, ANY), c);
  ck_ok(oc_derived_get_ptr_on(w.d, OC_BF16, ANY, s, &v));
  ck_assert_uint_eq(v, a);
  ck_status(oc_derived_get_ptr(w.d, OC_BF16, ANY + 1, &v), OC_MISS);
  oc_capture_leave(w.m);
  ck_assert_uint_eq(fx_all_calls(w.b), calls);
  world_close_stream(&w, s);
}
END_TEST

/* G3: after teardown nothing is found and nothing written. */
/* G3: from the moment that teardown began, though the entries are there until it gets to them. */
START_TEST(g3_while_teardown_waits_nothing_is_found) {
  struct world w = world_open();
  struct call c = {.w = &w};
  struct side teardown;
  uint64_t v[2] = {77, 77};
  put(&w, OC_BF16, ANY, ANY);
  put_pair(&w, ANY, ANY, 0);
  ck_ok(oc_derived_get_ptr_on(w.d, OC_BF16, ANY, NULL, v));   /* names the stream */
  v[0] = 77;
  ck_ok(oc_model_retain(w.m, "engine"));
  side_start(&teardown, call_teardown, &c);
  side_waits(&teardown);
  ck_assert_uint_eq(oc_derived_len(w.d), 2);
  ck_status(oc_derived_get_ptr(w.d, OC_BF16, ANY, v), OC_E_RELEASED);
  ck_status(oc_derived_get_ptr_on(w.d, OC_BF16, ANY, NULL, v), OC_E_RELEASED);
  ck_status(oc_derived_get_pair(w.d, OC_ROWWISE_FP8, ANY, v), OC_E_RELEASED);
  ck_status(oc_derived_get_pair_on(w.d, OC_ROWWISE_FP8, ANY, NULL, v), OC_E_RELEASED);
  ck_words("torn down");
  ck_assert(v[0] == 77 && v[1] == 77);
  ck_ok(oc_model_release_hold(w.m, "engine"));
  side_join(&teardown);
  ck_assert_int_eq(c.status, OC_OK);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

/* G28: whichever call found a value in a capture, its block is the graph's. */
START_TEST(g28_each_kind_of_hit_marks_the_value) {
  for (int way = 0; way < 4; way++) {
    struct world w = world_open();
    uint64_t v[2];
    put(&w, OC_BF16, ANY, block_of(&w, 4096));
    put_pair(&w, ANY, block_of(&w, 4096), 0);
    ck_ok(oc_model_use_stream(w.m, NULL));
    ck_ok(oc_capture_enter(w.m, NULL));
    if (way == 0) ck_ok(oc_derived_get_ptr(w.d, OC_BF16, ANY, v));
    if (way == 1) ck_ok(oc_derived_get_ptr_on(w.d, OC_BF16, ANY, NULL, v));
    if (way == 2) ck_ok(oc_derived_get_pair(w.d, OC_ROWWISE_FP8, ANY, v));
    if (way == 3) ck_ok(oc_derived_get_pair_on(w.d, OC_ROWWISE_FP8, ANY, NULL, v));
    oc_capture_leave(w.m);
    ck_ok(oc_derived_release(w.d));
    ck_assert_uint_eq(figures(&w).retired_bytes, 4096);   /* of the two the one that was found */
    ck_ok(oc_model_graphs_gone(w.m));
    ck_assert_uint_eq(figures(&w).retired_bytes, 0);
    world_close(&w);
  }
}
END_TEST

START_TEST(g3_after_teardown_everything_says_so) {
  struct world w = world_open();
  put(&w, OC_BF16, ANY, block_of(&w, 256));
  put_pair(&w, ANY, ANY, 0);
  ck_ok(oc_model_teardown(w.m, NULL));
  uint64_t v = 77, two[2] = {78, 79};
  const uint64_t value[2] = {1, 2};
  oc_build *b = NULL;
  built = 0;
  ck_status(oc_derived_get_ptr(w.d, OC_BF16, ANY, &v), OC_E_RELEASED);
  ck_status(oc_derived_get_ptr(w.d, OC_BF16, ANY + 1, &v), OC_E_RELEASED);
  ck_status(oc_derived_get_pair(w.d, OC_ROWWISE_FP8, ANY, two), OC_E_RELEASED);
  ck_status(oc_derived_get_ptr_on(w.d, OC_BF16, ANY, NULL, &v), OC_E_RELEASED);
  ck_status(oc_derived_get_pair_on(w.d, OC_ROWWISE_FP8, ANY, NULL, two), OC_E_RELEASED);
  ck_status(oc_derived_insert_ptr(w.d, OC_BF16, ANY, 1, &v), OC_E_RELEASED);
  ck_status(oc_derived_insert_pair(w.d, OC_ROWWISE_FP8, ANY, value, two), OC_E_RELEASED);
  ck_status(oc_derived_get_or_build_ptr(w.d, OC_BF16, ANY, never_ptr, NULL, &v), OC_E_RELEASED);
  ck_status(oc_derived_get_or_build_pair(w.d, OC_ROWWISE_FP8, ANY, never_pair, NULL, two), OC_E_RELEASED);
  ck_status(oc_derived_begin(w.d, OC_BF16, ANY, &b, two), OC_E_RELEASED);
  ck_status(oc_derived_settle(w.d), OC_E_RELEASED);
  ck_status(oc_derived_invalidate(w.d, ANY), OC_E_RELEASED);
  ck_status(oc_derived_release(w.d), OC_E_RELEASED);
  ck_assert(v == 77 && two[0] == 78 && two[1] == 79 && !b && !built);
  ck_assert_uint_eq(oc_derived_len(w.d), 0);
  ck_ok(oc_model_destroy(w.m));
  fx_close(w.b);
}
END_TEST

/* oc_derived_release: all of it, again and again, and afterwards lookups miss afresh. */
START_TEST(release_forgets_all_and_the_model_goes_on) {
  struct world w = world_open();
  ck_ok(oc_derived_release(w.d));
  for (unsigned round = 0; round < 3; round++) {
    for (uint64_t i = 1; i <= 50; i++) put(&w, OC_BF16, ANY + i, block_of(&w, 300));
    put_pair(&w, ANY, block_of(&w, 300), block_of(&w, 300));
    ck_assert_uint_eq(live_blocks(&w), 52);
    ck_ok(oc_derived_release(w.d));
    ck_ok(oc_derived_release(w.d));
    ck_assert(oc_derived_is_empty(w.d));
    ck_assert_uint_eq(live_blocks(&w), 0);
    ck_assert_uint_eq(value_of(&w, OC_BF16, ANY + 1), 0);
  }
  oc_guard_enter();
  ck_status(oc_derived_release(w.d), OC_E_GUARDED);
  oc_guard_leave();
  world_close(&w);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("derived", &tc);
  tcase_add_test(tc, the_four_kinds_have_names);
  tcase_add_test(tc, a_name_has_one_id);
  tcase_add_test(tc, nonsense_kinds_are_refused);
  tcase_add_test(tc, threads_that_register_one_name_get_one_id);
  tcase_add_test(tc, kinds_run_out_in_words);
  tcase_add_test(tc, g9_wrong_arity_changes_nothing);
  tcase_add_test(tc, g9_each_kind_has_its_own_keys);
  tcase_add_test(tc, g9_zero_is_no_value_and_no_key);
  tcase_add_test(tc, g10_the_first_value_is_the_one);
  tcase_add_test(tc, g10_pairs_too_and_kept_may_be_the_value);
  tcase_add_test(tc, g10_one_insert_wins);
  tcase_add_test(tc, keys_are_all_numbers_but_0);
  tcase_add_test(tc, g4_twenty_thousand_keys);
  tcase_add_test(tc, len_label_describe);
  tcase_add_test(tc, g33_null_has_a_status);
  tcase_add_test(tc, g27_g28_hits_and_inserts_work_everywhere);
  tcase_add_test(tc, g3_while_teardown_waits_nothing_is_found);
  tcase_add_test(tc, g28_each_kind_of_hit_marks_the_value);
  tcase_add_test(tc, g3_after_teardown_everything_says_so);
  tcase_add_test(tc, release_forgets_all_and_the_model_goes_on);
  return fx_run(s);
}
