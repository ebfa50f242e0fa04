/* SPDX-License-Identifier: MIT */
/*
 * What the library is measured against: the plain design done well, in a header so that it is inlined where it is
 * measured: no call but the lock's and strlen, a hash of a few instructions, a bucket a key.
 *
 * plain_names: a reader-writer lock over a chained hash on two strings, or a mutex over one on a tag.
 * plain_map:   a mutex over a chained hash on u64.
 * Each has glibc's lock and a light one (tools/baselock.h): `light` says which is taken. Who measures both fills a table for
 * each: the second would find in the caches what the first has just read.
 * Each is made by one thread and then only read; its owner frees it. Strings stay the caller's.
 */
#ifndef OCTOOL_BASELINE_H
#define OCTOOL_BASELINE_H

#include "tools/baselock.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t base_fold(uint64_t a, uint64_t b)
{
  __extension__ typedef unsigned __int128 wide;
  wide product = (wide)a * b;

  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t base_word(const char *s)
{
  uint64_t w;

  memcpy(&w, s, sizeof w);
  return w;
}

static inline uint64_t base_half(const char *s)
{
  uint32_t w;

  memcpy(&w, s, sizeof w);
  return w;
}

/* As the library reads them: 4 to 16 bytes as two overlapping words, 8 to 32 as four, without a jump on the length. */
struct base_words { uint64_t w[4]; };

static inline struct base_words base_words(const char *s, size_t n, bool longer)
{
  size_t step;

  if (longer ? n - 8 <= 24 : n - 17 <= 15) {
    step = n < 16 ? n - 8 : 8;
    return (struct base_words){{base_word(s), base_word(s + step), base_word(s + n - 8 - step), base_word(s + n - 8)}};
  }
  step = n / 8 * 4;
  return (struct base_words){{base_half(s) << 32 | base_half(s + step), base_half(s + n - 4) << 32 | base_half(s + n - 4 - step)}};
}

/* 4 to 32 bytes, as all names of the bench are. */
static inline uint64_t base_hash_text(const char *s, size_t n, bool longer, uint64_t seed)
{
  struct base_words x = base_words(s, n, longer);
  uint64_t h = seed ^ n * 0xA0761D6478BD642Fu;

  return base_fold(x.w[0] ^ 0xE7037ED1A0B428DBu, x.w[1] ^ h) ^ base_fold(x.w[2] ^ 0x8EBC6AF09C88C6E3u, x.w[3] ^ ~h);
}

static inline bool base_same_text(const char *a, const char *b, size_t n, bool longer)
{
  struct base_words x = base_words(a, n, longer), y = base_words(b, n, longer);

  return ((x.w[0] ^ y.w[0]) | (x.w[1] ^ y.w[1]) | (x.w[2] ^ y.w[2]) | (x.w[3] ^ y.w[3])) == 0;
}

static inline uint64_t base_hash_u64(uint64_t x)
{
  return (x ^ (x >> 32)) * 0x9E3779B97F4A7C15u;
}

struct plain_name {
  struct plain_name *next;
  uint64_t hash;
  const char *a, *b;
  uint32_t a_bytes, b_bytes;
  uint64_t value;
  uint32_t fired;
};

struct plain_names {
  struct base_rwlock light_lock;
  struct base_mutex light_mutex;
  pthread_rwlock_t lock __attribute__((aligned(128)));
  pthread_mutex_t mutex __attribute__((aligned(128)));
  struct plain_name **bucket __attribute__((aligned(128)));
  struct plain_name *node;
  size_t nodes;
  unsigned shift;
};

/* b may be NULL throughout. Room for `most` names; false without memory. */
bool oct_plain_names_make(struct plain_names *p, size_t most);
void oct_plain_names_add(struct plain_names *p, const char *a, const char *b, uint64_t value);
void oct_plain_names_free(struct plain_names *p);

static inline struct plain_name *plain_names_find(const struct plain_names *p, const char *a, const char *b)
{
  size_t a_bytes = strlen(a), b_bytes = b ? strlen(b) : 0;
  uint64_t hash = base_hash_text(a, a_bytes, false, 0);
  struct plain_name *n;

  if (b)
    hash = base_hash_text(b, b_bytes, true, hash);
  for (n = p->bucket[hash >> p->shift]; n; n = n->next)
    if (n->hash == hash && n->a_bytes == a_bytes && n->b_bytes == b_bytes && base_same_text(n->a, a, a_bytes, false) &&
        (!b || base_same_text(n->b, b, b_bytes, true)))
      return n;
  return NULL;
}

static inline uint64_t plain_names_value(const struct plain_names *p, const char *a, const char *b)
{
  const struct plain_name *n = plain_names_find(p, a, b);

  return n ? n->value : 0;
}

static inline uint64_t plain_names_get(struct plain_names *p, bool light, const char *a, const char *b)
{
  uint64_t value;

  if (light)
    base_read_lock(&p->light_lock);
  else
    pthread_rwlock_rdlock(&p->lock);
  value = plain_names_value(p, a, b);
  if (light)
    base_read_unlock(&p->light_lock);
  else
    pthread_rwlock_unlock(&p->lock);
  return value;
}

static inline void plain_lock(pthread_mutex_t *mutex, struct base_mutex *light_mutex, bool light)
{
  if (light)
    base_lock(light_mutex);
  else
    pthread_mutex_lock(mutex);
}

static inline void plain_unlock(pthread_mutex_t *mutex, struct base_mutex *light_mutex, bool light)
{
  if (light)
    base_unlock(light_mutex);
  else
    pthread_mutex_unlock(mutex);
}

static inline uint64_t plain_tags_get(struct plain_names *p, bool light, const char *tag)
{
  uint64_t value;

  plain_lock(&p->mutex, &p->light_mutex, light);
  value = plain_names_value(p, tag, NULL);
  plain_unlock(&p->mutex, &p->light_mutex, light);
  return value;
}

static inline bool plain_tags_once(struct plain_names *p, bool light, const char *tag)
{
  struct plain_name *n;
  bool first;

  plain_lock(&p->mutex, &p->light_mutex, light);
  n = plain_names_find(p, tag, NULL);
  first = n && !n->fired;
  if (first)
    n->fired = 1;
  plain_unlock(&p->mutex, &p->light_mutex, light);
  return first;
}

/* An allocation each, as they come; a pair, as derived values are. */
struct plain_node { struct plain_node *next; uint64_t key, value[2]; };

struct plain_map {
  struct base_mutex light_mutex;
  pthread_mutex_t mutex __attribute__((aligned(128)));
  struct plain_node **bucket __attribute__((aligned(128)));
  unsigned shift;
};

bool oct_plain_map_make(struct plain_map *p, size_t most);
bool oct_plain_map_add(struct plain_map *p, uint64_t key, uint64_t value);
void oct_plain_map_free(struct plain_map *p);

static inline const struct plain_node *plain_map_find(const struct plain_map *p, uint64_t key)
{
  const struct plain_node *n = p->bucket[base_hash_u64(key) >> p->shift];

  while (n && n->key != key)
    n = n->next;
  return n;
}

static inline uint64_t plain_map_get(struct plain_map *p, bool light, uint64_t key)
{
  const struct plain_node *n;
  uint64_t value;

  plain_lock(&p->mutex, &p->light_mutex, light);
  n = plain_map_find(p, key);
  value = n ? n->value[0] : 0;
  plain_unlock(&p->mutex, &p->light_mutex, light);
  return value;
}

static inline void plain_map_get_pair(struct plain_map *p, bool light, uint64_t key, uint64_t out[2])
{
  const struct plain_node *n;

  plain_lock(&p->mutex, &p->light_mutex, light);
  n = plain_map_find(p, key);
  out[0] = n ? n->value[0] : 0;
  out[1] = n ? n->value[1] : 0;
  plain_unlock(&p->mutex, &p->light_mutex, light);
}

/* ---- Other people's lock-free maps, on u64 (baseline_lfht.c, baseline_ck.c) ---- */

/* liburcu's cds_lfht. */
struct lfht;
struct lfht *oct_lfht_make(size_t most);
bool oct_lfht_add(struct lfht *t, uint64_t key, uint64_t value);
void oct_lfht_free(struct lfht *t);
struct lfht_names;   /* the same on two strings */
struct lfht_names *oct_lfht_names_make(size_t most);
bool oct_lfht_names_add(struct lfht_names *t, const char *a, const char *b, uint64_t value);
void oct_lfht_names_free(struct lfht_names *t);

/* Concurrency Kit's ck_ht. Where octool is built without it, make says NULL. */
struct ckht;
struct ckht *oct_ckht_make(size_t most);
bool oct_ckht_add(struct ckht *t, uint64_t key, uint64_t value);
void oct_ckht_free(struct ckht *t);

/* Looks up `n` keys, key(i) = base + order[(at + i) & mask] * stride; in the table's own file, where it is inlined. */
struct key_walk { uint64_t base, stride; const uint32_t *order; size_t mask; };
void oct_lfht_walk(struct lfht *t, const struct key_walk *w, uint64_t at, size_t n);
void oct_ckht_walk(struct ckht *t, const struct key_walk *w, uint64_t at, size_t n);
struct name_walk { const char *const *a, *const *b; const uint32_t *order; size_t mask; };
void oct_lfht_names_walk(struct lfht_names *t, const struct name_walk *w, uint64_t at, size_t n);

#endif
