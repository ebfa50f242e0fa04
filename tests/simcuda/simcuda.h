/* SPDX-License-Identifier: MIT */
/*
 * The simulated CUDA driver: a libcuda.so.1 over liboc's embedded device. Tests put its folder into LD_LIBRARY_PATH; the
 * CUDA backend finds it as it finds the real one, and calls it by the same symbols.
 *
 * It answers as the driver's reference and programming guide say, and is stricter where a program must not count on
 * more: memory is unmapped when it is freed and freeing waits for nothing; a handle or an address belongs to its
 * context, and is refused in another; a shut down driver, or one in a forked child, aborts the process when it is
 * called. Not simulated: the implicit order between the legacy stream and blocking ones, the per-thread default stream,
 * fatbins, child graphs. Each context has its device's memory to itself. A cubin's kernels are known by its sections
 * (.text.NAME), PTX's by its .entry directives; both run the C function registered under that name.
 *
 * Environment, read at the first call:
 *   SIMCUDA_DEVICES=n                              devices, 0 to 8; 1
 *   SIMCUDA_DEVICE_BYTES=n, SIMCUDA_MANAGED_BYTES=n   16 GiB, 64 GiB
 *   SIMCUDA_RECYCLE=1 SIMCUDA_CHUNKS=1 SIMCUDA_POISON=1 SIMCUDA_INTEGRATED=1
 *   SIMCUDA_MANAGED=no|fails|exclusive             no attribute; "not supported" at the call; no concurrent access
 *   SIMCUDA_FAIL=function:nth:count:code[,...]     as simcuda_fail on every device
 *   SIMCUDA_DELAY=function:nanoseconds[,...]       as simcuda_delay
 *   SIMCUDA_MISSING_FUNCTION=null|bad              as simcuda_missing_function
 *   SIMCUDA_KERNELS=file                           a shared object that exports `const oc_host_module *const
 *                                                  simcuda_kernels[]`, NULL at its end
 */
#ifndef TESTS_SIMCUDA_H
#define TESTS_SIMCUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "liboc/cuda_abi.h"
#include "liboc/oc.h"

#ifndef CUDA_ABI_OWN_TYPES
typedef struct cu_graph_s *cu_graph;
typedef struct cu_graph_exec_s *cu_graph_exec;
#endif

enum { SIMCUDA_DEVICES_MAX = 8, SIMCUDA_ANY = -1 };

enum simcuda_managed { SIMCUDA_MANAGED_YES, SIMCUDA_MANAGED_NO, SIMCUDA_MANAGED_FAILS, SIMCUDA_MANAGED_EXCLUSIVE };

struct simcuda_options {
  size_t device_bytes, managed_bytes;   /* 0: the default */
  bool recycle, chunks, poison;         /* as OC_HOST_RECYCLE, OC_HOST_CHUNKS, OC_HOST_POISON */
  bool integrated;
  enum simcuda_managed managed;
};

struct simcuda_stats {
  uint64_t device_used, managed_used, device_blocks, managed_blocks, host_blocks;
  uint64_t modules, streams, events, graphs;
  uint64_t launches, stale_launches, bad_launches;   /* bad: of what never was a function */
  uint64_t bad_frees;
};

/* X(name, result, parameters): what a program reaches by dlsym. Ordinals: SIMCUDA_ANY is every device, and calls that
   name none. `context`: a CUcontext. A `bool` result is false for names, ordinals and handles that there are not. */
#define SIMCUDA_CONTROLS(X)                                                                                          \
  /* devices from now on */                                                                                          \
  X(simcuda_set_devices, void, (int count))                                                                          \
  /* attributes at once, the rest for contexts made from now on; NULL: defaults */                                   \
  X(simcuda_configure, bool, (int ordinal, const struct simcuda_options *options))                                   \
  /* C functions behind the entries of images; the table must stay. A later table's name wins. */                    \
  X(simcuda_register, void, (const oc_host_module *table))                                                           \
  /* the nth next call (1: the next) of that function on that device, and the count - 1 after it (0: all), answers   \
     `code` and does nothing. 0: success with outputs of zeros. nth 0: no more. */                                   \
  X(simcuda_fail, bool, (int ordinal, const char *function, uint64_t nth, uint64_t count, int code))                 \
  X(simcuda_delay, bool, (int ordinal, const char *function, uint64_t ns))                                           \
  /* calls so far; function NULL: of all together */                                                                 \
  X(simcuda_calls, uint64_t, (int ordinal, const char *function))                                                    \
  /* forgets a device's orders, delays and counts */                                                                 \
  X(simcuda_forget, bool, (int ordinal))                                                                             \
  X(simcuda_stall, bool, (void *context, void *stream, bool stalled))                                                \
  X(simcuda_step, bool, (void *context, void *stream, uint32_t n))                                                   \
  X(simcuda_read_stats, bool, (void *context, struct simcuda_stats *out))                                            \
  /* a sticky error: every call in the context answers it from now on; 0: no more */                                 \
  X(simcuda_lose, bool, (void *context, int code))                                                                   \
  /* as at the end of a process: calls answer "deinitialized"; the first one, and with `strict` any later one aborts */ \
  X(simcuda_shut_down, void, (bool strict))                                                                          \
  /* calls answered "deinitialized" so far */                                                                        \
  X(simcuda_calls_after_shut_down, uint64_t, (void))                                                                 \
  /* a missing function's lookup: 0 "not found"; 1 success and NULL; 2 success and a handle of nothing */            \
  X(simcuda_missing_function, void, (int how))                                                                       \
  /* retains of the primary context without their release; its device */                                            \
  X(simcuda_primary_refs, int, (int ordinal))                                                                        \
  X(simcuda_ordinal, int, (void *context))

/* X(field, symbol, parameters): functions of the driver that tests call and the backend does not. */
#define CUDA_MORE_FUNCTIONS(X)                                                                                       \
  X(driver_version, cuDriverGetVersion, (int *version))                                                              \
  X(device_name, cuDeviceGetName, (char *name, int bytes, cu_device device))                                         \
  X(device_total, cuDeviceTotalMem_v2, (size_t *bytes, cu_device device))                                            \
  X(primary_reset, cuDevicePrimaryCtxReset_v2, (cu_device device))                                                   \
  X(context_create, cuCtxCreate_v2, (cu_context *context, unsigned flags, cu_device device))                         \
  X(context_destroy, cuCtxDestroy_v2, (cu_context context))                                                          \
  X(context_set, cuCtxSetCurrent, (cu_context context))                                                              \
  X(module_load_data, cuModuleLoadData, (cu_module *module, const void *image))                                      \
  X(stream_query, cuStreamQuery, (cu_stream stream))                                                                 \
  X(begin_capture, cuStreamBeginCapture_v2, (cu_stream stream, cu_capture_mode mode))                                \
  X(end_capture, cuStreamEndCapture, (cu_stream stream, cu_graph *graph))                                            \
  X(event_synchronize, cuEventSynchronize, (cu_event event))                                                         \
  X(graph_instantiate, cuGraphInstantiateWithFlags, (cu_graph_exec *exec, cu_graph graph, unsigned long long flags)) \
  X(graph_launch, cuGraphLaunch, (cu_graph_exec exec, cu_stream stream))                                             \
  X(graph_exec_destroy, cuGraphExecDestroy, (cu_graph_exec exec))                                                    \
  X(graph_destroy, cuGraphDestroy, (cu_graph graph))

struct cuda_more {
#define CUDA_MORE_FIELD(field, symbol, params) cu_result (*field) params;
  CUDA_MORE_FUNCTIONS(CUDA_MORE_FIELD)
#undef CUDA_MORE_FIELD
};

/* The driver that this process loads, to call as an engine does; NULL where there is none. From libfixture. */
const struct cuda_driver *cuda_direct(void);
const struct cuda_more *cuda_more(void);

struct simcuda {
#define SIMCUDA_FIELD(name, result, params) result (*name) params;
  SIMCUDA_CONTROLS(SIMCUDA_FIELD)
#undef SIMCUDA_FIELD
};

/* The controls of the driver that this process loads; NULL where that is no simulated one. From libfixture. */
const struct simcuda *simcuda_find(void);

#endif
