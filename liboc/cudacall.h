/* SPDX-License-Identifier: MIT */
/*
 * What stands around every call of the CUDA driver.
 *
 * cuda:       self of the CUDA backend's table: a device and a context. Owned by the backend; set at open.
 * cuda_scope: one entry's stay in the driver, on its thread's stack: the context is current, the thread's capture
 *             mode relaxed where the call could break another thread's capture (S26). cuda_leave puts both back as
 *             they were (G31), and words what went wrong. No lock is held in between.
 */
#ifndef OCI_LIBOC_CUDACALL_H
#define OCI_LIBOC_CUDACALL_H

#include "liboc/cudaload.h"
#include "liboc/oc.h"

struct cuda {
  struct cuda_process *process;
  cu_context context;
  cu_device device;
  oc_backend *backend;       /* NULL until it is open */
  bool primary;              /* the context is the device's primary one, retained by us */
  bool managed, integrated;
};

struct cuda_scope {
  const struct cuda *cuda;
  const struct cuda_driver *driver;
  bool pushed, relaxed;
  cu_capture_mode mode;      /* the thread's own, where relaxed */
};

/* PLAIN: calls that queue work, and questions. RELAXED: what the driver counts as potentially unsafe beside a capture:
   allocation, modules, events, waiting. */
enum cuda_manner { CUDA_PLAIN, CUDA_RELAXED };

/* Outcomes: OC_OK: leave it again; OC_E_FORKED, OC_E_DEVICE_LOST, or what the driver says: nothing to leave. */
oc_status oci_cuda_enter(const struct cuda *c, enum cuda_manner manner, struct cuda_scope *s);
/* Leaves, and returns what the driver's answer r means: OC_E_DEVICE_NOMEM, OC_E_DEVICE_LOST (the context is gone for
   good), OC_E_INVALID, OC_E_NOT_FOUND, OC_E_UNSUPPORTED, OC_E_CAPTURING, else OC_E_BACKEND. Unless that is OK, the arguments
   name the call. */
oc_status oci_cuda_leave(struct cuda_scope *s, cu_result r, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same around calls that need no context: opening and closing. */
oc_status oci_cuda_enter_bare(const struct cuda *c, struct cuda_scope *s);

/* ---- images: cudaimage.c ---- */

/* What the driver is given for an image: PTX that lacks its NUL is copied with one (*copy is then to be freed, with
   bytes + 1). Outcomes: OC_E_INVALID (empty, or a cubin or fatbin that says it is longer than it is), OC_E_HOST_NOMEM. */
oc_status oci_cuda_image(const void *image, size_t bytes, const void **out, char **copy);

#endif
