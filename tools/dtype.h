/* SPDX-License-Identifier: MIT */
/* The element types of safetensors files: name, width, and which of them octool derives from. */
#ifndef OCTOOL_DTYPE_H
#define OCTOOL_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the bytes of a derivation's source are read. */
enum source_kind { SOURCE_NONE, SOURCE_F32, SOURCE_BF16, SOURCE_F16, SOURCE_FP8 };

struct dtype {
  const char *name;
  uint32_t bits;               /* of one element; some are under a byte */
  enum source_kind source;     /* SOURCE_NONE: nothing is derived from it */
};

/* By name, exactly; NULL where there is none. Static. */
const struct dtype *oct_dtype(const char *name);
size_t oct_dtype_count(void);
const struct dtype *oct_dtype_at(size_t i);

/* The bytes of `rank` dimensions of it. False where the product overflows, or ends inside a byte. */
bool oct_dtype_bytes(const struct dtype *t, const uint64_t *shape, size_t rank, uint64_t *bytes);

#endif
