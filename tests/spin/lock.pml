/* SPDX-License-Identifier: MIT */
/*
 * The pool's lock, as in rcu/lock.[ch]: THREADS threads, each takes it twice; where the kernel has a membarrier. A plain store waits in its core's store buffer
 * until that core makes a locked step, a barrier or a system call, or drains it of itself; loads run past it. Spinning is left
 * out: it is nothing but more tries.
 *
 *   one at a time      `inside` is asserted
 *   no lost wake       every thread comes to its end ("invalid end state" otherwise)
 *
 * Faults that spin must find, one at a time: -DFAULT_NO_BARRIER (who becomes careful has no other core pass a barrier),
 * -DFAULT_ONE_LOOK (lock_leave does not look again after its store), -DFAULT_BLIND (who sleeps does not compare first).
 */
#ifndef THREADS
#define THREADS 3
#endif
#define TURNS 2

#define OPEN 0
#define TAKEN 1
#define SLEPT_FOR 2

byte state = OPEN;
bool careful;
bool stored[THREADS];             /* OPEN is in this core's store buffer */
bool asleep[THREADS];             /* in futex_wait */
byte inside;

/* In an atomic step: this core's store is seen by all. */
inline drain(core) {
  if
  :: stored[core] -> stored[core] = false; state = OPEN
  :: else
  fi
}

/* membarrier: each core in turn, in no order that matters. */
inline barrier_everywhere() {
#ifndef FAULT_NO_BARRIER
  do
  :: i < THREADS -> atomic { drain(i); i++ }
  :: else -> break
  od;
#endif
  i = 0
}

/* futex_wake: one of those that sleep, any of them. */
inline wake(me) {
  atomic {
    drain(me);
    if
    :: asleep[0] -> asleep[0] = false
    :: asleep[1] -> asleep[1] = false
#if THREADS > 2
    :: asleep[2] -> asleep[2] = false
#endif
    :: else
    fi
  }
}

inline oci_lock_wait(me) {
  if
  :: careful
  :: else -> atomic { drain(me); careful = true }; barrier_everywhere()
  fi;
  do
  :: atomic { drain(me); old = state; state = SLEPT_FOR };
     if
     :: old == OPEN -> break
     :: else
#ifdef FAULT_BLIND
        -> asleep[me] = true;
#else
        -> atomic { asleep[me] = (state == SLEPT_FOR) };
#endif
        !asleep[me]
     fi
  od
}

inline lock_take(me) {
  atomic { drain(me); old = state; if :: old == OPEN -> state = TAKEN :: else fi };
  if
  :: old == OPEN
  :: else -> oci_lock_wait(me)
  fi
}

inline lock_leave(me) {
  if
  :: careful -> atomic { drain(me); old = state; state = OPEN };
     if :: old == SLEPT_FOR -> wake(me) :: else fi
  :: !careful -> stored[me] = true;
#ifndef FAULT_ONE_LOOK
     if :: careful -> wake(me) :: else fi
#endif
  fi
}

proctype worker(byte me) {
  byte turns = 0, old, i = 0;
  do
  :: turns < TURNS ->
     lock_take(me);
     inside++;
     assert(inside == 1);
     inside--;
     lock_leave(me);
     turns++
  :: else -> break
  od
}

/* Store buffers drain at any time. */
active proctype memory() {
end:
  do
  :: atomic { stored[0] -> drain(0) }
  :: atomic { stored[1] -> drain(1) }
#if THREADS > 2
  :: atomic { stored[2] -> drain(2) }
#endif
  od
}

init {
  byte t = 0;
  atomic {
    do
    :: t < THREADS -> run worker(t); t++
    :: else -> break
    od
  }
}
