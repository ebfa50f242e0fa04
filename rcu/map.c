/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/map.h"

#include "rcu/mem.h"

#define FIRST_SLOTS 8u

static size_t table_bytes(size_t slots) {
  return sizeof(struct map_table) + slots * sizeof(struct map_slot);
}

static bool is_full(const struct map_table *t) {
  return t->used + 1 > t->slots / 4 * 3;
}

static struct map_table *table_new(struct heap *h, size_t slots) {
  struct map_table *t = oci_alloc(h, table_bytes(slots));
  if (!t) return NULL;
  t->slots = slots;
  t->shift = 64u - (uint32_t)__builtin_ctzll(slots);
  return t;
}

/* The slot that has the key, or the empty one where it goes. */
static struct map_slot *slot_for(struct map_table *t, uint64_t key) {
  size_t mask = t->slots - 1;
  size_t i = (size_t)(oci_hash_u64(key) >> t->shift);
  while (t->slot[i].key != 0 && t->slot[i].key != key) i = (i + 1) & mask;
  return &t->slot[i];
}

static void write_slot(struct map_table *t, uint64_t key, uint64_t v0, uint64_t v1, uint64_t entry) {
  struct map_slot *s = slot_for(t, key);
  /* release: a reader that sees one of these values sees the drop before it too (see oci_map_get) */
  __atomic_store_n(&s->v0, v0, __ATOMIC_RELEASE);
  __atomic_store_n(&s->v1, v1, __ATOMIC_RELEASE);
  __atomic_store_n(&s->entry, entry, __ATOMIC_RELEASE);
  if (s->key == 0) {
    t->used++;
    __atomic_store_n(&s->key, key, __ATOMIC_RELEASE);
  }
}

static void copy_live(struct map_table *to, const struct map_table *from) {
  for (size_t i = 0; i < from->slots; i++) {
    const struct map_slot *s = &from->slot[i];
    if (s->entry) write_slot(to, s->key, s->v0, s->v1, s->entry);
  }
}

/* Mostly dropped keys: the same size is enough. Then the table takes at least five eighths of its slots in new keys
   before the next: 52 bytes a key, 64 where the heap rounds a table up by a quarter (G30). */
static size_t next_slots(const struct map *m) {
  if (!m->table) return FIRST_SLOTS;
  return m->live >= m->table->slots / 8 ? m->table->slots * 2 : m->table->slots;
}

bool oci_map_reserve(struct map *m) {
  if (m->table && !is_full(m->table)) return true;
  struct map_table *t = table_new(m->heap, next_slots(m));
  if (!t) return false;
  if (m->table) copy_live(t, m->table);
  t->older = m->table;
  __atomic_store_n(&m->table, t, __ATOMIC_RELEASE);
  return true;
}

void oci_map_put(struct map *m, uint64_t key, uint64_t v0, uint64_t v1, uint64_t entry) {
  write_slot(m->table, key, v0, v1, entry);
  __atomic_store_n(&m->live, m->live + 1, __ATOMIC_RELAXED);
}

uint64_t oci_map_drop(struct map *m, uint64_t key) {
  struct map_slot *s = m->table ? oci_map_slot(m->table, key) : NULL;
  if (!s || !s->entry) return 0;
  uint64_t e = s->entry;
  __atomic_store_n(&s->entry, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&m->live, m->live - 1, __ATOMIC_RELAXED);
  return e;
}

void oci_map_set_entry(struct map *m, uint64_t key, uint64_t entry) {
  struct map_slot *s = m->table ? oci_map_slot(m->table, key) : NULL;
  if (s && s->entry) __atomic_store_n(&s->entry, entry, __ATOMIC_RELEASE);
}

void oci_map_each(struct map *m, void (*each)(void *arg, uint64_t key, const struct map_hit *hit), void *arg) {
  if (!m->table) return;
  for (size_t i = 0; i < m->table->slots; i++) {
    const struct map_slot *s = &m->table->slot[i];
    struct map_hit hit = {.v0 = s->v0, .v1 = s->v1, .entry = s->entry};
    if (hit.entry) each(arg, s->key, &hit);
  }
}

void oci_map_free(struct map *m) {
  for (struct map_table *t = m->table, *older; t; t = older) {
    older = t->older;
    oci_free(m->heap, t, table_bytes(t->slots));
  }
  m->table = NULL;
}

size_t oci_map_bytes(const struct map *m) {
  size_t sum = 0;
  for (const struct map_table *t = m->table; t; t = t->older) sum += table_bytes(t->slots);
  return sum;
}
