/* SPDX-License-Identifier: MIT */
/*
 * race: several ways to do one thing, timed side by side: in each round each of them gets a window of time, one after
 * the other, so that what else the machine does meets all of them alike. Laps count while the thread had its core to itself:
 * the kernel gave it to nobody else, and no neighbour worked on its other hyperthread (tools/issuerate.h). Where that takes
 * too long, all laps of the window count, and the round is one on a shared core, which counts where there are too few others.
 *
 * lap: one thread's place in its work; owned by that thread.
 */
#ifndef OCTOOL_RACE_H
#define OCTOOL_RACE_H

#include "tools/bench.h"

/* Operations between two looks at the clock. */
enum { LAP = 1024, ROUNDS_LEAST = 5, ROUNDS_MOST = 201, RACE_THREADS = 64 };

struct lap { unsigned thread; uint64_t at; };

struct racer {
  const char *what;
  void (*lap)(void *arg, struct lap *lap);   /* LAP operations */
  void *arg;
  unsigned threads;
  bool bare;                                 /* not inside the outer guard that the others run in */
};

/* ns an operation and thread; shared: a thread's core was, in that round. Median and quartiles are of the other rounds, if
   there are enough of them. */
struct times {
  double round[ROUNDS_MOST], median, low, high;
  bool shared[ROUNDS_MOST];
  bool whole_cores;              /* the rule above was used: what shared says was looked at */
  unsigned rounds;
};

/* warm: as in struct hit, at least 1. */
bool oct_race(const struct bench *b, const struct racer *r, size_t count, unsigned warm, struct times *out,
              struct fault *why);
/* The row of a race: [0] is the figure, [1] its baseline, the others are listed beside them. */
void oct_row_race(struct row *row, const struct racer *r, const struct times *times, size_t count, enum sense sense,
                  double budget);

/* Its baseline must be a fair opponent: over the floor of the same run at most half as much again as known_ns is over
   2.2 ns. Else the row fails. 0: nothing is known of it. */
void oct_row_floor(struct row *row, double floor_ns, double known_ns);

/* One kind of hit: on 1 and on 2 threads, beside a baseline that is known to take baseline_ns. Without a budget for 2 threads
   it has only itself beside it there. warm: what goes before a window, to bring tables into the caches, in quarters of one; 0
   is 1. */
struct hit { const char *name; double budget[2], baseline_ns[2]; unsigned warm; bool light; };
/* Its rows: 1 thread, 2 threads where there is a budget, 2 against 1. r: the library, the baseline, where h->light says so the same with a light
   lock (which takes its place where it is no fair opponent), others, the floor. */
bool oct_hit_rows(struct bench *b, const struct hit *h, const struct racer *r, size_t count, struct fault *why);
/* Sets median and quartiles of what was timed elsewhere. */
void oct_times_close(struct times *t, unsigned rounds);

/* Of the calling thread: to be asked before it is pinned. */
unsigned oct_cores(void);
/* The calling thread to a core of its own, while there are enough: two threads that a kernel has just started on one core
   show no contention. */
void oct_pin(unsigned thread);

/* How often somebody else was given the calling thread's core. Waiting for a lock does not count. */
long oct_preemptions(void);

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

#endif
