/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/block.h"

#define FIRST_RECORDS 1024u
#define MANY_RECORDS 16384u
#define MOST_RECORDS (1u << 31)   /* the top bit of an index is the page tables' */

void oci_slab_init(struct slab *s, struct meta *meta) {
  *s = (struct slab){.meta = meta, .fresh = 1};
}

void oci_slab_fini(struct slab *s) {
  meta_free(s->meta, s->at, s->capacity * sizeof *s->at);
  oci_slab_init(s, s->meta);
}

/* Doubles while it is small; then by a quarter, so that no more than a fifth is ever spare. */
static uint32_t larger(uint32_t capacity) {
  if (!capacity) return FIRST_RECORDS;
  return capacity + (capacity < MANY_RECORDS ? capacity : capacity / 4);
}

bool oci_slab_extend(struct slab *s, uint32_t n) {
  while (!slab_has(s, n)) {
    uint32_t capacity = larger(s->capacity);
    if (capacity > MOST_RECORDS) return false;
    void *grown = meta_grow(s->meta, s->at, s->capacity * sizeof *s->at, capacity * sizeof *s->at);
    if (!grown) return false;
    s->at = grown;
    s->capacity = capacity;
  }
  return true;
}
