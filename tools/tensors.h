/* SPDX-License-Identifier: MIT */
/*
 * tensor: what a file says about one tensor; its strings and shape belong to the list.
 * tensor_list: grows as readers add to it; owned by the subcommand, used by one thread until it is complete.
 */
#ifndef OCTOOL_TENSORS_H
#define OCTOOL_TENSORS_H

#include "tools/dtype.h"

struct tensor {
  char *name;
  const struct dtype *type;
  uint64_t *shape;
  size_t rank;
  uint64_t offset;             /* of the first byte in its file; 0 for a tensor list's */
  uint64_t bytes;
};

struct tensor_list { struct tensor *at; size_t count, room; };

/* Copies name and shape. NULL without memory; then the list is as before. */
struct tensor *oct_tensors_add(struct tensor_list *l, const char *name, const struct dtype *type,
                               const uint64_t *shape, size_t rank);
/* Sum of all bytes; false where it overflows. */
bool oct_tensors_bytes(const struct tensor_list *l, uint64_t *sum);
void oct_tensors_free(struct tensor_list *l);

/* "F32[8,768]", cut to the buffer. */
const char *oct_tensor_shape(const struct tensor *t, char *buf, size_t n);

#endif
