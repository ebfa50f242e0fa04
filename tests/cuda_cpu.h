/* SPDX-License-Identifier: MIT */
/*
 * Just enough of CUDA's language to compile tools/kernels/derive.cu as C++ for the host: included before it, on the
 * command line. A block's threads are threads, and its blocks run one after the other, so that what a block shares can
 * be static. tests/test_derive.c launches.
 */
#ifndef TESTS_CUDA_CPU_H
#define TESTS_CUDA_CPU_H

#include <stdint.h>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)

struct cuda_dim { uint32_t x, y, z; };

#ifdef __cplusplus
extern "C" {
#endif
extern __thread struct cuda_dim threadIdx, blockIdx;
extern struct cuda_dim blockDim, gridDim;
void cuda_cpu_sync(void);
#ifdef __cplusplus
}
#endif

#define __syncthreads() cuda_cpu_sync()

static inline uint32_t atomicMax(uint32_t *at, uint32_t v) {
  uint32_t was = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (was < v && !__atomic_compare_exchange_n(at, &was, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return was;
}

#endif
