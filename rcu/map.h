/* SPDX-License-Identifier: MIT */
/*
 * The lock-free map: u64 keys, open addressing by cache line, insert-mostly.
 *
 * map:   owns its tables; one writer at a time (the caller's lock), any number of readers, with or without a guard.
 * table: a power of two of lines; replaced by a larger (or cleaned) copy when it is full, and kept until the map is freed, so that a reader without a guard never reads freed memory (G30). A table that
 *        is not larger than the one before takes five eighths of its slots in new keys: at most 64 bytes each.
 * line:  four slots: their keys and first values in one cache line, all that a hit for one value reads. A full line
 *        spills into the next. All four keys are compared without a jump: which slot a key is in is a toss, and a wrong
 *        guess that waits for memory costs more than everything else.
 * rest:  what the same four slots have beside it: second values and entries.
 * plain: a byte a line; bit i: slot i's entry is without MAP_FLAG. So that a hit that asks for just those need not read the rest.
 * slot:  its key is written once and never changes: a reader holds key and value in several loads. A dropped slot
 *        waits for its own key.
 *
 * A reader of all of a slot: find the key (acquire), load entry, values, entry again; the same entry twice means that
 * the values belong together, for an entry's memory is not used again before a grace period. Of the first value alone,
 * where it is never 0: one load says whether it is there and what it is. Of that and whether it is plain: the value, the bit,
 * the value again; put sets the bit before it stores the value, so that between two equal values it is this one's.
 */
#ifndef OCI_RCU_MAP_H
#define OCI_RCU_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rcu/hash.h"

struct heap;

#define LINE_SLOTS 4u
#define LINE_BYTES 129u   /* with its rest and its plain byte */

struct map_line {
  uint64_t key[LINE_SLOTS];     /* 0: empty */
  uint64_t v0[LINE_SLOTS];      /* 0: dropped, or a value of 0 */
} __attribute__((aligned(64)));

struct map_rest {
  uint64_t v1[LINE_SLOTS];
  uint64_t entry[LINE_SLOTS];   /* pointer of the writer's record, with flags in its low bits; 0: dropped */
} __attribute__((aligned(64)));

#define MAP_FLAG 1u    /* the caller's: an entry pointer's bit 0 */
#define MAP_FLAGS 7u

struct map_table {
  struct map_table *older;
  size_t lines;         /* power of two, at least 2 */
  size_t used;          /* slots with a key; the writer's */
  uint32_t shift;       /* 64 - log2(lines) */
  struct map_line line[];       /* [lines]; behind them struct map_rest [lines], and the plain bytes, [lines] */
};

struct map {
  struct map_table *table;   /* NULL: nothing was ever put */
  struct map_table *values;  /* the same where first values are never 0, for oci_map_near; else NULL */
  size_t live;               /* keys with an entry; read without the lock for counts */
  struct heap *heap;
  bool valued;               /* first values are never 0; the writer's */
};

static inline void oci_map_init(struct map *m, struct heap *h) {
  *m = (struct map){.heap = h};
}

struct map_hit {
  uint64_t v0, v1;
  uint64_t entry;       /* with flags */
};

static inline void *oci_map_entry(uint64_t entry) {
  return (void *)(uintptr_t)(entry & ~(uint64_t)MAP_FLAGS);
}

static inline struct map_rest *oci_map_rest(struct map_table *t, size_t line) {
  return (struct map_rest *)&t->line[t->lines] + line;
}

static inline uint8_t *oci_map_plain(struct map_table *t, size_t line) {
  return (uint8_t *)oci_map_rest(t, t->lines) + line;
}

static inline uint64_t oci_map_home(const struct map_table *t, uint64_t key) {
  return oci_hash_u64(key) >> t->shift;
}

/* 1: slot i has that key. */
static inline uint64_t oci_line_has(const struct map_line *l, unsigned i, uint64_t key) {
  return (uint64_t)(__atomic_load_n(&l->key[i], __ATOMIC_ACQUIRE) == key);
}

/* Bit i: slot i has that key. */
static inline unsigned oci_line_match(const struct map_line *l, uint64_t key) {
  return (unsigned)(oci_line_has(l, 0, key) | oci_line_has(l, 1, key) << 1 | oci_line_has(l, 2, key) << 2 |
                    oci_line_has(l, 3, key) << 3);
}

/* `otherwise`, or slot i's first value if it has the key: both are at hand, so that no jump is needed. */
static inline uint64_t oci_line_pick(const struct map_line *l, unsigned i, uint64_t key, uint64_t otherwise) {
  bool has = __atomic_load_n(&l->key[i], __ATOMIC_ACQUIRE) == key;
  uint64_t value = __atomic_load_n(&l->v0[i], __ATOMIC_ACQUIRE);
  return has ? value : otherwise;
}

/* The key's first value; 0: dropped, or not in this line. */
static inline uint64_t oci_line_value(const struct map_line *l, uint64_t key) {
  return oci_line_pick(l, 0, key, oci_line_pick(l, 1, key, oci_line_pick(l, 2, key, oci_line_pick(l, 3, key, 0))));
}

struct map_slot {
  struct map_line *line;   /* NULL: the key is not there */
  struct map_rest *rest;
  unsigned i;
};

/* The slot of a key. Ends at a line with an empty slot: a table always has some, and a key goes to the first of them. */
static inline struct map_slot oci_map_slot(struct map_table *t, uint64_t key) {
  for (size_t n = oci_map_home(t, key);; n = (n + 1) & (t->lines - 1)) {
    unsigned bits = oci_line_match(&t->line[n], key);
    if (__builtin_expect(bits != 0, 1))
      return (struct map_slot){&t->line[n], oci_map_rest(t, n), (unsigned)__builtin_ctz(bits)};
    if (oci_line_match(&t->line[n], 0)) return (struct map_slot){NULL, NULL, 0};
  }
}

/* key is not 0. False: not there. */
static inline bool oci_map_get(const struct map *m, uint64_t key, struct map_hit *out) {
  struct map_table *t = __atomic_load_n(&m->table, __ATOMIC_ACQUIRE);
  if (!t) return false;
  __builtin_prefetch(oci_map_rest(t, oci_map_home(t, key)));   /* both lines at once, not one after the other */
  struct map_slot s = oci_map_slot(t, key);
  if (!s.line) return false;
  for (;;) {
    uint64_t e = __atomic_load_n(&s.rest->entry[s.i], __ATOMIC_ACQUIRE);
    if (e == 0) return false;
    out->v0 = __atomic_load_n(&s.line->v0[s.i], __ATOMIC_ACQUIRE);
    out->v1 = __atomic_load_n(&s.rest->v1[s.i], __ATOMIC_ACQUIRE);
    out->entry = __atomic_load_n(&s.rest->entry[s.i], __ATOMIC_RELAXED);
    /* Dropped and put anew between our loads, or its flag changed: read again. The writer stores 0, then values,
       then the entry, so that values of another put cannot stand between two equal entries. */
    if (__builtin_expect(out->entry == e, 1)) return true;
  }
}

/* The first value, if the key's own line has it, as it mostly does. 0: not there, or spilled, or key is 0, or the map was
   not made for this: oci_map_far knows. */
static inline uint64_t oci_map_near(const struct map *m, uint64_t key) {
  const struct map_table *t = __atomic_load_n(&m->values, __ATOMIC_ACQUIRE);
  return __builtin_expect(t != NULL, 1) ? oci_line_value(&t->line[oci_map_home(t, key)], key) : 0;
}

/* As oci_map_near, but 0 too where the entry has MAP_FLAG: oci_map_get knows. */
static inline uint64_t oci_map_near_plain(const struct map *m, uint64_t key) {
  struct map_table *t = __atomic_load_n(&m->values, __ATOMIC_ACQUIRE);
  if (__builtin_expect(!t, 0)) return 0;
  size_t n = oci_map_home(t, key);
  const struct map_line *l = &t->line[n];
  unsigned bits = oci_line_match(l, key);
  if (__builtin_expect(!bits, 0)) return 0;
  const uint64_t *at = &l->v0[__builtin_ctz(bits)];
  uint64_t value = __atomic_load_n(at, __ATOMIC_ACQUIRE);
  bool plain = __atomic_load_n(oci_map_plain(t, n), __ATOMIC_ACQUIRE) & bits;
  /* Dropped and put anew in between, the bit may be the later entry's; then the value is another, or 0. */
  return plain && __atomic_load_n(at, __ATOMIC_RELAXED) == value ? value : 0;
}

/* key is not 0. 0: not there. */
uint64_t oci_map_far(const struct map *m, uint64_t key);
static inline uint64_t oci_map_value(const struct map *m, uint64_t key) {
  uint64_t value = oci_map_near(m, key);
  return __builtin_expect(value != 0, 1) ? value : oci_map_far(m, key);
}

/* ---- writers ---- */

/* Before the first put: its first values will never be 0, and one load of them is a lookup. */
static inline void oci_map_of_values(struct map *m) { m->valued = true; }
/* Makes room, so that the next put of one key cannot fail. False without host memory. */
bool oci_map_reserve(struct map *m);
/* The key must not be there (or be dropped) and room reserved. entry: not 0. */
void oci_map_put(struct map *m, uint64_t key, uint64_t v0, uint64_t v1, uint64_t entry);
/* Takes the entry off; returns it (0: was not there). Readers may still have it until a grace period. */
uint64_t oci_map_drop(struct map *m, uint64_t key);
/* Replaces the entry word of a key that is there (flags change, values stay). */
void oci_map_set_entry(struct map *m, uint64_t key, uint64_t entry);
/* Replaces the first value of a key that is there, for readers of that alone. */
void oci_map_set_value(struct map *m, uint64_t key, uint64_t v0);
/* Each key with an entry; `each` may drop that key. */
void oci_map_each(struct map *m, void (*each)(void *arg, uint64_t key, const struct map_hit *hit), void *arg);
/* Frees all tables. No reader any more. */
void oci_map_free(struct map *m);
/* Host bytes of all tables. */
size_t oci_map_bytes(const struct map *m);

#endif
