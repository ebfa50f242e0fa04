/* SPDX-License-Identifier: MIT */
/*
 * What the library keeps about a thread.
 *
 * thread_self: a few bytes of initial-exec thread-local storage, reached without a call. Only the thread itself
 *              touches it, but for `cell` and `link`. So small that it fits the static TLS reserve of a process that
 *              dlopens us (a rule: no buffers here).
 * thread_cell: two cache lines that one thread counts its hits in, if anybody is to see them; owned by who gave the
 *              cells (oci_thread_cells), written by one thread at a time. What a thread that ended has counted stays.
 */
#ifndef OCI_RCU_THREAD_H
#define OCI_RCU_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rcu/error.h"
#include "rcu/list.h"

struct thread_text;   /* the thread's last error, on the process heap: error.c */

enum hit { HIT_KERNEL, HIT_SCRATCH, HIT_DERIVED, HIT_GATE, HITS };

struct thread_cell {
  uint64_t owner;            /* a thread's id; 0: nobody's */
  uint64_t hits[15];         /* by enum hit; the rest is 0 */
};

struct thread_self {
  void *reader_slot;         /* where liburcu keeps this thread's reader; NULL before the first guard */
  uint32_t guards;           /* oci_guard_enter without its leave */
  uint32_t captures;         /* captures entered on this thread, over all models */
  struct thread_text *text;
  bool wordless;             /* the last failure found no host memory for its words */
  bool listed, ended;        /* among the threads that may get a cell; its exit hook ran: never again */
  uint32_t failures;         /* worded so far */
  uint64_t id;               /* never reused in a process; 0 before oci_thread_id */
  struct thread_cell *cell;  /* atomic: set by any thread; NULL: hits are not counted */
  struct link link;          /* under thread.c's lock */
};

extern __thread struct thread_self oci_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

uint64_t oci_thread_id_new(void);

static inline uint64_t oci_thread_id(void) {
  return oci_self.id ? oci_self.id : oci_thread_id_new();
}

/* Around what must not end halfway: a thread cancelled in there would leave locks held, and waits linked on a stack that is
   gone. No hit does so. */
static inline int oci_cancel_off(void) {
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  return before;
}
static inline void oci_cancel_back(int before) {
  pthread_setcancelstate(before, NULL);
}

static inline bool oci_in_capture(void) {
  return __builtin_expect(oci_self.captures != 0, 0);
}

/* Of a hit, the last thing. Where nobody counts: a load and a jump, no store (G1). */
static inline void oci_hit(enum hit what) {
  struct thread_cell *cell = __atomic_load_n(&oci_self.cell, __ATOMIC_RELAXED);
  if (__builtin_expect(cell != NULL, 0)) {
    /* nobody else writes it: a plain addition, that a reader sees whole */
    uint64_t n = __atomic_load_n(&cell->hits[what], __ATOMIC_RELAXED);
    __atomic_store_n(&cell->hits[what], n + 1, __ATOMIC_RELAXED);
  }
}

/* From now on this thread gets a cell where there are any. Once a thread; takes a lock. */
void oci_thread_list(void);
/* Threads on the list, and those that come, count in cells[n], which stay mapped for ever; n 0: nowhere any more. *more:
   atomic; threads that there was no cell for. */
void oci_thread_cells(struct thread_cell *cells, size_t n, uint64_t *more);
void oci_thread_fork(enum oci_fork_step step);

#endif
