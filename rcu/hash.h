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

static inline uint64_t oci_hash_u64(uint64_t x) {
  return (x ^ (x >> 32)) * 0x9E3779B97F4A7C15u;   /* the top bits are the good ones */
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

/* Fewer than 8 bytes, as a word: every byte counts, some twice. */
static inline uint64_t oci_load_few(const char *s, size_t n) {
  if (n >= 4) return oci_load4(s) | oci_load4(s + n - 4) << 32;
  if (n == 0) return 0;
  return (uint64_t)(unsigned char)s[0] | (uint64_t)(unsigned char)s[n / 2] << 8 | (uint64_t)(unsigned char)s[n - 1] << 16;
}

/* Eight bytes at a time, the last eight overlapping those before; multiply and fold. Names are short: a call of
   memcpy or memcmp would cost more than all of this. */
static inline uint64_t oci_hash_bytes(const char *s, size_t n, uint64_t seed) {
  uint64_t h = seed ^ (n * 0xA0761D6478BD642Fu);
  if (n < 8) return oci_mix(h ^ oci_load_few(s, n), 0x8EBC6AF09C88C6E3u);
  for (size_t i = 0; i + 8 < n; i += 8) h = oci_mix(h ^ oci_load8(s + i), 0xE7037ED1A0B428DBu);
  return oci_mix(h ^ oci_load8(s + n - 8), 0x8EBC6AF09C88C6E3u);
}

static inline bool oci_same_bytes(const char *a, const char *b, size_t n) {
  if (n < 8) return oci_load_few(a, n) == oci_load_few(b, n);
  for (size_t i = 0; i + 8 < n; i += 8)
    if (oci_load8(a + i) != oci_load8(b + i)) return false;
  return oci_load8(a + n - 8) == oci_load8(b + n - 8);
}

#endif
