/* SPDX-License-Identifier: MIT */
/*
 * The ledger: who has how much, by call site and owner.
 *
 * name:   a file, function or owner, interned by content: callers' strings may dangle later. 0 is none.
 * tag:    one (site, owner); numbered from 0 in order of appearance, never removed.
 * ledger: a pool's tags and their counters. Owned by the pool, used under its lock.
 *
 * Sums over the tags that are not external: live_blocks and live_bytes of LIVE blocks; retired_bytes of PENDING,
 * HELD, RETIRED and LOST ones. Bytes are those of blocks, padding included.
 */
#ifndef OCI_ALLOCATOR_LEDGER_H
#define OCI_ALLOCATOR_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "allocator/meta.h"
#include "allocator/pool.h"

struct ledger_tag {
  uint64_t live_blocks, live_bytes, retired_bytes, peak_bytes;
  uint32_t file, func, owner, line;
  bool external;
};

struct ledger_name {
  char *text;
  size_t bytes;
  uint64_t hash;
};

/* Open addressing over indices of an array; 0 is empty, else the index + 1. At most half full. */
struct ledger_index {
  uint32_t *slot;
  uint32_t mask;                 /* slots - 1 */
};

/* What a caller's pointers meant last time. Believed only after the contents were compared: after a dlclose
   another library's site may have come to the same address. */
struct tag_hint {
  const void *site;
  const char *owner;                             /* the caller's pointer */
  const char *file_text, *func_text, *owner_text; /* interned */
  uint32_t line, tag;
  bool known, external;
  char pad[14];                                  /* to 64 bytes */
};
#define TAG_HINTS 64u

struct ledger {
  struct meta *meta;
  struct ledger_tag *tags;
  struct ledger_name *names;
  uint32_t tag_count, tag_capacity, name_count, name_capacity;
  struct ledger_index by_tag, by_name;
  struct tag_hint hints[TAG_HINTS];
};

void oci_ledger_init(struct ledger *l, struct meta *meta);
void oci_ledger_fini(struct ledger *l);
/* The tag for that site and owner (each may be NULL), new if it was not there. False without host memory. */
bool oci_ledger_intern(struct ledger *l, const struct pool_site *site, const char *owner, bool external,
                       uint32_t *tag);
/* The tag of the same site with another owner. */
bool oci_ledger_retag(struct ledger *l, uint32_t tag, const char *owner, uint32_t *out);
/* All blocks are gone at once (their arenas went); peaks and externals stay. */
void oci_ledger_clear(struct ledger *l);
void oci_ledger_row(const struct ledger *l, uint32_t tag, struct ledger_row *out);

static inline struct tag_hint *ledger_hint(struct ledger *l, const struct pool_site *site, const char *owner) {
  uint64_t h = (uint64_t)(uintptr_t)site / 8 + (uint64_t)(uintptr_t)owner * 31;
  return &l->hints[(h ^ h >> 6) % TAG_HINTS];
}

static inline bool same_text(const char *interned, const char *text) {
  return interned && text ? !strcmp(interned, text) : interned == text;
}

static inline bool still_means(const struct tag_hint *h, const struct pool_site *site, const char *owner) {
  if (owner && strcmp(h->owner_text, owner) != 0) return false;
  if (!site) return true;
  return h->line == site->line && same_text(h->file_text, site->file) && same_text(h->func_text, site->func);
}

/* As oci_ledger_intern; a few nanoseconds for a site and owner that came by lately. */
static inline bool ledger_tag(struct ledger *l, const struct pool_site *site, const char *owner, bool external,
                              uint32_t *tag) {
  const struct tag_hint *h = ledger_hint(l, site, owner);
  bool same = h->site == site && h->owner == owner && h->known && h->external == external;
  if (!same || !still_means(h, site, owner)) return oci_ledger_intern(l, site, owner, external, tag);
  *tag = h->tag;
  return true;
}

static inline void ledger_live(struct ledger *l, uint32_t tag, uint64_t bytes) {
  struct ledger_tag *t = &l->tags[tag];
  t->live_blocks++;
  t->live_bytes += bytes;
  if (t->live_bytes > t->peak_bytes) t->peak_bytes = t->live_bytes;
}

static inline void ledger_gone(struct ledger *l, uint32_t tag, uint64_t bytes) {
  l->tags[tag].live_blocks--;
  l->tags[tag].live_bytes -= bytes;
}

static inline void ledger_retired(struct ledger *l, uint32_t tag, uint64_t bytes) {
  l->tags[tag].retired_bytes += bytes;
}

static inline void ledger_unretired(struct ledger *l, uint32_t tag, uint64_t bytes) {
  l->tags[tag].retired_bytes -= bytes;
}

#endif
