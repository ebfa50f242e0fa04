/* SPDX-License-Identifier: MIT */
/*
 * octool's device code, called as the embedded device calls it: parameters by address, for matrices of many shapes. What
 * derives is checked by the reference in every byte; what multiplies against the reference's binary64 products.
 */
#include "config.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tools/formats.h"
#include "tools/kernels.h"

enum { ROWS_MAX = 150, COLUMNS_MAX = 530 };

static uint64_t state;

static uint64_t next_random(void)
{
  uint64_t z = state += 0x9e3779b97f4a7c15u;

  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static float uniform(void)
{
  return (float)(next_random() >> 40) * 0x1p-23f - 1;
}

static void call(const char *name, const void *params, size_t count)
{
  static const oc_host_launch launch = {{1, 1, 1}, {1, 1, 1}, 0};
  void *at[8];

  for (size_t i = 0; i < count; i++)
    at[i] = (char *)(uintptr_t)params + 8 * i;
  for (uint32_t i = 0; i < oct_kernels.function_count; i++)
    if (strcmp(oct_kernels.functions[i].name, name) == 0) {
      ck_assert_uint_eq(oct_kernels.functions[i].param_count, count);
      oct_kernels.functions[i].fn(&launch, at);
      return;
    }
  ck_abort_msg("no kernel %s", name);
}

static uint64_t address(const void *p)
{
  return (uint64_t)(uintptr_t)p;
}

struct buffers {
  float source[ROWS_MAX * COLUMNS_MAX], x[COLUMNS_MAX], y[ROWS_MAX];
  uint16_t first[ROWS_MAX * COLUMNS_MAX];       /* room for any first part */
  uint8_t fp8[ROWS_MAX * COLUMNS_MAX];
  float second[ROWS_MAX * COLUMNS_MAX], fp8_scales[ROWS_MAX];
  double want[ROWS_MAX], size[ROWS_MAX];
};

/* The kernel's inputs: nvfp4-from-fp8 starts from what the FP8 kernel made. */
static void derive(struct buffers *b, enum derivation d, size_t rows, size_t columns)
{
  struct derive_params p = {.source = address(b->source), .kind = SOURCE_F32, .rows = rows, .columns = columns,
                            .out = {address(b->first), address(b->second)}};

  if (d == DERIVE_NVFP4_FROM_FP8) {
    p.out[0] = address(b->fp8);
    p.out[1] = address(b->fp8_scales);
    call(oct_derive_key(DERIVE_FP8)->func, &p, sizeof p / 8);
    p.source = address(b->fp8);
    p.scales = address(b->fp8_scales);
    p.kind = SOURCE_FP8;
    p.out[0] = address(b->first);
    p.out[1] = address(b->second);
  }
  call(oct_derive_key(d)->func, &p, sizeof p / 8);
}

static void multiply(struct buffers *b, enum derivation d, size_t rows, size_t columns)
{
  struct matvec_params p = {.weight = {address(b->first), address(b->second)}, .x = address(b->x), .y = address(b->y),
                            .rows = rows, .columns = columns};

  memset(b->y, 0xff, sizeof b->y);
  call(oct_matvec_key(d)->func, &p, sizeof p / 8);
}

static void one(struct buffers *b, enum derivation d, size_t rows, size_t columns)
{
  struct check c = {.derivation = d, .source = b->source, .kind = SOURCE_F32, .rows = rows, .columns = columns,
                    .got = {(unsigned char *)b->first, (unsigned char *)b->second}, .x = b->x, .y = b->want,
                    .size = b->size};

  for (size_t i = 0; i < rows * columns; i++)
    b->source[i] = uniform();
  for (size_t k = 0; k < columns; k++)
    b->x[k] = uniform();
  derive(b, d, rows, columns);
  ck_assert(oct_reference_check(&c));
  ck_assert_uint_eq(c.wrong, 0);
  multiply(b, d, rows, columns);
  for (size_t r = 0; r < rows; r++)
    if (!oct_product_agrees(b->y[r], b->want[r], b->size[r]))
      ck_abort_msg("derivation %d, %zux%zu: y[%zu] is %g, not %g", d, rows, columns, r, (double)b->y[r], b->want[r]);
  if (rows < ROWS_MAX)
    ck_assert(memcmp(&b->y[rows], "\xff\xff\xff\xff", 4) == 0);
}

START_TEST(kernels_agree_with_the_reference)
{
  static const size_t rows[] = {1, 2, 3, 63, 64, 65, 129, ROWS_MAX};
  static const size_t columns[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 100, COLUMNS_MAX};
  struct buffers *b = calloc(1, sizeof *b);

  state = 1;
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
    for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++)
      one(b, (enum derivation)_i, rows[r], columns[c]);
  free(b);
}
END_TEST

/* A wrong weight must be seen: the check is not so lax that anything passes. */
START_TEST(a_wrong_weight_makes_a_wrong_product)
{
  struct buffers *b = calloc(1, sizeof *b);

  one(b, DERIVE_BF16, 4, 64);
  b->first[70] = (uint16_t)(b->first[70] ^ 0x8000);
  b->first[70] = (uint16_t)(b->first[70] | 0x3f00);
  multiply(b, DERIVE_BF16, 4, 64);
  ck_assert(!oct_product_agrees(b->y[1], b->want[1], b->size[1]));
  ck_assert(oct_product_agrees(b->y[0], b->want[0], b->size[0]));
  free(b);
}
END_TEST

START_TEST(every_key_has_its_kernel)
{
  oc_kernel_key *keys[OCT_KERNELS];

  oct_kernel_keys(keys);
  ck_assert_uint_eq(oct_kernels.function_count, OCT_KERNELS);
  for (size_t i = 0; i < OCT_KERNELS; i++) {
    bool found = false;

    ck_assert_str_eq(keys[i]->module, OCT_MODULE);
    for (uint32_t f = 0; f < oct_kernels.function_count; f++)
      found |= strcmp(oct_kernels.functions[f].name, keys[i]->func) == 0;
    ck_assert_msg(found, "%s", keys[i]->func);
  }
}
END_TEST

int main(void)
{
  Suite *s = suite_create("kernels");
  TCase *c = tcase_create("all");
  SRunner *r;
  int failed;

  tcase_set_timeout(c, 60);
  tcase_add_loop_test(c, kernels_agree_with_the_reference, 0, DERIVATIONS);
  tcase_add_test(c, a_wrong_weight_makes_a_wrong_product);
  tcase_add_test(c, every_key_has_its_kernel);
  suite_add_tcase(s, c);
  r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
