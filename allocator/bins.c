/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/bins.h"

uint32_t oci_bins_largest(const struct bins *bins, const struct slab *s) {
  if (!bins->rows) return 0;
  uint32_t row = highest_bit(bins->rows), largest = 0;
  uint32_t bin = row * BIN_SPLIT + highest_bit(bins->map[row]);
  for (uint32_t i = bins->head[bin]; i; i = slab_at(s, i)->list_next)
    if (slab_at(s, i)->units > largest) largest = slab_at(s, i)->units;
  return largest;
}

static bool broken(const char **why, const char *words) {
  *why = words;
  return false;
}

static bool check_bin(const struct bins *bins, const struct slab *s, uint32_t bin, uint64_t *blocks,
                      uint64_t *units, const char **why) {
  uint32_t before = 0;
  for (uint32_t i = bins->head[bin]; i; before = i, i = slab_at(s, i)->list_next) {
    const struct block *b = slab_at(s, i);
    if (b->state != BLOCK_FREE) return broken(why, "a block in a bin is not free");
    if (bin_of(b->units) != bin) return broken(why, "a free block is in the wrong bin");
    /* which also ends the walk of a list that goes round in a circle */
    if (b->list_prev != before) return broken(why, "a bin's links do not match");
    ++*blocks;
    *units += b->units;
  }
  return true;
}

static bool check_maps(const struct bins *bins, uint32_t bin) {
  uint32_t map = bins->map[bin / BIN_SPLIT];
  bool marked = map >> (bin % BIN_SPLIT) & 1, row_marked = bins->rows >> (bin / BIN_SPLIT) & 1;
  return marked == (bins->head[bin] != 0) && row_marked == (map != 0);
}

bool oci_bins_check(const struct bins *bins, const struct slab *s, uint64_t *blocks, uint64_t *units,
                    const char **why) {
  *blocks = *units = 0;
  for (uint32_t bin = 0; bin < BIN_COUNT; bin++) {
    if (!check_maps(bins, bin)) return broken(why, "a bitmap does not match its bins");
    if (!check_bin(bins, s, bin, blocks, units, why)) return false;
  }
  return true;
}
