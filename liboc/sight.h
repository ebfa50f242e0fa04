/* SPDX-License-Identifier: MIT */
/*
 * What a model says about itself while it works.
 *
 * counts: figures of one model, part of it; any thread adds, by atomics. They lie on lines of their own, which no hit
 *         reads or writes (G1): only what is no hit is counted.
 *
 * Each thing that happens is said in one place, by one of the functions below, and nowhere else.
 */
#ifndef OCI_LIBOC_SIGHT_H
#define OCI_LIBOC_SIGHT_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "liboc/oc.h"

struct oc_build;
struct oc_model;
struct text;

enum miss { MISS_KERNEL, MISS_SCRATCH, MISS_DERIVED, MISSES };

/* Up to bytes_traced as in oc_stats_model. */
struct counts {
  uint64_t misses[MISSES];
  uint64_t builds, build_failures, build_ns;
  uint64_t build_waits, build_wait_ns;
  uint64_t scratch_growths;
  uint64_t guard_waits, guard_wait_ns;
  oc_call_stats driver[OC_CALL_KINDS];
  uint64_t bytes_traced;       /* when the trace last had the pool's bytes */
};

static inline uint64_t oci_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* name: of the kernel, tag or kind. */
void oci_sight_miss(struct oc_model *m, enum miss what, const char *name);
/* b is open from now on; it has ended: with its value stored, or not. Nothing locked that a pool's lock is inside of. */
void oci_sight_build_begin(struct oc_build *b);
void oci_sight_build_end(const struct oc_build *b, oc_status st);
/* A thread waited, since then, for another one's build. */
void oci_sight_build_waited(struct oc_model *m, uint64_t since);
/* A scratch buffer was made, or replaced by a larger one. */
void oci_sight_scratch_grown(struct oc_model *m, const char *tag, uint64_t bytes);
/* An arena came. A block of so many bytes waits until it may be used again. Device memory ran out. Locks may be held. */
void oci_sight_arena(struct oc_model *m, uint64_t bytes, bool managed);
void oci_sight_retired(struct oc_model *m, uint64_t bytes);
void oci_sight_latch(struct oc_model *m);
/* So many values are forgotten, on their way to be freed. */
void oci_sight_invalidate(struct oc_model *m, uint64_t values);
/* Teardown begins a step. */
void oci_sight_teardown(struct oc_model *m, const char *step);
/* One call of the driver, begun then and just over. OC_MISS is no failure. */
void oci_sight_driver(struct oc_model *m, oc_call_kind kind, const char *entry, uint64_t since, oc_status st);
/* oci_guard_sync, counted. */
void oci_sight_guard_sync(struct oc_model *m);

/* The figures of a model, whatever its state but forked. */
void oci_sight_stats(struct oc_model *m, oc_model_stats *out);
/* A model's figures with what they are of, for the metrics; `name` is a copy. */
struct sighting {
  char name[128];
  char backend[64];
  oc_model_stats stats;
  oc_pool_stats pool;
  uint64_t kernels, scratches, derived;
};
/* Every model of the process now, at most `room` of them; the count of all. NULL with room 0: only counts. */
size_t oci_sight_all(struct sighting *out, size_t room);

#endif
