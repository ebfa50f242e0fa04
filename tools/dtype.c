/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/dtype.h"

#include <string.h>

static const struct dtype types[] = {
  {"F64", 64, SOURCE_NONE},    {"F32", 32, SOURCE_F32},    {"F16", 16, SOURCE_F16},
  {"BF16", 16, SOURCE_BF16},   {"F8_E4M3", 8, SOURCE_NONE}, {"F8_E5M2", 8, SOURCE_NONE},
  {"F8_E8M0", 8, SOURCE_NONE}, {"F6_E2M3", 6, SOURCE_NONE}, {"F6_E3M2", 6, SOURCE_NONE},
  {"F4", 4, SOURCE_NONE},      {"C64", 64, SOURCE_NONE},   {"I64", 64, SOURCE_NONE},
  {"U64", 64, SOURCE_NONE},    {"I32", 32, SOURCE_NONE},   {"U32", 32, SOURCE_NONE},
  {"I16", 16, SOURCE_NONE},    {"U16", 16, SOURCE_NONE},   {"I8", 8, SOURCE_NONE},
  {"U8", 8, SOURCE_NONE},      {"BOOL", 8, SOURCE_NONE},
};

size_t oct_dtype_count(void)
{
  return sizeof types / sizeof types[0];
}

const struct dtype *oct_dtype_at(size_t i)
{
  return &types[i];
}

const struct dtype *oct_dtype(const char *name)
{
  for (size_t i = 0; i < oct_dtype_count(); i++)
    if (strcmp(types[i].name, name) == 0)
      return &types[i];
  return NULL;
}

bool oct_dtype_bytes(const struct dtype *t, const uint64_t *shape, size_t rank, uint64_t *bytes)
{
  uint64_t bits = t->bits;
  bool empty = false;

  /* A zero makes the product 0 whatever stands beside it, and may stand behind what would overflow. */
  for (size_t i = 0; i < rank; i++)
    empty |= shape[i] == 0;
  for (size_t i = 0; i < rank && !empty; i++)
    if (__builtin_mul_overflow(bits, shape[i], &bits))
      return false;
  if (!empty && bits % 8 != 0)
    return false;
  *bytes = empty ? 0 : bits / 8;
  return true;
}
