/* SPDX-License-Identifier: MIT */
/*
 * fit: what the pool is measured against: best fit over balanced trees, records out of band, the same lock, and a ledger by
 * call site as the pool's: sites are found by address and believed after a look at what they say, for a library may have
 * been unloaded and another have come to its place; live, and peak, of each and of all. Free blocks are in a tree by size and address, all blocks in a tree by address, neighbours linked.
 * Owned by who made it; any thread may use it.
 */
#ifndef OCTOOL_BASELINE_TREE_H
#define OCTOOL_BASELINE_TREE_H

#include "liboc/oc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fit;

/* `arenas` of that many bytes, and records for `blocks` of them and what is free between. NULL without memory. */
struct fit *oct_fit_make(size_t arenas, uint64_t arena_bytes, size_t blocks);
void oct_fit_destroy(struct fit *f);
/* 0: no room. The site's strings must stay; there may be 200 of them. */
uint64_t oct_fit_alloc(struct fit *f, uint64_t bytes, const oc_site *site);
bool oct_fit_free(struct fit *f, uint64_t at);

#endif
