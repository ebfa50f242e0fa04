/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "config.h"

#include "tools/race.h"
#include "tools/clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Who waits at the start: a barrier would hold those for ever that came before a thread that could not be made. */
enum start { WAIT, GO, CALLED_OFF };

struct runner {
  const struct racer *racer;
  uint64_t window_ns;
  int *start;
  pthread_t thread;
  struct lap lap;
  double ns;                     /* an operation */
};

/* Each thread to a core of its own while there are enough: a kernel that has just started two threads on one core
   measures no contention. */
static void pin(unsigned thread)
{
  cpu_set_t allowed, one;
  unsigned nth = 0;

  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return;
  thread %= (unsigned)CPU_COUNT(&allowed);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &allowed) && nth++ == thread)
      CPU_SET(cpu, &one);
  (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

/* Laps until the window is over; returns how many. */
static uint64_t laps(struct runner *t, uint64_t window_ns, uint64_t *took_ns)
{
  uint64_t began = oct_now_ns(), n = 0;

  do {
    t->racer->lap(t->racer->arg, &t->lap);
    n++;
    *took_ns = oct_now_ns() - began;
  } while (*took_ns < window_ns);
  return n;
}

static bool started(const struct runner *t)
{
  int start;

  while ((start = __atomic_load_n(t->start, __ATOMIC_ACQUIRE)) == WAIT)
    sched_yield();
  return start == GO;
}

static void *run(void *arg)
{
  struct runner *t = arg;
  uint64_t took, n;

  pin(t->lap.thread);
  if (!started(t))
    return NULL;
  if (!t->racer->bare)
    oc_guard_enter();
  laps(t, t->window_ns / 8, &took);   /* the caches were another's */
  n = laps(t, t->window_ns, &took);
  t->ns = (double)took / ((double)n * LAP);
  laps(t, t->window_ns / 16, &took);  /* so that nobody is timed alone at the end */
  if (!t->racer->bare)
    oc_guard_leave();
  return NULL;
}

static unsigned start_all(struct runner *runner, const struct runner *like, unsigned threads, unsigned round)
{
  unsigned n = 0;

  for (; n < threads; n++) {
    runner[n] = *like;
    runner[n].lap = (struct lap){.thread = n, .at = (uint64_t)(n + round) * 7919};
    if (pthread_create(&runner[n].thread, NULL, run, &runner[n]) != 0)
      break;
  }
  return n;
}

static bool heat(const struct bench *b, const struct racer *r, unsigned threads, unsigned round, double *ns,
                 struct fault *why)
{
  struct runner runner[RACE_THREADS];
  int start = WAIT;
  unsigned n = start_all(runner, &(struct runner){.racer = r, .window_ns = b->window_ns, .start = &start}, threads,
                         round);

  __atomic_store_n(&start, n == threads ? GO : CALLED_OFF, __ATOMIC_RELEASE);
  *ns = 0;
  for (unsigned i = 0; i < n; i++) {
    pthread_join(runner[i].thread, NULL);
    *ns += runner[i].ns / threads;
  }
  return n == threads || oct_fault(why, "%s: thread %u of %u could not be started", r->what, n + 1, threads);
}

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;

  return (x > y) - (x < y);
}

double oct_median(const double *x, size_t n)
{
  double sorted[ROUNDS_MOST];

  memcpy(sorted, x, n * sizeof *x);
  qsort(sorted, n, sizeof *sorted, by_value);
  return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

bool oct_race(const struct bench *b, const struct racer *r, size_t count, unsigned threads, struct times *out,
              struct fault *why)
{
  for (unsigned round = 0; round < b->rounds; round++)
    for (size_t i = 0; i < count; i++)
      if (!heat(b, &r[i], threads, round, &out[i].round[round], why))
        return false;
  for (size_t i = 0; i < count; i++)
    out[i].median = oct_median(out[i].round, b->rounds);
  return true;
}

void oct_row_race(const struct bench *b, struct row *row, const struct racer *r, const struct times *times, size_t count,
                  enum sense sense, double budget)
{
  double ratio[ROUNDS_MOST];

  for (unsigned i = 0; i < b->rounds; i++)
    ratio[i] = sense == FASTER ? times[1].round[i] / times[0].round[i] : times[0].round[i] / times[1].round[i];
  oct_row_judge(row, times[0].median, times[1].median, sense, budget);
  row->ratio = oct_median(ratio, b->rounds);
  qsort(ratio, b->rounds, sizeof *ratio, by_value);
  row->low = ratio[0];
  row->high = ratio[b->rounds - 1];
  row->met = sense == FASTER ? row->ratio >= budget : row->ratio <= budget;
  for (size_t i = 2; i < count && row->others < ROW_OTHERS; i++) {
    row->other[row->others].what = r[i].what;
    row->other[row->others++].value = times[i].median;
  }
}

void oct_row_floor(struct row *row, const struct times *floor, double most)
{
  row->floors = row->baseline / floor->median;
  row->floors_most = most;
  row->met = row->met && row->floors <= most;
}
