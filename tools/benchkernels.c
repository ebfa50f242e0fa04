/* SPDX-License-Identifier: MIT */
/* Kernel handles: by key and by two strings, of 400, and what their number costs. */
#include "config.h"

#include "tools/baseline.h"
#include "tools/benchworld.h"
#include "tools/clock.h"
#include "tools/device.h"
#include "tools/floor.h"
#include "tools/growth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 400 };

/* The strings that are asked for are copies of those that were memoized: contents are compared, not addresses. */
struct kernels {
  size_t n;
  char **module, **func;          /* what was put in */
  char **asked_module, **asked_func;
  oc_kernel_key *key;
  struct void_device device;
  oc_model *model;
  oc_opcache *cache;
  struct plain_names plain, light;
  struct lfht_names *lfht;
  struct order order;
  struct floor floor;
};

static const char *const modules[] = {"gemm", "attention", "rmsnorm", "rotary", "routing", "quantize"};

static const char *const kinds[] = {"bf16_to_fp8", "fp8_rowwise", "nvfp4_from_fp8", "bf16_residual"};

static bool name_kernel(struct kernels *k, size_t i)
{
  char func[96];
  const char *module = modules[i % (sizeof modules / sizeof modules[0])];

  snprintf(func, sizeof func, "%s_%zu", kinds[i % (sizeof kinds / sizeof kinds[0])], i);
  k->module[i] = strdup(module);
  k->func[i] = strdup(func);
  k->asked_module[i] = strdup(module);
  k->asked_func[i] = strdup(func);
  if (!k->module[i] || !k->func[i] || !k->asked_module[i] || !k->asked_func[i])
    return false;
  k->key[i] = (oc_kernel_key)OC_KERNEL_KEY(k->module[i], k->func[i]);
  return true;
}

static bool name_all(struct kernels *k, size_t n, struct fault *why)
{
  bool ok = true;

  k->n = n;
  k->module = calloc(n, sizeof *k->module);
  k->func = calloc(n, sizeof *k->func);
  k->asked_module = calloc(n, sizeof *k->asked_module);
  k->asked_func = calloc(n, sizeof *k->asked_func);
  k->key = calloc(n, sizeof *k->key);
  ok = k->module && k->func && k->asked_module && k->asked_func && k->key;
  for (size_t i = 0; ok && i < n; i++)
    ok = name_kernel(k, i);
  return ok || oct_fault(why, "no memory for the names of %zu kernels", n);
}

static bool memoize(struct kernels *k, struct fault *why)
{
  for (size_t i = 0; i < k->n; i++) {
    oc_kernel handle;
    oc_status st = oc_opcache_kernel_k(k->cache, &k->key[i], &handle);

    if (st != OC_OK)
      return oct_liboc_fault(why, st, "kernel %s::%s", k->module[i], k->func[i]);
  }
  return true;
}

static bool fill_baselines(struct kernels *k, struct fault *why)
{
  k->lfht = oct_lfht_names_make(k->n);
  if (!oct_plain_names_make(&k->plain, k->n) || !oct_plain_names_make(&k->light, k->n) || !k->lfht)
    return oct_fault(why, "no memory for the baselines of %zu kernels", k->n);
  for (size_t i = 0; i < k->n; i++) {
    oct_plain_names_add(&k->plain, k->module[i], k->func[i], i + 1);
    oct_plain_names_add(&k->light, k->module[i], k->func[i], i + 1);
    oct_lfht_names_add(k->lfht, k->module[i], k->func[i], i + 1);
  }
  return true;
}

static bool open_kernels(struct kernels *k, size_t n, struct fault *why)
{
  *k = (struct kernels){0};
  if (!name_all(k, n, why) || !oct_order_make(&k->order, n, why) || !fill_baselines(k, why) ||
      !oct_void_open(&k->device, why) || !oct_void_model(&k->device, 0, &k->model, why))
    return false;
  k->cache = oc_model_opcache(k->model);
  return oct_floor_make(&k->floor, k->model, why) && memoize(k, why);
}

static void close_kernels(struct kernels *k)
{
  struct fault ignored;

  if (k->model)
    (void)!oc_model_destroy(k->model);
  if (k->device.backend)
    oct_void_close(&k->device, &ignored);
  if (k->lfht)
    oct_lfht_names_free(k->lfht);
  oct_plain_names_free(&k->plain);
  oct_plain_names_free(&k->light);
  oct_order_free(&k->order);
  oct_floor_free(&k->floor);
  for (size_t i = 0; k->key && i < k->n; i++) {
    free(k->module[i]);
    free(k->func[i]);
    free(k->asked_module[i]);
    free(k->asked_func[i]);
  }
  free(k->module);
  free(k->func);
  free(k->asked_module);
  free(k->asked_func);
  free(k->key);
}

/* ---- Laps ---- */

static void by_key(void *arg, struct lap *lap)
{
  struct kernels *k = arg;

  for (size_t i = 0; i < LAP; i++) {
    oc_kernel handle = NULL;

    (void)!oc_opcache_kernel_k(k->cache, &k->key[oct_order_at(&k->order, lap->at + i)], &handle);
    oct_use((uintptr_t)handle);
  }
  lap->at += LAP;
}

static void by_text(void *arg, struct lap *lap)
{
  struct kernels *k = arg;

  for (size_t i = 0; i < LAP; i++) {
    size_t n = oct_order_at(&k->order, lap->at + i);
    oc_kernel handle = NULL;

    (void)!oc_opcache_kernel(k->cache, k->asked_module[n], k->asked_func[n], &handle);
    oct_use((uintptr_t)handle);
  }
  lap->at += LAP;
}

static inline void by_either(struct kernels *k, struct lap *lap, bool light)
{
  struct plain_names *table = light ? &k->light : &k->plain;

  for (size_t i = 0; i < LAP; i++) {
    size_t n = oct_order_at(&k->order, lap->at + i);

    oct_use(plain_names_get(table, light, k->asked_module[n], k->asked_func[n]));
  }
  lap->at += LAP;
}

static void by_plain(void *arg, struct lap *lap)
{
  by_either(arg, lap, false);
}

static void by_light(void *arg, struct lap *lap)
{
  by_either(arg, lap, true);
}

static void by_lfht(void *arg, struct lap *lap)
{
  struct kernels *k = arg;
  struct name_walk w = {(const char *const *)k->asked_module, (const char *const *)k->asked_func, k->order.at, k->order.mask};

  oct_lfht_names_walk(k->lfht, &w, lap->at, LAP);
  lap->at += LAP;
}

static bool measure(struct bench *b, struct kernels *k, struct fault *why)
{
  static const char plain[] = "rwlock, chained hash on both strings", light[] = "light rwlock, chained hash on both strings";
  static const struct hit key = {"kernel_k", {9, 22}, {30, 73}, 1, true};
  static const struct hit text = {"kernel by strings", {1.5, 4}, {30, 73}, 1, true};
  const struct racer of_key[] = {{.what = "kernel_k", .lap = by_key, .arg = k},
                                 {.what = plain, .lap = by_plain, .arg = k},
                                 {.what = light, .lap = by_light, .arg = k},
                                 {.what = "floor", .lap = oct_floor_lap, .arg = &k->floor}};
  const struct racer of_text[] = {{.what = "kernel", .lap = by_text, .arg = k},
                                  {.what = plain, .lap = by_plain, .arg = k},
                                  {.what = light, .lap = by_light, .arg = k},
                                  {.what = "cds_lfht", .lap = by_lfht, .arg = k},
                                  {.what = "floor", .lap = oct_floor_lap, .arg = &k->floor}};

  return oct_hit_rows(b, &key, of_key, 4, why) && oct_hit_rows(b, &text, of_text, 5, why);
}

bool oct_bench_kernels(struct bench *b, struct fault *why)
{
  struct kernels k;
  bool ok = open_kernels(&k, KERNELS, why) && measure(b, &k, why);

  close_kernels(&k);
  return ok;
}

/* ---- As the kernels grow in number ---- */

static bool point(struct bench *b, size_t n, struct curve *c, struct fault *why)
{
  struct kernels k;
  uint64_t began = oct_now_ns();
  bool ok = open_kernels(&k, n, why);
  double made = (double)(oct_now_ns() - began) / (double)n;
  const struct racer r[] = {{.what = "kernel_k", .lap = by_key, .arg = &k, .threads = 1},
                            {.what = "kernel", .lap = by_text, .arg = &k, .threads = 1},
                            {.what = "rwlock", .lap = by_plain, .arg = &k, .threads = 1}};
  struct times t[3];

  ok = ok && oct_race(b, r, 3, 4, t, why);
  close_kernels(&k);
  if (ok)
    oct_curve_point(c, (double)n, (const double[]){t[0].median, t[1].median, t[2].median, made});
  return ok;
}

bool oct_grow_kernels(struct bench *b, struct fault *why)
{
  struct curve *c = oct_bench_curve(b, "kernel lookups by kernels", "kernels", "ns");

  oct_curve_lines(c, "kernel_k", "kernel by strings", "rwlock + hash", "making all, each", NULL);
  for (size_t n = 10; n <= (b->quick ? 10u : 100000u); n *= 10)
    if (!point(b, n, c, why))
      return false;
  return true;
}
