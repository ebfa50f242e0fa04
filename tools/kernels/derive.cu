/* SPDX-License-Identifier: MIT */
/*
 * octool's device code for GPUs: the names, parameters and results of the embedded device's (tools/kernels.c).
 *
 * Every kernel gives the same bytes for any grid of blocks, and any block of up to MOST_THREADS threads: the shape is a
 * matter of speed alone. derive.ptx is made from this file by make-ptx.sh and committed.
 */
#include "tools/kernels/derive_math.h"

enum { MOST_THREADS = 1024 };

#define KERNEL extern "C" __global__ void __launch_bounds__(MOST_THREADS)

/* ---- A block's threads together. Not static, for then the names of what they share would change with each build. ---- */

/* The largest of all threads' values, for all of them. Every thread of the block calls it. */
inline __device__ uint32_t block_max(uint32_t mine)
{
  __shared__ uint32_t most;

  __syncthreads();      /* who still reads the last call's */
  if (threadIdx.x == 0)
    most = 0;
  __syncthreads();
  atomicMax(&most, mine);
  __syncthreads();
  return most;
}

/* The sum of all threads' values, for thread 0. Every thread of the block calls it. */
inline __device__ float block_sum(float mine)
{
  __shared__ float part[MOST_THREADS];

  __syncthreads();      /* thread 0 still reads the last call's */
  part[threadIdx.x] = mine;
  __syncthreads();
  for (uint32_t n = blockDim.x; n > 1; n = (n + 1) / 2) {
    if (threadIdx.x < n / 2)
      part[threadIdx.x] += part[threadIdx.x + (n + 1) / 2];
    __syncthreads();
  }
  return part[0];
}

/* Of a row, by the block's threads. */
static __device__ uint32_t block_row_amax(const struct matrix_in *in, size_t row)
{
  return block_max(derive_row_amax(in, row, threadIdx.x, in->columns, blockDim.x));
}

/* Of the whole matrix, by each block for itself: the first code needs it, and blocks of a launch cannot wait for each
   other. It is the cheap part: no division. */
static __device__ uint32_t block_matrix_amax(const struct matrix_in *in)
{
  uint32_t amax = 0;

  for (size_t r = 0; r < in->rows; r++) {
    uint32_t size = derive_row_amax(in, r, threadIdx.x, in->columns, blockDim.x);

    amax = size > amax ? size : amax;
  }
  return block_max(amax);
}

static __device__ size_t first_index(void)
{
  return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ size_t index_step(void)
{
  return (size_t)gridDim.x * blockDim.x;
}

/* ---- Derivations ---- */

static __device__ struct matrix_in matrix_of(uint64_t source, uint64_t scales, uint64_t kind, uint64_t rows,
                                             uint64_t columns)
{
  struct matrix_in in = {(const void *)source, (const float *)scales, (enum source_kind)kind, rows, columns};

  return in;
}

KERNEL derive_bf16(uint64_t source, uint64_t scales, uint64_t kind, uint64_t rows, uint64_t columns, uint64_t out,
                   uint64_t none)
{
  struct matrix_in in = matrix_of(source, scales, kind, rows, columns);
  uint16_t *codes = (uint16_t *)out;

  (void)none;
  for (size_t r = blockIdx.x; r < rows; r += gridDim.x)
    for (size_t c = threadIdx.x; c < columns; c += blockDim.x)
      codes[r * columns + c] = derive_f32_to_bf16(derive_element(&in, r, c));
}

KERNEL derive_rowwise_fp8(uint64_t source, uint64_t scales, uint64_t kind, uint64_t rows, uint64_t columns,
                          uint64_t out, uint64_t out_scales)
{
  struct matrix_in in = matrix_of(source, scales, kind, rows, columns);
  uint8_t *codes = (uint8_t *)out;

  for (size_t r = blockIdx.x; r < rows; r += gridDim.x) {
    float scale = derive_fp8_scale(block_row_amax(&in, r));

    if (threadIdx.x == 0)
      ((float *)out_scales)[r] = scale;
    for (size_t c = threadIdx.x; c < columns; c += blockDim.x)
      codes[r * columns + c] = derive_f32_to_e4m3(derive_element(&in, r, c) / scale);
  }
}

KERNEL derive_nvfp4_from_fp8(uint64_t source, uint64_t scales, uint64_t kind, uint64_t rows, uint64_t columns,
                             uint64_t out, uint64_t out_scales)
{
  struct matrix_in in = matrix_of(source, scales, kind, rows, columns);
  size_t blocks = derive_blocks(columns), width = derive_half_up(columns);
  uint8_t *bytes = (uint8_t *)out, *codes = (uint8_t *)out_scales;
  float ts = derive_nvfp4_scale(block_matrix_amax(&in));

  for (size_t i = first_index(); i < rows * blocks; i += index_step()) {
    size_t r = i / blocks, b = i % blocks;

    codes[i] = derive_nvfp4_block(&in, r, b, ts, bytes + r * width + b * (NVFP4_BLOCK / 2), 1);
  }
  if (first_index() == 0)
    derive_end_scales(codes, rows * blocks, ts);
}

/* Neighbouring threads take neighbouring rows, which are neighbouring bytes. */
KERNEL derive_nvfp4_t(uint64_t source, uint64_t scales, uint64_t kind, uint64_t rows, uint64_t columns, uint64_t out,
                      uint64_t none)
{
  struct matrix_in in = matrix_of(source, scales, kind, rows, columns);
  size_t blocks = derive_blocks(columns), used = rows * derive_half_up(columns);
  uint8_t *bytes = (uint8_t *)out, *codes = bytes + derive_pad4(used);
  float ts = derive_nvfp4_scale(block_matrix_amax(&in));

  (void)none;
  for (size_t i = first_index(); i < rows * blocks; i += index_step()) {
    size_t r = i % rows, b = i / rows;

    codes[r * blocks + b] = derive_nvfp4_block(&in, r, b, ts, bytes + b * (NVFP4_BLOCK / 2) * rows + r, rows);
  }
  if (first_index() != 0)
    return;
  for (size_t i = used; i < derive_pad4(used); i++)
    bytes[i] = 0;
  derive_end_scales(codes, rows * blocks, ts);
}

/* ---- Products: a block for each row; where neighbouring bytes are neighbouring rows, a thread ---- */

KERNEL matvec_bf16(uint64_t weight, uint64_t none, uint64_t x, uint64_t y, uint64_t rows, uint64_t columns)
{
  const uint16_t *codes = (const uint16_t *)weight;
  const float *in = (const float *)x;

  (void)none;
  for (size_t r = blockIdx.x; r < rows; r += gridDim.x) {
    float sum = 0;

    for (size_t c = threadIdx.x; c < columns; c += blockDim.x)
      sum += derive_bf16_to_f32(codes[r * columns + c]) * in[c];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
      ((float *)y)[r] = sum;
  }
}

KERNEL matvec_rowwise_fp8(uint64_t weight, uint64_t scales, uint64_t x, uint64_t y, uint64_t rows, uint64_t columns)
{
  const uint8_t *codes = (const uint8_t *)weight;
  const float *in = (const float *)x;

  for (size_t r = blockIdx.x; r < rows; r += gridDim.x) {
    float scale = ((const float *)scales)[r], sum = 0;

    for (size_t c = threadIdx.x; c < columns; c += blockDim.x)
      sum += derive_e4m3_to_f32(codes[r * columns + c]) * scale * in[c];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
      ((float *)y)[r] = sum;
  }
}

/* One block of a row times its part of x; the bytes are `stride` apart. */
static __device__ float nvfp4_block_product(const uint8_t *bytes, size_t stride, float unit, const float *x, size_t left)
{
  size_t n = left < NVFP4_BLOCK ? left : (size_t)NVFP4_BLOCK;
  float sum = 0;

  for (size_t k = 0; k < n; k += 2, bytes += stride) {
    sum += derive_e2m1_to_f32(*bytes) * unit * x[k];
    if (k + 1 < n)
      sum += derive_e2m1_to_f32(*bytes >> 4) * unit * x[k + 1];
  }
  return sum;
}

static __device__ float scale_after(const uint8_t *codes, size_t n)
{
  return *(const float *)(codes + derive_pad4(n));
}

KERNEL matvec_nvfp4_from_fp8(uint64_t weight, uint64_t scales, uint64_t x, uint64_t y, uint64_t rows, uint64_t columns)
{
  size_t blocks = derive_blocks(columns), width = derive_half_up(columns);
  const uint8_t *bytes = (const uint8_t *)weight, *codes = (const uint8_t *)scales;
  float ts = scale_after(codes, rows * blocks);

  for (size_t r = blockIdx.x; r < rows; r += gridDim.x) {
    float sum = 0;

    for (size_t b = threadIdx.x; b < blocks; b += blockDim.x)
      sum += nvfp4_block_product(bytes + r * width + b * (NVFP4_BLOCK / 2), 1,
                                 derive_e4m3_to_f32(codes[r * blocks + b]) * ts,
                                 (const float *)x + b * NVFP4_BLOCK, columns - b * NVFP4_BLOCK);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
      ((float *)y)[r] = sum;
  }
}

KERNEL matvec_nvfp4_t(uint64_t weight, uint64_t none, uint64_t x, uint64_t y, uint64_t rows, uint64_t columns)
{
  size_t blocks = derive_blocks(columns);
  const uint8_t *bytes = (const uint8_t *)weight, *codes = bytes + derive_pad4(rows * derive_half_up(columns));
  float ts = scale_after(codes, rows * blocks);

  (void)none;
  for (size_t r = first_index(); r < rows; r += index_step()) {
    float sum = 0;

    for (size_t b = 0; b < blocks; b++)
      sum += nvfp4_block_product(bytes + b * (NVFP4_BLOCK / 2) * rows + r, rows,
                                 derive_e4m3_to_f32(codes[r * blocks + b]) * ts,
                                 (const float *)x + b * NVFP4_BLOCK, columns - b * NVFP4_BLOCK);
    ((float *)y)[r] = sum;
  }
}
