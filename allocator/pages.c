/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/pages.h"

#define LEAF_CHUNK 64u
#define LEAF_CHUNK_BYTES (LEAF_CHUNK * sizeof(struct leaf))

/* ---- leaves ---- */

void oci_leaves_init(struct leaves *l, struct meta *meta) {
  *l = (struct leaves){.meta = meta, .fresh = 1};
}

void oci_leaves_fini(struct leaves *l) {
  for (uint32_t i = 0; i < l->count; i++) meta_free(l->meta, l->chunks[i], LEAF_CHUNK_BYTES);
  meta_free(l->meta, l->chunks, l->capacity * sizeof *l->chunks);
  oci_leaves_init(l, l->meta);
}

static struct leaf *leaf_at(const struct leaves *l, uint32_t entry) {
  uint32_t index = entry & ~PAGE_LEAF;
  return &l->chunks[index / LEAF_CHUNK][index % LEAF_CHUNK];
}

static bool more_leaf_chunks(struct leaves *l) {
  if (l->count == l->capacity) {
    uint32_t capacity = l->capacity ? l->capacity * 2 : 16;
    void *grown = meta_grow(l->meta, l->chunks, l->capacity * sizeof *l->chunks, capacity * sizeof *l->chunks);
    if (!grown) return false;
    l->chunks = grown;
    l->capacity = capacity;
  }
  struct leaf *chunk = meta_alloc(l->meta, LEAF_CHUNK_BYTES);
  if (!chunk) return false;
  l->chunks[l->count++] = chunk;
  return true;
}

/* 0 without memory; empty. */
static uint32_t leaf_take(struct leaves *l) {
  uint32_t index = l->unused;
  if (index) {
    l->unused = leaf_at(l, index)->first[0];
    leaf_at(l, index)->first[0] = 0;
    return index;
  }
  if (l->fresh >= l->count * LEAF_CHUNK && !more_leaf_chunks(l)) return 0;
  return l->fresh++;
}

/* It is empty. */
static void leaf_give(struct leaves *l, uint32_t entry) {
  leaf_at(l, entry)->first[0] = l->unused;
  l->unused = entry & ~PAGE_LEAF;
}

/* ---- helpers with a verb ---- */

static uint32_t page_of(uint32_t off) { return off >> PAGE_SHIFT; }
static uint32_t part_of(uint32_t off) { return off >> LEAF_SHIFT; }
static uint32_t part_in_page(uint32_t off) { return part_of(off) % LEAF_PARTS; }
static bool is_leaf(uint32_t entry) { return entry & PAGE_LEAF; }
static uint32_t highest32(uint32_t word) { return 31u - (uint32_t)__builtin_clz(word); }
static uint32_t highest64(uint64_t word) { return 63u - (uint32_t)__builtin_clzll(word); }

static uint64_t bits_below(uint32_t bit) { return (UINT64_C(1) << bit) - 1; }

/* The last marked page before `page`. There is one: an arena's first block starts in page 0. */
static uint32_t page_before(const struct pages *p, uint32_t page) {
  uint32_t word = page / 64;
  uint64_t bits = p->map[word] & bits_below(page % 64);
  if (bits) return word * 64 + highest64(bits);
  uint32_t group = word / 64;
  bits = p->summary[group] & bits_below(word % 64);
  while (!bits) bits = p->summary[--group];
  word = group * 64 + highest64(bits);
  return word * 64 + highest64(p->map[word]);
}

/* ---- life ---- */

static size_t words_for(size_t bits) { return (bits + 63) / 64; }

bool oci_pages_init(struct pages *p, struct meta *meta, uint32_t units) {
  uint32_t count = (uint32_t)(((uint64_t)units + (1u << PAGE_SHIFT) - 1) >> PAGE_SHIFT);
  size_t words = words_for(count);
  *p = (struct pages){.count = count};
  p->entry = meta_alloc(meta, count * sizeof *p->entry);
  p->map = meta_alloc(meta, words * sizeof *p->map);
  p->summary = meta_alloc(meta, words_for(words) * sizeof *p->summary);
  if (p->entry && p->map && p->summary) return true;
  oci_pages_fini(p, meta);
  return false;
}

void oci_pages_fini(struct pages *p, struct meta *meta) {
  size_t words = words_for(p->count);
  meta_free(meta, p->entry, p->count * sizeof *p->entry);
  meta_free(meta, p->map, words * sizeof *p->map);
  meta_free(meta, p->summary, words_for(words) * sizeof *p->summary);
  *p = (struct pages){0};
}

/* ---- starts come and go ---- */

static void leaf_add(struct leaf *leaf, const struct slab *s, uint32_t index) {
  const struct block *b = slab_at(s, index);
  if (starts_with(s, b->prev, b, LEAF_SHIFT)) return;
  leaf->first[part_in_page(b->off)] = index;
  leaf->mask |= 1u << part_in_page(b->off);
}

void oci_pages_add_leaf(struct pages *p, struct leaves *l, const struct slab *s, uint32_t index) {
  leaf_add(leaf_at(l, p->entry[page_of(slab_at(s, index)->off)]), s, index);
}

/* False: nothing starts in the page any more. */
static bool leaf_remove(struct leaf *leaf, const struct slab *s, uint32_t index) {
  const struct block *b = slab_at(s, index);
  uint32_t part = part_in_page(b->off);
  if (leaf->first[part] != index) return true;
  leaf->first[part] = starts_with(s, b->next, b, LEAF_SHIFT) ? b->next : 0;
  if (!leaf->first[part]) leaf->mask &= ~(1u << part);
  return leaf->mask != 0;
}

void oci_pages_remove_leaf(struct pages *p, struct leaves *l, const struct slab *s, uint32_t index) {
  uint32_t page = page_of(slab_at(s, index)->off), entry = p->entry[page];
  if (leaf_remove(leaf_at(l, entry), s, index)) return;
  leaf_give(l, entry);
  p->entry[page] = 0;
  pages_unmark(p, page, true);
}

/* ---- finding ---- */

static void add_leaf(struct pages *p, struct leaves *l, const struct slab *s, uint32_t page) {
  uint32_t leaf = leaf_take(l), index = p->entry[page];
  if (!leaf) return;
  for (; index && page_of(slab_at(s, index)->off) == page; index = slab_at(s, index)->next)
    leaf_add(leaf_at(l, leaf), s, index);
  p->entry[page] = leaf | PAGE_LEAF;
}

/* The last part's first start at or before off; 0 if the leaf has none. */
static uint32_t leaf_find(const struct leaf *leaf, const struct slab *s, uint32_t off) {
  uint32_t part = part_in_page(off), before = leaf->mask & ((1u << part) - 1);
  uint32_t index = leaf->first[part];
  if (index && slab_at(s, index)->off <= off) return index;
  return before ? leaf->first[highest32(before)] : 0;
}

/* A block that starts in the page at or before off; 0 if none does. */
static uint32_t page_find(const struct pages *p, const struct leaves *l, const struct slab *s, uint32_t off) {
  uint32_t entry = p->entry[page_of(off)];
  if (is_leaf(entry)) return leaf_find(leaf_at(l, entry), s, off);
  return entry && slab_at(s, entry)->off <= off ? entry : 0;
}

static uint32_t page_start(const struct pages *p, const struct leaves *l, uint32_t page) {
  uint32_t entry = p->entry[page];
  return is_leaf(entry) ? leaf_at(l, entry)->first[highest32(leaf_at(l, entry)->mask)] : entry;
}

uint32_t oci_pages_search(struct pages *p, struct leaves *l, const struct slab *s, uint32_t off) {
  uint32_t steps = 0, index = page_find(p, l, s, off);
  if (!index) index = page_start(p, l, page_before(p, page_of(off)));
  uint32_t page = page_of(slab_at(s, index)->off);
  for (;; steps++) {
    const struct block *b = slab_at(s, index);
    if (off - b->off < b->units) break;
    index = b->next;
  }
  if (steps >= PAGE_CROWDED) add_leaf(p, l, s, page);
  return index;
}

/* ---- checking ---- */

static bool check_leaf(const struct leaf *leaf, const struct slab *s, uint32_t *index, uint32_t page) {
  uint32_t seen = 0;
  for (; *index && page_of(slab_at(s, *index)->off) == page; *index = slab_at(s, *index)->next) {
    uint32_t part = part_in_page(slab_at(s, *index)->off);
    if (!(seen >> part & 1) && leaf->first[part] != *index) return false;
    seen |= 1u << part;
  }
  for (uint32_t part = 0; part < LEAF_PARTS; part++)
    if (!(seen >> part & 1) && leaf->first[part]) return false;
  return seen == leaf->mask && seen;
}

static bool check_page(const struct pages *p, const struct leaves *l, const struct slab *s, uint32_t *index,
                       uint32_t page) {
  uint32_t entry = p->entry[page];
  bool marked = p->map[page / 64] >> (page % 64) & 1;
  bool word_marked = p->summary[page / 4096] >> (page / 64 % 64) & 1;
  if (marked != (entry != 0) || word_marked != (p->map[page / 64] != 0)) return false;
  if (is_leaf(entry)) return check_leaf(leaf_at(l, entry), s, index, page);
  bool starts = *index && page_of(slab_at(s, *index)->off) == page;
  if (entry != (starts ? *index : 0)) return false;
  while (*index && page_of(slab_at(s, *index)->off) == page) *index = slab_at(s, *index)->next;
  return true;
}

bool oci_pages_check(const struct pages *p, const struct leaves *l, const struct slab *s, uint32_t first) {
  for (uint32_t page = 0; page < p->count; page++)
    if (!check_page(p, l, s, &first, page)) return false;
  return first == 0;
}
