/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tests/fuzz/plain.h"

#include <string.h>

bool plain_is_pair(oc_kind kind) { return kind == OC_ROWWISE_FP8 || kind == OC_CUTLASS_NVFP4_FROM_FP8; }

/* ---- blocks ---- */

static bool inside(const struct block *b, uint64_t addr) { return addr >= b->start && addr - b->start < b->bytes; }

struct block *plain_at(struct plain *p, uint64_t addr) {
  for (int i = 0; i < BLOCKS; i++)
    if (p->block[i].state == LIVE && inside(&p->block[i], addr)) return &p->block[i];
  return NULL;
}

bool plain_room(const struct plain *p, unsigned blocks) {
  for (int i = 0; i < BLOCKS; i++) blocks -= blocks && p->block[i].state == FREE;
  return !blocks;
}

int plain_add(struct plain *p, uint64_t start, uint64_t bytes, enum class class, int build) {
  struct block b = {.state = LIVE, .class = class, .start = start, .bytes = (bytes + 255) / 256 * 256, .build = build};
  for (int i = 0; i < BLOCKS; i++)   /* its memory was there: no longer retired */
    if (p->block[i].state == MAYBE && p->block[i].start < start + b.bytes && start < p->block[i].start + p->block[i].bytes)
      p->block[i].state = FREE;
  for (int i = 0; i < BLOCKS; i++) {
    if (p->block[i].state != FREE) continue;
    p->block[i] = b;
    return i;
  }
  return NOBODY;
}

uint64_t plain_live(const struct plain *p, unsigned *blocks) {
  uint64_t bytes = 0;
  *blocks = 0;
  for (int i = 0; i < BLOCKS; i++) {
    if (p->block[i].state != LIVE) continue;
    bytes += p->block[i].bytes;
    ++*blocks;
  }
  return bytes;
}

void plain_gone(struct plain *p, struct block *b, bool retire, int stream, const struct driver *d) {
  (void)p;
  b->state = retire ? RETIRED : stream == NOBODY ? FREE : PENDING;
  if (b->state != PENDING) return;
  b->stream = (unsigned)stream;
  b->place = d->queued[stream];
}

void plain_graphs_gone(struct plain *p) {
  for (int i = 0; i < BLOCKS; i++) {
    if (p->block[i].state == RETIRED || p->block[i].state == MAYBE) p->block[i].state = FREE;
    p->block[i].captured = false;
  }
  for (int i = 0; i < FOREIGN; i++) {
    if (p->foreign[i].kept) p->foreign[i] = (struct foreign){0};
    p->foreign[i].captured = false;
  }
}

/* ---- entries ---- */

struct entry *plain_entry(struct plain *p, oc_kind kind, uint64_t key) {
  for (int i = 0; i < ENTRIES; i++)
    if (p->entry[i].there && p->entry[i].kind == kind && p->entry[i].key == key) return &p->entry[i];
  return NULL;
}

bool plain_owns(const struct plain *p, const struct entry *e, int half) {
  const struct half *h = &e->half[half];
  return h->foreign >= 0 || (h->block >= 0 && p->block[h->block].class == DERIVED);
}

static int foreign_at(const struct plain *p, uint64_t addr) {
  for (int i = 0; i < FOREIGN; i++)
    if (p->foreign[i].at && p->foreign[i].at == addr) return i;
  return NOBODY;
}

/* Where a value lies, or why it may not be one. Its key, and what lies in its key's block, is nobody's. */
static oc_status judge(struct plain *p, bool (*in_arena)(uint64_t), uint64_t key, uint64_t value, int build, struct half *h) {
  struct block *b = plain_at(p, value);
  *h = (struct half){NOBODY, NOBODY};
  if (!value || value == key) return OC_OK;
  if (!b) {
    h->foreign = foreign_at(p, value);
    return in_arena(value) || h->foreign < 0 || p->foreign[h->foreign].kept ? OC_E_NOT_OWNED : OC_OK;
  }
  if (b == plain_at(p, key)) return OC_OK;
  if (b->class == SCRATCH || (b->class == BUILD && b->build != build)) return OC_E_NOT_OWNED;
  h->block = (int)(b - p->block);
  return OC_OK;
}

bool plain_no_key(struct plain *p, bool (*in_arena)(uint64_t), uint64_t key) {
  const struct block *b = plain_at(p, key);
  return b ? b->class == SCRATCH : in_arena(key);
}

oc_status plain_store(struct plain *p, bool (*in_arena)(uint64_t), oc_kind kind, uint64_t key, const uint64_t v[2],
                      int build) {
  struct half half[2] = {{NOBODY, NOBODY}, {NOBODY, NOBODY}};
  if (plain_entry(p, kind, key)) return OC_EXISTS;
  for (int i = 0; i < 1 + plain_is_pair(kind); i++) {
    oc_status st = judge(p, in_arena, key, v[i], build, &half[i]);
    if (st) return st;
  }
  if (plain_no_key(p, in_arena, key)) return OC_E_NOT_OWNED;
  int i = 0;
  while (p->entry[i].there) i++;
  p->entry[i] = (struct entry){true, false, kind, key, {v[0], plain_is_pair(kind) ? v[1] : 0}, {half[0], half[1]}};
  for (int h = 0; h < 2; h++) {
    struct block *b = half[h].block >= 0 ? &p->block[half[h].block] : NULL;
    if (b && b->class != OWNED) b->class = DERIVED;
  }
  return OC_OK;
}

/* ---- what goes ---- */

static bool same_place(const struct half *a, const struct half *b) {
  return (a->block >= 0 && a->block == b->block) || (a->foreign >= 0 && a->foreign == b->foreign);
}

static bool lives_on(const struct plain *p, const struct half *h) {
  for (int i = 0; i < ENTRIES; i++)
    if (p->entry[i].there && !p->doomed[i] && (same_place(h, &p->entry[i].half[0]) || same_place(h, &p->entry[i].half[1])))
      return true;
  return false;
}

/* Is the key an owned value of something that goes, or in a block that goes? */
static bool derived_of_doomed(struct plain *p, uint64_t key) {
  const struct block *b = plain_at(p, key);
  for (int i = 0; i < ENTRIES; i++)
    for (int h = 0; p->entry[i].there && p->doomed[i] && h < 2; h++) {
      const struct entry *e = &p->entry[i];
      if (!plain_owns(p, e, h)) continue;
      if (e->value[h] == key) return true;
      if (b && e->half[h].block == b - p->block && !lives_on(p, &e->half[h])) return true;
    }
  return false;
}

static bool named(struct plain *p, uint64_t key, const uint64_t *keys, unsigned n, const struct block *freed, bool any) {
  for (unsigned i = 0; i < n; i++)
    if (keys[i] == key) return true;
  return any || (freed && plain_at(p, key) == freed);
}

static bool borrows_from(const struct plain *p, const struct entry *e, const struct block *freed) {
  for (int h = 0; freed && h < 2; h++)
    if (e->half[h].block == freed - p->block && !plain_owns(p, e, h)) return true;
  return false;
}

oc_status plain_doom(struct plain *p, const uint64_t *keys, unsigned n, const struct block *freed, bool any) {
  memset(p->doomed, 0, sizeof p->doomed);
  for (int i = 0; i < ENTRIES; i++)
    p->doomed[i] =
        p->entry[i].there && (named(p, p->entry[i].key, keys, n, freed, any) || borrows_from(p, &p->entry[i], freed));
  for (bool more = true; more;) {
    more = false;
    for (int i = 0; i < ENTRIES; i++)
      if (p->entry[i].there && !p->doomed[i] && derived_of_doomed(p, p->entry[i].key)) p->doomed[i] = more = true;
  }
  for (int i = 0; i < BUILDS; i++)
    if (p->build[i].handle && (named(p, p->build[i].key, keys, n, freed, any) || derived_of_doomed(p, p->build[i].key)))
      return OC_E_REENTRANT;
  return OC_OK;
}

static void bury_half(struct plain *p, struct half h, const struct driver *unsure) {
  struct foreign *f = h.foreign >= 0 ? &p->foreign[h.foreign] : NULL;
  bool stays = f && unsure && driver_holds(unsure, f->at, 1);
  if (f && (f->captured || stays)) *f = (struct foreign){f->at, f->captured, true, stays};
  else if (f) f->at = 0;
  else p->block[h.block].state = p->block[h.block].captured ? RETIRED : unsure ? MAYBE : FREE;
  for (int i = 0; i < ENTRIES; i++)
    for (int k = 0; k < 2; k++)
      if (same_place(&h, &p->entry[i].half[k])) p->entry[i].half[k] = (struct half){NOBODY, NOBODY};
}

void plain_bury(struct plain *p, const struct driver *unsure) {
  for (int i = 0; i < ENTRIES; i++)
    for (int h = 0; p->doomed[i] && h < 2; h++)
      if (plain_owns(p, &p->entry[i], h) && !lives_on(p, &p->entry[i].half[h])) bury_half(p, p->entry[i].half[h], unsure);
  for (int i = 0; i < ENTRIES; i++)
    if (p->doomed[i]) p->entry[i] = (struct entry){0};
}
