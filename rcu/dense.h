/* SPDX-License-Identifier: MIT */
/*
 * dense: a vector of pointers by small id, in two levels of which neither ever moves, so that readers need no
 *        lock and no pointer is lost while it grows. Owned by what embeds it; one writer at a time (its lock),
 *        any number of readers.
 */
#ifndef OCI_RCU_DENSE_H
#define OCI_RCU_DENSE_H

#include <stdint.h>

#include "rcu/mem.h"

#define DENSE_CHUNK_BITS 9
#define DENSE_CHUNK (1u << DENSE_CHUNK_BITS)
#define DENSE_IDS 65536u                     /* ids 0 .. 65535 */

struct dense {
  void **chunks[DENSE_IDS / DENSE_CHUNK];
};

/* NULL: nothing there, or id out of bounds. */
static inline void *oci_dense_get(const struct dense *d, uint32_t id) {
  if (id >= DENSE_IDS) return NULL;
  /* acquire: what the writer put into a chunk, and behind a pointer, is there for us */
  void **chunk = __atomic_load_n(&d->chunks[id >> DENSE_CHUNK_BITS], __ATOMIC_ACQUIRE);
  return chunk ? __atomic_load_n(&chunk[id & (DENSE_CHUNK - 1)], __ATOMIC_ACQUIRE) : NULL;
}

/* False without host memory. */
static inline bool oci_dense_set(struct dense *d, struct heap *h, uint32_t id, void *value) {
  void ***at = &d->chunks[id >> DENSE_CHUNK_BITS];
  if (!*at) {
    void **chunk = oci_alloc(h, DENSE_CHUNK * sizeof *chunk);
    if (!chunk) return false;
    __atomic_store_n(at, chunk, __ATOMIC_RELEASE);
  }
  __atomic_store_n(&(*at)[id & (DENSE_CHUNK - 1)], value, __ATOMIC_RELEASE);
  return true;
}

static inline void oci_dense_free(struct dense *d, struct heap *h) {
  for (uint32_t i = 0; i < DENSE_IDS / DENSE_CHUNK; i++)
    oci_free(h, d->chunks[i], DENSE_CHUNK * sizeof(void *));
}

#endif
