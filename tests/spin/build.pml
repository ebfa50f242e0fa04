/* SPDX-License-Identifier: MIT */
/*
 * The single-build protocol (G11, G15), as in liboc/build.c, tasks.c and invalidate.c: THREADS threads, 2 keys. Each thread
 * asks for a key, builds it where it is not there, may ask for the other key from inside that build, may fail; or it
 * invalidates a key. Spin tries every order of all steps.
 *
 *   no deadlock, no lost waiter   every thread comes to its end, whatever the order ("invalid end state" otherwise)
 *   no use after release          `alive` of a build's record is asserted wherever it is touched
 *   one build a key               `building` is asserted; what invalidate takes out has no older build open
 *
 * The names are the C functions'. Each atomic block is what one thread does between two looks at memory that others
 * write: what is done under a lock is one step where only that lock's memory is touched.
 * Faults that spin must find, one at a time: -DFAULT_ORDER (the derived lock is let go before the tasks lock is taken),
 * -DFAULT_NO_WAKE (task_end wakes nobody), -DFAULT_NO_CIRCLE (no search for circles), -DFAULT_TWO (no look for an open build).
 */
#ifndef THREADS
#define THREADS 3
#endif
#define KEYS 2
#define NONE 255
#define RECORD(thread, key) ((thread) * KEYS + (key))
#define THREAD(record) ((record) / KEYS)

mtype = { OK, BUILD, REENTRANT, FAILED };

bool d_lock, t_lock;              /* derived.lock, the tasks lock */
bool entry[KEYS];                 /* a value is stored */
byte born[KEYS];                  /* order of stores, begins and invalidates: derived.clock, kept small */
byte open[KEYS] = NONE;           /* derived.builds: the record of the open build */
bool older[KEYS];                 /* an invalidate in progress counts the open build as begun before it */
bool alive[THREADS * KEYS];       /* the record is allocated */
byte building[KEYS];              /* builds between begin and end */

bool in_list[THREADS];            /* tasks.c: struct wait is in the list */
byte wait_task[THREADS] = NONE;   /* its task; NONE: ended */
bool asleep[THREADS];             /* on tasks.changed */
byte waiters;

inline lock(l) { atomic { !l -> l = true } }
inline unlock(l) { l = false }

/* pthread_cond_wait: lets the tasks lock go and sleeps, in one step; then takes it again. */
inline sleep_until_changed(me) {
  atomic { waiters++; asleep[me] = true; t_lock = false }
  atomic { !asleep[me] && !t_lock -> t_lock = true; waiters-- }
}

inline broadcast() {
  atomic {
    i = 0;
    do
    :: i < THREADS -> asleep[i] = false; i++
    :: else -> break
    od;
    i = 0
  }
}

/* thread_leads_to_me: along the waits from `first`. */
inline search(me, first, found) {
  atomic {
    at = first;
    i = 0;
    found = false;
#ifndef FAULT_NO_CIRCLE
    do
    :: at == me -> found = true; break
    :: i > THREADS -> break
    :: at != me && i <= THREADS && in_list[at] && wait_task[at] != NONE -> at = THREAD(wait_task[at]); i++
    :: else -> break
    od;
#endif
    i = 0;
    at = 0
  }
}

/* oci_wait_task, with the tasks lock held; lets it go. */
inline wait_task_of(me, record, result) {
  assert(alive[record]);
  search(me, THREAD(record), circle);
  if
  :: circle -> result = REENTRANT
  :: else ->
    atomic { in_list[me] = true; wait_task[me] = record }
    do
    :: wait_task[me] != NONE -> sleep_until_changed(me)
    :: else -> break
    od;
    in_list[me] = false;
    result = OK
  fi;
  unlock(t_lock)
}

/* wait_unlock */
inline wait_unlock(me, record, result) {
#ifdef FAULT_ORDER
  unlock(d_lock);
  lock(t_lock);
#else
  lock(t_lock);
  unlock(d_lock);
#endif
  wait_task_of(me, record, result)
}

/* find_or_open: OK, BUILD (a build of our own), REENTRANT */
inline find_or_open(me, key, result) {
  result = FAILED;
  do
  :: result == OK || result == BUILD || result == REENTRANT -> break
  :: else ->
    lock(d_lock);
    if
    :: entry[key] -> result = OK; unlock(d_lock)
#ifndef FAULT_TWO
    :: !entry[key] && open[key] != NONE ->
      other = open[key];
      wait_unlock(me, other, outcome);
      if
      :: outcome == REENTRANT -> result = REENTRANT
      :: else -> skip   /* look again */
      fi;
      atomic { other = 0; outcome = 0 }
    :: else ->
#else
    :: else ->
#endif
      lock(t_lock);   /* oci_task_begin */
      atomic {
        alive[RECORD(me, key)] = true;
        building[key]++;
        assert(building[key] == 1);
        open[key] = RECORD(me, key);
        older[key] = false;
        result = BUILD
      }
      unlock(t_lock);
      unlock(d_lock)
    fi
  od
}

/* commit or abort: close_build, then oci_task_end, then build_free */
inline end_build(me, key, stores) {
  lock(d_lock);
  atomic {
    open[key] = NONE;
    building[key]--;
    if
    :: stores && !entry[key] -> entry[key] = true
    :: else -> skip
    fi
  }
  unlock(d_lock);
  lock(t_lock);
  atomic {
    assert(alive[RECORD(me, key)]);
    i = 0;
    do
    :: i < THREADS ->
      if
      :: in_list[i] && wait_task[i] == RECORD(me, key) -> wait_task[i] = NONE
      :: else -> skip
      fi;
      i++
    :: else -> break
    od;
    i = 0
  }
#ifndef FAULT_NO_WAKE
  if
  :: waiters > 0 -> broadcast()
  :: else -> skip
  fi;
#endif
  unlock(t_lock);
  alive[RECORD(me, key)] = false
}

/* get_or_build, with a build function that asks for nothing */
inline get_or_build_leaf(me, key, result) {
  find_or_open(me, key, result);
  if
  :: result == BUILD ->
    if
    :: end_build(me, key, true)
    :: end_build(me, key, false)
    fi
  :: else -> skip
  fi
}

/* oc_derived_invalidate of one key: collect_settled waits for older builds, then the entry goes. */
inline invalidate(me, key) {
  lock(d_lock);
  older[key] = open[key] != NONE;
  do
  :: older[key] && open[key] != NONE ->
    other = open[key];
    wait_unlock(me, other, outcome);
    if
    :: outcome == REENTRANT -> break
    :: else -> lock(d_lock)
    fi
  :: else ->
    entry[key] = false;
    unlock(d_lock);
    break
  od;
  atomic { other = 0; outcome = 0 }
}

proctype thread(byte me) {
  byte i, at, other, key, second;
  bool circle;
  mtype result, inner, outcome;
  if
  :: key = 0
  :: key = 1
  fi;
  second = 1 - key;
  if
  :: find_or_open(me, key, result);
    if
    :: result == BUILD ->
      if
      :: skip
      :: get_or_build_leaf(me, second, inner)    /* the build asks for the other key */
      :: get_or_build_leaf(me, key, inner); assert(inner == REENTRANT || inner == OK)   /* or for itself */
      :: invalidate(me, second)                  /* or takes another's source away */
      fi;
      inner = 0;
      if
      :: end_build(me, key, true)
      :: end_build(me, key, false)
      fi
    :: else -> skip
    fi
  :: invalidate(me, key)
  fi
}

init {
  byte n;
  atomic {
    n = 0;
    do
    :: n < THREADS -> run thread(n); n++
    :: else -> break
    od
  }
}
