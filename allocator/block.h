/* SPDX-License-Identifier: MIT */
/*
 * Block records, out of band: device memory is never touched.
 *
 * block: a run of 256-byte units of one arena; owned by the slab, changed under the pool's lock only.
 * slab:  all records of a pool, in one array, which moves when it grows: that saves a load at each of the twenty
 *        steps of a call. A record is named by its index; 0 names none. A pointer to one is good until the next
 *        slab_reserve.
 */
#ifndef OCI_ALLOCATOR_BLOCK_H
#define OCI_ALLOCATOR_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "allocator/meta.h"

#define UNIT_SHIFT 8u
#define UNIT_BYTES 256u

enum block_state {
  BLOCK_UNUSED,   /* a record without a block */
  BLOCK_FREE,
  BLOCK_LIVE,
  BLOCK_PENDING,  /* free_on: waits for its event */
  BLOCK_HELD,     /* free_on without events: waits for a drain */
  BLOCK_RETIRED,  /* a graph or queued work may use it */
  BLOCK_LOST,     /* a whole arena that the driver did not take back */
};

struct block {
  uint32_t off, units;           /* in units, from the arena's first usable byte */
  uint32_t prev, next;           /* neighbours by address */
  uint32_t list_prev, list_next; /* FREE: in its bin. HELD, RETIRED: in their list. UNUSED: next unused */
  uint32_t tag;                  /* of the ledger; not FREE */
  uint16_t arena;                /* slot */
  uint8_t state : 3;
  uint8_t class : 3;
  uint8_t tracked : 1;
  uint8_t unused : 1;
  uint8_t slack;                 /* units * 256 - bytes requested */
};
_Static_assert(sizeof(struct block) == 32, "two records a cache line");

/* unused + records of blocks + 1 (index 0, never a block: state UNUSED, 0 units) == fresh <= capacity */
struct slab {
  struct meta *meta;
  struct block *at;
  uint32_t capacity;
  uint32_t fresh;                /* records from here on were never handed out */
  uint32_t unused;               /* list of those given back */
  uint32_t unused_count;
};

void oci_slab_init(struct slab *s, struct meta *meta);
void oci_slab_fini(struct slab *s);
/* Makes sure that the next n slab_take work; false without host memory. */
bool oci_slab_extend(struct slab *s, uint32_t n);

/* Bytes of the array that were never written, and so are addresses without memory. */
size_t oci_slab_spare(const struct slab *s);

static inline struct block *slab_at(const struct slab *s, uint32_t index) {
  return &s->at[index];
}

static inline bool slab_has(const struct slab *s, uint32_t n) {
  return (uint64_t)s->capacity + s->unused_count >= (uint64_t)s->fresh + n;
}

static inline bool slab_reserve(struct slab *s, uint32_t n) { return slab_has(s, n) || oci_slab_extend(s, n); }

/* After slab_reserve. */
static inline uint32_t slab_take(struct slab *s) {
  uint32_t index = s->unused;
  if (!index) return s->fresh++;
  s->unused = slab_at(s, index)->list_next;
  s->unused_count--;
  return index;
}

static inline void slab_give(struct slab *s, uint32_t index) {
  struct block *b = slab_at(s, index);
  b->state = BLOCK_UNUSED;
  b->list_next = s->unused;
  s->unused = index;
  s->unused_count++;
}

static inline void block_become(struct block *b, unsigned state, unsigned class, unsigned slack) {
  b->state = state & 7u;
  b->class = class & 7u;
  b->tracked = 0;
  b->unused = 0;
  b->slack = (uint8_t)slack;
}

static inline uint64_t units_bytes(uint32_t units) { return (uint64_t)units << UNIT_SHIFT; }

static inline uint64_t block_bytes(const struct block *b) { return units_bytes(b->units); }

#endif
