/* SPDX-License-Identifier: MIT */
/*
 * backend: a copy of the engine's, or our own, table of driver functions, with its self. Made by oc_backend_create,
 *          owned by who opened it; models count on it. Everything in it is set at create, but for the counts.
 *
 * The oci_dev_ calls are the only way from liboc/ to a driver: they stand for missing entries and word failures
 * ("alloc(1048576 bytes) on cuda: out of memory"). Each is counted for the model that it serves. None takes a lock.
 */
#ifndef OCI_LIBOC_BACKEND_H
#define OCI_LIBOC_BACKEND_H

#include "liboc/oc.h"
#include "rcu/list.h"

struct oc_model;

struct oc_backend {
  oc_backend_ops ops;
  void *self;
  char *name;
  oc_stream per_thread_stream;   /* a handle that names many streams: refused by _on calls; NULL: none */
  void *cuda_context;
  struct link in_process;        /* process.c: under its lock */
  struct link models;
  bool closing;
  bool forked;                   /* atomic: we are in a child of the process that opened it */
  uint32_t captures;             /* atomic: captures entered on models of this backend */
};

/* What only a CUDA backend has; right after it was made, before another thread knows it. */
void oci_backend_set_cuda(oc_backend *b, void *context, oc_stream per_thread_stream);

/* OC_E_INVALID for NULL, OC_E_FORKED in a child; each names `call`. */
oc_status oci_backend_usable(const oc_backend *b, const char *call);

bool oci_dev_has_events(const oc_backend *b);
bool oci_dev_has_modules(const oc_backend *b);
oc_status oci_dev_alloc(struct oc_model *m, size_t bytes, bool managed, oc_devptr *out);
oc_status oci_dev_free(struct oc_model *m, oc_devptr ptr);
/* synchronize, else synchronize_all, else nothing to wait for */
oc_status oci_dev_sync(struct oc_model *m, oc_stream s);
oc_status oci_dev_sync_all(struct oc_model *m);
/* False where the backend cannot say. A failed query counts as capturing: better to refuse than to break it. But a
   stream of a lost context, or no stream at all, is not: what comes next says so, and a teardown must end. */
bool oci_dev_capturing(struct oc_model *m, oc_stream s);
oc_status oci_dev_event_create(struct oc_model *m, oc_event *out);
oc_status oci_dev_event_record(struct oc_model *m, oc_event e, oc_stream s);
oc_status oci_dev_event_query(struct oc_model *m, oc_event e);
oc_status oci_dev_event_wait(struct oc_model *m, oc_stream s, oc_event e);
oc_status oci_dev_event_destroy(struct oc_model *m, oc_event e);
oc_status oci_dev_module_load(struct oc_model *m, const char *name, const void *image, size_t bytes, oc_module *out);
oc_status oci_dev_module_unload(struct oc_model *m, oc_module module);
/* module NULL: asks the `kernel` entry for (name, func) */
oc_status oci_dev_kernel(struct oc_model *m, oc_module module, const char *name, const char *func, oc_kernel *out);

#endif
