/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/stopwatch.h"

void oct_stopwatch_init(struct stopwatch *w)
{
  enum { ROUNDS = 4096 };
  double median;

  *w = (struct stopwatch){0};
  for (int i = 0; i < ROUNDS; i++) {
    oct_stopwatch_start(w);
    oct_stopwatch_stop(w);
  }
  median = oct_histogram_quantile(&w->durations, 0.5);
  *w = (struct stopwatch){.cost_ns = (uint64_t)median};
}
