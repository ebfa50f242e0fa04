/* SPDX-License-Identifier: MIT */
/*
 * octool run, and what its parts share.
 *
 * run: the whole. Owned by the main thread, which loads, publishes and tears down; servers read it. What both sides
 *   write says so: by __atomic, or under `lock`.
 * generation: one model, and where its tensors lie. Made and freed by the main thread. Servers reach it only through
 *   run.current, inside a guard; it is freed after oc_model_destroy, which waits for guards.
 */
#ifndef OCTOOL_RUN_H
#define OCTOOL_RUN_H

#include "tools/checkpoint.h"
#include "tools/device.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/sampler.h"
#include "tools/stopwatch.h"

#include <pthread.h>

/* Faults put in on purpose, to show that what should notice them does. */
enum inject {
  INJECT_NONE,
  INJECT_BITFLIP,     /* one bit of a derived buffer flips before it is verified: verify_failures */
  INJECT_NO_GRACE,    /* a handle is used after its model's teardown, with no guard: stale_launches */
  INJECT_MISS,        /* a derivation is invalidated before serving: a server misses, and builds it */
  INJECT_ORPHAN       /* a block that nobody owns is left in the pool: blocks_swept */
};

struct run_options {
  const char *backend, *json, *trace, *html;   /* json, trace, html: NULL: none */
  bool publish;
  uint64_t threads, swaps;
  double seconds;
  bool derive[DERIVATIONS];
  enum inject inject;
  char **files;
  size_t file_count;
};

/* What the run has done. Servers and the main thread add with __atomic. */
struct totals {
  uint64_t derived_built, derived_verified, verify_failures;
  uint64_t products_checked, product_failures;
  uint64_t passes, misses;
  /* the main thread's alone */
  uint64_t swaps, blocks_swept, driver_allocs, driver_frees, arenas, arena_bytes, live_bytes_peak;
  uint64_t stale_launches, device_frees;
  bool device_counts;               /* else those two are 0, and bytes_leaked is what the reports lack of the arenas */
  int64_t bytes_leaked;
  int64_t device_growth;            /* bytes in use after less before, as the device says */
  uint64_t serving_ns;
  oc_status teardown;               /* the first that was not OC_OK */
  struct stopwatch lookups;         /* all servers' together */
  bool unclean;                     /* a teardown was: the report is the first such one's */
  char *report;                     /* else the last teardown's; by oc_report_text */
  char *report_json;
};

struct generation {
  oc_model *model;
  uint64_t number;                  /* 1, 2, ... */
  oc_devptr *source;                /* [placed_count]; 0 for a tensor without bytes */
  oc_devptr x;                      /* the vector that all products are with */
  unsigned char *checked;           /* [job_count], set by __atomic: a server has taken this product's check */
  unsigned char *verified;          /* [job_count] */
  bool complete;                    /* loaded, derived, verified */
  struct generation *next;
};

enum { LOADER_STREAMS = 4, LOADER_CHUNK = 4 << 20, TRACE_EVENTS = 1 << 20 };

struct run {
  struct run_options options;
  struct device device;
  struct checkpoint checkpoint;
  struct progress progress;
  struct totals totals;
  struct runpage *page;             /* NULL: none is asked for */
  float *x;                         /* [most_columns], on the host */

  oc_stream streams[LOADER_STREAMS];
  unsigned stream_count;
  unsigned char *chunk[LOADER_STREAMS];

  struct generation *current;       /* the shared pointer: stored with release, loaded inside a guard */
  struct generation *alive;         /* made and not yet torn down, newest first */
  uint64_t number;                  /* of the current one; stored before `current` */
  uint64_t unchecked;               /* by __atomic: products of it that no server has compared yet */
  int stopping;                     /* by __atomic */

  pthread_mutex_t lock;
  pthread_cond_t moved;             /* something below changed */
  uint64_t served;                  /* the newest generation that a whole pass was served from */
  uint64_t torn_down;               /* generations torn down, in their order */
  bool failed;
  struct fault failure;             /* the first */
};

/* Is there a reason to stop early: Ctrl-C, or a failure? */
bool oct_run_should_stop(struct run *r);
/* Keeps the first failure, and wakes whoever waits. Any thread. */
void oct_run_fail(struct run *r, const struct fault *why);

/* generation.c: a model with everything on it, not yet published; NULL with `why` if that fails or is interrupted. */
struct generation *oct_generation_make(struct run *r, struct fault *why);
/* Tears the model down and adds what its report says to the totals; frees the generation. False where the model
   would not go; then the generation stays alive. */
bool oct_generation_retire(struct run *r, struct generation *g, struct fault *why);

/* load.c */
/* Every tensor into the pool, waited for. */
bool oct_load(struct run *r, struct generation *g, struct fault *why);

/* derive.c: where a job's value is. OC_MISS where it is not built; the order on s is made. Each lookup is one of w's,
   which may be NULL. */
oc_status oct_find(const struct generation *g, const struct job *j, oc_stream s, uint64_t value[2],
                   struct stopwatch *w);
/* Builds it, and what it needs, where it is not there, with kernels on s. Not inside a guard. */
oc_status oct_build(struct run *r, struct generation *g, const struct job *j, oc_stream s, struct fault *why);
/* All of them, waited for. */
bool oct_derive(struct run *r, struct generation *g, struct fault *why);

/* verify.c: every byte on the device against the files and the reference. A second time, only what is not marked
   as verified, and is there. */
bool oct_verify(struct run *r, struct generation *g, struct fault *why);

/* swap.c: makes it the current one. */
void oct_publish(struct run *r, struct generation *g);
/* The main thread's part while servers serve: waits, and swaps. */
bool oct_swap(struct run *r, struct fault *why);

/* serve.c: N threads until run.stopping; oct_serve_end joins them and adds their figures to the totals. */
struct servers;
struct servers *oct_serve_begin(struct run *r, struct fault *why);
bool oct_serve_end(struct run *r, struct servers *s, struct fault *why);

/* outcome.c */
bool oct_run_is_clean(const struct run *r);
void oct_print_outcome(const struct run *r);
bool oct_write_outcome(const struct run *r, struct output *out, struct fault *why);
json_t *oct_outcome_json(const struct run *r);

/* runpage.c: the page, where one is asked for; else all of it succeeds and does nothing. */
bool oct_runpage_open(struct run *r, struct fault *why);
bool oct_runpage_is_stdout(const struct run *r);
struct sampler *oct_runpage_sampler(const struct run *r);
/* Keeps what g's memory looks like now, in place of what was kept before. */
bool oct_runpage_map(struct run *r, const struct generation *g, struct fault *why);
/* Writes it and closes. */
bool oct_runpage_write(struct run *r, bool clean, struct fault *why);
void oct_runpage_abandon(struct run *r);

#endif
