/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/map.h"

#include "rcu/mem.h"

#define FIRST_LINES 2u
#define SPARSE_SLOTS 32768u

_Static_assert(sizeof(struct map_line) + sizeof(struct map_rest) + sizeof(uint8_t) == LINE_BYTES, "two cache lines for four slots, and a byte");

static size_t table_bytes(size_t lines) {
  return sizeof(struct map_table) + lines * LINE_BYTES;
}

static size_t slots(const struct map_table *t) {
  return t->lines * LINE_SLOTS;
}

/* A sparse table spills fewer keys, but only as long as its lines fit the caches: get_ptr of 20,000 keys takes 5.7 ns
   in a table of 64 Ki slots, 7.3 in half of it; of 300,000, 27 ns in 1 Mi slots, 15 in half of it. By live keys, so that
   ever-new ones still get three quarters of a table (G30). */
static bool is_full(const struct map_table *t, size_t live) {
  return t->used + 1 > slots(t) / 4 * 3 || (slots(t) <= SPARSE_SLOTS && live + 1 > slots(t) / 2);
}

static struct map_table *table_new(struct heap *h, size_t lines) {
  struct map_table *t = oci_alloc(h, table_bytes(lines));
  if (!t) return NULL;
  t->lines = lines;
  t->shift = 64u - (uint32_t)__builtin_ctzll(lines);
  return t;
}

/* The slot that has the key, or the empty one where it goes: the first on its way. */
static struct map_slot slot_for(struct map_table *t, uint64_t key) {
  for (size_t n = oci_map_home(t, key);; n = (n + 1) & (t->lines - 1)) {
    unsigned bits = oci_line_match(&t->line[n], key);
    if (!bits) bits = oci_line_match(&t->line[n], 0);
    if (bits) return (struct map_slot){&t->line[n], oci_map_rest(t, n), (unsigned)__builtin_ctz(bits)};
  }
}

uint64_t oci_map_far(const struct map *m, uint64_t key) {
  const struct map_table *t = __atomic_load_n(&m->values, __ATOMIC_ACQUIRE);
  if (!t) return 0;
  for (size_t n = oci_map_home(t, key);; n = (n + 1) & (t->lines - 1)) {
    uint64_t value = oci_line_value(&t->line[n], key);
    /* A dropped key goes on looking, and finds nothing. */
    if (value || oci_line_match(&t->line[n], 0)) return value;
  }
}

/* Whether its entry is without the flag. Readers of other slots of the line may look meanwhile. */
static void mark(struct map_table *t, const struct map_slot *s, uint64_t entry) {
  uint8_t *plain = oci_map_plain(t, (size_t)(s->line - t->line)), bit = (uint8_t)(1u << s->i);
  __atomic_store_n(plain, (uint8_t)(entry & MAP_FLAG ? *plain & ~bit : *plain | bit), __ATOMIC_RELEASE);
}

static void write_slot(struct map_table *t, uint64_t key, uint64_t v0, uint64_t v1, uint64_t entry) {
  struct map_slot s = slot_for(t, key);
  mark(t, &s, entry);   /* before the value: see oci_map_near_plain */
  /* release: a reader that sees one of these values sees the drop before it too (see oci_map_get) */
  __atomic_store_n(&s.line->v0[s.i], v0, __ATOMIC_RELEASE);
  __atomic_store_n(&s.rest->v1[s.i], v1, __ATOMIC_RELEASE);
  __atomic_store_n(&s.rest->entry[s.i], entry, __ATOMIC_RELEASE);
  if (s.line->key[s.i] == 0) {
    t->used++;
    __atomic_store_n(&s.line->key[s.i], key, __ATOMIC_RELEASE);
  }
}

static void each_slot(struct map_table *t, void (*each)(void *arg, uint64_t key, const struct map_hit *hit), void *arg) {
  for (size_t n = 0; n < t->lines; n++) {
    const struct map_line *l = &t->line[n];
    const struct map_rest *r = oci_map_rest(t, n);
    for (unsigned i = 0; i < LINE_SLOTS; i++) {
      struct map_hit hit = {.v0 = l->v0[i], .v1 = r->v1[i], .entry = r->entry[i]};
      if (hit.entry) each(arg, l->key[i], &hit);
    }
  }
}

static void copy_one(void *to, uint64_t key, const struct map_hit *hit) {
  write_slot(to, key, hit->v0, hit->v1, hit->entry);
}

/* Mostly dropped keys: the same size is enough. Then the table takes at least five eighths of its slots in new keys
   before the next: 52 bytes a key, 64 where the heap rounds a table up by a quarter (G30). */
static size_t next_lines(const struct map *m) {
  if (!m->table) return FIRST_LINES;
  return m->live >= slots(m->table) / 8 ? m->table->lines * 2 : m->table->lines;
}

bool oci_map_reserve(struct map *m) {
  if (m->table && !is_full(m->table, m->live)) return true;
  struct map_table *t = table_new(m->heap, next_lines(m));
  if (!t) return false;
  if (m->table) each_slot(m->table, copy_one, t);
  t->older = m->table;
  __atomic_store_n(&m->table, t, __ATOMIC_RELEASE);
  if (m->valued) __atomic_store_n(&m->values, t, __ATOMIC_RELEASE);
  return true;
}

void oci_map_put(struct map *m, uint64_t key, uint64_t v0, uint64_t v1, uint64_t entry) {
  write_slot(m->table, key, v0, v1, entry);
  __atomic_store_n(&m->live, m->live + 1, __ATOMIC_RELAXED);
}

/* The slot of a key that is there, for the writer; .line NULL: it is not. */
static struct map_slot live_slot(struct map *m, uint64_t key) {
  struct map_slot none = {NULL, NULL, 0};
  if (!m->table) return none;
  struct map_slot s = oci_map_slot(m->table, key);
  return s.line && s.rest->entry[s.i] ? s : none;
}

uint64_t oci_map_drop(struct map *m, uint64_t key) {
  struct map_slot s = live_slot(m, key);
  if (!s.line) return 0;
  uint64_t e = s.rest->entry[s.i];
  __atomic_store_n(&s.rest->entry[s.i], 0, __ATOMIC_RELEASE);
  /* after the entry: who reads all of the slot and sees this 0 must not see the entry once more */
  __atomic_store_n(&s.line->v0[s.i], 0, __ATOMIC_RELEASE);
  __atomic_store_n(&m->live, m->live - 1, __ATOMIC_RELAXED);
  return e;
}

void oci_map_set_entry(struct map *m, uint64_t key, uint64_t entry) {
  struct map_slot s = live_slot(m, key);
  if (!s.line) return;
  __atomic_store_n(&s.rest->entry[s.i], entry, __ATOMIC_RELEASE);
  mark(m->table, &s, entry);
}

void oci_map_set_value(struct map *m, uint64_t key, uint64_t v0) {
  struct map_slot s = live_slot(m, key);
  if (s.line) __atomic_store_n(&s.line->v0[s.i], v0, __ATOMIC_RELEASE);
}

void oci_map_each(struct map *m, void (*each)(void *arg, uint64_t key, const struct map_hit *hit), void *arg) {
  if (m->table) each_slot(m->table, each, arg);
}

void oci_map_free(struct map *m) {
  for (struct map_table *t = m->table, *older; t; t = older) {
    older = t->older;
    oci_free(m->heap, t, table_bytes(t->lines));
  }
  m->table = m->values = NULL;
}

size_t oci_map_bytes(const struct map *m) {
  size_t sum = 0;
  for (const struct map_table *t = m->table; t; t = t->older) sum += table_bytes(t->lines);
  return sum;
}
