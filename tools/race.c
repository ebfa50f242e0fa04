/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "config.h"

#include "tools/race.h"
#include "tools/clock.h"
#include "tools/issuerate.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Who waits at the start: a barrier would hold those for ever that came before a thread that could not be made. */
enum start { WAIT, GO, CALLED_OFF };

/* PATIENCE: windows of time that one may take. Laps are looked at in stretches: to look takes a microsecond and more, in which
   the thread is outside of what it measures. */
enum { PATIENCE = 100, STRETCH_NS = 20000 };

struct runner {
  const struct racer *racer;
  uint64_t window_ns, warm_ns, patience_ns;
  int *start;
  unsigned *ready, *busy;        /* threads that wait at the start, and that are not through their window */
  pthread_t thread;
  struct lap lap;
  double ns;                     /* an operation */
  bool shared;
};

struct span { uint64_t laps, ns; };

unsigned oct_cores(void)
{
  cpu_set_t allowed;

  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (unsigned)CPU_COUNT(&allowed) : 1;
}

void oct_pin(unsigned thread)
{
  cpu_set_t allowed, one;
  unsigned nth = 0;

  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return;
  thread %= (unsigned)CPU_COUNT(&allowed);
  CPU_ZERO(&one);
  for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &allowed) && nth++ == thread)
      CPU_SET(cpu, &one);
  (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

static uint64_t one_lap(struct runner *t)
{
  uint64_t began = oct_now_ns();

  t->racer->lap(t->racer->arg, &t->lap);
  return oct_now_ns() - began;
}

static void laps(struct runner *t, uint64_t for_ns)
{
  uint64_t began = oct_now_ns();

  do
    one_lap(t);
  while (oct_now_ns() - began < for_ns);
}

/* Everybody runs, on its own core, before anybody begins. */
static bool started(const struct runner *t)
{
  int start;

  __atomic_fetch_add(t->ready, 1, __ATOMIC_ACQ_REL);
  while ((start = __atomic_load_n(t->start, __ATOMIC_ACQUIRE)) == WAIT)
    sched_yield();
  return start == GO;
}

static void wait_until_ready(const unsigned *ready, unsigned threads)
{
  while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) < threads)
    sched_yield();
}

long oct_preemptions(void)
{
  struct rusage u;

  return getrusage(RUSAGE_THREAD, &u) == 0 ? u.ru_nivcsw : 0;
}

static void add(struct span *to, struct span s)
{
  to->laps += s.laps;
  to->ns += s.ns;
}

static struct span stretch(struct runner *t)
{
  struct span s = {0};

  do
    add(&s, (struct span){1, one_lap(t)});
  while (s.ns < STRETCH_NS && s.ns < t->window_ns);
  return s;
}

/* A stretch counts if the core was this thread's alone just before and just after it, and the kernel stopped nobody during it.
   Where a thread was stopped, the others of its race contended with nobody. */
static void window(struct runner *t)
{
  struct span all = {0}, alone = {0}, s;
  uint64_t began = oct_now_ns();
  bool was, is = oct_issue_is_whole(oct_issue_rate()), stopped = false;
  long before, after = oct_preemptions();

  do {
    was = is;
    before = after;
    s = stretch(t);
    is = oct_issue_is_whole(oct_issue_rate());
    after = oct_preemptions();
    stopped = stopped || before != after;
    add(&all, s);
    if (was && is && before == after)
      add(&alone, s);
  } while (alone.ns < t->window_ns && oct_now_ns() - began < t->patience_ns);
  t->shared = alone.ns < t->window_ns / 2 || (stopped && t->racer->threads > 1);
  if (alone.ns >= t->window_ns / 2)
    all = alone;
  t->ns = (double)all.ns / ((double)all.laps * LAP);
}

/* So that nobody is timed alone at the end. */
static void keep_company(struct runner *t)
{
  long before = oct_preemptions();

  __atomic_fetch_sub(t->busy, 1, __ATOMIC_ACQ_REL);
  while (__atomic_load_n(t->busy, __ATOMIC_ACQUIRE) > 0)
    one_lap(t);
  t->shared = t->shared || (t->racer->threads > 1 && oct_preemptions() != before);
}

static void *run(void *arg)
{
  struct runner *t = arg;

  oct_pin(t->lap.thread);
  if (!started(t))
    return NULL;
  if (!t->racer->bare)
    oc_guard_enter();
  laps(t, t->warm_ns);   /* the caches were another's */
  window(t);
  keep_company(t);
  if (!t->racer->bare)
    oc_guard_leave();
  return NULL;
}

static unsigned start_all(struct runner *runner, const struct runner *like, unsigned round)
{
  unsigned n = 0;

  for (; n < like->racer->threads; n++) {
    runner[n] = *like;
    runner[n].lap = (struct lap){.thread = n, .at = (uint64_t)(n + round) * 7919};
    if (pthread_create(&runner[n].thread, NULL, run, &runner[n]) != 0)
      break;
  }
  return n;
}

/* One window; *shared: a thread had to share its core in it. */
static bool heat(const struct bench *b, const struct racer *r, unsigned warm, unsigned round, double *ns, bool *shared,
                 struct fault *why)
{
  struct runner runner[RACE_THREADS];
  int start = WAIT;
  unsigned ready = 0, busy = r->threads;
  bool hopeless = b->quick || r->threads > b->cores;   /* nobody has a core of its own for long */
  const struct runner like = {.racer = r, .window_ns = b->window_ns, .warm_ns = b->window_ns / 4 * warm, .start = &start,
                              .patience_ns = b->window_ns * (hopeless ? 1 : PATIENCE), .ready = &ready, .busy = &busy};
  unsigned n = start_all(runner, &like, round);

  wait_until_ready(&ready, n);
  __atomic_store_n(&start, n == r->threads ? GO : CALLED_OFF, __ATOMIC_RELEASE);
  *ns = 0;
  *shared = false;
  for (unsigned i = 0; i < n; i++) {
    pthread_join(runner[i].thread, NULL);
    *ns += runner[i].ns / r->threads;
    *shared = *shared || runner[i].shared;
  }
  return n == r->threads || oct_fault(why, "%s: thread %u of %u could not be started", r->what, n + 1, r->threads);
}

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;

  return (x > y) - (x < y);
}

struct middle { double median, low, high; };

/* Median and quartiles; x is sorted. */
static struct middle middle_of(double *x, size_t n)
{
  qsort(x, n, sizeof *x, by_value);
  return (struct middle){n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2, x[n / 4], x[n - 1 - n / 4]};
}

// NOLINTBEGIN(clang-analyzer-core.*): there are two racers at least and a round at least: octool bench takes no fewer

/* Those of x whose round was on whole cores, if these are enough for a median; else all. Returns how many. */
static unsigned choose(const double *x, const bool *shared, unsigned rounds, double *out)
{
  unsigned n = 0;

  /* analyzer: those who call it had so many rounds */
  for (unsigned i = 0; i < rounds; i++)
    if (!shared[i])
      out[n++] = x[i];
  if (n >= ROUNDS_LEAST || n == rounds)
    return n;
  memcpy(out, x, rounds * sizeof *x);
  return rounds;
}

static struct middle chosen(const double *x, const bool *shared, unsigned rounds)
{
  double of[ROUNDS_MOST];
  unsigned n = choose(x, shared, rounds, of);

  return middle_of(of, n);
}

void oct_times_close(struct times *t, unsigned rounds)
{
  struct middle m = chosen(t->round, t->shared, rounds);

  t->rounds = rounds;
  t->median = m.median;
  t->low = m.low;
  t->high = m.high;
}

bool oct_race(const struct bench *b, const struct racer *r, size_t count, unsigned warm, struct times *out,
              struct fault *why)
{
  for (unsigned round = 0; round < b->rounds; round++)
    for (size_t i = 0; i < count; i++)
      if (!oct_bench_goes_on(why) || !heat(b, &r[i], warm, round, &out[i].round[round], &out[i].shared[round], why))
        return false;
  for (size_t i = 0; i < count; i++) {
    out[i].whole_cores = true;
    oct_times_close(&out[i], b->rounds);
  }
  return true;
}

static void list(struct row *row, const struct racer *r, const struct times *times, size_t count)
{
  for (size_t i = 0; i < count; i++)
    row->contestant[i] = (struct contestant){r[i].what, times[i].median, times[i].low, times[i].high};
  row->contestants = count;
}

void oct_row_race(struct row *row, const struct racer *r, const struct times *times, size_t count, enum sense sense,
                  double budget)
{
  double ratio[ROUNDS_MOST];
  bool shared[ROUNDS_MOST];
  unsigned rounds = times->rounds;
  struct middle m;

  for (unsigned i = 0; i < rounds; i++) {
    ratio[i] = sense == FASTER ? times[1].round[i] / times[0].round[i] : times[0].round[i] / times[1].round[i];
    shared[i] = times[0].shared[i] || times[1].shared[i];
    row->shared += shared[i];
  }
  m = chosen(ratio, shared, rounds);
  oct_row_judge(row, chosen(times[0].round, shared, rounds).median, chosen(times[1].round, shared, rounds).median, sense,
                budget);
  row->ratio = m.median;
  row->low = m.low;
  row->high = m.high;
  row->met = sense == FASTER ? row->ratio >= budget : row->ratio <= budget;
  row->rounds = rounds;
  row->whole_cores = times->whole_cores;
  list(row, r, times, count);
}

void oct_row_floor(struct row *row, double floor_ns, double known_ns)
{
  row->floors = row->baseline / floor_ns;
  row->floors_most = 1.5 * known_ns / 2.2;
  row->met = row->met && (known_ns == 0 || row->floors <= row->floors_most);
}

/* ---- One kind of hit ---- */

/* Twice as slow is not twice the opponent: then the one with the light lock is the baseline, if it is any faster. */
static void choose_baseline(struct racer *r, struct times *times, double floor_ns, double known_ns)
{
  /* analyzer: h->light says that there are three at least */
  struct racer was = r[1];
  struct times its = times[1];

  if (known_ns == 0 || its.median / floor_ns <= 1.5 * known_ns / 2.2 || its.median <= times[2].median)
    return;
  r[1] = r[2];
  times[1] = times[2];
  r[2] = was;
  times[2] = its;
}

static void rows_on(struct bench *b, const struct hit *h, struct racer *r, struct times *times, size_t count,
                    unsigned threads)
{
  double floor_ns = times[count - 1].median, known_ns = h->baseline_ns[threads - 1];
  struct row *row;

  if (h->light)
    choose_baseline(r, times, floor_ns, known_ns);
  row = oct_bench_row(b, r[1].what, "ns", "%s, %u thread%s", h->name, threads, threads > 1 ? "s" : "");
  oct_row_race(row, r, times, count, FASTER, h->budget[threads - 1]);
  oct_row_threads(b, row, threads);
  oct_row_floor(row, floor_ns, known_ns);
}

/* 2 threads against 1, per thread, of what ran on both. */
static void row_of_scaling(struct bench *b, const struct hit *h, const struct racer on[2], const struct times times[2])
{
  struct row *row = oct_bench_row(b, "itself on 1 thread", "ns", "%s, 2 threads against 1", h->name);

  oct_row_race(row, on, times, 2, AT_MOST, 1.3);
  oct_row_threads(b, row, 2);
}

bool oct_hit_rows(struct bench *b, const struct hit *h, const struct racer *r, size_t count, struct fault *why)
{
  struct racer twice[2 * RACERS];
  struct times times[2 * RACERS];
  size_t on_two = h->budget[1] > 0 ? count : 1;

  for (size_t i = 0; i < count + on_two; i++) {
    twice[i] = r[i % count];
    twice[i].threads = i < count ? 1 : 2;
  }
  if (!oct_race(b, twice, count + on_two, h->warm ? h->warm : 1, times, why))
    return false;
  const struct racer scaling[2] = {twice[count], twice[0]};
  const struct times scaling_times[2] = {times[count], times[0]};

  rows_on(b, h, twice, times, count, 1);
  if (on_two == count)
    rows_on(b, h, twice + count, times + count, count, 2);
  row_of_scaling(b, h, scaling, scaling_times);
  return true;
}

// NOLINTEND(clang-analyzer-core.*)
