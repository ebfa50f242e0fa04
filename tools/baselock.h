/* SPDX-License-Identifier: MIT */
/*
 * The light locks of the baselines, inlined: a mutex of one word that spins a little and then sleeps, and a reader-writer
 * lock that is one word of readers. glibc's are slower where two cores pass them to and fro, on some machines so much that
 * what is under them is no fair opponent; these then take their place. Owned by what embeds them, on cache lines of their own.
 */
#ifndef OCTOOL_BASELOCK_H
#define OCTOOL_BASELOCK_H

#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BASE_FREE, BASE_TAKEN, BASE_AWAITED, BASE_SPINS = 100 };

struct base_mutex { uint32_t state; } __attribute__((aligned(128)));

/* Long enough that the looks of those who wait do not slow down the one who has it. */
static inline void base_pause(void)
{
#if defined __x86_64__ || defined __i386__
  for (int i = 0; i < 4; i++)
    __builtin_ia32_pause();
#endif
}

/* Until it looks free, or somebody sleeps already. */
static inline uint32_t base_spin(struct base_mutex *m)
{
  uint32_t state;

  for (int i = 0; (state = __atomic_load_n(&m->state, __ATOMIC_RELAXED)) == BASE_TAKEN && i < BASE_SPINS; i++)
    base_pause();
  return state;
}

static __attribute__((noinline, unused)) void base_lock_slowly(struct base_mutex *m)
{
  uint32_t state = base_spin(m);

  if (state == BASE_FREE &&
      __atomic_compare_exchange_n(&m->state, &state, BASE_TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return;
  while (__atomic_exchange_n(&m->state, BASE_AWAITED, __ATOMIC_ACQUIRE) != BASE_FREE) {
    syscall(SYS_futex, &m->state, FUTEX_WAIT_PRIVATE, BASE_AWAITED, NULL);
    base_spin(m);
  }
}

static inline void base_lock(struct base_mutex *m)
{
  uint32_t free = BASE_FREE;

  if (!__atomic_compare_exchange_n(&m->state, &free, BASE_TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    base_lock_slowly(m);
}

static inline void base_unlock(struct base_mutex *m)
{
  if (__atomic_exchange_n(&m->state, BASE_FREE, __ATOMIC_RELEASE) == BASE_AWAITED)
    syscall(SYS_futex, &m->state, FUTEX_WAKE_PRIVATE, 1);
}

/* Bit 0: a writer; the rest counts readers by twos. */
struct base_rwlock { uint32_t state; } __attribute__((aligned(128)));

static __attribute__((noinline, unused)) void base_read_slowly(struct base_rwlock *l)
{
  do {
    __atomic_fetch_sub(&l->state, 2, __ATOMIC_RELEASE);
    while (__atomic_load_n(&l->state, __ATOMIC_RELAXED) & 1)
      sched_yield();
  } while (__atomic_fetch_add(&l->state, 2, __ATOMIC_ACQUIRE) & 1);
}

static inline void base_read_lock(struct base_rwlock *l)
{
  if (__atomic_fetch_add(&l->state, 2, __ATOMIC_ACQUIRE) & 1)
    base_read_slowly(l);
}

static inline void base_read_unlock(struct base_rwlock *l)
{
  __atomic_fetch_sub(&l->state, 2, __ATOMIC_RELEASE);
}

static inline void base_write_lock(struct base_rwlock *l)
{
  while (__atomic_fetch_or(&l->state, 1, __ATOMIC_ACQUIRE) & 1)
    sched_yield();
  while (__atomic_load_n(&l->state, __ATOMIC_ACQUIRE) != 1)
    sched_yield();
}

static inline void base_write_unlock(struct base_rwlock *l)
{
  __atomic_fetch_and(&l->state, ~1u, __ATOMIC_RELEASE);
}

#endif
