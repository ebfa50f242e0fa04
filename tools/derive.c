/* SPDX-License-Identifier: MIT */
/* The derivations: looked up, and built by kernels where they are not there. */
#include "config.h"

#include "tools/interrupt.h"
#include "tools/kernels.h"
#include "tools/run.h"

static oc_kind kind_of(enum derivation d)
{
  static const oc_kind kinds[DERIVATIONS] = {OC_BF16, OC_ROWWISE_FP8, OC_CUTLASS_NVFP4_T, OC_CUTLASS_NVFP4_FROM_FP8};

  return kinds[d];
}

static bool is_pair(enum derivation d)
{
  return d == DERIVE_FP8 || d == DERIVE_NVFP4_FROM_FP8;
}

/* ---- Lookups ---- */

static oc_status look_up(const struct generation *g, enum derivation d, uint64_t key, oc_stream s, uint64_t value[2],
                         struct stopwatch *w)
{
  oc_derived *derived = oc_model_derived(g->model);
  oc_status st;

  if (w)
    oct_stopwatch_start(w);
  if (is_pair(d))
    st = oc_derived_get_pair_on(derived, kind_of(d), key, s, value);
  else
    st = oc_derived_get_ptr_on(derived, kind_of(d), key, s, &value[0]);
  if (w)
    oct_stopwatch_stop(w);
  return st;
}

oc_status oct_find(const struct generation *g, const struct job *j, oc_stream s, uint64_t value[2],
                   struct stopwatch *w)
{
  uint64_t key = g->source[j->matrix->placed], fp8[2];
  oc_status st;

  value[1] = 0;
  if (j->derivation == DERIVE_NVFP4_FROM_FP8) {
    st = look_up(g, DERIVE_FP8, key, s, fp8, w);
    if (st != OC_OK)
      return st;
    key = fp8[0];
  }
  return look_up(g, j->derivation, key, s, value, w);
}

/* ---- Builds ---- */

/* One build's way through liboc. */
struct order {
  struct run *run;
  struct generation *generation;
  const struct job *job;
  oc_stream stream;
  uint64_t source[2];           /* the tensor; or FP8 bytes and scales */
  bool built;
  struct fault *why;            /* written where a table entry failed, which liboc has no words for */
  bool worded;
};

static oc_status launch(struct order *o, const uint64_t out[2])
{
  const struct job *j = o->job;
  const struct placed *p = &o->run->checkpoint.placed[j->matrix->placed];
  struct derive_params params = {.source = o->source[0], .scales = o->source[1],
                                 .kind = j->needs ? SOURCE_FP8 : p->tensor->type->source, .rows = j->matrix->rows,
                                 .columns = j->matrix->columns, .out = {out[0], out[1]}};
  oc_kernel k;
  oc_status st = oc_opcache_kernel_k(oc_model_opcache(o->generation->model), oct_derive_key(j->derivation), &k);

  if (st != OC_OK)
    return st;
  if (oct_launch(&o->run->device, k, oct_derive_shape(j->derivation, j->matrix->rows), (const uint64_t *)&params,
                 sizeof params / 8, o->stream, o->why))
    return OC_OK;
  o->worded = true;
  return OC_E_BACKEND;
}

/* A derivation of a derivation waits on its own stream for what it reads, which another stream may still be making. */
static oc_status order_source(struct order *o)
{
  uint64_t key = o->generation->source[o->job->matrix->placed];

  if (o->job->needs)
    return look_up(o->generation, DERIVE_FP8, key, o->stream, o->source, NULL);
  o->source[0] = key;
  return OC_OK;
}

static oc_status build_pair(oc_build *b, void *arg, uint64_t out[2])
{
  struct order *o = arg;
  oc_status st = order_source(o);

  for (size_t i = 0; st == OC_OK && i < 2 && o->job->bytes[i] > 0; i++)
    st = oc_build_alloc(b, o->job->bytes[i], 0, &out[i]);
  if (st == OC_OK)
    st = oc_build_on_stream(b, o->stream);
  if (st == OC_OK)
    st = launch(o, out);
  o->built = st == OC_OK;
  return st;
}

static oc_status build_ptr(oc_build *b, void *arg, uint64_t *out)
{
  uint64_t both[2] = {0, 0};
  oc_status st = build_pair(b, arg, both);

  if (st == OC_OK)
    *out = both[0];
  return st;
}

static oc_status get_or_build(struct order *o, uint64_t key, uint64_t value[2])
{
  oc_derived *d = oc_model_derived(o->generation->model);
  oc_kind kind = kind_of(o->job->derivation);

  return is_pair(o->job->derivation) ? oc_derived_get_or_build_pair(d, kind, key, build_pair, o, value)
                                     : oc_derived_get_or_build_ptr(d, kind, key, build_ptr, o, &value[0]);
}

static bool fault_of(const struct order *o, oc_status st, struct fault *why)
{
  const struct placed *p = &o->run->checkpoint.placed[o->job->matrix->placed];
  struct quoted qf, qt;

  if (!o->worded)
    oct_liboc_fault_write(why, st, "building");
  return oct_fault_in(why, "%s: tensor '%s': %s", oct_quote(&qf, p->file->path), oct_quote(&qt, p->tensor->name),
                      oct_derivation_name(o->job->derivation));
}

static oc_status build(struct run *r, struct generation *g, const struct job *j, oc_stream s, uint64_t value[2],
                       struct fault *why)
{
  struct order o = {.run = r, .generation = g, .job = j, .stream = s, .why = why};
  uint64_t key = g->source[j->matrix->placed], fp8[2];
  oc_status st = OC_OK;

  if (j->needs) {
    st = build(r, g, j->needs, s, fp8, why);
    if (st != OC_OK)
      return st;
    key = fp8[0];
  }
  st = get_or_build(&o, key, value);
  if (st == OC_OK && o.built)
    __atomic_fetch_add(&r->totals.derived_built, 1, __ATOMIC_RELAXED);
  if (st != OC_OK)
    fault_of(&o, st, why);
  return st;
}

oc_status oct_build(struct run *r, struct generation *g, const struct job *j, oc_stream s, struct fault *why)
{
  uint64_t value[2];

  return build(r, g, j, s, value, why);
}

bool oct_derive(struct run *r, struct generation *g, struct fault *why)
{
  const struct checkpoint *c = &r->checkpoint;
  bool ok = true;

  oct_progress_begin(&r->progress, "deriving", c->derived_bytes);
  for (size_t i = 0; ok && i < c->job_count; i++) {
    const struct job *j = &c->jobs[i];

    if (oct_run_should_stop(r))
      ok = oct_fault(why, "interrupted");
    else
      ok = oct_build(r, g, j, r->streams[i % r->stream_count], why) == OC_OK;
    oct_progress_step(&r->progress, j->bytes[0] + j->bytes[1]);
  }
  for (unsigned i = 0; i < r->stream_count; i++)
    ok = oct_wait(&r->device, r->streams[i], ok ? why : &(struct fault){""}) && ok;
  oct_progress_end(&r->progress);
  return ok;
}
