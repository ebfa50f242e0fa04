/* SPDX-License-Identifier: MIT */
/*
 * All models' figures as the Prometheus text exposition format, version 0.0.4: of each metric its help, its type, and a
 * line a model. The figures are copied first, so that no lock is held while text is made.
 */
#include "config.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "allocator/text.h"
#include "liboc/publish.h"
#include "liboc/sight.h"
#include "rcu/mem.h"
#include "rcu/thread.h"

enum unit { COUNT, NANOSECONDS };   /* as kept; nanoseconds are written as seconds */

struct metric {
  const char *name, *help;
  bool counter;
  enum unit unit;
  size_t offset;                    /* of a uint64_t in struct sighting */
  const char *label;                /* one more, NULL: none */
};

#define STATS(field) offsetof(struct sighting, stats.field)
#define POOL(field) offsetof(struct sighting, pool.field)
#define FIGURE(field) offsetof(struct sighting, field)

/* Metrics of one name follow one another. */
static const struct metric metrics[] = {
  {"liboc_misses_total", "Lookups that had to ask the driver, allocate, build or wait.", true, COUNT, STATS(kernel_misses),
   "what=\"kernel\""},
  {"liboc_misses_total", NULL, true, COUNT, STATS(scratch_misses), "what=\"scratch\""},
  {"liboc_misses_total", NULL, true, COUNT, STATS(derived_misses), "what=\"derived\""},
  {"liboc_builds_total", "Builds of derived weights that stored a value.", true, COUNT, STATS(builds), NULL},
  {"liboc_build_failures_total", "Builds of derived weights that stored none.", true, COUNT, STATS(build_failures), NULL},
  {"liboc_build_seconds_total", "Time from begin to end of builds.", true, NANOSECONDS, STATS(build_ns), NULL},
  {"liboc_build_waits_total", "Waits of a thread for another one's build.", true, COUNT, STATS(build_waits), NULL},
  {"liboc_build_wait_seconds_total", "Time waited for other threads' builds.", true, NANOSECONDS, STATS(build_wait_ns), NULL},
  {"liboc_scratch_growths_total", "Scratch buffers made, new or larger.", true, COUNT, STATS(scratch_growths), NULL},
  {"liboc_arena_growths_total", "Arenas taken from the driver.", true, COUNT, STATS(arena_growths), NULL},
  {"liboc_guard_waits_total", "Waits for all readers: teardown, invalidate, release.", true, COUNT, STATS(guard_waits), NULL},
  {"liboc_guard_wait_seconds_total", "Time waited for readers.", true, NANOSECONDS, STATS(guard_wait_ns), NULL},
#define CALLS(what, field, unit, help)                                                                         \
  {what, help, true, unit, STATS(driver[OC_CALL_ALLOC].field), "call=\"alloc\""},                              \
  {what, NULL, true, unit, STATS(driver[OC_CALL_ALLOC_MANAGED].field), "call=\"alloc_managed\""},              \
  {what, NULL, true, unit, STATS(driver[OC_CALL_FREE].field), "call=\"free\""},                                \
  {what, NULL, true, unit, STATS(driver[OC_CALL_MODULE].field), "call=\"module\""},                            \
  {what, NULL, true, unit, STATS(driver[OC_CALL_KERNEL].field), "call=\"kernel\""},                            \
  {what, NULL, true, unit, STATS(driver[OC_CALL_EVENT].field), "call=\"event\""},                              \
  {what, NULL, true, unit, STATS(driver[OC_CALL_SYNC].field), "call=\"synchronize\""},                         \
  {what, NULL, true, unit, STATS(driver[OC_CALL_CAPTURING].field), "call=\"capturing\""}
  CALLS("liboc_driver_calls_total", calls, COUNT, "Calls of the backend."),
  CALLS("liboc_driver_call_failures_total", failures, COUNT, "Calls of the backend that it refused."),
  CALLS("liboc_driver_call_seconds_total", ns, NANOSECONDS, "Time spent in calls of the backend."),
  {"liboc_arenas", "Driver allocations that the pool carves blocks out of.", false, COUNT, POOL(arenas), NULL},
  {"liboc_arena_bytes", "Bytes of all arenas: live, retired and free.", false, COUNT, POOL(arena_bytes), NULL},
  {"liboc_managed_bytes", "Bytes of arenas in managed memory, part of the above.", false, COUNT, POOL(managed_bytes), NULL},
  {"liboc_live_blocks", "Blocks in use.", false, COUNT, POOL(live_blocks), NULL},
  {"liboc_live_bytes", "Bytes of blocks in use.", false, COUNT, POOL(live_bytes), NULL},
  {"liboc_peak_live_bytes", "The most that live_bytes has been.", false, COUNT, POOL(peak_live_bytes), NULL},
  {"liboc_retired_bytes", "Bytes that wait for a stream, a graph or teardown.", false, COUNT, POOL(retired_bytes), NULL},
  {"liboc_free_bytes", "Bytes of arenas that are free.", false, COUNT, POOL(free_bytes), NULL},
  {"liboc_largest_free_bytes", "The largest free block.", false, COUNT, POOL(largest_free), NULL},
  {"liboc_host_metadata_bytes", "Host memory of the pool's records.", false, COUNT, POOL(host_metadata_bytes), NULL},
  {"liboc_kernels", "Kernel handles memoized.", false, COUNT, FIGURE(kernels), NULL},
  {"liboc_scratch_buffers", "Scratch buffers alive.", false, COUNT, FIGURE(scratches), NULL},
  {"liboc_derived_entries", "Derived weights memoized.", false, COUNT, FIGURE(derived), NULL},
};

/* A label's value: what the format escapes, escaped; what is no UTF-8, or does not print, '?'. */
static void add_value(struct text *t, const char *s) {
  struct text plain = {0};
  oci_text_add_plain(&plain, s);
  char *p = oci_text_take(&plain);
  if (!p) t->failed = true;
  for (const char *c = p; c && *c; c++) oci_text_add(t, *c == '\\' || *c == '"' ? "\\%c" : "%c", *c);
  oci_strfree(NULL, p);
}

static void add_labels(struct text *t, const struct sighting *s, const char *more) {
  oci_text_add(t, "{model=\"");
  add_value(t, s->name);
  oci_text_add(t, "\",generation=\"%" PRIu64 "\",backend=\"", s->stats.generation);
  add_value(t, s->backend);
  oci_text_add(t, more ? "\",%s}" : "\"}", more);
}

/* Without %f: its decimal point is the locale's. */
static void add_number(struct text *t, uint64_t n, enum unit unit) {
  if (unit == COUNT) oci_text_add(t, " %" PRIu64 "\n", n);
  else oci_text_add(t, " %" PRIu64 ".%09" PRIu64 "\n", n / 1000000000u, n % 1000000000u);
}

static void add_head(struct text *t, const char *name, const char *help, bool counter) {
  oci_text_add(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, counter ? "counter" : "gauge");
}

static void add_metric(struct text *t, const struct metric *m, const struct sighting *all, size_t n) {
  if (m->help) add_head(t, m->name, m->help, m->counter);
  for (size_t i = 0; i < n; i++) {
    uint64_t value;
    memcpy(&value, (const char *)&all[i] + m->offset, sizeof value);
    oci_text_add(t, "%s", m->name);
    add_labels(t, &all[i], m->label);
    add_number(t, value, m->unit);
  }
}

static void add_latches(struct text *t, const struct sighting *all, size_t n) {
  add_head(t, "liboc_fell_back", "1 once device memory ran out and new arenas come from managed memory.", false);
  for (size_t i = 0; i < n; i++) {
    oci_text_add(t, "liboc_fell_back");
    add_labels(t, &all[i], NULL);
    add_number(t, all[i].pool.fell_back, COUNT);
  }
}

/* Of all models together, and only where they are counted: by oc_stats_publish. */
static void add_hits(struct text *t) {
  static const char *const what[HITS] = {"kernel", "scratch", "derived", "gate"};
  uint64_t hits[HITS];
  if (!oci_publish_hits(hits)) return;
  add_head(t, "liboc_hits_total", "Lookups answered from memory, since the figures were published.", true);
  for (size_t k = 0; k < HITS; k++) oci_text_add(t, "liboc_hits_total{what=\"%s\"} %" PRIu64 "\n", what[k], hits[k]);
}

static char *write_all(const struct sighting *all, size_t n) {
  struct text t = {0};
  add_head(&t, "liboc_library_info", "The library's version; always 1.", false);
  oci_text_add(&t, "liboc_library_info{version=\"%s\"} 1\n", oc_version());
  add_head(&t, "liboc_models", "Models alive.", false);
  oci_text_add(&t, "liboc_models %zu\n", n);
  add_hits(&t);
  for (size_t i = 0; n && i < sizeof metrics / sizeof metrics[0]; i++) add_metric(&t, &metrics[i], all, n);
  if (n) add_latches(&t, all, n);
  return oci_text_take(&t);
}

/* Models may come while there is room made for those that were there. */
static struct sighting *look(size_t *n, size_t *room) {
  struct sighting *all = NULL;
  *room = 0;
  while ((*n = oci_sight_all(all, *room)) > *room) {
    oci_free(NULL, all, *room * sizeof *all);
    *room = *n + 4;
    all = oci_alloc(NULL, *room * sizeof *all);
    if (!all) return NULL;
  }
  return all;
}

int oc_metrics_prometheus(char *buf, size_t n) {
  static const char no_memory[] = "oc_metrics_prometheus: out of host memory";
  if (!buf && n) return oci_error(OC_E_INVALID, "oc_metrics_prometheus: buf is NULL, and n is %zu", n), -1;
  size_t models, room;
  struct sighting *all = look(&models, &room);
  if (!all && room) return oci_error(OC_E_HOST_NOMEM, no_memory), -1;
  char *text = write_all(all, models);
  oci_free(NULL, all, room * sizeof *all);
  if (!text) return oci_error(OC_E_HOST_NOMEM, no_memory), -1;
  int length = snprintf(buf, n, "%s", text);
  oci_strfree(NULL, text);
  return length;
}
