/* SPDX-License-Identifier: MIT */
/*
 * octool's GPU kernels without a GPU: tools/kernels/derive.cu, all of it, compiled for the host (tests/cuda_cpu.h) and
 * launched in several shapes. Its bytes must be the host's and what the reference finds right, for every 16-bit value,
 * every tie, and millions of binary32 ones; its products must agree with binary64. Nothing may be written beside the
 * outputs. What this cannot show is what ptxas and a GPU make of it: tests/test_ptx.sh reads the PTX, tests/gpu/check.sh
 * runs it.
 */
#include "config.h"

#include <check.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_cpu.h"
#include "tools/formats.h"
#include "tools/kernels.h"

/* ---- launches ---- */

typedef void derive_fn(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
typedef void matvec_fn(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
derive_fn derive_bf16, derive_rowwise_fp8, derive_nvfp4_t, derive_nvfp4_from_fp8;
matvec_fn matvec_bf16, matvec_rowwise_fp8, matvec_nvfp4_t, matvec_nvfp4_from_fp8;

static derive_fn *const derive_kernels[DERIVATIONS] = {
  [DERIVE_BF16] = derive_bf16, [DERIVE_FP8] = derive_rowwise_fp8, [DERIVE_NVFP4_T] = derive_nvfp4_t,
  [DERIVE_NVFP4_FROM_FP8] = derive_nvfp4_from_fp8};
static matvec_fn *const matvec_kernels[DERIVATIONS] = {
  [DERIVE_BF16] = matvec_bf16, [DERIVE_FP8] = matvec_rowwise_fp8, [DERIVE_NVFP4_T] = matvec_nvfp4_t,
  [DERIVE_NVFP4_FROM_FP8] = matvec_nvfp4_from_fp8};

__thread struct cuda_dim threadIdx, blockIdx;
struct cuda_dim blockDim, gridDim;

static struct launch {
  pthread_barrier_t barrier;
  const struct derive_params *derive;
  const struct matvec_params *matvec;
  enum derivation d;
} launch;

void cuda_cpu_sync(void) {
  pthread_barrier_wait(&launch.barrier);
}

static void run_block(void) {
  const struct derive_params *p = launch.derive;
  const struct matvec_params *m = launch.matvec;
  if (p)
    derive_kernels[launch.d](p->source, p->scales, p->kind, p->rows, p->columns, p->out[0], p->out[1]);
  else
    matvec_kernels[launch.d](m->weight[0], m->weight[1], m->x, m->y, m->rows, m->columns);
}

static void *run_thread(void *index) {
  threadIdx = (struct cuda_dim){(uint32_t)(uintptr_t)index, 0, 0};
  for (uint32_t b = 0; b < gridDim.x; b++) {
    blockIdx = (struct cuda_dim){b, 0, 0};
    run_block();
    cuda_cpu_sync();   /* the next block uses the same statics */
  }
  return NULL;
}

enum { THREADS_MAX = 16 };

static void run_launch(struct shape s) {
  pthread_t threads[THREADS_MAX];
  ck_assert_uint_le(s.threads, THREADS_MAX);
  gridDim = (struct cuda_dim){s.blocks, 1, 1};
  blockDim = (struct cuda_dim){s.threads, 1, 1};
  ck_assert_int_eq(pthread_barrier_init(&launch.barrier, NULL, s.threads), 0);
  for (uint32_t i = 0; i < s.threads; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, run_thread, (void *)(uintptr_t)i), 0);
  for (uint32_t i = 0; i < s.threads; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&launch.barrier);
}

static const struct shape shapes[] = {{1, 1}, {5, 1}, {1, 7}, {3, 4}, {2, THREADS_MAX}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* ---- inputs ---- */

static uint64_t state;

static uint64_t next_random(void) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* Plain values, raw bits, extremes, denormals, zeroes, and mixtures: NaN, infinities and both zeroes are among them. */
static uint32_t random_bits(int flavour) {
  static const uint32_t odd[] = {0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff,
                                 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x3f800000};
  uint64_t r = next_random();
  switch (flavour) {
    case 0: return derive_bits((float)(r >> 40) * 0x1p-24f - 0.5f);
    case 1: return (uint32_t)r;
    case 2: return odd[r % (sizeof odd / sizeof odd[0])];
    case 3: return 0;
    case 4: return (uint32_t)r & 0x807fffff;
    default: return r % 8 ? derive_bits((float)(r >> 40) * 0x1p-20f) : odd[r % (sizeof odd / sizeof odd[0])];
  }
}

static void *random_matrix(enum source_kind kind, size_t rows, size_t columns) {
  unsigned char *m = malloc(rows * columns * 4);
  for (size_t r = 0; r < rows; r++) {
    int flavour = (int)(next_random() % 6);
    for (size_t c = 0; c < columns; c++) {
      uint32_t wide = random_bits(flavour);
      uint16_t narrow = (uint16_t)(wide >> (flavour == 1 ? 0 : 16));
      size_t i = r * columns + c;
      if (kind == SOURCE_F32) memcpy(m + 4 * i, &wide, 4);
      else memcpy(m + 2 * i, &narrow, 2);
    }
  }
  return m;
}

/* ---- derivations ---- */

enum { MARGIN = 64 };

/* An output, with a margin on both sides that must stay as it is. */
struct part { unsigned char *memory; size_t bytes; };

static struct part part_new(size_t bytes) {
  struct part p = {aligned_alloc(MARGIN, (bytes + 3 * MARGIN - 1) / MARGIN * MARGIN), bytes};
  memset(p.memory, 0xa5, bytes + 2 * MARGIN);
  return p;
}

static unsigned char *at(struct part p) {
  return p.memory + MARGIN;
}

static void part_free(struct part p) {
  for (size_t i = 0; i < MARGIN; i++)
    if (p.memory[i] != 0xa5 || at(p)[p.bytes + i] != 0xa5) ck_abort_msg("written beside an output of %zu bytes", p.bytes);
  free(p.memory);
}

struct parts { struct part at[2]; };

static struct parts parts_new(enum derivation d, size_t rows, size_t columns) {
  size_t block = oct_scales_block_bytes(rows, columns);
  switch (d) {
    case DERIVE_BF16: return (struct parts){{part_new(rows * columns * 2), part_new(0)}};
    case DERIVE_FP8: return (struct parts){{part_new(rows * columns), part_new(rows * 4)}};
    case DERIVE_NVFP4_T: return (struct parts){{part_new(oct_nvfp4_t_scales_at(rows, columns) + block), part_new(0)}};
    default: return (struct parts){{part_new(oct_nvfp4_bytes(rows, columns)), part_new(block)}};
  }
}

static void parts_free(struct parts p) {
  part_free(p.at[0]);
  part_free(p.at[1]);
}

static uint64_t address(const void *p) {
  return (uint64_t)(uintptr_t)p;
}

static void by_kernel(enum derivation d, const struct matrix_in *in, struct shape s, struct parts out) {
  const struct derive_params p = {address(in->data), address(in->scales), in->kind, in->rows, in->columns,
                                  {address(at(out.at[0])), address(at(out.at[1]))}};
  launch.derive = &p;
  launch.matvec = NULL;
  launch.d = d;
  run_launch(s);
}

static void by_host(enum derivation d, const struct matrix_in *in, struct parts out) {
  void *first = at(out.at[0]), *second = at(out.at[1]);
  switch (d) {
    case DERIVE_BF16: oct_derive_bf16(in, first); break;
    case DERIVE_FP8: oct_derive_fp8(in, first, second); break;
    case DERIVE_NVFP4_T: oct_derive_nvfp4_t(in, first); break;
    default: oct_derive_nvfp4(in, first, second);
  }
}

static void same_part(enum derivation d, const struct matrix_in *in, struct part a, struct part b) {
  for (size_t i = 0; i < a.bytes; i++)
    if (at(a)[i] != at(b)[i])
      ck_abort_msg("derivation %d of %zux%zu, kind %d: byte %zu is %02x, the host's %02x", d, in->rows, in->columns, in->kind,
                   i, at(a)[i], at(b)[i]);
}

static void same_products(enum derivation d, const struct matrix_in *in, struct parts weight, const struct check *c) {
  struct part y = part_new(in->rows * 4);
  const struct matvec_params p = {{address(at(weight.at[0])), address(at(weight.at[1]))}, address(c->x), address(at(y)),
                                  in->rows, in->columns};
  launch.derive = NULL;
  launch.matvec = &p;
  launch.d = d;
  for (size_t s = 0; s < SHAPES; s++) {
    run_launch(shapes[s]);
    for (size_t r = 0; r < in->rows; r++) {
      float got;
      memcpy(&got, at(y) + 4 * r, 4);
      if (!oct_product_agrees(got, c->y[r], c->size[r]))
        ck_abort_msg("product by derivation %d of %zux%zu: y[%zu] is %g, not %g", d, in->rows, in->columns, r, (double)got,
                     c->y[r]);
    }
  }
  part_free(y);
}

/* `source`: what the reference starts from, which for a derivation of a derivation is not `in`. */
static void referred(enum derivation d, const struct matrix_in *in, const struct matrix_in *source, struct parts got,
                     bool products) {
  float *x = calloc(in->columns, sizeof *x);
  double *y = calloc(in->rows, sizeof *y), *size = calloc(in->rows, sizeof *size);
  struct check c = {.derivation = d, .source = source->data, .kind = source->kind, .rows = in->rows, .columns = in->columns,
                    .got = {at(got.at[0]), at(got.at[1])}, .x = x, .y = y, .size = size};
  for (size_t k = 0; k < in->columns; k++) x[k] = (float)(next_random() >> 40) * 0x1p-23f - 1;
  ck_assert(oct_reference_check(&c));
  ck_assert_msg(c.wrong == 0, "derivation %d of %zux%zu, kind %d: %llu wrong; the first in part %u at %zu: %02x, not %02x", d,
                in->rows, in->columns, in->kind, (unsigned long long)c.wrong, c.part, c.offset, c.had, c.want);
  if (products) same_products(d, in, got, &c);
  free(x);
  free(y);
  free(size);
}

/* Through one derivation in every shape; the caller frees what it is. */
static struct parts one(enum derivation d, const struct matrix_in *in, const struct matrix_in *source, bool products) {
  struct parts want = parts_new(d, in->rows, in->columns), got = parts_new(d, in->rows, in->columns);
  by_host(d, in, want);
  for (size_t s = 0; s < SHAPES; s++) {
    memset(at(got.at[0]), 0xa5, got.at[0].bytes);   /* padding must be written too */
    memset(at(got.at[1]), 0xa5, got.at[1].bytes);
    by_kernel(d, in, shapes[s], got);
    for (int i = 0; i < 2; i++) same_part(d, in, got.at[i], want.at[i]);
  }
  referred(d, in, source, got, products);
  parts_free(want);
  return got;
}

static void all(const struct matrix_in *in, bool products) {
  parts_free(one(DERIVE_BF16, in, in, products));
  parts_free(one(DERIVE_NVFP4_T, in, in, products));
  struct parts fp8 = one(DERIVE_FP8, in, in, products);
  const struct matrix_in from = {at(fp8.at[0]), (const float *)(const void *)at(fp8.at[1]), SOURCE_FP8, in->rows, in->columns};
  parts_free(one(DERIVE_NVFP4_FROM_FP8, &from, in, products));
  parts_free(fp8);
}

static const enum source_kind kinds[] = {SOURCE_F32, SOURCE_BF16, SOURCE_F16};

START_TEST(every_size_and_type) {
  static const size_t rows[] = {1, 2, 3, 17, 64}, columns[] = {1, 2, 3, 15, 16, 17, 33, 100, 257};
  state = 1;
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
    for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++) {
      void *m = random_matrix(kinds[_i], rows[r], columns[c]);
      all(&(struct matrix_in){m, NULL, kinds[_i], rows[r], columns[c]}, true);
      free(m);
    }
}
END_TEST

START_TEST(every_16_bit_value) {
  uint16_t *m = malloc(65536 * sizeof *m);
  for (uint32_t i = 0; i < 65536; i++) m[i] = (uint16_t)i;
  for (size_t k = 1; k < 3; k++) all(&(struct matrix_in){m, NULL, kinds[k], 256, 256}, false);
  free(m);
}
END_TEST

/* Where scales are exactly 1, codes round at their own middles: each of them, with its neighbours in binary32. */
static size_t around(uint32_t *m, double x) {
  for (uint32_t i = 0; i < 6; i++) m[i] = (derive_bits((float)x) - 1 + i / 2) ^ (i % 2) << 31;
  return 6;
}

START_TEST(every_tie) {
  static uint32_t m[4096];
  size_t n = 1;
  m[0] = derive_bits(448);   /* the row's scale */
  for (int i = 1; i < 0x7e; i++) {
    double a = oct_reference_decode_e4m3((uint8_t)i), b = oct_reference_decode_e4m3((uint8_t)(i + 1));
    n += around(m + n, a);
    n += around(m + n, (a + b) / 2);
  }
  all(&(struct matrix_in){m, NULL, SOURCE_F32, 1, n}, false);
  m[0] = derive_bits(2688);  /* the matrix's */
  for (n = 16; n < 16 * 16; n += 16) {
    uint8_t i = (uint8_t)(n / 16 - 1);
    m[n] = derive_bits(6);   /* the block's */
    double a = oct_reference_decode_e2m1(i & 7), b = (i & 7) < 7 ? oct_reference_decode_e2m1((uint8_t)((i & 7) + 1)) : 8;
    around(m + n + 1, (a + b) / 2 > 6 ? 5.5 : (a + b) / 2);
    around(m + n + 7, a > 0 ? a : 0.25);
  }
  all(&(struct matrix_in){m, NULL, SOURCE_F32, 1, n}, false);
}
END_TEST

/* Bit patterns at random: all exponents, denormals, NaN of every kind. */
START_TEST(millions_of_binary32) {
  enum { ROWS = 512, COLUMNS = 4096 };
  uint32_t *m = malloc((size_t)ROWS * COLUMNS * sizeof *m);
  const struct matrix_in in = {m, NULL, SOURCE_F32, ROWS, COLUMNS};
  state = 3;
  /* Half of the rows in a narrow range, so that not all is far below the largest. */
  for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++)
    m[i] = i / COLUMNS % 2 ? (uint32_t)next_random() : (0x3f800000 ^ ((uint32_t)next_random() & 0x83ffffff));
  for (enum derivation d = 0; d < DERIVE_NVFP4_FROM_FP8; d++) {
    struct parts want = parts_new(d, ROWS, COLUMNS), got = parts_new(d, ROWS, COLUMNS);
    by_host(d, &in, want);
    by_kernel(d, &in, (struct shape){2, 2}, got);
    for (int i = 0; i < 2; i++) same_part(d, &in, got.at[i], want.at[i]);
    referred(d, &in, &in, got, false);
    parts_free(want);
    parts_free(got);
  }
  free(m);
}
END_TEST

/* The comparison bites: one weight changed, and its product is wrong, the others' not. */
START_TEST(a_wrong_weight_is_seen) {
  float m[3 * 64], x[64], y[3], was[3];
  uint16_t codes[3 * 64];
  for (size_t i = 0; i < 3 * 64; i++) m[i] = (float)(i % 7) - 3;
  for (size_t k = 0; k < 64; k++) x[k] = 1;
  const struct matrix_in in = {m, NULL, SOURCE_F32, 3, 64};
  oct_derive_bf16(&in, codes);
  const struct matvec_params p = {{address(codes), 0}, address(x), address(y), 3, 64};
  launch.derive = NULL;
  launch.matvec = &p;
  launch.d = DERIVE_BF16;
  run_launch(shapes[3]);
  memcpy(was, y, sizeof was);
  codes[64 + 5] = derive_f32_to_bf16(9);
  run_launch(shapes[3]);
  ck_assert(was[0] == y[0] && was[1] != y[1] && was[2] == y[2]);
}
END_TEST

/* ---- the PTX ---- */

static size_t count_params(const char *p) {
  const char *end = strchr(p, ')');
  size_t n = 0;
  while ((p = strstr(p, ".param .u64")) && p < end) {
    n++;
    p++;
  }
  return n;
}

START_TEST(the_ptx_has_the_same_entries) {
  size_t entries = 0;
  for (const char *p = oct_ptx; (p = strstr(p, ".entry ")); entries++) {
    p += strlen(".entry ");
    size_t length = strcspn(p, "( \t\n");
    bool found = false;
    for (uint32_t i = 0; i < oct_kernels.function_count; i++) {
      const oc_host_function *f = &oct_kernels.functions[i];
      if (strlen(f->name) != length || strncmp(f->name, p, length) != 0) continue;
      found = true;
      ck_assert_uint_eq(f->param_count, count_params(p));
    }
    ck_assert_msg(found, "%.*s has no C function", (int)length, p);
  }
  ck_assert_uint_eq(entries, oct_kernels.function_count);
  ck_assert_uint_eq(oct_ptx_bytes, strlen(oct_ptx) + 1);
}
END_TEST

START_TEST(the_image_is_the_backend_s) {
  size_t bytes;
  ck_assert_ptr_eq(oct_kernel_image("cuda", &bytes), oct_ptx);
  ck_assert_uint_eq(bytes, oct_ptx_bytes);
  ck_assert_ptr_eq(oct_kernel_image("host", &bytes), &oct_kernels);
  ck_assert_uint_eq(bytes, sizeof oct_kernels);
}
END_TEST

/* Grids that a driver takes, whatever the rows; blocks that the kernels were made for (.maxntid 1024). */
START_TEST(shapes_are_launchable) {
  static const size_t rows[] = {1, 2, 127, 128, 129, 1u << 20, (size_t)1 << 40};
  for (enum derivation d = 0; d < DERIVATIONS; d++)
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
      struct shape a = oct_derive_shape(d, rows[i]), b = oct_matvec_shape(d, rows[i]);
      ck_assert(a.blocks > 0 && a.blocks <= 65536 && a.threads > 0 && a.threads <= 1024);
      ck_assert(b.blocks > 0 && b.blocks <= 65536 && b.threads > 0 && b.threads <= 1024);
    }
}
END_TEST

int main(void) {
  Suite *s = suite_create("derive.cu");
  TCase *c = tcase_create("all");
  tcase_set_timeout(c, 120);
  tcase_add_loop_test(c, every_size_and_type, 0, 3);
  tcase_add_test(c, every_16_bit_value);
  tcase_add_test(c, every_tie);
  tcase_add_test(c, millions_of_binary32);
  tcase_add_test(c, a_wrong_weight_is_seen);
  tcase_add_test(c, the_ptx_has_the_same_entries);
  tcase_add_test(c, the_image_is_the_backend_s);
  tcase_add_test(c, shapes_are_launchable);
  suite_add_tcase(s, c);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
