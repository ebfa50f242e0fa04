/* SPDX-License-Identifier: MIT */
/* Who holds on to a model (holds, by name) and what it was given to release (an engine's resources). */
#include "config.h"

#include <string.h>

#include "liboc/model.h"
#include "liboc/options.h"
#include "rcu/mem.h"

/* ---- holds: under the tasks lock, because teardown waits for them ---- */

static uint64_t hold_hash(const char *who) {
  return oci_lookup(who, NULL).hash;
}

static struct hold *find_hold(struct oc_model *m, const char *who) {
  for (struct table_node *n = oci_table_find(&m->tasks.holds_by_name, hold_hash(who)); n; n = oci_table_next(n)) {
    struct hold *h = CONTAINER(n, struct hold, node);
    if (strcmp(h->who, who) == 0) return h;
  }
  return NULL;
}

static void hold_free(struct oc_model *m, struct hold *h) {
  oci_strfree(m->heap, h->who);
  oci_free(m->heap, h, sizeof *h);
}

static struct hold *hold_new(struct oc_model *m, const char *who) {
  struct hold *h = oci_alloc(m->heap, sizeof *h);
  if (!h) return NULL;
  h->who = oci_strdup(m->heap, who);
  if (h->who) return h;
  hold_free(m, h);
  return NULL;
}

/* The record that counts: one of that name, else the fresh one. NULL without host memory. */
static struct hold *hold_for(struct oc_model *m, struct hold *fresh) {
  struct hold *h = find_hold(m, fresh->who);
  if (h || !oci_table_reserve(&m->tasks.holds_by_name)) return h;
  link_add_tail(&m->tasks.holds, &fresh->link);
  oci_table_add(&m->tasks.holds_by_name, &fresh->node, hold_hash(fresh->who));
  return fresh;
}

/* False without host memory. */
static bool retain(struct oc_model *m, const char *who) {
  struct hold *fresh = hold_new(m, who);
  if (!fresh) return false;
  oci_tasks_lock();
  struct hold *h = hold_for(m, fresh);
  if (h) h->count++;
  oci_tasks_unlock();
  if (h != fresh) hold_free(m, fresh);
  return h != NULL;
}

oc_status oc_model_retain(oc_model *m, const char *who) {
  if (!m) return oci_error(OC_E_INVALID, "oc_model_retain: the model is NULL");
  if (!who || !*who) return oci_error(OC_E_INVALID, "oc_model_retain: a holder must have a name");
  struct task call;
  oc_status st = oci_call_begin(m, &call, "oc_model_retain");
  if (st) return st;
  if (!retain(m, who)) st = oci_error(OC_E_HOST_NOMEM, "oc_model_retain(%s): out of host memory", who);
  oci_call_end(&call);
  return st;
}

/* All of it under the tasks lock: the last hold may be all that keeps another thread from destroying the model. */
static void let_go(struct oc_model *m, struct hold *h) {
  link_remove(&h->link);
  oci_table_remove(&m->tasks.holds_by_name, &h->node);
  hold_free(m, h);
  if (m->tasks.waiters) pthread_cond_broadcast(&m->tasks.changed);
}

oc_status oc_model_release_hold(oc_model *m, const char *who) {
  if (!m || !who) return oci_error(OC_E_INVALID, "oc_model_release_hold: a NULL argument");
  oc_status st = oci_model_forked(m, "oc_model_release_hold");
  if (st) return st;
  oci_tasks_lock();
  struct hold *h = find_hold(m, who);
  if (!h && m->state == MODEL_RELEASED) st = oci_model_refuses(m, "oc_model_release_hold");
  else if (!h) st = oci_error(OC_E_NOT_FOUND, "oc_model_release_hold: model %s has no holder %s", m->name, who);
  else if (--h->count == 0) let_go(m, h);
  oci_tasks_unlock();
  return st;
}

/* ---- resources ---- */

static uint64_t self_hash(const void *self) {
  return oci_hash_u64((uint64_t)(uintptr_t)self);
}

/* No two addresses have one hash. */
static struct resource *find_resource(struct oc_model *m, const void *self) {
  struct table_node *n = oci_table_find(&m->resources_by_self, self_hash(self));
  return n ? CONTAINER(n, struct resource, node) : NULL;
}

static void list(struct oc_model *m, struct resource *r) {
  link_add_head(&m->resources, &r->link);
  oci_table_add(&m->resources_by_self, &r->node, self_hash(r->self));
}

static void unlist(struct oc_model *m, struct resource *r) {
  link_remove(&r->link);
  oci_table_remove(&m->resources_by_self, &r->node);
}

struct resource *oci_resource_take(struct oc_model *m) {
  pthread_mutex_lock(&m->lock);
  struct resource *r = link_empty(&m->resources) ? NULL : CONTAINER(m->resources.next, struct resource, link);
  if (r) unlist(m, r);
  pthread_mutex_unlock(&m->lock);
  return r;
}

void oci_resource_free(struct oc_model *m, struct resource *r) {
  oci_strfree(m->heap, r->label);
  oci_free(m->heap, r, sizeof *r);
}

static struct resource *resource_new(struct oc_model *m, const oc_resource_ops *ops, void *self) {
  struct resource *r = oci_alloc(m->heap, sizeof *r);
  if (!r) return NULL;
  r->ops = *ops;
  r->self = self;
  r->label = oci_strdup(m->heap, ops->label ? ops->label : "resource");
  if (r->label) return r;
  oci_free(m->heap, r, sizeof *r);
  return NULL;
}

static oc_status no_memory(void) {
  return oci_error(OC_E_HOST_NOMEM, "oc_model_push: out of host memory");
}

static oc_status list_new(struct oc_model *m, struct resource *r) {
  if (find_resource(m, r->self))
    return oci_error(OC_EXISTS, "oc_model_push: resource %p is already on the list of model %s", r->self, m->name);
  if (!oci_table_reserve(&m->resources_by_self)) return no_memory();
  list(m, r);
  return OC_OK;
}

static oc_status push(struct oc_model *m, const oc_resource_ops *ops, void *self) {
  struct resource *r = resource_new(m, ops, self);
  if (!r) return no_memory();
  pthread_mutex_lock(&m->lock);
  oc_status st = list_new(m, r);
  pthread_mutex_unlock(&m->lock);
  if (st) oci_resource_free(m, r);
  return st;
}

oc_status oc_model_push(oc_model *m, const oc_resource_ops *ops, void *self) {
  if (!m || !ops) return oci_error(OC_E_INVALID, "oc_model_push: a NULL argument");
  oc_resource_ops known;
  oc_status st = OCI_OPTIONS(&known, ops, "oc_model_push");
  if (st) return st;
  if (!known.release) return oci_error(OC_E_INVALID, "oc_model_push: release is NULL");
  struct task call;
  st = oci_call_begin(m, &call, "oc_model_push");
  if (st) return st;
  st = push(m, &known, self);
  oci_call_end(&call);
  return st;
}

oc_status oc_model_pop(oc_model *m, void *self) {
  if (!m) return oci_error(OC_E_INVALID, "oc_model_pop: the model is NULL");
  struct task call;
  oc_status st = oci_call_begin_give(m, &call, "oc_model_pop");
  if (st) return st;
  pthread_mutex_lock(&m->lock);
  struct resource *r = find_resource(m, self);
  if (r) unlist(m, r);
  pthread_mutex_unlock(&m->lock);
  if (r) oci_resource_free(m, r);
  else st = oci_error(OC_E_NOT_FOUND, "oc_model_pop: model %s has no resource %p", m->name, self);
  oci_call_end(&call);
  return st;
}

void oci_holders_free(struct oc_model *m) {
  oci_table_free(&m->tasks.holds_by_name);
  oci_table_free(&m->resources_by_self);
}
