/* SPDX-License-Identifier: MIT */
/*
 * sim_context: a CUcontext: a primary one, or one of cuCtxCreate. Never freed, so that a stale one is recognised; its
 *              device (memory, streams, modules) goes with it. tag marks its handles.
 * sim_thread:  a thread's stack of current contexts and its capture mode. Only the thread itself touches it.
 * sim_capture, sim_graph, sim_node, in capture.c: what is being recorded, and what was.
 *
 * sim_lock guards contexts, captures and tables of kernels; never held while waiting for the device or delaying.
 */
#ifndef TESTS_SIMCUDA_SIM_H
#define TESTS_SIMCUDA_SIM_H

#include <pthread.h>

#include "liboc/cuda_abi.h"
#include "liboc/device.h"
#include "tests/simcuda/simcuda.h"

#define SIM_PROTOTYPE(field, symbol, params) cu_result symbol params;
CUDA_FUNCTIONS(SIM_PROTOTYPE)
CUDA_MORE_FUNCTIONS(SIM_PROTOTYPE)
#undef SIM_PROTOTYPE
#define SIM_CONTROL(name, result, params) result name params;
SIMCUDA_CONTROLS(SIM_CONTROL)
#undef SIM_CONTROL

/* Everything exported: counted, and can be made to fail or take long. */
#define SIM_FUNCTIONS(X)                                                                                              \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGetCount) X(cuDeviceGet)            \
  X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceTotalMem_v2) X(cuDevicePrimaryCtxRetain)                       \
  X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxReset_v2) X(cuCtxCreate_v2) X(cuCtxDestroy_v2)                  \
  X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuCtxGetDevice)                \
  X(cuCtxSynchronize) X(cuThreadExchangeStreamCaptureMode) X(cuMemAlloc_v2) X(cuMemAllocManaged) X(cuMemFree_v2)      \
  X(cuMemGetInfo_v2) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuModuleLoadDataEx) X(cuModuleLoadData) X(cuModuleUnload)   \
  X(cuModuleGetFunction) X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamSynchronize) X(cuStreamQuery)              \
  X(cuStreamIsCapturing) X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuStreamWaitEvent) X(cuEventCreate)       \
  X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuEventDestroy_v2) X(cuMemcpyHtoDAsync_v2)                 \
  X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync_v2) X(cuMemsetD8Async) X(cuLaunchKernel) X(cuGraphInstantiateWithFlags) \
  X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphDestroy)

#define SIM_ENUM(name) FN_##name,
enum sim_function { SIM_FUNCTIONS(SIM_ENUM) SIM_FUNCTION_COUNT };
#undef SIM_ENUM

struct sim_context {
  struct sim_context *next;
  int ordinal;
  bool primary;
  unsigned refs;               /* of a primary one */
  unsigned tag;                /* 1 to 15: the top bits of its handles */
  bool alive;                  /* atomic */
  int sticky;                  /* atomic; CU_OK: none */
  uint64_t bad_launches;       /* atomic */
  struct device *device;       /* atomic; NULL unless alive */
  struct sim_stream *blocking; /* streams made without CU_STREAM_NON_BLOCKING */
};

struct sim_stream {
  struct sim_stream *next;
  oc_stream handle;            /* the device's */
};

enum { SIM_STACK = 32 };
struct sim_thread {
  struct sim_context *stack[SIM_STACK];
  unsigned depth;
  int mode;                    /* of captures */
};

extern pthread_mutex_t sim_lock;
extern __thread struct sim_thread sim_thread;

/* ---- knobs.c ---- */

/* What happens at the start of every function. True where that was all: *r is the answer. c NULL: the function needs no
   context; else *c is the current one. The output is zeroed for a success that is none. */
bool sim_answered(enum sim_function f, struct sim_context **c, void *out, size_t out_bytes, cu_result *r);
void sim_initialised(void);
int sim_device_count(void);
const struct simcuda_options *sim_options(int ordinal);
int sim_missing_function(void);

/* ---- context.c ---- */

struct sim_context *sim_current(void);
/* The context that the handle is of, or was of; NULL for none. */
struct sim_context *sim_context_of(const void *handle);

/* A handle of a context's stream, event, module or function, and back; false for another context's, or none. */
static inline void *sim_handle(const struct sim_context *c, const void *core) {
  return core ? (void *)((uintptr_t)core | (uintptr_t)c->tag << 60) : NULL;
}
static inline bool sim_core(const struct sim_context *c, const void *handle, void **core) {
  uintptr_t h = (uintptr_t)handle;
  *core = (void *)(h & (((uintptr_t)1 << 60) - 1));
  return h >> 60 == c->tag;
}

/* CU_E_INVALID_HANDLE unless the handle names a live stream of the context. NULL and 1 are the legacy stream: NULL. */
cu_result sim_stream(struct sim_context *c, cu_stream handle, oc_stream *out);
/* What the device's answer is called here; bad: for OC_E_INVALID. */
cu_result sim_result(oc_status st, cu_result bad);

/* ---- capture.c ---- */

/* CU_OK, or CU_E_CAPTURE_UNSUPPORTED, and breaks the captures that forbid it: for potentially unsafe calls. */
cu_result sim_unsafe(void);
/* Before work is queued on a stream. *captured: it is to be recorded instead. */
cu_result sim_capture_work(struct sim_context *c, oc_stream s, bool *captured);
void sim_capture_launch(struct sim_context *c, oc_stream s, oc_kernel k, const oc_host_launch *shape,
                        const struct signature *sig, void **params);
enum sim_copy { SIM_COPY_IN, SIM_COPY_OUT, SIM_COPY, SIM_FILL };
void sim_capture_copy(struct sim_context *c, oc_stream s, enum sim_copy kind, uint64_t dst, uint64_t src, uint8_t value,
                      size_t n);
/* Before a stream is waited for or asked; breaks a capture that it is part of. */
cu_result sim_capture_stream_wait(struct sim_context *c, oc_stream s);
/* Before the whole context is waited for; breaks all its captures. */
cu_result sim_capture_context_wait(struct sim_context *c);
/* Before an event is asked or waited for. */
cu_result sim_capture_event_query(struct sim_context *c, oc_event e);
/* Before it is recorded, or a stream is made to wait for it: *captured: that is all. */
cu_result sim_capture_record(struct sim_context *c, oc_event e, oc_stream s, bool *captured);
cu_result sim_capture_wait(struct sim_context *c, oc_stream s, oc_event e, bool *captured);
void sim_capture_forget_event(struct sim_context *c, oc_event e);
void sim_capture_forget_context(struct sim_context *c);
uint64_t sim_graphs(const struct sim_context *c);

/* ---- image.c ---- */

/* A module of the registered functions that the image names; words: the compiler's log. */
cu_result sim_load_image(struct sim_context *c, const void *image, oc_module *out, char *words, size_t bytes);
void sim_load_kernels(const char *file);

#endif
