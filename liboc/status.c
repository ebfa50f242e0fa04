/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/pool.h"
#include "liboc/oc.h"
#include "rcu/error.h"

/* The layers below liboc/ know statuses as int; these are the numbers they make. */
_Static_assert((int)OC_OK == (int)POOL_OK && (int)OC_MISS == (int)POOL_MISS && (int)OC_EXISTS == (int)POOL_EXISTS, "status");
_Static_assert((int)OC_E_INVALID == (int)POOL_E_INVALID && (int)OC_E_HOST_NOMEM == (int)POOL_E_HOST_NOMEM, "status");
_Static_assert((int)OC_E_NOT_OWNED == (int)POOL_E_NOT_OWNED && (int)OC_E_INTERIOR == (int)POOL_E_INTERIOR, "status");
_Static_assert((int)OC_E_RELEASED == (int)POOL_E_RELEASED, "status");
_Static_assert((int)OC_E_DEVICE_NOMEM == (int)POOL_E_DEVICE_NOMEM, "status");
_Static_assert((int)OC_E_DEVICE_LOST == (int)POOL_E_DEVICE_LOST, "status");
_Static_assert(sizeof(oc_site) == sizeof(struct pool_site), "site");

#define EACH_STATUS(X) \
  X(OC_OK, "done") \
  X(OC_MISS, "nothing is stored under this key") \
  X(OC_EXISTS, "an earlier value was kept, and the caller keeps its own") \
  X(OC_E_INVALID, "an argument is not valid") \
  X(OC_E_KIND, "the derivation kind is unknown, or has the other arity") \
  X(OC_E_NOT_FOUND, "there is no such module, function or holder") \
  X(OC_E_HOST_NOMEM, "host memory is out") \
  X(OC_E_GUARDED, "this call would wait or release, and the thread is inside a guard") \
  X(OC_E_CAPTURING, "this call would ask the driver, and a stream capture is in progress") \
  X(OC_E_REENTRANT, "this call would wait for what waits for this thread") \
  X(OC_E_NOT_OWNED, "the pointer is no live block of this pool that the caller may free") \
  X(OC_E_INTERIOR, "the pointer is inside a live block, not at its start") \
  X(OC_E_IO, "reading or writing failed") \
  X(OC_E_UNSUPPORTED, "this backend cannot do that") \
  X(OC_E_RELEASED, "the model is torn down, or being torn down") \
  X(OC_E_BUSY, "holders, open builds, captures or calls are still live") \
  X(OC_E_DEVICE_NOMEM, "device memory is out") \
  X(OC_E_TEARDOWN, "the teardown finished with failures, which its report lists") \
  X(OC_E_BACKEND, "the driver refused") \
  X(OC_E_DEVICE_LOST, "the device's context is unusable") \
  X(OC_E_FORKED, "the backend was opened by a parent of this process") \
  X(OC_E_NO_DRIVER, "there is no CUDA driver, or it has no device")

const char *oc_status_name(oc_status s) {
  switch (s) {
#define NAME(status, text) case status: return #status;
    EACH_STATUS(NAME)
#undef NAME
  }
  return "OC_E_?";
}

const char *oc_status_text(oc_status s) {
  switch (s) {
#define TEXT(status, text) case status: return text;
    EACH_STATUS(TEXT)
#undef TEXT
  }
  return "no such status";
}

const char *oc_last_error(void) {
  return oci_error_text();
}

const char *oc_version(void) {
  return PACKAGE_VERSION;
}

void oc_set_log(oc_log_fn fn, void *arg) {
  oci_set_log(fn, arg);
}
