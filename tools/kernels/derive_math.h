/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of the derived encodings, once: tools/formats.c loops over it on the host, tools/kernels/derive.cu on a
 * GPU, so that both make the same bits. C11, C++11 and CUDA. IEEE binary32, round to nearest even, true division; builds
 * that use it forbid contraction and keep denormals (-ffp-contract=off; -fmad=false -ftz=false -prec-div=true).
 */
#ifndef OCTOOL_DERIVE_MATH_H
#define OCTOOL_DERIVE_MATH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tools/dtype.h"

#ifdef __CUDACC__
#define DERIVE_FN static __device__ __forceinline__
#else
#define DERIVE_FN static inline
#endif

enum { NVFP4_BLOCK = 16 };

/* A matrix as a kernel finds it. FP8: `data` are E4M3 codes, `scales` the rows'; else scales is not read. */
struct matrix_in {
  const void *data;
  const float *scales;
  enum source_kind kind;
  size_t rows, columns;
};

DERIVE_FN uint32_t derive_bits(float x)
{
  uint32_t u;

  memcpy(&u, &x, sizeof u);
  return u;
}

DERIVE_FN float derive_float(uint32_t u)
{
  float x;

  memcpy(&x, &u, sizeof x);
  return x;
}

/* ---- Codes to binary32: exact ---- */

DERIVE_FN float derive_bf16_to_f32(uint16_t code)
{
  return derive_float((uint32_t)code << 16);
}

DERIVE_FN float derive_f16_to_f32(uint16_t code)
{
  uint32_t sign = (uint32_t)(code & 0x8000) << 16, exponent = code >> 10 & 31, mantissa = code & 0x3ff;

  if (exponent == 31)
    return derive_float(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0)
    return derive_float(sign | derive_bits((float)mantissa * 0x1p-24f));
  return derive_float(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

DERIVE_FN float derive_e4m3_to_f32(uint8_t code)
{
  uint32_t sign = (uint32_t)(code & 0x80) << 24, exponent = code >> 3 & 15, mantissa = code & 7;

  if ((code & 0x7f) == 0x7f)
    return derive_float(sign | 0x7fc00000);
  if (exponent == 0)
    return derive_float(sign | derive_bits((float)mantissa * 0x1p-9f));
  return derive_float(sign | (exponent + 127 - 7) << 23 | mantissa << 20);
}

/* Of the low nibble. */
DERIVE_FN float derive_e2m1_to_f32(uint8_t code)
{
  uint32_t sign = (uint32_t)(code & 8) << 28, exponent = code >> 1 & 3, mantissa = code & 1;

  if (exponent == 0)
    return derive_float(sign | derive_bits((float)mantissa * 0.5f));
  return derive_float(sign | (exponent + 127 - 1) << 23 | mantissa << 22);
}

/* ---- binary32 to codes: nearest, ties to even ---- */

/* Cuts `drop` low bits off, rounding to nearest even; a carry runs into the exponent, as it should. */
DERIVE_FN uint32_t derive_round_off(uint32_t u, unsigned drop)
{
  uint32_t half = (1u << (drop - 1)) - 1 + (u >> drop & 1);

  return (u + half) >> drop;
}

/* A sum with 2^(23+e) has a last bit worth 2^e: the adder rounds to a multiple of that, and its low bits count them. */
DERIVE_FN uint32_t derive_count_units(float magnitude, float anchor)
{
  return derive_bits(magnitude + anchor) - derive_bits(anchor);
}

DERIVE_FN uint16_t derive_f32_to_bf16(float x)
{
  uint32_t u = derive_bits(x);

  return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : (uint16_t)derive_round_off(u, 16);
}

DERIVE_FN uint8_t derive_f32_to_e4m3(float x)
{
  uint32_t u = derive_bits(x), sign = u >> 24 & 0x80, size = u & 0x7fffffff, code;
  float magnitude = derive_float(size);

  if (size > 0x7f800000)
    return 0x7f;
  if (magnitude >= 448)
    code = 0x7e;
  else if (magnitude < 0x1p-6f)
    code = derive_count_units(magnitude, 0x1p14f);
  else
    code = derive_round_off(size, 20) - ((127u - 7) << 3);
  return (uint8_t)(sign | code);
}

DERIVE_FN uint8_t derive_f32_to_e2m1(float x)
{
  uint32_t u = derive_bits(x), sign = u >> 28 & 8, size = u & 0x7fffffff, code;
  float magnitude = derive_float(size);

  if (size > 0x7f800000)
    return 7;
  if (magnitude >= 6)
    code = 7;
  else if (magnitude < 1)
    code = derive_count_units(magnitude, 0x1p22f);
  else
    code = derive_round_off(size, 22) - ((127u - 1) << 1);
  return (uint8_t)(sign | code);
}

/* ---- Sizes ---- */

DERIVE_FN size_t derive_pad4(size_t n)
{
  return (n + 3) & ~(size_t)3;
}

/* Bytes of a row of nibbles. */
DERIVE_FN size_t derive_half_up(size_t n)
{
  return n / 2 + n % 2;
}

DERIVE_FN size_t derive_blocks(size_t columns)
{
  return columns / NVFP4_BLOCK + (columns % NVFP4_BLOCK != 0);
}

/* ---- Matrices ---- */

DERIVE_FN float derive_element(const struct matrix_in *in, size_t row, size_t column)
{
  size_t i = row * in->columns + column;

  switch (in->kind) {
  case SOURCE_F32: return ((const float *)in->data)[i];
  case SOURCE_BF16: return derive_bf16_to_f32(((const uint16_t *)in->data)[i]);
  case SOURCE_F16: return derive_f16_to_f32(((const uint16_t *)in->data)[i]);
  case SOURCE_FP8: return derive_e4m3_to_f32(((const uint8_t *)in->data)[i]) * in->scales[row];
  default: return 0;
  }
}

/* The largest finite magnitude in every `step`th of a row's elements, 0 where there is none; as bits, which magnitudes
   compare by. */
DERIVE_FN uint32_t derive_row_amax(const struct matrix_in *in, size_t row, size_t from, size_t to, size_t step)
{
  uint32_t amax = 0;

  for (size_t c = from; c < to; c += step) {
    uint32_t size = derive_bits(derive_element(in, row, c)) & 0x7fffffff;

    if (size > amax && size < 0x7f800000)
      amax = size;
  }
  return amax;
}

/* amax / largest: what maps amax to the largest code. Normal, so that no quotient by it loses bits to it. */
DERIVE_FN float derive_scale(uint32_t amax, float largest)
{
  float scale = derive_float(amax) / largest;

  if (amax == 0)
    return 1;
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

DERIVE_FN float derive_fp8_scale(uint32_t row_amax)
{
  return derive_scale(row_amax, 448);
}

DERIVE_FN float derive_nvfp4_scale(uint32_t matrix_amax)
{
  return derive_scale(matrix_amax, 6 * 448);
}

/* One block of a row into its bytes, `stride` apart. Returns the block scale's code. */
DERIVE_FN uint8_t derive_nvfp4_block(const struct matrix_in *in, size_t row, size_t block, float ts, uint8_t *out,
                                     size_t stride)
{
  size_t from = block * NVFP4_BLOCK;
  size_t to = in->columns - from < NVFP4_BLOCK ? in->columns : from + NVFP4_BLOCK;
  uint8_t code = derive_f32_to_e4m3(derive_float(derive_row_amax(in, row, from, to, 1)) / 6 / ts);
  float unit = derive_e4m3_to_f32(code) * ts;

  for (size_t c = from; c < to; c += 2, out += stride) {
    uint8_t low = 0, high = 0;

    if (code != 0) {
      low = derive_f32_to_e2m1(derive_element(in, row, c) / unit);
      high = c + 1 < to ? derive_f32_to_e2m1(derive_element(in, row, c + 1) / unit) : (uint8_t)0;
    }
    *out = (uint8_t)(low | high << 4);
  }
  return code;
}

/* A scales block's end: the padding after `n` codes, then the matrix's scale. */
DERIVE_FN void derive_end_scales(uint8_t *scales, size_t n, float ts)
{
  for (size_t i = n; i < derive_pad4(n); i++)
    scales[i] = 0;
  memcpy(scales + derive_pad4(n), &ts, sizeof ts);
}

#endif
