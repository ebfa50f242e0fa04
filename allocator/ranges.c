/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/ranges.h"

void oci_ranges_init(struct ranges *r, struct meta *meta) {
  *r = (struct ranges){.meta = meta};
}

void oci_ranges_fini(struct ranges *r) {
  for (uint32_t i = 0; i < r->count; i++) meta_free(r->meta, r->chunks[i], sizeof **r->chunks);
  meta_free(r->meta, r->chunks, r->capacity * sizeof *r->chunks);
  oci_ranges_init(r, r->meta);
}

/* How many chunks start at or before addr. */
static uint32_t chunks_to(const struct ranges *r, uint64_t addr) {
  uint32_t low = 0, high = r->count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (r->chunks[middle]->at[0].from <= addr)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* How many ranges of the chunk start at or before addr. */
static uint32_t ranges_to(const struct range_chunk *c, uint64_t addr) {
  uint32_t low = 0, high = c->count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (c->at[middle].from <= addr)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct range *oci_ranges_find(const struct ranges *r, uint64_t addr) {
  uint32_t chunk = chunks_to(r, addr);
  if (!chunk) return NULL;
  struct range_chunk *c = r->chunks[chunk - 1];
  struct range *last = &c->at[ranges_to(c, addr) - 1];
  return addr - last->from < last->bytes ? last : NULL;
}

struct range *oci_ranges_overlap(const struct ranges *r, uint64_t from, uint64_t bytes) {
  struct range *inside = oci_ranges_find(r, from);
  if (inside) return inside;
  uint32_t chunk = chunks_to(r, from), place = 0;
  if (chunk) {
    place = ranges_to(r->chunks[chunk - 1], from);
    if (place < r->chunks[chunk - 1]->count) chunk--;
    else place = 0;
  }
  if (chunk >= r->count) return NULL;
  struct range *next = &r->chunks[chunk]->at[place];
  return next->from - from < bytes ? next : NULL;
}

/* An empty chunk at that place of the array. */
static struct range_chunk *add_chunk(struct ranges *r, uint32_t place) {
  if (r->count == r->capacity) {
    uint32_t capacity = r->capacity ? r->capacity * 2 : 8;
    void *grown = meta_grow(r->meta, r->chunks, r->capacity * sizeof *r->chunks, capacity * sizeof *r->chunks);
    if (!grown) return NULL;
    r->chunks = grown;
    r->capacity = capacity;
  }
  struct range_chunk *c = meta_alloc(r->meta, sizeof *c);
  if (!c) return NULL;
  memmove(&r->chunks[place + 1], &r->chunks[place], (r->count - place) * sizeof *r->chunks);
  r->chunks[place] = c;
  r->count++;
  return c;
}

/* The upper part of a full chunk moves to a new one after it; all of none, where the next range comes at the
   end: ascending addresses fill chunks. */
static bool split(struct ranges *r, uint32_t place, uint32_t keep) {
  struct range_chunk *full = r->chunks[place], *upper = add_chunk(r, place + 1);
  if (!upper) return false;
  upper->count = full->count - keep;
  memcpy(upper->at, &full->at[keep], upper->count * sizeof *upper->at);
  full->count = keep;
  return true;
}

static void insert(struct range_chunk *c, uint32_t place, const struct range *range) {
  memmove(&c->at[place + 1], &c->at[place], (c->count - place) * sizeof *c->at);
  c->at[place] = *range;
  c->count++;
}

bool oci_ranges_add(struct ranges *r, const struct range *range) {
  uint32_t chunk = chunks_to(r, range->from);
  if (chunk) chunk--;
  if (!r->count && !add_chunk(r, 0)) return false;
  struct range_chunk *c = r->chunks[chunk];
  uint32_t place = ranges_to(c, range->from);
  if (c->count == RANGES_IN_CHUNK) {
    uint32_t keep = place == RANGES_IN_CHUNK ? RANGES_IN_CHUNK - 1 : RANGES_IN_CHUNK / 2;
    if (!split(r, chunk, keep)) return false;
    if (place > keep) {
      c = r->chunks[chunk + 1];
      place -= keep;
    }
  }
  insert(c, place, range);
  return true;
}

void oci_ranges_remove(struct ranges *r, const struct range *range) {
  uint32_t chunk = chunks_to(r, range->from) - 1;
  struct range_chunk *c = r->chunks[chunk];
  uint32_t place = (uint32_t)(range - c->at);
  c->count--;
  memmove(&c->at[place], &c->at[place + 1], (c->count - place) * sizeof *c->at);
  if (c->count) return;
  meta_free(r->meta, c, sizeof *c);
  r->count--;
  memmove(&r->chunks[chunk], &r->chunks[chunk + 1], (r->count - chunk) * sizeof *r->chunks);
}

bool oci_ranges_check(const struct ranges *r) {
  uint64_t end = 0;
  for (uint32_t i = 0; i < r->count; i++) {
    const struct range_chunk *c = r->chunks[i];
    if (!c->count || c->count > RANGES_IN_CHUNK) return false;
    for (uint32_t j = 0; j < c->count; j++) {
      if (c->at[j].from < end || !c->at[j].bytes) return false;
      end = c->at[j].from + c->at[j].bytes;
    }
  }
  return true;
}
