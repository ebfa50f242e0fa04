/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/kernels.h"
#include "tools/formats.h"

#include <pthread.h>
#include <string.h>

enum { BLOCK = 16, LANES = 8, TILE = 64 };

/* What the codes mean, for products. */
static float e4m3_value[256], e2m1_value[16];

static void fill_tables(void)
{
  for (uint32_t i = 0; i < 256; i++)
    e4m3_value[i] = derive_e4m3_to_f32((uint8_t)i);
  for (uint32_t i = 0; i < 16; i++)
    e2m1_value[i] = derive_e2m1_to_f32((uint8_t)i);
}

static uint64_t param(void *const *params, size_t i)
{
  uint64_t v;

  memcpy(&v, params[i], sizeof v);
  return v;
}

/* A device address is a host address here. */
static void *at(void *const *params, size_t i)
{
  return (void *)(uintptr_t)param(params, i);
}

/* ---- Derivations: source, scales, kind, rows, columns, out, out ---- */

static struct matrix_in matrix_of(void *const *params)
{
  return (struct matrix_in){.data = at(params, 0), .scales = at(params, 1), .kind = (enum source_kind)param(params, 2),
                            .rows = (size_t)param(params, 3), .columns = (size_t)param(params, 4)};
}

static void derive_bf16(const oc_host_launch *launch, void *const *params)
{
  struct matrix_in in = matrix_of(params);

  (void)launch;
  oct_derive_bf16(&in, at(params, 5));
}

static void derive_fp8(const oc_host_launch *launch, void *const *params)
{
  struct matrix_in in = matrix_of(params);

  (void)launch;
  oct_derive_fp8(&in, at(params, 5), at(params, 6));
}

static void derive_nvfp4_t(const oc_host_launch *launch, void *const *params)
{
  struct matrix_in in = matrix_of(params);

  (void)launch;
  oct_derive_nvfp4_t(&in, at(params, 5));
}

static void derive_nvfp4(const oc_host_launch *launch, void *const *params)
{
  struct matrix_in in = matrix_of(params);

  (void)launch;
  oct_derive_nvfp4(&in, at(params, 5), at(params, 6));
}

/* ---- Products: weight, weight, x, y, rows, columns. Sums are kept in parts, which keeps their error small. ---- */

struct product { const void *weight[2]; const float *x; float *y; size_t rows, columns; };

static struct product product_of(void *const *params)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;

  pthread_once(&once, fill_tables);
  return (struct product){.weight = {at(params, 0), at(params, 1)}, .x = at(params, 2), .y = at(params, 3),
                          .rows = (size_t)param(params, 4), .columns = (size_t)param(params, 5)};
}

static float sum_of(const float part[LANES])
{
  float sum = 0;

  for (size_t i = 0; i < LANES; i++)
    sum += part[i];
  return sum;
}

static float bf16_row(const uint16_t *w, const float *x, size_t n)
{
  float part[LANES] = {0};
  size_t k = 0;

  for (; k + LANES <= n; k += LANES)
    for (size_t i = 0; i < LANES; i++)
      part[i] += derive_bf16_to_f32(w[k + i]) * x[k + i];
  for (; k < n; k++)
    part[k % LANES] += derive_bf16_to_f32(w[k]) * x[k];
  return sum_of(part);
}

static void matvec_bf16(const oc_host_launch *launch, void *const *params)
{
  struct product p = product_of(params);

  (void)launch;
  for (size_t r = 0; r < p.rows; r++)
    p.y[r] = bf16_row((const uint16_t *)p.weight[0] + r * p.columns, p.x, p.columns);
}

static float fp8_row(const uint8_t *w, float scale, const float *x, size_t n)
{
  float part[LANES] = {0};
  size_t k = 0;

  for (; k + LANES <= n; k += LANES)
    for (size_t i = 0; i < LANES; i++)
      part[i] += e4m3_value[w[k + i]] * scale * x[k + i];
  for (; k < n; k++)
    part[k % LANES] += e4m3_value[w[k]] * scale * x[k];
  return sum_of(part);
}

static void matvec_fp8(const oc_host_launch *launch, void *const *params)
{
  struct product p = product_of(params);
  const float *scales = p.weight[1];

  (void)launch;
  for (size_t r = 0; r < p.rows; r++)
    p.y[r] = fp8_row((const uint8_t *)p.weight[0] + r * p.columns, scales[r], p.x, p.columns);
}

/* A scales block: a row's unit of block b is its code's value times the matrix's scale. */
struct units { const uint8_t *codes; size_t blocks; float ts; };

static struct units units_of(const uint8_t *scales, size_t rows, size_t columns)
{
  struct units u = {.codes = scales, .blocks = (columns + BLOCK - 1) / BLOCK};

  memcpy(&u.ts, scales + oct_scales_block_bytes(rows, columns) - sizeof u.ts, sizeof u.ts);
  return u;
}

static float unit(const struct units *u, size_t row, size_t block)
{
  return e4m3_value[u->codes[row * u->blocks + block]] * u->ts;
}

/* Two weights of a byte, times their part of x; the second is missing in an odd row's last byte. */
static float byte_product(uint8_t byte, float one, const float *x, size_t left)
{
  float sum = e2m1_value[byte & 15] * one * x[0];

  return left > 1 ? sum + e2m1_value[byte >> 4] * one * x[1] : sum;
}

static void matvec_nvfp4(const oc_host_launch *launch, void *const *params)
{
  struct product p = product_of(params);
  struct units u = units_of(p.weight[1], p.rows, p.columns);
  size_t width = (p.columns + 1) / 2;

  (void)launch;
  for (size_t r = 0; r < p.rows; r++) {
    const uint8_t *w = (const uint8_t *)p.weight[0] + r * width;
    float sum = 0;

    for (size_t b = 0; b < u.blocks; b++) {
      float one = unit(&u, r, b), part = 0;

      for (size_t k = b * BLOCK; k < p.columns && k < (b + 1) * BLOCK; k += 2)
        part += byte_product(w[k / 2], one, p.x + k, p.columns - k);
      sum += part;
    }
    p.y[r] = sum;
  }
}

/* The rows [from, to): neighbouring rows are neighbouring bytes. */
static void matvec_tile(const struct product *p, const struct units *u, size_t from, size_t to)
{
  const uint8_t *bytes = p->weight[0];
  float sum[TILE] = {0};

  for (size_t b = 0; b < u->blocks; b++) {
    float one[TILE], part[TILE] = {0};

    for (size_t r = from; r < to; r++)
      one[r - from] = unit(u, r, b);
    for (size_t k = b * BLOCK; k < p->columns && k < (b + 1) * BLOCK; k += 2)
      for (size_t r = from; r < to; r++)
        part[r - from] += byte_product(bytes[k / 2 * p->rows + r], one[r - from], p->x + k, p->columns - k);
    for (size_t r = from; r < to; r++)
      sum[r - from] += part[r - from];
  }
  memcpy(p->y + from, sum, (to - from) * sizeof *sum);
}

static void matvec_nvfp4_t(const oc_host_launch *launch, void *const *params)
{
  struct product p = product_of(params);
  struct units u = units_of((const uint8_t *)p.weight[0] + oct_nvfp4_t_scales_at(p.rows, p.columns), p.rows, p.columns);

  (void)launch;
  for (size_t r = 0; r < p.rows; r += TILE)
    matvec_tile(&p, &u, r, p.rows - r < TILE ? p.rows : r + TILE);
}

/* ---- The images ---- */

static const uint32_t param_bytes[] = {8, 8, 8, 8, 8, 8, 8};

#define DERIVE(name, fn) {name, fn, sizeof(struct derive_params) / 8, param_bytes}
#define MATVEC(name, fn) {name, fn, sizeof(struct matvec_params) / 8, param_bytes}

static const oc_host_function functions[] = {
  DERIVE("derive_bf16", derive_bf16),
  DERIVE("derive_rowwise_fp8", derive_fp8),
  DERIVE("derive_nvfp4_t", derive_nvfp4_t),
  DERIVE("derive_nvfp4_from_fp8", derive_nvfp4),
  MATVEC("matvec_bf16", matvec_bf16),
  MATVEC("matvec_rowwise_fp8", matvec_fp8),
  MATVEC("matvec_nvfp4_t", matvec_nvfp4_t),
  MATVEC("matvec_nvfp4_from_fp8", matvec_nvfp4),
};

const oc_host_module oct_kernels = {sizeof oct_kernels, sizeof functions / sizeof functions[0], functions};

const void *oct_kernel_image(const char *backend, size_t *bytes)
{
  bool gpu = strcmp(backend, "cuda") == 0;

  *bytes = gpu ? oct_ptx_bytes : sizeof oct_kernels;
  return gpu ? (const void *)oct_ptx : &oct_kernels;
}

/* ---- Shapes ---- */

static uint32_t at_most(size_t n, uint32_t most)
{
  return n < most ? (uint32_t)n : most;
}

struct shape oct_derive_shape(enum derivation d, size_t rows)
{
  /* Each block of an NVFP4 kernel finds the matrix's scale for itself: few of them. */
  uint32_t most = d == DERIVE_BF16 || d == DERIVE_FP8 ? 1u << 16 : 16;

  return (struct shape){at_most(rows, most), 512};
}

struct shape oct_matvec_shape(enum derivation d, size_t rows)
{
  /* nvfp4-t: a thread for each row; else a block. */
  size_t blocks = d == DERIVE_NVFP4_T ? (rows + 127) / 128 : rows;

  return (struct shape){at_most(blocks, 1u << 16), 128};
}

/* ---- Keys ---- */

static oc_kernel_key derive_keys[DERIVATIONS] = {
  [DERIVE_BF16] = OC_KERNEL_KEY(OCT_MODULE, "derive_bf16"),
  [DERIVE_FP8] = OC_KERNEL_KEY(OCT_MODULE, "derive_rowwise_fp8"),
  [DERIVE_NVFP4_T] = OC_KERNEL_KEY(OCT_MODULE, "derive_nvfp4_t"),
  [DERIVE_NVFP4_FROM_FP8] = OC_KERNEL_KEY(OCT_MODULE, "derive_nvfp4_from_fp8"),
};

static oc_kernel_key matvec_keys[DERIVATIONS] = {
  [DERIVE_BF16] = OC_KERNEL_KEY(OCT_MODULE, "matvec_bf16"),
  [DERIVE_FP8] = OC_KERNEL_KEY(OCT_MODULE, "matvec_rowwise_fp8"),
  [DERIVE_NVFP4_T] = OC_KERNEL_KEY(OCT_MODULE, "matvec_nvfp4_t"),
  [DERIVE_NVFP4_FROM_FP8] = OC_KERNEL_KEY(OCT_MODULE, "matvec_nvfp4_from_fp8"),
};

oc_kernel_key *oct_derive_key(enum derivation d)
{
  return &derive_keys[d];
}

oc_kernel_key *oct_matvec_key(enum derivation d)
{
  return &matvec_keys[d];
}

void oct_kernel_keys(oc_kernel_key *keys[OCT_KERNELS])
{
  for (size_t d = 0; d < DERIVATIONS; d++) {
    keys[2 * d] = &derive_keys[d];
    keys[2 * d + 1] = &matvec_keys[d];
  }
}
