/* SPDX-License-Identifier: MIT */
/*
 * The queue of a stream: records of any size in chunks of memory, in order.
 *
 * opqueue: owned by its stream. Producers add at the tail under the stream's lock; its worker reads at the
 *          head, without, what it was told under the lock to be there. Emptied chunks go back under the lock.
 */
#ifndef OCI_LIBOC_DEVQUEUE_H
#define OCI_LIBOC_DEVQUEUE_H

#include <stddef.h>

#include "rcu/mem.h"

struct devop;
struct opchunk;

struct opqueue {
  struct opchunk *tail;        /* producers' */
  size_t tail_used;
  struct opchunk *spare;       /* an empty chunk kept, so that a short queue never asks the heap */
  struct opchunk *head;        /* the worker's */
  size_t head_read;
};

/* A record of that many bytes (rounded up to 16) at the tail, not zeroed but for op->bytes. NULL without
   memory. */
struct devop *oci_devqueue_add(struct opqueue *q, struct heap *heap, size_t bytes);
/* The next record of those added; the one before is dead. *emptied: a chunk for oci_devqueue_recycle, or
   NULL. */
struct devop *oci_devqueue_next(struct opqueue *q, struct opchunk **emptied);
void oci_devqueue_recycle(struct opqueue *q, struct heap *heap, struct opchunk *c);
void oci_devqueue_fini(struct opqueue *q, struct heap *heap);

#endif
