/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/formats.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "the derived encodings are exact: build without -ffast-math"
#endif
_Static_assert(FLT_EVAL_METHOD == 0, "binary32 must be computed as binary32");

enum { NVFP4_BLOCK = 16 };

static uint32_t bits_of(float x)
{
  uint32_t u;

  memcpy(&u, &x, sizeof u);
  return u;
}

static float float_of(uint32_t u)
{
  float x;

  memcpy(&x, &u, sizeof x);
  return x;
}

/* ---- Codes to binary32: exact ---- */

float oct_f16_to_f32(uint16_t code)
{
  uint32_t sign = (uint32_t)(code & 0x8000) << 16, exponent = code >> 10 & 31, mantissa = code & 0x3ff;

  if (exponent == 31)
    return float_of(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0)
    return float_of(sign | bits_of((float)mantissa * 0x1p-24f));
  return float_of(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

float oct_e4m3_to_f32(uint8_t code)
{
  uint32_t sign = (uint32_t)(code & 0x80) << 24, exponent = code >> 3 & 15, mantissa = code & 7;

  if ((code & 0x7f) == 0x7f)
    return float_of(sign | 0x7fc00000);
  if (exponent == 0)
    return float_of(sign | bits_of((float)mantissa * 0x1p-9f));
  return float_of(sign | (exponent + 127 - 7) << 23 | mantissa << 20);
}

float oct_e2m1_to_f32(uint8_t code)
{
  static const float magnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

  return code & 8 ? -magnitude[code & 7] : magnitude[code & 7];
}

/* ---- binary32 to codes: nearest, ties to even ---- */

/* Cuts `drop` low bits off, rounding to nearest even; a carry runs into the exponent, as it should. */
static uint32_t round_off(uint32_t u, unsigned drop)
{
  uint32_t half = (1u << (drop - 1)) - 1 + (u >> drop & 1);

  return (u + half) >> drop;
}

/* A sum with 2^(23+e) has a last bit worth 2^e: the adder rounds to a multiple of that, and its low bits count them. */
static uint32_t count_units(float magnitude, float anchor)
{
  return bits_of(magnitude + anchor) - bits_of(anchor);
}

uint16_t oct_f32_to_bf16(float x)
{
  return isnan(x) ? 0x7fff : (uint16_t)round_off(bits_of(x), 16);
}

uint8_t oct_f32_to_e4m3(float x)
{
  uint32_t u = bits_of(x), sign = u >> 24 & 0x80, code;
  float magnitude = float_of(u & 0x7fffffff);

  if (isnan(x))
    return 0x7f;
  if (magnitude >= 448)
    code = 0x7e;
  else if (magnitude < 0x1p-6f)
    code = count_units(magnitude, 0x1p14f);
  else
    code = round_off(u & 0x7fffffff, 20) - ((127u - 7) << 3);
  return (uint8_t)(sign | code);
}

uint8_t oct_f32_to_e2m1(float x)
{
  uint32_t u = bits_of(x), sign = u >> 28 & 8, code;
  float magnitude = float_of(u & 0x7fffffff);

  if (isnan(x))
    return 7;
  if (magnitude >= 6)
    code = 7;
  else if (magnitude < 1)
    code = count_units(magnitude, 0x1p22f);
  else
    code = round_off(u & 0x7fffffff, 22) - ((127u - 1) << 1);
  return (uint8_t)(sign | code);
}

/* ---- Matrices ---- */

static float element(const struct matrix_in *in, size_t row, size_t column)
{
  size_t i = row * in->columns + column;

  switch (in->kind) {
  case SOURCE_F32: return ((const float *)in->data)[i];
  case SOURCE_BF16: return oct_bf16_to_f32(((const uint16_t *)in->data)[i]);
  case SOURCE_F16: return oct_f16_to_f32(((const uint16_t *)in->data)[i]);
  case SOURCE_FP8: return oct_e4m3_to_f32(((const uint8_t *)in->data)[i]) * in->scales[row];
  case SOURCE_NONE: break;
  }
  return 0;
}

/* The largest finite magnitude in a part of a row; 0 where there is none. */
static float row_amax(const struct matrix_in *in, size_t row, size_t from, size_t to)
{
  float amax = 0;

  for (size_t c = from; c < to; c++) {
    float m = fabsf(element(in, row, c));

    /* NaN and infinity compare false. */
    if (m > amax && m <= FLT_MAX)
      amax = m;
  }
  return amax;
}

static float matrix_amax(const struct matrix_in *in)
{
  float amax = 0;

  for (size_t r = 0; r < in->rows; r++) {
    float m = row_amax(in, r, 0, in->columns);

    if (m > amax)
      amax = m;
  }
  return amax;
}

/* amax / largest: what maps amax to the largest code. Normal, so that no quotient by it loses bits to it. */
static float scale_of(float amax, float largest)
{
  float scale = amax / largest;

  if (amax == 0)
    return 1;
  return scale < FLT_MIN ? FLT_MIN : scale;
}

void oct_derive_bf16(const struct matrix_in *in, uint16_t *out)
{
  for (size_t r = 0; r < in->rows; r++)
    for (size_t c = 0; c < in->columns; c++)
      out[r * in->columns + c] = oct_f32_to_bf16(element(in, r, c));
}

void oct_derive_fp8(const struct matrix_in *in, uint8_t *codes, float *scales)
{
  for (size_t r = 0; r < in->rows; r++) {
    float scale = scale_of(row_amax(in, r, 0, in->columns), 448);

    scales[r] = scale;
    for (size_t c = 0; c < in->columns; c++)
      codes[r * in->columns + c] = oct_f32_to_e4m3(element(in, r, c) / scale);
  }
}

static size_t pad4(size_t n)
{
  return (n + 3) & ~(size_t)3;
}

static size_t half_up(size_t n)
{
  return n / 2 + n % 2;
}

static size_t blocks_of(size_t columns)
{
  return columns / NVFP4_BLOCK + (columns % NVFP4_BLOCK != 0);
}

size_t oct_nvfp4_bytes(size_t rows, size_t columns)
{
  return rows * half_up(columns);
}

size_t oct_nvfp4_t_scales_at(size_t rows, size_t columns)
{
  return pad4(oct_nvfp4_bytes(rows, columns));
}

size_t oct_scales_block_bytes(size_t rows, size_t columns)
{
  return pad4(rows * blocks_of(columns)) + sizeof(float);
}

/* One block of a row into its bytes, `stride` apart. Returns the block scale's code. */
static uint8_t nvfp4_block(const struct matrix_in *in, size_t row, size_t block, float ts, uint8_t *out, size_t stride)
{
  size_t from = block * NVFP4_BLOCK;
  size_t to = in->columns - from < NVFP4_BLOCK ? in->columns : from + NVFP4_BLOCK;
  uint8_t code = oct_f32_to_e4m3(row_amax(in, row, from, to) / 6 / ts);
  float unit = oct_e4m3_to_f32(code) * ts;

  for (size_t c = from; c < to; c += 2, out += stride) {
    uint8_t low = 0, high = 0;

    if (code != 0) {
      low = oct_f32_to_e2m1(element(in, row, c) / unit);
      high = c + 1 < to ? oct_f32_to_e2m1(element(in, row, c + 1) / unit) : 0;
    }
    *out = (uint8_t)(low | high << 4);
  }
  return code;
}

/* The padding after `n` codes, then the matrix's scale. */
static void end_scales(uint8_t *scales, size_t n, float ts)
{
  memset(scales + n, 0, pad4(n) - n);
  memcpy(scales + pad4(n), &ts, sizeof ts);
}

void oct_derive_nvfp4(const struct matrix_in *in, uint8_t *bytes, uint8_t *scales)
{
  size_t blocks = blocks_of(in->columns), width = half_up(in->columns);
  float ts = scale_of(matrix_amax(in), 6 * 448);

  for (size_t r = 0; r < in->rows; r++)
    for (size_t b = 0; b < blocks; b++)
      scales[r * blocks + b] = nvfp4_block(in, r, b, ts, bytes + r * width + b * (NVFP4_BLOCK / 2), 1);
  end_scales(scales, in->rows * blocks, ts);
}

void oct_derive_nvfp4_t(const struct matrix_in *in, uint8_t *out)
{
  size_t rows = in->rows, blocks = blocks_of(in->columns);
  size_t used = oct_nvfp4_bytes(rows, in->columns), at = pad4(used);
  float ts = scale_of(matrix_amax(in), 6 * 448);

  /* Rows inside blocks: neighbouring rows are neighbouring bytes of the output. */
  for (size_t b = 0; b < blocks; b++)
    for (size_t r = 0; r < rows; r++)
      out[at + r * blocks + b] = nvfp4_block(in, r, b, ts, out + b * (NVFP4_BLOCK / 2) * rows + r, rows);
  memset(out + used, 0, at - used);
  end_scales(out + at, rows * blocks, ts);
}
