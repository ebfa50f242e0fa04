/* SPDX-License-Identifier: MIT */
/*
 * The encodings of derived weights as the kernels make them, whole matrices on the host, by the arithmetic of
 * tools/kernels/derive_math.h. tools/reference.h makes the same values another way; neither uses the other.
 *
 * Layouts of an [N rows][K columns] matrix:
 *   bf16            [N][K] BF16
 *   rowwise-fp8     [N][K] E4M3                         and  [N] F32, the rows' scales
 *   nvfp4           [N][ceil(K/2)], element 2i low      and  the scales block
 *   nvfp4-t         [ceil(K/2)][N], 0 up to 4 bytes, then the scales block
 *   scales block    [N][ceil(K/16)] E4M3, 0 up to 4 bytes, then one F32
 */
#ifndef OCTOOL_FORMATS_H
#define OCTOOL_FORMATS_H

#include "tools/kernels/derive_math.h"

float oct_bf16_to_f32(uint16_t code);
float oct_f16_to_f32(uint16_t code);
float oct_e4m3_to_f32(uint8_t code);
float oct_e2m1_to_f32(uint8_t code);    /* the low nibble */

uint16_t oct_f32_to_bf16(float x);
uint8_t  oct_f32_to_e4m3(float x);
uint8_t  oct_f32_to_e2m1(float x);

void oct_derive_bf16(const struct matrix_in *in, uint16_t *out);
void oct_derive_fp8(const struct matrix_in *in, uint8_t *codes, float *scales);
/* `scales`: the scales block, 4-byte aligned. */
void oct_derive_nvfp4(const struct matrix_in *in, uint8_t *bytes, uint8_t *scales);
/* `out`: bytes and scales block in one; 4-byte aligned. */
void oct_derive_nvfp4_t(const struct matrix_in *in, uint8_t *out);

/* Bytes; the callers have checked that rows * columns * 4 does not overflow. */
size_t oct_nvfp4_bytes(size_t rows, size_t columns);
size_t oct_scales_block_bytes(size_t rows, size_t columns);
/* Where the scales block begins in nvfp4-t. */
size_t oct_nvfp4_t_scales_at(size_t rows, size_t columns);

#endif
