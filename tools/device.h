/* SPDX-License-Identifier: MIT */
/*
 * device: a backend with its table at hand, so that copies, waits and launches fail in words.
 * Owned by the subcommand; any thread may use it.
 */
#ifndef OCTOOL_DEVICE_H
#define OCTOOL_DEVICE_H

#include "liboc/oc.h"
#include "tools/fault.h"

struct device { oc_backend *backend; const oc_backend_ops *ops; void *self; };

/* Of a launch: blocks, and threads in each. */
struct shape { uint32_t blocks, threads; };

/* "host" or "cuda". device_bytes 0: the backend's default. */
bool oct_device_open(struct device *d, const char *backend, size_t device_bytes, struct fault *why);
/* Closes; false (and still open) where the backend refuses. */
bool oct_device_close(struct device *d, struct fault *why);

/* Copies and launches are queued: what they read and write on the host must live until oct_wait. */
bool oct_copy_in(const struct device *d, oc_devptr to, const void *from, size_t n, oc_stream s, struct fault *why);
bool oct_copy_out(const struct device *d, void *to, oc_devptr from, size_t n, oc_stream s, struct fault *why);
bool oct_wait(const struct device *d, oc_stream s, struct fault *why);
bool oct_stream_create(const struct device *d, oc_stream *s, struct fault *why);
bool oct_stream_destroy(const struct device *d, oc_stream s, struct fault *why);
/* `params`: 8 bytes each, `count` of them. */
bool oct_launch(const struct device *d, oc_kernel k, struct shape shape, const uint64_t *params, size_t count,
                oc_stream s, struct fault *why);
/* Page-locked memory where the backend has it, else any. */
bool oct_host_alloc(const struct device *d, size_t bytes, unsigned char **out, struct fault *why);
void oct_host_free(const struct device *d, unsigned char *p);

/* What a device has counted since it was opened. Only the embedded one counts; else `counts` is false, and of the rest
   only `used` is set, which is a shared GPU's other users' too. */
struct device_account {
  bool counts;
  uint64_t used;                /* bytes in use now */
  uint64_t stale_launches, frees;
};
bool oct_device_account(const struct device *d, struct device_account *a, struct fault *why);

/* "<what>: <status>: <liboc's last failure>". Always false. */
#define oct_liboc_fault(f, status, ...) (oct_liboc_fault_write(f, status, __VA_ARGS__), false)
void oct_liboc_fault_write(struct fault *f, oc_status st, const char *format, ...)
  __attribute__((format(printf, 3, 4)));

#endif
