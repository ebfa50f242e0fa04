/* SPDX-License-Identifier: MIT */
/*
 * Captures: what a thread says while it records a graph.
 *
 * A graph keeps what it was handed: a value or buffer looked up inside a capture is marked with the model's graph
 * epoch, and retired instead of freed as long as that epoch lasts. oc_model_graphs_gone starts the next one.
 *
 * The race: a capture is entered, and perhaps left, while graphs_gone asks the driver; it is one of the epoch that ends. So
 * captures are counted, and the epoch ends only if none came since graphs_gone was called: what it has taken by then was
 * retired for older ones.
 */
#include "config.h"

#include "liboc/model.h"
#include "rcu/guard.h"
#include "rcu/mem.h"

struct capture {
  struct link link;
  uint64_t thread;
  oc_stream stream;
};

static oc_status add_capture(struct oc_model *m, oc_stream s) {
  struct capture *c = oci_alloc(m->heap, sizeof *c);
  if (!c) return oci_error(OC_E_HOST_NOMEM, "oc_capture_enter: out of host memory");
  c->thread = oci_thread_id();
  c->stream = s;
  pthread_mutex_lock(&m->lock);
  link_add_head(&m->captures, &c->link);
  m->captures_entered++;
  pthread_mutex_unlock(&m->lock);
  __atomic_add_fetch(&m->backend->captures, 1, __ATOMIC_RELAXED);
  oci_self.captures++;
  return OC_OK;
}

oc_status oc_capture_enter(oc_model *m, oc_stream s) {
  if (!m) return oci_error(OC_E_INVALID, "oc_capture_enter: the model is NULL");
  struct task call;
  oc_status st = oci_call_begin(m, &call, "oc_capture_enter");
  if (st) return st;
  st = oci_stream_check(m, s, "oc_capture_enter");
  if (!st) st = oci_stream_name(m, s);
  if (!st) st = add_capture(m, s);
  oci_call_end(&call);
  return st;
}

/* This thread's newest capture on m, off the list; NULL: none. */
static struct capture *take_newest(struct oc_model *m) {
  uint64_t me = oci_thread_id();
  struct capture *found = NULL;
  pthread_mutex_lock(&m->lock);
  LINK_EACH(l, &m->captures) {
    struct capture *c = CONTAINER(l, struct capture, link);
    if (!found && c->thread == me) found = c;
  }
  if (found) link_remove(&found->link);
  pthread_mutex_unlock(&m->lock);
  return found;
}

static void leave(struct oc_model *m) {
  struct capture *c = take_newest(m);
  if (!c) {
    oci_log(OCI_LOG_WARNING, "oc_capture_leave: this thread has entered no capture on model %s", m->name);
    return;
  }
  oci_free(m->heap, c, sizeof *c);
  __atomic_sub_fetch(&m->backend->captures, 1, __ATOMIC_RELAXED);
  oci_self.captures--;
}

void oc_capture_leave(oc_model *m) {
  struct task call;
  if (!m || oci_call_begin_give(m, &call, "oc_capture_leave")) return;
  leave(m);
  oci_call_end(&call);
}

bool oci_captured_now(struct oc_model *m) {
  pthread_mutex_lock(&m->lock);
  bool any = !link_empty(&m->captures);
  pthread_mutex_unlock(&m->lock);
  return any;
}

bool oci_capture_on(struct oc_model *m, oc_stream s) {
  LINK_EACH(l, &m->captures) {
    if (CONTAINER(l, struct capture, link)->stream == s) return true;
  }
  return false;
}

/* ---- graphs gone ---- */

/* No capture is entered; how many were until now. */
static oc_status check_none(struct oc_model *m, uint64_t *entered) {
  pthread_mutex_lock(&m->lock);
  bool any = !link_empty(&m->captures);
  *entered = m->captures_entered;
  pthread_mutex_unlock(&m->lock);
  return any ? oci_error(OC_E_BUSY, "oc_model_graphs_gone: a capture is entered on model %s", m->name) : OC_OK;
}

static oc_status next_epoch(struct oc_model *m, uint64_t entered) {
  pthread_mutex_lock(&m->lock);
  bool same = m->captures_entered == entered;
  if (same) __atomic_store_n(&m->graph_epoch, m->graph_epoch + 1, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&m->lock);
  return same ? OC_OK : oci_error(OC_E_BUSY, "oc_model_graphs_gone: a capture was entered meanwhile on model %s", m->name);
}

static oc_status wait_for_streams(struct oc_model *m) {
  bool left_out = false;
  oc_status st = oci_streams_drain(m, &left_out);
  if (!st && left_out) st = oci_error(OC_E_BUSY, "oc_model_graphs_gone: a capture was entered meanwhile");
  return st;
}

/* What is retired now goes back after the waits; what is retired meanwhile is not among it. */
static oc_status give_retired_back(struct oc_model *m, uint64_t entered) {
  struct scratch_cut scratch;
  struct pool_batch blocks = oci_scratch_cut_retired(&m->opcache, &scratch);
  struct link foreign;
  link_init(&foreign);
  oci_derived_take_retired(&m->derived, &foreign);
  oc_status st = next_epoch(m, entered);
  oci_sight_guard_sync(m);   /* the cut needs it in any case */
  if (!st) st = wait_for_streams(m);
  /* before the records of scratch, which stand for retired blocks */
  if (st) oci_pool_put_back(m->pool.core, &blocks);
  else oci_pool_give_back(m->pool.core, &blocks);
  oci_scratch_cut_end(&m->opcache, &scratch, st == OC_OK);
  oc_status foreign_st = oci_derived_graphs_gone(&m->derived, &foreign, st == OC_OK);
  return st ? st : foreign_st;
}

oc_status oc_model_graphs_gone(oc_model *m) {
  if (!m) return oci_error(OC_E_INVALID, "oc_model_graphs_gone: the model is NULL");
  struct task call;
  oc_status st = oci_call_begin(m, &call, "oc_model_graphs_gone");
  if (st) return st;
  uint64_t entered = 0;
  st = oci_may_wait("oc_model_graphs_gone");
  if (!st) st = check_none(m, &entered);
  if (!st) st = oci_streams_may_drain(m, "oc_model_graphs_gone");
  if (!st) st = give_retired_back(m, entered);
  oci_call_end(&call);
  return st;
}
