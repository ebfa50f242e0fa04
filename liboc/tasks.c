/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/tasks.h"

#include <errno.h>

#include "liboc/model.h"
#include "rcu/thread.h"

/* A thread that waits. On its stack, in the list while it does. */
struct wait {
  struct link link;
  uint64_t thread;
  struct task *task;          /* NULL once it ended */
  struct oc_model *model;     /* a teardown: waits for all tasks of it; else NULL */
  struct oc_model *turn;      /* waits for another thread's teardown of it; else NULL */
  uint64_t seen;              /* number of the last search that came by */
  struct wait *todo;          /* the search's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct link waits = {&waits, &waits};

void oci_tasks_lock(void) {
  pthread_mutex_lock(&lock);
}

void oci_tasks_unlock(void) {
  pthread_mutex_unlock(&lock);
}

void oci_tasks_fork(enum oci_fork_step step) {
  if (step == OCI_FORK_PREPARE) {
    pthread_mutex_lock(&lock);
    return;
  }
  if (step == OCI_FORK_CHILD) link_init(&waits);   /* on stacks of threads that are not here */
  pthread_mutex_unlock(&lock);
}

void oci_tasks_init(struct task_list *t) {
  link_init(&t->tasks);
  link_init(&t->holds);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&t->changed, &attr);
  pthread_condattr_destroy(&attr);
}

void oci_tasks_free(struct task_list *t) {
  pthread_cond_destroy(&t->changed);
}

struct timespec oci_deadline(uint32_t ms) {
  uint64_t ns = oci_now_ns() + (uint64_t)ms * 1000000u;
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* ---- calls and builds ---- */

static void add(struct oc_model *m, struct task *t, const char *call) {
  t->model = m;
  t->thread = oci_thread_id();
  t->call = call;
  link_add_tail(&m->tasks.tasks, &t->link);
}

static oc_status begin(struct oc_model *m, struct task *t, const char *call, uint32_t newest_state) {
  pthread_mutex_lock(&lock);
  uint32_t state = m->state;
  bool takes = state <= newest_state;
  if (takes) add(m, t, call);
  pthread_mutex_unlock(&lock);
  return takes ? OC_OK : oci_model_refuses(m, call);
}

static oc_status begin_call(struct oc_model *m, struct task *t, const char *call, uint32_t newest_state) {
  oc_status st = begin(m, t, call, newest_state);
  if (!st) t->cancel = oci_cancel_off();
  return st;
}

oc_status oci_call_begin(struct oc_model *m, struct task *t, const char *call) {
  return begin_call(m, t, call, MODEL_LIVE);
}

oc_status oci_call_begin_give(struct oc_model *m, struct task *t, const char *call) {
  return begin_call(m, t, call, MODEL_RELEASING);
}

oc_status oci_task_begin(struct oc_model *m, struct task *t) {
  oc_status st = begin(m, t, "begin", MODEL_LIVE);
  if (!st) t->call = NULL;
  return st;
}

static void end(struct task *t) {
  pthread_mutex_lock(&lock);
  link_remove(&t->link);
  LINK_EACH(l, &waits) {
    struct wait *w = CONTAINER(l, struct wait, link);
    if (w->task == t) w->task = NULL;
  }
  if (t->model->tasks.waiters) pthread_cond_broadcast(&t->model->tasks.changed);
  pthread_mutex_unlock(&lock);
}

void oci_call_end(struct task *t) {
  end(t);
  oci_cancel_back(t->cancel);
}

void oci_task_end(struct task *t) {
  end(t);
}

/* ---- circles ---- */

/* A search along the waits, for thread `me`: each of them is looked at once, however long or branched the way is. */
struct search {
  uint64_t me, number;
  struct wait *todo;
  bool found;
};

static uint64_t searches;

static struct search search_new(void) {
  return (struct search){.me = oci_thread_id(), .number = ++searches};
}

/* This thread must go on first. It may itself wait for something. */
static void reach_thread(struct search *s, uint64_t thread) {
  if (thread == s->me) s->found = true;
  LINK_EACH(l, &waits) {
    struct wait *w = CONTAINER(l, struct wait, link);
    if (w->thread != thread || w->seen == s->number) continue;
    w->seen = s->number;
    w->todo = s->todo;
    s->todo = w;
  }
}

static void reach_tasks(struct search *s, const struct oc_model *m) {
  LINK_EACH(l, &m->tasks.tasks) reach_thread(s, CONTAINER(l, struct task, link)->thread);
}

/* Does one of the threads reached go on only after this thread did? */
static bool finds_me(struct search *s) {
  while (!s->found && s->todo) {
    const struct wait *w = s->todo;
    s->todo = w->todo;
    if (w->task) reach_thread(s, w->task->thread);
    if (w->model) reach_tasks(s, w->model);
    if (w->turn) reach_thread(s, w->turn->tasks.teardown_thread);
  }
  return s->found;
}

static bool thread_leads_to_me(uint64_t thread) {
  struct search s = search_new();
  reach_thread(&s, thread);
  return finds_me(&s);
}

static bool model_leads_to_me(const struct oc_model *m) {
  struct search s = search_new();
  reach_tasks(&s, m);
  return finds_me(&s);
}

/* ---- waiting ---- */

/* One sleep; false when the deadline has passed. */
static bool sleep_until_changed(struct oc_model *m, const struct timespec *deadline) {
  m->tasks.waiters++;
  int e = deadline ? pthread_cond_timedwait(&m->tasks.changed, &lock, deadline)
                   : pthread_cond_wait(&m->tasks.changed, &lock);
  m->tasks.waiters--;
  return e != ETIMEDOUT;
}

oc_status oci_wait_turn(struct oc_model *m) {
  struct wait w = {.thread = oci_thread_id(), .turn = m};
  if (model_leads_to_me(m)) return OC_E_REENTRANT;
  while (m->tasks.teardown_thread) {
    if (thread_leads_to_me(m->tasks.teardown_thread)) return OC_E_REENTRANT;
    link_add_tail(&waits, &w.link);
    (void)sleep_until_changed(m, NULL);
    link_remove(&w.link);
  }
  return OC_OK;
}

void oci_wait_calls(struct oc_model *m) {
  while (!link_empty(&m->tasks.tasks)) (void)sleep_until_changed(m, NULL);
}

oc_status oci_wait_task(struct task *t, const struct timespec *deadline, bool patient) {
  struct oc_model *m = t->model;
  struct wait w = {.thread = oci_thread_id(), .task = t};
  if (thread_leads_to_me(t->thread)) return OC_E_REENTRANT;
  link_add_tail(&waits, &w.link);
  oc_status st = OC_OK;
  while (!st) {
    bool in_time = sleep_until_changed(m, deadline);
    if (!w.task) break;
    if (m->state != MODEL_LIVE && !patient) st = OC_E_RELEASED;
    else if (!in_time) st = OC_E_BUSY;
  }
  link_remove(&w.link);
  return st;
}

static bool idle(const struct oc_model *m) {
  return link_empty(&m->tasks.tasks) && link_empty(&m->tasks.holds);
}

oc_status oci_wait_idle(struct oc_model *m, const struct timespec *deadline) {
  struct wait w = {.thread = oci_thread_id(), .model = m};
  if (model_leads_to_me(m)) return OC_E_REENTRANT;
  link_add_tail(&waits, &w.link);
  bool in_time = true;
  while (in_time && !idle(m)) in_time = sleep_until_changed(m, deadline);
  link_remove(&w.link);
  return idle(m) ? OC_OK : OC_E_BUSY;
}
