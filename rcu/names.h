/* SPDX-License-Identifier: MIT */
/*
 * names: a lock-free memo from a string, or a pair of strings, to a record. Keyed by content: the map holds the
 *        64-bit hash, records of one hash are chained and compared in full, so no collision can hit wrongly.
 *        Owned by what embeds it; one writer at a time (its lock), any number of readers. Records are never
 *        taken out: they live as long as the map.
 */
#ifndef OCI_RCU_NAMES_H
#define OCI_RCU_NAMES_H

#include <stdbool.h>
#include <string.h>

#include "rcu/map.h"

struct name {               /* first member of every record */
  struct name *same_hash;
  uint64_t hash;
  uint32_t a_bytes, b_bytes;   /* without NUL; b_bytes is 0 for a single string */
  char *text;                  /* "a\0b\0" */
};

struct lookup {             /* a key on its way */
  const char *a, *b;
  size_t a_bytes, b_bytes;
  uint64_t hash;
};

/* b may be NULL. */
static inline struct lookup oci_lookup(const char *a, const char *b) {
  struct lookup k = {.a = a, .b = b ? b : "", .a_bytes = strlen(a), .b_bytes = b ? strlen(b) : 0};
  uint64_t h = oci_hash_bytes(k.b, k.b_bytes, oci_hash_bytes(k.a, k.a_bytes, 0x5851F42D4C957F2Du));
  k.hash = h ? h : 1;       /* 0 is the map's empty key */
  return k;
}

static inline bool oci_name_is(const struct name *n, const struct lookup *k) {
  return n->a_bytes == k->a_bytes && n->b_bytes == k->b_bytes && oci_same_bytes(n->text, k->a, k->a_bytes) &&
         oci_same_bytes(n->text + n->a_bytes + 1, k->b, k->b_bytes);
}

/* NULL: not there. */
static inline struct name *oci_names_get(const struct map *m, const struct lookup *k) {
  struct map_hit hit;
  if (!oci_map_get(m, k->hash, &hit)) return NULL;
  struct name *n = oci_map_entry(hit.entry);
  /* A record pushed in front while we walk is met by nobody wrongly: its fields were written before the map's
     entry was (release), and same_hash never changes afterwards. */
  while (n && !oci_name_is(n, k)) n = n->same_hash;
  return n;
}

static inline const char *oci_name_a(const struct name *n) { return n->text; }
static inline const char *oci_name_b(const struct name *n) { return n->text + n->a_bytes + 1; }

/* A record of `bytes` (zeroed, its struct name filled in) under a key that is not there. NULL without memory. */
struct name *oci_names_add(struct map *m, const struct lookup *k, size_t bytes);
void oci_names_each(struct map *m, void (*each)(void *arg, struct name *n), void *arg);
/* Frees all records (of `bytes` each, after `drop` was told of each; drop may be NULL) and the map. */
void oci_names_free(struct map *m, size_t bytes, void (*drop)(void *arg, struct name *n), void *arg);

#endif
