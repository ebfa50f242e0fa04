/* SPDX-License-Identifier: MIT */
/*
 * The trace: what happened, when, on which thread; process-wide, bounded, off unless an engine starts it.
 *
 * event: one line of it; written by the thread that it happened on, into a slot of its own. Read when the trace is over
 *        and no thread writes any more.
 */
#ifndef OCI_LIBOC_TRACE_H
#define OCI_LIBOC_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "rcu/error.h"

enum event_kind { EVENT_DRIVER, EVENT_BUILD, EVENT_WAIT, EVENT_GUARD_WAIT, EVENT_INSTANT, EVENT_BYTES };

struct event {
  uint64_t begin, ns;        /* by oci_now_ns; ns: of EVENT_DRIVER to EVENT_GUARD_WAIT */
  uint64_t thread;           /* oci_thread_id; 0: of EVENT_BYTES */
  uint64_t generation;
  const char *name;          /* lives as long as the process */
  uint64_t a, b, c;          /* driver: status; build: key, status; bytes: live, retired, arenas */
  enum event_kind kind;
};

extern bool oci_trace_on;    /* atomic; a hint */
static inline bool oci_tracing(void) { return __builtin_expect(__atomic_load_n(&oci_trace_on, __ATOMIC_RELAXED), 0); }
/* Any lock may be held. */
void oci_trace_add(const struct event *e);
void oci_trace_fork(enum oci_fork_step step);

#endif
