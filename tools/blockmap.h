/* SPDX-License-Identifier: MIT */
/*
 * blockmap: a pool's arenas and blocks, as a page shows them:
 *   {title, arenas: [{base, bytes, used, managed, lost}],
 *    kinds: [{state, role, owner, site, func, named}], count, data, external: [{start, bytes, kind}], and the pool's figures}.
 * Addresses are text, in hexadecimal: they need more than the 53 bits that a page's numbers have.
 *   packed, a block, in the order of arenas and addresses: 0: all of it is as expected: it has the expected name, the
 *   kind that the last block with a name of that pattern had, and as many bytes as its name was given. Else its kind + 1 and
 *   its bytes in units of 256; unless it is free, how many of those bytes nobody asked for; where its kind is named, how far
 *   its name is from the expected one (zigzag). Expected is the one after the last or, where the last was the one before
 *   the last but one, the one before it.
 */
#ifndef OCTOOL_BLOCKMAP_H
#define OCTOOL_BLOCKMAP_H

#include "liboc/oc.h"
#include "tools/blocknames.h"

/* The names are placed and sorted. NULL with `why`. */
json_t *oct_blockmap(oc_pool *pool, const char *title, const struct blocknames *names, struct fault *why);

#endif
