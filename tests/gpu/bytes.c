/* SPDX-License-Identifier: MIT */
/*
 * Derived bytes of the CUDA device against the host's: each derivation of matrices that hold every 16-bit value, every tie,
 * millions of binary32 bit patterns, and of many shapes. Prints what was compared; exits 0 only if no byte differs.
 *   bytes [MILLIONS]     of binary32 patterns; default 8
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/device.h"
#include "tools/formats.h"
#include "tools/kernels.h"

static struct world {
  struct device device;
  oc_model *model;
  oc_stream stream;
  uint64_t compared, wrong, matrices;
} w;

static void fail(const char *words) {
  fprintf(stderr, "bytes: %s\n", words);
  exit(EXIT_FAILURE);
}

static void must(bool ok, const struct fault *why) {
  if (!ok) fail(why->text);
}

static void must_liboc(oc_status st, const char *what) {
  struct fault why;
  must(st == OC_OK || oct_liboc_fault(&why, st, "%s", what), &why);
}

static void *need(size_t bytes) {
  void *p = calloc(bytes + 1, 1);
  if (!p) fail("no memory");
  return p;
}

/* ---- one derivation, there and here ---- */

struct parts { size_t bytes[2]; };

static struct parts sizes_of(enum derivation d, size_t rows, size_t columns) {
  size_t block = oct_scales_block_bytes(rows, columns);
  switch (d) {
    case DERIVE_BF16: return (struct parts){{rows * columns * 2, 0}};
    case DERIVE_FP8: return (struct parts){{rows * columns, rows * sizeof(float)}};
    case DERIVE_NVFP4_T: return (struct parts){{oct_nvfp4_t_scales_at(rows, columns) + block, 0}};
    default: return (struct parts){{oct_nvfp4_bytes(rows, columns), block}};
  }
}

static void on_host(enum derivation d, const struct matrix_in *in, void *const out[2]) {
  switch (d) {
    case DERIVE_BF16: oct_derive_bf16(in, out[0]); break;
    case DERIVE_FP8: oct_derive_fp8(in, out[0], out[1]); break;
    case DERIVE_NVFP4_T: oct_derive_nvfp4_t(in, out[0]); break;
    default: oct_derive_nvfp4(in, out[0], out[1]);
  }
}

static oc_devptr block(size_t bytes) {
  oc_devptr p = 0;
  if (bytes > 0) must_liboc(oc_pool_alloc(oc_model_pool(w.model), bytes, 0, &p), "allocating");
  return p;
}

static void give_back(oc_devptr p) {
  if (p) must_liboc(oc_pool_free(oc_model_pool(w.model), p), "freeing");
}

static void launch(enum derivation d, const struct matrix_in *in, const oc_devptr source[2], const oc_devptr out[2]) {
  struct derive_params p = {source[0], source[1], in->kind, in->rows, in->columns, {out[0], out[1]}};
  struct fault why;
  oc_kernel k;
  must_liboc(oc_opcache_kernel_k(oc_model_opcache(w.model), oct_derive_key(d), &k), "looking the kernel up");
  must(oct_launch(&w.device, k, oct_derive_shape(d, in->rows), (const uint64_t *)&p, sizeof p / 8, w.stream, &why), &why);
}

static void compare(enum derivation d, const struct matrix_in *in, unsigned part, const unsigned char *got,
                    const unsigned char *want, size_t n) {
  w.compared += n;
  for (size_t i = 0; i < n; i++) {
    if (got[i] == want[i]) continue;
    if (w.wrong++ < 10)
      printf("derivation %d of %zux%zu, kind %d: byte %zu of part %u is %02x, the host's %02x\n", d, in->rows, in->columns,
             in->kind, i, part, got[i], want[i]);
  }
}

/* The device derives from `source`, which it holds as the host holds *in; what it made stays there, in out. */
static void derive(enum derivation d, const struct matrix_in *in, const oc_devptr source[2], oc_devptr out[2],
                   void *const want[2]) {
  struct parts s = sizes_of(d, in->rows, in->columns);
  struct fault why;
  on_host(d, in, want);
  for (unsigned i = 0; i < 2; i++) out[i] = block(s.bytes[i]);
  launch(d, in, source, out);
  for (unsigned i = 0; i < 2 && s.bytes[i] > 0; i++) {
    unsigned char *got = need(s.bytes[i]);
    must(oct_copy_out(&w.device, got, out[i], s.bytes[i], w.stream, &why) && oct_wait(&w.device, w.stream, &why), &why);
    compare(d, in, i, got, want[i], s.bytes[i]);
    free(got);
  }
}

static void derive_and_drop(enum derivation d, const struct matrix_in *in, const oc_devptr source[2]) {
  size_t most = in->rows * in->columns * 2 + in->rows * 4 + 64;
  void *want[2] = {need(most), need(most)};
  oc_devptr out[2];
  derive(d, in, source, out, want);
  for (int i = 0; i < 2; i++) {
    give_back(out[i]);
    free(want[i]);
  }
}

static void matrix(enum source_kind kind, size_t rows, size_t columns, const void *data) {
  const struct matrix_in in = {data, NULL, kind, rows, columns};
  size_t n = rows * columns, bytes = n * (kind == SOURCE_F32 ? 4 : 2);
  oc_devptr source[2] = {block(bytes), 0}, fp8[2];
  void *codes[2] = {need(n), need(rows * 4)};
  struct fault why;
  must(oct_copy_in(&w.device, source[0], data, bytes, w.stream, &why), &why);
  derive_and_drop(DERIVE_BF16, &in, source);
  derive_and_drop(DERIVE_NVFP4_T, &in, source);
  derive(DERIVE_FP8, &in, source, fp8, codes);
  derive_and_drop(DERIVE_NVFP4_FROM_FP8, &(struct matrix_in){codes[0], codes[1], SOURCE_FP8, rows, columns}, fp8);
  give_back(source[0]);
  for (int i = 0; i < 2; i++) {
    give_back(fp8[i]);
    free(codes[i]);
  }
  w.matrices++;
}

/* ---- inputs ---- */

static uint64_t state = 1;

static uint64_t next_random(void) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static void every_16_bit_value(void) {
  uint16_t *m = need(65536 * sizeof *m);
  for (uint32_t i = 0; i < 65536; i++) m[i] = (uint16_t)i;
  matrix(SOURCE_BF16, 256, 256, m);
  matrix(SOURCE_F16, 256, 256, m);
  matrix(SOURCE_BF16, 4096, 16, m);
  matrix(SOURCE_F16, 4096, 16, m);
  free(m);
}

/* The i-th of what lies on 1/64 of a power of two, with neighbours and both signs: all middles between codes are there. */
enum { AROUND = 64 * 3 * 2 };

static uint32_t around(uint32_t exponent, uint32_t i) {
  return ((exponent << 23 | i / 6 << 17) + i % 3 - 1) ^ (i / 3 % 2) << 31;
}

/* E4M3's: the first of each row makes the row's scale 1. */
static void every_row_tie(void) {
  enum { ROWS = 127 + 8, COLUMNS = 1 + AROUND };
  uint32_t *m = need((size_t)ROWS * COLUMNS * sizeof *m);
  for (uint32_t r = 0; r < ROWS; r++) {
    m[r * COLUMNS] = derive_bits(448);
    for (uint32_t i = 0; i < AROUND; i++) m[r * COLUMNS + 1 + i] = around(r, i);
  }
  matrix(SOURCE_F32, ROWS, COLUMNS, m);
  free(m);
}

/* E2M1's: the first of all makes the matrix's scale 1, the first of each block the block's. */
static void every_block_tie(void) {
  enum { LEAST = 120, ROWS = 128 - LEAST + 2, COLUMNS = 16 * ((AROUND + 14) / 15) };
  uint32_t *m = need((size_t)ROWS * COLUMNS * sizeof *m);
  for (uint32_t r = 0; r + 1 < ROWS; r++)
    for (uint32_t c = 0; c < COLUMNS; c++) {
      uint32_t i = c / 16 * 15 + c % 16 - 1;
      m[r * COLUMNS + c] = c % 16 == 0 ? derive_bits(6) : i < AROUND ? around(LEAST + r, i) : 0;
    }
  m[(ROWS - 1) * COLUMNS] = derive_bits(2688);
  matrix(SOURCE_F32, ROWS, COLUMNS, m);
  free(m);
}

static void random_patterns(size_t millions) {
  enum { ROWS = 256, COLUMNS = 4096 };   /* about a million */
  uint32_t *m = need((size_t)ROWS * COLUMNS * sizeof *m);
  for (size_t round = 0; round < millions; round++) {
    for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++) {
      uint32_t u = (uint32_t)next_random();
      m[i] = i / COLUMNS % 2 ? u : (u & 0x83ffffff) + 0x3e000000;
    }
    matrix(SOURCE_F32, ROWS, COLUMNS, m);
  }
  free(m);
}

static void many_shapes(void) {
  static const size_t rows[] = {1, 2, 3, 127, 129}, columns[] = {1, 2, 3, 15, 16, 17, 33, 511, 1025};
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
    for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++) {
      uint32_t *m = need(rows[r] * columns[c] * sizeof *m);
      for (size_t i = 0; i < rows[r] * columns[c]; i++) m[i] = (uint32_t)next_random();
      for (enum source_kind k = SOURCE_F32; k <= SOURCE_F16; k++) matrix(k, rows[r], columns[c], m);
      free(m);
    }
}

/* ---- */

static void open_world(void) {
  struct fault why;
  size_t bytes;
  must(oct_device_open(&w.device, "cuda", 0, &why) && oct_stream_create(&w.device, &w.stream, &why), &why);
  must_liboc(oc_model_create(w.device.backend, NULL, &w.model), "creating the model");
  const void *image = oct_kernel_image(w.device.ops->name, &bytes);
  must_liboc(oc_model_load_module(w.model, OCT_MODULE, image, bytes), "loading the kernels");
}

static void close_world(void) {
  struct fault why;
  must_liboc(oc_model_destroy(w.model), "destroying the model");
  must(oct_stream_destroy(&w.device, w.stream, &why) && oct_device_close(&w.device, &why), &why);
}

int main(int argc, char **argv) {
  size_t millions = argc > 1 ? strtoul(argv[1], NULL, 10) : 8;
  open_world();
  every_16_bit_value();
  every_row_tie();
  every_block_tie();
  many_shapes();
  random_patterns(millions);
  close_world();
  printf("%llu matrices, %llu derived bytes compared with the host's, %llu differ\n", (unsigned long long)w.matrices,
         (unsigned long long)w.compared, (unsigned long long)w.wrong);
  return w.wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
