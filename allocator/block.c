/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/block.h"

void oci_slab_init(struct slab *s, struct meta *meta) {
  *s = (struct slab){.meta = meta, .fresh = 1};
}

void oci_slab_fini(struct slab *s) {
  for (uint32_t i = 0; i < s->count; i++) meta_free(s->meta, s->chunks[i], SLAB_CHUNK * sizeof(struct block));
  meta_free(s->meta, s->chunks, s->capacity * sizeof *s->chunks);
  oci_slab_init(s, s->meta);
}

static bool more_chunk_pointers(struct slab *s) {
  uint32_t capacity = s->capacity ? s->capacity * 2 : 16;
  void *grown = meta_grow(s->meta, s->chunks, s->capacity * sizeof *s->chunks, capacity * sizeof *s->chunks);
  if (!grown) return false;
  s->chunks = grown;
  s->capacity = capacity;
  return true;
}

static bool add_chunk(struct slab *s) {
  /* The top bit of an index is the page tables'. */
  if (s->count >= (1u << 31) / SLAB_CHUNK) return false;
  if (s->count == s->capacity && !more_chunk_pointers(s)) return false;
  struct block *chunk = meta_alloc(s->meta, SLAB_CHUNK * sizeof *chunk);
  if (!chunk) return false;
  s->chunks[s->count++] = chunk;
  return true;
}

bool oci_slab_extend(struct slab *s, uint32_t n) {
  while (!slab_has(s, n))
    if (!add_chunk(s)) return false;
  return true;
}
