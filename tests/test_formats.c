/* SPDX-License-Identifier: MIT */
/*
 * The derived encodings: the kernels' arithmetic by bits against the reference by decoding, and both against values
 * worked out by hand from the formats' tables. Exhaustive over all 16-bit inputs and all codes; for binary32 inputs,
 * every point where the result changes, its neighbours, and random bit patterns of a fixed seed.
 */
#include "config.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/formats.h"
#include "tools/reference.h"

static uint64_t state;

/* splitmix64 */
static uint64_t next_random(void)
{
  uint64_t z = state += 0x9e3779b97f4a7c15u;

  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static float float_of(uint32_t u)
{
  float x;

  memcpy(&x, &u, sizeof x);
  return x;
}

static uint32_t bits_of(float x)
{
  uint32_t u;

  memcpy(&u, &x, sizeof u);
  return u;
}

/* ck_assert writes each of its points to a file: not for millions. */
static void same_code(const char *format, float x, unsigned by_bits, unsigned by_reference)
{
  if (by_bits != by_reference)
    ck_abort_msg("%s of %a (%08x): %04x, reference %04x", format, (double)x, bits_of(x), by_bits, by_reference);
}

static void same_codes(float x)
{
  same_code("BF16", x, oct_f32_to_bf16(x), oct_reference_bf16((double)x));
  same_code("E4M3", x, oct_f32_to_e4m3(x), oct_reference_e4m3((double)x));
  same_code("E2M1", x, oct_f32_to_e2m1(x), oct_reference_e2m1((double)x));
}

static void same_value(double a, double b)
{
  if (isnan(a) ? !isnan(b) : a != b || signbit(a) != signbit(b))
    ck_abort_msg("%a, reference %a", a, b);
}

START_TEST(decoding_agrees_for_every_code)
{
  for (uint32_t i = 0; i < 65536; i++) {
    same_value((double)oct_bf16_to_f32((uint16_t)i), oct_reference_decode_bf16((uint16_t)i));
    same_value((double)oct_f16_to_f32((uint16_t)i), oct_reference_decode_f16((uint16_t)i));
  }
  for (uint32_t i = 0; i < 256; i++)
    same_value((double)oct_e4m3_to_f32((uint8_t)i), oct_reference_decode_e4m3((uint8_t)i));
  for (uint32_t i = 0; i < 16; i++)
    same_value((double)oct_e2m1_to_f32((uint8_t)i), oct_reference_decode_e2m1((uint8_t)i));
}
END_TEST

START_TEST(every_16_bit_input_encodes_alike)
{
  for (uint32_t i = 0; i < 65536; i++) {
    same_codes(oct_bf16_to_f32((uint16_t)i));
    same_codes(oct_f16_to_f32((uint16_t)i));
  }
}
END_TEST

/* Each code's value, the middles between neighbours, and what lies beside those in binary32. */
static void around(double x)
{
  float f = (float)x;

  for (int sign = 0; sign < 2; sign++, f = -f) {   // NOLINT(cert-flp30-c): counted by sign
    same_codes(f);
    same_codes(nextafterf(f, INFINITY));
    same_codes(nextafterf(f, -INFINITY));
  }
}

START_TEST(every_tie_and_its_neighbours_encode_alike)
{
  for (uint32_t i = 0; i < 0x7f; i++) {
    double a = oct_reference_decode_e4m3((uint8_t)i), b = i < 0x7e ? oct_reference_decode_e4m3((uint8_t)(i + 1)) : 480;

    around(a);
    around((a + b) / 2);
  }
  for (uint32_t i = 0; i < 8; i++) {
    double a = oct_reference_decode_e2m1((uint8_t)i), b = i < 7 ? oct_reference_decode_e2m1((uint8_t)(i + 1)) : 8;

    around(a);
    around((a + b) / 2);
  }
  for (uint32_t i = 0; i < 0x7f80; i++) {
    double a = oct_reference_decode_bf16((uint16_t)i);
    double b = i < 0x7f7f ? oct_reference_decode_bf16((uint16_t)(i + 1)) : 0x1p128;

    around((a + b) / 2);
  }
}
END_TEST

START_TEST(random_binary32_encodes_alike)
{
  state = 1;
  for (int i = 0; i < 3000000; i++)
    same_codes(float_of((uint32_t)next_random()));
}
END_TEST

/* FORMATS, the table, by hand. */
START_TEST(bf16_by_hand)
{
  ck_assert_uint_eq(oct_f32_to_bf16(1.0f), 0x3f80);
  ck_assert_uint_eq(oct_f32_to_bf16(float_of(0x3f808000)), 0x3f80); /* tie: to even */
  ck_assert_uint_eq(oct_f32_to_bf16(float_of(0x3f818000)), 0x3f82); /* tie: to even, upwards */
  ck_assert_uint_eq(oct_f32_to_bf16(float_of(0x3f808001)), 0x3f81);
  ck_assert_uint_eq(oct_f32_to_bf16(FLT_MAX), 0x7f80);
  ck_assert_uint_eq(oct_f32_to_bf16(float_of(0x7f7f7fff)), 0x7f7f);
  ck_assert_uint_eq(oct_f32_to_bf16(-INFINITY), 0xff80);
  ck_assert_uint_eq(oct_f32_to_bf16(float_of(0xffc00001)), 0x7fff);
  ck_assert_uint_eq(oct_f32_to_bf16(-0.0f), 0x8000);
  ck_assert_uint_eq(oct_f32_to_bf16(float_of(0x00008000)), 0x0000); /* a denormal tie */
  ck_assert_uint_eq(oct_f32_to_bf16(float_of(0x00018000)), 0x0002);
}
END_TEST

START_TEST(e4m3_by_hand)
{
  ck_assert_uint_eq(oct_f32_to_e4m3(1.0f), 0x38);
  ck_assert_uint_eq(oct_f32_to_e4m3(448), 0x7e);
  ck_assert_uint_eq(oct_f32_to_e4m3(449), 0x7e);
  ck_assert_uint_eq(oct_f32_to_e4m3(INFINITY), 0x7e);
  ck_assert_uint_eq(oct_f32_to_e4m3(-INFINITY), 0xfe);
  ck_assert_uint_eq(oct_f32_to_e4m3(-NAN), 0x7f);
  ck_assert_uint_eq(oct_f32_to_e4m3(-0.0f), 0x80);
  ck_assert_uint_eq(oct_f32_to_e4m3(0x1p-9f), 0x01);
  ck_assert_uint_eq(oct_f32_to_e4m3(0x1p-10f), 0x00);               /* tie: to even */
  ck_assert_uint_eq(oct_f32_to_e4m3(0x1.8p-9f), 0x02);              /* tie: to even, upwards */
  ck_assert_uint_eq(oct_f32_to_e4m3(nextafterf(0x1p-10f, 1)), 0x01);
  ck_assert_uint_eq(oct_f32_to_e4m3(0x1p-6f), 0x08);
  ck_assert_uint_eq(oct_f32_to_e4m3(432), 0x7e);                    /* 416 is odd, 448 even */
  ck_assert_uint_eq(oct_f32_to_e4m3(-1.0625f), 0xb8);               /* tie: to even */
}
END_TEST

START_TEST(e2m1_by_hand)
{
  static const struct { float x; unsigned code; } t[] = {
    {0, 0}, {0.25f, 0}, {0.26f, 1}, {0.5f, 1}, {0.75f, 2}, {1, 2}, {1.25f, 2}, {1.5f, 3}, {1.75f, 4}, {2, 4},
    {2.5f, 4}, {2.51f, 5}, {3, 5}, {3.5f, 6}, {4, 6}, {5, 6}, {5.01f, 7}, {6, 7}, {7, 7}, {1e30f, 7},
    {-0.0f, 8}, {-0.25f, 8}, {-6, 15}, {-1.75f, 12}};

  for (size_t i = 0; i < sizeof t / sizeof t[0]; i++)
    ck_assert_uint_eq(oct_f32_to_e2m1(t[i].x), t[i].code);
  ck_assert_uint_eq(oct_f32_to_e2m1(INFINITY), 7);
  ck_assert_uint_eq(oct_f32_to_e2m1(-INFINITY), 15);
  ck_assert_uint_eq(oct_f32_to_e2m1(NAN), 7);
  ck_assert_uint_eq(oct_f32_to_e2m1(-NAN), 7);
}
END_TEST

/* ---- Matrices ---- */

static struct check check_of(const struct matrix_in *in, enum derivation d, const void *first, const void *second)
{
  return (struct check){.derivation = d, .source = in->data, .kind = in->kind, .rows = in->rows,
                        .columns = in->columns, .got = {first, second}};
}

static void none_wrong(struct check c)
{
  ck_assert(oct_reference_check(&c));
  ck_assert_msg(c.wrong == 0, "derivation %d, %zux%zu of kind %d: %llu wrong; first in part %u at %zu: %02x, not %02x",
                c.derivation, c.rows, c.columns, c.kind, (unsigned long long)c.wrong, c.part, c.offset, c.had, c.want);
}

struct derived { uint16_t *bf16; uint8_t *fp8, *nvfp4_t, *nvfp4, *scales; float *row_scales; size_t n, t_bytes, s_bytes; };

static struct derived derive_all(const struct matrix_in *in)
{
  size_t n = in->rows * in->columns;
  struct derived d = {.n = n};
  struct matrix_in fp8 = {.kind = SOURCE_FP8, .rows = in->rows, .columns = in->columns};

  d.s_bytes = oct_scales_block_bytes(in->rows, in->columns);
  d.t_bytes = oct_nvfp4_t_scales_at(in->rows, in->columns) + d.s_bytes;
  d.bf16 = malloc(n * 2);
  d.fp8 = malloc(n);
  d.row_scales = malloc(in->rows * sizeof(float));
  d.nvfp4_t = malloc(d.t_bytes);
  d.nvfp4 = malloc(oct_nvfp4_bytes(in->rows, in->columns));
  d.scales = malloc(d.s_bytes);
  memset(d.nvfp4_t, 0xa5, d.t_bytes);   /* padding must be written too */
  memset(d.scales, 0xa5, d.s_bytes);
  oct_derive_bf16(in, d.bf16);
  oct_derive_fp8(in, d.fp8, d.row_scales);
  oct_derive_nvfp4_t(in, d.nvfp4_t);
  fp8.data = d.fp8;
  fp8.scales = d.row_scales;
  oct_derive_nvfp4(&fp8, d.nvfp4, d.scales);
  return d;
}

static void free_derived(struct derived *d)
{
  free(d->bf16);
  free(d->fp8);
  free(d->row_scales);
  free(d->nvfp4_t);
  free(d->nvfp4);
  free(d->scales);
}

static void all_agree(const struct matrix_in *in)
{
  struct derived d = derive_all(in);

  none_wrong(check_of(in, DERIVE_BF16, d.bf16, NULL));
  none_wrong(check_of(in, DERIVE_FP8, d.fp8, d.row_scales));
  none_wrong(check_of(in, DERIVE_NVFP4_T, d.nvfp4_t, NULL));
  none_wrong(check_of(in, DERIVE_NVFP4_FROM_FP8, d.nvfp4, d.scales));
  free_derived(&d);
}

/* What a random matrix is made of: plain values, one narrow range, raw bits, extremes, zeroes. */
static uint32_t random_f32(int flavour)
{
  static const uint32_t odd[] = {0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff,
                                 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x3f800000};
  uint64_t r = next_random();

  switch (flavour) {
  case 0: return bits_of((float)(r >> 40) * 0x1p-24f - 0.5f);
  case 1: return (uint32_t)r;
  case 2: return odd[r % (sizeof odd / sizeof odd[0])];
  case 3: return 0;
  case 4: return (uint32_t)r & 0x807fffff;       /* denormals */
  case 5: return bits_of(INFINITY) | ((uint32_t)r & 0x80000000);
  default: return r % 8 ? bits_of((float)(r >> 40) * 0x1p-20f) : odd[r % (sizeof odd / sizeof odd[0])];
  }
}

static void random_matrix(enum source_kind kind, size_t rows, size_t columns)
{
  size_t n = rows * columns;
  uint32_t *wide = calloc(n, sizeof *wide);
  uint16_t *narrow = calloc(n, sizeof *narrow);
  struct matrix_in in = {.data = kind == SOURCE_F32 ? (void *)wide : (void *)narrow, .kind = kind, .rows = rows,
                         .columns = columns};

  for (size_t r = 0; r < rows; r++) {
    int flavour = (int)(next_random() % 7);

    for (size_t k = 0; k < columns; k++) {
      wide[r * columns + k] = random_f32(flavour);
      narrow[r * columns + k] = (uint16_t)(random_f32(flavour) >> (flavour == 1 ? 0 : 16));
    }
  }
  all_agree(&in);
  free(wide);
  free(narrow);
}

START_TEST(matrices_of_every_shape_and_type_agree)
{
  static const size_t columns[] = {1, 2, 3, 4, 7, 15, 16, 17, 31, 32, 33, 48, 63, 100, 257};
  static const enum source_kind kinds[] = {SOURCE_F32, SOURCE_BF16, SOURCE_F16};

  state = 2;
  for (size_t k = 0; k < 3; k++)
    for (size_t rows = 1; rows < 12; rows++)
      for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++)
        random_matrix(kinds[k], rows, columns[c]);
}
END_TEST

START_TEST(a_matrix_of_one_flavour_agrees)
{
  uint32_t m[5 * 33];
  struct matrix_in in = {.data = m, .kind = SOURCE_F32, .rows = 5, .columns = 33};

  state = 3;
  for (int round = 0; round < 7 * 50; round++) {
    for (size_t i = 0; i < 5 * 33; i++)
      m[i] = random_f32(round % 7);
    all_agree(&in);
  }
}
END_TEST

/* Row-wise FP8 by hand: scale = amax/448, x / scale; zero and non-finite rows get scale 1. */
START_TEST(fp8_by_hand)
{
  static const float m[3][4] = {{896, -448, 2, 0}, {0, -0.0f, NAN, INFINITY}, {1e-45f, 0, 0, 0}};
  static const uint8_t want[3][4] = {{0x7e, 0xf6, 0x38, 0}, {0, 0x80, 0x7f, 0x7e}, {0, 0, 0, 0}};
  struct matrix_in in = {.data = m, .kind = SOURCE_F32, .rows = 3, .columns = 4};
  uint8_t codes[12];
  float scales[3];

  oct_derive_fp8(&in, codes, scales);
  ck_assert_mem_eq(codes, want, 12);
  ck_assert(scales[0] == 2 && scales[1] == 1 && scales[2] == 0x1p-126f);
}
END_TEST

/* NVFP4 by hand, 2 x 18: a full block and a short one a row; a block without a scale has nibbles 0, NaN included. */
START_TEST(nvfp4_by_hand)
{
  float m[2][18] = {{0}};
  struct matrix_in in = {.data = m, .kind = SOURCE_F32, .rows = 2, .columns = 18};
  uint8_t bytes[2 * 9], scales[8], t[20 + 8];
  float ts;

  m[0][0] = 2688;     /* amax: ts = 1, block scale 448, code 6 */
  m[0][1] = -448;     /* -1 */
  m[0][17] = 6;       /* second block: scale 1, code 6 in the high nibble of the last byte */
  m[1][0] = NAN;      /* no finite nonzero element: scale 0 */
  m[1][16] = -NAN;    /* beside a 12: scale 2 */
  m[1][17] = 12;
  oct_derive_nvfp4(&in, bytes, scales);
  ck_assert_mem_eq(bytes, ((uint8_t[]){0xa7, 0, 0, 0, 0, 0, 0, 0, 0x70, 0, 0, 0, 0, 0, 0, 0, 0, 0x77}), 18);
  ck_assert_mem_eq(scales, ((uint8_t[]){0x7e, 0x38, 0, 0x40}), 4);
  memcpy(&ts, scales + 4, sizeof ts);
  ck_assert(ts == 1);

  memset(t, 0xa5, sizeof t);
  oct_derive_nvfp4_t(&in, t);
  for (size_t i = 0; i < 9; i++)
    for (size_t r = 0; r < 2; r++)
      ck_assert_uint_eq(t[i * 2 + r], bytes[r * 9 + i]);
  ck_assert_uint_eq(t[18], 0);
  ck_assert_uint_eq(t[19], 0);
  ck_assert_mem_eq(t + 20, scales, 8);
}
END_TEST

/* The check must bite: each single flipped bit of each derived byte is found, where it is. */
START_TEST(every_flipped_bit_is_found)
{
  float m[3 * 19];
  struct matrix_in in = {.data = m, .kind = SOURCE_F32, .rows = 3, .columns = 19};
  struct derived d;

  state = 4;
  for (size_t i = 0; i < 3 * 19; i++)
    m[i] = float_of(random_f32(0));
  d = derive_all(&in);
  struct { enum derivation kind; void *part[2]; size_t bytes[2]; } t[] = {
    {DERIVE_BF16, {d.bf16, NULL}, {d.n * 2, 0}},
    {DERIVE_FP8, {d.fp8, d.row_scales}, {d.n, 12}},
    {DERIVE_NVFP4_T, {d.nvfp4_t, NULL}, {d.t_bytes, 0}},
    {DERIVE_NVFP4_FROM_FP8, {d.nvfp4, d.scales}, {30, d.s_bytes}}};

  for (size_t i = 0; i < 4; i++)
    for (unsigned p = 0; p < 2; p++)
      for (size_t bit = 0; bit < t[i].bytes[p] * 8; bit++) {
        struct check c = check_of(&in, t[i].kind, t[i].part[0], t[i].part[1]);

        ((uint8_t *)t[i].part[p])[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert(oct_reference_check(&c));
        ck_assert_uint_eq(c.wrong, 1);
        ck_assert_uint_eq(c.part, p);
        ck_assert_uint_eq(c.offset, bit / 8);
        ((uint8_t *)t[i].part[p])[bit / 8] ^= (uint8_t)(1 << bit % 8);
      }
  free_derived(&d);
}
END_TEST

START_TEST(products_are_compared_where_their_size_is_finite)
{
  ck_assert(oct_product_agrees(1.0005f, 1, 1));
  ck_assert(!oct_product_agrees(1.0015f, 1, 1));
  ck_assert(!oct_product_agrees(NAN, 1, 1));
  ck_assert(!oct_product_agrees(INFINITY, 1, 1));
  ck_assert(oct_product_agrees(0, 0, 0));
  ck_assert(!oct_product_agrees(1e-30f, 0, 0));
  ck_assert(oct_product_agrees(NAN, (double)NAN, (double)NAN));
  ck_assert(oct_product_agrees(INFINITY, 1e39, 1e39));
}
END_TEST

int main(void)
{
  Suite *s = suite_create("formats");
  TCase *c = tcase_create("codes"), *m = tcase_create("matrices");
  SRunner *r;
  int failed;

  tcase_set_timeout(c, 60);
  tcase_add_test(c, decoding_agrees_for_every_code);
  tcase_add_test(c, every_16_bit_input_encodes_alike);
  tcase_add_test(c, every_tie_and_its_neighbours_encode_alike);
  tcase_add_test(c, random_binary32_encodes_alike);
  tcase_add_test(c, bf16_by_hand);
  tcase_add_test(c, e4m3_by_hand);
  tcase_add_test(c, e2m1_by_hand);
  tcase_set_timeout(m, 60);
  tcase_add_test(m, matrices_of_every_shape_and_type_agree);
  tcase_add_test(m, a_matrix_of_one_flavour_agrees);
  tcase_add_test(m, fp8_by_hand);
  tcase_add_test(m, nvfp4_by_hand);
  tcase_add_test(m, every_flipped_bit_is_found);
  tcase_add_test(m, products_are_compared_where_their_size_is_finite);
  suite_add_tcase(s, c);
  suite_add_tcase(s, m);
  r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
