/* SPDX-License-Identifier: MIT */
/* liburcu's lock-free hash table, its read side inlined as far as its headers allow. */
#include "config.h"

#define _LGPL_SOURCE
#include <urcu/urcu-bp.h>
#include <urcu/rculfhash.h>

#include "tools/baseline.h"
#include "tools/race.h"

#include <stdlib.h>

struct lfht_node { struct cds_lfht_node link; uint64_t key, value; };
struct lfht { struct cds_lfht *table; struct lfht_node *node; size_t nodes; };

struct lfht_name { struct cds_lfht_node link; struct plain_name name; };
struct lfht_names { struct cds_lfht *table; struct lfht_name *node; size_t nodes; };

static size_t power_of_two(size_t n)
{
  size_t p = 1;

  while (p < n)
    p *= 2;
  return p;
}

static struct cds_lfht *new_table(size_t most)
{
  size_t buckets = power_of_two(most);

  return cds_lfht_new_flavor(buckets, buckets, 0, 0, &urcu_bp_flavor, NULL);
}

/* cds_lfht orders by the hash's reverse: the low bits must be good. */
static unsigned long spread(uint64_t hash)
{
  return __builtin_bswap64(hash);
}

static int same_key(struct cds_lfht_node *link, const void *key)
{
  return caa_container_of(link, struct lfht_node, link)->key == *(const uint64_t *)key;
}

struct lfht *oct_lfht_make(size_t most)
{
  struct lfht *t = calloc(1, sizeof *t);

  if (!t)
    return NULL;
  t->table = new_table(most);
  t->node = calloc(most, sizeof *t->node);
  if (t->table && t->node)
    return t;
  oct_lfht_free(t);
  return NULL;
}

bool oct_lfht_add(struct lfht *t, uint64_t key, uint64_t value)
{
  struct lfht_node *n = &t->node[t->nodes++];

  n->key = key;
  n->value = value;
  urcu_bp_read_lock();
  cds_lfht_add(t->table, spread(base_hash_u64(key)), &n->link);
  urcu_bp_read_unlock();
  return true;
}

/* The nodes are in one array: the table is destroyed with them in it, but only when it is empty. */
static void empty(struct cds_lfht *table)
{
  struct cds_lfht_iter iter;
  struct cds_lfht_node *link;

  urcu_bp_read_lock();
  cds_lfht_for_each(table, &iter, link)
    (void)cds_lfht_del(table, link);
  urcu_bp_read_unlock();
  urcu_bp_synchronize_rcu();
  (void)cds_lfht_destroy(table, NULL);
}

void oct_lfht_free(struct lfht *t)
{
  if (t->table)
    empty(t->table);
  free(t->node);
  free(t);
}

void oct_lfht_walk(struct lfht *t, const struct key_walk *w, uint64_t at, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    uint64_t key = w->base + w->order[(at + i) & w->mask] * w->stride;
    struct cds_lfht_iter iter;

    cds_lfht_lookup(t->table, spread(base_hash_u64(key)), same_key, &key, &iter);
    oct_use(iter.node ? caa_container_of(iter.node, struct lfht_node, link)->value : 0);
  }
}

/* ---- On two strings ---- */

struct lfht_names *oct_lfht_names_make(size_t most)
{
  struct lfht_names *t = calloc(1, sizeof *t);

  if (!t)
    return NULL;
  t->table = new_table(most);
  t->node = calloc(most, sizeof *t->node);
  if (t->table && t->node)
    return t;
  oct_lfht_names_free(t);
  return NULL;
}

static struct plain_name name_of(const char *a, const char *b)
{
  struct plain_name n = {.a = a, .b = b, .a_bytes = (uint32_t)strlen(a), .b_bytes = (uint32_t)strlen(b)};

  n.hash = base_hash_text(b, n.b_bytes, true, base_hash_text(a, n.a_bytes, false, 0));
  return n;
}

static int same_name(struct cds_lfht_node *link, const void *key)
{
  const struct plain_name *n = &caa_container_of(link, struct lfht_name, link)->name, *k = key;

  return n->hash == k->hash && n->a_bytes == k->a_bytes && n->b_bytes == k->b_bytes &&
         base_same_text(n->a, k->a, k->a_bytes, false) &&
         base_same_text(n->b, k->b, k->b_bytes, true);
}

bool oct_lfht_names_add(struct lfht_names *t, const char *a, const char *b, uint64_t value)
{
  struct lfht_name *n = &t->node[t->nodes++];

  n->name = name_of(a, b);
  n->name.value = value;
  urcu_bp_read_lock();
  cds_lfht_add(t->table, spread(n->name.hash), &n->link);
  urcu_bp_read_unlock();
  return true;
}

void oct_lfht_names_free(struct lfht_names *t)
{
  if (t->table)
    empty(t->table);
  free(t->node);
  free(t);
}

void oct_lfht_names_walk(struct lfht_names *t, const struct name_walk *w, uint64_t at, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    size_t k = w->order[(at + i) & w->mask];
    struct plain_name key = name_of(w->a[k], w->b[k]);
    struct cds_lfht_iter iter;

    cds_lfht_lookup(t->table, spread(key.hash), same_name, &key, &iter);
    oct_use(iter.node ? caa_container_of(iter.node, struct lfht_name, link)->name.value : 0);
  }
}
