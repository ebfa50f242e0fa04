/* SPDX-License-Identifier: MIT */
/*
 * The driver's library, and whether it may still be called.
 *
 * cuda_process: the driver's functions and this process's standing with it. One, for ever: the library is never let
 *               go, since its threads and exit handlers live as long as the process. Read without a lock.
 */
#ifndef OCI_LIBOC_CUDALOAD_H
#define OCI_LIBOC_CUDALOAD_H

#include <sys/types.h>

#include "liboc/cuda_abi.h"
#include "liboc/oc.h"

struct cuda_process {
  struct cuda_driver driver;
  pid_t pid;             /* where cuInit was called: a child must not */
  bool shut_down;        /* atomic: it said that it is shut down; nothing is called any more (G25, G29) */
};

/* Finds libcuda.so.1 and all of its symbols, and initialises it. Outcomes: OC_E_NO_DRIVER, OC_E_FORKED,
   OC_E_DEVICE_LOST (shut down), OC_E_HOST_NOMEM. Threads: any; no lock is held. */
oc_status oci_cuda_load(struct cuda_process **out);

/* "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory" into words. Calls the driver, unless it is shut down. */
void oci_cuda_words(const struct cuda_process *p, cu_result r, char *words, size_t bytes);
/* Notes an answer that says the driver is shut down. */
void oci_cuda_note(struct cuda_process *p, cu_result r);
bool oci_cuda_shut_down(const struct cuda_process *p);

#endif
