/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/block.h"

#define FIRST_RECORDS 1024u
#define MANY_RECORDS 32768u       /* 1 MiB: from there on oci_alloc maps; what was not yet written costs nothing */
#define MOST_RECORDS (1u << 31)   /* the top bit of an index is the page tables' */

void oci_slab_init(struct slab *s, struct meta *meta) {
  *s = (struct slab){.meta = meta, .fresh = 1};
}

void oci_slab_fini(struct slab *s) {
  meta_free(s->meta, s->at, s->capacity * sizeof *s->at);
  oci_slab_init(s, s->meta);
}

/* Few moves, for the pool's lock is held meanwhile: in large steps where what is spare is only addresses. */
static uint32_t larger(uint32_t capacity) {
  if (!capacity) return FIRST_RECORDS;
  return capacity * (capacity < MANY_RECORDS ? 2 : 4);
}

size_t oci_slab_spare(const struct slab *s) {
  return s->capacity < MANY_RECORDS ? 0 : (s->capacity - s->fresh) * sizeof *s->at;
}

bool oci_slab_extend(struct slab *s, uint32_t n) {
  while (!slab_has(s, n)) {
    uint32_t capacity = larger(s->capacity);
    if (s->capacity > MOST_RECORDS / 4) return false;
    struct block *grown = meta_alloc(s->meta, capacity * sizeof *grown);
    if (!grown) return false;
    if (s->at) memcpy(grown, s->at, s->fresh * sizeof *grown);
    meta_free(s->meta, s->at, s->capacity * sizeof *s->at);
    s->at = grown;
    s->capacity = capacity;
  }
  return true;
}
