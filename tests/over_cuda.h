/* SPDX-License-Identifier: MIT */
/*
 * What the tests of the CUDA backend alone start from: the driver's own functions, beside liboc, and the simulated driver's
 * controls, where it is that one.
 */
#ifndef TESTS_OVER_CUDA_H
#define TESTS_OVER_CUDA_H

#include "tests/fixture.h"
#include "tests/fixture_cuda.h"
#include "tests/simcuda/simcuda.h"

static const struct cuda_driver *d;
static const struct cuda_more *x;

static inline void find_driver(void) {
  d = cuda_direct();
  x = cuda_more();
  ck_assert_msg(d && x, "this test runs over a CUDA driver, by its name with .cuda");
}

/* What needs the simulated driver says so; the rest runs on a real one too. */
static inline const struct simcuda *need_sim(void) {
  const struct simcuda *s = simcuda_find();
  ck_assert_msg(s != NULL, "this needs the simulated driver");
  return s;
}
#define sim need_sim()

#endif
