/* SPDX-License-Identifier: MIT */
/*
 * The servers: N threads, each on its own stream, do passes over all derivations by the dispatch path that liboc
 * serves, while the main thread swaps models under them:
 *
 *   oc_guard_enter
 *     g = the shared pointer, read inside the guard
 *     oc_model_enter(g->model)              it lives; else read the pointer again
 *       kernel_k, scratch_on_k, get_*_on    hits
 *       launch
 *     oc_model_leave
 *   oc_guard_leave
 *   a miss: oc_model_retain(g->model, "miss"), leave both, build, enter again, let go
 */
#include "config.h"

#include "tools/kernels.h"
#include "tools/run.h"

#include <stdlib.h>

/* A launch that is kept past its model's end, on purpose (--inject no-grace). */
struct straggler { oc_kernel kernel; struct shape shape; struct matvec_params params; uint64_t generation; };

struct server {
  struct run *run;
  pthread_t thread;
  bool started;
  oc_stream stream;
  float *result;                  /* [most_rows]: where a product that is checked goes; the stream writes to it */
  struct stopwatch watch;
  bool check, first;              /* this dispatch's product is compared; for the first time in its generation */
  size_t sampled;                 /* the job that this pass compares in any case */
  uint64_t reported;              /* the newest generation that this server has told of */
  bool straggles;
  struct straggler straggler;
};

struct servers { size_t count; struct server at[]; };

static oc_tag_key y_tag = OC_TAG_KEY("octool y");

/* ---- Products ---- */

static bool product_is_right(const struct server *t, const struct job *j)
{
  const struct matrix *m = j->matrix;

  for (size_t i = 0; i < m->rows; i++)
    if (!oct_product_agrees(t->result[i], m->y[j->derivation][i], m->size[j->derivation][i]))
      return false;
  return true;
}

static void wake(struct run *r)
{
  pthread_mutex_lock(&r->lock);
  pthread_cond_broadcast(&r->moved);
  pthread_mutex_unlock(&r->lock);
}

/* Outside the guard: waits for the stream, then compares what it brought. */
static bool compare(struct server *t, const struct job *j, struct fault *why)
{
  struct run *r = t->run;

  if (!oct_wait(&r->device, t->stream, why))
    return false;
  __atomic_fetch_add(&r->totals.products_checked, 1, __ATOMIC_RELAXED);
  if (!product_is_right(t, j))
    __atomic_fetch_add(&r->totals.product_failures, 1, __ATOMIC_RELAXED);
  if (t->first && __atomic_sub_fetch(&r->unchecked, 1, __ATOMIC_ACQ_REL) == 0)
    wake(r);
  return true;
}

/* ---- Dispatch ---- */

/* Three lookups, or four; all but MISS and RELEASED get their words here. */
static oc_status find(struct server *t, struct generation *g, const struct job *j, oc_kernel *kernel,
                      struct matvec_params *p, struct fault *why)
{
  oc_opcache *cache = oc_model_opcache(g->model);
  oc_status st;

  oct_stopwatch_start(&t->watch);
  st = oc_opcache_kernel_k(cache, oct_matvec_key(j->derivation), kernel);
  oct_stopwatch_stop(&t->watch);
  if (st == OC_OK) {
    oct_stopwatch_start(&t->watch);
    st = oc_opcache_scratch_on_k(cache, &y_tag, t->stream, j->matrix->rows * sizeof(float), &p->y);
    oct_stopwatch_stop(&t->watch);
  }
  if (st == OC_OK)
    st = oct_find(g, j, t->stream, p->weight, &t->watch);
  if (st < 0 && st != OC_E_RELEASED)
    oct_liboc_fault_write(why, st, "looking up");
  return st;
}

/* Inside the guard. */
static oc_status launch(struct server *t, struct generation *g, size_t job, struct fault *why)
{
  const struct job *j = &t->run->checkpoint.jobs[job];
  struct matvec_params p = {.x = g->x, .rows = j->matrix->rows, .columns = j->matrix->columns};
  const struct device *d = &t->run->device;
  oc_kernel kernel;
  oc_status st = find(t, g, j, &kernel, &p, why);

  if (st != OC_OK)
    return st;
  t->first = __atomic_exchange_n(&g->checked[job], 1, __ATOMIC_RELAXED) == 0;
  t->check = t->first || job == t->sampled;
  if (t->straggles)
    t->straggler = (struct straggler){kernel, oct_matvec_shape(j->derivation, j->matrix->rows), p, g->number};
  if (!oct_launch(d, kernel, oct_matvec_shape(j->derivation, j->matrix->rows), (const uint64_t *)&p, sizeof p / 8,
                  t->stream, why) ||
      (t->check && !oct_copy_out(d, t->result, p.y, j->matrix->rows * sizeof(float), t->stream, why)))
    return OC_E_BACKEND;
  return OC_OK;
}

/* Enters the current model; NULL with `why` where that fails. */
static struct generation *enter(struct run *r, struct fault *why)
{
  for (;;) {
    struct generation *g;
    oc_status st;

    oc_guard_enter();
    g = __atomic_load_n(&r->current, __ATOMIC_ACQUIRE);
    st = oc_model_enter(g->model);
    if (st == OC_OK)
      return g;
    oc_guard_leave();
    /* Released: its teardown began after the pointer moved on, so the next load finds another. */
    if (st != OC_E_RELEASED) {
      oct_liboc_fault_write(why, st, "entering the model");
      return NULL;
    }
  }
}

static void leave(struct generation *g)
{
  oc_model_leave(g->model);
  oc_guard_leave();
}

/* Outside the guard, the model held: builds what was missed. A model that is going refuses; the next one has it. */
static bool fill_in(struct server *t, struct generation *g, const struct job *j, struct fault *why)
{
  oc_status st = oct_build(t->run, g, j, t->stream, why);

  __atomic_fetch_add(&t->run->totals.misses, 1, __ATOMIC_RELAXED);
  return st == OC_OK || st == OC_E_RELEASED;
}

static bool let_go(struct generation **held, struct fault *why)
{
  struct generation *g = *held;
  oc_status st = g ? oc_model_release_hold(g->model, "miss") : OC_OK;

  /* The generation may be gone from here on. */
  *held = NULL;
  return st == OC_OK || oct_liboc_fault(why, st, "letting the model go after a miss");
}

enum outcome { DONE, AGAIN, FAILED };

/* Once down the dispatch path. After a miss *held is the model that was missed in, until the next time in. */
static enum outcome attempt(struct server *t, size_t job, struct generation **held, struct fault *why)
{
  struct generation *g = enter(t->run, why);
  oc_status st;

  if (!g)
    return FAILED;
  st = let_go(held, why) ? launch(t, g, job, why) : OC_E_BACKEND;
  if (st == OC_MISS) {
    st = oc_model_retain(g->model, "miss");
    if (st == OC_OK)
      *held = g;
    else if (st != OC_E_RELEASED)
      oct_liboc_fault_write(why, st, "holding the model for a miss");
  }
  leave(g);
  if (*held)
    return fill_in(t, *held, &t->run->checkpoint.jobs[job], why) ? AGAIN : FAILED;
  return st == OC_OK ? DONE : st == OC_E_RELEASED ? AGAIN : FAILED;
}

static bool dispatch(struct server *t, size_t job, struct fault *why)
{
  struct generation *held = NULL;
  enum outcome outcome;

  do
    outcome = attempt(t, job, &held, why);
  while (outcome == AGAIN);
  let_go(&held, &(struct fault){""});
  return outcome == DONE && (!t->check || compare(t, &t->run->checkpoint.jobs[job], why));
}

/* ---- Passes ---- */

static bool stopping(const struct run *r)
{
  return __atomic_load_n(&r->stopping, __ATOMIC_RELAXED) != 0;
}

/* The first whole pass on a generation is news. */
static void report(struct server *t, uint64_t generation)
{
  struct run *r = t->run;

  t->reported = generation;
  pthread_mutex_lock(&r->lock);
  if (r->served < generation)
    r->served = generation;
  pthread_cond_broadcast(&r->moved);
  pthread_mutex_unlock(&r->lock);
}

static bool pass(struct server *t, struct fault *why)
{
  struct run *r = t->run;
  uint64_t generation = __atomic_load_n(&r->number, __ATOMIC_RELAXED);

  for (size_t i = 0; i < r->checkpoint.job_count; i++)
    if (r->checkpoint.jobs[i].served) {
      if (stopping(r))
        return true;
      if (!dispatch(t, i, why))
        return false;
    }
  /* The pass is done when the device has done it; and queues stay short. */
  if (!oct_wait(&r->device, t->stream, why))
    return false;
  t->sampled = (t->sampled + 1) % r->checkpoint.job_count;   // NOLINT(clang-analyzer-core.DivideZero): no jobs, no server
  __atomic_fetch_add(&r->totals.passes, 1, __ATOMIC_RELAXED);
  if (generation != t->reported && generation == __atomic_load_n(&r->number, __ATOMIC_RELAXED))
    report(t, generation);
  return true;
}

/* What the guard is there to forbid: the launch comes after the model's end. The device must notice. */
static void straggle(struct server *t)
{
  struct run *r = t->run;
  struct straggler *s = &t->straggler;
  struct fault ignored;
  bool gone;

  t->straggles = false;
  pthread_mutex_lock(&r->lock);
  while (r->torn_down < s->generation && !r->failed && !stopping(r))
    pthread_cond_wait(&r->moved, &r->lock);
  gone = r->torn_down >= s->generation;
  pthread_mutex_unlock(&r->lock);
  if (gone)
    (void)oct_launch(&r->device, s->kernel, s->shape, (const uint64_t *)&s->params, sizeof s->params / 8, t->stream,
                     &ignored);
}

static void *serve(void *arg)
{
  struct server *t = arg;
  struct fault why;
  oc_status st = oc_thread_attach();     /* the first guard of a thread may take a lock: not in a pass */
  bool ok = st == OC_OK || oct_liboc_fault(&why, st, "attaching a server's thread");

  while (ok && !stopping(t->run)) {
    ok = pass(t, &why);
    if (ok && t->straggles && t->straggler.kernel)
      straggle(t);
  }
  if (!ok)
    oct_run_fail(t->run, &why);
  return NULL;
}

/* ---- Threads ---- */

static bool start(struct run *r, struct server *t, size_t index, struct fault *why)
{
  *t = (struct server){.run = r, .straggles = index == 0 && r->options.inject == INJECT_NO_GRACE};
  t->sampled = index % r->checkpoint.job_count;
  oct_stopwatch_init(&t->watch);
  t->result = calloc(r->checkpoint.most_rows, sizeof *t->result);
  if (!t->result)
    return oct_fault(why, "no memory for a server");
  if (!oct_stream_create(&r->device, &t->stream, why))
    return false;
  t->started = pthread_create(&t->thread, NULL, serve, t) == 0;
  return t->started || oct_fault(why, "server %zu: no thread for it", index + 1);
}

struct servers *oct_serve_begin(struct run *r, struct fault *why)
{
  size_t count = r->checkpoint.served_count > 0 ? (size_t)r->options.threads : 0;
  struct servers *s = calloc(1, sizeof *s + count * sizeof s->at[0]);

  if (!s) {
    oct_fault_write(why, "no memory for %zu servers", count);
    return NULL;
  }
  for (bool ok = true; ok && s->count < count; s->count++) {
    ok = start(r, &s->at[s->count], s->count, why);
    if (!ok)
      oct_run_fail(r, why);
  }
  return s;
}

/* The stream may still write to `result`; and models that live must not find its handle in another's hands. */
static bool end_stream(struct run *r, oc_stream s, struct fault *why)
{
  bool ok = oct_wait(&r->device, s, why);

  for (struct generation *g = r->alive; g; g = g->next) {
    oc_status st = oc_model_forget_stream(g->model, s);

    if (st != OC_OK && st != OC_E_RELEASED)
      ok = oct_liboc_fault(why, st, "forgetting a stream");
  }
  return oct_stream_destroy(&r->device, s, why) && ok;
}

static bool end(struct run *r, struct server *t, struct fault *why)
{
  bool ok = true;

  if (t->started)
    pthread_join(t->thread, NULL);
  if (t->stream)
    ok = end_stream(r, t->stream, why);
  free(t->result);
  oct_histogram_merge(&r->totals.lookups.durations, &t->watch.durations);
  r->totals.lookups.cost_ns = t->watch.cost_ns;
  return ok;
}

bool oct_serve_end(struct run *r, struct servers *s, struct fault *why)
{
  bool ok = true;

  __atomic_store_n(&r->stopping, 1, __ATOMIC_RELAXED);
  wake(r);
  for (size_t i = 0; i < s->count; i++)
    ok = end(r, &s->at[i], ok ? why : &(struct fault){""}) && ok;
  free(s);
  return ok;
}
