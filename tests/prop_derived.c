/* SPDX-License-Identifier: MIT */
/*
 * Random calls of the whole API of derived weights and pool, against a plain model of who owns what (G9-G15, G21).
 *
 * After each step every status, value, count and byte must be the model's, and the pool's invariants hold; at the end
 * nothing is left on the device. A second part runs threads whose values carry the version of their source: a value
 * older than the last finished invalidate, or one that changes inside a guard, is stale.
 *
 * Healthy output is the seed and "100%". LIBOC_TEST_SEED=n repeats a run.
 */
#include "config.h"

#include <sched.h>
#include <stdio.h>

#include "tests/world.h"

/* ---- the plain model ---- */

#define BLOCKS 128
#define ENTRIES 256
#define BUILDS 3
#define EXTERNALS 3
#define EXT_BASE 0x10000u
#define EXT_BYTES 0x1000u
#define NUMBERS 8          /* keys that are in no memory: 1 .. NUMBERS */

#define NOBODYS (-2)       /* build of a block that stays until teardown */

enum class { FREE, USER, OWNED, DERIVED, BUILD };

struct block {
  enum class class;
  uint64_t start, bytes;
  int build;               /* of BUILD */
  bool captured;           /* a graph was handed a value in it */
};

struct foreign {
  uint64_t at;             /* 0: none */
  bool captured, kept;     /* handed to a graph; and forgotten since */
};

struct half { int block, external, foreign; };   /* where a value is that an entry is tied to; -1: not there */

struct entry {
  bool there;
  oc_kind kind;
  uint64_t key, value[2];
  struct half half[2];
};

struct open_build { oc_build *handle; oc_kind kind; uint64_t key; };

struct plain {
  struct block block[BLOCKS];
  struct entry entry[ENTRIES];
  struct open_build build[BUILDS];
  bool noted[EXTERNALS];
  struct foreign foreign[ENTRIES];
  uint64_t retired;
};

static struct world w;
static struct plain pl;
static uint64_t rng;

static uint64_t roll(uint64_t n) { return fx_random(&rng) % n; }
static uint64_t rounded(uint64_t bytes) { return (bytes + 255) / 256 * 256; }
static bool is_pair(oc_kind k) { return k == OC_ROWWISE_FP8 || k == OC_CUTLASS_NVFP4_FROM_FP8; }

static int block_at(uint64_t addr) {
  for (int i = 0; i < BLOCKS; i++) {
    const struct block *b = &pl.block[i];
    if (b->class != FREE && addr >= b->start && addr - b->start < rounded(b->bytes)) return i;
  }
  return -1;
}

static int external_at(uint64_t addr) {
  int i = addr >= EXT_BASE ? (int)((addr - EXT_BASE) / EXT_BYTES) : -1;
  return i >= 0 && i < EXTERNALS && pl.noted[i] ? i : -1;
}

static int foreign_at(uint64_t addr) {
  for (int i = 0; i < ENTRIES; i++)
    if (pl.foreign[i].at && pl.foreign[i].at == addr) return i;
  return -1;
}

static struct entry *entry_of(oc_kind kind, uint64_t key) {
  for (int i = 0; i < ENTRIES; i++)
    if (pl.entry[i].there && pl.entry[i].kind == kind && pl.entry[i].key == key) return &pl.entry[i];
  return NULL;
}

static bool owns_half(const struct entry *e, int i) {
  const struct half *h = &e->half[i];
  return h->foreign >= 0 || (h->block >= 0 && pl.block[h->block].class == DERIVED);
}

static bool same_place(const struct half *a, const struct half *b) {
  return (a->block >= 0 && a->block == b->block) || (a->foreign >= 0 && a->foreign == b->foreign);
}

/* ---- what goes ---- */

static bool doomed[ENTRIES];

static bool lives_on(const struct half *h) {
  for (int i = 0; i < ENTRIES; i++)
    if (pl.entry[i].there && !doomed[i] && (same_place(h, &pl.entry[i].half[0]) || same_place(h, &pl.entry[i].half[1]))) return true;
  return false;
}

/* Is `key` the owned value of something that goes, or in a block that goes? */
static bool derived_of_doomed(uint64_t key) {
  int at = block_at(key);
  for (int i = 0; i < ENTRIES; i++) {
    const struct entry *e = &pl.entry[i];
    for (int h = 0; e->there && doomed[i] && h < 2; h++) {
      if (!owns_half(e, h)) continue;
      if (e->value[h] == key) return true;
      if (at >= 0 && e->half[h].block == at && !lives_on(&e->half[h])) return true;
    }
  }
  return false;
}

static void spread(void) {
  for (bool more = true; more;) {
    more = false;
    for (int i = 0; i < ENTRIES; i++)
      if (pl.entry[i].there && !doomed[i] && derived_of_doomed(pl.entry[i].key)) doomed[i] = more = true;
  }
}

static bool build_in_the_way(bool (*named)(uint64_t key)) {
  for (int i = 0; i < BUILDS; i++)
    if (pl.build[i].handle && (named(pl.build[i].key) || derived_of_doomed(pl.build[i].key))) return true;
  return false;
}

static void block_gone(int i, bool retire) {
  if (retire) pl.retired += rounded(pl.block[i].bytes);
  pl.block[i].class = FREE;
}

static void foreign_gone(struct foreign *f) {
  if (f->captured) f->kept = true;
  else f->at = 0;
}

static void bury(void) {
  for (int i = 0; i < ENTRIES; i++) {
    struct entry *e = &pl.entry[i];
    if (!e->there || !doomed[i]) continue;
    for (int h = 0; h < 2; h++) {
      if (!owns_half(e, h) || lives_on(&e->half[h])) continue;
      if (e->half[h].foreign >= 0) foreign_gone(&pl.foreign[e->half[h].foreign]);
      else block_gone(e->half[h].block, pl.block[e->half[h].block].captured);
      struct half was = e->half[h];
      for (int j = 0; j < ENTRIES; j++)
        for (int k = 0; k < 2; k++)
          if (pl.entry[j].there && same_place(&was, &pl.entry[j].half[k])) pl.entry[j].half[k] = (struct half){-1, -1, -1};
    }
  }
  for (int i = 0; i < ENTRIES; i++)
    if (doomed[i]) pl.entry[i].there = false;
}

/* What an invalidate of the named keys, and of borrowed values in a block or range, must answer and do. */
static int freed_block, freed_external;
static uint64_t named_keys[4];
static unsigned named_count;

static bool is_named(uint64_t key) {
  for (unsigned i = 0; i < named_count; i++)
    if (named_keys[i] == key) return true;
  return (freed_block >= 0 && block_at(key) == freed_block) || (freed_external >= 0 && external_at(key) == freed_external);
}

static bool is_any(uint64_t key) { return key != 0; }

static bool borrows_from_freed(const struct entry *e) {
  for (int h = 0; h < 2; h++) {
    if (freed_block >= 0 && e->half[h].block == freed_block && !owns_half(e, h)) return true;
    if (freed_external >= 0 && e->half[h].external == freed_external) return true;
  }
  return false;
}

static oc_status forget(bool (*named)(uint64_t key)) {
  memset(doomed, 0, sizeof doomed);
  for (int i = 0; i < ENTRIES; i++)
    if (pl.entry[i].there && (named(pl.entry[i].key) || borrows_from_freed(&pl.entry[i]))) doomed[i] = true;
  spread();
  if (build_in_the_way(named)) return OC_E_REENTRANT;
  bury();
  return OC_OK;
}

static oc_status forget_keys(const uint64_t *keys, unsigned n) {
  freed_block = freed_external = -1;
  named_count = n;
  for (unsigned i = 0; i < n; i++) named_keys[i] = keys[i];
  return forget(is_named);
}

static oc_status forget_block(int block, int external) {
  freed_block = block;
  freed_external = external;
  named_count = 0;
  return forget(is_named);
}

/* ---- what an insert or commit must do ---- */

static bool key_refused(uint64_t key, uint64_t arena, uint64_t arena_bytes) {
  return key - arena < arena_bytes && block_at(key) < 0;
}

static uint64_t arena_at, arena_bytes;

/* OC_OK: *half says where it is. */
static oc_status judge(uint64_t key, uint64_t value, int build, struct half *half) {
  *half = (struct half){-1, -1, -1};
  if (!value || value == key) return OC_OK;
  int e = external_at(value), b = block_at(value);
  if (e >= 0) {
    half->external = e;
    return OC_OK;
  }
  if (b < 0) {
    if (value - arena_at < arena_bytes) return OC_E_NOT_OWNED;
    half->foreign = foreign_at(value);
    if (half->foreign >= 0 && pl.foreign[half->foreign].kept) return OC_E_NOT_OWNED;
    return half->foreign >= 0 ? OC_OK : OC_E_INVALID;   /* the test makes no others */
  }
  if (block_at(key) == b) return OC_OK;
  if (pl.block[b].class == BUILD && pl.block[b].build != build) return OC_E_NOT_OWNED;
  half->block = b;
  return OC_OK;
}

static oc_status store(oc_kind kind, uint64_t key, const uint64_t v[2], int build) {
  struct half half[2];
  if (entry_of(kind, key)) return OC_EXISTS;
  for (int i = 0; i < 2; i++) {
    oc_status st = judge(key, v[i], build, &half[i]);
    if (st) return st;
  }
  if (key_refused(key, arena_at, arena_bytes)) return OC_E_NOT_OWNED;
  int i = 0;
  while (pl.entry[i].there) ck_assert_int_lt(++i, ENTRIES);
  pl.entry[i] = (struct entry){true, kind, key, {v[0], v[1]}, {half[0], half[1]}};
  for (int h = 0; h < 2; h++) {
    struct block *b = half[h].block >= 0 ? &pl.block[half[h].block] : NULL;
    if (b && (b->class == USER || b->class == BUILD)) b->class = DERIVED;
  }
  return OC_OK;
}

/* ---- choices ---- */

static int some_block(unsigned classes) {
  for (int tries = 0; tries < 20; tries++) {
    int i = (int)roll(BLOCKS);
    if (pl.block[i].class != FREE && classes & 1u << pl.block[i].class) return i;
  }
  return -1;
}

static uint64_t inside(int block) {
  if (block < 0) return 1 + roll(NUMBERS);
  return pl.block[block].start + (roll(2) ? 0 : roll(pl.block[block].bytes));
}

#define ALL_CLASSES (1u << USER | 1u << OWNED | 1u << DERIVED | 1u << BUILD)

static uint64_t freed_address;

static uint64_t some_key(void) {
  switch (roll(7)) {
    case 0: return 1 + roll(NUMBERS);
    case 1: return EXT_BASE + roll(EXTERNALS) * EXT_BYTES + roll(2) * 8;
    case 2: {                                    /* one that is there */
      const struct entry *e = &pl.entry[roll(ENTRIES)];
      return e->there ? e->key : 1 + roll(NUMBERS);
    }
    case 3: {                                    /* a value: a derivation of a derivation */
      const struct entry *e = &pl.entry[roll(ENTRIES)];
      return e->there && e->value[0] ? e->value[0] : inside(some_block(1u << DERIVED));
    }
    case 4: return freed_address && roll(4) == 0 ? freed_address : 1 + roll(NUMBERS);
    default: return inside(some_block(1u << USER | 1u << OWNED | 1u << DERIVED));
  }
}

static uint64_t new_foreign(void) {
  int i = 0;
  while (pl.foreign[i].at) ck_assert_int_lt(++i, ENTRIES);
  pl.foreign[i] = (struct foreign){0};
  ck_ok(oc_backend_table(w.b)->alloc(oc_backend_self(w.b), 4096, &pl.foreign[i].at));
  return pl.foreign[i].at;
}

static uint64_t some_value(uint64_t key) {
  switch (roll(10)) {
    case 0: return key;
    case 1: return inside(block_at(key));
    case 2: return inside(some_block(1u << OWNED));
    case 3: for (unsigned i = 0; i < EXTERNALS; i++) if (pl.noted[i]) return EXT_BASE + i * EXT_BYTES + 16; return key;
    case 4: return roll(3) ? inside(some_block(1u << BUILD)) : new_foreign();
    case 5: case 6: return inside(some_block(1u << DERIVED));
    default: return inside(some_block(1u << USER));
  }
}

/* A number is no value unless it is its own key. */
static uint64_t sane_value(uint64_t key, uint64_t v) { return v <= NUMBERS ? key : v; }

/* ---- steps ---- */

static void add_block(uint64_t start, uint64_t bytes, enum class class, int build) {
  int i = 0;
  while (pl.block[i].class != FREE) ck_assert_int_lt(++i, BLOCKS);
  ck_assert_int_eq(block_at(start), -1);
  ck_assert_int_eq(block_at(start + bytes - 1), -1);
  pl.block[i] = (struct block){class, start, bytes, build, false};
}

static unsigned blocks_in_use(void) {
  unsigned n = 0;
  for (int i = 0; i < BLOCKS; i++) n += pl.block[i].class != FREE;
  return n;
}

static unsigned entries_there(void) {
  unsigned n = 0;
  for (int i = 0; i < ENTRIES; i++) n += pl.entry[i].there;
  return n;
}

static void step_alloc(void) {
  uint64_t bytes = 1 + roll(5000);
  oc_devptr p;
  bool owned = roll(4) == 0;
  if (blocks_in_use() > BLOCKS - 20) return;
  if (owned) ck_ok(oc_pool_alloc_owned(w.p, "weights", bytes, 0, &p));
  else ck_ok(oc_pool_alloc(w.p, bytes, 0, &p));
  add_block(p, bytes, owned ? OWNED : USER, -1);
}

static void step_free(void) {
  int i = some_block(ALL_CLASSES);
  if (i < 0) return;
  uint64_t p = pl.block[i].start + (roll(8) == 0 ? 1 : 0);
  oc_status want = OC_OK;
  if (p != pl.block[i].start) want = OC_E_INTERIOR;
  else if (pl.block[i].class == DERIVED || pl.block[i].class == BUILD) want = OC_E_NOT_OWNED;
  else want = forget_block(i, -1);
  ck_status(roll(3) ? oc_pool_free(w.p, p) : oc_pool_free_on(w.p, p, NULL), want);
  fx_sync(w.b, NULL);
  if (want) return;
  freed_address = p;
  block_gone(i, false);
}

/* Memory of the driver's that no entry took goes back. */
static void free_unused_foreign(void) {
  for (int i = 0; i < ENTRIES; i++) {
    bool used = !pl.foreign[i].at || pl.foreign[i].kept;
    for (int e = 0; e < ENTRIES && !used; e++)
      used = pl.entry[e].there && (pl.entry[e].half[0].foreign == i || pl.entry[e].half[1].foreign == i);
    if (used) continue;
    ck_ok(oc_backend_table(w.b)->free(oc_backend_self(w.b), pl.foreign[i].at));
    pl.foreign[i].at = 0;
  }
}

static oc_status insert(oc_kind kind, uint64_t key, const uint64_t v[2], uint64_t kept[2]) {
  return is_pair(kind) ? oc_derived_insert_pair(w.d, kind, key, v, kept) : oc_derived_insert_ptr(w.d, kind, key, v[0], kept);
}

static void pick_value(oc_kind kind, uint64_t key, uint64_t v[2]) {
  v[0] = sane_value(key, some_value(key));
  v[1] = is_pair(kind) && roll(3) ? sane_value(key, some_value(key)) : 0;
  if (v[1] && roll(6) == 0) v[0] = 0;
}

static void step_insert(void) {
  oc_kind kind = (oc_kind)roll(4);
  uint64_t key = some_key(), v[2], kept[2] = {0, 0};
  if (entries_there() > ENTRIES - 10) return;
  pick_value(kind, key, v);
  struct entry *was = entry_of(kind, key);
  oc_status want = store(kind, key, v, -1);
  ck_status(insert(kind, key, v, kept), want);
  if (want == OC_OK) ck_assert(kept[0] == v[0] && kept[1] == v[1]);
  if (want == OC_EXISTS) ck_assert(kept[0] == was->value[0] && (!is_pair(kind) || kept[1] == was->value[1]));
  free_unused_foreign();
}

static void step_invalidate(void) {
  uint64_t keys[3] = {some_key(), some_key(), some_key()};
  unsigned n = roll(3) ? 1 : 3;
  oc_status want = forget_keys(keys, n);
  ck_status(n == 1 ? oc_derived_invalidate(w.d, keys[0]) : oc_derived_invalidate_n(w.d, keys, n), want);
}

static void step_release(void) {
  freed_block = freed_external = -1;
  oc_status want = forget(is_any);
  ck_status(oc_derived_release(w.d), want);
}

static int key_build(oc_kind kind, uint64_t key) {
  for (int i = 0; i < BUILDS; i++)
    if (pl.build[i].handle && pl.build[i].kind == kind && pl.build[i].key == key) return i;
  return -1;
}

static void step_begin(void) {
  int i = (int)roll(BUILDS);
  if (pl.build[i].handle) return;
  oc_kind kind = (oc_kind)roll(4);
  uint64_t key = some_key(), out[2] = {0, 0};
  struct entry *e = entry_of(kind, key);
  oc_build *b = NULL;
  oc_status want = e ? OC_OK : key_build(kind, key) >= 0 ? OC_E_REENTRANT : key_refused(key, arena_at, arena_bytes) ? OC_E_NOT_OWNED : OC_MISS;
  ck_status(oc_derived_begin(w.d, kind, key, &b, out), want);
  ck_assert((b != NULL) == (want == OC_MISS));
  if (e) ck_assert(out[0] == e->value[0] && (!is_pair(kind) || out[1] == e->value[1]));
  if (b) pl.build[i] = (struct open_build){b, kind, key};
}

static void step_build_alloc(void) {
  int i = (int)roll(BUILDS);
  uint64_t bytes = 1 + roll(3000);
  oc_devptr p;
  if (!pl.build[i].handle || blocks_in_use() > BLOCKS - 10) return;
  ck_ok(oc_build_alloc(pl.build[i].handle, bytes, 0, &p));
  add_block(p, bytes, BUILD, i);
}

/* The build's blocks go back; of one that is a source, what was derived goes first (or it stays, where another build of
   this thread is of it). */
static void give_blocks_back(int build) {
  for (int i = 0; i < BLOCKS; i++) {
    if (pl.block[i].class != BUILD || pl.block[i].build != build) continue;
    if (forget_block(i, -1) == OC_OK) block_gone(i, false);
    else pl.block[i].build = NOBODYS;
  }
}

static void step_end_build(void) {
  int i = (int)roll(BUILDS);
  struct open_build b = pl.build[i];
  if (!b.handle) return;
  pl.build[i].handle = NULL;
  if (roll(3) == 0 || entries_there() > ENTRIES - 10) {
    give_blocks_back(i);
    oc_build_abort(b.handle);
    return;
  }
  uint64_t v[2], kept[2] = {0, 0};
  pick_value(b.kind, b.key, v);
  int own = -1;
  for (int k = 0; k < BLOCKS; k++)
    if (pl.block[k].class == BUILD && pl.block[k].build == i) own = k;
  if (own >= 0 && roll(4)) v[0] = inside(own);
  oc_status want = store(b.kind, b.key, v, i);
  give_blocks_back(i);
  ck_status(oc_build_commit(b.handle, v, kept), want);
  free_unused_foreign();
}

static void step_external(void) {
  unsigned i = (unsigned)roll(EXTERNALS);
  uint64_t at = EXT_BASE + i * EXT_BYTES;
  if (pl.noted[i]) {
    oc_status want = forget_block(-1, (int)i);
    ck_status(oc_pool_forget_external(w.p, at), want);
    if (!want) pl.noted[i] = false;
    return;
  }
  for (int e = 0; e < ENTRIES; e++)   /* keys there count from the note on: none must be older */
    if (pl.entry[e].there && pl.entry[e].key - at < EXT_BYTES) return;
  for (int b = 0; b < BUILDS; b++)
    if (pl.build[b].handle && pl.build[b].key - at < EXT_BYTES) return;
  ck_ok(oc_pool_note_external(w.p, at, EXT_BYTES, "framework"));
  pl.noted[i] = true;
}

/* Lookups inside a capture: what they were handed is kept for the graph. */
static void step_capture(void) {
  ck_ok(oc_capture_enter(w.m, NULL));
  for (unsigned n = 0; n < 3; n++) {
    const struct entry *e = &pl.entry[roll(ENTRIES)];
    uint64_t v[2];
    if (!e->there) continue;
    if (is_pair(e->kind)) ck_ok(oc_derived_get_pair(w.d, e->kind, e->key, v));
    else ck_ok(oc_derived_get_ptr(w.d, e->kind, e->key, v));
    for (int h = 0; h < 2; h++) {
      if (!owns_half(e, h)) continue;
      if (e->half[h].foreign >= 0) pl.foreign[e->half[h].foreign].captured = true;
      else pl.block[e->half[h].block].captured = true;
    }
  }
  ck_status(oc_derived_invalidate(w.d, some_key()), OC_E_CAPTURING);
  oc_capture_leave(w.m);
}

static void step_graphs_gone(void) {
  ck_ok(oc_model_graphs_gone(w.m));
  pl.retired = 0;
  for (int i = 0; i < ENTRIES; i++) {
    if (pl.foreign[i].kept) pl.foreign[i] = (struct foreign){0};
    pl.foreign[i].captured = false;
  }
  for (int i = 0; i < BLOCKS; i++) pl.block[i].captured = false;
}

static void step_refused(void) {
  uint64_t key = some_key(), v[2];
  oc_build *b = NULL;
  oc_guard_enter();
  ck_status(oc_derived_invalidate(w.d, key), OC_E_GUARDED);
  ck_status(oc_derived_release(w.d), OC_E_GUARDED);
  ck_status(oc_derived_settle(w.d), OC_E_GUARDED);
  if (!entry_of(OC_BF16, key)) ck_status(oc_derived_begin(w.d, OC_BF16, key, &b, v), OC_E_GUARDED);
  oc_guard_leave();
}

/* ---- the check ---- */

static void check_entries(void) {
  for (int i = 0; i < ENTRIES; i++) {
    const struct entry *e = &pl.entry[i];
    uint64_t v[2] = {0, 0};
    if (!e->there) continue;
    if (is_pair(e->kind)) ck_ok(oc_derived_get_pair(w.d, e->kind, e->key, v));
    else ck_ok(oc_derived_get_ptr(w.d, e->kind, e->key, v));
    ck_assert(v[0] == e->value[0] && (!is_pair(e->kind) || v[1] == e->value[1]));
  }
  ck_assert_uint_eq(oc_derived_len(w.d), entries_there());
}

static void check_bytes(void) {
  uint64_t live = 0, foreign = 0;
  for (int i = 0; i < BLOCKS; i++) live += pl.block[i].class != FREE ? rounded(pl.block[i].bytes) : 0;
  for (int i = 0; i < ENTRIES; i++) foreign += pl.foreign[i].at != 0;
  oc_pool_stats f = figures(&w);
  ck_assert_uint_eq(f.live_blocks, blocks_in_use());
  ck_assert_uint_eq(f.live_bytes, live);
  ck_assert_uint_eq(f.retired_bytes, pl.retired);
  ck_assert_uint_eq(f.arenas, 1);
  ck_assert_uint_eq(fx_blocks(w.b), 1 + foreign);
}

static void step(void) {
  static void (*const steps[])(void) = {
    step_alloc, step_alloc, step_alloc, step_free, step_insert, step_insert, step_insert, step_insert, step_invalidate,
    step_begin, step_begin, step_build_alloc, step_build_alloc, step_end_build, step_external, step_refused, step_capture, step_graphs_gone,
  };
  if (roll(200) == 0) step_release();
  else steps[roll(sizeof steps / sizeof *steps)]();
  ck_ok(oc_pool_check(w.p));
  check_entries();
  check_bytes();
}

START_TEST(against_a_plain_model) {
  rng = fx_seed() + (uint64_t)_i;
  memset(&pl, 0, sizeof pl);
  freed_address = 0;
  w = world_on(fx_open(NULL), (oc_model_options){.arena_min = 16 * MiB, .arena_max = 16 * MiB});
  ck_ok(oc_pool_free(w.p, block_of(&w, 256)));   /* now there is an arena */
  arena_bytes = figures(&w).arena_bytes;
  arena_at = block_of(&w, arena_bytes);          /* all of it: it starts where the arena does */
  ck_ok(oc_pool_free(w.p, arena_at));
  ck_ok(oc_model_use_stream(w.m, NULL));
  for (unsigned n = 0; n < fx_scale(4000); n++) step();
  for (int i = 0; i < BUILDS; i++) oc_build_abort(pl.build[i].handle);
  world_close(&w);
}
END_TEST

/* ---- threads ---- */

#define SOURCES 16
#define WORDS 64

/* A source has a version. Whoever changes it counts up, invalidates, and then says so (`settled`). */
struct source { uint64_t version, settled; pthread_mutex_t changing; };

struct arena_of_versions {
  struct world w;
  struct source source[SOURCES];
  uint64_t seed;
};

static uint64_t key_of(unsigned source) { return 0x7f0000 + 4096 * (uint64_t)source; }

/* A value: its source and the version it was made of, over and over. The host device's memory is ours to read. */
static oc_status build_version(oc_build *b, void *arg, uint64_t *out) {
  struct source *s = arg;
  oc_devptr p, unused;
  oc_status st = oc_build_alloc(b, WORDS * 8, 0, &p);
  if (!st) st = oc_build_alloc(b, 300, 0, &unused);
  if (st) return st;
  uint64_t version = __atomic_load_n(&s->version, __ATOMIC_ACQUIRE);
  for (unsigned i = 0; i < WORDS; i++) __atomic_store_n((uint64_t *)(uintptr_t)p + i, version, __ATOMIC_RELAXED);
  *out = p;
  return version % 11 == 3 ? OC_E_IO : OC_OK;
}

static void check_value(uint64_t p, uint64_t oldest) {
  uint64_t first = __atomic_load_n((uint64_t *)(uintptr_t)p, __ATOMIC_RELAXED);
  ck_assert_msg(first >= oldest, "a stale value: of version %llu, after %llu was settled", (unsigned long long)first,
                (unsigned long long)oldest);
  for (unsigned i = 1; i < WORDS; i++) {
    uint64_t word = __atomic_load_n((uint64_t *)(uintptr_t)p + i, __ATOMIC_RELAXED);
    ck_assert_msg(word == first, "a value was used again inside a guard: %llu beside %llu", (unsigned long long)word,
                  (unsigned long long)first);
  }
}

/* What was looked up stays as it is until the guard is left, whoever invalidates meanwhile. */
static void read_values(struct arena_of_versions *a, uint64_t *state) {
  uint64_t seen[8];
  unsigned n = 0;
  oc_guard_enter();
  for (unsigned tries = 0; tries < 8; tries++) {
    unsigned i = (unsigned)(fx_random(state) % SOURCES);
    uint64_t oldest = __atomic_load_n(&a->source[i].settled, __ATOMIC_ACQUIRE);
    if (oc_derived_get_ptr(a->w.d, OC_BF16, key_of(i), &seen[n]) == OC_OK) check_value(seen[n++], oldest);
  }
  uint64_t version[8];
  for (unsigned i = 0; i < n; i++) version[i] = __atomic_load_n((uint64_t *)(uintptr_t)seen[i], __ATOMIC_RELAXED);
  for (unsigned pause = 0; pause < 20; pause++) sched_yield();
  for (unsigned i = 0; i < n; i++) {
    check_value(seen[i], version[i]);
    ck_assert_uint_eq(__atomic_load_n((uint64_t *)(uintptr_t)seen[i], __ATOMIC_RELAXED), version[i]);
  }
  oc_guard_leave();
}

static void build_value(struct arena_of_versions *a, uint64_t *state) {
  unsigned i = (unsigned)(fx_random(state) % SOURCES);
  uint64_t p;
  oc_status st = oc_derived_get_or_build_ptr(a->w.d, OC_BF16, key_of(i), build_version, &a->source[i], &p);
  ck_assert_msg(st == OC_OK || st == OC_E_IO, "get_or_build: %s: %s", oc_status_name(st), oc_last_error());
  /* and now and then something derived of it, which goes with it (or is refused, if it went already) */
  oc_devptr q;
  if (st || fx_random(state) % 4) return;
  ck_ok(oc_pool_alloc(a->w.p, 64, 0, &q));
  if (oc_derived_insert_ptr(a->w.d, OC_CUTLASS_NVFP4_T, p, q, NULL) != OC_OK) ck_ok(oc_pool_free(a->w.p, q));
}

static void change_source(struct arena_of_versions *a, uint64_t *state) {
  unsigned i = (unsigned)(fx_random(state) % SOURCES);
  struct source *s = &a->source[i];
  pthread_mutex_lock(&s->changing);
  uint64_t version = __atomic_add_fetch(&s->version, 1, __ATOMIC_ACQ_REL);
  const uint64_t keys[2] = {key_of(i), key_of(i) + 1};
  ck_ok(fx_random(state) % 2 ? oc_derived_invalidate(a->w.d, keys[0]) : oc_derived_invalidate_n(a->w.d, keys, 2));
  __atomic_store_n(&s->settled, version, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&s->changing);
}

static void churn(struct arena_of_versions *a, uint64_t *state) {
  oc_devptr p, q = 0;
  ck_ok(oc_pool_alloc(a->w.p, 1 + fx_random(state) % 2000, 0, &p));
  memset((void *)(uintptr_t)p, 0xEE, 1);
  if (fx_random(state) % 16 == 0) ck_ok(oc_pool_check(a->w.p));
  if (fx_random(state) % 4 == 0) {   /* a source that is freed under its own derivation */
    ck_ok(oc_pool_alloc(a->w.p, 64, 0, &q));
    if (oc_derived_insert_ptr(a->w.d, OC_CUTLASS_NVFP4_T, p, q, NULL) != OC_OK) ck_ok(oc_pool_free(a->w.p, q));
  }
  ck_ok(oc_pool_free(a->w.p, p));
}

static void version_thread(void *arg, unsigned i) {
  struct arena_of_versions *a = arg;
  uint64_t state = a->seed + i * 7919;
  for (unsigned n = 0; n < fx_scale(1500); n++) {
    if (i < 2) read_values(a, &state);
    else if (i < 4) build_value(a, &state);
    else if (i == 4) change_source(a, &state);
    else churn(a, &state);
  }
}

/* G2, G10, G11, G15 under threads. */
START_TEST(no_stale_value) {
  if (fx_which() != FX_HOST) { fx_skip("device memory is not the host's"); return; }
  struct arena_of_versions a = {.w = world_open(), .seed = fx_seed()};
  for (unsigned i = 0; i < SOURCES; i++) pthread_mutex_init(&a.source[i].changing, NULL);
  fx_threads(6, version_thread, &a);
  ck_ok(oc_derived_release(a.w.d));
  ck_assert(oc_derived_is_empty(a.w.d));
  ck_assert_uint_eq(live_blocks(&a.w), 0);
  world_close(&a.w);
}
END_TEST

int main(void) {
  TCase *tc;
  Suite *s = world_suite("prop_derived", &tc);
  tcase_add_loop_test(tc, against_a_plain_model, 0, 4);
  tcase_add_test(tc, no_stale_value);
  return fx_run(s);
}
