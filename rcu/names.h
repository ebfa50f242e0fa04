/* SPDX-License-Identifier: MIT */
/*
 * names: a lock-free memo from a string, or a pair of strings, to a record. Keyed by content: the map holds the
 *        64-bit hash, records of one hash are chained and compared in full, so no collision can hit wrongly. The
 *        first record of a hash is the map's first value, which is never 0.
 *        Owned by what embeds it; one writer at a time (its lock), any number of readers. Records are never
 *        taken out: they live as long as the map.
 */
#ifndef OCI_RCU_NAMES_H
#define OCI_RCU_NAMES_H

#include <stdbool.h>
#include <string.h>

#include "rcu/map.h"

/* All of a key of ordinary lengths (4 to 16 bytes, and 8 to 32 or no second string): with the lengths it says what the
   bytes are. Hashed and compared without a loop or a call; others have zeros here, and are hashed and compared as text. */
struct name_words { uint64_t w[6]; };

struct name {               /* first member of every record */
  struct name *same_hash;
  uint32_t a_bytes, b_bytes;   /* without NUL; b_bytes is 0 for a single string */
  struct name_words words;
  char *text;                  /* "a\0b\0", behind the record */
};

struct lookup {             /* a key on its way */
  const char *a, *b;
  size_t a_bytes, b_bytes;
  uint64_t hash;
  struct name_words words;
};

static inline bool oci_ordinary(size_t a_bytes, size_t b_bytes) {
  return __builtin_expect((a_bytes - 4 <= 12) & ((b_bytes - 8 <= 24) | (b_bytes == 0)), 1);
}

/* The hash of a key that is not ordinary. */
uint64_t oci_hash_text(const struct lookup *k);
/* Of two such keys with the same lengths. */
bool oci_same_text(const struct name *n, const struct lookup *k);

static inline struct name_words oci_words(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
  struct words_2 x = oci_words_16(a, a_bytes);
  struct words_4 y = {0, 0, 0, 0};
  if (b_bytes) y = oci_words_32(b, b_bytes);
  return (struct name_words){{x.w0, x.w1, y.w0, y.w1, y.w2, y.w3}};
}

static inline uint64_t oci_hash_words(const struct name_words *x, size_t a_bytes, size_t b_bytes) {
  const uint64_t *w = x->w;
  uint64_t h = oci_mix(w[0] ^ 0xE7037ED1A0B428DBu, w[1] ^ (a_bytes << 8 | b_bytes) * 0xA0761D6478BD642Fu);
  if (!b_bytes) return h;
  /* side by side: one product does not wait for another */
  return h + oci_mix(w[2] ^ 0x8EBC6AF09C88C6E3u, w[3] ^ 0x589965CC75374CC3u) +
         oci_mix(w[4] ^ 0x1D8E4E27C47D124Fu, w[5] ^ 0xEB44ACCAB455D165u);
}

/* b may be NULL. Inlined wherever it is used: on a hit its parts then stay in registers. */
static inline __attribute__((always_inline)) struct lookup oci_lookup(const char *a, const char *b) {
  struct lookup k = {.a = a, .b = b ? b : "", .a_bytes = strlen(a), .b_bytes = b ? strlen(b) : 0};
  if (oci_ordinary(k.a_bytes, k.b_bytes)) {
    k.words = oci_words(a, k.a_bytes, b, k.b_bytes);
    k.hash = oci_hash_words(&k.words, k.a_bytes, k.b_bytes);
  } else {
    k.hash = oci_hash_text(&(struct lookup){.a = k.a, .b = k.b, .a_bytes = k.a_bytes, .b_bytes = k.b_bytes});
  }
  k.hash += !k.hash;        /* 0 is the map's empty key */
  return k;
}

static inline __attribute__((always_inline)) bool oci_name_is(const struct name *n, const struct lookup *k) {
  const uint64_t *x = n->words.w, *y = k->words.w;
  uint64_t differ = (n->a_bytes ^ k->a_bytes) | (n->b_bytes ^ k->b_bytes) | (x[0] ^ y[0]) | (x[1] ^ y[1]) |
                    (x[2] ^ y[2]) | (x[3] ^ y[3]) | (x[4] ^ y[4]) | (x[5] ^ y[5]);
  return differ == 0 && (oci_ordinary(k->a_bytes, k->b_bytes) ||
                         oci_same_text(n, &(struct lookup){.a = k->a, .b = k->b, .a_bytes = k->a_bytes, .b_bytes = k->b_bytes}));
}

/* NULL: not there. */
static inline __attribute__((always_inline)) struct name *oci_names_get(const struct map *m, const struct lookup *k) {
  struct name *n = (struct name *)(uintptr_t)oci_map_value(m, k->hash);
  /* A record pushed in front while we walk is met by nobody wrongly: its fields were written before the map's
     value was (release), and same_hash never changes afterwards. */
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
