/* SPDX-License-Identifier: MIT */
/* C kernels for the simulated driver to run in place of those in octool's and the fixture's PTX (SIMCUDA_KERNELS). */
#include "config.h"

#include <string.h>

#include "tools/kernels.h"

static uint64_t address_at(const void *param) {
  uint64_t a;
  memcpy(&a, param, sizeof a);
  return a;
}

/* *ptr += n */
static void add(const oc_host_launch *launch, void *const *params) {
  (void)launch;
  *(uint32_t *)(uintptr_t)address_at(params[0]) += *(const uint32_t *)params[1];
}

/* n words of value */
static void fill(const oc_host_launch *launch, void *const *params) {
  (void)launch;
  uint32_t *p = (uint32_t *)(uintptr_t)address_at(params[0]);
  uint32_t value = *(const uint32_t *)params[1], n = *(const uint32_t *)params[2];
  for (uint32_t i = 0; i < n; i++) p[i] = value;
}

static const uint32_t add_params[] = {8, 4}, fill_params[] = {8, 4, 4};
static const oc_host_function functions[] = {{"add", add, 2, add_params}, {"fill", fill, 3, fill_params}};
static const oc_host_module fixture = {sizeof fixture, 2, functions};

extern const oc_host_module *const simcuda_kernels[];
const oc_host_module *const simcuda_kernels[] = {&oct_kernels, &fixture, NULL};
