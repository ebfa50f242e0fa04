/* SPDX-License-Identifier: MIT */
/* Steps: derived values, and builds. */
#include "config.h"

#include "tests/fuzz/api.h"

/* ---- foreign memory ---- */

void free_unused_foreign(void) {
  for (int i = 0; i < FOREIGN; i++) {
    struct foreign *of = &f.p.foreign[i];
    bool used = !of->at || of->kept || f.captures;
    for (int e = 0; e < ENTRIES && !used; e++)
      used = f.p.entry[e].there && (f.p.entry[e].half[0].foreign == i || f.p.entry[e].half[1].foreign == i);
    if (used) continue;
    if (driver_table.free(&f.d, of->at) != OC_OK) f.spoilt = true;
    of->at = 0;
  }
}

/* ---- derived weights ---- */

static void capture_entry(const struct entry *e) {
  for (int h = 0; h < 2; h++) {
    if (!plain_owns(&f.p, e, h)) continue;
    if (e->half[h].foreign >= 0) f.p.foreign[e->half[h].foreign].captured = true;
    else f.p.block[e->half[h].block].captured = true;
  }
}

static uint64_t wrong_key(oc_kind kind, bool pair, uint64_t key) {
  return (kind > OC_CUTLASS_NVFP4_FROM_FP8 || plain_is_pair(kind) != pair ? one(OC_E_KIND) : 0) |
         (key ? 0 : one(OC_E_INVALID));
}

void do_get(void) {
  oc_kind kind = some_kind();
  uint64_t key = some_key(), v[2] = {0, 0};
  bool pair = below(4) ? plain_is_pair(kind) : below(2), on = below(2);
  oc_stream s = driver_stream(below(STREAMS));
  struct entry *e = plain_entry(&f.p, kind, key);
  oc_status st = pair ? on ? oc_derived_get_pair_on(derived(), kind, key, s, v) : oc_derived_get_pair(derived(), kind, key, v)
                      : on ? oc_derived_get_ptr_on(derived(), kind, key, s, v) : oc_derived_get_ptr(derived(), kind, key, v);
  bool late = e && on && f.captures && e->on_stream;
  must("get", st, torn() | wrong_key(kind, pair, key), one(e ? OC_OK : OC_MISS) | (late ? one(OC_E_CAPTURING) : 0));
  if (st) return;
  FUZZ_CHECK(v[0] == e->value[0] && (!pair || v[1] == e->value[1]), "another value");   // NOLINT(clang-analyzer-core.NullDereference): e is there after a hit
  if (f.captures) capture_entry(e);
}

static bool entries_left(void) {
  unsigned n = 0;
  for (int i = 0; i < ENTRIES; i++) n += f.p.entry[i].there;
  return n < ENTRIES - 4;
}

static void pick_value(oc_kind kind, uint64_t key, uint64_t v[2]) {
  v[0] = some_value(key);
  v[1] = plain_is_pair(kind) ? some_value(key) : 0;
}

static uint64_t wrong_value(oc_kind kind, const uint64_t v[2]) {
  return v[0] || (plain_is_pair(kind) && v[1]) ? 0 : one(OC_E_INVALID);
}

void do_insert(void) {
  oc_kind kind = some_kind();
  uint64_t key = some_key(), v[2], kept[2] = {0, 0};
  bool pair = below(6) ? plain_is_pair(kind) : below(2);
  if (!entries_left()) return;
  pick_value(kind, key, v);
  uint64_t no = torn() | wrong_key(kind, pair, key) | wrong_value(kind, v);
  const struct entry *was = plain_entry(&f.p, kind, key);
  static struct plain before;
  before = f.p;
  oc_status want = no ? OC_OK : plain_store(&f.p, in_arena, kind, key, v, NOBODY);
  oc_status st = pair ? oc_derived_insert_pair(derived(), kind, key, v, kept)
                      : oc_derived_insert_ptr(derived(), kind, key, v[0], kept);
  must("insert", st, no ? no : one(want) | (f.captures ? one(OC_E_CAPTURING) : 0), 0);
  if (st == OC_E_CAPTURING) f.p = before;
  if (st == OC_OK) FUZZ_CHECK(kept[0] == v[0] && (!pair || kept[1] == v[1]), "what was kept is another");
  if (st == OC_EXISTS)
    FUZZ_CHECK(kept[0] == was->value[0] && (!pair || kept[1] == was->value[1]), "what was kept is another");
  free_unused_foreign();
}

void do_invalidate(void) {
  uint64_t keys[3] = {some_key(), some_key(), some_key()};
  unsigned n = 1 + below(3);
  uint64_t no = waits();
  for (unsigned i = 0; i < n; i++) no |= keys[i] ? 0 : one(OC_E_INVALID);   // NOLINT(clang-analyzer-core.uninitialized.Branch): n are set
  oc_status doom = plain_doom(&f.p, keys, n, NULL, false);
  if (!no && doom) no = one(doom);
  oc_status st = n == 1 ? oc_derived_invalidate(derived(), keys[0]) : oc_derived_invalidate_n(derived(), keys, n);
  must("invalidate", st, no, one(OC_OK));
  if (!no) plain_bury(&f.p, unsure());
}

void do_release_derived(void) {
  uint64_t no = waits();
  oc_status doom = plain_doom(&f.p, NULL, 0, NULL, true);
  if (!no && doom) no = one(doom);
  must("derived_release", oc_derived_release(derived()), no, one(OC_OK));
  if (!no) plain_bury(&f.p, unsure());
}

void do_settle(void) {
  oc_status st = oc_derived_settle(derived());
  must("settle", st, waits(), one(OC_OK));
  for (int i = 0; i < ENTRIES && st == OC_OK; i++) f.p.entry[i].on_stream = false;
}

/* ---- builds ---- */

static int build_of(oc_kind kind, uint64_t key) {
  for (int i = 0; i < BUILDS; i++)
    if (f.p.build[i].handle && f.p.build[i].kind == kind && f.p.build[i].key == key) return i;
  return NOBODY;
}

static int spare_build(void) {
  for (int i = 0; i < BUILDS; i++)
    if (!f.p.build[i].handle) return i;
  return NOBODY;
}

/* Why no build begins, where there is no entry. */
static uint64_t no_build(oc_kind kind, bool pair, uint64_t key) {
  uint64_t no = torn() | wrong_key(kind, pair, key);
  if (no || plain_entry(&f.p, kind, key)) return no;
  if ((no = waits())) return no;
  if (build_of(kind, key) != NOBODY) return one(OC_E_REENTRANT);
  return plain_no_key(&f.p, in_arena, key) ? one(OC_E_NOT_OWNED) : 0;
}

void check_kept(const struct entry *e, const uint64_t out[2]) {
  FUZZ_CHECK(out[0] == e->value[0] && (!plain_is_pair(e->kind) || out[1] == e->value[1]), "another value");   // NOLINT(clang-analyzer-core.NullDereference): as above
}

void do_begin(void) {
  oc_kind kind = some_kind();
  uint64_t key = some_key(), out[2] = {0, 0};
  int i = spare_build();
  oc_build *b = NULL;
  if (i == NOBODY) return;
  uint64_t no = no_build(kind, plain_is_pair(kind), key);
  const struct entry *e = no ? NULL : plain_entry(&f.p, kind, key);
  oc_status st = oc_derived_begin(derived(), kind, key, &b, out);
  must("begin", st, no, one(e ? OC_OK : OC_MISS));
  FUZZ_CHECK((b != NULL) == (st == OC_MISS), "a build, or none");
  if (e && f.captures) capture_entry(e);
  if (e) check_kept(e, out);
  if (b) f.p.build[i] = (struct build){b, kind, key, NOBODY};
}

static void build_alloc(int i) {
  struct size s = some_size();
  oc_devptr at = 0;
  if (!plain_room(&f.p, 8)) return;
  oc_status st = oc_build_alloc(f.p.build[i].handle, s.bytes, s.align, &at);
  must("build_alloc", st, s.wrong, may_lack_room());
  if (!st) note_block(at, s.bytes, s.align, BUILD, i);
}

static void build_on_stream(int i) {
  unsigned s = below(STREAMS);
  oc_status st = oc_build_on_stream(f.p.build[i].handle, driver_stream(s));
  bool another = f.p.build[i].stream != NOBODY && f.p.build[i].stream != (int)s;
  must("build_on_stream", st, another ? one(OC_E_INVALID) : 0, one(OC_OK) | (f.captures ? one(OC_E_CAPTURING) : 0));
  if (!st) f.p.build[i].stream = (int)s;
}

/* What the build's blocks hold goes with them, where no other build is of it. */
static void build_blocks_go(int i) {
  for (int k = 0; k < BLOCKS; k++) {
    struct block *b = &f.p.block[k];
    if (b->state != LIVE || b->class != BUILD || b->build != i) continue;
    if (plain_doom(&f.p, NULL, 0, b, false) != OC_OK) {
      b->build = NOBODYS_BUILD;
      continue;
    }
    plain_bury(&f.p, unsure());
    if (f.d.met) b->state = MAYBE;
    else plain_gone(&f.p, b, f.captures, f.captures ? NOBODY : f.p.build[i].stream, &f.d);
  }
}

/* A build is over that stored v, or nothing (want). */
static void build_ended(int i, oc_status want) {
  struct build b = f.p.build[i];
  struct entry *e = want == OC_OK ? plain_entry(&f.p, b.kind, b.key) : NULL;
  if (e) e->on_stream = b.stream != NOBODY;
  f.p.build[i].handle = NULL;
  build_blocks_go(i);
}

void do_commit(void) {
  int i = (int)below(BUILDS);
  struct build b = f.p.build[i];
  uint64_t v[2], kept[2] = {0, 0}, no;
  static struct plain before;
  if (!b.handle || !entries_left()) return;
  pick_value(b.kind, b.key, v);
  const struct entry *was = plain_entry(&f.p, b.kind, b.key);
  if ((no = wrong_value(b.kind, v))) {
    must("commit", oc_build_commit(b.handle, v, kept), no, 0);
    return;
  }
  before = f.p;
  bool late = f.captures && b.stream != NOBODY;
  oc_status want = late ? OC_E_CAPTURING : plain_store(&f.p, in_arena, b.kind, b.key, v, i);
  oc_status st = oc_build_commit(b.handle, v, kept);
  must("commit", st, 0, one(want) | (late && was ? one(OC_EXISTS) : 0) | (late ? one(OC_E_NOT_OWNED) : 0));
  if (st != want) f.p = before;
  if (st == OC_EXISTS) check_kept(was, kept);
  build_ended(i, st);
  free_unused_foreign();
}

void do_abort(void) {
  int i = (int)below(BUILDS);
  if (!f.p.build[i].handle) return;
  oc_build_abort(f.p.build[i].handle);
  build_ended(i, OC_E_IO);
}

void do_in_build(void) {
  int i = (int)below(BUILDS);
  if (!f.p.build[i].handle) return;
  if (below(4)) build_alloc(i);
  else build_on_stream(i);
}

struct recipe { oc_kind kind; uint64_t key, value[2]; int build; bool began, fails; };

void do_get_or_build(void);

static oc_status follow(oc_build *b, void *arg, uint64_t out[2]) {
  struct recipe *r = arg;
  r->began = true;
  f.p.build[r->build] = (struct build){b, r->kind, r->key, NOBODY};
  for (unsigned n = below(3); n; n--) build_alloc(r->build);
  if (below(4) == 0) build_on_stream(r->build);
  if (below(4) == 0 && f.nested < 2) {
    f.nested++;
    do_get_or_build();
    f.nested--;
  }
  pick_value(r->kind, r->key, r->value);
  for (int i = 0; i < BLOCKS; i++)
    if (f.p.block[i].state == LIVE && f.p.block[i].class == BUILD && f.p.block[i].build == r->build && below(3))
      r->value[0] = f.p.block[i].start;
  r->fails = below(4) == 0;
  out[0] = r->value[0];
  if (plain_is_pair(r->kind)) out[1] = r->value[1];
  return r->fails ? OC_E_IO : OC_OK;
}

static void after_build(struct recipe *r, oc_status st, const uint64_t out[2]) {
  static struct plain before;
  before = f.p;
  oc_status want = r->fails ? OC_E_IO : wrong_value(r->kind, r->value) ? OC_E_INVALID
                   : plain_store(&f.p, in_arena, r->kind, r->key, r->value, r->build);
  must("get_or_build, built", st, 0, one(want));
  if (st != want) f.p = before;
  build_ended(r->build, st);
  if (st == OC_OK) FUZZ_CHECK(out[0] == r->value[0], "another value");
}

void do_get_or_build(void) {
  struct recipe r = {.kind = some_kind(), .key = some_key(), .build = spare_build()};
  bool pair = plain_is_pair(r.kind);
  uint64_t out[2] = {0, 0};
  if (r.build == NOBODY || !entries_left()) return;
  uint64_t no = no_build(r.kind, pair, r.key);
  const struct entry *e = no ? NULL : plain_entry(&f.p, r.kind, r.key);
  f.p.build[r.build].handle = NULL;
  oc_status st = pair ? oc_derived_get_or_build_pair(derived(), r.kind, r.key, follow, &r, out)
                      : oc_derived_get_or_build_ptr(derived(), r.kind, r.key, follow, &r, out);
  if (r.began) {
    FUZZ_CHECK(!no && !e, "a build that must not begin");
    after_build(&r, st, out);
  } else {
    must("get_or_build", st, no, e ? one(OC_OK) : 0);
    if (st == OC_OK) check_kept(e, out);
    if (st == OC_OK && f.captures) capture_entry(e);
  }
  free_unused_foreign();
}
