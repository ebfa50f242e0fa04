/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/reference.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- Codes ---- */

/* A binary format by its fields; `special`: its largest exponent holds infinities and NaNs, as IEEE's. */
struct layout { int exponent_bits, mantissa_bits; bool special; double *unit; };

/* What a mantissa's last bit is worth, by exponent. */
static double f32_unit[256], bf16_unit[256], f16_unit[32], e4m3_unit[16], e2m1_unit[4];
static const struct layout f32 = {8, 23, true, f32_unit}, bf16 = {8, 7, true, bf16_unit}, f16 = {5, 10, true, f16_unit};
static const struct layout e4m3 = {4, 3, false, e4m3_unit}, e2m1 = {2, 1, false, e2m1_unit};

static void fill_units(const struct layout *l)
{
  int bias = (1 << (l->exponent_bits - 1)) - 1;

  for (int e = 0; e < 1 << l->exponent_bits; e++)
    l->unit[e] = ldexp(1, (e ? e : 1) - bias - l->mantissa_bits);
}

static double decode(uint32_t code, const struct layout *l)
{
  uint32_t implicit = 1u << l->mantissa_bits, mantissa = code & (implicit - 1);
  uint32_t last = (1u << l->exponent_bits) - 1, exponent = code >> l->mantissa_bits & last;
  double magnitude = (exponent ? implicit + mantissa : mantissa) * l->unit[exponent];

  if (l->special && exponent == last)
    magnitude = mantissa ? (double)NAN : (double)INFINITY;
  return code >> (l->exponent_bits + l->mantissa_bits) & 1 ? -magnitude : magnitude;
}

/* The magnitudes of codes 0, 1, ... last, ascending, then infinity up to a power of two: the nearest is found by
   halving, without a branch that could be guessed wrong. */
struct codes { const double *magnitude; uint32_t room, last, sign, nan; };

static double bf16_magnitude[32768], e4m3_magnitude[128], e2m1_magnitude[8], e4m3_value[256];
static const struct codes to_bf16 = {bf16_magnitude, 32768, 0x7f80, 0x8000, 0x7fff};
static const struct codes to_e4m3 = {e4m3_magnitude, 128, 0x7e, 0x80, 0x7f};
static const struct codes to_e2m1 = {e2m1_magnitude, 8, 7, 8, 7};

static void fill_magnitudes(double *magnitude, uint32_t room, uint32_t last, const struct layout *l)
{
  for (uint32_t i = 0; i < room; i++)
    magnitude[i] = i <= last ? decode(i, l) : (double)INFINITY;
}

static void fill_tables(void)
{
  static const struct layout *const layouts[] = {&f32, &bf16, &f16, &e4m3, &e2m1};

  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
    fill_units(layouts[i]);
  fill_magnitudes(bf16_magnitude, 32768, 0x7f80, &bf16);
  bf16_magnitude[0x7f80] = 0x1p128;
  fill_magnitudes(e4m3_magnitude, 128, 0x7e, &e4m3);
  fill_magnitudes(e2m1_magnitude, 8, 7, &e2m1);
  for (uint32_t i = 0; i < 256; i++)
    e4m3_value[i] = (i & 0x7f) == 0x7f ? (double)NAN : decode(i, &e4m3);
}

static void need_tables(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;

  pthread_once(&once, fill_tables);
}

double oct_reference_decode_bf16(uint16_t code)
{
  need_tables();
  return decode(code, &bf16);
}

double oct_reference_decode_f16(uint16_t code)
{
  need_tables();
  return decode(code, &f16);
}

double oct_reference_decode_e4m3(uint8_t code)
{
  need_tables();
  return e4m3_value[code];
}

double oct_reference_decode_e2m1(uint8_t code)
{
  need_tables();
  return decode(code & 15, &e2m1);
}

static uint32_t nearest(double magnitude, const struct codes *c)
{
  uint32_t low = 0;
  double below, above;

  if (magnitude >= c->magnitude[c->last])
    return c->last;
  /* The last code whose magnitude is not above. */
  for (uint32_t step = c->room / 2; step > 0; step /= 2)
    low += c->magnitude[low + step] <= magnitude ? step : 0;
  below = magnitude - c->magnitude[low];
  above = c->magnitude[low + 1] - magnitude;
  if (below == above)
    return low + low % 2;
  return below < above ? low : low + 1;
}

static uint32_t encode(double x, const struct codes *c)
{
  if (isnan(x))
    return c->nan;
  return nearest(fabs(x), c) | (signbit(x) ? c->sign : 0);
}

uint16_t oct_reference_bf16(double x)
{
  need_tables();
  return (uint16_t)encode(x, &to_bf16);
}

uint8_t oct_reference_e4m3(double x)
{
  need_tables();
  return (uint8_t)encode(x, &to_e4m3);
}

uint8_t oct_reference_e2m1(double x)
{
  need_tables();
  return (uint8_t)encode(x, &to_e2m1);
}

/* ---- Rows ---- */

enum { BLOCK = 16 };

/* One row at a time: its values, and the bytes that they should have become. */
struct work { double *row; unsigned char *want; double ts; size_t width, blocks; };

static double single(double x)
{
  return (double)(float)x;
}

static void source_row(const struct check *c, size_t r, double *row)
{
  size_t n = c->columns;

  for (size_t k = 0; k < n; k++) {
    uint32_t code = c->kind == SOURCE_F32 ? ((const uint32_t *)c->source)[r * n + k]
                                          : ((const uint16_t *)c->source)[r * n + k];

    row[k] = decode(code, c->kind == SOURCE_F32 ? &f32 : c->kind == SOURCE_F16 ? &f16 : &bf16);
  }
}

static double largest_finite(const double *x, size_t n)
{
  double most = 0;

  for (size_t k = 0; k < n; k++)
    if (fabs(x[k]) <= (double)FLT_MAX)
      most = fmax(most, fabs(x[k]));
  return most;
}

static double scale_for(double amax, double largest)
{
  return amax == 0 ? 1 : fmax(single(amax / largest), 0x1p-126);
}

/* The row as the matrix to be encoded has it: from the source, or as its FP8 derivation gives it back. */
static void matrix_row(const struct check *c, size_t r, double *row)
{
  double scale;

  source_row(c, r, row);
  if (c->derivation != DERIVE_NVFP4_FROM_FP8)
    return;
  scale = scale_for(largest_finite(row, c->columns), 448);
  for (size_t k = 0; k < c->columns; k++)
    row[k] = single(e4m3_value[encode(single(row[k] / scale), &to_e4m3)] * scale);
}

static void expect(struct check *c, unsigned part, size_t offset, unsigned want)
{
  unsigned had = c->got[part][offset];

  if (had == want)
    return;
  if (c->wrong++ == 0) {
    c->part = part;
    c->offset = offset;
    c->want = want;
    c->had = had;
  }
}

static void expect_bytes(struct check *c, unsigned part, size_t offset, const void *want, size_t n)
{
  const unsigned char *w = want;

  if (memcmp(c->got[part] + offset, want, n) != 0)
    for (size_t i = 0; i < n; i++)
      expect(c, part, offset + i, w[i]);
}

/* Adds one weight's part to the row's product. */
static void add_product(struct check *c, size_t r, size_t k, double weight)
{
  double p = weight * (double)(c->x ? c->x[k] : 0);

  if (!c->x)
    return;
  c->y[r] += p;
  c->size[r] += fabs(p);
}

static void check_bf16_row(struct check *c, const struct work *w, size_t r)
{
  uint16_t *want = (uint16_t *)(void *)w->want;

  for (size_t k = 0; k < c->columns; k++) {
    want[k] = (uint16_t)encode(w->row[k], &to_bf16);
    add_product(c, r, k, decode(want[k], &bf16));
  }
  expect_bytes(c, 0, r * c->columns * 2, want, c->columns * 2);
}

static void check_fp8_row(struct check *c, const struct work *w, size_t r)
{
  double scale = scale_for(largest_finite(w->row, c->columns), 448);
  float stored = (float)scale;

  for (size_t k = 0; k < c->columns; k++) {
    w->want[k] = (unsigned char)encode(single(w->row[k] / scale), &to_e4m3);
    add_product(c, r, k, e4m3_value[w->want[k]] * scale);
  }
  expect_bytes(c, 0, r * c->columns, w->want, c->columns);
  expect_bytes(c, 1, r * sizeof stored, &stored, sizeof stored);
}

static unsigned check_block(struct check *c, const struct work *w, size_t r, size_t block)
{
  size_t from = block * BLOCK, to = from + BLOCK < c->columns ? from + BLOCK : c->columns;
  double amax = largest_finite(w->row + from, to - from);
  unsigned scale = encode(single(single(amax / 6) / w->ts), &to_e4m3);
  double unit = single(e4m3_value[scale] * w->ts);

  for (size_t k = from; k < to; k++) {
    unsigned code = scale ? encode(single(w->row[k] / unit), &to_e2m1) : 0;

    w->want[k / 2] = (unsigned char)(k % 2 ? w->want[k / 2] | code << 4 : code);
    add_product(c, r, k, decode(code, &e2m1) * unit);
  }
  return scale;
}

static size_t up_to_4(size_t n)
{
  return (n + 3) / 4 * 4;
}

static bool transposed(const struct check *c)
{
  return c->derivation == DERIVE_NVFP4_T;
}

/* Where the scales block begins, in its part. */
static size_t scales_at(const struct check *c, const struct work *w)
{
  return transposed(c) ? up_to_4(w->width * c->rows) : 0;
}

static void check_nvfp4_row(struct check *c, const struct work *w, size_t r)
{
  unsigned scales_part = transposed(c) ? 0 : 1;

  for (size_t b = 0; b < w->blocks; b++)
    expect(c, scales_part, scales_at(c, w) + r * w->blocks + b, check_block(c, w, r, b));
  if (!transposed(c))
    expect_bytes(c, 0, r * w->width, w->want, w->width);
  for (size_t i = 0; transposed(c) && i < w->width; i++)
    expect(c, 0, i * c->rows + r, w->want[i]);
}

static void check_nvfp4_end(struct check *c, const struct work *w)
{
  unsigned scales_part = transposed(c) ? 0 : 1;
  size_t at = scales_at(c, w), codes = c->rows * w->blocks;
  float ts = (float)w->ts;

  for (size_t i = w->width * c->rows; i < at; i++)
    expect(c, 0, i, 0);
  for (size_t i = codes; i < up_to_4(codes); i++)
    expect(c, scales_part, at + i, 0);
  expect_bytes(c, scales_part, at + up_to_4(codes), &ts, sizeof ts);
}

static void check_row(struct check *c, const struct work *w, size_t r)
{
  if (c->x)
    c->y[r] = c->size[r] = 0;
  switch (c->derivation) {
  case DERIVE_BF16: check_bf16_row(c, w, r); break;
  case DERIVE_FP8: check_fp8_row(c, w, r); break;
  default: check_nvfp4_row(c, w, r);
  }
}

static void check_rows(struct check *c, struct work *w)
{
  bool nvfp4 = c->derivation != DERIVE_BF16 && c->derivation != DERIVE_FP8;
  double amax = 0;

  for (size_t r = 0; nvfp4 && r < c->rows; r++) {
    matrix_row(c, r, w->row);
    amax = fmax(amax, largest_finite(w->row, c->columns));
  }
  w->ts = scale_for(amax, 6 * 448);
  for (size_t r = 0; r < c->rows; r++) {
    matrix_row(c, r, w->row);
    check_row(c, w, r);
  }
  if (nvfp4)
    check_nvfp4_end(c, w);
}

bool oct_reference_check(struct check *c)
{
  struct work w = {.width = (c->columns + 1) / 2, .blocks = (c->columns + BLOCK - 1) / BLOCK};
  bool ok;

  need_tables();
  c->wrong = 0;
  w.row = calloc(c->columns, sizeof *w.row);
  w.want = calloc(c->columns, sizeof(uint16_t));   // NOLINT(clang-analyzer-unix.MallocSizeof): bytes; two a code at most
  ok = w.row && w.want;
  if (ok)
    check_rows(c, &w);
  free(w.row);
  free(w.want);
  return ok;
}

bool oct_product_agrees(float got, double y, double size)
{
  /* Below this no partial sum can leave binary32, whatever the order. */
  if (!(size * 1.001 <= (double)FLT_MAX))
    return true;
  return fabs((double)got - y) <= 1e-3 * size;
}
