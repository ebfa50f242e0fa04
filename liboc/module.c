/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "liboc/model.h"
#include "liboc/turn.h"
#include "rcu/mem.h"

static uint64_t name_hash(const char *name) {
  return oci_lookup(name, NULL).hash;
}

static struct module *find(struct oc_model *m, const char *name) {
  for (struct table_node *n = oci_table_find(&m->modules_by_name, name_hash(name)); n; n = oci_table_next(n)) {
    struct module *mod = CONTAINER(n, struct module, node);
    if (strcmp(mod->name, name) == 0) return mod;
  }
  return NULL;
}

static void module_free(struct oc_model *m, struct module *mod) {
  oci_strfree(m->heap, mod->name);
  oci_free(m->heap, mod, sizeof *mod);
}

static struct module *module_new(struct oc_model *m, const char *name) {
  struct module *mod = oci_alloc(m->heap, sizeof *mod);
  if (!mod) return NULL;
  mod->name = oci_strdup(m->heap, name);
  if (mod->name) return mod;
  oci_free(m->heap, mod, sizeof *mod);
  return NULL;
}

/* The record under a name, once nobody loads it; NULL: none. It goes when its loading fails, so it is found anew
   after each wait. False: this thread is loading it. */
static bool find_settled(struct oc_model *m, const char *name, struct module **out) {
  while ((*out = find(m, name)) && (*out)->turn) {
    if ((*out)->turn == oci_thread_id()) return false;
    pthread_cond_wait(&m->module_loaded, &m->lock);
  }
  return true;
}

/* A record under a free name, its turn taken. */
static oc_status reserve_name(struct oc_model *m, const char *name, struct module **out, const char *call) {
  struct module *mod;
  if (!find_settled(m, name, &mod))
    return oci_error(OC_E_REENTRANT, "%s: module %s is being loaded by this thread", call, name);
  if (mod) return oci_error(OC_EXISTS, "%s: module %s is already there; the first stays", call, name);
  mod = oci_table_reserve(&m->modules_by_name) ? module_new(m, name) : NULL;
  if (!mod) return oci_error(OC_E_HOST_NOMEM, "%s: out of host memory", call);
  oci_turn_take(&mod->turn);
  link_add_head(&m->modules, &mod->link);
  oci_table_add(&m->modules_by_name, &mod->node, name_hash(name));
  *out = mod;
  return OC_OK;
}

static void settle_name(struct oc_model *m, struct module *mod, oc_module handle, bool borrowed) {
  pthread_mutex_lock(&m->lock);
  mod->handle = handle;
  mod->borrowed = borrowed;
  oci_turn_give(&mod->turn, &m->module_loaded);
  if (!handle) {
    link_remove(&mod->link);
    oci_table_remove(&m->modules_by_name, &mod->node);
    module_free(m, mod);
  }
  pthread_mutex_unlock(&m->lock);
}

static oc_status enter(struct oc_model *m, const char *name, struct module **out, const char *call) {
  pthread_mutex_lock(&m->lock);
  oc_status st = reserve_name(m, name, out, call);
  pthread_mutex_unlock(&m->lock);
  return st;
}

static oc_status load(struct oc_model *m, const char *name, const void *image, size_t bytes) {
  struct module *mod;
  oc_status st = enter(m, name, &mod, "oc_model_load_module");
  if (st) return st;
  oc_module handle = NULL;
  st = oci_dev_module_load(m, name, image, bytes, &handle);
  settle_name(m, mod, st ? NULL : handle, false);
  return st;
}

oc_status oc_model_load_module(oc_model *m, const char *name, const void *image, size_t bytes) {
  if (!m) return oci_error(OC_E_INVALID, "oc_model_load_module: the model is NULL");
  if (!name || !*name) return oci_error(OC_E_INVALID, "oc_model_load_module: the name is empty");
  if (!image || !bytes) return oci_error(OC_E_INVALID, "oc_model_load_module: module %s has no image", name);
  struct task call;
  oc_status st = oci_call_begin(m, &call, "oc_model_load_module");
  if (st) return st;
  st = oci_in_capture() ? oci_error(OC_E_CAPTURING, "oc_model_load_module(%s): called inside a capture", name)
                        : load(m, name, image, bytes);
  oci_call_end(&call);
  return st;
}

oc_status oc_model_adopt_module(oc_model *m, const char *name, oc_module borrowed) {
  if (!m) return oci_error(OC_E_INVALID, "oc_model_adopt_module: the model is NULL");
  if (!name || !*name) return oci_error(OC_E_INVALID, "oc_model_adopt_module: the name is empty");
  if (!borrowed) return oci_error(OC_E_INVALID, "oc_model_adopt_module: module %s is NULL", name);
  struct task call;
  oc_status st = oci_call_begin(m, &call, "oc_model_adopt_module");
  if (st) return st;
  struct module *mod;
  st = enter(m, name, &mod, "oc_model_adopt_module");
  if (!st) settle_name(m, mod, borrowed, true);
  oci_call_end(&call);
  return st;
}

/* The handle under a name: NULL if there is none. Waits for one that is being loaded. */
static oc_module handle_of(struct oc_model *m, const char *name) {
  pthread_mutex_lock(&m->lock);
  struct module *mod;
  (void)find_settled(m, name, &mod);   /* one that this thread loads has no handle yet */
  oc_module handle = mod ? mod->handle : NULL;
  pthread_mutex_unlock(&m->lock);
  return handle;
}

oc_status oc_model_module(oc_model *m, const char *name, oc_module *out) {
  if (!m || !name || !out) return oci_error(OC_E_INVALID, "oc_model_module: a NULL argument");
  struct task call;
  oc_status st = oci_call_begin(m, &call, "oc_model_module");
  if (st) return st;
  oc_module handle = handle_of(m, name);
  if (handle) *out = handle;
  else st = oci_error(OC_E_NOT_FOUND, "oc_model_module: model %s has no module %s", m->name, name);
  oci_call_end(&call);
  return st;
}

oc_status oci_module_kernel(struct oc_model *m, const char *module, const char *func, oc_kernel *out) {
  oc_module handle = handle_of(m, module);
  if (!handle && !m->backend->ops.kernel) {
    if (!oci_dev_has_modules(m->backend))
      return oci_error(OC_E_UNSUPPORTED, "kernel %s::%s: backend %s cannot look kernels up", module, func, m->backend->name);
    return oci_error(OC_E_NOT_FOUND, "kernel %s::%s: model %s has no module %s", module, func, m->name, module);
  }
  /* an adopted module, where the table looks kernels up by name only */
  if (!m->backend->ops.module_function && m->backend->ops.kernel) handle = NULL;
  return oci_dev_kernel(m, handle, module, func, out);
}

void oci_modules_free(struct oc_model *m) {
  LINK_EACH(l, &m->modules) module_free(m, CONTAINER(l, struct module, link));
  oci_table_free(&m->modules_by_name);
}
