/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/backend.h"

#include <string.h>

#include "liboc/model.h"
#include "liboc/options.h"
#include "liboc/process.h"
#include "rcu/error.h"
#include "rcu/guard.h"
#include "rcu/mem.h"

/* ---- create and close ---- */

#define FIRST_OPS_SIZE sizeof(oc_backend_ops)   /* of 0.1.0, the first published */

static oc_status check_ops(const oc_backend_ops *ops) {
  if (!ops) return oci_error(OC_E_INVALID, "oc_backend_create: ops is NULL");
  if (ops->struct_size < FIRST_OPS_SIZE)
    return oci_error(OC_E_INVALID, "oc_backend_create: struct_size %u is below the table's first size, %zu",
                     ops->struct_size, FIRST_OPS_SIZE);
  if (ops->struct_size > STRUCT_MOST)
    return oci_error(OC_E_INVALID, "oc_backend_create: struct_size %u is no size of a table", ops->struct_size);
  const unsigned char *tail = (const unsigned char *)ops + sizeof *ops;
  for (size_t i = 0; i < ops->struct_size - sizeof *ops; i++)
    if (tail[i]) return oci_error(OC_E_INVALID, "oc_backend_create: the table has entries this library does not know");
  if (!ops->alloc) return oci_error(OC_E_INVALID, "oc_backend_create: the required entry alloc is NULL");
  if (!ops->free) return oci_error(OC_E_INVALID, "oc_backend_create: the required entry free is NULL");
  return OC_OK;
}

oc_status oc_backend_create(const oc_backend_ops *ops, void *self, oc_backend **out) {
  if (!out) return oci_error(OC_E_INVALID, "oc_backend_create: out is NULL");
  oc_status st = check_ops(ops);
  if (st) return st;
  st = OC_E_HOST_NOMEM;
  oc_backend *b = oci_alloc(NULL, sizeof *b);
  if (!b) goto fail;
  b->name = oci_strdup(NULL, ops->name ? ops->name : "unnamed");
  if (!b->name) goto free_backend;
  b->ops = *ops;
  b->ops.struct_size = sizeof b->ops;
  b->ops.name = b->name;
  b->self = self;
  link_init(&b->models);
  st = oci_process_add_backend(b);
  if (st) goto free_name;
  *out = b;
  return OC_OK;

free_name:
  oci_strfree(NULL, b->name);
free_backend:
  oci_free(NULL, b, sizeof *b);
fail:
  return st == OC_E_HOST_NOMEM ? oci_error(st, "oc_backend_create: out of host memory") : st;
}

oc_status oci_backend_usable(const oc_backend *b, const char *call) {
  if (!b) return oci_error(OC_E_INVALID, "%s: the backend is NULL", call);
  if (__atomic_load_n(&b->forked, __ATOMIC_RELAXED))
    return oci_error(OC_E_FORKED, "%s: backend %s was opened by a parent process", call, b->name);
  return OC_OK;
}

static oc_status start_closing(oc_backend *b) {
  oci_process_lock();
  oc_status st = OC_OK;
  size_t models = 0;
  LINK_EACH(l, &b->models) models++;
  if (models)
    st = oci_error(OC_E_BUSY, "oc_backend_close: %zu model%s on backend %s still live%s", models,
                   models == 1 ? "" : "s", b->name, models == 1 ? "s" : "");
  else if (b->closing)
    st = oci_error(OC_E_BUSY, "oc_backend_close: backend %s is being closed by another thread", b->name);
  else
    b->closing = true;
  oci_process_unlock();
  return st;
}

oc_status oc_backend_close(oc_backend *b) {
  oc_status st = oci_backend_usable(b, "oc_backend_close");
  if (st) return st;
  if (oci_guarded()) return oci_error(OC_E_GUARDED, "oc_backend_close: called inside a guard");
  st = start_closing(b);
  if (st) return st;
  int cancel = oci_cancel_off();
  if (b->ops.close) b->ops.close(b->self);
  oci_process_remove_backend(b);
  oci_strfree(NULL, b->name);
  oci_free(NULL, b, sizeof *b);
  oci_cancel_back(cancel);
  return OC_OK;
}

const oc_backend_ops *oc_backend_table(const oc_backend *b) {
  return b ? &b->ops : NULL;
}

void *oc_backend_self(const oc_backend *b) {
  return b ? b->self : NULL;
}

void oci_backend_set_cuda(oc_backend *b, void *context, oc_stream per_thread_stream) {
  b->cuda_context = context;
  b->per_thread_stream = per_thread_stream;
}

void *oc_cuda_context(const oc_backend *b) {
  return b ? b->cuda_context : NULL;
}

/* ---- calls ---- */

/* The driver's words for the failure that this thread just had. */
static const char *words(const oc_backend *b, oc_status st) {
  const char *w = b->ops.last_error ? b->ops.last_error(b->self) : NULL;
  return w && *w ? w : oc_status_text(st);
}

#define FAILED(b, st, fmt, ...) \
  oci_error(st, fmt " on %s: %s (%s)", __VA_ARGS__, (b)->name, words(b, st), oc_status_name(st))

/* What a table answers where only OC_OK or a failure makes sense. */
static oc_status sane(oc_status st) {
  return st > 0 ? OC_E_BACKEND : st;
}

/* The entry of m's table with these arguments, counted and timed for m. */
#define CALL_AS_IS(m, kind, entry, ...)                           \
  (__extension__({                                                \
    uint64_t since_ = oci_now_ns();                               \
    oc_status answer_ = (m)->backend->ops.entry(__VA_ARGS__);     \
    oci_sight_driver(m, kind, #entry, since_, answer_);           \
    answer_;                                                      \
  }))
#define CALL(m, kind, entry, ...) sane(CALL_AS_IS(m, kind, entry, __VA_ARGS__))

bool oci_dev_has_events(const oc_backend *b) {
  return b->ops.event_create && b->ops.event_record && b->ops.event_query && b->ops.event_wait && b->ops.event_destroy;
}

bool oci_dev_has_modules(const oc_backend *b) {
  return b->ops.module_load && b->ops.module_unload && b->ops.module_function;
}

oc_status oci_dev_alloc(struct oc_model *m, size_t bytes, bool managed, oc_devptr *out) {
  const oc_backend *b = m->backend;
  const char *call = managed ? "alloc_managed" : "alloc";
  oc_devptr p = 0;
  oc_status st = managed ? CALL(m, OC_CALL_ALLOC_MANAGED, alloc_managed, b->self, bytes, &p)
                         : CALL(m, OC_CALL_ALLOC, alloc, b->self, bytes, &p);
  if (st) return FAILED(b, st, "%s(%zu bytes)", call, bytes);
  if (!p) return oci_error(OC_E_BACKEND, "%s(%zu bytes) on %s: answered success and a null pointer", call, bytes, b->name);
  *out = p;
  return OC_OK;
}

oc_status oci_dev_free(struct oc_model *m, oc_devptr ptr) {
  const oc_backend *b = m->backend;
  oc_status st = CALL(m, OC_CALL_FREE, free, b->self, ptr);
  return st ? FAILED(b, st, "free(0x%llx)", (unsigned long long)ptr) : OC_OK;
}

oc_status oci_dev_sync(struct oc_model *m, oc_stream s) {
  const oc_backend *b = m->backend;
  if (!b->ops.synchronize) return oci_dev_sync_all(m);
  oc_status st = CALL(m, OC_CALL_SYNC, synchronize, b->self, s);
  return st ? FAILED(b, st, "synchronize(stream %p)", (void *)s) : OC_OK;
}

oc_status oci_dev_sync_all(struct oc_model *m) {
  const oc_backend *b = m->backend;
  if (!b->ops.synchronize_all) return OC_OK;
  oc_status st = CALL(m, OC_CALL_SYNC, synchronize_all, b->self);
  return st ? FAILED(b, st, "%s", "synchronize_all()") : OC_OK;
}

bool oci_dev_capturing(struct oc_model *m, oc_stream s) {
  const oc_backend *b = m->backend;
  if (!b->ops.capturing) return false;
  bool capturing = false;
  oc_status st = CALL_AS_IS(m, OC_CALL_CAPTURING, capturing, b->self, s, &capturing);
  if (st == OC_E_DEVICE_LOST || st == OC_E_INVALID) return false;
  return st != OC_OK || capturing;
}

oc_status oci_dev_event_create(struct oc_model *m, oc_event *out) {
  const oc_backend *b = m->backend;
  oc_event e = NULL;
  oc_status st = CALL(m, OC_CALL_EVENT, event_create, b->self, &e);
  if (st) return FAILED(b, st, "%s", "event_create()");
  if (!e) return oci_error(OC_E_BACKEND, "event_create() on %s: answered success and a null event", b->name);
  *out = e;
  return OC_OK;
}

oc_status oci_dev_event_record(struct oc_model *m, oc_event e, oc_stream s) {
  const oc_backend *b = m->backend;
  oc_status st = CALL(m, OC_CALL_EVENT, event_record, b->self, e, s);
  return st ? FAILED(b, st, "event_record(stream %p)", (void *)s) : OC_OK;
}

oc_status oci_dev_event_query(struct oc_model *m, oc_event e) {
  const oc_backend *b = m->backend;
  oc_status st = CALL_AS_IS(m, OC_CALL_EVENT, event_query, b->self, e);
  if (st == OC_OK || st == OC_MISS) return st;
  return FAILED(b, sane(st), "event_query(%p)", (void *)e);
}

oc_status oci_dev_event_wait(struct oc_model *m, oc_stream s, oc_event e) {
  const oc_backend *b = m->backend;
  oc_status st = CALL(m, OC_CALL_EVENT, event_wait, b->self, s, e);
  return st ? FAILED(b, st, "event_wait(stream %p)", (void *)s) : OC_OK;
}

oc_status oci_dev_event_destroy(struct oc_model *m, oc_event e) {
  const oc_backend *b = m->backend;
  oc_status st = CALL(m, OC_CALL_EVENT, event_destroy, b->self, e);
  return st ? FAILED(b, st, "event_destroy(%p)", (void *)e) : OC_OK;
}

oc_status oci_dev_module_load(struct oc_model *m, const char *name, const void *image, size_t bytes, oc_module *out) {
  const oc_backend *b = m->backend;
  if (!oci_dev_has_modules(b))
    return oci_error(OC_E_UNSUPPORTED, "module_load(%s) on %s: not supported", name, b->name);
  oc_module module = NULL;
  oc_status st = CALL(m, OC_CALL_MODULE, module_load, b->self, image, bytes, &module);
  if (st) return FAILED(b, st, "module_load(%s, %zu bytes)", name, bytes);
  if (!module) return oci_error(OC_E_BACKEND, "module_load(%s) on %s: answered success and a null module", name, b->name);
  *out = module;
  return OC_OK;
}

oc_status oci_dev_module_unload(struct oc_model *m, oc_module module) {
  const oc_backend *b = m->backend;
  oc_status st = CALL(m, OC_CALL_MODULE, module_unload, b->self, module);
  return st ? FAILED(b, st, "module_unload(%p)", (void *)module) : OC_OK;
}

oc_status oci_dev_kernel(struct oc_model *m, oc_module module, const char *name, const char *func, oc_kernel *out) {
  const oc_backend *b = m->backend;
  if (module ? !b->ops.module_function : !b->ops.kernel)
    return oci_error(OC_E_UNSUPPORTED, "%s::%s on %s: this backend cannot look kernels up", name, func, b->name);
  oc_kernel k = NULL;
  oc_status st = module ? CALL(m, OC_CALL_KERNEL, module_function, b->self, module, func, &k)
                        : CALL(m, OC_CALL_KERNEL, kernel, b->self, name, func, &k);
  if (st) return FAILED(b, st, "kernel %s::%s", name, func);
  /* Some drivers answer success and no handle for a missing symbol (S5). */
  if (!k) return oci_error(OC_E_NOT_FOUND, "kernel %s::%s on %s: success, but a null handle: no such function", name, func, b->name);
  *out = k;
  return OC_OK;
}
