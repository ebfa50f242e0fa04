/* SPDX-License-Identifier: MIT */
/* Memory, modules, streams, events and work: each function asks whether a knob or a capture has the answer, then the
   device. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "rcu/error.h"
#include "rcu/mem.h"
#include "tests/simcuda/sim.h"

/* ---- error words ---- */

struct error_words {
  cu_result code;
  const char *name, *text;
};

static const struct error_words error_words[] = {
  {CU_OK, "CUDA_SUCCESS", "no error"},
  {CU_E_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
  {CU_E_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
  {CU_E_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
  {CU_E_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
  {CU_E_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
  {CU_E_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
  {CU_E_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
  {CU_E_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
  {CU_E_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
  {CU_E_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
  {CU_E_INVALID_SOURCE, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid"},
  {CU_E_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
  {CU_E_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
  {CU_E_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
  {CU_E_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
  {CU_E_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
  {CU_E_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
  {CU_E_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
  {CU_E_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
  {CU_E_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
  {CU_E_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
   "operation failed due to a previous error during capture"},
  {CU_E_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate captures"},
  {CU_E_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
  {CU_E_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
  {CU_E_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
   "dependency created on uncaptured work in another stream"},
  {CU_E_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
  {CU_E_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
  {CU_E_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
   "attempt to terminate a thread-local capture sequence from another thread"},
  {CU_E_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error_words *words_of(cu_result code) {
  for (size_t i = 0; i < sizeof error_words / sizeof error_words[0]; i++)
    if (error_words[i].code == code) return &error_words[i];
  return NULL;
}

cu_result cuGetErrorName(cu_result code, const char **name) {
  cu_result r;
  if (sim_answered(FN_cuGetErrorName, NULL, name, sizeof *name, &r)) return r;
  const struct error_words *w = words_of(code);
  *name = w ? w->name : NULL;
  return w ? CU_OK : CU_E_INVALID_VALUE;
}

cu_result cuGetErrorString(cu_result code, const char **text) {
  cu_result r;
  if (sim_answered(FN_cuGetErrorString, NULL, text, sizeof *text, &r)) return r;
  const struct error_words *w = words_of(code);
  *text = w ? w->text : NULL;
  return w ? CU_OK : CU_E_INVALID_VALUE;
}

/* ---- memory ---- */

static cu_result allocate(struct sim_context *c, enum mem_kind kind, size_t bytes, uint64_t *out) {
  return sim_result(oci_devmem_alloc(&c->device->memory, kind, bytes, out), CU_E_INVALID_VALUE);
}

cu_result cuMemAlloc_v2(cu_deviceptr *ptr, size_t bytes) {
  struct sim_context *c;
  cu_result r;
  uint64_t at;
  if (sim_answered(FN_cuMemAlloc_v2, &c, ptr, sizeof *ptr, &r)) return r;
  r = allocate(c, MEM_DEVICE, bytes, &at);
  if (r == CU_OK) *ptr = at;
  return r;
}

cu_result cuMemAllocManaged(cu_deviceptr *ptr, size_t bytes, unsigned flags) {
  struct sim_context *c;
  cu_result r;
  uint64_t at;
  if (sim_answered(FN_cuMemAllocManaged, &c, ptr, sizeof *ptr, &r)) return r;
  if (flags != 1 && flags != 2) return CU_E_INVALID_VALUE;
  enum simcuda_managed managed = sim_options(c->ordinal)->managed;
  if (managed == SIMCUDA_MANAGED_NO || managed == SIMCUDA_MANAGED_FAILS) return CU_E_NOT_SUPPORTED;
  r = allocate(c, MEM_MANAGED, bytes, &at);
  if (r == CU_OK) *ptr = at;
  return r;
}

cu_result cuMemFree_v2(cu_deviceptr ptr) {
  struct sim_context *c;
  cu_result r;
  if (sim_answered(FN_cuMemFree_v2, &c, NULL, 0, &r)) return r;
  if (!ptr) return CU_OK;
  return sim_result(oci_devmem_free(&c->device->memory, ptr, false), CU_E_INVALID_VALUE);
}

cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  struct sim_context *c;
  cu_result r;
  uint64_t used, blocks;
  if (sim_answered(FN_cuMemGetInfo_v2, &c, free_bytes, sizeof *free_bytes, &r)) return r;
  if (!total_bytes) return CU_E_INVALID_VALUE;
  oci_devmem_usage(&c->device->memory, MEM_DEVICE, &used, &blocks);
  *total_bytes = c->device->memory.opt.capacity[MEM_DEVICE];
  *free_bytes = *total_bytes - used;
  return CU_OK;
}

cu_result cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags) {
  struct sim_context *c;
  cu_result r;
  uint64_t at;
  if (sim_answered(FN_cuMemHostAlloc, &c, ptr, sizeof *ptr, &r)) return r;
  if (flags > 7) return CU_E_INVALID_VALUE;
  r = allocate(c, MEM_HOST, bytes, &at);
  if (r == CU_OK) *ptr = (void *)(uintptr_t)at;
  return r;
}

cu_result cuMemFreeHost(void *ptr) {
  struct sim_context *c;
  cu_result r;
  if (sim_answered(FN_cuMemFreeHost, &c, NULL, 0, &r)) return r;
  return sim_result(oci_devmem_free(&c->device->memory, (uintptr_t)ptr, true), CU_E_INVALID_VALUE);
}

/* ---- modules ---- */

static cu_result load(struct sim_context *c, cu_module *out, const void *image, char *log, size_t log_bytes) {
  char words[512] = "";
  oc_module m;
  if (!image) return CU_E_INVALID_VALUE;
  cu_result r = sim_load_image(c, image, &m, words, sizeof words);
  if (log && log_bytes) snprintf(log, log_bytes, "%s%s", words, words[0] ? " \n" : "");   /* the driver's own end with a newline */
  if (r == CU_OK) *out = sim_handle(c, m);
  return r;
}

cu_result cuModuleLoadDataEx(cu_module *module, const void *image, unsigned count, cu_jit_option *options,
                             void **values) {
  struct sim_context *c;
  cu_result r;
  char *log = NULL;
  size_t log_bytes = 0;
  if (sim_answered(FN_cuModuleLoadDataEx, &c, module, sizeof *module, &r)) return r;
  if (count && (!options || !values)) return CU_E_INVALID_VALUE;
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == CU_JIT_ERROR_LOG) log = values[i];
    if (options[i] == CU_JIT_ERROR_LOG_BYTES) log_bytes = (uintptr_t)values[i];
  }
  return load(c, module, image, log, log_bytes);
}

cu_result cuModuleLoadData(cu_module *module, const void *image) {
  struct sim_context *c;
  cu_result r;
  if (sim_answered(FN_cuModuleLoadData, &c, module, sizeof *module, &r)) return r;
  return load(c, module, image, NULL, 0);
}

cu_result cuModuleUnload(cu_module module) {
  struct sim_context *c;
  cu_result r;
  void *core;
  if (sim_answered(FN_cuModuleUnload, &c, NULL, 0, &r)) return r;
  if (!sim_core(c, module, &core)) return CU_E_INVALID_HANDLE;
  return sim_result(oci_devmodule_unload(&c->device->modules, core), CU_E_INVALID_HANDLE);
}

/* A handle that is none: no context has the tag 0. */
#define NO_FUNCTION ((cu_function)(uintptr_t)0xBADF00D0)

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name) {
  struct sim_context *c;
  cu_result r;
  void *core;
  oc_kernel k;
  if (sim_answered(FN_cuModuleGetFunction, &c, function, sizeof *function, &r)) return r;
  if (!name) return CU_E_INVALID_VALUE;
  if (!sim_core(c, module, &core)) return CU_E_INVALID_HANDLE;
  r = sim_result(oci_devmodule_function(&c->device->modules, core, name, &k), CU_E_INVALID_HANDLE);
  int missing = r == CU_E_NOT_FOUND ? sim_missing_function() : 0;
  if (r == CU_OK) *function = sim_handle(c, k);
  else if (missing) *function = missing == 1 ? NULL : NO_FUNCTION;
  return missing ? CU_OK : r;
}

/* ---- streams ---- */

static bool note_blocking(struct sim_context *c, oc_stream s) {
  struct sim_stream *b = oci_alloc(NULL, sizeof *b);
  if (!b) return false;
  b->handle = s;
  pthread_mutex_lock(&sim_lock);
  b->next = c->blocking;
  c->blocking = b;
  pthread_mutex_unlock(&sim_lock);
  return true;
}

static void forget_blocking(struct sim_context *c, oc_stream s) {
  pthread_mutex_lock(&sim_lock);
  struct sim_stream **at = &c->blocking;
  while (*at && (*at)->handle != s) at = &(*at)->next;
  struct sim_stream *gone = *at;
  if (gone) *at = gone->next;
  pthread_mutex_unlock(&sim_lock);
  if (gone) oci_free(NULL, gone, sizeof *gone);
}

cu_result cuStreamCreate(cu_stream *stream, unsigned flags) {
  struct sim_context *c;
  cu_result r;
  oc_stream s;
  if (sim_answered(FN_cuStreamCreate, &c, stream, sizeof *stream, &r)) return r;
  if (flags & ~(unsigned)CU_STREAM_NONBLOCKING) return CU_E_INVALID_VALUE;
  r = sim_result(oci_devstream_create(&c->device->streams, &s), CU_E_INVALID_VALUE);
  if (r == CU_OK && !flags && !note_blocking(c, s)) r = CU_E_OUT_OF_MEMORY;
  if (r == CU_OK) *stream = sim_handle(c, s);
  return r;
}

cu_result cuStreamDestroy_v2(cu_stream stream) {
  struct sim_context *c;
  cu_result r;
  oc_stream s;
  if (sim_answered(FN_cuStreamDestroy_v2, &c, NULL, 0, &r)) return r;
  r = sim_stream(c, stream, &s);
  if (r == CU_OK && !s) r = CU_E_INVALID_HANDLE;
  if (r == CU_OK) r = sim_capture_stream_wait(c, s);
  if (r) return r;
  forget_blocking(c, s);
  return sim_result(oci_devstream_destroy(&c->device->streams, s), CU_E_INVALID_HANDLE);
}

cu_result cuStreamSynchronize(cu_stream stream) {
  struct sim_context *c;
  cu_result r;
  oc_stream s;
  if (sim_answered(FN_cuStreamSynchronize, &c, NULL, 0, &r)) return r;
  r = sim_stream(c, stream, &s);
  if (r == CU_OK) r = sim_capture_stream_wait(c, s);
  return r ? r : sim_result(oci_devstream_synchronize(&c->device->streams, s), CU_E_INVALID_HANDLE);
}

/* By an event of its own. */
static cu_result query_stream(struct sim_context *c, oc_stream s) {
  oc_event e;
  oc_status st = oci_devevent_create(&c->device->streams, &e);
  if (st) return sim_result(st, CU_E_UNKNOWN);
  st = oci_devevent_record(&c->device->streams, e, s);
  if (!st) st = oci_devevent_query(&c->device->streams, e);
  (void)oci_devevent_destroy(&c->device->streams, e);
  return sim_result(st, CU_E_INVALID_HANDLE);
}

cu_result cuStreamQuery(cu_stream stream) {
  struct sim_context *c;
  cu_result r;
  oc_stream s;
  if (sim_answered(FN_cuStreamQuery, &c, NULL, 0, &r)) return r;
  r = sim_stream(c, stream, &s);
  if (r == CU_OK) r = sim_capture_stream_wait(c, s);
  return r ? r : query_stream(c, s);
}

cu_result cuCtxSynchronize(void) {
  struct sim_context *c;
  cu_result r;
  if (sim_answered(FN_cuCtxSynchronize, &c, NULL, 0, &r)) return r;
  r = sim_capture_context_wait(c);
  return r ? r : sim_result(oci_devstreams_synchronize(&c->device->streams), CU_E_INVALID_HANDLE);
}

/* ---- events ---- */

cu_result cuEventCreate(cu_event *event, unsigned flags) {
  struct sim_context *c;
  cu_result r;
  oc_event e;
  if (sim_answered(FN_cuEventCreate, &c, event, sizeof *event, &r)) return r;
  if (flags > 7) return CU_E_INVALID_VALUE;
  r = sim_result(oci_devevent_create(&c->device->streams, &e), CU_E_INVALID_VALUE);
  if (r == CU_OK) *event = sim_handle(c, e);
  return r;
}

cu_result cuEventDestroy_v2(cu_event event) {
  struct sim_context *c;
  cu_result r;
  void *e;
  if (sim_answered(FN_cuEventDestroy_v2, &c, NULL, 0, &r)) return r;
  if (!sim_core(c, event, &e)) return CU_E_INVALID_HANDLE;
  r = sim_result(oci_devevent_destroy(&c->device->streams, e), CU_E_INVALID_HANDLE);
  if (r == CU_OK) sim_capture_forget_event(c, e);
  return r;
}

cu_result cuEventRecord(cu_event event, cu_stream stream) {
  struct sim_context *c;
  cu_result r;
  void *e;
  oc_stream s;
  bool captured;
  if (sim_answered(FN_cuEventRecord, &c, NULL, 0, &r)) return r;
  if (!sim_core(c, event, &e)) return CU_E_INVALID_HANDLE;
  r = sim_stream(c, stream, &s);
  if (r == CU_OK) r = sim_capture_record(c, e, s, &captured);
  if (r || captured) return r;
  return sim_result(oci_devevent_record(&c->device->streams, e, s), CU_E_INVALID_HANDLE);
}

cu_result cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned flags) {
  struct sim_context *c;
  cu_result r;
  void *e;
  oc_stream s;
  bool captured;
  if (sim_answered(FN_cuStreamWaitEvent, &c, NULL, 0, &r)) return r;
  if (flags) return CU_E_INVALID_VALUE;
  if (!sim_core(c, event, &e)) return CU_E_INVALID_HANDLE;
  r = sim_stream(c, stream, &s);
  if (r == CU_OK) r = sim_capture_wait(c, s, e, &captured);
  if (r || captured) return r;
  return sim_result(oci_devevent_wait(&c->device->streams, s, e), CU_E_INVALID_HANDLE);
}

cu_result cuEventQuery(cu_event event) {
  struct sim_context *c;
  cu_result r;
  void *e;
  if (sim_answered(FN_cuEventQuery, &c, NULL, 0, &r)) return r;
  if (!sim_core(c, event, &e)) return CU_E_INVALID_HANDLE;
  r = sim_capture_event_query(c, e);
  return r ? r : sim_result(oci_devevent_query(&c->device->streams, e), CU_E_INVALID_HANDLE);
}

/* By making a stream of its own wait for it. */
static cu_result wait_event(struct sim_context *c, oc_event e) {
  struct streams *ss = &c->device->streams;
  oc_stream s;
  oc_status st = oci_devstream_create(ss, &s);
  if (st) return sim_result(st, CU_E_UNKNOWN);
  st = oci_devevent_wait(ss, s, e);
  if (!st) st = oci_devstream_synchronize(ss, s);
  (void)oci_devstream_destroy(ss, s);
  return sim_result(st, CU_E_INVALID_HANDLE);
}

cu_result cuEventSynchronize(cu_event event) {
  struct sim_context *c;
  cu_result r;
  void *e;
  if (sim_answered(FN_cuEventSynchronize, &c, NULL, 0, &r)) return r;
  if (!sim_core(c, event, &e)) return CU_E_INVALID_HANDLE;
  r = sim_capture_event_query(c, e);
  return r ? r : wait_event(c, e);
}

/* ---- work ---- */

/* The function, or what a launch of it answers. */
static cu_result find_function(struct sim_context *c, cu_function function, oc_kernel *out, struct kernel_ref *ref) {
  void *core;
  bool stale = false;
  bool ours = sim_core(c, function, &core);
  *out = core;
  if (ours && oci_devkernel_resolve(&c->device->modules, core, ref, &stale) == OC_OK) return CU_OK;
  if (stale) __atomic_add_fetch(&c->device->stale_launches, 1, __ATOMIC_RELAXED);
  else __atomic_add_fetch(&c->bad_launches, 1, __ATOMIC_RELAXED);
  return CU_E_INVALID_HANDLE;
}

static bool has_params(const struct kernel_ref *ref, void **params) {
  for (uint32_t i = 0; i < ref->sig->param_count; i++)
    if (!params || !params[i]) return false;
  return true;
}

cu_result cuLaunchKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream stream, void **params,
                         void **extra) {
  struct sim_context *c;
  struct kernel_ref ref;
  cu_result r;
  oc_kernel k;
  oc_stream s;
  bool captured;
  if (sim_answered(FN_cuLaunchKernel, &c, NULL, 0, &r)) return r;
  r = find_function(c, function, &k, &ref);
  if (r == CU_OK) r = sim_stream(c, stream, &s);
  if (r) return r;
  if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z || extra || !has_params(&ref, params))
    return CU_E_INVALID_VALUE;
  oc_host_launch shape = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  r = sim_capture_work(c, s, &captured);
  if (r) return r;
  if (!captured) return sim_result(oci_device_launch(c->device, k, &shape, s, params), CU_E_INVALID_HANDLE);
  sim_capture_launch(c, s, k, &shape, ref.sig, params);
  return CU_OK;
}

/* A copy or fill of device ranges that are checked at the call, captured or not. */
static cu_result move(struct sim_context *c, enum sim_copy kind, uint64_t dst, uint64_t src, uint8_t value, size_t n,
                      cu_stream stream) {
  struct device *d = c->device;
  oc_stream s;
  bool captured;
  bool device_dst = kind != SIM_COPY_OUT, device_src = kind == SIM_COPY_OUT || kind == SIM_COPY;
  cu_result r = sim_stream(c, stream, &s);
  if (r) return r;
  if (n == 0) return CU_OK;
  if (device_dst && oci_devmem_check(&d->memory, "destination", dst, n) != OC_OK) return CU_E_INVALID_VALUE;
  if (device_src && oci_devmem_check(&d->memory, "source", src, n) != OC_OK) return CU_E_INVALID_VALUE;
  r = sim_capture_work(c, s, &captured);
  if (r) return r;
  if (captured) {
    sim_capture_copy(c, s, kind, dst, src, value, n);
    return CU_OK;
  }
  switch (kind) {
    case SIM_COPY_IN: return sim_result(oci_device_copy_in(d, dst, (const void *)(uintptr_t)src, n, s), CU_E_INVALID_VALUE);
    case SIM_COPY_OUT: return sim_result(oci_device_copy_out(d, (void *)(uintptr_t)dst, src, n, s), CU_E_INVALID_VALUE);
    case SIM_COPY: return sim_result(oci_device_copy(d, dst, src, n, s), CU_E_INVALID_VALUE);
    default: return sim_result(oci_device_fill(d, dst, value, n, s), CU_E_INVALID_VALUE);
  }
}

cu_result cuMemcpyHtoDAsync_v2(cu_deviceptr dst, const void *src, size_t bytes, cu_stream stream) {
  struct sim_context *c;
  cu_result r;
  if (sim_answered(FN_cuMemcpyHtoDAsync_v2, &c, NULL, 0, &r)) return r;
  return move(c, SIM_COPY_IN, dst, (uintptr_t)src, 0, bytes, stream);
}

cu_result cuMemcpyDtoHAsync_v2(void *dst, cu_deviceptr src, size_t bytes, cu_stream stream) {
  struct sim_context *c;
  cu_result r;
  if (sim_answered(FN_cuMemcpyDtoHAsync_v2, &c, NULL, 0, &r)) return r;
  return move(c, SIM_COPY_OUT, (uintptr_t)dst, src, 0, bytes, stream);
}

cu_result cuMemcpyDtoDAsync_v2(cu_deviceptr dst, cu_deviceptr src, size_t bytes, cu_stream stream) {
  struct sim_context *c;
  cu_result r;
  if (sim_answered(FN_cuMemcpyDtoDAsync_v2, &c, NULL, 0, &r)) return r;
  return move(c, SIM_COPY, dst, src, 0, bytes, stream);
}

cu_result cuMemsetD8Async(cu_deviceptr dst, unsigned char value, size_t bytes, cu_stream stream) {
  struct sim_context *c;
  cu_result r;
  if (sim_answered(FN_cuMemsetD8Async, &c, NULL, 0, &r)) return r;
  return move(c, SIM_FILL, dst, 0, value, bytes, stream);
}
