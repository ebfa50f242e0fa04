/* SPDX-License-Identifier: MIT */
/*
 * The conversions of derived encodings against those of CUDA's own headers, on the host: every code, every 16-bit value,
 * every point where a result changes, and millions of binary32 bit patterns. tests/test_cuda_headers.sh compiles it where
 * the headers are.
 */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include "tools/kernels/derive_math.h"

static unsigned long long compared, wrong;

static void same(const char *what, uint32_t input, uint32_t ours, uint32_t theirs) {
  compared++;
  if (ours == theirs) return;
  if (wrong++ < 20) std::printf("FAIL: %s of %08x: %x, CUDA's headers say %x\n", what, input, ours, theirs);
}

static uint16_t bf16(float x) {
  return static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(x)).x;
}

static void encodings(float x) {
  uint32_t u = derive_bits(x);
  same("BF16", u, derive_f32_to_bf16(x), bf16(x));
  same("E4M3", u, derive_f32_to_e4m3(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
  same("E2M1", u, derive_f32_to_e2m1(x), __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest));
}

/* NaN is NaN, whatever its payload. */
static void same_value(const char *what, uint32_t code, float ours, float theirs) {
  bool nan = std::isnan(ours) && std::isnan(theirs);
  same(what, code, nan ? 0 : derive_bits(ours), nan ? 0 : derive_bits(theirs));
}

static float of_half(__half_raw h) {
  return __half2float(__half(h));
}

static void codes() {
  for (uint32_t i = 0; i < 256; i++)
    same_value("E4M3's value", i, derive_e4m3_to_f32((uint8_t)i),
               of_half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)i, __NV_E4M3)));
  for (uint32_t i = 0; i < 16; i++)
    same_value("E2M1's value", i, derive_e2m1_to_f32((uint8_t)i),
               of_half(__nv_cvt_fp4_to_halfraw((__nv_fp4_storage_t)i, __NV_E2M1)));
  for (uint32_t i = 0; i < 65536; i++) {
    __half_raw h;
    h.x = (unsigned short)i;
    same_value("F16's value", i, derive_f16_to_f32((uint16_t)i), of_half(h));
    encodings(derive_f16_to_f32((uint16_t)i));
    encodings(derive_bf16_to_f32((uint16_t)i));
  }
}

/* Where a result can change, all of the formats': each middle between two codes lies on 1/64 of a power of two; with
   neighbours. */
static void ties() {
  for (uint32_t exponent = 0; exponent < 255; exponent++)
    for (uint32_t step = 0; step < 64; step++)
      for (uint32_t near = 0; near < 3; near++) {
        uint32_t u = (exponent << 23 | step << 17) - 1 + near;
        encodings(derive_float(u & 0x7fffffff));
        encodings(derive_float(u | 0x80000000));
      }
}

static void random_patterns(uint64_t state) {
  for (int i = 0; i < 4000000; i++) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    uint32_t u = (uint32_t)(z ^ z >> 31);
    encodings(derive_float(u));
    encodings(derive_float((u & 0x87ffffff) + 0x3c000000));   /* from 2^-7 to 2^9, where most codes are */
  }
}

int main() {
  codes();
  ties();
  random_patterns(1);
  std::printf("%llu conversions compared with CUDA's headers, %llu differ\n", compared, wrong);
  return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
