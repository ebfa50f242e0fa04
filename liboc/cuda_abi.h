/* SPDX-License-Identifier: MIT */
/*
 * The part of the CUDA driver's binary interface that liboc uses, declared by ourselves: the exact symbols of
 * libcuda.so.1, versions included, so that no header's macros decide which function is meant. All of them are there
 * since CUDA 11.0. tests/cuda_abi_check.c compares this with a cuda.h, where a machine has one.
 *
 * cuda_driver: the functions, found once a process and never let go.
 */
#ifndef OCI_LIBOC_CUDA_ABI_H
#define OCI_LIBOC_CUDA_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef CUDA_ABI_OWN_TYPES       /* the check brings the header's, after comparing sizes */
typedef int cu_result;
typedef int cu_device;
typedef int cu_attribute;
typedef int cu_capture_mode;
typedef int cu_capture_status;
typedef int cu_jit_option;
typedef unsigned long long cu_deviceptr;
typedef struct cu_context_s *cu_context;
typedef struct cu_module_s *cu_module;
typedef struct cu_function_s *cu_function;
typedef struct cu_stream_s *cu_stream;
typedef struct cu_event_s *cu_event;
#endif

enum {
  CU_OK = 0,
  CU_E_INVALID_VALUE = 1,
  CU_E_OUT_OF_MEMORY = 2,
  CU_E_NOT_INITIALIZED = 3,
  CU_E_DEINITIALIZED = 4,
  CU_E_NO_DEVICE = 100,
  CU_E_INVALID_DEVICE = 101,
  CU_E_INVALID_IMAGE = 200,
  CU_E_INVALID_CONTEXT = 201,
  CU_E_NO_BINARY_FOR_GPU = 209,
  CU_E_ECC_UNCORRECTABLE = 214,
  CU_E_INVALID_PTX = 218,
  CU_E_NVLINK_UNCORRECTABLE = 220,
  CU_E_UNSUPPORTED_PTX_VERSION = 222,
  CU_E_CONTAINED = 226,
  CU_E_INVALID_SOURCE = 300,
  CU_E_INVALID_HANDLE = 400,
  CU_E_ILLEGAL_STATE = 401,
  CU_E_NOT_FOUND = 500,
  CU_E_NOT_READY = 600,
  CU_E_ILLEGAL_ADDRESS = 700,
  CU_E_LAUNCH_TIMEOUT = 702,
  CU_E_CONTEXT_IS_DESTROYED = 709,
  CU_E_ASSERT = 710,
  CU_E_HARDWARE_STACK_ERROR = 714,
  CU_E_ILLEGAL_INSTRUCTION = 715,
  CU_E_MISALIGNED_ADDRESS = 716,
  CU_E_INVALID_ADDRESS_SPACE = 717,
  CU_E_INVALID_PC = 718,
  CU_E_LAUNCH_FAILED = 719,
  CU_E_TENSOR_MEMORY_LEAK = 721,
  CU_E_NOT_SUPPORTED = 801,
  CU_E_MPS_CLIENT_TERMINATED = 810,
  CU_E_CAPTURE_UNSUPPORTED = 900,
  CU_E_CAPTURE_INVALIDATED = 901,
  CU_E_CAPTURE_MERGE = 902,
  CU_E_CAPTURE_UNMATCHED = 903,
  CU_E_CAPTURE_UNJOINED = 904,
  CU_E_CAPTURE_ISOLATION = 905,
  CU_E_CAPTURE_IMPLICIT = 906,
  CU_E_CAPTURED_EVENT = 907,
  CU_E_CAPTURE_WRONG_THREAD = 908,
  CU_E_EXTERNAL_DEVICE = 911,
  CU_E_UNKNOWN = 999
};

enum { CU_ATTRIBUTE_INTEGRATED = 18, CU_ATTRIBUTE_MANAGED_MEMORY = 83, CU_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89 };
enum { CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD_LOCAL = 1, CU_CAPTURE_RELAXED = 2 };
enum { CU_CAPTURE_NONE = 0, CU_CAPTURE_ACTIVE = 1, CU_CAPTURE_BROKEN = 2 };
enum { CU_JIT_ERROR_LOG = 5, CU_JIT_ERROR_LOG_BYTES = 6 };
enum { CU_EVENT_NO_TIMING = 2, CU_STREAM_NONBLOCKING = 1, CU_ATTACH_GLOBAL = 1, CU_HOST_PORTABLE = 1 };

/* Streams with a meaning. NULL is the legacy one, unless a program was built otherwise. */
#define CU_STREAM_LEGACY_ONE ((uintptr_t)1)
#define CU_STREAM_PER_THREAD_ONE ((uintptr_t)2)

/* X(field, symbol, parameters): everything that the backend calls. All return a cu_result. */
#define CUDA_FUNCTIONS(X)                                                                                          \
  X(init, cuInit, (unsigned flags))                                                                                \
  X(error_name, cuGetErrorName, (cu_result code, const char **name))                                               \
  X(error_string, cuGetErrorString, (cu_result code, const char **text))                                           \
  X(device_count, cuDeviceGetCount, (int *count))                                                                  \
  X(device_get, cuDeviceGet, (cu_device *device, int ordinal))                                                     \
  X(device_attribute, cuDeviceGetAttribute, (int *value, cu_attribute attribute, cu_device device))                \
  X(primary_retain, cuDevicePrimaryCtxRetain, (cu_context *context, cu_device device))                             \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (cu_device device))                                             \
  X(context_current, cuCtxGetCurrent, (cu_context *context))                                                       \
  X(context_push, cuCtxPushCurrent_v2, (cu_context context))                                                       \
  X(context_pop, cuCtxPopCurrent_v2, (cu_context *context))                                                        \
  X(context_device, cuCtxGetDevice, (cu_device *device))                                                           \
  X(context_synchronize, cuCtxSynchronize, (void))                                                                 \
  X(capture_mode, cuThreadExchangeStreamCaptureMode, (cu_capture_mode *mode))                                      \
  X(mem_alloc, cuMemAlloc_v2, (cu_deviceptr *ptr, size_t bytes))                                                   \
  X(mem_alloc_managed, cuMemAllocManaged, (cu_deviceptr *ptr, size_t bytes, unsigned flags))                       \
  X(mem_free, cuMemFree_v2, (cu_deviceptr ptr))                                                                    \
  X(mem_info, cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes))                                          \
  X(host_alloc, cuMemHostAlloc, (void **ptr, size_t bytes, unsigned flags))                                        \
  X(host_free, cuMemFreeHost, (void *ptr))                                                                         \
  X(module_load, cuModuleLoadDataEx, (cu_module *module, const void *image, unsigned count,                        \
                                      cu_jit_option *options, void **values))                                      \
  X(module_unload, cuModuleUnload, (cu_module module))                                                             \
  X(module_function, cuModuleGetFunction, (cu_function *function, cu_module module, const char *name))             \
  X(stream_create, cuStreamCreate, (cu_stream *stream, unsigned flags))                                            \
  X(stream_destroy, cuStreamDestroy_v2, (cu_stream stream))                                                        \
  X(stream_synchronize, cuStreamSynchronize, (cu_stream stream))                                                   \
  X(stream_capturing, cuStreamIsCapturing, (cu_stream stream, cu_capture_status *status))                          \
  X(stream_wait, cuStreamWaitEvent, (cu_stream stream, cu_event event, unsigned flags))                            \
  X(event_create, cuEventCreate, (cu_event *event, unsigned flags))                                                \
  X(event_record, cuEventRecord, (cu_event event, cu_stream stream))                                               \
  X(event_query, cuEventQuery, (cu_event event))                                                                   \
  X(event_destroy, cuEventDestroy_v2, (cu_event event))                                                            \
  X(copy_h2d, cuMemcpyHtoDAsync_v2, (cu_deviceptr dst, const void *src, size_t bytes, cu_stream stream))           \
  X(copy_d2h, cuMemcpyDtoHAsync_v2, (void *dst, cu_deviceptr src, size_t bytes, cu_stream stream))                 \
  X(copy_d2d, cuMemcpyDtoDAsync_v2, (cu_deviceptr dst, cu_deviceptr src, size_t bytes, cu_stream stream))          \
  X(memset_d8, cuMemsetD8Async, (cu_deviceptr dst, unsigned char value, size_t bytes, cu_stream stream))           \
  X(launch, cuLaunchKernel, (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,              \
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,          \
                             cu_stream stream, void **params, void **extra))

struct cuda_driver {
#define CUDA_FIELD(field, symbol, params) cu_result (*field) params;
  CUDA_FUNCTIONS(CUDA_FIELD)
#undef CUDA_FIELD
};

#endif
