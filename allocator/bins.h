/* SPDX-License-Identifier: MIT */
/*
 * Free blocks by size: 32 bins for each power of two, and two levels of bitmap over them.
 *
 * bins: heads of lists of FREE blocks; owned by a sub-allocator, used under the pool's lock.
 *
 * Below 64 units a bin holds one size; above, sizes within 1/32 of each other. Every block in a bin above
 * bin_of(units) has room for units.
 */
#ifndef OCI_ALLOCATOR_BINS_H
#define OCI_ALLOCATOR_BINS_H

#include "allocator/block.h"

#define BIN_SPLIT_BITS 5u
#define BIN_SPLIT (1u << BIN_SPLIT_BITS)
#define BIN_ROWS (32u - BIN_SPLIT_BITS + 1u)
#define BIN_COUNT (BIN_ROWS * BIN_SPLIT)

/* bit r of rows is set <=> map[r] != 0; bit c of map[r] is set <=> head[r * BIN_SPLIT + c] != 0 */
struct bins {
  uint32_t rows;
  uint32_t map[BIN_ROWS];
  uint32_t head[BIN_COUNT + 1];  /* the last is always 0 */
};

/* Without a jump: where the condition is a coin toss, a wrong guess costs more than all the rest of a step. */
static inline uint32_t either(bool condition, uint32_t yes, uint32_t no) {
  return no ^ ((yes ^ no) & (0u - (uint32_t)condition));
}

static inline uint32_t lowest_bit(uint32_t word) { return (uint32_t)__builtin_ctz(word); }
static inline uint32_t highest_bit(uint32_t word) { return 31u - (uint32_t)__builtin_clz(word); }
static inline uint32_t bits_from(uint32_t bit) { return ~0u << bit; }   /* bit < 32, as all rows are */

static inline uint32_t bin_of(uint32_t units) {
  uint32_t shift = highest_bit(units | BIN_SPLIT) - BIN_SPLIT_BITS;
  return shift * BIN_SPLIT + (units >> shift);
}

/* The first bin from `bin` on that has a block; BIN_COUNT if none has. */
static inline uint32_t bins_from(const struct bins *b, uint32_t bin) {
  uint32_t row = bin / BIN_SPLIT;
  if (row >= BIN_ROWS) return BIN_COUNT;
  uint32_t here = b->map[row] & bits_from(bin % BIN_SPLIT);
  uint32_t above = b->rows & bits_from(row + 1);
  if (!(here | above)) return BIN_COUNT;
  row = either(here, row, lowest_bit(above | 1u << 31));
  here = either(here, here, b->map[row]);
  return row * BIN_SPLIT + lowest_bit(here);
}

/*
 * Last in, first out: the block freed last is the likeliest to be in the device's caches, and nothing has to be
 * searched for. Links to nowhere are written too, to the record of index 0, which nobody reads.
 */
static inline void bins_insert(struct bins *bins, struct slab *s, uint32_t index, uint32_t bin) {
  struct block *b = slab_at(s, index);
  uint32_t head = bins->head[bin];
  b->list_prev = 0;
  b->list_next = head;
  bins->head[bin] = index;
  slab_at(s, head)->list_prev = index;
  bins->map[bin / BIN_SPLIT] |= 1u << (bin % BIN_SPLIT);
  bins->rows |= 1u << (bin / BIN_SPLIT);
}

static inline void bins_remove(struct bins *bins, struct slab *s, uint32_t index, uint32_t bin) {
  const struct block *b = slab_at(s, index);
  uint32_t row = bin / BIN_SPLIT, next = b->list_next, prev = b->list_prev, head = bins->head[bin];
  head = either(prev, head, next);
  bins->head[bin] = head;
  slab_at(s, prev)->list_next = next;
  slab_at(s, next)->list_prev = prev;
  bins->map[row] &= ~((uint32_t)(head == 0) << (bin % BIN_SPLIT));
  bins->rows &= ~((uint32_t)(bins->map[row] == 0) << row);
}

/* Units of the largest free block; 0 if there is none. Walks one bin. */
uint32_t oci_bins_largest(const struct bins *bins, const struct slab *s);
/* Every invariant of bins; *blocks and *units get the sums. Words in *why on false. */
bool oci_bins_check(const struct bins *bins, const struct slab *s, uint64_t *blocks, uint64_t *units,
                    const char **why);

#endif
