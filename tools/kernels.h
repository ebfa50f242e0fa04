/* SPDX-License-Identifier: MIT */
/*
 * octool's device code for the embedded device: one kernel that derives and one that multiplies, for each derivation.
 * Every parameter is 8 bytes: a device address or a count.
 */
#ifndef OCTOOL_KERNELS_H
#define OCTOOL_KERNELS_H

#include "liboc/oc.h"
#include "tools/reference.h"

#define OCT_MODULE "octool"

/* The image for oc_model_load_module under OCT_MODULE. */
extern const oc_host_module oct_kernels;

struct derive_params { uint64_t source, scales, kind, rows, columns, out[2]; };
struct matvec_params { uint64_t weight[2], x, y, rows, columns; };

/* The interned names; one each a derivation, process-wide. */
oc_kernel_key *oct_derive_key(enum derivation d);
oc_kernel_key *oct_matvec_key(enum derivation d);
/* All of both, to warm a model with. */
enum { OCT_KERNELS = 2 * DERIVATIONS };
void oct_kernel_keys(oc_kernel_key *keys[OCT_KERNELS]);

#endif
