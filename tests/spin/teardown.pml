/* SPDX-License-Identifier: MIT */
/*
 * Teardown (G3, G22, G24) against readers, builds and those who wait for them, as in liboc/teardown.c, tasks.c and model.c:
 * THREADS threads, 2 keys. Each thread reads under a guard, or builds, or gives something back, or tears down; a teardown
 * may lose patience (OC_E_BUSY), and the model then works on.
 *
 *   no deadlock, no lost waiter   every thread comes to its end
 *   no use after release          whoever is inside a guard with a live model, inside a call, or has a build open, asserts
 *                                 that the memory is there
 *   once                          what a teardown released is released once
 *
 * Faults that spin must find, one at a time: -DFAULT_NO_GUARDS (no grace period), -DFAULT_NO_CALLS (calls are not waited
 * for), -DFAULT_LATE_LOOK (a reader looks at the state before it enters),
 * -DFAULT_NO_TURN (two teardowns at once), -DFAULT_GIVES (frees are let in until the end, and not waited for).
 */
#ifndef THREADS
#define THREADS 3
#endif
#define KEYS 2
#define NOBODY 255
#define LIVE 0
#define STOPPING 1
#define RELEASING 2
#define RELEASED 3

mtype = { OK, BUSY, REENTRANT, REFUSED };

byte state = LIVE;                /* written under the tasks lock, read by anyone */
bool t_lock;                      /* the tasks lock */
byte builder[KEYS] = NOBODY;      /* the thread with the open build; under the tasks lock here: build.pml has its own lock */
byte tasks[THREADS];              /* calls and builds of a thread in the model's list */
bool done;                        /* a report is there */
bool freed;                       /* the arenas have gone back */
byte turn = NOBODY;               /* tasks.teardown_thread */

byte guard[THREADS];              /* inside a guard */

bool in_list[THREADS];            /* struct wait */
byte wait_for[THREADS] = NOBODY;  /* the key whose build is waited for; KEYS: a teardown, for all tasks; KEYS + 1: a turn */
bool asleep[THREADS];
byte waiters;

inline lock(l) { atomic { !l -> l = true } }

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

inline set_state(to) {
  state = to;
  broadcast()
}

/* call_begin, with the newest state that lets it in */
inline call_begin(me, newest, result) {
  atomic {
    !t_lock -> t_lock = true;
    if
    :: state <= newest -> tasks[me]++; result = OK
    :: else -> result = REFUSED
    fi;
    t_lock = false
  }
}

inline task_end(me) {
  lock(t_lock);
  tasks[me]--;
  if
  :: waiters > 0 -> broadcast()
  :: else -> skip
  fi;
  t_lock = false
}

inline count_tasks(n) {
  atomic {
    i = 0;
    n = 0;
    do
    :: i < THREADS -> n = n + tasks[i]; i++
    :: else -> break
    od;
    i = 0
  }
}

/* Does a build, or a thread of those that a teardown waits for, wait for `me`? (search, breadth first over THREADS.) */
inline search(me, found) {
  atomic {
    at = 0;
    do
    :: at < THREADS ->
      i = 0;
      do
      :: i < THREADS ->
        if
        :: reached[i] && in_list[i] && wait_for[i] < KEYS && builder[wait_for[i]] != NOBODY -> reached[builder[wait_for[i]]] = true
        :: reached[i] && in_list[i] && wait_for[i] == KEYS -> reach_tasks()
        :: reached[i] && in_list[i] && wait_for[i] == KEYS + 1 && turn != NOBODY -> reached[turn] = true
        :: else -> skip
        fi;
        i++
      :: else -> break
      od;
      at++
    :: else -> break
    od;
    found = reached[me];
    forget_reached()
  }
}

inline reach_tasks() {
  k = 0;
  do
  :: k < THREADS ->
    if
    :: tasks[k] > 0 -> reached[k] = true
    :: else -> skip
    fi;
    k++
  :: else -> break
  od;
  k = 0
}

inline forget_reached() {
  i = 0;
  do
  :: i < THREADS -> reached[i] = false; i++
  :: else -> break
  od;
  i = 0;
  at = 0
}

/* ---- readers ---- */

inline read(me) {
#ifdef FAULT_LATE_LOOK
  seen = state;
  guard[me] = 1;
#else
  guard[me] = 1;
  seen = state;
#endif
  if
  :: seen == LIVE -> assert(!freed); assert(!freed)
  :: else -> skip
  fi;
  guard[me] = 0;
  seen = 0
}

/* ---- builds ---- */

/* begin, wait or build, commit: as build.pml, with the stop of a model in it */
inline build(me, key) {
  call_begin(me, LIVE, result);
  if
  :: result == OK ->
    assert(!freed);
    result = BUSY;
    do
    :: result != BUSY -> break
    :: else ->
      lock(t_lock);
      if
      :: builder[key] != NOBODY ->
        reached[builder[key]] = true;
        search(me, circle);
        if
        :: circle -> result = REENTRANT
        :: else ->
          atomic { in_list[me] = true; wait_for[me] = key; mine = builder[key] }
          do
          :: builder[key] == mine && result == BUSY ->
            sleep_until_changed(me);
            if
            :: builder[key] == mine && state != LIVE -> result = REFUSED
            :: else -> skip
            fi
          :: else -> break
          od;
          atomic { in_list[me] = false; wait_for[me] = NOBODY; mine = 0 }
        fi;
        t_lock = false
      :: else ->
        if
        :: state == LIVE -> builder[key] = me; tasks[me]++; result = OK
        :: else -> result = REFUSED
        fi;
        t_lock = false
      fi
    od;
    task_end(me);      /* the call; the build stays open */
    if
    :: result == OK ->
      assert(!freed);  /* the build's blocks */
      if
      :: skip
      :: teardown(me); assert(outcome != OK)   /* from within a build: refused, or another one's that is over */
      fi;
      assert(!freed);
      lock(t_lock);
      atomic { builder[key] = NOBODY; tasks[me]-- }
      if
      :: waiters > 0 -> broadcast()
      :: else -> skip
      fi;
      t_lock = false
    :: else -> skip
    fi
  :: else -> skip
  fi;
  atomic { result = 0; circle = 0 }
}

/* What gives back works until the arenas go: it may find them gone, but the model's records are there. */
inline give_back(me) {
  call_begin(me, RELEASING, result);
  if
  :: result == OK -> assert(state != RELEASED || freed); skip; assert(!ended); task_end(me)
  :: else -> skip
  fi;
  result = 0
}

/* ---- teardown ---- */

bool ended;   /* end_calls is over: records may go */

inline wait_turn(me) {
  outcome = OK;
  reach_all_tasks();
  search(me, circle);
  if
  :: circle -> outcome = REENTRANT
  :: else -> skip
  fi;
  do
  :: outcome == OK && turn != NOBODY ->
#ifdef FAULT_NO_TURN
    break
#else
    reached[turn] = true;
    search(me, circle);
    if
    :: circle -> outcome = REENTRANT
    :: else ->
      atomic { in_list[me] = true; wait_for[me] = KEYS + 1 }
      sleep_until_changed(me);
      atomic { in_list[me] = false; wait_for[me] = NOBODY }
    fi
#endif
  :: else -> break
  od
}

inline reach_all_tasks() {
  atomic { reach_tasks() }
}

inline wait_idle(me) {
  reach_all_tasks();
  search(me, circle);
  count_tasks(n);
  if
  :: circle -> outcome = REENTRANT
  :: else ->
    atomic { in_list[me] = true; wait_for[me] = KEYS }
    do
#ifdef FAULT_NO_CALLS
    :: break
#else
    :: n > 0 && outcome == OK ->
      if
      :: sleep_until_changed(me)
      :: outcome = BUSY                 /* the deadline */
      fi;
      count_tasks(n)
    :: else -> break
#endif
    od;
    if
    :: n == 0 -> outcome = OK
    :: else -> skip
    fi;
    atomic { in_list[me] = false; wait_for[me] = NOBODY }
  fi
}

inline guard_sync() {
  i = 0;
  do
  :: i < THREADS -> guard[i] == 0; i++   /* seen outside once: enough for a grace period */
  :: else -> break
  od;
  i = 0
}

inline teardown(me) {
  lock(t_lock);
  wait_turn(me);
  if
  :: outcome == OK && done -> t_lock = false; outcome = BUSY   /* says what the first one said */
  :: outcome == OK && !done ->
    turn = me;
    t_lock = false;
    lock(t_lock);
    set_state(STOPPING);
    t_lock = false;
    lock(t_lock);
    wait_idle(me);
    t_lock = false;
    if
    :: outcome != OK ->
      lock(t_lock);
      set_state(LIVE);
      t_lock = false
    :: else ->
      lock(t_lock);
      set_state(RELEASING);
      t_lock = false;
#ifndef FAULT_NO_GUARDS
      guard_sync();
#endif
      assert(!freed);
      freed = true;
      lock(t_lock);
      set_state(RELEASED);
      count_tasks(n);
      do
#ifdef FAULT_GIVES
      :: break
#else
      :: n > 0 -> sleep_until_changed(me); count_tasks(n)
      :: else -> break
#endif
      od;
      ended = true;
      t_lock = false
    fi;
    lock(t_lock);
    if
    :: outcome == OK -> done = true
    :: else -> skip
    fi;
    turn = NOBODY;
    broadcast();
    t_lock = false
  :: else -> t_lock = false
  fi;
  atomic { n = 0; circle = 0 }
}

proctype thread(byte me) {
  byte i, k, at, n, key, seen, mine;
  bool circle;
  bool reached[THREADS];
  mtype result, outcome;
  if
  :: read(me)
  :: key = 0; build(me, key)
  :: key = 1; build(me, key)
  :: give_back(me)
  :: teardown(me)
  fi
}

init {
  byte p;
  atomic {
    p = 0;
    do
    :: p < THREADS -> run thread(p); p++
    :: else -> break
    od
  }
}
