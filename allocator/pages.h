/* SPDX-License-Identifier: MIT */
/*
 * From an offset in an arena to the block that contains it, without a hash.
 *
 * pages: for each 64 KiB page of an arena the first block that starts in it, and which pages have one; owned by
 *        its arena, used under the pool's lock.
 * leaf:  the same for the 32 parts of a crowded page. A page gets one when a walk through it was long, and loses
 *        it with its last start; without host memory for one the walks stay long.
 * leaves: all leaves of a pool; they never move. Index 0 names none.
 *
 * entry: 0: no block starts in the page. Top bit clear: index of the first that does. Set: index of its leaf.
 */
#ifndef OCI_ALLOCATOR_PAGES_H
#define OCI_ALLOCATOR_PAGES_H

#include "allocator/bins.h"

#define PAGE_SHIFT 8u            /* units in a page: 64 KiB */
#define LEAF_SHIFT 3u            /* units in a part: 2 KiB */
#define LEAF_PARTS (1u << (PAGE_SHIFT - LEAF_SHIFT))
#define PAGE_LEAF (1u << 31)
#define PAGE_CROWDED 12u         /* steps of a walk; a page in which they do not suffice gets a leaf */
_Static_assert(PAGE_CROWDED > 1u << LEAF_SHIFT, "a walk from a leaf's part is never that long");

struct leaf {
  uint32_t mask;                 /* bit p is set <=> first[p] != 0; never 0 */
  uint32_t first[LEAF_PARTS];
};

struct leaves {
  struct meta *meta;
  struct leaf **chunks;
  uint32_t count, capacity, fresh, unused;   /* chunks, room for them; leaves: next new one, list by first[0] */
};

/* bit p of map <=> entry[p] != 0; bit w of summary <=> map[w] != 0 */
struct pages {
  uint32_t *entry;
  uint64_t *map, *summary;
  uint32_t count;
};

void oci_leaves_init(struct leaves *l, struct meta *meta);
void oci_leaves_fini(struct leaves *l);
bool oci_pages_init(struct pages *p, struct meta *meta, uint32_t units);
/* No leaf is in use any more, or all go at once. */
void oci_pages_fini(struct pages *p, struct meta *meta);

/* Where the page is crowded, or the block not found at once. */
void oci_pages_add_leaf(struct pages *p, struct leaves *l, const struct slab *s, uint32_t index);
void oci_pages_remove_leaf(struct pages *p, struct leaves *l, const struct slab *s, uint32_t index);
uint32_t oci_pages_search(struct pages *p, struct leaves *l, const struct slab *s, uint32_t off);

/* Does the neighbour start in the same page, or part of one, as b? */
static inline bool starts_with(const struct slab *s, uint32_t neighbour, const struct block *b, uint32_t shift) {
  return (neighbour != 0) & (slab_at(s, neighbour)->off >> shift == b->off >> shift);
}

static inline void pages_mark(struct pages *p, uint32_t page) {
  p->map[page / 64] |= UINT64_C(1) << (page % 64);
  p->summary[page / 4096] |= UINT64_C(1) << (page / 64 % 64);
}

static inline void pages_unmark(struct pages *p, uint32_t page, bool really) {
  uint64_t left = p->map[page / 64] & ~((uint64_t)really << (page % 64));
  p->map[page / 64] = left;
  p->summary[page / 4096] &= ~((uint64_t)(left == 0) << (page / 64 % 64));
}

/* The block is linked to its neighbours: after linking, before unlinking. Without jumps: whether a block is the
   first of its page is a coin toss. */
static inline void pages_add(struct pages *p, struct leaves *l, const struct slab *s, uint32_t index) {
  const struct block *b = slab_at(s, index);
  uint32_t page = b->off >> PAGE_SHIFT, entry = p->entry[page];
  if (entry & PAGE_LEAF) {
    oci_pages_add_leaf(p, l, s, index);
    return;
  }
  bool behind = starts_with(s, b->prev, b, PAGE_SHIFT);
  p->entry[page] = either(behind, entry, index);
  pages_mark(p, page);
}

static inline void pages_remove(struct pages *p, struct leaves *l, const struct slab *s, uint32_t index) {
  const struct block *b = slab_at(s, index);
  uint32_t page = b->off >> PAGE_SHIFT, entry = p->entry[page];
  if (entry & PAGE_LEAF) {
    oci_pages_remove_leaf(p, l, s, index);
    return;
  }
  uint32_t heir = either(starts_with(s, b->next, b, PAGE_SHIFT), b->next, 0);
  entry = either(entry == index, heir, entry);
  p->entry[page] = entry;
  pages_unmark(p, page, entry == 0);
}

/* The block that contains off: few steps from the first that starts in its page, or else by a search. */
static inline uint32_t pages_find(struct pages *p, struct leaves *l, const struct slab *s, uint32_t off) {
  uint32_t index = p->entry[off >> PAGE_SHIFT];
  if (index & PAGE_LEAF || slab_at(s, index)->off > off || !index) return oci_pages_search(p, l, s, off);
  /* It or the next, mostly: which of the two is a toss, so that the choice is no jump. */
  const struct block *b = slab_at(s, index);
  index = either(off - b->off < b->units, index, b->next);
  for (uint32_t steps = 0; steps < PAGE_CROWDED; steps++) {
    if (off - slab_at(s, index)->off < slab_at(s, index)->units) return index;
    index = slab_at(s, index)->next;
  }
  return oci_pages_search(p, l, s, off);
}

/* Does the table say exactly what the list of blocks from `first` on says? */
bool oci_pages_check(const struct pages *p, const struct leaves *l, const struct slab *s, uint32_t first);

#endif
