/* SPDX-License-Identifier: MIT */
/*
 * Hashes for the maps. Not for adversaries: keys are compared in full everywhere, so a collision costs time only.
 */
#ifndef OCI_RCU_HASH_H
#define OCI_RCU_HASH_H

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

/* Bytes, eight at a time; multiply and fold, after the idea of wyhash. */
static inline uint64_t oci_hash_bytes(const char *s, size_t n, uint64_t seed) {
  uint64_t h = seed ^ (n * 0xA0761D6478BD642Fu), w = 0;
  for (; n > 8; s += 8, n -= 8) {
    memcpy(&w, s, 8);
    h = oci_mix(h ^ w, 0xE7037ED1A0B428DBu);
  }
  w = 0;
  memcpy(&w, s, n);
  return oci_mix(h ^ w, 0x8EBC6AF09C88C6E3u);
}

#endif
