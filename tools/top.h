/* SPDX-License-Identifier: MIT */
/*
 * octool top, and what its parts share.
 *
 * top: what is watched, the last two looks at it, and how they are shown. Owned by octool top's one thread.
 */
#ifndef OCTOOL_TOP_H
#define OCTOOL_TOP_H

#include "tools/topview.h"

#include <pthread.h>
#include <sys/types.h>

struct top {
  struct watched of;
  struct look before, now;
  struct top_view view;
  struct top_text text;
  double interval;               /* seconds between looks */
};

/* How watching ended. */
enum top_end { TOP_QUIT, TOP_PROCESS_ENDED, TOP_FAILED };

/* Looks again: what was now is before. */
bool oct_top_look(struct top *t, struct fault *why);
/* topscreen.c: on a terminal, until a key, a signal or the process's end. TOP_FAILED: why. */
enum top_end oct_top_screen(struct top *t, struct fault *why);
/* Why there can be no screen here; NULL: there can. */
const char *oct_top_no_screen(void);

/* topdemo.c: a process that publishes its figures. Before anything here has used liboc. */
bool oct_demo_begin(pid_t *pid, struct fault *why);
void oct_demo_end(pid_t pid);

#endif
