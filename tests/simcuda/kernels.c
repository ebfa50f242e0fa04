/* SPDX-License-Identifier: MIT */
/* octool's C kernels, for the simulated driver to run in place of those in octool's PTX (SIMCUDA_KERNELS). */
#include "config.h"

#include "tools/kernels.h"

extern const oc_host_module *const simcuda_kernels[];
const oc_host_module *const simcuda_kernels[] = {&oct_kernels, NULL};
