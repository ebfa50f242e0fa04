/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/issuerate.h"
#include "tools/clock.h"

/* Two threads get a half to three quarters of a core each; all of them may be some hundredths slower when they all work. */
static const double whole = 0.88;

enum { TURNS = 256, LANES = 6, DEPTH = 8 };

static double highest;   /* atomic */

/* The compiler has to have it now, in a register. */
#define KEEP(x) __asm__ volatile("" : "+r"(x))

#define STEP(lane) do { (lane) ^= by; KEEP(lane); } while (0)
#define ROW do { STEP(a); STEP(b); STEP(c); STEP(d); STEP(e); STEP(f); } while (0)

/* Six lanes that wait for nobody but themselves: more than a core takes at once. */
static uint64_t flip(uint64_t by)
{
  uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;

  for (int i = 0; i < TURNS; i++) {
    ROW; ROW; ROW; ROW; ROW; ROW; ROW; ROW;
  }
  return a + b + c + d + e + f;
}

static void see(double rate)
{
  double before;

  __atomic_load(&highest, &before, __ATOMIC_RELAXED);
  while (rate > before && !__atomic_compare_exchange(&highest, &before, &rate, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
}

double oct_issue_rate(void)
{
  uint64_t began = oct_now_ns(), x = flip(began), took;
  double rate;

  KEEP(x);
  took = oct_now_ns() - began;
  rate = took > 0 ? (double)(TURNS * LANES * DEPTH) / (double)took : 0;
  see(rate);
  return rate;
}

bool oct_issue_is_whole(double rate)
{
  double most;

  __atomic_load(&highest, &most, __ATOMIC_RELAXED);
  return rate >= whole * most;
}

void oct_issue_learn(void)
{
  uint64_t began = oct_now_ns();

  while (oct_now_ns() - began < 50 * 1000 * 1000)
    (void)oct_issue_rate();
}
