/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/suballoc.h"

#include "allocator/pool.h"

void oci_suballoc_init(struct suballoc *s, struct meta *meta) {
  *s = (struct suballoc){.meta = meta};
  oci_slab_init(&s->slab, meta);
  oci_leaves_init(&s->leaves, meta);
}

void oci_suballoc_fini(struct suballoc *s) {
  meta_free(s->meta, s->spans, s->capacity * sizeof *s->spans);
  meta_free(s->meta, s->slots, s->capacity * sizeof *s->slots);
  oci_slab_fini(&s->slab);
  oci_leaves_fini(&s->leaves);
  oci_suballoc_init(s, s->meta);
}

static struct block *block_at(const struct suballoc *s, uint32_t index) { return slab_at(&s->slab, index); }

/* ---- arenas ---- */

static bool more_slots(struct suballoc *s) {
  uint32_t old = s->capacity, capacity = old ? old * 2 : 8;
  if (capacity > ARENA_SLOTS) capacity = ARENA_SLOTS;
  if (capacity == old) return false;
  struct span *spans = meta_alloc(s->meta, capacity * sizeof *spans);
  struct arena **slots = spans ? meta_alloc(s->meta, capacity * sizeof *slots) : NULL;
  if (!slots) {
    meta_free(s->meta, spans, capacity * sizeof *spans);
    return false;
  }
  if (old) {
    memcpy(spans, s->spans, old * sizeof *spans);
    memcpy(slots, s->slots, old * sizeof *slots);
  }
  meta_free(s->meta, s->spans, old * sizeof *spans);
  meta_free(s->meta, s->slots, old * sizeof *slots);
  s->spans = spans;
  s->slots = slots;
  s->capacity = capacity;
  return true;
}

static uint16_t unused_slot(const struct suballoc *s) {
  uint32_t slot = 0;
  while (s->slots[slot]) slot++;
  return (uint16_t)slot;
}

/* The slot and the first block's record are taken here, so that attach cannot fail. Slots are as many as spans,
   and detached arenas keep theirs. */
static bool take_place(struct suballoc *s, struct arena *a) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < s->capacity; i++) taken += s->slots[i] != NULL;
  if (taken == s->capacity && !more_slots(s)) return false;
  if (!slab_reserve(&s->slab, 1)) return false;
  a->slot = unused_slot(s);
  a->first = slab_take(&s->slab);
  s->slots[a->slot] = a;
  return true;
}

struct arena *oci_arena_prepare(struct suballoc *s, uint64_t bytes) {
  struct arena *a = meta_alloc(s->meta, sizeof *a);
  if (!a) return NULL;
  if (!oci_pages_init(&a->pages, s->meta, (uint32_t)(bytes >> UNIT_SHIFT))) goto no_pages;
  if (!take_place(s, a)) goto no_place;
  return a;
no_place:
  oci_pages_fini(&a->pages, s->meta);
no_pages:
  meta_free(s->meta, a, sizeof *a);
  return NULL;
}

void oci_arena_discard(struct suballoc *s, struct arena *a) {
  slab_give(&s->slab, a->first);
  s->slots[a->slot] = NULL;
  oci_pages_fini(&a->pages, s->meta);
  meta_free(s->meta, a, sizeof *a);
}

void oci_arena_set(struct arena *a, uint64_t driver_base, uint64_t driver_bytes, bool managed) {
  uint64_t lost = (0 - driver_base) & (UNIT_BYTES - 1);
  a->driver_base = driver_base;
  a->driver_bytes = driver_bytes;
  a->managed = managed;
  a->base = driver_base + lost;
  a->units = (uint32_t)((driver_bytes - lost) >> UNIT_SHIFT);
}

/* Units from addr to the next multiple of align. */
static uint64_t units_to(uint64_t addr, uint64_t align) { return ((0 - addr) & (align - 1)) >> UNIT_SHIFT; }

bool oci_arena_fits(const struct arena *a, uint32_t units, uint64_t align) {
  return units_to(a->base, align) + units <= a->units;
}

static uint32_t span_place(const struct suballoc *s, uint64_t addr) {
  uint32_t place = 0;
  while (place < s->count && s->spans[place].from <= addr) place++;
  return place;
}

static void attach(struct suballoc *s, struct arena *a, enum block_state state, uint32_t tag) {
  uint32_t place = span_place(s, a->driver_base);
  memmove(&s->spans[place + 1], &s->spans[place], (s->count - place) * sizeof *s->spans);
  s->spans[place] = (struct span){a->driver_base, a->driver_base + a->driver_bytes, a};
  s->count++;
  *block_at(s, a->first) = (struct block){.units = a->units, .arena = a->slot, .tag = tag};
  block_become(block_at(s, a->first), state, 0, 0);
  pages_add(&a->pages, &s->leaves, &s->slab, a->first);
  s->total_units += a->units;
}

void oci_arena_attach(struct suballoc *s, struct arena *a) {
  attach(s, a, BLOCK_FREE, 0);
  s->free_units += a->units;
  bins_insert(&s->bins, &s->slab, a->first, bin_of(a->units));
}

void oci_arena_attach_lost(struct suballoc *s, struct arena *a, uint32_t tag) {
  a->lost = true;
  a->used = a->units;
  attach(s, a, BLOCK_LOST, tag);
}

void oci_arena_detach(struct suballoc *s, struct arena *a) {
  uint32_t place = span_place(s, a->driver_base) - 1;
  memset(s->hints, 0, sizeof s->hints);
  s->count--;
  memmove(&s->spans[place], &s->spans[place + 1], (s->count - place) * sizeof *s->spans);
  s->total_units -= a->units;
  s->free_units -= a->units;
  pages_remove(&a->pages, &s->leaves, &s->slab, a->first);
  bins_remove(&s->bins, &s->slab, a->first, bin_of(a->units));
}

struct arena *oci_suballoc_abandon(struct suballoc *s) {
  struct arena *list = NULL;
  for (uint32_t i = s->count; i-- > 0;) {
    struct arena *a = s->spans[i].arena;
    oci_pages_fini(&a->pages, s->meta);
    a->abandoned = list;
    list = a;
  }
  oci_suballoc_fini(s);
  return list;
}

struct arena *oci_suballoc_empty(const struct suballoc *s) {
  for (uint32_t i = 0; i < s->count; i++)
    if (!s->spans[i].arena->used) return s->spans[i].arena;
  return NULL;
}

/* ---- finding a free block ---- */

/* Good fit: one of the request's own bin, else one of the next bin that has any, whose blocks all have room, and
   only before growth a walk. So a block of just the size that was freed is found again, and the large free block
   of an idle arena is cut last. Most bins have one block; of large ones, where a wrong cut is dear, more are
   looked at. */
#define OWN_TRIES 16u
#define LARGE_UNITS ((16u << 20) / UNIT_BYTES)

/* What a request needs; pad: the most units that aligning can skip in a block. */
struct need {
  uint32_t units;
  uint64_t align, pad;
};

/* Where in b, counted from its start, the request would lie: as high as alignment lets it. Below 0: nowhere. */
static int64_t place_in(const struct suballoc *s, const struct block *b, const struct need *n) {
  int64_t high = (int64_t)b->units - n->units;
  if (!n->pad || high < 0) return high;
  uint64_t addr = suballoc_addr(s, b) + ((uint64_t)high << UNIT_SHIFT);
  return high - (int64_t)((addr & (n->align - 1)) >> UNIT_SHIFT);
}

/* The first of a bin's first few blocks that has room; 0 if none of them has. */
static uint32_t first_fit(const struct suballoc *s, uint32_t bin, const struct need *n, uint32_t tries) {
  for (uint32_t i = s->bins.head[bin]; i && tries--; i = block_at(s, i)->list_next)
    if (place_in(s, block_at(s, i), n) >= 0) return i;
  return 0;
}

/* Looks at every block of the bins where some may have room and some not. */
static uint32_t any_fit(const struct suballoc *s, uint32_t from, uint32_t to, const struct need *n) {
  for (uint32_t bin = bins_from(&s->bins, from); bin <= to; bin = bins_from(&s->bins, bin + 1)) {
    uint32_t found = first_fit(s, bin, n, ~0u);
    if (found) return found;
  }
  return 0;
}

static __attribute__((noinline)) uint32_t find_with_care(const struct suballoc *s, const struct need *n) {
  uint32_t own = bin_of(n->units), found = first_fit(s, own, n, OWN_TRIES);
  if (found) return found;
  uint32_t sure = bin_of((uint32_t)(n->units + n->pad)) + 1;
  uint32_t bin = bins_from(&s->bins, sure);
  return bin < BIN_COUNT ? s->bins.head[bin] : any_fit(s, own, sure - 1, n);
}

/* ---- cutting and joining ---- */

/* Cuts a block after its first `units`; the rest is a new block, in no bin. */
static inline uint32_t cut(struct suballoc *s, struct arena *a, uint32_t index, uint32_t units) {
  uint32_t rest = slab_take(&s->slab);
  struct block *b = block_at(s, index), *r = block_at(s, rest);
  r->off = b->off + units;
  r->units = b->units - units;
  r->prev = index;
  r->next = b->next;
  r->arena = b->arena;
  block_become(r, BLOCK_FREE, 0, 0);
  block_at(s, b->next)->prev = rest;   /* index 0 takes what belongs to nobody */
  b->next = rest;
  b->units = units;
  pages_add(&a->pages, &s->leaves, &s->slab, rest);
  return rest;
}

/* A free block, in the bin for old_units, has its size changed in place. */
static inline void rebin(struct suballoc *s, uint32_t index, uint32_t old_units) {
  bins_remove(&s->bins, &s->slab, index, bin_of(old_units));
  bins_insert(&s->bins, &s->slab, index, bin_of(block_at(s, index)->units));
}

/* From the high end: what is left keeps its record and its start. */
static inline uint32_t carve_high(struct suballoc *s, struct arena *a, uint32_t index, uint32_t units) {
  uint32_t old = block_at(s, index)->units;
  if (old == units) {
    bins_remove(&s->bins, &s->slab, index, bin_of(old));
    return index;
  }
  uint32_t taken = cut(s, a, index, old - units);
  rebin(s, index, old);
  return taken;
}

/* The request lies at `place` in the block. */
static uint32_t carve_at(struct suballoc *s, struct arena *a, uint32_t index, uint32_t units, uint32_t place) {
  index = carve_high(s, a, index, block_at(s, index)->units - place);
  if (block_at(s, index)->units > units) {
    uint32_t rest = cut(s, a, index, units);
    bins_insert(&s->bins, &s->slab, rest, bin_of(block_at(s, rest)->units));
  }
  return index;
}

static __attribute__((noinline)) int carve_with_care(struct suballoc *s, uint32_t units, uint64_t align,
                                                     uint32_t *out) {
  struct need n = {units, align, (align >> UNIT_SHIFT) - 1};
  uint32_t index = find_with_care(s, &n);
  if (!index) return POOL_MISS;
  struct block *b = block_at(s, index);
  *out = carve_at(s, s->slots[b->arena], index, units, (uint32_t)place_in(s, b, &n));
  return POOL_OK;
}

static inline void use(struct suballoc *s, struct arena *a, uint32_t units) {
  a->used += units;
  s->free_units -= units;
}

int oci_suballoc_carve(struct suballoc *s, uint32_t units, uint64_t align, uint32_t *out) {
  if (!slab_reserve(&s->slab, 2)) return POOL_E_HOST_NOMEM;
  uint32_t own = bin_of(units), index = s->bins.head[own];
  if (units >= LARGE_UNITS || align > UNIT_BYTES) goto with_care;
  uint32_t larger = s->bins.head[bins_from(&s->bins, own + 1)];
  index = either(block_at(s, index)->units >= units, index, larger);   /* index 0 has 0 units */
  if (!index) goto with_care;
  struct arena *a = s->slots[block_at(s, index)->arena];
  *out = carve_high(s, a, index, units);
  use(s, a, units);
  return POOL_OK;
with_care:;
  int status = carve_with_care(s, units, align, out);
  if (status == POOL_OK) use(s, s->slots[block_at(s, *out)->arena], units);
  return status;
}

/* b takes over its right neighbour, which is in no bin. */
static inline void join_next(struct suballoc *s, struct arena *a, struct block *b) {
  uint32_t gone = b->next;
  struct block *n = block_at(s, gone);
  pages_remove(&a->pages, &s->leaves, &s->slab, gone);
  b->units += n->units;
  b->next = n->next;
  block_at(s, n->next)->prev = n->prev;
  slab_give(&s->slab, gone);
}

static inline bool is_free(const struct suballoc *s, uint32_t index) {
  return block_at(s, index)->state == BLOCK_FREE;   /* index 0 is not */
}

void oci_suballoc_free(struct suballoc *s, uint32_t index) {
  struct block *b = block_at(s, index);
  struct arena *a = s->slots[b->arena];
  uint32_t next = b->next, prev = b->prev;
  a->used -= b->units;
  s->free_units += b->units;
  if (is_free(s, next)) {
    bins_remove(&s->bins, &s->slab, next, bin_of(block_at(s, next)->units));
    join_next(s, a, b);
  }
  if (is_free(s, prev)) {
    uint32_t old = block_at(s, prev)->units;
    join_next(s, a, block_at(s, prev));
    rebin(s, prev, old);
    return;
  }
  block_become(b, BLOCK_FREE, 0, 0);
  bins_insert(&s->bins, &s->slab, index, bin_of(b->units));
}

/* ---- from an address ---- */

/* The last span that starts at or before addr, or the first. There is at least one. */
static const struct span *span_before(const struct suballoc *s, uint64_t addr) {
  const struct span *at = s->spans;
  for (uint32_t n = s->count; n > 1;) {
    uint32_t half = n / 2;
    at = at[half].from <= addr ? at + half : at;
    n -= half;
  }
  return at;
}

struct arena *oci_suballoc_search(struct suballoc *s, uint64_t addr) {
  if (!s->count) return NULL;
  const struct span *at = span_before(s, addr);
  if (addr < at->from || addr >= at->to) return NULL;
  return s->hints[(addr >> HINT_SHIFT) % ARENA_HINTS] = at->arena;
}

bool oci_suballoc_overlaps(const struct suballoc *s, uint64_t from, uint64_t to) {
  for (uint32_t i = 0; i < s->count; i++)
    if (s->spans[i].from < to && from < s->spans[i].to) return true;
  return false;
}
