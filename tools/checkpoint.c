/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/checkpoint.h"
#include "tools/formats.h"

#include <stdlib.h>

enum { POOL_ALIGN = 256 };

const char *oct_derivation_name(enum derivation d)
{
  static const char *const names[DERIVATIONS] = {"bf16", "rowwise-fp8", "nvfp4-t", "nvfp4-from-fp8"};

  return d < DERIVATIONS ? names[d] : NULL;
}

static bool is_matrix(const struct tensor *t)
{
  return t->type->source != SOURCE_NONE && t->rank == 2 && t->bytes > 0;
}

static void part_sizes(struct job *j)
{
  size_t rows = j->matrix->rows, columns = j->matrix->columns;

  switch (j->derivation) {
  case DERIVE_BF16:
    j->bytes[0] = rows * columns * 2;
    break;
  case DERIVE_FP8:
    j->bytes[0] = rows * columns;
    j->bytes[1] = rows * sizeof(float);
    break;
  case DERIVE_NVFP4_T:
    j->bytes[0] = oct_nvfp4_t_scales_at(rows, columns) + oct_scales_block_bytes(rows, columns);
    break;
  default:
    j->bytes[0] = oct_nvfp4_bytes(rows, columns);
    j->bytes[1] = oct_scales_block_bytes(rows, columns);
  }
}

static size_t larger(size_t a, size_t b)
{
  return a > b ? a : b;
}

/* False where the sum overflows. */
static bool plan_block(struct checkpoint *c, uint64_t bytes)
{
  uint64_t rounded;

  if (__builtin_add_overflow(bytes, POOL_ALIGN - 1, &rounded))
    return false;
  return !__builtin_add_overflow(c->reserve, rounded & ~(uint64_t)(POOL_ALIGN - 1), &c->reserve);
}

static bool plan_job(struct checkpoint *c, struct matrix *m, enum derivation d, const struct job *needs, bool served)
{
  struct job *j = &c->jobs[c->job_count++];

  *j = (struct job){.matrix = m, .derivation = d, .needs = needs, .served = served};
  part_sizes(j);
  c->served_count += served;
  c->largest_part = larger(c->largest_part, larger(j->bytes[0], j->bytes[1]));
  c->derived_bytes += j->bytes[0] + j->bytes[1];
  return plan_block(c, j->bytes[0]) && plan_block(c, j->bytes[1]);
}

static bool plan_matrix(struct checkpoint *c, size_t placed, const bool derive[DERIVATIONS])
{
  const struct tensor *t = c->placed[placed].tensor;
  struct matrix *m = &c->matrices[c->matrix_count++];
  const struct job *fp8 = NULL;
  size_t all;

  *m = (struct matrix){.placed = placed, .rows = (size_t)t->shape[0], .columns = (size_t)t->shape[1]};
  /* Every derivation is smaller than this, so that no size below can overflow. */
  if (__builtin_mul_overflow(m->rows, m->columns, &all) || __builtin_mul_overflow(all, 16u, &all))
    return false;
  c->most_rows = larger(c->most_rows, m->rows);
  c->most_columns = larger(c->most_columns, m->columns);
  for (enum derivation d = 0; d < DERIVATIONS; d++) {
    bool needed = d == DERIVE_FP8 && derive[DERIVE_NVFP4_FROM_FP8];

    if (!derive[d] && !needed)
      continue;
    if (!plan_job(c, m, d, d == DERIVE_NVFP4_FROM_FP8 ? fp8 : NULL, derive[d]))
      return false;
    if (d == DERIVE_FP8)
      fp8 = &c->jobs[c->job_count - 1];
  }
  return true;
}

static bool plan(struct checkpoint *c, const bool derive[DERIVATIONS], struct fault *why)
{
  struct quoted q;

  for (size_t i = 0; i < c->placed_count; i++) {
    const struct tensor *t = c->placed[i].tensor;

    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the placed ones all have their tensor
    c->largest_tensor = larger(c->largest_tensor, (size_t)t->bytes);
    if (__builtin_add_overflow(c->bytes, t->bytes, &c->bytes) || !plan_block(c, t->bytes) ||
        (is_matrix(t) && !plan_matrix(c, i, derive)))
      return oct_fault(why, "%s: tensor '%s': the sum of all sizes overflows here", c->placed[i].file->path,
                       oct_quote(&q, t->name));
  }
  return true;
}

static bool place(struct checkpoint *c, struct fault *why)
{
  size_t count = 0;

  for (size_t f = 0; f < c->file_count; f++)
    count += c->files[f].tensors.count;
  c->placed = calloc(count + 1, sizeof *c->placed);
  c->matrices = calloc(count + 1, sizeof *c->matrices);
  c->jobs = calloc(count + 1, DERIVATIONS * sizeof *c->jobs);
  if (!c->placed || !c->matrices || !c->jobs)
    return oct_fault(why, "no memory for %zu tensors", count);
  for (size_t f = 0; f < c->file_count; f++)
    for (size_t i = 0; i < c->files[f].tensors.count; i++)
      c->placed[c->placed_count++] = (struct placed){.file = &c->files[f], .tensor = &c->files[f].tensors.at[i]};
  return true;
}

static bool open_files(struct checkpoint *c, char *const *paths, size_t count, struct fault *why)
{
  c->files = calloc(count, sizeof *c->files);
  if (!c->files)
    return oct_fault(why, "no memory for %zu files", count);
  for (; c->file_count < count; c->file_count++)
    if (!oct_safetensors_open(paths[c->file_count], &c->files[c->file_count], why))
      return false;
  return true;
}

bool oct_checkpoint_open(struct checkpoint *c, char *const *paths, size_t count, const bool derive[DERIVATIONS],
                         struct fault *why)
{
  *c = (struct checkpoint){0};
  if (open_files(c, paths, count, why) && place(c, why) && plan(c, derive, why))
    return true;
  oct_checkpoint_close(c);
  return false;
}

void oct_checkpoint_close(struct checkpoint *c)
{
  for (size_t m = 0; m < c->matrix_count; m++)
    for (size_t d = 0; d < DERIVATIONS; d++) {
      free(c->matrices[m].y[d]);
      free(c->matrices[m].size[d]);
    }
  for (size_t j = 0; j < c->job_count; j++)
    free(c->jobs[j].known);
  for (size_t f = 0; f < c->file_count; f++)
    oct_safetensors_close(&c->files[f]);
  free(c->files);
  free(c->placed);
  free(c->matrices);
  free(c->jobs);
  *c = (struct checkpoint){0};
}
