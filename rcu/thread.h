/* SPDX-License-Identifier: MIT */
/*
 * What the library keeps about a thread.
 *
 * thread_self: a few bytes of initial-exec thread-local storage, reached without a call. Only the thread itself
 *              touches it. So small that it fits the static TLS reserve of a process that dlopens us (a rule:
 *              no buffers here).
 */
#ifndef OCI_RCU_THREAD_H
#define OCI_RCU_THREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct thread_text;   /* the thread's last error, on the process heap: error.c */

struct thread_self {
  void *reader_slot;         /* where liburcu keeps this thread's reader; NULL before the first guard */
  uint32_t guards;           /* oci_guard_enter without its leave */
  uint32_t captures;         /* captures entered on this thread, over all models */
  struct thread_text *text;
  bool wordless;             /* the last failure found no host memory for its words */
  uint64_t id;               /* never reused in a process; 0 before oci_thread_id */
};

extern __thread struct thread_self oci_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

uint64_t oci_thread_id_new(void);

static inline uint64_t oci_thread_id(void) {
  return oci_self.id ? oci_self.id : oci_thread_id_new();
}

static inline bool oci_in_capture(void) {
  return __builtin_expect(oci_self.captures != 0, 0);
}

#endif
