/* SPDX-License-Identifier: MIT */
/*
 * The public API as a sequence of calls, each a few bytes: which call, and its arguments, sensible and not. After each the
 * status must be one that the plain model (plain.h) allows, every value and figure the model's, and the pool's invariants
 * hold; at the end nothing is left on the device. The driver (driver.h) refuses when the bytes say so.
 *
 * A call that met a refusal may fail; then nothing of it is done, but for what its contract says is.
 * One thread: what waits for another is tests/torture.c's.
 */
#include "config.h"

#include "tests/fuzz/plain.h"
#include "tests/fuzz/target.h"

enum { MODULES = 3, FUNCTIONS = 4, TAGS = 3, GATES = 4, HOLDERS = 2, RESOURCES = 2, DEPTH_MOST = 4, STEPS_MOST = 400 };

struct scratch { int block; uint64_t asked; };

static struct {
  const uint8_t *at, *end;
  struct driver d;
  struct plain p;
  oc_backend *b;
  oc_model *m, *neighbour;
  oc_devptr next_door, freed;            /* a block of the neighbour's; an address that was freed */
  bool torn;                             /* torn down, not yet destroyed */
  oc_status torn_as;
  unsigned guards, captures, entered;    /* entered: of the guards, those by oc_model_enter */
  unsigned holds[HOLDERS];
  bool pushed[RESOURCES];
  unsigned loaded[MODULES];              /* the module's handle; 0: none, 1: adopted */
  oc_kernel kernel[MODULES][FUNCTIONS];
  struct scratch scratch[TAGS][STREAMS + 1];
  bool once[GATES], shape[GATES];
  unsigned reached[GATES];
  unsigned nested;                       /* builds within builds */
  bool spoilt;                           /* memory of the driver's is lost, as it was ordered to be */
} f;

static const char *const module_names[MODULES] = {"gemm", "norm", "rope"};
static const char *const function_names[FUNCTIONS] = {"add", "bias", "none", "zero"};
static const char *const tags[TAGS] = {"act", "workspace", "logits"};
static const char *const gates[GATES] = {"warned", "tuned", "w", ""};
static const char *const holders[HOLDERS] = {"graph cache", "speculator"};

static uint8_t byte(void) { return f.at < f.end ? *f.at++ : 0; }
static unsigned below(unsigned n) { return byte() % n; }
static oc_opcache *cache(void) { return oc_model_opcache(f.m); }
static oc_derived *derived(void) { return oc_model_derived(f.m); }
static oc_pool *pool(void) { return oc_model_pool(f.m); }

/* ---- statuses, as sets ---- */

static uint64_t one(oc_status st) { return UINT64_C(1) << (st + 48); }

/* Why a call is refused, whatever else: the model is torn down; it would wait in a guard; it would call the driver, or
   wait, in a capture. */
static uint64_t torn(void) { return f.torn ? one(OC_E_RELEASED) : 0; }
static uint64_t waits(void) {
  return torn() | (f.guards ? one(OC_E_GUARDED) : 0) | (f.captures ? one(OC_E_CAPTURING) : 0);
}
static uint64_t calls_driver(void) { return torn() | (f.captures ? one(OC_E_CAPTURING) : 0); }

static uint64_t after_fault(void) {
  oc_status as = f.d.order_as == OC_OK ? OC_E_BACKEND : f.d.order_as;
  return f.d.met ? one(as) | one(OC_E_BACKEND) | one(OC_E_DEVICE_NOMEM) | one(OC_E_NOT_FOUND) : 0;
}

/* refused: if not empty, the call must answer one of these; else one of `good`, or what comes of a refusal of the driver's. */
static oc_status must(const char *call, oc_status st, uint64_t refused, uint64_t good) {
  uint64_t may = refused ? refused : good | after_fault();
  FUZZ_CHECK(st >= -43 && st <= 2 && may & one(st), "%s: %s: %s", call, oc_status_name(st), oc_last_error());
  if (st < 0) FUZZ_CHECK(oc_last_error()[0], "%s: %s, without a word", call, oc_status_name(st));
  return st;
}

/* ---- choices ---- */

static bool in_arena(uint64_t addr) {
  for (int i = 0; i < FOREIGN; i++)
    if (f.p.foreign[i].at && addr - f.p.foreign[i].at < 4096) return false;
  return driver_holds(&f.d, addr, 1) && addr != f.next_door;
}

static struct block *some_block(void) {
  unsigned i = below(BLOCKS);
  for (unsigned n = 0; n < BLOCKS; n++, i = (i + 1) % BLOCKS)
    if (f.p.block[i].state == LIVE) return &f.p.block[i];
  return NULL;
}

static oc_kind some_kind(void) { return (oc_kind)(byte() % 33 % 4 + (byte() % 32 ? 0 : 4)); }

static uint64_t in_block(const struct block *b) { return !b ? 0 : b->start + (below(3) ? 0 : byte() % b->bytes); }

static uint64_t some_key(void) {
  struct block *b;
  const struct entry *e;
  switch (below(6)) {
  case 0: return below(9);                                   /* 0 too: no key */
  case 1: e = &f.p.entry[below(ENTRIES)]; return e->there ? e->key : 1;
  case 2: e = &f.p.entry[below(ENTRIES)]; return e->there && e->value[0] ? e->value[0] : 2;
  case 3: return f.freed ? f.freed : 3;
  default:
    b = some_block();
    return b && b->class != SCRATCH && b->class != BUILD ? in_block(b) : 4;
  }
}

static uint64_t new_foreign(void) {
  for (int i = 0; i < FOREIGN; i++) {
    struct foreign *to = &f.p.foreign[i];
    if (to->at) continue;
    if (f.captures || driver_table.alloc(&f.d, 4096, &to->at) != OC_OK) to->at = 0;
    return to->at;
  }
  return 0;
}

static uint64_t some_value(uint64_t key) {
  switch (below(8)) {
  case 0: return key;
  case 1: return below(2) ? 0 : f.next_door;
  case 2: return new_foreign();
  case 3: return f.p.foreign[below(FOREIGN)].at;
  default: return in_block(some_block());
  }
}

/* Memory of the driver's that no entry took goes back. */
static void free_unused_foreign(void) {
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

/* ---- memory ---- */

static void note_block(oc_devptr at, uint64_t bytes, uint64_t align, enum class class, int build) {
  FUZZ_CHECK(at && at % (align > 256 ? align : 256) == 0, "0x%llx", (unsigned long long)at);
  FUZZ_CHECK(driver_holds(&f.d, at, bytes), "a block outside the driver's memory");
  for (int i = 0; i < BLOCKS; i++) {
    const struct block *b = &f.p.block[i];
    if (b->state == FREE || b->state == MAYBE || (b->state == PENDING && f.d.ran[b->stream] >= b->place)) continue;
    FUZZ_CHECK(at + bytes <= b->start || b->start + b->bytes <= at, "overlaps block %d", i);
  }
  FUZZ_CHECK(plain_add(&f.p, at, bytes, class, build) != NOBODY, "the model is full");
}

struct size { size_t bytes, align; uint64_t wrong; };

static struct size some_size(void) {
  static const size_t bytes[] = {1, 255, 256, 257, 4096, 5000, 70000, 1 << 20, 3 << 20, 0, SIZE_MAX, SIZE_MAX - 255};
  static const size_t aligns[] = {1, 512, 4096, 1 << 21, 3, (size_t)1 << 46};
  uint8_t sane = byte();
  struct size s = {bytes[below(sane % 8 ? 9 : 12)], sane % 16 < 12 ? 0 : aligns[below(6)], 0};
  if (!s.bytes || s.align == 3 || s.bytes >= SIZE_MAX - 255) s.wrong = one(OC_E_INVALID) | one(OC_E_DEVICE_NOMEM);
  if (s.align >> 40) s.wrong = one(OC_E_DEVICE_NOMEM) | one(OC_E_INVALID);
  return s;
}

/* In a capture, only what an arena has room for. */
static uint64_t may_lack_room(void) { return one(OC_OK) | (f.captures ? one(OC_E_CAPTURING) : 0); }

static void do_alloc(void) {
  struct size s = some_size();
  bool owned = below(4) == 0;
  oc_devptr at = 0;
  if (!plain_room(&f.p, 8)) return;
  oc_status st = owned ? oc_pool_alloc_owned(pool(), "weights", s.bytes, s.align, &at) : oc_pool_alloc(pool(), s.bytes, s.align, &at);
  must("alloc", st, torn() | s.wrong, may_lack_room());
  if (!st) note_block(at, s.bytes, s.align, owned ? OWNED : USER, NOBODY);
}

/* An address that is anything: a start, an inside, freed, foreign, the neighbour's, none. */
static uint64_t some_address(void) {
  switch (below(8)) {
  case 0: return f.freed;
  case 1: return f.next_door;
  case 2: return f.p.foreign[below(FOREIGN)].at;
  case 3: return 0;
  default: return in_block(some_block());
  }
}

/* Why the address is not the caller's to free. */
static uint64_t not_free_able(uint64_t addr, const struct block *b) {
  if (!addr) return one(OC_E_INVALID);
  if (!b) return one(OC_E_NOT_OWNED);
  if (b->class != USER && b->class != OWNED) return one(OC_E_NOT_OWNED) | one(OC_E_INTERIOR);
  return addr == b->start ? 0 : one(OC_E_INTERIOR);
}

/* What forgetting the doomed entries is refused with, if there are any; a build in the way is one of those. */
static uint64_t refuses_doom(oc_status doom) {
  bool any = doom != OC_OK;
  for (int i = 0; i < ENTRIES; i++) any |= f.p.doomed[i];
  uint64_t no = any ? waits() : 0;
  return no || doom == OC_OK ? no : one(doom);
}

static const struct driver *unsure(void) { return f.d.met ? &f.d : NULL; }

static void do_free(void) {
  uint64_t addr = some_address();
  bool on = below(3) == 0;
  unsigned stream = below(STREAMS);
  struct block *b = plain_at(&f.p, addr);
  uint64_t no = torn() | not_free_able(addr, b) | (on && f.captures ? one(OC_E_CAPTURING) : 0);
  if (!no) no = refuses_doom(plain_doom(&f.p, NULL, 0, b, false));
  /* Torn down, some refusals are seen before others; nothing may be freed. */
  oc_status st = on ? oc_pool_free_on(pool(), addr, driver_stream(stream)) : oc_pool_free(pool(), addr);
  must("free", st, no, one(OC_OK));
  if (no) return;
  if (st && !f.d.met) return;
  plain_bury(&f.p, unsure());
  if (st) return;
  f.freed = b->start;
  plain_gone(&f.p, b, f.captures, on ? (int)stream : NOBODY, &f.d);
}

static void do_trim(void) { must("trim", oc_pool_trim(pool()), calls_driver(), one(OC_OK)); }

/* ---- the device ---- */

static void do_queue(void) { f.d.queued[below(STREAMS)]++; }
static void do_run(void) { driver_run(&f.d, below(STREAMS)); }

static void do_order(void) {
  static const oc_status as[] = {OC_E_DEVICE_NOMEM, OC_E_BACKEND, OC_E_DEVICE_NOMEM, OC_OK, OC_E_DEVICE_LOST};
  f.d.order_at = (enum entry_point)below(ENTRY_POINTS);
  f.d.order_in = 1 + below(4);
  f.d.order_count = 1 + below(3);
  f.d.order_as = as[below(sizeof as / sizeof *as)];
  if (f.d.order_at == AT_QUERY && f.d.order_as == OC_OK) f.d.order_in = 0;   /* it would not be a lie */
}

static void do_latch(void) {
  bool was = oc_opcache_alloc_fell_back(cache());
  oc_opcache_note_alloc_fallback(cache());
  FUZZ_CHECK(oc_opcache_alloc_fell_back(cache()) == !f.torn, "was %d", was);
}

static void do_stream(void) {
  oc_stream s = driver_stream(below(STREAMS));
  must("use_stream", oc_model_use_stream(f.m, s), torn(), one(OC_OK));
}

static void scratch_gone(struct scratch *s, unsigned stream) {
  if (s->block == NOBODY) return;
  struct block *b = &f.p.block[s->block];
  if (f.d.met && !b->captured) b->state = MAYBE;   /* retired, where its end could not be marked */
  else plain_gone(&f.p, b, b->captured, (int)stream, &f.d);
  *s = (struct scratch){NOBODY, 0};
}

static void do_forget_stream(void) {
  unsigned i = below(STREAMS);
  bool known = false;                    /* surely named; of any other there is nothing to forget */
  for (int t = 0; t < TAGS; t++) known |= f.scratch[t][i + 1].block != NOBODY;
  oc_status st = oc_model_forget_stream(f.m, driver_stream(i));
  must("forget_stream", st, calls_driver() ? calls_driver() | (known || f.torn ? 0 : one(OC_OK)) : 0, one(OC_OK));
  if (st) return;
  for (int t = 0; t < TAGS; t++) scratch_gone(&f.scratch[t][i + 1], i);
  for (int k = 0; k < BLOCKS; k++)   /* and what those had outgrown */
    if (f.p.block[k].class == SCRATCH && f.p.block[k].state == RETIRED && !f.p.block[k].captured) f.p.block[k].state = MAYBE;
}

/* ---- kernels, scratch, gates ---- */

static void do_load(void) {
  unsigned i = below(MODULES);
  bool adopt = below(3) == 0;
  oc_module got = NULL;
  oc_status st = adopt ? oc_model_adopt_module(f.m, module_names[i], (oc_module)(uintptr_t)0x999)
                       : oc_model_load_module(f.m, module_names[i], "image", 5);
  uint64_t no = adopt ? torn() : calls_driver();
  must("load", st, no ? no | (f.loaded[i] ? one(OC_EXISTS) : 0) : 0, one(f.loaded[i] ? OC_EXISTS : OC_OK));
  if (!st) f.loaded[i] = adopt ? 0x999 : 0x1000 + f.d.made;
  st = oc_model_module(f.m, module_names[i], &got);
  must("module", st, torn(), one(f.loaded[i] ? OC_OK : OC_E_NOT_FOUND));
  if (!st) FUZZ_CHECK((uintptr_t)got == f.loaded[i], "another module's handle");
}

static void do_kernel(void) {
  static oc_kernel_key keys[MODULES][FUNCTIONS];
  unsigned i = below(MODULES), k = below(FUNCTIONS);
  bool by_key = below(2);
  oc_kernel got = NULL, want = f.kernel[i][k];
  keys[i][k].module = module_names[i];
  keys[i][k].func = function_names[k];
  if (!want && k < 2) want = driver_kernel(f.loaded[i] ? f.loaded[i] : (uint8_t)module_names[i][0], function_names[k]);
  oc_status st = by_key ? oc_opcache_kernel_k(cache(), &keys[i][k], &got)
                        : oc_opcache_kernel(cache(), module_names[i], function_names[k], &got);
  must("kernel", st, f.kernel[i][k] ? torn() : calls_driver(), one(k < 2 ? OC_OK : OC_E_NOT_FOUND));
  if (st) return;
  FUZZ_CHECK(got == want, "%p, not %p", (void *)got, (void *)want);
  f.kernel[i][k] = got;
}

static uint64_t live_bytes(void) {
  oc_pool_stats s = {.struct_size = sizeof s};
  FUZZ_CHECK(oc_pool_get_stats(pool(), &s) == OC_OK, "%s", oc_last_error());
  return s.live_bytes;
}

/* The buffer grew; the old one is retired. How far it grew is the pool's to say: half again at least. */
static void scratch_grew(struct scratch *s, oc_devptr at, uint64_t asked) {
  unsigned blocks;
  uint64_t old = s->block == NOBODY ? 0 : f.p.block[s->block].bytes, others = plain_live(&f.p, &blocks) - old;
  uint64_t bytes = live_bytes() - others;
  FUZZ_CHECK(bytes >= asked && bytes >= old + old / 2 && bytes <= asked + asked + 2 * old + 512, "%llu bytes", (unsigned long long)bytes);
  if (old) f.p.block[s->block].state = RETIRED;
  note_block(at, bytes, 0, SCRATCH, NOBODY);
  *s = (struct scratch){(int)(plain_at(&f.p, at) - f.p.block), asked};
}

static void do_scratch(void) {
  static const uint32_t sizes[] = {1, 256, 1000, 5000, 70000, 1 << 20, 0};
  static oc_tag_key keys[TAGS] = {OC_TAG_KEY("act"), OC_TAG_KEY("workspace"), OC_TAG_KEY("logits")};
  unsigned t = below(TAGS), where = below(STREAMS + 1), bytes = sizes[below(7)];
  bool by_key = below(2);
  struct scratch *s = &f.scratch[t][where];
  oc_devptr at = 0;
  oc_status st;
  if (!plain_room(&f.p, 8)) return;
  if (!where) st = by_key ? oc_opcache_scratch_k(cache(), &keys[t], bytes, &at) : oc_opcache_scratch(cache(), tags[t], bytes, &at);
  else if (by_key) st = oc_opcache_scratch_on_k(cache(), &keys[t], driver_stream(where - 1), bytes, &at);
  else st = oc_opcache_scratch_on(cache(), tags[t], driver_stream(where - 1), bytes, &at);
  bool fits = s->block != NOBODY && bytes <= f.p.block[s->block].bytes, sure = s->block != NOBODY && bytes <= s->asked;
  uint64_t no = torn() | (bytes ? 0 : one(OC_E_INVALID)) | (!fits && f.captures ? one(OC_E_CAPTURING) : 0);
  must("scratch", st, no, one(OC_OK) | (f.captures && !sure ? one(OC_E_CAPTURING) : 0));
  if (st) return;
  if (sure) FUZZ_CHECK(at == f.p.block[s->block].start, "a request that fits moved");
  if (s->block == NOBODY || at != f.p.block[s->block].start) scratch_grew(s, at, bytes);
  else if (bytes > s->asked) s->asked = bytes;
  if (f.captures) f.p.block[s->block].captured = true;
}

static void do_release_scratch(void) {
  oc_status st = oc_opcache_release(cache());
  must("opcache_release", st, waits(), one(OC_OK));
  if (st && !f.d.met) return;
  for (int i = 0; i < BLOCKS; i++) {
    struct block *b = &f.p.block[i];
    if (b->class != SCRATCH || (b->state != LIVE && b->state != RETIRED)) continue;
    b->state = b->captured ? RETIRED : f.d.met ? MAYBE : FREE;
  }
  for (int t = 0; t < TAGS; t++)
    for (int s = 0; s <= STREAMS; s++) f.scratch[t][s] = (struct scratch){NOBODY, 0};
}

static void do_gate(void) {
  static oc_tag_key keys[GATES] = {OC_TAG_KEY("warned"), OC_TAG_KEY("tuned"), OC_TAG_KEY("w"), OC_TAG_KEY("")};
  unsigned g = below(GATES), n = below(5);
  bool by_key = below(2), got, want;
  switch (below(3)) {
  case 0:
    want = !f.torn && !f.once[g];
    got = by_key ? oc_opcache_once_k(cache(), &keys[g]) : oc_opcache_once(cache(), gates[g]);
    f.once[g] |= !f.torn;
    break;
  case 1:
    want = !f.torn && !f.shape[g];
    got = by_key ? oc_opcache_first_shape_k(cache(), &keys[g], 1, 2, 3) : oc_opcache_first_shape(cache(), gates[g], 1, 2, 3);
    f.shape[g] |= !f.torn;
    break;
  default:
    want = !f.torn && f.reached[g] < n;
    got = by_key ? oc_opcache_first_n_k(cache(), &keys[g], n) : oc_opcache_first_n(cache(), gates[g], n);
    f.reached[g] += !f.torn;
  }
  FUZZ_CHECK(got == want, "gate %s", gates[g]);
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
  return (kind > OC_CUTLASS_NVFP4_FROM_FP8 || plain_is_pair(kind) != pair ? one(OC_E_KIND) : 0) | (key ? 0 : one(OC_E_INVALID));
}

static void do_get(void) {
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
  FUZZ_CHECK(v[0] == e->value[0] && (!pair || v[1] == e->value[1]), "another value");
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

static void do_insert(void) {
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
  oc_status st = pair ? oc_derived_insert_pair(derived(), kind, key, v, kept) : oc_derived_insert_ptr(derived(), kind, key, v[0], kept);
  must("insert", st, no ? no : one(want) | (f.captures ? one(OC_E_CAPTURING) : 0), 0);
  if (st == OC_E_CAPTURING) f.p = before;
  if (st == OC_OK) FUZZ_CHECK(kept[0] == v[0] && (!pair || kept[1] == v[1]), "what was kept is another");
  if (st == OC_EXISTS) FUZZ_CHECK(kept[0] == was->value[0] && (!pair || kept[1] == was->value[1]), "what was kept is another");
  free_unused_foreign();
}

static void do_invalidate(void) {
  uint64_t keys[3] = {some_key(), some_key(), some_key()};
  unsigned n = 1 + below(3);
  uint64_t no = waits();
  for (unsigned i = 0; i < n; i++) no |= keys[i] ? 0 : one(OC_E_INVALID);
  oc_status doom = plain_doom(&f.p, keys, n, NULL, false);
  if (!no && doom) no = one(doom);
  oc_status st = n == 1 ? oc_derived_invalidate(derived(), keys[0]) : oc_derived_invalidate_n(derived(), keys, n);
  must("invalidate", st, no, one(OC_OK));
  if (!no) plain_bury(&f.p, unsure());
}

static void do_release_derived(void) {
  uint64_t no = waits();
  oc_status doom = plain_doom(&f.p, NULL, 0, NULL, true);
  if (!no && doom) no = one(doom);
  must("derived_release", oc_derived_release(derived()), no, one(OC_OK));
  if (!no) plain_bury(&f.p, unsure());
}

static void do_settle(void) {
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
  return in_arena(key) && !plain_at(&f.p, key) ? one(OC_E_NOT_OWNED) : 0;
}

static void check_kept(const struct entry *e, const uint64_t out[2]) {
  FUZZ_CHECK(out[0] == e->value[0] && (!plain_is_pair(e->kind) || out[1] == e->value[1]), "another value");
}

static void do_begin(void) {
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

static void do_commit(void) {
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

static void do_abort(void) {
  int i = (int)below(BUILDS);
  if (!f.p.build[i].handle) return;
  oc_build_abort(f.p.build[i].handle);
  build_ended(i, OC_E_IO);
}

static void do_in_build(void) {
  int i = (int)below(BUILDS);
  if (!f.p.build[i].handle) return;
  if (below(4)) build_alloc(i);
  else build_on_stream(i);
}

struct recipe { oc_kind kind; uint64_t key, value[2]; int build; bool began, fails; };

static void do_get_or_build(void);

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

static void do_get_or_build(void) {
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

/* ---- guards, captures, holders, resources ---- */

static void do_guard(void) {
  if (f.guards < DEPTH_MOST && below(3) == 0) {
    bool model = below(2);
    oc_status st = OC_OK;
    if (model) st = must("model_enter", oc_model_enter(f.m), torn(), one(OC_OK));
    else oc_guard_enter();
    f.guards += st == OC_OK;
    f.entered += model && st == OC_OK;
    return;
  }
  if (f.entered && below(2)) oc_model_leave(f.m);
  else oc_guard_leave();                 /* one too many is ignored */
  f.guards -= f.guards > 0;
  f.entered = f.entered < f.guards ? f.entered : f.guards;
}

static void do_capture(void) {
  if (f.captures < DEPTH_MOST && below(3) == 0) {
    f.captures += must("capture_enter", oc_capture_enter(f.m, driver_stream(below(STREAMS))), torn(), one(OC_OK)) == OC_OK;
    return;
  }
  oc_capture_leave(f.m);
  f.captures -= f.captures > 0;
}

static void do_graphs_gone(void) {
  oc_status st = oc_model_graphs_gone(f.m);
  must("graphs_gone", st, waits() | (f.captures ? one(OC_E_BUSY) : 0), one(OC_OK));
  if (!st) plain_graphs_gone(&f.p);
  else if (f.d.met) {                    /* the marks of captures may be gone, and blocks be retired for them no longer */
    for (int i = 0; i < BLOCKS; i++)
      if (f.p.block[i].state == RETIRED) f.p.block[i].state = MAYBE;
    f.spoilt = true;
  }
}

static void do_hold(void) {
  unsigned i = below(HOLDERS);
  if (below(2)) {
    f.holds[i] += must("retain", oc_model_retain(f.m, holders[i]), torn(), one(OC_OK)) == OC_OK;
    return;
  }
  oc_status st = oc_model_release_hold(f.m, holders[i]);
  must("release_hold", st, 0, one(f.holds[i] ? OC_OK : OC_E_NOT_FOUND) | torn());
  f.holds[i] -= st == OC_OK;
}

static oc_status let_go(void *self, oc_backend *b) {
  bool *on = self;
  FUZZ_CHECK(*on && b == f.b, "released twice, or never pushed");
  *on = false;
  return OC_OK;
}

static void do_resource(void) {
  static const oc_resource_ops ops = {.struct_size = sizeof ops, .label = "graphs", .release = let_go};
  unsigned i = below(RESOURCES);
  if (below(2)) {
    oc_status st = oc_model_push(f.m, &ops, &f.pushed[i]);
    must("push", st, torn(), one(f.pushed[i] ? OC_EXISTS : OC_OK));
    f.pushed[i] |= st == OC_OK;
    return;
  }
  oc_status st = oc_model_pop(f.m, &f.pushed[i]);
  must("pop", st, torn(), one(f.pushed[i] ? OC_OK : OC_E_NOT_FOUND));
  f.pushed[i] &= st != OC_OK;
}

/* ---- the model's life ---- */

static void new_model(void) {
  oc_model_options o = {.struct_size = sizeof o, .name = "fuzz", .arena_min = 2 << 20, .arena_max = 8 << 20, .teardown_wait_ms = 1};
  o.reserve_bytes = below(3) ? 0 : 1 << 20;
  memset(&f.p, 0, sizeof f.p);
  memset(f.loaded, 0, sizeof f.loaded);
  memset(f.kernel, 0, sizeof f.kernel);
  memset(f.once, 0, sizeof f.once);
  memset(f.shape, 0, sizeof f.shape);
  memset(f.reached, 0, sizeof f.reached);
  memset(f.holds, 0, sizeof f.holds);
  for (int t = 0; t < TAGS; t++)
    for (int s = 0; s <= STREAMS; s++) f.scratch[t][s].block = NOBODY;
  f.torn = false;
  f.freed = 0;
  f.d.order_in = 0;
  f.d.met = 0;
  must("create", oc_model_create(f.b, &o, &f.m), 0, one(OC_OK));
}

static uint64_t refuses_end(void) {
  uint64_t no = f.guards ? one(OC_E_GUARDED) : 0;
  if (f.captures) no |= one(OC_E_BUSY) | one(OC_E_CAPTURING);
  for (int i = 0; i < BUILDS; i++) no |= f.p.build[i].handle ? one(OC_E_REENTRANT) : 0;
  for (int i = 0; i < HOLDERS; i++) no |= f.holds[i] ? one(OC_E_BUSY) : 0;
  return no;
}

static void is_torn(oc_status st) {
  f.torn = true;
  f.torn_as = st;
  if (f.d.met) f.spoilt = true;
  for (int i = 0; i < RESOURCES; i++) FUZZ_CHECK(!f.pushed[i], "a resource was not released");
  memset(&f.p, 0, sizeof f.p);
}

/* Over with failures: TEARDOWN. That the device is lost is none. */
static void do_teardown(void) {
  oc_report *report = NULL;
  bool was = f.torn;
  oc_status st = oc_model_teardown(f.m, below(2) ? &report : NULL);
  uint64_t no = refuses_end();
  if (was) must("teardown again", st, 0, one(f.torn_as) | no);
  else must("teardown", st, no, one(OC_OK) | (f.d.met || f.spoilt ? one(OC_E_TEARDOWN) : 0));
  bool over = st == OC_OK || st == OC_E_TEARDOWN;
  FUZZ_CHECK(!report || over, "a report of what was refused");
  if (report) {
    char *text = oc_report_text(report), *json = oc_report_json(report);
    FUZZ_CHECK(text && json && oc_report_count(report) < 100, "no report");
    oc_string_free(text);
    oc_string_free(json);
    oc_report_free(report);
  }
  if (over && !was) is_torn(st);
}

static void do_destroy(void) {
  uint64_t no = refuses_end();
  oc_status st = oc_model_destroy(f.m);
  must("destroy", st, no, one(OC_OK) | (f.torn || f.d.met || f.spoilt ? one(OC_E_TEARDOWN) : 0));
  if (st != OC_OK && st != OC_E_TEARDOWN) return;
  if (!f.torn) is_torn(st);
  new_model();
}

static void do_words(void) {
  char small[8], large[512];
  int n = oc_opcache_describe(cache(), large, sizeof large);
  FUZZ_CHECK(n > 0 && n == oc_opcache_describe(cache(), small, sizeof small) && strlen(small) < sizeof small, "describe");
  n = oc_derived_describe(derived(), large, sizeof large);
  FUZZ_CHECK(n > 0 && n == oc_derived_describe(derived(), NULL, 0), "describe");
  char *text = oc_pool_report_text(pool(), 2), *json = oc_pool_report_json(pool());
  FUZZ_CHECK(f.torn || (text && json), "no report of the pool");
  oc_string_free(text);
  oc_string_free(json);
}

/* ---- after each step ---- */

/* Blocks whose stream passed them are collected by the look at the figures, unless that may not ask. */
static void check_figures(void) {
  oc_pool_stats s = {.struct_size = sizeof s};
  uint64_t low = 0, high = 0;
  unsigned blocks, foreign = 0;
  f.d.met = 0;
  FUZZ_CHECK(oc_pool_get_stats(pool(), &s) == OC_OK, "%s", oc_last_error());
  for (int i = 0; i < BLOCKS; i++) {
    struct block *b = &f.p.block[i];
    bool passed = b->state == PENDING && f.d.ran[b->stream] >= b->place, asked = !f.captures && !f.d.met;
    low += b->state == RETIRED || (b->state == PENDING && !passed) ? b->bytes : 0;
    high += b->state == RETIRED || b->state == MAYBE || (b->state == PENDING && !(passed && asked)) ? b->bytes : 0;
    if (passed && asked) b->state = FREE;
  }
  for (int i = 0; i < FOREIGN; i++) foreign += f.p.foreign[i].at != 0;
  FUZZ_CHECK(s.live_bytes == plain_live(&f.p, &blocks) && s.live_blocks == blocks, "%llu bytes in %llu blocks live, not %llu in %u",
             (unsigned long long)s.live_bytes, (unsigned long long)s.live_blocks, (unsigned long long)plain_live(&f.p, &blocks), blocks);
  FUZZ_CHECK(s.retired_bytes >= low && (f.spoilt || s.retired_bytes <= high), "%llu retired, not %llu to %llu",
             (unsigned long long)s.retired_bytes, (unsigned long long)low, (unsigned long long)high);
  FUZZ_CHECK(s.live_bytes + s.retired_bytes + s.free_bytes == s.arena_bytes, "G16");
  FUZZ_CHECK(f.spoilt || s.arenas + foreign + 1 == f.d.memory_count, "%llu arenas, %u foreign, %u of the driver's",
             (unsigned long long)s.arenas, foreign, f.d.memory_count);
}

static void check_entries(void) {
  unsigned n = 0, scratches = 0, kernels = 0;
  for (int i = 0; i < ENTRIES; i++) {
    const struct entry *e = &f.p.entry[i];
    uint64_t v[2] = {0, 0};
    if (!e->there) continue;
    n++;
    if (f.captures) continue;            /* a look would mark it */
    oc_status st = plain_is_pair(e->kind) ? oc_derived_get_pair(derived(), e->kind, e->key, v) : oc_derived_get_ptr(derived(), e->kind, e->key, v);
    FUZZ_CHECK(st == OC_OK, "entry %d: %s", i, oc_status_name(st));
    check_kept(e, v);
  }
  for (int t = 0; t < TAGS; t++)
    for (int s = 0; s <= STREAMS; s++) scratches += f.scratch[t][s].block != NOBODY;
  for (int m = 0; m < MODULES; m++)
    for (int k = 0; k < FUNCTIONS; k++) kernels += f.kernel[m][k] != NULL;
  FUZZ_CHECK(oc_derived_len(derived()) == n, "%zu entries, not %u", oc_derived_len(derived()), n);
  FUZZ_CHECK(oc_opcache_scratches(cache()) == scratches, "%zu buffers, not %u", oc_opcache_scratches(cache()), scratches);
  FUZZ_CHECK(oc_opcache_kernels(cache()) == kernels, "%zu kernels, not %u", oc_opcache_kernels(cache()), kernels);
}

static void check(void) {
  FUZZ_CHECK(!f.d.wrong, "%s", f.d.wrong);
  if (f.torn) return;
  FUZZ_CHECK(oc_pool_check(pool()) == OC_OK, "%s", oc_last_error());
  check_figures();
  check_entries();
  FUZZ_CHECK(!f.d.wrong, "%s", f.d.wrong);
}

static void (*const steps[])(void) = {
  do_alloc, do_alloc, do_alloc, do_alloc, do_alloc, do_free, do_free, do_free, do_free, do_free, do_trim, do_queue, do_queue,
  do_run, do_run, do_order, do_latch, do_stream, do_forget_stream, do_load, do_kernel, do_kernel, do_scratch, do_scratch,
  do_scratch, do_scratch, do_release_scratch, do_gate, do_get, do_get, do_get, do_insert, do_insert, do_insert, do_insert,
  do_insert, do_invalidate, do_invalidate, do_release_derived, do_settle, do_begin, do_begin, do_begin, do_commit, do_commit,
  do_commit, do_abort, do_in_build, do_in_build, do_in_build, do_in_build, do_get_or_build, do_get_or_build, do_get_or_build,
  do_guard, do_guard, do_capture, do_capture, do_graphs_gone, do_hold, do_resource, do_teardown, do_destroy, do_words,
};

static void step(void) {
  f.d.met = f.d.asked = 0;
  f.d.capture = f.captures > 0;
  steps[below(sizeof steps / sizeof *steps)]();
  if (f.d.met && (f.d.order_at == AT_FREE || f.d.order_at == AT_UNLOAD || f.d.lost)) f.spoilt = true;
  f.d.capture = f.captures > 0;
  check();
}

/* ---- begin and end ---- */

static void begin(void) {
  memset(&f.d, 0, sizeof f.d);
  f.spoilt = f.torn = false;
  f.guards = f.captures = f.entered = f.nested = 0;
  driver_open(&f.d, below(2) ? 0 : 512);
  must("backend_create", oc_backend_create(&driver_table, &f.d, &f.b), 0, one(OC_OK));
  must("create", oc_model_create(f.b, NULL, &f.neighbour), 0, one(OC_OK));
  must("alloc", oc_pool_alloc(oc_model_pool(f.neighbour), 4096, 0, &f.next_door), 0, one(OC_OK));
  new_model();
}

static void end(void) {
  f.d.order_in = f.d.met = 0;
  f.d.capture = false;
  for (; f.captures; f.captures--) oc_capture_leave(f.m);
  while (f.guards) {
    oc_guard_leave();
    f.guards--;
  }
  for (int i = 0; i < BUILDS; i++)
    if (f.p.build[i].handle) oc_build_abort(f.p.build[i].handle), f.p.build[i].handle = NULL;
  for (int i = 0; i < HOLDERS; i++)
    for (; f.holds[i]; f.holds[i]--) must("release_hold", oc_model_release_hold(f.m, holders[i]), 0, one(OC_OK));
  must("teardown", oc_model_teardown(f.m, NULL), 0, one(OC_OK) | (f.spoilt ? one(OC_E_TEARDOWN) : 0));
  FUZZ_CHECK(f.spoilt || f.d.memory_count == 1, "%u of the driver's memory left", f.d.memory_count);
  must("destroy", oc_model_destroy(f.m), 0, one(OC_OK) | (f.spoilt ? one(OC_E_TEARDOWN) : 0));
  must("destroy", oc_model_destroy(f.neighbour), 0, one(OC_OK) | (f.spoilt ? one(OC_E_TEARDOWN) : 0));
  FUZZ_CHECK(!f.d.events && (f.spoilt || (!f.d.modules && !f.d.memory_count)), "%u events, %u modules, %u of memory left",
             f.d.events, f.d.modules, f.d.memory_count);
  must("close", oc_backend_close(f.b), 0, one(OC_OK));
  FUZZ_CHECK(!f.d.wrong, "%s", f.d.wrong);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  f.at = data;
  f.end = data + size;
  begin();
  for (unsigned n = 0; n < STEPS_MOST && f.at < f.end; n++) step();
  f.at = f.end;
  end();
  return 0;
}
