/* SPDX-License-Identifier: MIT */
/*
 * The sub-allocator: arenas as runs of blocks.
 *
 * arena:    one device allocation; its blocks tile [base, base + units * 256) without gaps, and no two free ones
 *           touch. Owned by the sub-allocator from attach to detach.
 * span:     an arena's addresses, in an array sorted by them.
 * suballoc: all arenas of a pool, their blocks, and the free ones by size. Owned by a pool, used under its lock;
 *           calls no device.
 *
 * Sizes are in units of 256 bytes. A driver's base need not be a multiple of 256: the ends are then lost.
 */
#ifndef OCI_ALLOCATOR_SUBALLOC_H
#define OCI_ALLOCATOR_SUBALLOC_H

#include "allocator/bins.h"
#include "allocator/pages.h"

/* used + bytes of its FREE blocks == units * 256 */
struct arena {
  uint64_t base;                       /* first usable byte: a multiple of 256 */
  uint32_t units;                      /* usable */
  uint32_t used;                       /* units of blocks that are not FREE */
  uint32_t first;                      /* block */
  uint16_t slot;
  bool managed;
  bool lost;                           /* the driver did not take it back: one block, LOST */
  uint64_t driver_base, driver_bytes;  /* as asked of the driver */
  struct pages pages;
  struct arena *abandoned;             /* next of those that oci_suballoc_abandon gave */
};

struct span {
  uint64_t from, to;                   /* [from, to): what the driver gave */
  struct arena *arena;
};

/* Which arena the addresses of a 64 MiB region were in last time; believed only after a look at the arena. */
#define ARENA_HINTS 256u
#define HINT_SHIFT 26u

/* free_units + used of all arenas == total_units */
struct suballoc {
  struct meta *meta;
  struct slab slab;
  struct bins bins;
  struct leaves leaves;
  struct span *spans;                  /* [count], room for capacity */
  struct arena **slots;                /* [capacity]; NULL: not taken */
  uint32_t count, capacity;
  uint64_t total_units, free_units;
  struct arena *hints[ARENA_HINTS];
};

#define ARENA_GRAIN ((uint64_t)2 << 20)                     /* arenas are multiples of it */
#define ARENA_MOST (((uint64_t)1 << 40) - ARENA_GRAIN)      /* units fit 32 bits */
/* Of a block, and of a part of a reserve: with it an arena has room whatever its base loses to alignment. */
#define BLOCK_MOST (ARENA_MOST - ARENA_GRAIN)
#define ARENA_SLOTS 65535u

void oci_suballoc_init(struct suballoc *s, struct meta *meta);
/* Every arena was detached. */
void oci_suballoc_fini(struct suballoc *s);

/* Before the device is asked for `bytes`: all host memory that attaching will need. One at a time, until it is
   attached or discarded. NULL without memory, or with ARENA_SLOTS arenas. */
struct arena *oci_arena_prepare(struct suballoc *s, uint64_t bytes);
void oci_arena_discard(struct suballoc *s, struct arena *a);
/* What the driver gave, ARENA_GRAIN at least; before attach. */
void oci_arena_set(struct arena *a, uint64_t driver_base, uint64_t driver_bytes, bool managed);
/* Is there room for that in it while it is empty? */
bool oci_arena_fits(const struct arena *a, uint32_t units, uint64_t align);
/* Cannot fail. `lost`: as one LOST block with that tag, never to be carved. */
void oci_arena_attach(struct suballoc *s, struct arena *a);
void oci_arena_attach_lost(struct suballoc *s, struct arena *a, uint32_t tag);
/* Takes out an arena without a block in use (oci_suballoc_empty); discard it, or attach it again. */
void oci_arena_detach(struct suballoc *s, struct arena *a);
/* Takes all arenas out at once, without a look at their blocks; a list in order of address, whose arenas go back
   with oci_arena_forget. No arena may be detached or prepared meanwhile. */
struct arena *oci_suballoc_abandon(struct suballoc *s);
static inline void oci_arena_forget(struct suballoc *s, struct arena *a) { meta_free(s->meta, a, sizeof *a); }
/* One without a block in use; NULL if there is none. */
struct arena *oci_suballoc_empty(const struct suballoc *s);

/* Carves a block out of a free one. POOL_MISS if none has room, POOL_E_HOST_NOMEM. align: a power of two
   from 256 on; with the size it is ARENA_MOST at most. The caller makes it LIVE (block_become) and sets its tag. */
int oci_suballoc_carve(struct suballoc *s, uint32_t units, uint64_t align, uint32_t *out);
/* Makes a block FREE and joins it with free neighbours. Needs no memory. */
void oci_suballoc_free(struct suballoc *s, uint32_t index);

/* Searches for the arena. NULL: in none. */
struct arena *oci_suballoc_search(struct suballoc *s, uint64_t addr);
/* Does anything of an arena lie in [from, to)? */
bool oci_suballoc_overlaps(const struct suballoc *s, uint64_t from, uint64_t to);

/* NULL: in none. */
static inline struct arena *suballoc_arena(struct suballoc *s, uint64_t addr) {
  struct arena *a = s->hints[(addr >> HINT_SHIFT) % ARENA_HINTS];
  return a && addr - a->driver_base < a->driver_bytes ? a : oci_suballoc_search(s, addr);
}

/* The block that contains addr, which is in arena a; 0: in the lost ends. */
static inline uint32_t suballoc_find(struct suballoc *s, struct arena *a, uint64_t addr) {
  uint64_t off = (addr - a->base) >> UNIT_SHIFT;
  if (addr < a->base || off >= a->units) return 0;
  return pages_find(&a->pages, &s->leaves, &s->slab, (uint32_t)off);
}

static inline uint64_t suballoc_addr(const struct suballoc *s, const struct block *b) {
  return s->slots[b->arena]->base + units_bytes(b->off);
}

#endif
