/* SPDX-License-Identifier: MIT */
/*
 * The embedded device: an asynchronous accelerator on the CPU, with the manners of a CUDA driver. It knows
 * nothing of backends: liboc's host backend and the simulated CUDA driver of the tests are both made of it.
 *
 * device:    memory, streams with events, modules. Owned by who opened it; any thread may call anything until
 *            close. Handles are not addresses: stale and made-up ones are refused, never followed.
 *
 * Failures are worded with oci_error. Nothing here waits for the device but synchronize, step and close.
 */
#ifndef OCI_LIBOC_DEVICE_H
#define OCI_LIBOC_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "liboc/devmem.h"
#include "liboc/devmodule.h"
#include "liboc/devstream.h"
#include "liboc/oc.h"

struct device {
  struct heap *heap;
  struct devmem memory;
  struct streams streams;
  struct modules modules;
  uint64_t launches;          /* atomic: kernels run */
  uint64_t stale_launches;    /* atomic: refused, or queued and not run: the module was unloaded */
};

struct device_options {
  struct mem_options memory;
  bool recycle_handles;       /* of streams and events: the last destroyed one's comes back first */
};

/* Outcomes: OC_E_HOST_NOMEM. */
oc_status oci_device_open(const struct device_options *opt, struct device **out);
/* Undoes stalls, waits until all that was queued has run, joins the workers, unmaps everything. No other
   thread may use the device any more. */
void oci_device_close(struct device *d);

/* ---- queued on s; return at once ---- */

/* Runs the kernel's function once, with copies of its parameters. Outcomes: OC_E_INVALID (a stale handle,
   which is counted; no such kernel or stream; a grid or block of nothing; parameters missing),
   OC_E_HOST_NOMEM. */
oc_status oci_device_launch(struct device *d, oc_kernel k, const oc_host_launch *shape, oc_stream s,
                            void **params);
/* Device ranges must lie in one live allocation (OC_E_INVALID): at the call; if they are freed before s gets
   there, the access faults. Host memory is the caller's to keep. */
oc_status oci_device_copy_in(struct device *d, oc_devptr dst, const void *src, size_t n, oc_stream s);
oc_status oci_device_copy_out(struct device *d, void *dst, oc_devptr src, size_t n, oc_stream s);
oc_status oci_device_copy(struct device *d, oc_devptr dst, oc_devptr src, size_t n, oc_stream s);
oc_status oci_device_fill(struct device *d, oc_devptr dst, uint8_t value, size_t n, oc_stream s);

#endif
