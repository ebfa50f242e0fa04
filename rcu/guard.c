/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/guard.h"

#ifdef OC_TSAN
#include <sanitizer/tsan_interface.h>
#include <urcu/urcu-bp.h>
#endif

#ifndef OC_TSAN

void oci_guard_attach(void) {
  if (!URCU_TLS(urcu_bp_reader)) {
    urcu_bp_register();
    /* After liburcu's thread-exit hook: the guards that it ended must not be left once more. */
    oci_self.guards = 0;
  }
  oci_self.reader_slot = &URCU_TLS(urcu_bp_reader);
}

bool oci_guarded(void) {
  struct urcu_bp_reader *r = URCU_TLS(urcu_bp_reader);
  return r && (r->ctr & URCU_BP_GP_CTR_NEST_MASK) != 0;
}

void oci_guard_sync(void) {
#ifndef OC_FAULT_NO_GRACE   /* a planted fault, to show that the tests would notice */
  urcu_bp_synchronize_rcu();
#endif
}

#else

static char left, synced;

void oci_guard_attach(void) {
  urcu_bp_read_lock();
  urcu_bp_read_unlock();
}

void oci_guard_enter(void) {
  oci_self.guards++;
  urcu_bp_read_lock();
  __tsan_acquire(&synced);
}

bool oci_guard_leave(void) {
  if (oci_self.guards == 0) return false;
  oci_self.guards--;
  __tsan_release(&left);
  urcu_bp_read_unlock();
  return true;
}

bool oci_guarded(void) {
  return urcu_bp_read_ongoing() != 0;
}

void oci_guard_sync(void) {
#ifndef OC_FAULT_NO_GRACE
  __tsan_release(&synced);
  urcu_bp_synchronize_rcu();
  __tsan_acquire(&left);
#endif
}

#endif

void oci_guard_fork(enum oci_fork_step step) {
  switch (step) {
    case OCI_FORK_PREPARE: urcu_bp_before_fork(); break;
    case OCI_FORK_PARENT: urcu_bp_after_fork_parent(); break;
    case OCI_FORK_CHILD: urcu_bp_after_fork_child(); break;
  }
}
