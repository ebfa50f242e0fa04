/* SPDX-License-Identifier: MIT */
/*
 * The page of figures of another process (oc_stats_publish), looked at from outside.
 *
 * watched: a process and its page. Owned by octool top. Nothing of the page is believed: it is copied by pread, so that a
 *   file that shrinks is a short read and no signal, and each offset is checked against what was read.
 * look: what stood there at one moment; owned by who took it.
 */
#ifndef OCTOOL_STATSPAGE_H
#define OCTOOL_STATSPAGE_H

#include "liboc/oc.h"
#include "tools/fault.h"

struct watched {
  uint64_t pid;
  int process, page;                 /* pidfd, or -1 where the kernel has none; the memfd, to read */
  oc_stats_page head;                /* checked */
};

struct look {
  uint64_t at_ns;
  oc_stats_model *model;             /* [models], in the order of their slots; names end with a NUL */
  size_t models;
  uint64_t kernel_hits, scratch_hits, derived_hits, gate_hits;
  uint64_t threads;                  /* that count there now */
  uint64_t models_left_out, threads_left_out;
};

/* Finds it by /proc/PID/fd. False where there is no such process, no leave to look, no page, or one that is not as it
   should be. */
bool oct_watch(struct watched *w, uint64_t pid, struct fault *why);
void oct_unwatch(struct watched *w);
/* Does the process live? A zombie does not. */
bool oct_watched_lives(const struct watched *w);
/* False where the page is not as it was any more. */
bool oct_look(const struct watched *w, struct look *out, struct fault *why);
void oct_look_free(struct look *l);

#endif
