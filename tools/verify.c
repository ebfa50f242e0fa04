/* SPDX-License-Identifier: MIT */
/* Every byte of a model on the device: tensors against their files, derivations against the reference. */
#include "config.h"

#include "tools/command.h"
#include "tools/known.h"
#include "tools/run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { COMPLAINTS_MAX = 10 };

/* Host copies: a tensor from its file and from the device, a derivation's parts. */
struct bench { unsigned char *file, *source, *part[2]; };

static bool bench_open(struct bench *b, const struct checkpoint *c, struct fault *why)
{
  b->file = malloc(c->largest_tensor + 1);
  b->source = malloc(c->largest_tensor + 1);
  b->part[0] = malloc(c->largest_part + 1);
  b->part[1] = malloc(c->largest_part + 1);
  return (b->file && b->source && b->part[0] && b->part[1]) || oct_fault(why, "no memory to verify in");
}

static void bench_close(struct bench *b)
{
  free(b->file);
  free(b->source);
  free(b->part[0]);
  free(b->part[1]);
}

static void failed(struct run *r, const struct placed *p, const char *words)
{
  struct quoted qf, qt;
  uint64_t n = __atomic_add_fetch(&r->totals.verify_failures, 1, __ATOMIC_RELAXED);

  oct_progress_end(&r->progress);
  if (n <= COMPLAINTS_MAX)
    oct_complain("run", "%s: tensor '%s': %s", oct_quote(&qf, p->file->path), oct_quote(&qt, p->tensor->name), words);
  if (n == COMPLAINTS_MAX)
    oct_complain("run", "further verification failures are counted only");
}

static bool verify_tensor(struct run *r, struct generation *g, struct bench *b, size_t i, struct fault *why)
{
  struct placed *p = &r->checkpoint.placed[i];
  size_t n = (size_t)p->tensor->bytes;
  struct quoted qf, qt;

  if (n == 0)
    return true;
  if (!oct_safetensors_read(p->file, p->tensor, 0, b->file, n, why) ||
      !oct_copy_out(&r->device, b->source, g->source[i], n, r->streams[0], why) ||
      !oct_wait(&r->device, r->streams[0], why))
    return false;
  if (memcmp(b->file, b->source, n) != 0)
    failed(r, p, "the device has other bytes than the file");
  /* The products that servers compare with are worked out once. */
  return oct_is_unchanged(p, b->source) ||
         oct_fault(why, "%s: tensor '%s': has changed since it was loaded first", oct_quote(&qf, p->file->path),
                   oct_quote(&qt, p->tensor->name));
}

static bool copy_parts(struct run *r, const uint64_t value[2], const struct bench *b, const struct job *j,
                       struct fault *why)
{
  oc_stream s = r->streams[0];

  for (size_t i = 0; i < 2; i++)
    if (j->bytes[i] > 0 && !oct_copy_out(&r->device, b->part[i], value[i], j->bytes[i], s, why))
      return false;
  return oct_wait(&r->device, s, why);
}

/* The products by it are worked out with its first verification, and are every generation's. */
static bool want_products(struct run *r, const struct job *j, struct check *c)
{
  struct matrix *m = j->matrix;

  if (m->y[j->derivation])
    return true;
  /* analyzer: freed with the matrix */
  m->y[j->derivation] = calloc(m->rows, sizeof(double));
  m->size[j->derivation] = calloc(m->rows, sizeof(double));
  c->x = r->x;
  c->y = m->y[j->derivation];
  c->size = m->size[j->derivation];
  return c->y && c->size;
}

static bool verify_job(struct run *r, struct generation *g, struct bench *b, struct job *j, struct fault *why)
{
  const struct placed *p = &r->checkpoint.placed[j->matrix->placed];
  struct check c = {.derivation = j->derivation, .source = b->source, .kind = p->tensor->type->source,
                    .rows = j->matrix->rows, .columns = j->matrix->columns, .got = {b->part[0], b->part[1]}};
  uint64_t value[2];
  oc_status st = oct_find(g, j, r->streams[0], value, NULL);
  char words[160];

  /* Invalidated since, and nobody asked for it again. */
  if (st == OC_MISS && g->complete)
    return true;
  if (st != OC_OK)
    return oct_liboc_fault(why, st, "looking %s up to verify it", oct_derivation_name(j->derivation));
  if (!copy_parts(r, value, b, j, why))
    return false;
  if (!oct_is_known(j, b->part)) {
    if (!want_products(r, j, &c) || !oct_reference_check(&c))
      return oct_fault(why, "no memory to verify in");
    if (c.wrong == 0)
      oct_keep_known(&r->checkpoint, j, b->part);
  }
  if (c.wrong == 0) {
    __atomic_fetch_add(&r->totals.derived_verified, 1, __ATOMIC_RELAXED);
    return true;
  }
  snprintf(words, sizeof words, "%s: %" PRIu64 " wrong bytes; the first, byte %zu of %s, is %02x where %02x is right",
           oct_derivation_name(j->derivation), c.wrong, c.offset, c.part ? "the scales" : "the data", c.had, c.want);
  failed(r, p, words);
  return true;
}

/* Tensor i, and its jobs from *next on. */
static bool verify_with_jobs(struct run *r, struct generation *g, struct bench *b, size_t i, size_t *next,
                             struct fault *why)
{
  struct checkpoint *c = &r->checkpoint;

  if (!verify_tensor(r, g, b, i, why))
    return false;
  for (; *next < c->job_count && c->jobs[*next].matrix->placed == i; ++*next) {
    struct job *j = &c->jobs[*next];

    if (oct_run_should_stop(r))
      return oct_fault(why, "interrupted");
    if (!g->verified[*next] && !verify_job(r, g, b, j, why))
      return false;
    g->verified[*next] = 1;
    oct_progress_step(&r->progress, j->bytes[0] + j->bytes[1]);
  }
  return true;
}

static bool verify_all(struct run *r, struct generation *g, struct bench *b, struct fault *why)
{
  size_t next = 0;

  for (size_t i = 0; i < r->checkpoint.placed_count; i++)
    if (!verify_with_jobs(r, g, b, i, &next, why))
      return false;
  return true;
}

static bool all_verified(const struct run *r, const struct generation *g)
{
  return g->complete && !memchr(g->verified, 0, r->checkpoint.job_count);
}

bool oct_verify(struct run *r, struct generation *g, struct fault *why)
{
  struct bench b = {0};
  bool ok;

  if (all_verified(r, g))
    return true;
  oct_progress_begin(&r->progress, "verifying", r->checkpoint.derived_bytes);
  ok = bench_open(&b, &r->checkpoint, why) && verify_all(r, g, &b, why);
  bench_close(&b);
  oct_progress_end(&r->progress);
  return ok;
}
