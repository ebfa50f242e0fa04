/* SPDX-License-Identifier: MIT */
/*
 * Hashes for the maps. Not for adversaries: keys are compared in full everywhere, so a collision costs time only.
 */
#ifndef OCI_RCU_HASH_H
#define OCI_RCU_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t oci_mix(uint64_t a, uint64_t b) {
  __extension__ typedef unsigned __int128 wide;
  wide r = (wide)a * b;
  return (uint64_t)r ^ (uint64_t)(r >> 64);
}

/* The top bits are the good ones. One multiplication would do for random keys; those of addresses a fixed step apart
   it puts in heaps, at some steps: 72 of 100 keys 64 KiB apart met a full line of the map. */
static inline uint64_t oci_hash_u64(uint64_t x) {
  x *= 0x9E3779B97F4A7C15u;
  return (x ^ x >> 32) * 0xBF58476D1CE4E5B9u;
}

static inline uint64_t oci_load8(const char *s) {
  uint64_t w;
  memcpy(&w, s, 8);
  return w;
}

static inline uint64_t oci_load4(const char *s) {
  uint32_t w;
  memcpy(&w, s, 4);
  return w;
}

/*
 * Strings are read in overlapping words: all of 4 to 16 bytes as two, all of 8 to 32 as four, without a jump on the
 * length. Names are of mixed lengths, and a wrong guess costs more than all the rest.
 */
struct words_2 { uint64_t w0, w1; };
struct words_4 { uint64_t w0, w1, w2, w3; };

static inline struct words_2 oci_words_16(const char *s, size_t n) {
  size_t step = n / 8 * 4;
  return (struct words_2){oci_load4(s) << 32 | oci_load4(s + step), oci_load4(s + n - 4) << 32 | oci_load4(s + n - 4 - step)};
}

static inline struct words_4 oci_words_32(const char *s, size_t n) {
  size_t step = n < 16 ? n - 8 : 8;
  return (struct words_4){oci_load8(s), oci_load8(s + step), oci_load8(s + n - 8 - step), oci_load8(s + n - 8)};
}

/* Fewer than 8 bytes: every byte counts, some twice. */
static inline uint64_t oci_word_of_few(const char *s, size_t n) {
  if (n >= 4) return oci_load4(s) | oci_load4(s + n - 4) << 32;
  if (n == 0) return 0;
  return (uint64_t)(unsigned char)s[0] | (uint64_t)(unsigned char)s[n / 2] << 8 | (uint64_t)(unsigned char)s[n - 1] << 16;
}

static inline uint64_t oci_hash_32(const char *s, size_t n, uint64_t h) {
  struct words_4 w = oci_words_32(s, n);
  return oci_mix(w.w0 ^ 0xE7037ED1A0B428DBu, w.w1 ^ h) ^ oci_mix(w.w2 ^ 0x8EBC6AF09C88C6E3u, w.w3 ^ ~h);
}

/* Any length. */
static inline uint64_t oci_hash_bytes(const char *s, size_t n, uint64_t seed) {
  uint64_t h = seed ^ n * 0xA0761D6478BD642Fu;
  if (n < 8) return oci_mix(h ^ oci_word_of_few(s, n), 0x8EBC6AF09C88C6E3u);
  if (n <= 32) return oci_hash_32(s, n, h);
  for (; n > 32; n -= 32, s += 32) h = oci_mix(oci_hash_32(s, 32, h), 0xA0761D6478BD642Fu);
  return oci_hash_32(s + n - 32, 32, h);
}

#endif
