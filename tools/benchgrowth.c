/* SPDX-License-Identifier: MIT */
/* Figures as the work grows: by threads, by models alive at once; those by keys and blocks are beside their rows. */
#include "config.h"

#include "tools/baseline.h"
#include "tools/benchworld.h"
#include "tools/device.h"
#include "tools/growth.h"
#include "tools/race.h"

#include <stdarg.h>

void oct_curve_lines(struct curve *c, ...)
{
  const char *line;
  va_list ap;

  va_start(ap, c);
  while ((line = va_arg(ap, const char *)) && c->lines < CURVE_LINES)
    c->line[c->lines++] = line;
  va_end(ap);
}

void oct_curve_point(struct curve *c, double at, const double *value)
{
  size_t p = c->points < CURVE_POINTS ? c->points++ : CURVE_POINTS - 1;

  c->at[p] = at;
  for (size_t l = 0; l < c->lines; l++)
    c->value[p][l] = value[l];
}

void oct_curve_named_point(struct curve *c, const char *name, const double *value)
{
  oct_curve_point(c, (double)c->points, value);
  c->point[c->points - 1] = name;
}

/* ---- Models that have one kernel, one tag, one value each ---- */

enum { MODELS_MOST = 64 };

struct models {
  struct void_device device;
  size_t count;
  oc_model *model[MODELS_MOST];
  oc_kernel_key kernel;
  oc_tag_key tag;
  struct plain_names plain;
};

static const uint64_t key = UINT64_C(0x7f2000000000);

static bool add_model(struct models *m, struct fault *why)
{
  oc_model *model;
  oc_kernel handle;
  oc_devptr scratch;
  oc_status st;

  if (!oct_void_model(&m->device, 0, &model, why))
    return false;
  m->model[m->count++] = model;
  st = oc_opcache_kernel_k(oc_model_opcache(model), &m->kernel, &handle);
  if (st == OC_OK)
    st = oc_opcache_scratch_k(oc_model_opcache(model), &m->tag, 4096, &scratch);
  if (st == OC_OK)
    st = oc_derived_insert_ptr(oc_model_derived(model), OC_BF16, key, key, NULL);
  (void)oc_opcache_once_k(oc_model_opcache(model), &m->tag);
  return st == OC_OK || oct_liboc_fault(why, st, "filling model %zu", m->count);
}

static bool open_models(struct models *m, size_t count, struct fault *why)
{
  *m = (struct models){.kernel = OC_KERNEL_KEY("gemm", "bf16_to_fp8"), .tag = OC_TAG_KEY("act")};
  if (!oct_plain_names_make(&m->plain, 1))
    return oct_fault(why, "no memory for the baseline");
  oct_plain_names_add(&m->plain, "gemm", "bf16_to_fp8", 1);
  if (!oct_void_open(&m->device, why))
    return false;
  for (size_t i = 0; i < count; i++)
    if (!add_model(m, why))
      return false;
  return true;
}

static void close_models(struct models *m)
{
  struct fault ignored;

  for (size_t i = 0; i < m->count; i++)
    (void)!oc_model_destroy(m->model[i]);
  if (m->device.backend)
    oct_void_close(&m->device, &ignored);
  oct_plain_names_free(&m->plain);
}

static void kernel_lap(void *arg, struct lap *lap)
{
  struct models *m = arg;

  for (size_t i = 0, at = 0; i < LAP; i++, at = at + 1 < m->count ? at + 1 : 0) {
    oc_kernel handle = NULL;

    (void)!oc_opcache_kernel_k(oc_model_opcache(m->model[at]), &m->kernel, &handle);
    oct_use((uintptr_t)handle);
  }
  lap->at += LAP;
}

static void scratch_lap(void *arg, struct lap *lap)
{
  struct models *m = arg;

  for (size_t i = 0, at = 0; i < LAP; i++, at = at + 1 < m->count ? at + 1 : 0) {
    oc_devptr p = 0;

    (void)!oc_opcache_scratch_k(oc_model_opcache(m->model[at]), &m->tag, 4096, &p);
    oct_use(p);
  }
  lap->at += LAP;
}

static void get_lap(void *arg, struct lap *lap)
{
  struct models *m = arg;

  for (size_t i = 0, at = 0; i < LAP; i++, at = at + 1 < m->count ? at + 1 : 0) {
    uint64_t value = 0;

    (void)!oc_derived_get_ptr(oc_model_derived(m->model[at]), OC_BF16, key, &value);
    oct_use(value);
  }
  lap->at += LAP;
}

static void guard_lap(void *arg, struct lap *lap)
{
  (void)arg;
  for (size_t i = 0; i < LAP; i++) {
    oc_guard_enter();
    oc_guard_leave();
  }
  lap->at += LAP;
}

static void plain_lap(void *arg, struct lap *lap)
{
  struct models *m = arg;

  for (size_t i = 0; i < LAP; i++)
    oct_use(plain_names_get(&m->plain, false, "gemm", "bf16_to_fp8"));
  lap->at += LAP;
}

enum { LINES = 5 };

static bool point(const struct bench *b, struct models *m, unsigned threads, double at, struct curve *c, struct fault *why)
{
  const struct racer r[LINES] = {{.lap = kernel_lap, .arg = m, .threads = threads, .what = "kernel_k"},
                                 {.lap = scratch_lap, .arg = m, .threads = threads, .what = "scratch_k"},
                                 {.lap = get_lap, .arg = m, .threads = threads, .what = "get_ptr"},
                                 {.lap = guard_lap, .arg = m, .threads = threads, .what = "guard", .bare = true},
                                 {.lap = plain_lap, .arg = m, .threads = threads, .what = "rwlock + hash"}};
  struct times t[LINES];
  double value[LINES];

  if (!oct_race(b, r, c->lines, 1, t, why))
    return false;
  for (size_t i = 0; i < c->lines; i++)
    value[i] = t[i].median;
  oct_curve_point(c, at, value);
  return true;
}

/* More threads than cores share them: a thread's time is then what it waits for a core too, so that it is the sum over
   the cores that must not grow. */
bool oct_grow_threads(struct bench *b, struct fault *why)
{
  struct curve *c = oct_bench_curve(b, "latency by thread count", "threads", "ns a hit and thread");
  struct models m;
  bool ok = open_models(&m, 1, why);

  oct_curve_lines(c, "kernel_k", "scratch_k", "get_ptr", "guard", "rwlock + hash", NULL);
  for (unsigned n = 1; ok && n <= (b->quick ? 2 : 32); n *= 2)
    ok = point(b, &m, n, n, c, why);
  close_models(&m);
  return ok;
}

bool oct_grow_models(struct bench *b, struct fault *why)
{
  struct curve *c = oct_bench_curve(b, "hits by models alive, each in turn", "models", "ns");
  bool ok = true;

  oct_curve_lines(c, "kernel_k", "scratch_k", "get_ptr", NULL);
  for (size_t n = 1; ok && n <= (b->quick ? 2 : MODELS_MOST); n *= 2) {
    struct models m;

    ok = open_models(&m, n, why) && point(b, &m, 1, (double)n, c, why);
    close_models(&m);
  }
  return ok;
}

bool oct_bench_growth(struct bench *b, struct fault *why)
{
  /* Kernels last: past 65,536 of them keys have no more ids, and all that is asked for the first time goes by strings. */
  return oct_grow_threads(b, why) && oct_grow_models(b, why) && oct_grow_derived(b, why) && oct_grow_pool(b, why) &&
         oct_grow_loaders(b, why) && oct_grow_teardown(b, why) && oct_grow_kernels(b, why);
}
