/* SPDX-License-Identifier: MIT */
/*
 * What the derived bytes must be, made another way than the kernels make them: every code is decoded from its
 * fields, and of the decoded values the nearest is picked in binary64, ties to the even code. Scales and quotients
 * are computed in binary64 and rounded to binary32 once, which is what one binary32 operation gives.
 *
 * check: one derivation of one matrix; the caller's arrays, used by one thread.
 */
#ifndef OCTOOL_REFERENCE_H
#define OCTOOL_REFERENCE_H

#include "tools/dtype.h"

double oct_reference_decode_bf16(uint16_t code);
double oct_reference_decode_f16(uint16_t code);
double oct_reference_decode_e4m3(uint8_t code);
double oct_reference_decode_e2m1(uint8_t code);
uint16_t oct_reference_bf16(double x);
uint8_t  oct_reference_e4m3(double x);
uint8_t  oct_reference_e2m1(double x);

enum derivation { DERIVE_BF16, DERIVE_FP8, DERIVE_NVFP4_T, DERIVE_NVFP4_FROM_FP8, DERIVATIONS };

struct check {
  enum derivation derivation;
  const void *source;               /* [rows][columns] of `kind`, as the file has it */
  enum source_kind kind;
  size_t rows, columns;
  const unsigned char *got[2];      /* the derived bytes; [1] of pairs only */
  /* For products by it; x may be NULL. y[r] = sum w*x over the row, size[r] = sum |w*x|. */
  const float *x;
  double *y, *size;
  /* Results */
  uint64_t wrong;                   /* bytes */
  unsigned part;                    /* the first wrong byte: of got[part], at an offset; */
  size_t offset;
  unsigned want, had;
};

/* False without memory. */
bool oct_reference_check(struct check *c);

/* Does a product that was computed in binary32 agree? Rows where the sum of magnitudes is not finite in binary32
   agree with anything. */
bool oct_product_agrees(float got, double y, double size);

#endif
