/* SPDX-License-Identifier: MIT */
/*
 * Memory of other allocators, as they told us: ranges that do not overlap, by address.
 *
 * range:  [from, from + bytes), with its tag in the ledger.
 * ranges: chunks of sorted ranges, sorted by their first; no chunk is empty. Owned by a pool, used under its lock.
 */
#ifndef OCI_ALLOCATOR_RANGES_H
#define OCI_ALLOCATOR_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "allocator/meta.h"

struct range {
  uint64_t from, bytes;
  uint32_t tag;
  bool tracked;
};

#define RANGES_IN_CHUNK 128u
struct range_chunk {
  uint32_t count;
  struct range at[RANGES_IN_CHUNK];
};

struct ranges {
  struct meta *meta;
  struct range_chunk **chunks;
  uint32_t count, capacity;
};

void oci_ranges_init(struct ranges *r, struct meta *meta);
void oci_ranges_fini(struct ranges *r);
/* The range that contains addr; NULL: none. Valid until the next add or remove. */
struct range *oci_ranges_find(const struct ranges *r, uint64_t addr);
/* The first range of which something lies in [from, from + bytes); NULL: none. */
struct range *oci_ranges_overlap(const struct ranges *r, uint64_t from, uint64_t bytes);
/* Overlaps none. False without host memory. */
bool oci_ranges_add(struct ranges *r, const struct range *range);
/* What oci_ranges_find gave. */
void oci_ranges_remove(struct ranges *r, const struct range *range);
/* Are they sorted, apart from each other, and in full chunks? */
bool oci_ranges_check(const struct ranges *r);

#endif
