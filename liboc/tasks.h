/* SPDX-License-Identifier: MIT */
/*
 * Who waits for whom: calls in flight, open builds, and the threads that wait for them.
 *
 * task: something that will end, of one model and one thread: a call that is no hit, or a build. On the stack of the
 *       call, or inside the build.
 * wait: a thread that waits for a task, or (a teardown) for all tasks and holds of a model. On its stack.
 *
 * All of it, and every change of a model's state, is under one process-wide lock, so that a circle of waits through
 * several models is seen by whoever would close it (G11). Nobody waits with it held; a hit never takes it.
 */
#ifndef OCI_LIBOC_TASKS_H
#define OCI_LIBOC_TASKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "liboc/oc.h"
#include "rcu/error.h"
#include "rcu/list.h"
#include "rcu/table.h"

struct oc_model;

struct task {
  struct link link;        /* in its model's list */
  struct oc_model *model;
  uint64_t thread;
  const char *call;        /* "oc_pool_alloc"; NULL: a build */
  int cancel;              /* a call: whether its thread may be cancelled, afterwards as before */
};

/* What a model keeps for it. */
struct task_list {
  struct link tasks;
  struct link holds;        /* struct hold */
  struct table holds_by_name;
  pthread_cond_t changed;   /* a task ended, a hold was let go, the state changed */
  uint32_t waiters;
  uint64_t teardown_thread; /* in oc_model_teardown now; 0: none */
};

void oci_tasks_init(struct task_list *t);
void oci_tasks_free(struct task_list *t);
void oci_tasks_lock(void);
void oci_tasks_unlock(void);
void oci_tasks_fork(enum oci_fork_step step);

/* Registers a call that is no hit; until its end its thread is not cancelled. Refused with OC_E_RELEASED or OC_E_FORKED unless the model lives. */
oc_status oci_call_begin(struct oc_model *m, struct task *t, const char *call);
/* The same for what gives back (frees, forgets): works until the arenas go. */
oc_status oci_call_begin_give(struct oc_model *m, struct task *t, const char *call);
void oci_call_end(struct task *t);

/* A build's task, for its whole life. */
oc_status oci_task_begin(struct oc_model *m, struct task *t);
void oci_task_end(struct task *t);

/* With the lock held. Waits until t ended (OC_OK), the deadline passed (OC_E_BUSY), its model stops
   (OC_E_RELEASED, unless `patient`: a free goes on); OC_E_REENTRANT at once if t, directly or round a circle, waits
   for this thread. deadline NULL: none. */
oc_status oci_wait_task(struct task *t, const struct timespec *deadline, bool patient);
/* With the lock held. Waits until m has no task and no hold, for a teardown. OC_E_BUSY, OC_E_REENTRANT. */
oc_status oci_wait_idle(struct oc_model *m, const struct timespec *deadline);
/* With the lock held. Waits until no thread is in a teardown of m. OC_E_REENTRANT at once if that one, or what m has
   open, waits for this thread. */
oc_status oci_wait_turn(struct oc_model *m);
/* With the lock held. Waits until m has no task, when nothing that could keep one from ending is left. */
void oci_wait_calls(struct oc_model *m);
/* CLOCK_MONOTONIC, ms from now. */
struct timespec oci_deadline(uint32_t ms);

#endif
