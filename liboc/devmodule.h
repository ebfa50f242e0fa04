/* SPDX-License-Identifier: MIT */
/*
 * Modules of the embedded device: tables of C functions, and handles that know when they are stale.
 *
 * modules:    one device's; owned by the device, any thread may use it.
 * module:     a loaded image: its kernels, found by name.
 * kernel:     one function of a module: a slot, never freed before the device. Unloading makes its handle
 *             stale.
 * signature:  name and parameter sizes of a function: immutable, interned for the device's life, so that a
 *             launch may read it while its module is unloaded, and loading the same image again costs nothing.
 */
#ifndef OCI_LIBOC_DEVMODULE_H
#define OCI_LIBOC_DEVMODULE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "liboc/devslots.h"
#include "liboc/oc.h"

struct signature {
  struct signature *next;
  uint64_t hash;
  size_t record_bytes;         /* of this record */
  const char *name;
  size_t launch_bytes;         /* of all parameters, each aligned to 16 */
  uint32_t param_count;
  uint32_t param_bytes[];      /* [param_count], then the name */
};

enum { SIGNATURE_BUCKETS = 256 };

struct modules {
  struct heap *heap;
  pthread_mutex_t lock;        /* loading, unloading, names, signatures */
  struct slots table, kernels;
  struct signature *signatures[SIGNATURE_BUCKETS];
};

/* What a launch needs of a kernel, good whatever happens to the module meanwhile. */
struct kernel_ref {
  const struct signature *sig;
  oc_host_fn fn;
  const uint32_t *gen_at;      /* the kernel is loaded while *gen_at == gen */
  uint32_t gen;
};

void oci_devmodules_init(struct modules *ms, struct heap *heap);
void oci_devmodules_fini(struct modules *ms);

/* image: an oc_host_module; copied. Outcomes: OC_E_INVALID (what can be seen to be no image),
   OC_E_HOST_NOMEM. */
oc_status oci_devmodule_load(struct modules *ms, const void *image, size_t bytes, oc_module *out);
/* Its functions' handles are stale from now on; launches of them, queued ones too, are not run. */
oc_status oci_devmodule_unload(struct modules *ms, oc_module m);
/* Outcomes: OC_E_INVALID (no such module), OC_E_NOT_FOUND. */
oc_status oci_devmodule_function(struct modules *ms, oc_module m, const char *func, oc_kernel *out);
uint32_t oci_devmodules_live(const struct modules *ms);

/* Outcomes: OC_E_INVALID; then *stale says whether its module was unloaded. */
oc_status oci_devkernel_resolve(const struct modules *ms, oc_kernel k, struct kernel_ref *out, bool *stale);

static inline bool oci_devkernel_loaded(const struct kernel_ref *k) {
  return __atomic_load_n(k->gen_at, __ATOMIC_ACQUIRE) == k->gen;
}

static inline size_t oci_devparam_stride(uint32_t bytes) {
  return ((size_t)bytes + 15) & ~(size_t)15;
}

#endif
