/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/table.h"

#include "rcu/mem.h"

#define FIRST_BUCKETS 16u

static struct table_node **bucket_of(const struct table *t, uint64_t hash) {
  return &t->bucket[(hash ^ (hash >> 32)) & (t->buckets - 1)];
}

static bool resize(struct table *t, size_t buckets) {
  struct table_node **fresh = oci_alloc(t->heap, buckets * sizeof *fresh);
  if (!fresh) return false;
  struct table old = *t;
  t->bucket = fresh;
  t->buckets = buckets;
  for (size_t i = 0; i < old.buckets; i++) {
    for (struct table_node *n = old.bucket[i], *next; n; n = next) {
      next = n->next;
      struct table_node **b = bucket_of(t, n->hash);
      n->next = *b;
      *b = n;
    }
  }
  oci_free(t->heap, old.bucket, old.buckets * sizeof *old.bucket);
  return true;
}

bool oci_table_reserve(struct table *t) {
  if (t->buckets == 0) return resize(t, FIRST_BUCKETS);
  if (t->count >= t->buckets) (void)resize(t, t->buckets * 2);
  return true;
}

void oci_table_add(struct table *t, struct table_node *n, uint64_t hash) {
  struct table_node **b = bucket_of(t, hash);
  n->hash = hash;
  n->next = *b;
  *b = n;
  t->count++;
}

void oci_table_remove(struct table *t, struct table_node *n) {
  struct table_node **at = bucket_of(t, n->hash);
  while (*at != n) at = &(*at)->next;
  *at = n->next;
  n->next = NULL;
  t->count--;
}

static struct table_node *same_hash(struct table_node *n, uint64_t hash) {
  while (n && n->hash != hash) n = n->next;
  return n;
}

struct table_node *oci_table_find(const struct table *t, uint64_t hash) {
  return t->buckets ? same_hash(*bucket_of(t, hash), hash) : NULL;
}

struct table_node *oci_table_next(const struct table_node *n) {
  return same_hash(n->next, n->hash);
}

void oci_table_free(struct table *t) {
  oci_free(t->heap, t->bucket, t->buckets * sizeof *t->bucket);
  t->bucket = NULL;
  t->buckets = t->count = 0;
}
