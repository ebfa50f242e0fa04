/* SPDX-License-Identifier: MIT */
/*
 * Two names with one hash, which no luck would find: made from how the hashes multiply and fold. Of 16 bytes, by
 * oci_hash_words; or of 32, by oci_hash_text, and compared by oci_same_text (rcu/names.h). If a hash changes so that it does
 * not work, the tests that need such names fail here, and this has to follow.
 */
#ifndef TESTS_COLLIDE_H
#define TESTS_COLLIDE_H

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "rcu/names.h"

#define TWINS_FUNC "a_function"   /* of an ordinary length: see rcu/names.h */

struct twins {
  char a[33], b[33];
};

static inline bool is_twins(const struct twins *t) {
  return strlen(t->a) == strlen(t->b) && strcmp(t->a, t->b) != 0 &&
         oci_lookup(t->a, TWINS_FUNC).hash == oci_lookup(t->b, TWINS_FUNC).hash && oci_lookup(t->a, NULL).hash == oci_lookup(t->b, NULL).hash;
}

/* Bytes 0 to 3 and 8 to 11, which make one factor of the product 0: the others count for nothing. */
static inline bool twins_by_zero(struct twins *t) {
  const uint64_t word = 0xE7037ED1A0B428DBu;
  const uint32_t high = (uint32_t)(word >> 32), low = (uint32_t)word;
  *t = (struct twins){"....one_....name", "....two_....name"};
  memcpy(t->a, &high, 4);
  memcpy(t->b, &high, 4);
  memcpy(t->a + 8, &low, 4);
  memcpy(t->b + 8, &low, 4);
  return is_twins(t);
}

/* Bytes 0 to 7 do, and 8 to 15 count for nothing. */
static inline bool long_twins_by_zero(struct twins *t) {
  const uint64_t word = 0xE7037ED1A0B428DBu;
  *t = (struct twins){"........a_name__of_thirty-two___", "........another_of_thirty-two___"};
  memcpy(t->a, &word, sizeof word);
  memcpy(t->b, &word, sizeof word);
  return is_twins(t);
}

static inline struct twins make_twins(bool longer) {
  struct twins t;
  bool made = longer ? long_twins_by_zero(&t) : twins_by_zero(&t);
  ck_assert_msg(made, "the hash has changed: no two names of one hash were made");
  return t;
}

#endif
