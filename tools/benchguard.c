/* SPDX-License-Identifier: MIT */
/* A guard's enter and leave, beside liburcu-bp's own pair, called out of line as a program calls it. */
#include "config.h"

#include <urcu/urcu-bp.h>

#include "tools/race.h"

static void ours(void *arg, struct lap *lap)
{
  (void)arg;
  for (size_t i = 0; i < LAP; i++) {
    oc_guard_enter();
    oc_guard_leave();
  }
  lap->at += LAP;
}

static void theirs(void *arg, struct lap *lap)
{
  (void)arg;
  for (size_t i = 0; i < LAP; i++) {
    urcu_bp_read_lock();
    urcu_bp_read_unlock();
  }
  lap->at += LAP;
}

/* 11.3 ns over a floor of 2.2. */
bool oct_bench_guard(struct bench *b, struct fault *why)
{
  static const struct hit guard = {"guard enter + leave", "liburcu-bp's pair, out of line", {2, 2}, {11.3, 11.3}, 1};
  static uint64_t table[1];
  static const uint32_t order[1];
  struct floor_table floor = {order, 0, table};
  const struct racer r[] = {{.what = "guard", .lap = ours, .bare = true},
                            {.what = "liburcu-bp", .lap = theirs, .bare = true},
                            {.what = "floor", .lap = oct_floor_lap, .arg = &floor, .bare = true}};

  return oct_hit_rows(b, &guard, r, 3, why);
}
