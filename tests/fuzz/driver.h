/* SPDX-License-Identifier: MIT */
/*
 * driver: a backend for the API's fuzz target, without memory and without threads. Addresses are numbers, a stream is two
 * counters, an event is a place in a stream. It answers failures on order, and counts what must never happen.
 * Owned by the target; one thread.
 */
#ifndef TESTS_FUZZ_DRIVER_H
#define TESTS_FUZZ_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "liboc/oc.h"

enum { STREAMS = 3, EVENTS_MOST = 512, MEMORY_MOST = 512 };

enum entry_point { AT_ALLOC, AT_MANAGED, AT_FREE, AT_KERNEL, AT_LOAD, AT_UNLOAD, AT_FUNCTION, AT_SYNC, AT_EVENT, AT_RECORD,
  AT_QUERY, AT_WAIT, ENTRY_POINTS };

struct driver {
  struct { uint64_t at, bytes; } memory[MEMORY_MOST];
  unsigned memory_count;
  uint64_t next, bytes;          /* bytes: of all that is allocated */
  uint64_t queued[STREAMS], ran[STREAMS];
  struct { bool there; unsigned stream; uint64_t place; } event[EVENTS_MOST];
  unsigned events, modules;      /* alive */
  unsigned made;                 /* modules so far */
  unsigned asked;                /* answers "not yet" in this step */

  enum entry_point order_at;     /* the order_in-th next call there, and order_count - 1 after it, answer order_as */
  unsigned order_in, order_count;
  oc_status order_as;
  unsigned met;                  /* answers of that kind in this step */
  bool lost;                     /* one was "device lost", ever */

  bool capture;                  /* no call but `capturing` may come */
  const char *wrong;             /* the first thing that must not happen; NULL: none */
};

extern const oc_backend_ops driver_table;

void driver_open(struct driver *d, uint64_t skew);
oc_stream driver_stream(unsigned i);
/* The device has done what is queued there. */
void driver_run(struct driver *d, unsigned stream);
bool driver_holds(const struct driver *d, uint64_t at, uint64_t bytes);
/* What it answers for a function's handle. */
oc_kernel driver_kernel(uint64_t module, const char *function);

#endif
