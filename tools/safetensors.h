/* SPDX-License-Identifier: MIT */
/*
 * safetensors: one untrusted file: its view, and its tensors in the order of their bytes.
 * Owned by the subcommand; after opening it is immutable, so any thread may read.
 *
 * The format: 8 bytes, the header's length N, little-endian; N bytes of JSON, an object that begins with '{' and may
 * end in spaces: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__":
 * {"key": "value"}}; then the data. Offsets count from the data's start; tensors cover it without hole or overlap.
 */
#ifndef OCTOOL_SAFETENSORS_H
#define OCTOOL_SAFETENSORS_H

#include "tools/tensors.h"
#include "tools/view.h"

/* What the format's own implementation takes at most; a longer header is damage, not a model. */
#define OCT_SAFETENSORS_HEADER_MAX 100000000u

struct safetensors {
  const char *path;            /* the caller's */
  struct view view;
  uint64_t data;               /* offset of the data in the file */
  struct tensor_list tensors;
};

/* On failure nothing is kept and `why` names the file, the tensor and the damage. */
bool oct_safetensors_open(const char *path, struct safetensors *out, struct fault *why);
void oct_safetensors_close(struct safetensors *s);
/* Bytes [from, from + n) of a tensor. */
bool oct_safetensors_read(const struct safetensors *s, const struct tensor *t, uint64_t from, void *to, size_t n,
                          struct fault *why);

#endif
