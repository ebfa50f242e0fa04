/* SPDX-License-Identifier: MIT */
/* A checkpoint's tensors into a model's pool, through a page-locked chunk a stream. */
#include "config.h"

#include "tools/run.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian, and go to the device as they are");

static size_t smaller(uint64_t a, size_t b)
{
  return a < b ? (size_t)a : b;
}

static bool upload(struct run *r, const struct placed *p, oc_devptr to, unsigned *turn, struct fault *why)
{
  for (uint64_t at = 0; at < p->tensor->bytes;) {
    size_t n = smaller(p->tensor->bytes - at, LOADER_CHUNK);
    unsigned i = (*turn)++ % r->stream_count;

    if (oct_run_should_stop(r))
      return oct_fault(why, "interrupted");
    /* The chunk's last copy must have passed before its bytes change. */
    if (!oct_wait(&r->device, r->streams[i], why) || !oct_safetensors_read(p->file, p->tensor, at, r->chunk[i], n, why) ||
        !oct_copy_in(&r->device, to + at, r->chunk[i], n, r->streams[i], why))
      return false;
    at += n;
    oct_progress_step(&r->progress, n);
  }
  return true;
}

static bool load_tensor(struct run *r, struct generation *g, size_t i, unsigned *turn, struct fault *why)
{
  const struct placed *p = &r->checkpoint.placed[i];
  struct quoted qf, qt;
  oc_status st;

  if (p->tensor->bytes == 0)
    return true;
  st = oc_pool_alloc_owned(oc_model_pool(g->model), "weights", (size_t)p->tensor->bytes, 0, &g->source[i]);
  if (st != OC_OK)
    return oct_liboc_fault(why, st, "%s: tensor '%s'", oct_quote(&qf, p->file->path), oct_quote(&qt, p->tensor->name));
  return upload(r, p, g->source[i], turn, why);
}

static bool load_x(struct run *r, struct generation *g, struct fault *why)
{
  size_t bytes = r->checkpoint.most_columns * sizeof *r->x;
  oc_status st;

  if (bytes == 0)
    return true;
  st = oc_pool_alloc_owned(oc_model_pool(g->model), "input", bytes, 0, &g->x);
  if (st != OC_OK)
    return oct_liboc_fault(why, st, "the input vector");
  return oct_copy_in(&r->device, g->x, r->x, bytes, r->streams[0], why);
}

bool oct_load(struct run *r, struct generation *g, struct fault *why)
{
  unsigned turn = 0;
  bool ok = load_x(r, g, why);

  oct_progress_begin(&r->progress, "loading", r->checkpoint.bytes);
  for (size_t i = 0; ok && i < r->checkpoint.placed_count; i++)
    ok = load_tensor(r, g, i, &turn, why);
  for (unsigned i = 0; i < r->stream_count; i++)
    ok = oct_wait(&r->device, r->streams[i], ok ? why : &(struct fault){""}) && ok;
  oct_progress_end(&r->progress);
  return ok;
}
