/* SPDX-License-Identifier: MIT */
/*
 * A device that does nothing, so that what is timed is the library: addresses are counted up, handles are numbers.
 *
 * void_device: owned by the part that opened it; its table may be called by any thread.
 */
#ifndef OCTOOL_BENCHWORLD_H
#define OCTOOL_BENCHWORLD_H

#include "tools/bench.h"

struct void_device { oc_backend *backend; uint64_t next, allocs, frees, kernels; };

bool oct_void_open(struct void_device *d, struct fault *why);
bool oct_void_close(struct void_device *d, struct fault *why);
/* reserve 0: arenas on demand. */
bool oct_void_model(const struct void_device *d, size_t reserve, oc_model **out, struct fault *why);

#endif
