/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "config.h"

#include "rcu/lock.h"

#include <errno.h>
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

/* A system call that leaves errno as it was: what an allocation does with it is nobody's failure. */
static long ask(long call, long a, long b, long c, long d) {
  int was = errno;
  long answer = syscall(call, a, b, c, d, NULL, 0);
  errno = was;
  return answer;
}

/* Every thread of the process passes a full barrier before this returns true. False: the kernel has no such call. */
static bool barrier_everywhere(void) {
  if (ask(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0, 0) == 0) return true;
  return ask(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0, 0) == 0 &&
         ask(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0, 0) == 0;
}

static void sleep_while(const uint32_t *word, uint32_t value, const struct timespec *limit) {
  ask(SYS_futex, (long)word, FUTEX_WAIT_PRIVATE, value, (long)limit);
}

static void wake(const uint32_t *word, int most) { ask(SYS_futex, (long)word, FUTEX_WAKE_PRIVATE, most, 0); }

static bool become_careful(struct lock *l) {
  __atomic_store_n(&l->careful, 1, __ATOMIC_SEQ_CST);
  return barrier_everywhere();
}

/* Who makes it careful without a barrier may be missed by the one that has it now, and sleeps only shortly. The others can
   sleep on: who has been through here takes the lock as one that is slept for, and wakes one of them when it leaves. */
void oci_lock_wait(struct lock *l) {
  static const struct timespec poll = {.tv_nsec = POLL_NS};
  if (take_spinning(l)) return;
  bool sure = lock_is_careful(l) || become_careful(l);
  while (__atomic_exchange_n(&l->state, LOCK_SLEPT_FOR, __ATOMIC_ACQUIRE) != LOCK_OPEN)
    sleep_while(&l->state, LOCK_SLEPT_FOR, sure ? NULL : &poll);
}

void oci_lock_wake(struct lock *l) { wake(&l->state, 1); }

void oci_lock_leave_careful(struct lock *l) {
  if (__atomic_exchange_n(&l->state, LOCK_OPEN, __ATOMIC_RELEASE) == LOCK_SLEPT_FOR) oci_lock_wake(l);
}

void oci_lock_sleep(struct lock *l, uint32_t *word, uint32_t value) {
  lock_leave(l);
  sleep_while(word, value, NULL);
  lock_take(l);
}

void oci_lock_changed(uint32_t *word) { wake(word, INT_MAX); }
