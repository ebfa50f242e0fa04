/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "config.h"

#include "tools/baseline.h"

#include <stdlib.h>

/* A power of two of buckets, at least one a key: its logarithm. */
static unsigned bucket_bits(size_t n)
{
  unsigned bits = 1;

  while ((size_t)1 << bits < n)
    bits++;
  return bits;
}

/* The kind that spins a little before it sleeps. */
static void init_mutex(pthread_mutex_t *m)
{
  pthread_mutexattr_t kind;

  pthread_mutexattr_init(&kind);
  pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP);
  pthread_mutex_init(m, &kind);
  pthread_mutexattr_destroy(&kind);
}

bool oct_plain_names_make(struct plain_names *p, size_t most)
{
  unsigned bits = bucket_bits(most);

  *p = (struct plain_names){.shift = 64 - bits};
  pthread_rwlock_init(&p->lock, NULL);
  init_mutex(&p->mutex);
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
  pthread_rwlock_wrlock(&p->lock);
  base_write_lock(&p->light_lock);
  *n = (struct plain_name){.next = p->bucket[hash >> p->shift], .hash = hash, .a = a, .b = b, .value = value,
                           .a_bytes = (uint32_t)strlen(a), .b_bytes = (uint32_t)b_bytes};
  p->bucket[hash >> p->shift] = n;
  base_write_unlock(&p->light_lock);
  pthread_rwlock_unlock(&p->lock);
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
  init_mutex(&p->mutex);
  p->bucket = calloc((size_t)1 << bits, sizeof(struct plain_node *));
  return p->bucket;
}

bool oct_plain_map_add(struct plain_map *p, uint64_t key, uint64_t value)
{
  struct plain_node *n = malloc(sizeof *n);
  struct plain_node **at = &p->bucket[base_hash_u64(key) >> p->shift];

  if (!n)
    return false;
  *n = (struct plain_node){*at, key, {value, 0}};
  *at = n;
  return true;
}

void oct_plain_map_free(struct plain_map *p)
{
  for (size_t i = 0; p->bucket && i < (size_t)1 << (64 - p->shift); i++)
    for (struct plain_node *n = p->bucket[i], *next; n; n = next) {
      next = n->next;
      free(n);
    }
  pthread_mutex_destroy(&p->mutex);
  free(p->bucket);
}
