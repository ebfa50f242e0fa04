/* SPDX-License-Identifier: MIT */
/* The main thread while servers serve: publishes a new generation, tears the old one down, in good time. */
#include "config.h"

#include "tools/interrupt.h"
#include "tools/run.h"

#include <inttypes.h>
#include <stdio.h>

enum { TICK_NS = 20 * 1000 * 1000 };

bool oct_run_should_stop(struct run *r)
{
  bool failed;

  if (oct_interrupted())
    return true;
  pthread_mutex_lock(&r->lock);
  failed = r->failed;
  pthread_mutex_unlock(&r->lock);
  return failed;
}

void oct_run_fail(struct run *r, const struct fault *why)
{
  pthread_mutex_lock(&r->lock);
  if (!r->failed)
    r->failure = *why;
  r->failed = true;
  pthread_cond_broadcast(&r->moved);
  pthread_mutex_unlock(&r->lock);
}

void oct_publish(struct run *r, struct generation *g)
{
  char mark[64];

  /* Servers that still run on the old generation count nothing off any more: all its products are compared, or this
     is the first one. */
  __atomic_store_n(&r->unchecked, r->checkpoint.served_count, __ATOMIC_RELAXED);
  __atomic_store_n(&r->number, g->number, __ATOMIC_RELAXED);
  /* A server that loads the pointer inside a guard sees all of the generation; one that loaded the old pointer is in a
     guard that the old model's teardown waits for. */
  __atomic_store_n(&r->current, g, __ATOMIC_RELEASE);
  snprintf(mark, sizeof mark, "generation %" PRIu64 " served", g->number);
  oct_sampler_mark(oct_runpage_sampler(r), mark);
}

/* A whole pass was served from the current generation, and each of its products compared. */
static bool settled(const struct run *r)
{
  if (r->checkpoint.served_count == 0)
    return true;
  return r->served >= r->number && __atomic_load_n(&r->unchecked, __ATOMIC_ACQUIRE) == 0;
}

/* One wait for news, of a tick at most: signals and time pass without a broadcast. */
static void tick(struct run *r)
{
  struct timespec until;
  uint64_t at = oct_now_ns() + TICK_NS;

  until.tv_sec = (time_t)(at / 1000000000);
  until.tv_nsec = (long)(at % 1000000000);
  pthread_cond_timedwait(&r->moved, &r->lock, &until);
}

/* Until `deadline`, and until the current generation has settled. False if there is a reason to stop. */
static bool wait_until(struct run *r, uint64_t deadline)
{
  uint64_t seen = oct_now_ns(), now;
  bool go_on;

  pthread_mutex_lock(&r->lock);
  while ((go_on = !r->failed && !oct_interrupted()) && (oct_now_ns() < deadline || !settled(r))) {
    tick(r);
    now = oct_now_ns();
    oct_progress_step(&r->progress, now - seen);
    seen = now;
  }
  pthread_mutex_unlock(&r->lock);
  return go_on;
}

static bool swap(struct run *r, struct fault *why)
{
  struct generation *old = r->current, *fresh = oct_generation_make(r, why);

  if (!fresh)
    return false;
  oct_publish(r, fresh);
  r->totals.swaps++;
  return oct_generation_retire(r, old, why);
}

bool oct_swap(struct run *r, struct fault *why)
{
  uint64_t start = oct_now_ns(), length = (uint64_t)(r->options.seconds * 1e9), parts = r->options.swaps + 1;

  for (uint64_t i = 1; i <= parts; i++) {
    uint64_t deadline = start + (uint64_t)((double)length * (double)i / (double)parts);
    bool go_on;

    oct_progress_begin(&r->progress, "serving", length);
    oct_progress_step(&r->progress, oct_now_ns() - start);
    go_on = wait_until(r, deadline);
    oct_progress_end(&r->progress);
    if (!go_on)
      return true;      /* the reason is the run's to tell */
    if (i < parts && !swap(r, why))
      return false;
  }
  return true;
}
