/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/formats.h"

#include <float.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "the derived encodings are exact: build without -ffast-math"
#endif
_Static_assert(FLT_EVAL_METHOD == 0, "binary32 must be computed as binary32");

float oct_bf16_to_f32(uint16_t code) { return derive_bf16_to_f32(code); }
float oct_f16_to_f32(uint16_t code) { return derive_f16_to_f32(code); }
float oct_e4m3_to_f32(uint8_t code) { return derive_e4m3_to_f32(code); }
float oct_e2m1_to_f32(uint8_t code) { return derive_e2m1_to_f32(code); }
uint16_t oct_f32_to_bf16(float x) { return derive_f32_to_bf16(x); }
uint8_t oct_f32_to_e4m3(float x) { return derive_f32_to_e4m3(x); }
uint8_t oct_f32_to_e2m1(float x) { return derive_f32_to_e2m1(x); }

size_t oct_nvfp4_bytes(size_t rows, size_t columns)
{
  return rows * derive_half_up(columns);
}

size_t oct_nvfp4_t_scales_at(size_t rows, size_t columns)
{
  return derive_pad4(oct_nvfp4_bytes(rows, columns));
}

size_t oct_scales_block_bytes(size_t rows, size_t columns)
{
  return derive_pad4(rows * derive_blocks(columns)) + sizeof(float);
}

static uint32_t row_amax(const struct matrix_in *in, size_t row)
{
  return derive_row_amax(in, row, 0, in->columns, 1);
}

static uint32_t matrix_amax(const struct matrix_in *in)
{
  uint32_t amax = 0;

  for (size_t r = 0; r < in->rows; r++) {
    uint32_t m = row_amax(in, r);

    if (m > amax)
      amax = m;
  }
  return amax;
}

void oct_derive_bf16(const struct matrix_in *in, uint16_t *out)
{
  for (size_t r = 0; r < in->rows; r++)
    for (size_t c = 0; c < in->columns; c++)
      out[r * in->columns + c] = derive_f32_to_bf16(derive_element(in, r, c));
}

void oct_derive_fp8(const struct matrix_in *in, uint8_t *codes, float *scales)
{
  for (size_t r = 0; r < in->rows; r++) {
    float scale = derive_fp8_scale(row_amax(in, r));

    scales[r] = scale;
    for (size_t c = 0; c < in->columns; c++)
      codes[r * in->columns + c] = derive_f32_to_e4m3(derive_element(in, r, c) / scale);
  }
}

void oct_derive_nvfp4(const struct matrix_in *in, uint8_t *bytes, uint8_t *scales)
{
  size_t blocks = derive_blocks(in->columns), width = derive_half_up(in->columns);
  float ts = derive_nvfp4_scale(matrix_amax(in));

  for (size_t r = 0; r < in->rows; r++)
    for (size_t b = 0; b < blocks; b++)
      scales[r * blocks + b] = derive_nvfp4_block(in, r, b, ts, bytes + r * width + b * (NVFP4_BLOCK / 2), 1);
  derive_end_scales(scales, in->rows * blocks, ts);
}

void oct_derive_nvfp4_t(const struct matrix_in *in, uint8_t *out)
{
  size_t rows = in->rows, blocks = derive_blocks(in->columns);
  size_t used = oct_nvfp4_bytes(rows, in->columns), at = derive_pad4(used);
  float ts = derive_nvfp4_scale(matrix_amax(in));

  /* Rows inside blocks: neighbouring rows are neighbouring bytes of the output. */
  for (size_t b = 0; b < blocks; b++)
    for (size_t r = 0; r < rows; r++)
      out[at + r * blocks + b] = derive_nvfp4_block(in, r, b, ts, out + b * (NVFP4_BLOCK / 2) * rows + r, rows);
  memset(out + used, 0, at - used);
  derive_end_scales(out + at, rows * blocks, ts);
}
