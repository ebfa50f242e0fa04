/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/device.h"

#include <inttypes.h>
#include <string.h>

#include "rcu/error.h"

oc_status oci_device_open(const struct device_options *opt, struct device **out) {
  struct heap *heap = oci_heap_create();
  if (!heap) goto no_memory;
  struct device *d = oci_alloc(heap, sizeof *d);
  if (!d) goto undo_heap;
  d->heap = heap;
  if (oci_devstreams_init(&d->streams, heap, opt->recycle_handles) != OC_OK) goto undo_device;
  oci_devmem_init(&d->memory, heap, &opt->memory);
  oci_devmodules_init(&d->modules, heap);
  *out = d;
  return OC_OK;

undo_device:
  oci_free(heap, d, sizeof *d);
undo_heap:
  oci_heap_destroy(heap);
no_memory:
  return oci_error(OC_E_HOST_NOMEM, "no host memory to open a device");
}

void oci_device_close(struct device *d) {
  struct heap *heap = d->heap;
  oci_devstreams_fini(&d->streams);
  oci_devmodules_fini(&d->modules);
  oci_devmem_fini(&d->memory);
  oci_free(heap, d, sizeof *d);
  oci_heap_destroy(heap);
}

/* ---- launch ---- */

struct launch_op {
  struct devop op;
  struct device *device;
  struct kernel_ref kernel;
  oc_host_launch shape;
  void *params[];             /* then the copies they point to, each aligned to 16 */
};

static oc_status run_launch(struct devop *op) {
  const struct launch_op *l = (const struct launch_op *)op;
  if (!oci_devkernel_loaded(&l->kernel)) {
    __atomic_add_fetch(&l->device->stale_launches, 1, __ATOMIC_RELAXED);
    return oci_error(OC_E_BACKEND, "a queued launch of %s was not run: its module has been unloaded",
                     l->kernel.sig->name);
  }
  l->kernel.fn(&l->shape, l->params);
  __atomic_add_fetch(&l->device->launches, 1, __ATOMIC_RELAXED);
  return OC_OK;
}

static size_t copies_at(const struct signature *sig) {
  return (sizeof(struct launch_op) + sig->param_count * sizeof(void *) + 15) & ~(size_t)15;
}

static void fill_launch(struct launch_op *l, struct device *d, const struct kernel_ref *k,
                        const oc_host_launch *shape, void **params) {
  char *copy = (char *)l + copies_at(k->sig);
  l->op.run = run_launch;
  l->device = d;
  l->kernel = *k;
  l->shape = *shape;
  for (uint32_t i = 0; i < k->sig->param_count; i++) {
    l->params[i] = memcpy(copy, params[i], k->sig->param_bytes[i]);
    copy += oci_devparam_stride(k->sig->param_bytes[i]);
  }
}

static oc_status check_launch(const struct signature *sig, const oc_host_launch *shape, void **params) {
  for (int i = 0; i < 3; i++) {
    if (!shape->grid[i] || !shape->block[i])
      return oci_error(OC_E_INVALID, "launch of %s: grid or block has a dimension of 0", sig->name);
  }
  if (sig->param_count && !params)
    return oci_error(OC_E_INVALID, "launch of %s: it takes %" PRIu32 " parameters, and params is NULL",
                     sig->name, sig->param_count);
  for (uint32_t i = 0; i < sig->param_count; i++) {
    if (!params[i])
      return oci_error(OC_E_INVALID, "launch of %s: parameter %" PRIu32 " of %" PRIu32 " is NULL", sig->name,
                       i, sig->param_count);
  }
  return OC_OK;
}

oc_status oci_device_launch(struct device *d, oc_kernel kernel, const oc_host_launch *shape, oc_stream stream,
                            void **params) {
  struct kernel_ref k;
  bool stale;
  oc_status st = oci_devkernel_resolve(&d->modules, kernel, &k, &stale);
  if (stale) __atomic_add_fetch(&d->stale_launches, 1, __ATOMIC_RELAXED);
  if (st == OC_OK) st = check_launch(k.sig, shape, params);
  if (st != OC_OK) return st;

  struct stream *s;
  struct devop *op;
  st = oci_devstream_open(&d->streams, stream, copies_at(k.sig) + k.sig->launch_bytes, &s, &op);
  if (st != OC_OK || !op) return st;
  fill_launch((struct launch_op *)op, d, &k, shape, params);
  oci_devstream_close(s);
  return OC_OK;
}

/* ---- copies ---- */

struct copy_op {
  struct devop op;
  void *dst;
  const void *src;
  size_t n;
  uint8_t value;
};

static oc_status run_copy(struct devop *op) {
  const struct copy_op *c = (const struct copy_op *)op;
  memmove(c->dst, c->src, c->n);
  return OC_OK;
}

static oc_status run_fill(struct devop *op) {
  const struct copy_op *c = (const struct copy_op *)op;
  memset(c->dst, c->value, c->n);
  return OC_OK;
}

static oc_status queue_copy(struct device *d, const struct copy_op *what, oc_stream stream) {
  struct stream *s;
  struct devop *op;
  oc_status st = oci_devstream_open(&d->streams, stream, sizeof *what, &s, &op);
  if (st != OC_OK || !op) return st;
  struct copy_op *c = (struct copy_op *)op;
  size_t bytes = op->bytes;
  *c = *what;
  c->op.bytes = bytes;
  oci_devstream_close(s);
  return OC_OK;
}

static void *host_address(oc_devptr p) {
  return (void *)(uintptr_t)p;
}

oc_status oci_device_copy_in(struct device *d, oc_devptr dst, const void *src, size_t n, oc_stream s) {
  if (!src) return oci_error(OC_E_INVALID, "copy from host: the source is NULL");
  oc_status st = oci_devmem_check(&d->memory, "copy from host: destination", dst, n);
  if (st != OC_OK) return st;
  return queue_copy(d, &(struct copy_op){{.run = run_copy}, .dst = host_address(dst), .src = src, .n = n}, s);
}

oc_status oci_device_copy_out(struct device *d, void *dst, oc_devptr src, size_t n, oc_stream s) {
  if (!dst) return oci_error(OC_E_INVALID, "copy to host: the destination is NULL");
  oc_status st = oci_devmem_check(&d->memory, "copy to host: source", src, n);
  if (st != OC_OK) return st;
  return queue_copy(d, &(struct copy_op){{.run = run_copy}, .dst = dst, .src = host_address(src), .n = n}, s);
}

oc_status oci_device_copy(struct device *d, oc_devptr dst, oc_devptr src, size_t n, oc_stream s) {
  oc_status st = oci_devmem_check(&d->memory, "copy on the device: destination", dst, n);
  if (st == OC_OK) st = oci_devmem_check(&d->memory, "copy on the device: source", src, n);
  if (st != OC_OK) return st;
  return queue_copy(
      d, &(struct copy_op){{.run = run_copy}, .dst = host_address(dst), .src = host_address(src), .n = n}, s);
}

oc_status oci_device_fill(struct device *d, oc_devptr dst, uint8_t value, size_t n, oc_stream s) {
  oc_status st = oci_devmem_check(&d->memory, "memset: destination", dst, n);
  if (st != OC_OK) return st;
  return queue_copy(d, &(struct copy_op){{.run = run_fill}, .dst = host_address(dst), .n = n, .value = value},
                    s);
}
