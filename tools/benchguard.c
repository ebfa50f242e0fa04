/* SPDX-License-Identifier: MIT */
/* A guard's enter and leave, beside liburcu-bp's own pair, called out of line as a program calls it. */
#include "config.h"

#include <urcu/urcu-bp.h>

#include "tools/benchworld.h"
#include "tools/floor.h"

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

static bool measure(struct bench *b, const oc_model *m, struct fault *why)
{
  static const struct hit guard = {"guard enter + leave", {2, 2}, {11.3, 11.3}, 1, false};
  struct floor floor;
  const struct racer r[] = {{.what = "guard", .lap = ours, .bare = true},
                            {.what = "liburcu-bp's pair, out of line", .lap = theirs, .bare = true},
                            {.what = "floor", .lap = oct_floor_lap, .arg = &floor, .bare = true}};
  bool ok = oct_floor_make(&floor, m, why) && oct_hit_rows(b, &guard, r, 3, why);

  oct_floor_free(&floor);
  return ok;
}

bool oct_bench_guard(struct bench *b, struct fault *why)
{
  struct void_device d;
  oc_model *m = NULL;
  bool ok = oct_void_open(&d, why) && oct_void_model(&d, 0, &m, why) && measure(b, m, why);

  if (m)
    (void)!oc_model_destroy(m);
  return d.backend ? oct_void_close(&d, ok ? why : &(struct fault){""}) && ok : ok;
}
