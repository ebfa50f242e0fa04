/* SPDX-License-Identifier: MIT */
/*
 * Tensor lists without data, one tensor a line, separated by tabs: name, dtype, shape, bytes:
 *   model.norm.weight	BF16	4096	8192
 *   lm_head.weight	BF16	128256x4096	1050673152
 * A scalar's shape is empty.
 */
#ifndef OCTOOL_SHAPES_H
#define OCTOOL_SHAPES_H

#include "tools/fault.h"
#include "tools/tensors.h"

/* "-" is standard input. On failure nothing is kept and `why` has file and line. */
bool oct_shapes_read(const char *path, struct tensor_list *out, struct fault *why);

#endif
