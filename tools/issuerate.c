/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/issuerate.h"
#include "tools/clock.h"

/* Two threads get a half to three quarters of a core each; all of them may be some hundredths slower when they all work. */
static const double whole = 0.88;

enum { TURNS = 256, LANES = 6, DEPTH = 8, STEPS = 1024, A_NANOSECOND = 20, OFTEN = 32 };

/* How often each rate was seen, in steps of 0.05: one look beside a step of the clock is not the core's rate. */
static uint32_t seen[STEPS];   /* atomic */
static uint32_t highest;       /* atomic: the highest step that was seen often */

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
  uint32_t step = rate * A_NANOSECOND < STEPS - 1 ? (uint32_t)(rate * A_NANOSECOND) : STEPS - 1;
  uint32_t before = __atomic_load_n(&highest, __ATOMIC_RELAXED);

  if (__atomic_add_fetch(&seen[step], 1, __ATOMIC_RELAXED) != OFTEN)
    return;
  while (step > before && !__atomic_compare_exchange_n(&highest, &before, step, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
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
  return rate * A_NANOSECOND >= whole * __atomic_load_n(&highest, __ATOMIC_RELAXED);
}

void oct_issue_learn(void)
{
  uint64_t began = oct_now_ns();

  while (oct_now_ns() - began < 50 * 1000 * 1000)
    (void)oct_issue_rate();
}
