/* SPDX-License-Identifier: MIT */
/* A model from its creation to its teardown. */
#include "config.h"

#include "tools/kernels.h"
#include "tools/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { ARENA_MIN = 2 << 20 };

static bool create_model(struct run *r, struct generation *g, struct fault *why)
{
  uint64_t scratch = (r->checkpoint.most_rows * sizeof(float) + 512) * r->options.threads;
  oc_model_options options = {.struct_size = sizeof options, .name = "octool run", .arena_min = ARENA_MIN};
  oc_kernel_key *keys[OCT_KERNELS];
  const void *image;
  size_t bytes;
  oc_status st;

  /* All sizes are known: one arena, or few, instead of many that double. */
  if (r->checkpoint.placed_count > 0)
    options.reserve_bytes = (size_t)(r->checkpoint.reserve + r->checkpoint.most_columns * sizeof(float) + 256 + scratch);
  st = oc_model_create(r->device.backend, &options, &g->model);
  if (st != OC_OK)
    return oct_liboc_fault(why, st, "creating the model");
  image = oct_kernel_image(r->device.ops->name, &bytes);
  st = oc_model_load_module(g->model, OCT_MODULE, image, bytes);
  if (st != OC_OK)
    return oct_liboc_fault(why, st, "loading the kernels");
  oct_kernel_keys(keys);
  st = oc_opcache_warm(oc_model_opcache(g->model), keys, OCT_KERNELS);
  return st == OC_OK || oct_liboc_fault(why, st, "resolving the kernels");
}

/* ---- Faults put in on purpose ---- */

static bool flip_a_bit(struct run *r, struct generation *g, struct fault *why)
{
  const struct job *j = &r->checkpoint.jobs[0];
  uint64_t value[2];
  unsigned char byte;
  oc_status st = oct_find(g, j, r->streams[0], value, NULL);

  if (st != OC_OK)
    return oct_liboc_fault(why, st, "--inject bitflip");
  if (!oct_copy_out(&r->device, &byte, value[0], 1, r->streams[0], why) || !oct_wait(&r->device, r->streams[0], why))
    return false;
  byte ^= 1;
  return oct_copy_in(&r->device, value[0], &byte, 1, r->streams[0], why) && oct_wait(&r->device, r->streams[0], why);
}

static bool forget_a_derivation(struct run *r, struct generation *g, struct fault *why)
{
  const struct job *j = r->checkpoint.jobs;
  oc_status st = oc_derived_invalidate(oc_model_derived(g->model), g->source[j->matrix->placed]);

  for (size_t i = 0; i < r->checkpoint.job_count && j[i].matrix == j->matrix; i++)
    g->verified[i] = 0;
  return st == OC_OK || oct_liboc_fault(why, st, "--inject miss");
}

static bool leave_an_orphan(struct generation *g, struct fault *why)
{
  oc_devptr block;
  oc_status st = oc_pool_alloc(oc_model_pool(g->model), 4096, 0, &block);

  return st == OC_OK || oct_liboc_fault(why, st, "--inject orphan");
}

static bool inject(struct run *r, struct generation *g, enum inject what, struct fault *why)
{
  if (r->options.inject != what || g->number != 1)
    return true;
  switch (what) {
  case INJECT_BITFLIP: return flip_a_bit(r, g, why);
  case INJECT_MISS: return forget_a_derivation(r, g, why);
  case INJECT_ORPHAN: return leave_an_orphan(g, why);
  default: return true;
  }
}

/* ---- Making ---- */

static void free_generation(struct generation *g)
{
  free(g->source);
  free(g->checked);
  free(g->verified);
  free(g);
}

static struct generation *allocate(struct run *r)
{
  struct generation *g = calloc(1, sizeof *g);

  if (!g)
    return NULL;
  g->number = r->number + 1;
  g->source = calloc(r->checkpoint.placed_count + 1, sizeof *g->source);
  g->checked = calloc(r->checkpoint.job_count + 1, sizeof *g->checked);
  g->verified = calloc(r->checkpoint.job_count + 1, sizeof *g->verified);
  if (g->source && g->checked && g->verified)
    return g;
  free_generation(g);
  return NULL;
}

static bool fill(struct run *r, struct generation *g, struct fault *why)
{
  g->complete = oct_load(r, g, why) && oct_derive(r, g, why) && inject(r, g, INJECT_BITFLIP, why) &&
                oct_verify(r, g, why) && inject(r, g, INJECT_MISS, why) && inject(r, g, INJECT_ORPHAN, why);
  return g->complete;
}

struct generation *oct_generation_make(struct run *r, struct fault *why)
{
  struct generation *g = allocate(r);
  bool made;

  if (!g) {
    oct_fault_write(why, "no memory for a generation");
    return NULL;
  }
  made = create_model(r, g, why);
  if (!g->model) {
    free_generation(g);
    return NULL;
  }
  /* From here on it is torn down like any other, whatever fails. */
  g->next = r->alive;
  r->alive = g;
  oct_sampler_add(oct_runpage_sampler(r), g->model);
  return made && fill(r, g, why) ? g : NULL;
}

/* ---- Teardown ---- */

static uint64_t larger(uint64_t a, uint64_t b)
{
  return a > b ? a : b;
}

/* The last one's, but for one that was not clean: what is wrong is not written over by what is well. */
static void keep_report(struct totals *t, const oc_report *report, bool clean)
{
  if (t->unclean)
    return;
  t->unclean = !clean;
  oc_string_free(t->report);
  oc_string_free(t->report_json);
  t->report = oc_report_text(report);
  t->report_json = oc_report_json(report);
}

static void add_report(struct totals *t, const oc_pool_stats *pool, const oc_report *report, oc_status st)
{
  t->driver_allocs += pool->driver_allocs;
  t->driver_frees += pool->driver_frees + oc_report_arenas_freed(report);
  t->arenas = larger(t->arenas, pool->arenas);
  t->arena_bytes = larger(t->arena_bytes, pool->arena_bytes);
  t->live_bytes_peak = larger(t->live_bytes_peak, pool->peak_live_bytes);
  t->blocks_swept += oc_report_blocks_swept(report);
  t->bytes_leaked += (int64_t)(pool->arena_bytes - oc_report_bytes_freed(report));
  keep_report(t, report, st == OC_OK && oc_report_blocks_swept(report) == 0);
}

static void unlink_generation(struct run *r, struct generation *g)
{
  struct generation **at = &r->alive;

  while (*at != g)
    at = &(*at)->next;
  *at = g->next;
}

static void note_torn_down(struct run *r, uint64_t number)
{
  pthread_mutex_lock(&r->lock);
  r->torn_down = larger(r->torn_down, number);
  pthread_cond_broadcast(&r->moved);
  pthread_mutex_unlock(&r->lock);
}

static void mark(struct run *r, uint64_t number, const char *what)
{
  char text[64];

  snprintf(text, sizeof text, "generation %" PRIu64 " %s", number, what);
  oct_sampler_mark(oct_runpage_sampler(r), text);
}

bool oct_generation_retire(struct run *r, struct generation *g, struct fault *why)
{
  oc_pool_stats pool = {.struct_size = sizeof pool};
  oc_report *report = NULL;
  uint64_t number = g->number;
  oc_status counted, st;
  bool ok;

  /* What servers built is verified too, while it is there. */
  ok = !g->complete || oct_verify(r, g, why);
  counted = oc_pool_get_stats(oc_model_pool(g->model), &pool);
  if (counted != OC_OK)
    ok = oct_liboc_fault(why, counted, "the pool's figures");
  st = oc_model_teardown(g->model, &report);
  if (st != OC_OK)
    ok = oct_liboc_fault(why, st, "tearing generation %llu down", (unsigned long long)number);
  if (st != OC_OK && r->totals.teardown == OC_OK)
    r->totals.teardown = st;
  if (!report)
    return ok;      /* refused: it lives */
  add_report(&r->totals, &pool, report, st);
  oc_report_free(report);
  oct_sampler_remove(oct_runpage_sampler(r), g->model);
  mark(r, number, "torn down");
  st = oc_model_destroy(g->model);
  if (st != OC_OK && st != OC_E_TEARDOWN)
    return oct_liboc_fault(why, st, "destroying generation %llu", (unsigned long long)number);
  /* No guard that could have found it in run.current is left: destroy waited for them. */
  unlink_generation(r, g);
  free_generation(g);
  note_torn_down(r, number);
  return ok;
}
