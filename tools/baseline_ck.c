/* SPDX-License-Identifier: MIT */
/* Concurrency Kit's hash table for one writer and many readers, where octool is built with it. */
#include "config.h"

#include "tools/baseline.h"

#ifdef HAVE_CK

#include "tools/race.h"

#include <ck_ht.h>
#include <stdlib.h>

struct ckht { ck_ht_t table; };

static void *ck_alloc(size_t n)
{
  return malloc(n);
}

static void ck_release(void *p, size_t n, bool deferred)
{
  (void)n;
  (void)deferred;   /* it only grows while nobody reads */
  free(p);
}

static struct ck_malloc allocator = {.malloc = ck_alloc, .free = ck_release};

struct ckht *oct_ckht_make(size_t most)
{
  struct ckht *t = calloc(1, sizeof *t);

  if (t && ck_ht_init(&t->table, CK_HT_MODE_DIRECT, NULL, &allocator, most * 2, 1))
    return t;
  free(t);
  return NULL;
}

bool oct_ckht_add(struct ckht *t, uint64_t key, uint64_t value)
{
  ck_ht_entry_t entry;
  ck_ht_hash_t hash = {.value = base_hash_u64(key) ^ base_hash_u64(key) >> 32};

  ck_ht_entry_set_direct(&entry, hash, key, value);
  return ck_ht_put_spmc(&t->table, hash, &entry);
}

void oct_ckht_free(struct ckht *t)
{
  ck_ht_destroy(&t->table);
  free(t);
}

void oct_ckht_walk(struct ckht *t, const struct key_walk *w, uint64_t at, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    uint64_t key = w->base + w->order[(at + i) & w->mask] * w->stride;
    ck_ht_hash_t hash = {.value = base_hash_u64(key) ^ base_hash_u64(key) >> 32};
    ck_ht_entry_t entry;

    ck_ht_entry_key_set_direct(&entry, key);
    oct_use(ck_ht_get_spmc(&t->table, hash, &entry) ? ck_ht_entry_value_direct(&entry) : 0);
  }
}

#else

struct ckht *oct_ckht_make(size_t most)
{
  (void)most;
  return NULL;
}

bool oct_ckht_add(struct ckht *t, uint64_t key, uint64_t value)
{
  (void)t, (void)key, (void)value;
  return false;
}

void oct_ckht_free(struct ckht *t)
{
  (void)t;
}

void oct_ckht_walk(struct ckht *t, const struct key_walk *w, uint64_t at, size_t n)
{
  (void)t, (void)w, (void)at, (void)n;
}

#endif
