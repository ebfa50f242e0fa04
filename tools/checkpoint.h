/* SPDX-License-Identifier: MIT */
/*
 * checkpoint: what a run loads, again for each model: the files, their tensors, and the derivations of those.
 *   Owned by the run. Immutable once open, but for what verifying fills in before serving begins.
 * matrix: a tensor that is derived from: 2-D, F32, BF16 or F16, at least one row and column.
 *   y and size: what products by its derivations must give (tools/reference.h); NULL until verified.
 * job: one derivation of one matrix. A matrix's jobs stand together, in the order of enum derivation.
 *   known: the bytes that the reference found right; NULL where they are not kept.
 */
#ifndef OCTOOL_CHECKPOINT_H
#define OCTOOL_CHECKPOINT_H

#include "tools/reference.h"
#include "tools/safetensors.h"

/* One tensor, and the file that it is in. `hash`: of its bytes when they were first verified; 0 before that. */
struct placed { const struct safetensors *file; const struct tensor *tensor; uint64_t hash; };

struct matrix {
  size_t placed;                                    /* index of its tensor */
  size_t rows, columns;
  double *y[DERIVATIONS], *size[DERIVATIONS];       /* [rows] */
};

struct job {
  struct matrix *matrix;
  enum derivation derivation;
  const struct job *needs;    /* built before it, as its source; or NULL */
  bool served;                /* false: built only because another derivation needs it */
  size_t bytes[2];            /* [1] is 0 for a pointer kind */
  unsigned char *known;       /* both parts, one behind the other */
};

struct checkpoint {
  struct safetensors *files;
  size_t file_count;
  struct placed *placed;
  size_t placed_count;
  struct matrix *matrices;
  size_t matrix_count;
  struct job *jobs;
  size_t job_count, served_count;
  uint64_t bytes;             /* of all tensors */
  uint64_t derived_bytes;
  uint64_t reserve;           /* both, block by block as the pool rounds them */
  uint64_t kept;              /* bytes in known, together */
  size_t most_rows, most_columns, largest_tensor, largest_part;
};

/* "bf16", ...: the names of DESIGN's kinds. NULL past the last. */
const char *oct_derivation_name(enum derivation d);

bool oct_checkpoint_open(struct checkpoint *c, char *const *paths, size_t count, const bool derive[DERIVATIONS],
                         struct fault *why);
void oct_checkpoint_close(struct checkpoint *c);

#endif
