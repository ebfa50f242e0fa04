/* SPDX-License-Identifier: MIT */
/*
 * What a reader notices while models are loaded and torn down beside it: its lookups by batches of 64 hits inside a guard,
 * with models being swapped and without. One thread loads model after model and never waits; what it replaces others
 * tear down, as fast as they can: a teardown sleeps for its guards, and a loader that waited for it would leave the reader
 * alone most of the time.
 *
 * Two figures: the tail of all batches, and the slowest batch from one swap to the next: a stall at each swap is one batch of
 * thousands, which no tail of a share would show.
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
#include <time.h>

/* OLD_MOST: replaced models that wait for their end; with more of them the loader helps. SLOW_NS: no preemption is shorter. */
enum { KERNELS = 400, VALUES = 2000, BATCH = 64, WINDOWS = 15, ENDERS = 2, OLD_MOST = 256, SLOW_NS = 3000,
       SPANS_MOST = 512 };

static const uint64_t first_key = UINT64_C(0x7f2000000000), stride = 4352, window_ns = 200 * 1000 * 1000;

struct swap {
  struct void_device device;
  char name[KERNELS][24];
  oc_kernel_key key[KERNELS];
  oc_model *current;             /* atomic: the shared pointer */
  bool stop;                     /* atomic */
  pthread_mutex_t lock;          /* of all below */
  oc_model *old[OLD_MOST];
  size_t olds;
  uint64_t swaps, ended;         /* ended: torn down while the reader read */
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

static bool stopped(const struct swap *s)
{
  return __atomic_load_n(&s->stop, __ATOMIC_RELAXED);
}

/* The first failure ends the window. */
static void fail(struct swap *s, const struct fault *why)
{
  pthread_mutex_lock(&s->lock);
  if (!s->failed)
    s->why = *why;
  s->failed = true;
  pthread_mutex_unlock(&s->lock);
  __atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
}

static bool end(struct swap *s, oc_model *m)
{
  struct fault why;

  if (oc_model_destroy(m) == OC_OK)
    return true;
  oct_fault_write(&why, "destroying a model: %s", oc_last_error());
  fail(s, &why);
  return false;
}

/* A replaced model to those that wait for their end. False: there is no room. */
static bool put(struct swap *s, oc_model *m)
{
  bool room;

  pthread_mutex_lock(&s->lock);
  s->swaps++;
  room = s->olds < OLD_MOST;
  if (room)
    s->old[s->olds++] = m;
  pthread_mutex_unlock(&s->lock);
  return room;
}

static oc_model *take(struct swap *s)
{
  oc_model *m;

  pthread_mutex_lock(&s->lock);
  m = s->olds > 0 ? s->old[--s->olds] : NULL;
  s->ended += m != NULL;
  pthread_mutex_unlock(&s->lock);
  return m;
}

static void *loader(void *arg)
{
  struct swap *s = arg;

  oct_pin(1);
  while (!stopped(s)) {
    struct fault why;
    oc_model *old, *next = load(s, &why);

    if (!next) {
      fail(s, &why);
      break;
    }
    /* A reader that loaded the old pointer is in a guard, which the old model's teardown waits for. */
    old = __atomic_exchange_n(&s->current, next, __ATOMIC_ACQ_REL);
    if (!put(s, old) && !end(s, old))
      break;
  }
  return NULL;
}

static void *ender(void *arg)
{
  static const struct timespec a_while = {.tv_nsec = 200 * 1000};
  struct swap *s = arg;

  oct_pin(1);
  while (!stopped(s)) {
    oc_model *m = take(s);

    if (!m)
      nanosleep(&a_while, NULL);
    else if (!end(s, m))
      break;
  }
  return NULL;
}

/* What the window left. */
static void end_rest(struct swap *s)
{
  while (s->olds > 0)
    (void)end(s, s->old[--s->olds]);
}

/* ---- The reader ---- */

static const oc_model *batch(struct swap *s, uint64_t *at)
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
  return m;
}

/* Of one window: all batches, and the slowest of each span, which is from one swap to the next. The window alone has spans
   of as many batches each. */
struct seen { struct histogram all, slowest; size_t spans; uint64_t batches[SPANS_MOST]; };
struct span { const struct seen *like; const oc_model *model; uint64_t batches, worst; bool begun; };

/* One that no swap began is none, where it is swaps that count. */
static void close_span(struct seen *out, struct span *span)
{
  if (span->batches > 0 && (span->like || span->begun)) {
    oct_histogram_add(&out->slowest, span->worst);
    out->batches[out->spans++ % SPANS_MOST] = span->batches;
  }
  span->begun = true;
  span->worst = 0;
  span->batches = 0;
}

static uint64_t batches_of(const struct seen *s, size_t nth)
{
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): no window ends well without a span
  return s->batches[nth % (s->spans < SPANS_MOST ? s->spans : SPANS_MOST)];
}

static bool is_over(const struct seen *out, struct span *span, const oc_model *m)
{
  bool swapped = m != span->model;

  span->model = m;
  return span->like ? span->batches >= batches_of(span->like, out->spans) : swapped;
}

/* A batch in which the kernel gave the core to another thread says nothing. To ask takes as long as a batch, so only slow
   ones are asked. */
static bool was_stopped(uint64_t took, long *before)
{
  long was = *before;

  if (took < SLOW_NS)
    return false;
  *before = oct_preemptions();
  return was != *before;
}

/* like: whose spans it has; NULL: from swap to swap. */
static void read_on(struct swap *s, uint64_t length_ns, const struct seen *like, struct seen *out)
{
  uint64_t at = 0, began = oct_now_ns(), last = began;
  struct span span = {.like = like, .model = __atomic_load_n(&s->current, __ATOMIC_RELAXED)};
  long stops = oct_preemptions();

  memset(out, 0, sizeof *out);
  while (!stopped(s) && (last - began < length_ns || out->spans == 0)) {
    const oc_model *m = batch(s, &at);
    uint64_t now = oct_now_ns(), took = now - last;

    if (is_over(out, &span, m))
      close_span(out, &span);
    if (was_stopped(took, &stops)) {
      last = oct_now_ns();
      continue;
    }
    oct_histogram_add(&out->all, took);
    span.batches++;
    span.worst = took > span.worst ? took : span.worst;
    last = now;
  }
}

static bool start(struct swap *s, pthread_t t[], struct fault *why)
{
  size_t n = 0;

  s->stop = false;
  while (n <= ENDERS && pthread_create(&t[n], NULL, n == 0 ? loader : ender, s) == 0)
    n++;
  if (n > ENDERS)
    return true;
  __atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
  while (n > 0)
    pthread_join(t[--n], NULL);
  return oct_fault(why, "the threads that swap models could not be started");
}

static bool swapped_window(struct swap *s, uint64_t length_ns, struct seen *out, struct fault *why)
{
  pthread_t t[1 + ENDERS];

  if (!start(s, t, why))
    return false;
  read_on(s, length_ns, NULL, out);
  __atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
  for (size_t i = 0; i <= ENDERS; i++)
    pthread_join(t[i], NULL);
  s->stop = false;
  end_rest(s);
  if (s->failed)
    *why = s->why;
  return !s->failed;
}

struct side { struct times tail, slowest; struct histogram all; };
struct sides { struct side alone, swapped; };

static void note(struct side *side, unsigned round, const struct seen *seen)
{
  side->tail.round[round] = oct_histogram_quantile(&seen->all, 0.999);
  side->slowest.round[round] = oct_histogram_quantile(&seen->slowest, 0.5);
  oct_histogram_merge(&side->all, &seen->all);
}

static void close_side(struct side *side, unsigned rounds)
{
  oct_times_close(&side->tail, rounds);
  oct_times_close(&side->slowest, rounds);
}

static bool windows(const struct bench *b, struct swap *s, struct sides *both, struct fault *why)
{
  unsigned rounds = b->quick ? 1 : WINDOWS;
  uint64_t length = b->quick ? window_ns / 10 : window_ns;
  static struct seen swapped, alone;

  for (unsigned i = 0; i < rounds; i++) {
    if (!oct_bench_goes_on(why) || !swapped_window(s, length, &swapped, why))
      return false;
    read_on(s, length, &swapped, &alone);
    note(&both->swapped, i, &swapped);
    note(&both->alone, i, &alone);
  }
  close_side(&both->swapped, rounds);
  close_side(&both->alone, rounds);
  return true;
}

static struct row *row_of(struct bench *b, const char *name, const char *against, const struct times *swapped,
                          const struct times *alone)
{
  const struct racer r[] = {{.what = "swapped"}, {.what = against}};
  const struct times times[] = {*swapped, *alone};
  struct row *row = oct_bench_row(b, against, "ns", "%s", name);

  oct_row_race(row, r, times, 2, AT_MOST, 2);
  oct_row_threads(b, row, 2);
  return row;
}

static void report(struct bench *b, const struct swap *s, const struct sides *both)
{
  static const struct { const char *name; double q; } quantile[] = {
    {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}, {"p99.999", 0.99999}};
  struct curve *c = oct_bench_curve(b, "64 hits in a guard while models are swapped", "share", "ns");
  struct row *row;

  row = row_of(b, "p99.9 of 64 hits in a guard, models swapped", "the same alone", &both->swapped.tail, &both->alone.tail);
  oct_row_other(row, "swaps", (double)s->swaps);
  oct_row_other(row, "torn down meanwhile", (double)s->ended);
  (void)row_of(b, "slowest 64 hits from swap to swap", "the slowest in as long, alone", &both->swapped.slowest,
               &both->alone.slowest);
  oct_curve_lines(c, "alone", "while models are swapped", NULL);
  for (size_t i = 0; i < sizeof quantile / sizeof *quantile; i++)
    oct_curve_named_point(c, quantile[i].name,
                          (const double[]){oct_histogram_quantile(&both->alone.all, quantile[i].q),
                                           oct_histogram_quantile(&both->swapped.all, quantile[i].q)});
}

struct reader { struct bench *b; struct swap *s; struct fault *why; bool ok; };

/* The reader has a thread of its own, so that its core is not the main thread's ever after. */
static void *reader(void *arg)
{
  static struct sides both;
  struct reader *r = arg;

  oct_pin(0);
  memset(&both, 0, sizeof both);
  r->ok = windows(r->b, r->s, &both, r->why);
  if (r->ok)
    report(r->b, r->s, &both);
  return NULL;
}

bool oct_bench_swap(struct bench *b, struct fault *why)
{
  static struct swap s;
  struct reader r = {.b = b, .s = &s, .why = why};
  pthread_t t;

  memset(&s, 0, sizeof s);
  pthread_mutex_init(&s.lock, NULL);
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
