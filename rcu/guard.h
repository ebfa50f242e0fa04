/* SPDX-License-Identifier: MIT */
/*
 * Guards: read-side sections of userspace RCU, flavour bp (readers need no registration).
 *
 * The read lock is written out here against liburcu's reader record, because its own inline finds the record by
 * a general-model TLS call each time. We keep the address of liburcu's thread-local pointer instead: the pointer
 * itself would dangle once liburcu's thread-exit hook ran, while its address lives as long as the thread (the
 * library is linked nodelete, so liburcu stays mapped too).
 *
 * A host that also uses liburcu-bp shares the domain: its long readers delay our grace periods, never our reads.
 */
#ifndef OCI_RCU_GUARD_H
#define OCI_RCU_GUARD_H

#include <stdbool.h>

#include "rcu/error.h"
#include "rcu/thread.h"

/* Does this thread's first-guard work: registers with liburcu. */
void oci_guard_attach(void);
/* Is this thread in a read-side section, ours or the host's own? Then waiting for guards would never end. */
bool oci_guarded(void);
/* Waits for every guard that is entered now. Not inside one. */
void oci_guard_sync(void);
/* liburcu's hooks: without them a fork while another thread is in a guard leaves the child waiting for it. False on
   OCI_FORK_PREPARE: they can't run, because this thread is inside a guard or another one has waited for guards for a
   while and may go on to (one of these may wait for the thread that forks). Then the child must not use guards. */
bool oci_guard_fork(enum oci_fork_step step);

#ifdef OC_TSAN

/* ThreadSanitizer does not see liburcu's ordering: guard.c tells it. */
void oci_guard_enter(void);
bool oci_guard_leave(void);

#else

#ifndef _LGPL_SOURCE
#define _LGPL_SOURCE
#endif
#include <urcu/urcu-bp.h>

static inline void oci_guard_enter(void) {
  struct urcu_bp_reader **slot = oci_self.reader_slot;
  if (__builtin_expect(!slot || !*slot, 0)) {
    oci_guard_attach();
    slot = oci_self.reader_slot;
  }
  oci_self.guards++;
  unsigned long *ctr = &(*slot)->ctr;
  unsigned long now = *ctr;
  if (__builtin_expect((now & URCU_BP_GP_CTR_NEST_MASK) == 0, 1)) {
    /* synchronize_rcu may flip the phase between our load and our store: then it sees an old reader and waits
       for us, which is right, if longer than needed. */
    __atomic_store_n(ctr, __atomic_load_n(&urcu_bp_gp.ctr, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    urcu_bp_smp_mb_slave();
  } else {
    __atomic_store_n(ctr, now + URCU_BP_GP_COUNT, __ATOMIC_RELAXED);
  }
}

/* False, and nothing happens, if this thread is in no guard of ours: one unlock too many would make every later
   grace period hang. */
static inline bool oci_guard_leave(void) {
  if (__builtin_expect(oci_self.guards == 0, 0)) return false;
  struct urcu_bp_reader **slot = oci_self.reader_slot;
  oci_self.guards--;
  if (__builtin_expect(!*slot, 0)) return true;   /* liburcu's thread-exit hook ended it before us */
  unsigned long *ctr = &(*slot)->ctr;
  urcu_bp_smp_mb_slave();
  __atomic_store_n(ctr, *ctr - URCU_BP_GP_COUNT, __ATOMIC_RELAXED);
  return true;
}

#endif
#endif
