/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/benchworld.h"
#include "tools/device.h"

static oc_status void_alloc(void *self, size_t bytes, oc_devptr *out)
{
  struct void_device *d = self;
  uint64_t step = (bytes + ((UINT64_C(4) << 20) - 1)) >> 21 << 21;   /* 2 MiB at least between any two */

  *out = __atomic_fetch_add(&d->next, step, __ATOMIC_RELAXED);
  __atomic_fetch_add(&d->allocs, 1, __ATOMIC_RELAXED);
  return OC_OK;
}

static oc_status void_free(void *self, oc_devptr ptr)
{
  struct void_device *d = self;

  (void)ptr;
  __atomic_fetch_add(&d->frees, 1, __ATOMIC_RELAXED);
  return OC_OK;
}

static oc_status void_kernel(void *self, const char *module, const char *func, oc_kernel *out)
{
  struct void_device *d = self;

  (void)module, (void)func;
  *out = (oc_kernel)(uintptr_t)(__atomic_add_fetch(&d->kernels, 1, __ATOMIC_RELAXED) * 16);
  return OC_OK;
}

bool oct_void_open(struct void_device *d, struct fault *why)
{
  const oc_backend_ops ops = {.struct_size = sizeof ops, .name = "void", .alloc = void_alloc, .free = void_free,
                              .kernel = void_kernel};
  oc_status st;

  *d = (struct void_device){.next = UINT64_C(1) << 40};
  st = oc_backend_create(&ops, d, &d->backend);
  return st == OC_OK || oct_liboc_fault(why, st, "opening a device that does nothing");
}

bool oct_void_close(struct void_device *d, struct fault *why)
{
  oc_status st = oc_backend_close(d->backend);

  return st == OC_OK || oct_liboc_fault(why, st, "closing the device that does nothing");
}

bool oct_void_model(const struct void_device *d, size_t reserve, oc_model **out, struct fault *why)
{
  oc_model_options options = {.struct_size = sizeof options, .flags = OC_MODEL_NO_MANAGED, .name = "bench",
                              .reserve_bytes = reserve};
  oc_status st = oc_model_create(d->backend, &options, out);

  return st == OC_OK || oct_liboc_fault(why, st, "creating a model");
}
