/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "rcu/records.h"

#include <string.h>

#include "rcu/mem.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define hide(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define show(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define hide(at, bytes) ((void)(at), (void)(bytes))
#define show(at, bytes) ((void)(at), (void)(bytes))
#endif

#define CHUNK_LEAST 8u
#define CHUNK_MOST 512u

struct record_chunk {
  struct record_chunk *older;
  size_t count, used;
  char at[] __attribute__((aligned(16)));
};

struct record_idle {
  struct record_idle *next;
};

void oci_records_init(struct records *r, struct heap *h, size_t bytes) {
  *r = (struct records){.heap = h, .bytes = (bytes + 15) / 16 * 16};
}

static size_t chunk_bytes(const struct records *r, size_t count) { return sizeof(struct record_chunk) + count * r->bytes; }

static struct record_chunk *add_chunk(struct records *r) {
  size_t count = r->newest ? r->newest->count * 2 : CHUNK_LEAST;
  if (count > CHUNK_MOST) count = CHUNK_MOST;
  struct record_chunk *c = oci_alloc(r->heap, chunk_bytes(r, count));
  if (!c) return NULL;
  c->older = r->newest;
  c->count = count;
  hide(c->at, count * r->bytes);
  return r->newest = c;
}

static void *take_fresh(struct records *r) {
  struct record_chunk *c = r->newest;
  if (!c || c->used == c->count) c = add_chunk(r);
  return c ? c->at + r->bytes * c->used++ : NULL;
}

void *oci_records_take(struct records *r) {
  struct record_idle *idle = r->idle;
  void *record = idle ? idle : take_fresh(r);
  if (idle) r->idle = idle->next;
  if (!record) return NULL;
  show(record, r->bytes);
  return memset(record, 0, r->bytes);
}

void oci_records_give(struct records *r, void *record) {
  struct record_idle *idle = record;
  idle->next = r->idle;
  r->idle = idle;
  hide((char *)record + sizeof *idle, r->bytes - sizeof *idle);
}

void oci_records_free(struct records *r) {
  for (struct record_chunk *c = r->newest, *older; c; c = older) {
    older = c->older;
    show(c->at, c->count * r->bytes);
    oci_free(r->heap, c, chunk_bytes(r, c->count));
  }
  oci_records_init(r, r->heap, r->bytes);
}
