/* SPDX-License-Identifier: MIT */
/* Kernel handles: by key and by two strings, of 400, and what their number costs. */
#include "config.h"

#include "tools/baseline.h"
#include "tools/benchworld.h"
#include "tools/device.h"
#include "tools/order.h"
#include "tools/race.h"

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
  struct plain_names plain;
  struct lfht_names *lfht;
  struct order order;
  uint64_t table[KERNELS];
};

static const char *const modules[] = {"gemm_fp8", "attention", "rmsnorm", "rotary_embedding", "moe_router", "quantize"};

static bool name_kernel(struct kernels *k, size_t i)
{
  char func[96];
  const char *module = modules[i % (sizeof modules / sizeof modules[0])];

  snprintf(func, sizeof func, "%s_bf16_128x%zu_kernel_%zu", module, 16 << i % 4, i);
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
  if (!oct_plain_names_make(&k->plain, k->n) || !k->lfht)
    return oct_fault(why, "no memory for the baselines of %zu kernels", k->n);
  for (size_t i = 0; i < k->n; i++) {
    oct_plain_names_add(&k->plain, k->module[i], k->func[i], i + 1);
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
  return memoize(k, why);
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
  oct_order_free(&k->order);
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

static void by_plain(void *arg, struct lap *lap)
{
  struct kernels *k = arg;

  for (size_t i = 0; i < LAP; i++) {
    size_t n = oct_order_at(&k->order, lap->at + i);

    oct_use(plain_names_get(&k->plain, k->asked_module[n], k->asked_func[n]));
  }
  lap->at += LAP;
}

static void by_lfht(void *arg, struct lap *lap)
{
  struct kernels *k = arg;
  struct name_walk w = {(const char *const *)k->asked_module, (const char *const *)k->asked_func, k->order.at, k->order.mask};

  oct_lfht_names_walk(k->lfht, &w, lap->at, LAP);
  lap->at += LAP;
}

/* ---- Rows ---- */

enum { KEY, PLAIN, TEXT, LFHT, FLOOR, CONTESTANTS };

static bool race(struct kernels *k, struct bench *b, unsigned threads, struct racer r[CONTESTANTS],
                 struct times t[CONTESTANTS], struct fault *why)
{
  static struct floor_table floor;

  floor = (struct floor_table){k->order.at, k->order.mask, k->table};
  r[KEY] = (struct racer){"kernel_k", by_key, k, false};
  r[PLAIN] = (struct racer){"reader-writer lock", by_plain, k, false};
  r[TEXT] = (struct racer){"kernel", by_text, k, false};
  r[LFHT] = (struct racer){"cds_lfht", by_lfht, k, false};
  r[FLOOR] = (struct racer){"floor", oct_floor_lap, &floor, false};
  return oct_race(b, r, CONTESTANTS, threads, t, why);
}

static const char plain[] = "rwlock, chained hash on both strings";
/* 30 ns and 73 ns over a floor of 2.2, and half as much again. */
static const double floors_most[] = {0, 1.5 * 30 / 2.2, 1.5 * 73 / 2.2};

static void rows(struct bench *b, unsigned threads, const struct racer r[CONTESTANTS], const struct times t[CONTESTANTS])
{
  static const char *const key_name[] = {NULL, "kernel_k, 1 thread", "kernel_k, 2 threads"};
  static const char *const text_name[] = {NULL, "kernel by strings, 1 thread", "kernel by strings, 2 threads"};
  static const double key_budget[] = {0, 9, 22}, text_budget[] = {0, 1.5, 4};
  const struct racer text[] = {r[TEXT], r[PLAIN], r[LFHT], r[FLOOR]};
  const struct times text_times[] = {t[TEXT], t[PLAIN], t[LFHT], t[FLOOR]};
  const struct racer key[] = {r[KEY], r[PLAIN], r[FLOOR]};
  const struct times key_times[] = {t[KEY], t[PLAIN], t[FLOOR]};
  struct row *row = oct_bench_row(b, key_name[threads], plain, "ns");

  oct_row_race(b, row, key, key_times, 3, FASTER, key_budget[threads]);
  oct_row_floor(row, &t[FLOOR], floors_most[threads]);
  row = oct_bench_row(b, text_name[threads], plain, "ns");
  oct_row_race(b, row, text, text_times, 4, FASTER, text_budget[threads]);
  oct_row_floor(row, &t[FLOOR], floors_most[threads]);
}

static bool measure(struct bench *b, struct kernels *k, struct fault *why)
{
  struct racer r[CONTESTANTS];
  struct times t[CONTESTANTS], two[CONTESTANTS];

  if (!race(k, b, 1, r, t, why) || !race(k, b, 2, r, two, why))
    return false;
  rows(b, 1, r, t);
  rows(b, 2, r, two);
  return true;
}

bool oct_bench_kernels(struct bench *b, struct fault *why)
{
  struct kernels k;
  bool ok = open_kernels(&k, KERNELS, why) && measure(b, &k, why);

  close_kernels(&k);
  return ok;
}
