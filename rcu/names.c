/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/names.h"

#include "rcu/mem.h"

static size_t text_bytes(size_t a, size_t b) {
  return a + b + 2;
}

uint64_t oci_hash_text(const struct lookup *k) {
  return oci_hash_bytes(k->b, k->b_bytes, oci_hash_bytes(k->a, k->a_bytes, 0));
}

bool oci_same_text(const struct name *n, const struct lookup *k) {
  return memcmp(n->text, k->a, k->a_bytes) == 0 && memcmp(n->text + n->a_bytes + 1, k->b, k->b_bytes) == 0;
}

/* Record and text in one piece: a hit reads both. */
static struct name *make(struct heap *h, const struct lookup *k, size_t bytes) {
  struct name *n = oci_alloc(h, bytes + text_bytes(k->a_bytes, k->b_bytes));
  if (!n) return NULL;
  n->text = (char *)n + bytes;
  memcpy(n->text, k->a, k->a_bytes);
  memcpy(n->text + k->a_bytes + 1, k->b, k->b_bytes);
  n->a_bytes = (uint32_t)k->a_bytes;
  n->b_bytes = (uint32_t)k->b_bytes;
  n->words = k->words;
  return n;
}

static struct name *first(uint64_t value) {
  return (struct name *)(uintptr_t)value;
}

struct name *oci_names_add(struct map *m, const struct lookup *k, size_t bytes) {
  oci_map_of_values(m);
  if (k->a_bytes >= UINT32_MAX || k->b_bytes >= UINT32_MAX || !oci_map_reserve(m)) return NULL;
  struct name *n = make(m->heap, k, bytes);
  if (!n) return NULL;
  uint64_t value = (uint64_t)(uintptr_t)n;
  n->same_hash = first(oci_map_value(m, k->hash));
  if (n->same_hash) oci_map_set_value(m, k->hash, value);
  else oci_map_put(m, k->hash, value, 0, value);
  return n;
}

struct each_call {
  void (*each)(void *arg, struct name *n);
  void *arg;
};

static void each_chain(void *arg, uint64_t key, const struct map_hit *hit) {
  (void)key;
  const struct each_call *call = arg;
  for (struct name *n = first(hit->v0), *next; n; n = next) {
    next = n->same_hash;
    call->each(call->arg, n);
  }
}

void oci_names_each(struct map *m, void (*each)(void *arg, struct name *n), void *arg) {
  struct each_call call = {each, arg};
  oci_map_each(m, each_chain, &call);
}

struct free_call {
  struct heap *heap;
  size_t bytes;
  void (*drop)(void *arg, struct name *n);
  void *arg;
};

static void free_one(void *arg, struct name *n) {
  const struct free_call *call = arg;
  if (call->drop) call->drop(call->arg, n);
  oci_free(call->heap, n, call->bytes + text_bytes(n->a_bytes, n->b_bytes));
}

void oci_names_free(struct map *m, size_t bytes, void (*drop)(void *arg, struct name *n), void *arg) {
  struct free_call call = {m->heap, bytes, drop, arg};
  oci_names_each(m, free_one, &call);
  oci_map_free(m);
}
