/* SPDX-License-Identifier: MIT */
/*
 * The lock-free map: u64 keys, open addressing, insert-mostly.
 *
 * map:   owns its tables; one writer at a time (the caller's lock), any number of readers, with or without a guard.
 * table: a power of two of slots; replaced by a larger (or cleaned) copy when three quarters full, and kept until
 *        the map is freed, so that a reader without a guard never reads freed memory (G30). A table that
 *        is not larger than the one before takes five eighths of its slots in new keys: at most 64 bytes each.
 * slot:  32 bytes, half a cache line. Its key is written once and never changes: a reader holds key and value in
 *        several loads. A dropped slot waits for its own key.
 *
 * A reader: find the key (acquire), load entry, values, entry again; the same entry twice means that the values
 * belong together, for an entry's memory is not used again before a grace period.
 */
#ifndef OCI_RCU_MAP_H
#define OCI_RCU_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rcu/hash.h"

struct heap;

struct map_slot {
  uint64_t key;        /* 0: empty */
  uint64_t entry;      /* pointer of the writer's record, with flags in its low bits; 0: dropped */
  uint64_t v0, v1;
};

#define MAP_FLAG 1u    /* the caller's: an entry pointer's bit 0 */
#define MAP_FLAGS 7u

struct map_table {
  struct map_table *older;
  size_t slots;         /* power of two */
  size_t used;          /* slots with a key; the writer's */
  uint32_t shift;       /* 64 - log2(slots) */
  struct map_slot slot[] __attribute__((aligned(64)));
};

struct map {
  struct map_table *table;   /* NULL: nothing was ever put */
  size_t live;               /* keys with an entry; read without the lock for counts */
  struct heap *heap;
};

static inline void oci_map_init(struct map *m, struct heap *h) {
  m->table = NULL;
  m->live = 0;
  m->heap = h;
}

struct map_hit {
  uint64_t v0, v1;
  uint64_t entry;       /* with flags */
};

static inline void *oci_map_entry(uint64_t entry) {
  return (void *)(uintptr_t)(entry & ~(uint64_t)MAP_FLAGS);
}

/* The slot of a key, or NULL. Ends at an empty slot: a table always has some. */
static inline struct map_slot *oci_map_slot(struct map_table *t, uint64_t key) {
  size_t mask = t->slots - 1;
  for (size_t i = (size_t)(oci_hash_u64(key) >> t->shift);; i = (i + 1) & mask) {
    struct map_slot *s = &t->slot[i];
    uint64_t k = __atomic_load_n(&s->key, __ATOMIC_ACQUIRE);
    if (k == key) return s;
    if (k == 0) return NULL;
  }
}

/* key is not 0. False: not there. */
static inline bool oci_map_get(const struct map *m, uint64_t key, struct map_hit *out) {
  struct map_table *t = __atomic_load_n(&m->table, __ATOMIC_ACQUIRE);
  if (!t) return false;
  struct map_slot *s = oci_map_slot(t, key);
  if (!s) return false;
  for (;;) {
    uint64_t e = __atomic_load_n(&s->entry, __ATOMIC_ACQUIRE);
    if (e == 0) return false;
    out->v0 = __atomic_load_n(&s->v0, __ATOMIC_ACQUIRE);
    out->v1 = __atomic_load_n(&s->v1, __ATOMIC_ACQUIRE);
    out->entry = __atomic_load_n(&s->entry, __ATOMIC_RELAXED);
    /* Dropped and put anew between our loads, or its flag changed: read again. The writer stores 0, then values,
       then the entry, so that values of another put cannot stand between two equal entries. */
    if (__builtin_expect(out->entry == e, 1)) return true;
  }
}

/* ---- writers ---- */

/* Makes room, so that the next put of one key cannot fail. False without host memory. */
bool oci_map_reserve(struct map *m);
/* The key must not be there (or be dropped) and room reserved. entry: not 0. */
void oci_map_put(struct map *m, uint64_t key, uint64_t v0, uint64_t v1, uint64_t entry);
/* Takes the entry off; returns it (0: was not there). Readers may still have it until a grace period. */
uint64_t oci_map_drop(struct map *m, uint64_t key);
/* Replaces the entry word of a key that is there (flags change, values stay). */
void oci_map_set_entry(struct map *m, uint64_t key, uint64_t entry);
/* Each key with an entry; `each` may drop that key. */
void oci_map_each(struct map *m, void (*each)(void *arg, uint64_t key, const struct map_hit *hit), void *arg);
/* Frees all tables. No reader any more. */
void oci_map_free(struct map *m);
/* Host bytes of all tables. */
size_t oci_map_bytes(const struct map *m);

#endif
