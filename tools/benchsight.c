/* SPDX-License-Identifier: MIT */
/*
 * octool bench --sight: the same rows and the same budgets with all that shows what the library does turned on: figures
 * published, a trace running, and a thread that reads all metrics ten times a second. Probes are in the library or not, as it
 * was built.
 */
#include "config.h"

#include "tools/benchsight.h"
#include "tools/device.h"

#include <stdlib.h>
#include <time.h>

enum { TRACE_ROOM = 1 << 20, SCRAPE_NS = 100 * 1000 * 1000, TEXT_BYTES = 1 << 16 };

static void *scrape(void *sight)
{
  struct sight *s = sight;
  char *text = malloc(TEXT_BYTES);

  while (text && !__atomic_load_n(&s->stopping, __ATOMIC_ACQUIRE)) {
    s->scrapes += oc_metrics_prometheus(text, TEXT_BYTES) > 0;
    nanosleep(&(struct timespec){0, SCRAPE_NS}, NULL);
  }
  free(text);
  return NULL;
}

bool oct_sight_on(struct sight *s, struct fault *why)
{
  const oc_trace_options trace = {.struct_size = sizeof trace, .events = TRACE_ROOM};
  oc_status st;

  *s = (struct sight){0};
  st = oc_stats_publish(NULL);
  if (st != OC_OK)
    return oct_liboc_fault(why, st, "publishing the figures");
  st = oc_trace_start(&trace);
  s->started = st == OC_OK && pthread_create(&s->thread, NULL, scrape, s) == 0;
  return s->started || (st != OC_OK ? oct_liboc_fault(why, st, "starting the trace") : oct_fault(why, "no thread to read metrics"));
}

bool oct_sight_off(struct sight *s, struct fault *why)
{
  oc_status st;

  if (!s->started)
    return true;
  __atomic_store_n(&s->stopping, 1, __ATOMIC_RELEASE);
  pthread_join(s->thread, NULL);
  st = oc_trace_stop(NULL, NULL);
  if (st == OC_OK)
    st = oc_stats_unpublish();
  if (st != OC_OK)
    return oct_liboc_fault(why, st, "ending the trace and the page");
  return s->scrapes > 0 || oct_fault(why, "the metrics were never read");
}
