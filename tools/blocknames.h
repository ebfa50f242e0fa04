/* SPDX-License-Identifier: MIT */
/*
 * blocknames: what blocks are called, for a page: hundreds of thousands of names that differ in their numbers mostly, so a
 * name is kept as a pattern, in which '\1' stands for each number, and those numbers.
 *   packed, a name: the pattern's index, its numbers, the bytes that were asked for under it; each a varint.
 * Owned by the subcommand, used by one thread.
 */
#ifndef OCTOOL_BLOCKNAMES_H
#define OCTOOL_BLOCKNAMES_H

#include "tools/page.h"

/* Where a name's block is. */
struct named { uint64_t address; size_t name; };

struct blocknames {
  json_t *patterns, *index;          /* [index] -> pattern; pattern -> index */
  struct packed packed;
  struct blockname { uint64_t bytes, pattern; } *names;
  size_t count, room;
  struct named *at;                  /* [at_count], by address once sorted */
  size_t at_count, at_room;
  bool failed;                       /* no memory, once */
};

void oct_blocknames_init(struct blocknames *b);
void oct_blocknames_free(struct blocknames *b);
/* Names are numbered from 0 in the order of these calls. A failure is kept, and told at the end. */
void oct_blocknames_add(struct blocknames *b, const char *name, uint64_t bytes);
/* The block at this address has that name. Without an address, or a name, nothing happens. */
void oct_blocknames_place(struct blocknames *b, size_t name, uint64_t address);
/* No block has a name any more. */
void oct_blocknames_lift(struct blocknames *b);
void oct_blocknames_sort(struct blocknames *b);
/* The name of the block at this address, after sort. False: none. */
bool oct_blocknames_find(const struct blocknames *b, uint64_t address, size_t *name);
/* {patterns, count, data}; NULL without memory, then or before. What is packed is gone. */
json_t *oct_blocknames_json(struct blocknames *b);

#endif
