/* SPDX-License-Identifier: MIT */
/*
 * Host memory: the one door through which rcu/, allocator/ and liboc/ get it.
 *
 * heap: one owner's host memory, counted in bytes; a jemalloc arena where the build has jemalloc, libc's heap
 *       otherwise. Owned by who created it; any thread may use it. NULL means the process heap, which lives
 *       for ever (interned names, threads' error texts).
 */
#ifndef OCI_RCU_MEM_H
#define OCI_RCU_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "rcu/error.h"

struct heap;

/* NULL without memory. */
struct heap *oci_heap_create(void);
/* Gives the heap back. It must be empty (what is not is logged); no other thread may use it any more. */
void oci_heap_destroy(struct heap *h);

/* Zeroed, aligned to 16 (to 64 from 64 bytes on); NULL without memory, or if the injected fault says so. */
void *oci_alloc(struct heap *h, size_t bytes);
/* bytes: as allocated. NULL is ignored. */
void oci_free(struct heap *h, void *ptr, size_t bytes);
/* A copy on h. */
char *oci_strdup(struct heap *h, const char *s);
void oci_strfree(struct heap *h, char *s);
/* Bytes allocated and not freed; NULL: of the process heap. */
size_t oci_heap_bytes(const struct heap *h);

/*
 * For tests: fail is asked before every allocation (both kinds of heap) and makes it fail by answering true.
 * NULL may be set while other threads allocate; a fail only where there was none, with nobody in the library.
 */
typedef bool (*oci_mem_fault)(void *arg, size_t bytes);
void oci_mem_set_fault(oci_mem_fault fail, void *arg);
/* "private jemalloc", "host jemalloc", "libc": what the heaps are made of. */
const char *oci_mem_kind(void);

/* Around fork(), as oci_log_fork. */
void oci_mem_fork(enum oci_fork_step step);

#endif
