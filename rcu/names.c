/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/names.h"

#include "rcu/mem.h"

static size_t text_bytes(size_t a, size_t b) {
  return a + b + 2;
}

static struct name *make(struct heap *h, const struct lookup *k, size_t bytes) {
  struct name *n = oci_alloc(h, bytes);
  if (!n) return NULL;
  n->text = oci_alloc(h, text_bytes(k->a_bytes, k->b_bytes));
  if (!n->text) {
    oci_free(h, n, bytes);
    return NULL;
  }
  memcpy(n->text, k->a, k->a_bytes);
  memcpy(n->text + k->a_bytes + 1, k->b, k->b_bytes);
  n->a_bytes = (uint32_t)k->a_bytes;
  n->b_bytes = (uint32_t)k->b_bytes;
  n->hash = k->hash;
  return n;
}

struct name *oci_names_add(struct map *m, const struct lookup *k, size_t bytes) {
  if (k->a_bytes >= UINT32_MAX || k->b_bytes >= UINT32_MAX || !oci_map_reserve(m)) return NULL;
  struct name *n = make(m->heap, k, bytes);
  if (!n) return NULL;
  struct map_hit hit;
  if (oci_map_get(m, k->hash, &hit)) {
    n->same_hash = oci_map_entry(hit.entry);
    oci_map_set_entry(m, k->hash, (uint64_t)(uintptr_t)n);
  } else {
    oci_map_put(m, k->hash, 0, 0, (uint64_t)(uintptr_t)n);
  }
  return n;
}

struct each_call {
  void (*each)(void *arg, struct name *n);
  void *arg;
};

static void each_chain(void *arg, uint64_t key, const struct map_hit *hit) {
  (void)key;
  const struct each_call *call = arg;
  for (struct name *n = oci_map_entry(hit->entry), *next; n; n = next) {
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
  oci_free(call->heap, n->text, text_bytes(n->a_bytes, n->b_bytes));
  oci_free(call->heap, n, call->bytes);
}

void oci_names_free(struct map *m, size_t bytes, void (*drop)(void *arg, struct name *n), void *arg) {
  struct free_call call = {m->heap, bytes, drop, arg};
  oci_names_each(m, free_one, &call);
  oci_map_free(m);
}
