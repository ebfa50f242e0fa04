/* SPDX-License-Identifier: MIT */
/*
 * race: several ways to do one thing, timed side by side: in each round each of them gets a window of time, one after
 * the other, so that what else the machine does meets all of them alike.
 *
 * lap: one thread's place in its work; owned by that thread.
 */
#ifndef OCTOOL_RACE_H
#define OCTOOL_RACE_H

#include "tools/bench.h"

/* Operations between two looks at the clock. */
enum { LAP = 1024, RACERS = 6, ROUNDS_MOST = 31, RACE_THREADS = 64 };

struct lap { unsigned thread; uint64_t at; };

struct racer {
  const char *what;
  void (*lap)(void *arg, struct lap *lap);   /* LAP operations */
  void *arg;
  bool bare;                                 /* not inside the outer guard that the others run in */
};

/* ns an operation and thread. */
struct times { double round[ROUNDS_MOST], median; };

bool oct_race(const struct bench *b, const struct racer *r, size_t count, unsigned threads, struct times *out,
              struct fault *why);
/* The row of a race: [0] is the figure, [1] its baseline, the others are listed beside them. */
void oct_row_race(const struct bench *b, struct row *row, const struct racer *r, const struct times *times, size_t count,
                  enum sense sense, double budget);
/* The baseline must be a fair opponent: at most that many floors, the floor being one of the race's times. */
void oct_row_floor(struct row *row, const struct times *floor, double most);
double oct_median(const double *x, size_t n);

/* What no compiler takes away. */
static inline void oct_use(uint64_t x)
{
  __asm__ volatile("" : : "r"(x));
}

/* A generator of a few instructions; seeds are fixed, so that each run is the same. */
static inline uint64_t oct_random(uint64_t *state)
{
  uint64_t x = *state += 0x9E3779B97F4A7C15u;

  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/* The floor: an indexed load through a call into a shared library. */
struct floor_table { const uint32_t *order; size_t mask; const uint64_t *table; };
void oct_floor_lap(void *arg, struct lap *lap);

#endif
