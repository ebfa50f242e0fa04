/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/process.h"

#include <pthread.h>

#include "liboc/model.h"
#include "liboc/publish.h"
#include "liboc/trace.h"
#include "rcu/guard.h"
#include "rcu/mem.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct link backends = {&backends, &backends};

void oci_process_lock(void) {
  pthread_mutex_lock(&lock);
}

void oci_process_unlock(void) {
  pthread_mutex_unlock(&lock);
}

/* ---- fork ---- */

/* The fork could not wait for liburcu (see oci_guard_fork): the child may use no backend at all. Written in that child only:
   other threads of the parent open backends meanwhile. */
static bool unusable_child;
static bool fork_waited;   /* under lock: of the fork under way */

static void each_lock(enum oci_fork_step step) {
  oci_tasks_fork(step);
  oci_kinds_fork(step);
  oci_keys_fork(step);
  oci_log_fork(step);
  oci_trace_fork(step);
  oci_thread_fork(step);
  oci_mem_fork(step);
}

static void before_fork(void) {
  bool waited = oci_guard_fork(OCI_FORK_PREPARE);
  oci_process_lock();
  fork_waited = waited;
  each_lock(OCI_FORK_PREPARE);
}

static void after_fork(enum oci_fork_step step) {
  each_lock(step);
  oci_process_unlock();
  (void)oci_guard_fork(step);
}

static void in_parent(void) { after_fork(OCI_FORK_PARENT); }

/* Marks all that the parent opened, so that even a hit says OC_E_FORKED: it reads the model's state anyway. */
static void in_child(void) {
  unusable_child |= !fork_waited;   /* of an unusable process too */
  oci_publish_in_child();
  LINK_EACH(l, &backends) {
    oc_backend *b = CONTAINER(l, oc_backend, in_process);
    __atomic_store_n(&b->forked, true, __ATOMIC_RELAXED);
    LINK_EACH(k, &b->models) {
      struct oc_model *m = CONTAINER(k, struct oc_model, in_backend);
      __atomic_store_n(&m->state, MODEL_FORKED, __ATOMIC_RELAXED);
    }
  }
  after_fork(OCI_FORK_CHILD);
  oci_self.captures = 0;
}

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static int fork_error;

static void register_fork(void) {
  fork_error = pthread_atfork(before_fork, in_parent, in_child);
}

bool oci_process_watch_fork(void) {
  pthread_once(&fork_once, register_fork);
  return fork_error == 0;
}

/* ---- backends and models ---- */

oc_status oci_process_add_backend(oc_backend *b) {
  if (!oci_process_watch_fork()) return oci_error(OC_E_HOST_NOMEM, "oc_backend_create: pthread_atfork failed (%d)", fork_error);
  if (unusable_child)
    return oci_error(OC_E_FORKED, "oc_backend_create: this process was forked inside a guard, or while a thread waited long "
                     "for one; it cannot use liboc");
  oci_process_lock();
  link_add_tail(&backends, &b->in_process);
  oci_process_unlock();
  return OC_OK;
}

void oci_process_remove_backend(oc_backend *b) {
  oci_process_lock();
  link_remove(&b->in_process);
  oci_process_unlock();
}

oc_status oci_process_add_model(oc_backend *b, struct oc_model *m) {
  oci_process_lock();
  oc_status st = b->closing ? OC_E_INVALID : OC_OK;
  if (!st) link_add_tail(&b->models, &m->in_backend);
  if (!st) oci_publish_model(m);
  oci_process_unlock();
  return st ? oci_error(st, "oc_model_create: backend %s is being closed", b->name) : OC_OK;
}

void oci_process_remove_model(struct oc_model *m) {
  oci_process_lock();
  oci_publish_model_gone(m);
  link_remove(&m->in_backend);
  oci_process_unlock();
}

void oci_process_each_model_locked(void (*each)(void *arg, struct oc_model *m), void *arg) {
  LINK_EACH(l, &backends) {
    oc_backend *b = CONTAINER(l, oc_backend, in_process);
    if (b->forked) continue;
    LINK_EACH(k, &b->models) each(arg, CONTAINER(k, struct oc_model, in_backend));
  }
}

void oci_process_each_model(void (*each)(void *arg, struct oc_model *m), void *arg) {
  oci_process_lock();
  oci_process_each_model_locked(each, arg);
  oci_process_unlock();
}

bool oci_process_other_pool(const struct oc_model *m, uint64_t addr) {
  bool found = false;
  oci_process_lock();
  LINK_EACH(l, &m->backend->models) {
    struct oc_model *other = CONTAINER(l, struct oc_model, in_backend);
    if (other != m && oci_pool_contains(other->pool.core, addr)) found = true;
  }
  oci_process_unlock();
  return found;
}
