/* SPDX-License-Identifier: MIT */
/*
 * stopwatch: one thread's lookups: their number, and the duration of each, less what reading the clock costs.
 */
#ifndef OCTOOL_STOPWATCH_H
#define OCTOOL_STOPWATCH_H

#include "tools/clock.h"
#include "tools/histogram.h"

struct stopwatch { uint64_t cost_ns, started_ns; struct histogram durations; };

/* The cost is the median of intervals with nothing in them. */
void oct_stopwatch_init(struct stopwatch *w);

static inline void oct_stopwatch_start(struct stopwatch *w)
{
  w->started_ns = oct_now_ns();
}

static inline void oct_stopwatch_stop(struct stopwatch *w)
{
  uint64_t took = oct_now_ns() - w->started_ns;

  oct_histogram_add(&w->durations, took > w->cost_ns ? took - w->cost_ns : 0);
}

#endif
