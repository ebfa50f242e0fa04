/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/devqueue.h"

#include <stdint.h>

#include "liboc/devstream.h"

#define CHUNK_BYTES ((size_t)32 << 10)

/* A record without `run` ends the chunk: the next record is the first of the next chunk. It has its room. */
struct opchunk {
  struct opchunk *next;
  size_t bytes;                /* of all of this */
  char records[];              /* 16-aligned */
};

static struct devop *record_at(struct opchunk *c, size_t at) {
  return (struct devop *)(void *)(c->records + at);
}

static size_t record_bytes(const struct opchunk *c) {
  return c->bytes - sizeof *c - sizeof(struct devop);
}

static struct opchunk *new_chunk(struct opqueue *q, struct heap *heap, size_t need) {
  struct opchunk *c = q->spare;
  if (c && need <= record_bytes(c)) {
    q->spare = NULL;
    return c;
  }
  size_t bytes = sizeof *c + need + sizeof(struct devop);
  if (bytes < CHUNK_BYTES) bytes = CHUNK_BYTES;
  c = oci_alloc(heap, bytes);
  if (c) c->bytes = bytes;
  return c;
}

static bool add_chunk(struct opqueue *q, struct heap *heap, size_t need) {
  struct opchunk *c = new_chunk(q, heap, need);
  if (!c) return false;
  if (q->tail) {
    q->tail->next = c;
    record_at(q->tail, q->tail_used)->run = NULL;
  } else {
    q->head = c;
  }
  q->tail = c;
  q->tail_used = 0;
  return true;
}

struct devop *oci_devqueue_add(struct opqueue *q, struct heap *heap, size_t bytes) {
  bytes = (bytes + 15) & ~(size_t)15;
  if ((!q->tail || record_bytes(q->tail) - q->tail_used < bytes) && !add_chunk(q, heap, bytes)) return NULL;
  struct devop *op = record_at(q->tail, q->tail_used);
  op->bytes = bytes;
  q->tail_used += bytes;
  return op;
}

struct devop *oci_devqueue_next(struct opqueue *q, struct opchunk **emptied) {
  struct devop *op = record_at(q->head, q->head_read);
  *emptied = NULL;
  if (!op->run) {
    *emptied = q->head;
    q->head = q->head->next;
    q->head_read = 0;
    op = record_at(q->head, 0);
  }
  q->head_read += op->bytes;
  return op;
}

static void free_chunk(struct heap *heap, struct opchunk *c) {
  if (c) oci_free(heap, c, c->bytes);
}

void oci_devqueue_recycle(struct opqueue *q, struct heap *heap, struct opchunk *c) {
  if (q->spare || c->bytes != CHUNK_BYTES) free_chunk(heap, c);
  else q->spare = c;
}

void oci_devqueue_fini(struct opqueue *q, struct heap *heap) {
  free_chunk(heap, q->spare);
  free_chunk(heap, q->tail);   /* the head too: all that was queued has run */
  *q = (struct opqueue){0};
}
