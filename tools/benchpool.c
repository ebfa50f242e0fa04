/* SPDX-License-Identifier: MIT */
/* The pool: a free and an allocation among live blocks of 256 B to 64 MiB, sizes log-uniform, beside best fit over trees. */
#include "config.h"

#include "tools/baseline_tree.h"
#include "tools/benchworld.h"
#include "tools/device.h"
#include "tools/floor.h"
#include "tools/growth.h"

#include <math.h>
#include <stdlib.h>

enum { LIVE = 2000, SITES = 8, SIZES = 1 << 15 };

static const uint64_t arena = UINT64_C(1) << 30, most_bytes = UINT64_C(64) << 20;

/* Each thread lets go and gets blocks of its own share of them, in the same pool. */
struct churn {
  unsigned threads;
  size_t live, share, arenas;
  uint64_t most;                 /* bytes of a block */
  uint32_t *size, *victim;       /* [SIZES]: what is asked for, which block of a thread's share goes */
  struct void_device device;
  oc_model *model;
  oc_pool *pool;
  struct fit *fit;
  uint64_t *ours, *theirs;       /* [live] */
  size_t failures;               /* atomic */
  struct floor floor;
};

static const oc_site sites[SITES] = {
  {"loader.c", 100, "load_weights"}, {"loader.c", 212, "load_scales"},  {"kv.c", 80, "kv_grow"},       {"kv.c", 131, "kv_page"},
  {"moe.c", 64, "route"},            {"attention.c", 301, "workspace"}, {"lora.c", 77, "load_adapter"}, {"sampler.c", 55, "logits"}};

/* 256 B to `most`, each power of two as likely as the next. */
static void draw(struct churn *c)
{
  uint64_t seed = 2000;
  double span = log2((double)c->most / 256);

  for (size_t i = 0; i < SIZES; i++) {
    c->size[i] = (uint32_t)(256 * exp2((double)(oct_random(&seed) >> 11) * 0x1p-53 * span));
    c->victim[i] = (uint32_t)(oct_random(&seed) % c->share);
  }
}

static bool place(struct churn *c, size_t slot, size_t i)
{
  c->theirs[slot] = oct_fit_alloc(c->fit, c->size[i % SIZES], &sites[i % SITES]);
  return oc_pool_alloc_at(c->pool, c->size[i % SIZES], 0, &sites[i % SITES], &c->ours[slot]) == OC_OK && c->theirs[slot];
}

/* Room: three times the mean size for each block. */
static bool open_churn(struct churn *c, unsigned threads, size_t live, uint64_t most, struct fault *why)
{
  *c = (struct churn){.threads = threads, .live = live, .share = live / threads, .most = most};
  c->arenas = (size_t)(3 * (double)live * (double)most / log((double)most / 256) / (double)arena) + 4;
  c->size = calloc(SIZES, sizeof *c->size);
  c->victim = calloc(SIZES, sizeof *c->victim);
  c->ours = calloc(live, sizeof *c->ours);
  c->theirs = calloc(live, sizeof *c->theirs);
  c->fit = oct_fit_make(c->arenas, arena, live);
  if (!c->size || !c->victim || !c->ours || !c->theirs || !c->fit)
    return oct_fault(why, "no memory for %zu blocks", live);
  if (!oct_void_open(&c->device, why) || !oct_void_model(&c->device, c->arenas * arena, &c->model, why) ||
      !oct_floor_make(&c->floor, c->model, why))
    return false;
  c->pool = oc_model_pool(c->model);
  draw(c);
  for (size_t i = 0; i < live; i++)
    if (!place(c, i, i))
      return oct_fault(why, "no room for block %zu of %zu: %s", i, live, oc_last_error());
  return true;
}

static void close_churn(struct churn *c)
{
  struct fault ignored;

  if (c->model)
    (void)!oc_model_destroy(c->model);
  if (c->device.backend)
    oct_void_close(&c->device, &ignored);
  if (c->fit)
    oct_fit_destroy(c->fit);
  oct_floor_free(&c->floor);
  free(c->size);
  free(c->victim);
  free(c->ours);
  free(c->theirs);
}

/* The n-th block that the thread lets go. */
static size_t slot_of(const struct churn *c, const struct lap *lap, size_t n)
{
  return lap->thread * c->share + c->victim[n];
}

static void failed(struct churn *c, size_t times)
{
  if (times > 0)
    __atomic_fetch_add(&c->failures, times, __ATOMIC_RELAXED);
}

static void pool_lap(void *arg, struct lap *lap)
{
  struct churn *c = arg;
  size_t failures = 0;

  for (size_t n = 0; n < LAP; n++) {
    size_t i = (lap->at + n) % SIZES, v = slot_of(c, lap, i);

    failures += oc_pool_free(c->pool, c->ours[v]) != OC_OK;
    failures += oc_pool_alloc_at(c->pool, c->size[i], 0, &sites[i % SITES], &c->ours[v]) != OC_OK;
  }
  failed(c, failures);
  lap->at += LAP;
}

static void fit_lap(void *arg, struct lap *lap)
{
  struct churn *c = arg;
  size_t failures = 0;

  for (size_t n = 0; n < LAP; n++) {
    size_t i = (lap->at + n) % SIZES, v = slot_of(c, lap, i);

    failures += !oct_fit_free(c->fit, c->theirs[v]);
    c->theirs[v] = oct_fit_alloc(c->fit, c->size[i], &sites[i % SITES]);
    failures += !c->theirs[v];
  }
  failed(c, failures);
  lap->at += LAP;
}

static bool race(const struct bench *b, struct churn *c, struct times t[3], struct fault *why)
{
  const struct racer r[] = {{.what = "pool", .lap = pool_lap, .arg = c, .threads = c->threads},
                            {.what = "best fit over balanced trees", .lap = fit_lap, .arg = c, .threads = c->threads},
                            {.what = "floor", .lap = oct_floor_lap, .arg = &c->floor, .threads = c->threads}};

  if (!oct_race(b, r, 3, 1, t, why))
    return false;
  return !c->failures || oct_fault(why, "%zu calls of the churn failed: %s", c->failures, oc_last_error());
}

/* The allocator without lock and ledger took 340 ns an operation over a floor of 2.2; a turn is two. */
static bool measure(struct bench *b, struct churn *c, struct fault *why)
{
  static const struct racer r[] = {{.what = "pool"}, {.what = "trees"}, {.what = "floor"}};
  struct times t[3];
  struct row *row;

  if (!race(b, c, t, why))
    return false;
  row = oct_bench_row(b, "best fit over balanced trees, same lock and ledger", "ns", "pool free + alloc, 2,000 live blocks");
  oct_row_race(row, r, t, 3, FASTER, 6);
  oct_row_floor(row, t[2].median, 2 * 340);
  return true;
}

bool oct_bench_pool(struct bench *b, struct fault *why)
{
  struct churn c;
  bool ok = open_churn(&c, 1, LIVE, most_bytes, why) && measure(b, &c, why);

  close_churn(&c);
  return ok;
}

/* ---- As the blocks grow in number ---- */

static bool point(const struct bench *b, size_t live, struct curve *c, struct fault *why)
{
  struct churn churn;
  struct times t[3];
  bool ok = open_churn(&churn, 1, live, 1 << 20, why) && race(b, &churn, t, why);

  close_churn(&churn);
  if (ok)
    oct_curve_point(c, (double)live, (const double[]){t[0].median, t[1].median});
  return ok;
}

bool oct_grow_pool(struct bench *b, struct fault *why)
{
  struct curve *c = oct_bench_curve(b, "pool free + alloc by live blocks", "blocks", "ns");

  oct_curve_lines(c, "pool", "best fit over trees", NULL);
  for (size_t live = 1000; live <= (b->quick ? 1000u : 1000000u); live *= 10)
    if (!point(b, live, c, why))
      return false;
  return true;
}

/* ---- As the threads that load grow in number ---- */

static bool loaders(const struct bench *b, unsigned threads, struct curve *c, struct fault *why)
{
  struct churn churn;
  struct times t[3];
  bool ok = open_churn(&churn, threads, LIVE, most_bytes, why) && race(b, &churn, t, why);

  close_churn(&churn);
  if (ok)
    oct_curve_point(c, threads, (const double[]){t[0].median, t[1].median});
  return ok;
}

bool oct_grow_loaders(struct bench *b, struct fault *why)
{
  struct curve *c = oct_bench_curve(b, "pool free + alloc by loader threads", "threads", "ns a pair and thread");

  oct_curve_lines(c, "pool", "best fit over trees", NULL);
  for (unsigned threads = 1; threads <= (b->quick ? 2 : 4); threads *= 2)
    if (!loaders(b, threads, c, why))
      return false;
  return true;
}
