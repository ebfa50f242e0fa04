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

#include "allocator/block.h"

#define PAGE_SHIFT 8u            /* units in a page: 64 KiB */
#define LEAF_SHIFT 3u            /* units in a part: 2 KiB */
#define LEAF_PARTS (1u << (PAGE_SHIFT - LEAF_SHIFT))
#define PAGE_LEAF (1u << 31)
#define PAGE_CROWDED 12u         /* steps of a walk that earn a page its leaf */

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
/* Leaves that are still in use are given back. */
void oci_pages_fini(struct pages *p, struct meta *meta, struct leaves *l);

/* The block is linked to its neighbours: after linking, before unlinking. */
void oci_pages_add(struct pages *p, struct leaves *l, const struct slab *s, uint32_t index);
void oci_pages_remove(struct pages *p, struct leaves *l, const struct slab *s, uint32_t index);
/* The block that contains off. */
uint32_t oci_pages_find(struct pages *p, struct leaves *l, const struct slab *s, uint32_t off);
/* Does the table say exactly what the list of blocks from `first` on says? */
bool oci_pages_check(const struct pages *p, const struct leaves *l, const struct slab *s, uint32_t first);

#endif
