/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/devslots.h"

#include <stddef.h>

/* handle: generation << 28 | index << 4 | tag. Never 0, and never 1 or 2, which CUDA gives a meaning as
   streams. */
enum { FIRST_CHUNK = 64, INDEX_SHIFT = 4, GEN_SHIFT = 28 };
#define INDEX_MAX ((1u << 24) - 1)
_Static_assert(FIRST_CHUNK * ((1u << SLOT_CHUNKS) - 1) <= INDEX_MAX, "a handle has room for the last index");

static uint32_t chunk_of(uint32_t index) {
  return 31u - (uint32_t)__builtin_clz(index / FIRST_CHUNK + 1);
}

static uint32_t chunk_start(uint32_t chunk) {
  return FIRST_CHUNK * ((1u << chunk) - 1);
}

static size_t chunk_bytes(const struct slots *t, uint32_t chunk) {
  return ((size_t)FIRST_CHUNK << chunk) * t->record_bytes;
}

struct slot *oci_devslots_at(const struct slots *t, uint32_t index) {
  uint32_t c = chunk_of(index);
  char *base = __atomic_load_n(&t->chunk[c], __ATOMIC_ACQUIRE);
  return (struct slot *)(void *)(base + (size_t)(index - chunk_start(c)) * t->record_bytes);
}

void oci_devslots_init(struct slots *t, struct heap *heap, size_t record_bytes, enum slot_tag tag,
                       bool recycle) {
  *t = (struct slots){.heap = heap, .tag = tag, .recycle = recycle};
  t->record_bytes = (uint32_t)((record_bytes + 15) & ~(size_t)15);
  t->count = 1;   /* index 0 stays unused, so that no handle is small */
  pthread_mutex_init(&t->lock, NULL);
}

void oci_devslots_fini(struct slots *t) {
  for (uint32_t c = 0; c < SLOT_CHUNKS; c++) oci_free(t->heap, t->chunk[c], chunk_bytes(t, c));
  pthread_mutex_destroy(&t->lock);
}

static struct slot *make_record(struct slots *t) {
  uint32_t index = t->count;
  if (chunk_of(index) >= SLOT_CHUNKS) return NULL;
  char **chunk = &t->chunk[chunk_of(index)];
  if (!*chunk) {
    char *fresh = oci_alloc(t->heap, chunk_bytes(t, chunk_of(index)));
    if (!fresh) return NULL;
    __atomic_store_n(chunk, fresh, __ATOMIC_RELEASE);
  }
  struct slot *s = oci_devslots_at(t, index);
  s->index = index;
  /* A finder that sees the count sees the chunk and the index too. */
  __atomic_store_n(&t->count, index + 1, __ATOMIC_RELEASE);
  return s;
}

struct slot *oci_devslots_take(struct slots *t) {
  pthread_mutex_lock(&t->lock);
  struct slot *s = t->free;
  if (s) t->free = s->next_free;
  else s = make_record(t);
  pthread_mutex_unlock(&t->lock);
  return s;
}

static uint64_t handle_of(const struct slots *t, const struct slot *s, uint32_t gen) {
  return (t->recycle ? 0 : (uint64_t)gen << GEN_SHIFT) | (uint64_t)s->index << INDEX_SHIFT | t->tag;
}

uint64_t oci_devslots_publish(struct slots *t, struct slot *s) {
  /* Release: who finds the handle good sees the record filled in. */
  uint32_t gen = __atomic_add_fetch(&s->gen, 1, __ATOMIC_RELEASE);
  __atomic_add_fetch(&t->live, 1, __ATOMIC_RELAXED);
  return handle_of(t, s, gen);
}

void oci_devslots_drop(struct slots *t, struct slot *s) {
  if (s->gen & 1) {
    __atomic_add_fetch(&s->gen, 1, __ATOMIC_ACQ_REL);
    __atomic_sub_fetch(&t->live, 1, __ATOMIC_RELAXED);
  }
  pthread_mutex_lock(&t->lock);
  s->next_free = t->free;
  t->free = s;
  pthread_mutex_unlock(&t->lock);
}

struct slot *oci_devslots_find(const struct slots *t, uint64_t handle) {
  uint64_t index = handle >> INDEX_SHIFT & INDEX_MAX;
  if ((handle & 15) != t->tag || index == 0) return NULL;
  return index < __atomic_load_n(&t->count, __ATOMIC_ACQUIRE) ? oci_devslots_at(t, (uint32_t)index) : NULL;
}

bool oci_devslot_is(const struct slots *t, const struct slot *s, uint64_t handle) {
  uint32_t gen = __atomic_load_n(&s->gen, __ATOMIC_ACQUIRE);
  return (gen & 1) && handle == handle_of(t, s, gen);
}

bool oci_devslot_was(const struct slot *s, uint64_t handle) {
  uint64_t gen = handle >> GEN_SHIFT;
  return (gen & 1) && gen < __atomic_load_n(&s->gen, __ATOMIC_ACQUIRE);
}

uint32_t oci_devslots_live(const struct slots *t) {
  return __atomic_load_n(&t->live, __ATOMIC_RELAXED);
}
