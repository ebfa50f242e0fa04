/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/guard.h"

#include <pthread.h>
#include <time.h>

#ifdef OC_TSAN
#include <sanitizer/tsan_interface.h>
#include <urcu/urcu-bp.h>
#endif

/* Grace periods that are being waited for: liburcu holds its lock meanwhile, which its fork hook would wait for. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t none_syncing = PTHREAD_COND_INITIALIZER;
static unsigned syncing;

#ifndef OC_TSAN

void oci_guard_attach(void) {
  if (!URCU_TLS(urcu_bp_reader)) {
    urcu_bp_register();
    /* After liburcu's thread-exit hook: the guards that it ended must not be left once more. */
    oci_self.guards = 0;
  }
  oci_self.reader_slot = &URCU_TLS(urcu_bp_reader);
  oci_thread_list();
}

bool oci_guarded(void) {
  struct urcu_bp_reader *r = URCU_TLS(urcu_bp_reader);
  return r && (r->ctr & URCU_BP_GP_CTR_NEST_MASK) != 0;
}

static void grace_period(void) {
#ifndef OC_FAULT_NO_GRACE   /* a planted fault, to show that the tests would notice */
  urcu_bp_synchronize_rcu();
#endif
}

#else

static char left, synced;

void oci_guard_attach(void) {
  urcu_bp_read_lock();
  urcu_bp_read_unlock();
  oci_thread_list();
}

/* liburcu's thread-exit hook has ended the thread's guards. */
static bool ended(void) {
  return oci_self.guards != 0 && !urcu_bp_read_ongoing();
}

void oci_guard_enter(void) {
  if (ended()) oci_self.guards = 0;
  if (!oci_self.listed) oci_thread_list();
  oci_self.guards++;
  urcu_bp_read_lock();
  __tsan_acquire(&synced);
}

bool oci_guard_leave(void) {
  if (oci_self.guards == 0) return false;
  bool over = ended();
  oci_self.guards--;
  if (over) return true;
  __tsan_release(&left);
  urcu_bp_read_unlock();
  return true;
}

bool oci_guarded(void) {
  return urcu_bp_read_ongoing() != 0;
}

static void grace_period(void) {
#ifndef OC_FAULT_NO_GRACE
  __tsan_release(&synced);
  urcu_bp_synchronize_rcu();
  __tsan_acquire(&left);
#endif
}

#endif

/* ---- fork ---- */

#define PATIENCE_MS 500   /* a grace period takes a few */

static void sync_begins(void) {
  pthread_mutex_lock(&gate);
  syncing++;
  pthread_mutex_unlock(&gate);
}

static void sync_ends(void) {
  pthread_mutex_lock(&gate);
  if (--syncing == 0) pthread_cond_broadcast(&none_syncing);
  pthread_mutex_unlock(&gate);
}

void oci_guard_sync(void) {
  sync_begins();
  grace_period();
  sync_ends();
}

static struct timespec in_a_while(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_nsec += PATIENCE_MS * 1000000L;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}

/* The gate stays locked from here to after the fork: no grace period can begin. */
static bool prepare(void) {
  struct timespec end = in_a_while();
  pthread_mutex_lock(&gate);
  bool in_time = !oci_guarded();
  while (in_time && syncing) in_time = pthread_cond_timedwait(&none_syncing, &gate, &end) == 0;
  if (in_time) urcu_bp_before_fork();
  return in_time;
}

bool oci_guard_fork(enum oci_fork_step step) {
  static bool quiet;   /* under the gate */
  if (step == OCI_FORK_PREPARE) return quiet = prepare();
  if (quiet && step == OCI_FORK_PARENT) urcu_bp_after_fork_parent();
  if (quiet && step == OCI_FORK_CHILD) urcu_bp_after_fork_child();
  bool was = quiet;
  pthread_mutex_unlock(&gate);
  return was;
}
