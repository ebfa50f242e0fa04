/* SPDX-License-Identifier: MIT */
/* The CUDA backend: the table of driver functions over the driver's own. */
#include "config.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "liboc/backend.h"
#include "liboc/cudacall.h"
#include "liboc/options.h"
#include "rcu/error.h"
#include "rcu/mem.h"

static cu_stream stream_of(oc_stream s) {
  return (cu_stream)(void *)s;
}

static cu_event event_of(oc_event e) {
  return (cu_event)(void *)e;
}

static oc_status no_output(const char *entry) {
  return oci_error(OC_E_INVALID, "%s: no place for the output", entry);
}

/* ---- memory ---- */

static oc_status cuda_alloc(void *self, size_t bytes, oc_devptr *out) {
  struct cuda_scope s;
  cu_deviceptr ptr = 0;
  if (!out) return no_output("alloc");
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  st = oci_cuda_leave(&s, s.driver->mem_alloc(&ptr, bytes), "cuMemAlloc_v2(%zu)", bytes);
  if (!st) *out = ptr;
  return st;
}

static oc_status cuda_alloc_managed(void *self, size_t bytes, oc_devptr *out) {
  struct cuda_scope s;
  cu_deviceptr ptr = 0;
  if (!out) return no_output("alloc_managed");
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  st = oci_cuda_leave(&s, s.driver->mem_alloc_managed(&ptr, bytes, CU_ATTACH_GLOBAL), "cuMemAllocManaged(%zu)", bytes);
  if (!st) *out = ptr;
  return st;
}

static oc_status cuda_free(void *self, oc_devptr ptr) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->mem_free(ptr), "cuMemFree_v2(0x%llx)", (unsigned long long)ptr);
}

/* Page-locked memory is the host's: out of memory is too. */
static oc_status cuda_host_alloc(void *self, size_t bytes, void **out) {
  struct cuda_scope s;
  void *ptr = NULL;
  if (!out) return no_output("host_alloc");
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  st = oci_cuda_leave(&s, s.driver->host_alloc(&ptr, bytes, CU_HOST_PORTABLE), "cuMemHostAlloc(%zu)", bytes);
  if (!st) *out = ptr;
  return st == OC_E_DEVICE_NOMEM ? OC_E_HOST_NOMEM : st;
}

static oc_status cuda_host_free(void *self, void *ptr) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->host_free(ptr), "cuMemFreeHost(%p)", ptr);
}

/* Bytes that the kernel says can be had, 0 if it does not. */
static size_t memory_available(void) {
  static const char key[] = "MemAvailable:";
  char text[4096];
  int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  text[n > 0 ? n : 0] = 0;
  const char *line = strstr(text, key);
  return line ? (size_t)strtoull(line + sizeof key - 1, NULL, 10) * 1024 : 0;
}

/* An integrated device shares the host's memory: the driver does not count what the page cache would give up. */
static void count_shared(size_t *left, size_t *total) {
  size_t available = memory_available();
  if (available > *left) *left = available;
  if (*left > *total) *total = *left;
}

static oc_status cuda_mem_info(void *self, size_t *free_bytes, size_t *total_bytes) {
  const struct cuda *c = self;
  struct cuda_scope s;
  size_t left = 0, total = 0;
  if (!free_bytes || !total_bytes) return no_output("mem_info");
  oc_status st = oci_cuda_enter(c, CUDA_RELAXED, &s);
  if (!st) st = oci_cuda_leave(&s, s.driver->mem_info(&left, &total), "cuMemGetInfo_v2");
  if (st) return st;
  if (c->integrated) count_shared(&left, &total);
  *free_bytes = left;
  *total_bytes = total;
  return OC_OK;
}

/* ---- modules ---- */

enum { JIT_LOG = 4096 };

static cu_result load(const struct cuda_scope *s, const void *image, char log[JIT_LOG], cu_module *m) {
  cu_jit_option options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES};
  void *values[] = {log, (void *)(uintptr_t)JIT_LOG};
  log[0] = 0;
  cu_result r = s->driver->module_load(m, image, 2, options, values);
  log[JIT_LOG - 1] = 0;
  return r;
}

static oc_status add_log(oc_status st, char *log) {
  size_t n = strlen(log);
  while (n > 0 && (log[n - 1] == '\n' || log[n - 1] == ' ')) log[--n] = 0;
  return st && n ? oci_error_add(st, "the compiler's log: %s", log) : st;
}

static oc_status load_image(const struct cuda *c, const void *image, size_t bytes, oc_module *out) {
  struct cuda_scope s;
  cu_module m = NULL;
  char log[JIT_LOG];
  oc_status st = oci_cuda_enter(c, CUDA_RELAXED, &s);
  if (st) return st;
  st = oci_cuda_leave(&s, load(&s, image, log, &m), "cuModuleLoadDataEx(%zu bytes)", bytes);
  if (!st) *out = (oc_module)(void *)m;
  return add_log(st, log);
}

static oc_status cuda_module_load(void *self, const void *image, size_t bytes, oc_module *out) {
  const void *given;
  char *copy;
  if (!out) return no_output("module_load");
  oc_status st = oci_cuda_image(image, bytes, &given, &copy);
  if (!st) st = load_image(self, given, bytes, out);
  oci_free(NULL, copy, bytes + 1);
  return st;
}

static oc_status cuda_module_unload(void *self, oc_module m) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->module_unload((cu_module)(void *)m), "cuModuleUnload(%p)", (void *)m);
}

static oc_status cuda_module_function(void *self, oc_module m, const char *func, oc_kernel *out) {
  struct cuda_scope s;
  cu_function f = NULL;
  if (!out) return no_output("module_function");
  if (!func) return oci_error(OC_E_INVALID, "module_function: the name is NULL");
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  st = oci_cuda_leave(&s, s.driver->module_function(&f, (cu_module)(void *)m, func), "cuModuleGetFunction(%p, %s)",
                      (void *)m, func);
  if (st) return st;
  if (!f) return oci_error(OC_E_NOT_FOUND, "cuModuleGetFunction(%p, %s): success, but a null handle", (void *)m, func);
  *out = (oc_kernel)(void *)f;
  return OC_OK;
}

static oc_status cuda_launch(void *self, oc_kernel k, const uint32_t grid[3], const uint32_t block[3],
                             uint32_t shared_bytes, oc_stream stream, void **params) {
  struct cuda_scope s;
  if (!grid || !block) return oci_error(OC_E_INVALID, "launch: %s is NULL", grid ? "block" : "grid");
  oc_status st = oci_cuda_enter(self, CUDA_PLAIN, &s);
  if (st) return st;
  return oci_cuda_leave(&s,
                        s.driver->launch((cu_function)(void *)k, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                         shared_bytes, stream_of(stream), params, NULL),
                        "cuLaunchKernel(%p, grid %ux%ux%u, block %ux%ux%u, %u bytes shared, stream %p)", (void *)k,
                        grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, (void *)stream);
}

/* ---- streams and events ---- */

static oc_status cuda_synchronize(void *self, oc_stream stream) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->stream_synchronize(stream_of(stream)), "cuStreamSynchronize(%p)", (void *)stream);
}

/* It would break any capture in the context, whatever the modes: the library drains streams where it knows them. */
static oc_status cuda_synchronize_all(void *self) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->context_synchronize(), "cuCtxSynchronize");
}

/* Also where the capture is broken, or where the legacy stream is asked about and another one captures. */
static oc_status cuda_capturing(void *self, oc_stream stream, bool *out) {
  struct cuda_scope s;
  cu_capture_status status = CU_CAPTURE_NONE;
  if (!out) return no_output("capturing");
  oc_status st = oci_cuda_enter(self, CUDA_PLAIN, &s);
  if (st) return st;
  st = oci_cuda_leave(&s, s.driver->stream_capturing(stream_of(stream), &status), "cuStreamIsCapturing(%p)", (void *)stream);
  if (st && st != OC_E_CAPTURING) return st;
  *out = st == OC_E_CAPTURING || status != CU_CAPTURE_NONE;
  return OC_OK;
}

static oc_status cuda_event_create(void *self, oc_event *out) {
  struct cuda_scope s;
  cu_event e = NULL;
  if (!out) return no_output("event_create");
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  st = oci_cuda_leave(&s, s.driver->event_create(&e, CU_EVENT_NO_TIMING), "cuEventCreate");
  if (!st) *out = (oc_event)(void *)e;
  return st;
}

static oc_status cuda_event_record(void *self, oc_event e, oc_stream stream) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->event_record(event_of(e), stream_of(stream)), "cuEventRecord(%p, stream %p)",
                        (void *)e, (void *)stream);
}

static oc_status cuda_event_query(void *self, oc_event e) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  cu_result r = s.driver->event_query(event_of(e));
  bool pending = r == CU_E_NOT_READY;
  st = oci_cuda_leave(&s, pending ? CU_OK : r, "cuEventQuery(%p)", (void *)e);
  return pending ? OC_MISS : st;
}

static oc_status cuda_event_wait(void *self, oc_stream stream, oc_event e) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->stream_wait(stream_of(stream), event_of(e), 0), "cuStreamWaitEvent(%p, event %p)",
                        (void *)stream, (void *)e);
}

static oc_status cuda_event_destroy(void *self, oc_event e) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->event_destroy(event_of(e)), "cuEventDestroy_v2(%p)", (void *)e);
}

static oc_status cuda_stream_create(void *self, oc_stream *out) {
  struct cuda_scope s;
  cu_stream stream = NULL;
  if (!out) return no_output("stream_create");
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  st = oci_cuda_leave(&s, s.driver->stream_create(&stream, CU_STREAM_NONBLOCKING), "cuStreamCreate");
  if (!st) *out = (oc_stream)(void *)stream;
  return st;
}

static oc_status cuda_stream_destroy(void *self, oc_stream stream) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_RELAXED, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->stream_destroy(stream_of(stream)), "cuStreamDestroy_v2(%p)", (void *)stream);
}

/* ---- copies ---- */

static oc_status cuda_copy_h2d(void *self, oc_devptr dst, const void *src, size_t n, oc_stream stream) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_PLAIN, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->copy_h2d(dst, src, n, stream_of(stream)), "cuMemcpyHtoDAsync_v2(0x%llx, %p, %zu)",
                        (unsigned long long)dst, src, n);
}

static oc_status cuda_copy_d2h(void *self, void *dst, oc_devptr src, size_t n, oc_stream stream) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_PLAIN, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->copy_d2h(dst, src, n, stream_of(stream)), "cuMemcpyDtoHAsync_v2(%p, 0x%llx, %zu)",
                        dst, (unsigned long long)src, n);
}

static oc_status cuda_copy_d2d(void *self, oc_devptr dst, oc_devptr src, size_t n, oc_stream stream) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_PLAIN, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->copy_d2d(dst, src, n, stream_of(stream)), "cuMemcpyDtoDAsync_v2(0x%llx, 0x%llx, %zu)",
                        (unsigned long long)dst, (unsigned long long)src, n);
}

static oc_status cuda_memset(void *self, oc_devptr dst, uint8_t value, size_t n, oc_stream stream) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter(self, CUDA_PLAIN, &s);
  if (st) return st;
  return oci_cuda_leave(&s, s.driver->memset_d8(dst, value, n, stream_of(stream)), "cuMemsetD8Async(0x%llx, %zu)",
                        (unsigned long long)dst, n);
}

/* ---- close ---- */

static const char *cuda_last_error(void *self) {
  (void)self;
  return oci_error_text();
}

static void release_primary(const struct cuda *c) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter_bare(c, &s);
  if (!st) st = oci_cuda_leave(&s, s.driver->primary_release(c->device), "cuDevicePrimaryCtxRelease_v2(%d)", c->device);
  if (st) oci_log(OCI_LOG_WARNING, "the primary context of device %d was not released: %s", c->device, oci_error_text());
}

static void cuda_close(void *self) {
  struct cuda *c = self;
  if (c->primary && !oci_cuda_shut_down(c->process)) release_primary(c);
  oci_free(NULL, c, sizeof *c);
}

static const oc_backend_ops cuda_ops = {
    .struct_size = sizeof(oc_backend_ops),
    .name = "cuda",
    .alloc = cuda_alloc,
    .free = cuda_free,
    .module_load = cuda_module_load,
    .module_unload = cuda_module_unload,
    .module_function = cuda_module_function,
    .alloc_managed = cuda_alloc_managed,
    .mem_info = cuda_mem_info,
    .synchronize = cuda_synchronize,
    .synchronize_all = cuda_synchronize_all,
    .capturing = cuda_capturing,
    .event_create = cuda_event_create,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .event_wait = cuda_event_wait,
    .event_destroy = cuda_event_destroy,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .copy_h2d = cuda_copy_h2d,
    .copy_d2h = cuda_copy_d2h,
    .copy_d2d = cuda_copy_d2d,
    .memset = cuda_memset,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .launch = cuda_launch,
    .last_error = cuda_last_error,
    .close = cuda_close,
};

/* ---- open ---- */

/* Asked with the driver in relaxed mode, and the context not yet current. */
static oc_status find_device(struct cuda *c, int ordinal) {
  struct cuda_scope s;
  int count = 0;
  oc_status st = oci_cuda_enter_bare(c, &s);
  if (st) return st;
  cu_result r = s.driver->device_count(&count);
  if (r) return oci_cuda_leave(&s, r, "cuDeviceGetCount");
  if (ordinal < 0 || ordinal >= count) {
    (void)oci_cuda_leave(&s, CU_OK, " ");
    if (count <= 0) return oci_error(OC_E_NO_DRIVER, "oc_backend_open_cuda: the CUDA driver has no device");
    return oci_error(OC_E_INVALID, "oc_backend_open_cuda: ordinal %d: the CUDA driver has %d device%s", ordinal, count,
                     count == 1 ? "" : "s");
  }
  return oci_cuda_leave(&s, s.driver->device_get(&c->device, ordinal), "cuDeviceGet(%d)", ordinal);
}

static oc_status retain_primary(struct cuda *c) {
  struct cuda_scope s;
  oc_status st = oci_cuda_enter_bare(c, &s);
  if (st) return st;
  st = oci_cuda_leave(&s, s.driver->primary_retain(&c->context, c->device), "cuDevicePrimaryCtxRetain(%d)", c->device);
  if (!st && !c->context)
    st = oci_error(OC_E_BACKEND, "cuDevicePrimaryCtxRetain(%d): success, but a null context", c->device);
  c->primary = !st;
  return st;
}

/* The engine's own: its device is the one that counts, whatever the ordinal. */
static oc_status adopt(struct cuda *c, void *context) {
  struct cuda_scope s;
  c->context = (cu_context)context;
  oc_status st = oci_cuda_enter(c, CUDA_RELAXED, &s);
  if (!st) st = oci_cuda_leave(&s, s.driver->context_device(&c->device), "cuCtxGetDevice");
  if (st != OC_E_DEVICE_LOST || oci_cuda_shut_down(c->process)) return st;
  oci_error_add(OC_E_INVALID, "the context %p given to oc_backend_open_cuda is none, or is destroyed", context);
  return OC_E_INVALID;
}

static oc_status ask(const struct cuda *c, cu_attribute attribute, bool *out) {
  struct cuda_scope s;
  int value = 0;
  oc_status st = oci_cuda_enter_bare(c, &s);
  if (!st) st = oci_cuda_leave(&s, s.driver->device_attribute(&value, attribute, c->device), "cuDeviceGetAttribute(%d)",
                               attribute);
  *out = !st && value != 0;
  return st;
}

/* Managed memory that the device and the host may not touch at once would forbid every host access while a kernel
   runs: then it counts as not there. */
static oc_status find_features(struct cuda *c) {
  bool managed, concurrent;
  oc_status st = ask(c, CU_ATTRIBUTE_MANAGED_MEMORY, &managed);
  if (!st) st = ask(c, CU_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, &concurrent);
  if (!st) st = ask(c, CU_ATTRIBUTE_INTEGRATED, &c->integrated);
  if (!st) c->managed = managed && concurrent;
  return st;
}

static oc_status make_backend(struct cuda *c, oc_backend **out) {
  oc_backend_ops ops = cuda_ops;
  oc_backend *b;
  if (!c->managed) ops.alloc_managed = NULL;
  oc_status st = oc_backend_create(&ops, c, &b);
  if (st) return st;
  oci_backend_set_cuda(b, c->context, (oc_stream)CU_STREAM_PER_THREAD_ONE);
  c->backend = b;
  *out = b;
  return OC_OK;
}

static oc_status find_context(struct cuda *c, const oc_cuda_options *o) {
  if (o->context) return adopt(c, o->context);
  oc_status st = find_device(c, o->ordinal);
  return st ? st : retain_primary(c);
}

oc_status oc_backend_open_cuda(const oc_cuda_options *opt, oc_backend **out) {
  if (!out) return oci_error(OC_E_INVALID, "oc_backend_open_cuda: out is NULL");
  oc_cuda_options o;
  struct cuda_process *p;
  oc_status st = OCI_OPTIONS(&o, opt, "oc_backend_open_cuda");
  if (st) return st;
  if (o.flags) return oci_error(OC_E_INVALID, "oc_backend_open_cuda: unknown flags 0x%x", o.flags);
  st = oci_cuda_load(&p);
  if (st) return st;
  struct cuda *c = oci_alloc(NULL, sizeof *c);
  if (!c) return oci_error(OC_E_HOST_NOMEM, "oc_backend_open_cuda: out of host memory");
  c->process = p;
  st = find_context(c, &o);
  if (!st) st = find_features(c);
  if (!st) st = make_backend(c, out);
  if (st) cuda_close(c);
  return st;
}
