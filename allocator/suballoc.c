/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/suballoc.h"

#include "allocator/pool.h"

/* How many blocks of a bin are looked at for a tight fit before a larger bin is cut. */
#define TIGHT_TRIES 8u

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
  oci_pages_fini(&a->pages, s->meta, &s->leaves);
no_pages:
  meta_free(s->meta, a, sizeof *a);
  return NULL;
}

void oci_arena_discard(struct suballoc *s, struct arena *a) {
  slab_give(&s->slab, a->first);
  s->slots[a->slot] = NULL;
  oci_pages_fini(&a->pages, s->meta, &s->leaves);
  meta_free(s->meta, a, sizeof *a);
}

void oci_arena_set(struct arena *a, uint64_t driver_base, uint64_t driver_bytes, bool managed) {
  uint64_t lost = (0 - driver_base) & (UNIT_BYTES - 1);
  a->driver_base = driver_base;
  a->driver_bytes = driver_bytes;
  a->managed = managed;
  a->base = driver_base + lost;
  a->units = driver_bytes > lost ? (uint32_t)((driver_bytes - lost) >> UNIT_SHIFT) : 0;
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
  *block_at(s, a->first) = (struct block){.units = a->units, .arena = a->slot, .state = state & 7u, .tag = tag};
  oci_pages_add(&a->pages, &s->leaves, &s->slab, a->first);
  s->total_units += a->units;
}

void oci_arena_attach(struct suballoc *s, struct arena *a) {
  attach(s, a, BLOCK_FREE, 0);
  s->free_units += a->units;
  bins_insert(&s->bins, &s->slab, a->first);
}

void oci_arena_attach_lost(struct suballoc *s, struct arena *a, uint32_t tag) {
  a->lost = true;
  a->used = a->units;
  attach(s, a, BLOCK_LOST, tag);
}

static void drop_blocks(struct suballoc *s, struct arena *a) {
  uint32_t next;
  for (uint32_t i = a->first; i; i = next) {
    struct block *b = block_at(s, i);
    next = b->next;
    if (b->state == BLOCK_FREE) bins_remove(&s->bins, &s->slab, i);
    if (i != a->first) slab_give(&s->slab, i);
  }
  block_at(s, a->first)->next = 0;
}

void oci_arena_detach(struct suballoc *s, struct arena *a) {
  uint32_t place = span_place(s, a->driver_base) - 1;
  s->count--;
  memmove(&s->spans[place], &s->spans[place + 1], (s->count - place) * sizeof *s->spans);
  s->total_units -= a->units;
  s->free_units -= a->units - a->used;
  a->used = 0;
  oci_pages_remove(&a->pages, &s->leaves, &s->slab, a->first);
  drop_blocks(s, a);
}

struct arena *oci_suballoc_abandon(struct suballoc *s) {
  struct arena *list = NULL;
  for (uint32_t i = s->count; i-- > 0;) {
    struct arena *a = s->spans[i].arena;
    oci_pages_fini(&a->pages, s->meta, NULL);
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

/* What a request needs; pad: the most units that aligning can skip in a block. */
struct need {
  uint32_t units;
  uint64_t align, pad;
};

static uint64_t gap_in(const struct suballoc *s, const struct block *b, const struct need *n) {
  return n->pad ? units_to(suballoc_addr(s, b), n->align) : 0;
}

static bool has_room(const struct suballoc *s, const struct block *b, const struct need *n) {
  return gap_in(s, b, n) + n->units <= b->units;
}

/* The tightest fit among a bin's first few blocks; 0 if none of them fits. */
static uint32_t tightest(const struct suballoc *s, uint32_t bin, const struct need *n, uint32_t tries) {
  uint32_t best = 0, best_units = ~0u;
  for (uint32_t i = s->bins.head[bin]; i && tries--; i = block_at(s, i)->list_next) {
    const struct block *b = block_at(s, i);
    if (b->units >= best_units || !has_room(s, b, n)) continue;
    best = i;
    best_units = b->units;
    if (best_units == n->units) break;
  }
  return best;
}

/* Looks at every block of the bins where some may have room and some not. */
static uint32_t any_fit(const struct suballoc *s, uint32_t from, uint32_t to, const struct need *n) {
  for (uint32_t bin = bins_from(&s->bins, from); bin <= to && bin < BIN_COUNT; bin = bins_from(&s->bins, bin + 1)) {
    uint32_t found = tightest(s, bin, n, ~0u);
    if (found) return found;
  }
  return 0;
}

/* Good fit: a tight one in the request's own bin, else the smallest bin whose blocks all have room, and only
   before growth a walk. So a block of just the size that was freed is found again, and the large free block of
   an idle arena is cut last. */
static uint32_t find_free(const struct suballoc *s, const struct need *n) {
  uint32_t own = bin_of(n->units), found = tightest(s, own, n, TIGHT_TRIES);
  if (found) return found;
  uint64_t padded = n->units + n->pad;
  uint32_t sure = padded > UINT32_MAX ? BIN_COUNT : bin_of((uint32_t)padded) + 1;
  uint32_t bin = bins_from(&s->bins, own + 1);
  if (bin < sure && (found = tightest(s, bin, n, TIGHT_TRIES))) return found;
  if (bin < sure) bin = bins_from(&s->bins, sure);
  if (bin < BIN_COUNT) return tightest(s, bin, n, TIGHT_TRIES);
  return any_fit(s, own, sure - 1, n);
}

/* ---- cutting and joining ---- */

/* Cuts a block, not in a bin, after its first `units`; the rest is a FREE block, in no bin yet. */
static uint32_t cut(struct suballoc *s, uint32_t index, uint32_t units) {
  uint32_t rest = slab_take(&s->slab);
  struct block *b = block_at(s, index), *r = block_at(s, rest);
  *r = (struct block){.off = b->off + units, .units = b->units - units, .prev = index, .next = b->next,
                      .arena = b->arena, .state = BLOCK_FREE};
  if (b->next) block_at(s, b->next)->prev = rest;
  b->next = rest;
  b->units = units;
  oci_pages_add(&s->slots[b->arena]->pages, &s->leaves, &s->slab, rest);
  return rest;
}

int oci_suballoc_carve(struct suballoc *s, uint32_t units, uint64_t align, uint32_t *out) {
  struct need n = {units, align, (align >> UNIT_SHIFT) - 1};
  if (!slab_reserve(&s->slab, 2)) return POOL_E_HOST_NOMEM;
  uint32_t index = find_free(s, &n);
  if (!index) return POOL_MISS;
  uint32_t gap = (uint32_t)gap_in(s, block_at(s, index), &n);
  bins_remove(&s->bins, &s->slab, index);
  if (gap) {
    uint32_t aligned = cut(s, index, gap);
    bins_insert(&s->bins, &s->slab, index);
    index = aligned;
  }
  struct block *b = block_at(s, index);
  if (b->units > units) bins_insert(&s->bins, &s->slab, cut(s, index, units));
  b->state = BLOCK_LIVE;
  s->slots[b->arena]->used += units;
  s->free_units -= units;
  *out = index;
  return POOL_OK;
}

/* b takes over its right neighbour, which is in no bin. */
static void join_next(struct suballoc *s, struct arena *a, struct block *b) {
  uint32_t gone = b->next;
  struct block *n = block_at(s, gone);
  oci_pages_remove(&a->pages, &s->leaves, &s->slab, gone);
  b->units += n->units;
  b->next = n->next;
  if (n->next) block_at(s, n->next)->prev = n->prev;
  slab_give(&s->slab, gone);
}

static bool is_free(const struct suballoc *s, uint32_t index) {
  return index && block_at(s, index)->state == BLOCK_FREE;
}

void oci_suballoc_free(struct suballoc *s, uint32_t index) {
  struct block *b = block_at(s, index);
  struct arena *a = s->slots[b->arena];
  a->used -= b->units;
  s->free_units += b->units;
  if (is_free(s, b->next)) {
    bins_remove(&s->bins, &s->slab, b->next);
    join_next(s, a, b);
  }
  if (is_free(s, b->prev)) {
    index = b->prev;
    bins_remove(&s->bins, &s->slab, index);
    b = block_at(s, index);
    join_next(s, a, b);
  }
  b->state = BLOCK_FREE;
  b->class = b->tracked = 0;
  b->slack = 0;
  b->tag = 0;
  bins_insert(&s->bins, &s->slab, index);
}

/* ---- from an address ---- */

/* The last span that starts at or before addr, without branches that mispredict. There is at least one span. */
static const struct span *span_before(const struct suballoc *s, uint64_t addr) {
  const struct span *at = s->spans;
  for (uint32_t n = s->count; n > 1;) {
    uint32_t half = n / 2;
    at = at[half].from <= addr ? at + half : at;
    n -= half;
  }
  return at;
}

struct arena *oci_suballoc_arena(const struct suballoc *s, uint64_t addr) {
  if (!s->count) return NULL;
  const struct span *at = span_before(s, addr);
  return addr >= at->from && addr < at->to ? at->arena : NULL;
}

uint32_t oci_suballoc_find(struct suballoc *s, struct arena *a, uint64_t addr) {
  uint64_t off = (addr - a->base) >> UNIT_SHIFT;
  if (addr < a->base || off >= a->units) return 0;
  return oci_pages_find(&a->pages, &s->leaves, &s->slab, (uint32_t)off);
}

bool oci_suballoc_overlaps(const struct suballoc *s, uint64_t from, uint64_t to) {
  for (uint32_t i = 0; i < s->count; i++)
    if (s->spans[i].from < to && from < s->spans[i].to) return true;
  return false;
}
