/* SPDX-License-Identifier: MIT */
/*
 * Two names of 16 bytes with one hash, which no luck would find: made from how oci_hash_bytes multiplies and folds. If the
 * hash changes so that neither way works, the tests that need such names fail here, and this has to follow.
 */
#ifndef TESTS_COLLIDE_H
#define TESTS_COLLIDE_H

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "rcu/names.h"

struct twins {
  char a[17], b[17];
};

static inline bool is_twins(const struct twins *t) {
  return strlen(t->a) == 16 && strlen(t->b) == 16 && strcmp(t->a, t->b) != 0 &&
         oci_lookup(t->a, "f").hash == oci_lookup(t->b, "f").hash && oci_lookup(t->a, NULL).hash == oci_lookup(t->b, NULL).hash;
}

/* A first word that makes one factor of the product 0: whatever follows counts for nothing. */
static inline bool twins_by_zero(struct twins *t) {
  const uint64_t word = 0xE7037ED1A0B428DBu;
  *t = (struct twins){"........one_name", "........another1"};
  memcpy(t->a, &word, 8);
  memcpy(t->b, &word, 8);
  return is_twins(t);
}

/* A last word that makes up for what the first one did. */
static inline bool twins_by_last_word(struct twins *t) {
  const uint64_t seed = 0x5851F42D4C957F2Du ^ 16 * 0xA0761D6478BD642Fu;
  *t = (struct twins){"a_name_of_16_byt", ""};
  for (unsigned n = 0; n < 10000; n++) {
    snprintf(t->b, 9, "%08u", n);
    uint64_t word = oci_mix(seed ^ oci_load8(t->b), 0xE7037ED1A0B428DBu) ^
                    oci_mix(seed ^ oci_load8(t->a), 0xE7037ED1A0B428DBu) ^ oci_load8(t->a + 8);
    memcpy(t->b + 8, &word, 8);
    t->b[16] = 0;
    if (is_twins(t)) return true;
  }
  return false;
}

static inline struct twins make_twins(void) {
  struct twins t;
  ck_assert_msg(twins_by_zero(&t) || twins_by_last_word(&t), "the hash has changed: no two names of one hash were made");
  return t;
}

#endif
