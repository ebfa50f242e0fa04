/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/cudacall.h"

#include <stdarg.h>
#include <stdio.h>

#include "liboc/backend.h"
#include "rcu/error.h"

/* ---- what an answer means ---- */

/* Of an answer that is not CU_OK. */
static oc_status status_of(cu_result r) {
  switch (r) {
    case CU_E_OUT_OF_MEMORY: return OC_E_DEVICE_NOMEM;
    case CU_E_INVALID_VALUE:
    case CU_E_INVALID_DEVICE:
    case CU_E_INVALID_IMAGE:
    case CU_E_INVALID_PTX:
    case CU_E_INVALID_SOURCE:
    case CU_E_INVALID_HANDLE: return OC_E_INVALID;
    case CU_E_NOT_FOUND: return OC_E_NOT_FOUND;
    case CU_E_NO_BINARY_FOR_GPU:
    case CU_E_UNSUPPORTED_PTX_VERSION:
    case CU_E_NOT_SUPPORTED: return OC_E_UNSUPPORTED;
    /* No context, though ours was made current: it was destroyed, or the device was reset. */
    case CU_E_NOT_INITIALIZED:
    case CU_E_DEINITIALIZED:
    case CU_E_INVALID_CONTEXT:
    case CU_E_CONTEXT_IS_DESTROYED:
    /* Sticky: every further call would say the same. */
    case CU_E_ECC_UNCORRECTABLE:
    case CU_E_NVLINK_UNCORRECTABLE:
    case CU_E_CONTAINED:
    case CU_E_ILLEGAL_ADDRESS:
    case CU_E_LAUNCH_TIMEOUT:
    case CU_E_ASSERT:
    case CU_E_HARDWARE_STACK_ERROR:
    case CU_E_ILLEGAL_INSTRUCTION:
    case CU_E_MISALIGNED_ADDRESS:
    case CU_E_INVALID_ADDRESS_SPACE:
    case CU_E_INVALID_PC:
    case CU_E_LAUNCH_FAILED:
    case CU_E_TENSOR_MEMORY_LEAK:
    case CU_E_MPS_CLIENT_TERMINATED:
    case CU_E_EXTERNAL_DEVICE: return OC_E_DEVICE_LOST;
    /* Refused because of a capture that the engine did not announce (G28, S28). */
    case CU_E_CAPTURE_UNSUPPORTED:
    case CU_E_CAPTURE_INVALIDATED:
    case CU_E_CAPTURE_MERGE:
    case CU_E_CAPTURE_UNMATCHED:
    case CU_E_CAPTURE_UNJOINED:
    case CU_E_CAPTURE_ISOLATION:
    case CU_E_CAPTURE_IMPLICIT:
    case CU_E_CAPTURED_EVENT:
    case CU_E_CAPTURE_WRONG_THREAD: return OC_E_CAPTURING;
    default: return OC_E_BACKEND;
  }
}

/* ---- words ---- */

/* How much is left: the first question after "out of memory". */
static void add_memory(const struct cuda_scope *s, oc_status st) {
  size_t left = 0, total = 0;
  if (s->driver->mem_info(&left, &total) == CU_OK)
    oci_error_add(st, "the device reports %zu of %zu bytes free", left, total);
}

static oc_status word(const struct cuda_scope *s, cu_result r, const char *call) {
  char words[256];
  oci_cuda_note(s->cuda->process, r);
  oci_cuda_words(s->cuda->process, r, words, sizeof words);
  return oci_error(status_of(r), "%s: %s", call, words);
}

/* ---- in and out ---- */

static oc_status may_call(const struct cuda *c) {
  if (c->backend && __atomic_load_n(&c->backend->forked, __ATOMIC_RELAXED))
    return oci_error(OC_E_FORKED, "the CUDA device was opened by a parent process");
  if (oci_cuda_shut_down(c->process)) return oci_error(OC_E_DEVICE_LOST, "not called: the CUDA driver is shut down (CUDA_ERROR_DEINITIALIZED)");
  return OC_OK;
}

static void restore(struct cuda_scope *s) {
  cu_context ours;
  if (s->relaxed && !oci_cuda_shut_down(s->cuda->process)) oci_cuda_note(s->cuda->process, s->driver->capture_mode(&s->mode));
  if (s->pushed && !oci_cuda_shut_down(s->cuda->process)) oci_cuda_note(s->cuda->process, s->driver->context_pop(&ours));
}

/* Failed on the way in. */
static oc_status back_out(struct cuda_scope *s, cu_result r, const char *call) {
  oc_status st = word(s, r, call);
  restore(s);
  return st;
}

static oc_status make_current(struct cuda_scope *s) {
  cu_context now = NULL;
  cu_result r = s->driver->context_current(&now);
  if (r) return back_out(s, r, "cuCtxGetCurrent");
  if (now == s->cuda->context) return OC_OK;
  r = s->driver->context_push(s->cuda->context);
  if (r) return back_out(s, r, "cuCtxPushCurrent_v2");
  s->pushed = true;
  return OC_OK;
}

static oc_status relax(struct cuda_scope *s) {
  s->mode = CU_CAPTURE_RELAXED;
  cu_result r = s->driver->capture_mode(&s->mode);
  if (r) return back_out(s, r, "cuThreadExchangeStreamCaptureMode");
  s->relaxed = true;
  return OC_OK;
}

oc_status oci_cuda_enter(const struct cuda *c, enum cuda_manner manner, struct cuda_scope *s) {
  *s = (struct cuda_scope){.cuda = c, .driver = &c->process->driver};
  oc_status st = may_call(c);
  if (!st) st = make_current(s);
  return st || manner == CUDA_PLAIN ? st : relax(s);
}

oc_status oci_cuda_enter_bare(const struct cuda *c, struct cuda_scope *s) {
  *s = (struct cuda_scope){.cuda = c, .driver = &c->process->driver};
  oc_status st = may_call(c);
  return st ? st : relax(s);
}

oc_status oci_cuda_leave(struct cuda_scope *s, cu_result r, const char *fmt, ...) {
  oc_status st = OC_OK;
  if (r) {
    char call[192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(call, sizeof call, fmt, ap);
    va_end(ap);
    st = word(s, r, call);
    if (st == OC_E_DEVICE_NOMEM) add_memory(s, st);
  }
  restore(s);
  return st;
}
