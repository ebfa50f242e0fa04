/* SPDX-License-Identifier: MIT */
/*
 * Counted host memory: what the pool's own records cost.
 *
 * meta: a heap and the bytes that this pool has of it; owned by a pool, any thread may use it.
 */
#ifndef OCI_ALLOCATOR_META_H
#define OCI_ALLOCATOR_META_H

#include <stddef.h>
#include <string.h>

#include "rcu/mem.h"

struct meta {
  struct heap *heap;
  size_t bytes;
};

/* As oci_alloc: zeroed, NULL without memory. */
static inline void *meta_alloc(struct meta *m, size_t bytes) {
  void *p = oci_alloc(m->heap, bytes);
  if (p) __atomic_fetch_add(&m->bytes, bytes, __ATOMIC_RELAXED);
  return p;
}

static inline void meta_free(struct meta *m, void *p, size_t bytes) {
  if (!p) return;
  __atomic_fetch_sub(&m->bytes, bytes, __ATOMIC_RELAXED);
  oci_free(m->heap, p, bytes);
}

/* A larger copy of an array, the rest zeroed; the old one is freed. NULL without memory: the old one stays. */
static inline void *meta_grow(struct meta *m, void *old, size_t old_bytes, size_t new_bytes) {
  void *p = meta_alloc(m, new_bytes);
  if (!p) return NULL;
  if (old) memcpy(p, old, old_bytes);
  meta_free(m, old, old_bytes);
  return p;
}

static inline size_t meta_bytes(const struct meta *m) { return __atomic_load_n(&m->bytes, __ATOMIC_RELAXED); }

#endif
