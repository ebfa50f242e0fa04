/* SPDX-License-Identifier: MIT */
/*
 * octool's device code: one kernel that derives and one that multiplies, for each derivation. C functions for the embedded
 * device, here; PTX of tools/kernels/derive.cu for GPUs: the same names, parameters and results. Every parameter is 8
 * bytes: a device address or a count.
 */
#ifndef OCTOOL_KERNELS_H
#define OCTOOL_KERNELS_H

#include "liboc/oc.h"
#include "tools/device.h"
#include "tools/reference.h"

#define OCT_MODULE "octool"

extern const oc_host_module oct_kernels;
extern const char oct_ptx[];
extern const size_t oct_ptx_bytes;            /* with the NUL at its end */

/* The image of the two for oc_model_load_module under OCT_MODULE, by the name in the backend's table. */
const void *oct_kernel_image(const char *backend, size_t *bytes);

struct derive_params { uint64_t source, scales, kind, rows, columns, out[2]; };
struct matvec_params { uint64_t weight[2], x, y, rows, columns; };

/* How many threads share the work: for GPUs. The C functions do all of it in their one run. */
struct shape oct_derive_shape(enum derivation d, size_t rows);
struct shape oct_matvec_shape(enum derivation d, size_t rows);

/* The interned names; one each a derivation, process-wide. */
oc_kernel_key *oct_derive_key(enum derivation d);
oc_kernel_key *oct_matvec_key(enum derivation d);
/* All of both, to warm a model with. */
enum { OCT_KERNELS = 2 * DERIVATIONS };
void oct_kernel_keys(oc_kernel_key *keys[OCT_KERNELS]);

#endif
