/* SPDX-License-Identifier: MIT */
/*
 * turn: only one thread at a time asks the driver for one thing (a kernel, a larger buffer, a module); others who want the
 *       same wait for its answer, everybody else goes on. A thread id beside the thing, under its owner's lock.
 */
#ifndef OCI_LIBOC_TURN_H
#define OCI_LIBOC_TURN_H

#include <pthread.h>
#include <stdbool.h>

#include "rcu/thread.h"

/* With the lock held: waits until the turn is free. False: this thread has it already (the driver, or a callback,
   came back to us for the same thing), and waiting would never end. */
static inline bool oci_turn_wait(const uint64_t *turn, pthread_cond_t *given, pthread_mutex_t *lock) {
  if (*turn == oci_thread_id()) return false;
  while (*turn) pthread_cond_wait(given, lock);
  return true;
}

static inline void oci_turn_take(uint64_t *turn) {
  *turn = oci_thread_id();
}

static inline void oci_turn_give(uint64_t *turn, pthread_cond_t *given) {
  *turn = 0;
  pthread_cond_broadcast(given);
}

#endif
