/* SPDX-License-Identifier: MIT */
/*
 * What a reader notices while models are loaded and torn down beside it: the tail of its lookups' latency, by batches of
 * 64 hits inside a guard, with models being swapped and without.
 */
#include "config.h"

#include "tools/benchworld.h"
#include "tools/clock.h"
#include "tools/device.h"
#include "tools/growth.h"
#include "tools/race.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { KERNELS = 400, VALUES = 2000, BATCH = 64, WINDOWS = 9 };

static const uint64_t first_key = UINT64_C(0x7f2000000000), stride = 4352, window_ns = 200 * 1000 * 1000;

struct swap {
  struct void_device device;
  char name[KERNELS][24];
  oc_kernel_key key[KERNELS];
  oc_model *current;             /* atomic: the shared pointer */
  bool stop;                     /* atomic */
  uint64_t swaps;
  struct fault why;
  bool failed;
};

static oc_model *load(struct swap *s, struct fault *why)
{
  oc_model *m;
  oc_status st = OC_OK;
  oc_kernel handle;

  if (!oct_void_model(&s->device, 0, &m, why))
    return NULL;
  for (size_t i = 0; st == OC_OK && i < KERNELS; i++)
    st = oc_opcache_kernel_k(oc_model_opcache(m), &s->key[i], &handle);
  for (uint64_t i = 0; st == OC_OK && i < VALUES; i++) {
    oc_devptr value;

    st = oc_pool_alloc(oc_model_pool(m), 65536, 0, &value);
    if (st == OC_OK)
      st = oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, first_key + i * stride, value, NULL);
  }
  if (st == OC_OK)
    return m;
  oct_liboc_fault_write(why, st, "loading a model");
  (void)!oc_model_destroy(m);
  return NULL;
}

static void *swapper(void *arg)
{
  struct swap *s = arg;

  oct_pin(1);
  while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
    oc_model *old = s->current, *next = load(s, &s->why);

    if (!next) {
      s->failed = true;
      break;
    }
    /* A reader that loaded the old pointer is in a guard, which the old model's teardown waits for. */
    __atomic_store_n(&s->current, next, __ATOMIC_RELEASE);
    if (oc_model_destroy(old) != OC_OK) {
      s->failed = true;
      oct_fault_write(&s->why, "destroying a model: %s", oc_last_error());
      break;
    }
    s->swaps++;
  }
  return NULL;
}

static void batch(struct swap *s, uint64_t *at)
{
  oc_model *m;

  oc_guard_enter();
  m = __atomic_load_n(&s->current, __ATOMIC_ACQUIRE);
  for (size_t i = 0; i < BATCH / 2; i++) {
    oc_kernel handle = NULL;
    uint64_t value = 0;

    *at += 7919;
    (void)!oc_opcache_kernel_k(oc_model_opcache(m), &s->key[*at % KERNELS], &handle);
    (void)!oc_derived_get_ptr(oc_model_derived(m), OC_BF16, first_key + *at % VALUES * stride, &value);
    oct_use((uintptr_t)handle + value);
  }
  oc_guard_leave();
}

/* Batches for one window: their durations. */
static void read_on(struct swap *s, uint64_t length_ns, struct histogram *h)
{
  uint64_t at = 0, began = oct_now_ns(), last = began;

  while (last - began < length_ns) {
    uint64_t now;

    batch(s, &at);
    now = oct_now_ns();
    oct_histogram_add(h, now - last);
    last = now;
  }
}

static bool swapped_window(struct swap *s, uint64_t length_ns, struct histogram *h, struct fault *why)
{
  pthread_t t;

  s->stop = false;
  if (pthread_create(&t, NULL, swapper, s) != 0)
    return oct_fault(why, "the thread that swaps models could not be started");
  read_on(s, length_ns, h);
  __atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
  pthread_join(t, NULL);
  if (s->failed)
    *why = s->why;
  return !s->failed;
}

struct tails { struct times alone, swapped; struct histogram all_alone, all_swapped; };

static bool windows(const struct bench *b, struct swap *s, struct tails *t, struct fault *why)
{
  unsigned rounds = b->quick ? 1 : WINDOWS;
  uint64_t length = b->quick ? window_ns / 100 : window_ns;

  for (unsigned i = 0; i < rounds; i++) {
    struct histogram alone = {0}, swapped = {0};

    read_on(s, length, &alone);
    if (!oct_bench_goes_on(why) || !swapped_window(s, length, &swapped, why))
      return false;
    t->alone.round[i] = oct_histogram_quantile(&alone, 0.999);
    t->swapped.round[i] = oct_histogram_quantile(&swapped, 0.999);
    oct_histogram_merge(&t->all_alone, &alone);
    oct_histogram_merge(&t->all_swapped, &swapped);
  }
  oct_times_close(&t->alone, rounds);
  oct_times_close(&t->swapped, rounds);
  return true;
}

static void report(struct bench *b, const struct swap *s, const struct tails *t)
{
  static const struct racer r[] = {{.what = "swapped"}, {.what = "alone"}};
  static const struct { const char *name; double q; } quantile[] = {
    {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}, {"p99.999", 0.99999}};
  const struct times times[] = {t->swapped, t->alone};
  struct row *row = oct_bench_row(b, "the same alone", "ns", "p99.9 of 64 hits in a guard, models swapped");
  struct curve *c = oct_bench_curve(b, "64 hits in a guard while models are swapped", "share", "ns");

  oct_row_race(row, r, times, 2, AT_MOST, 2);
  oct_row_other(row, "swaps", (double)s->swaps);
  oct_curve_lines(c, "alone", "while models are swapped", NULL);
  for (size_t i = 0; i < sizeof quantile / sizeof *quantile; i++)
    oct_curve_named_point(c, quantile[i].name,
                          (const double[]){oct_histogram_quantile(&t->all_alone, quantile[i].q),
                                           oct_histogram_quantile(&t->all_swapped, quantile[i].q)});
}

struct reader { struct bench *b; struct swap *s; struct fault *why; bool ok; };

/* The reader has a thread of its own, so that its core is not the main thread's ever after. */
static void *reader(void *arg)
{
  static struct tails tails;
  struct reader *r = arg;

  oct_pin(0);
  tails = (struct tails){0};
  r->ok = windows(r->b, r->s, &tails, r->why);
  if (r->ok)
    report(r->b, r->s, &tails);
  return NULL;
}

bool oct_bench_swap(struct bench *b, struct fault *why)
{
  static struct swap s;
  struct reader r = {.b = b, .s = &s, .why = why};
  pthread_t t;

  memset(&s, 0, sizeof s);
  for (size_t i = 0; i < KERNELS; i++) {
    snprintf(s.name[i], sizeof s.name[i], "kernel_%zu", i);
    s.key[i] = (oc_kernel_key)OC_KERNEL_KEY("swap", s.name[i]);
  }
  if (!oct_void_open(&s.device, why) || !(s.current = load(&s, why)))
    return false;
  if (pthread_create(&t, NULL, reader, &r) != 0)
    return oct_fault(why, "the reading thread could not be started");
  pthread_join(t, NULL);
  (void)!oc_model_destroy(s.current);
  return oct_void_close(&s.device, r.ok ? why : &(struct fault){""}) && r.ok;
}
