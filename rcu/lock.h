/* SPDX-License-Identifier: MIT */
/*
 * lock: a mutex of two words for what is held for some tens of nanoseconds, at every allocation. As long as nobody had to
 * sleep for it, leaving it is a plain store: pthread_mutex_unlock's read-modify-write waits until all stores before it have
 * left the core, which took a tenth of an allocation. The first that must sleep makes it careful, for ever, and has all cores
 * of the process pass a barrier (membarrier): then either it sees the lock free, or whoever left it by a plain store sees
 * that it is careful now, and wakes. tests/spin/lock.pml tries every order of three threads, two turns each, with stores
 * that wait in a buffer.
 *
 * All zero is a free lock; it holds no memory. Not recursive, not fair. lock_leave looks at the lock once more after it is
 * free: its memory may go only when every call that used it has returned.
 */
#ifndef OCI_RCU_LOCK_H
#define OCI_RCU_LOCK_H

#include <stdbool.h>
#include <stdint.h>

enum { LOCK_OPEN, LOCK_TAKEN, LOCK_SLEPT_FOR };

struct lock {
  uint32_t state;
  uint32_t careful;    /* 1: threads may sleep until the state is no longer LOCK_SLEPT_FOR */
};

void oci_lock_wait(struct lock *l);          /* takes it */
void oci_lock_leave_careful(struct lock *l);
void oci_lock_wake(struct lock *l);

static inline void lock_take(struct lock *l) {
  uint32_t open = LOCK_OPEN;
  if (!__builtin_expect(__atomic_compare_exchange_n(&l->state, &open, LOCK_TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED), 1))
    oci_lock_wait(l);
}

static inline bool lock_is_careful(const struct lock *l) {
  return __builtin_expect(__atomic_load_n(&l->careful, __ATOMIC_RELAXED), 0);
}

static inline void lock_leave(struct lock *l) {
  if (lock_is_careful(l)) {
    oci_lock_leave_careful(l);
    return;
  }
  __atomic_store_n(&l->state, LOCK_OPEN, __ATOMIC_RELEASE);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);   /* in this order for the compiler; the core's is the sleeper's business */
  if (lock_is_careful(l)) oci_lock_wake(l);
}

/* Under l: leaves it and sleeps, unless *word is no longer `value`; takes it again. May come back too early. */
void oci_lock_sleep(struct lock *l, uint32_t *word, uint32_t value);
/* Wakes all that sleep for a change of *word. */
void oci_lock_changed(uint32_t *word);

#endif
