/* SPDX-License-Identifier: MIT */
/*
 * table: a hash table for writers, all of it under its owner's lock: chained, intrusive, with removal. What readers
 *        without a lock look into is a map instead. A node is owned by the struct that embeds it.
 */
#ifndef OCI_RCU_TABLE_H
#define OCI_RCU_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap;

struct table_node {
  struct table_node *next;
  uint64_t hash;
};

struct table {
  struct table_node **bucket;
  size_t buckets;             /* power of two; 0 before the first add */
  size_t count;
  struct heap *heap;
};

/* Makes room for one more node; false without host memory (only if there is no bucket at all: a table that
   cannot grow gets longer chains). */
bool oci_table_reserve(struct table *t);
/* After a reserve. The same hash may be there several times. */
void oci_table_add(struct table *t, struct table_node *n, uint64_t hash);
/* The node must be there. */
void oci_table_remove(struct table *t, struct table_node *n);
/* The first node with that hash; then, from a node, the next. NULL: no more. */
struct table_node *oci_table_find(const struct table *t, uint64_t hash);
struct table_node *oci_table_next(const struct table_node *n);
void oci_table_free(struct table *t);

#endif
