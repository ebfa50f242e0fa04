/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "config.h"

#include "rcu/lock.h"

#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS 20
#define POLL_NS 1000000

static bool no_barrier;   /* the kernel has none */

static void pause_some(void) {
#if defined(__x86_64__) || defined(__i386__)
  for (int i = 0; i < 4; i++) __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

static bool try_take(struct lock *l) {
  uint32_t open = LOCK_OPEN;
  return __atomic_compare_exchange_n(&l->state, &open, LOCK_TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Its holder is out soon, or was stopped itself. A look at a time, not to slow it down. */
static bool take_spinning(struct lock *l) {
  for (int i = 0; i < SPINS; i++) {
    pause_some();
    uint32_t state = __atomic_load_n(&l->state, __ATOMIC_RELAXED);
    if (state == LOCK_OPEN && try_take(l)) return true;
    if (state == LOCK_SLEPT_FOR) return false;
  }
  return false;
}

/* Every thread of the process passes a full barrier before this returns true. False: the kernel has no such call. */
static bool barrier_everywhere(void) {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return true;
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
         syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

static void sleep_while(const uint32_t *word, uint32_t value, const struct timespec *limit) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, limit, NULL, 0);
}

/* Without the barrier somebody may leave by a plain store and not see it: then sleep is short. */
static void become_careful(struct lock *l) {
  __atomic_store_n(&l->careful, 1, __ATOMIC_SEQ_CST);
  if (!barrier_everywhere()) __atomic_store_n(&no_barrier, true, __ATOMIC_RELAXED);
}

void oci_lock_wait(struct lock *l) {
  static const struct timespec poll = {.tv_nsec = POLL_NS};
  if (take_spinning(l)) return;
  if (!lock_is_careful(l)) become_careful(l);
  while (__atomic_exchange_n(&l->state, LOCK_SLEPT_FOR, __ATOMIC_ACQUIRE) != LOCK_OPEN)
    sleep_while(&l->state, LOCK_SLEPT_FOR, __atomic_load_n(&no_barrier, __ATOMIC_RELAXED) ? &poll : NULL);
}

void oci_lock_wake(struct lock *l) {
  syscall(SYS_futex, &l->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void oci_lock_leave_careful(struct lock *l) {
  if (__atomic_exchange_n(&l->state, LOCK_OPEN, __ATOMIC_RELEASE) == LOCK_SLEPT_FOR) oci_lock_wake(l);
}

void oci_lock_sleep(struct lock *l, uint32_t *word, uint32_t value) {
  lock_leave(l);
  sleep_while(word, value, NULL);
  lock_take(l);
}

void oci_lock_changed(uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
