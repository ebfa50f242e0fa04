/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/baseline.h"

#include <stdlib.h>

/* A power of two of buckets, at least two a key: its logarithm. */
static unsigned bucket_bits(size_t n)
{
  unsigned bits = 1;

  while ((size_t)1 << bits < 2 * n)
    bits++;
  return bits;
}

bool oct_plain_names_make(struct plain_names *p, size_t most)
{
  unsigned bits = bucket_bits(most);

  *p = (struct plain_names){.shift = 64 - bits};
  pthread_rwlock_init(&p->lock, NULL);
  pthread_mutex_init(&p->mutex, NULL);
  p->bucket = calloc((size_t)1 << bits, sizeof(struct plain_name *));
  p->node = calloc(most, sizeof *p->node);
  return p->bucket && p->node;
}

void oct_plain_names_add(struct plain_names *p, const char *a, const char *b, uint64_t value)
{
  struct plain_name *n = &p->node[p->nodes++];
  size_t b_bytes = b ? strlen(b) : 0;
  uint64_t hash = base_hash_text(a, strlen(a), false, 0);

  if (b)
    hash = base_hash_text(b, b_bytes, true, hash);
  *n = (struct plain_name){.next = p->bucket[hash >> p->shift], .hash = hash, .a = a, .b = b, .value = value,
                           .a_bytes = (uint32_t)strlen(a), .b_bytes = (uint32_t)b_bytes};
  p->bucket[hash >> p->shift] = n;
}

void oct_plain_names_free(struct plain_names *p)
{
  pthread_rwlock_destroy(&p->lock);
  pthread_mutex_destroy(&p->mutex);
  free(p->bucket);
  free(p->node);
}

bool oct_plain_map_make(struct plain_map *p, size_t most)
{
  unsigned bits = bucket_bits(most);

  *p = (struct plain_map){.shift = 64 - bits};
  pthread_mutex_init(&p->mutex, NULL);
  p->bucket = calloc((size_t)1 << bits, sizeof(struct plain_node *));
  p->node = calloc(most, sizeof *p->node);
  return p->bucket && p->node;
}

void oct_plain_map_add(struct plain_map *p, uint64_t key, uint64_t value)
{
  struct plain_node *n = &p->node[p->nodes++];
  uint64_t hash = base_hash_u64(key);

  *n = (struct plain_node){p->bucket[hash >> p->shift], key, value};
  p->bucket[hash >> p->shift] = n;
}

void oct_plain_map_free(struct plain_map *p)
{
  pthread_mutex_destroy(&p->mutex);
  free(p->bucket);
  free(p->node);
}
