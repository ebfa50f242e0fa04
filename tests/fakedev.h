/* SPDX-License-Identifier: MIT */
/*
 * A device for tests of the pool: hands out addresses, counts, runs out, fails on request, answers events when
 * told to. Any thread may call it. Nothing ever touches its "memory".
 */
#ifndef OCI_TESTS_FAKEDEV_H
#define OCI_TESTS_FAKEDEV_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "allocator/pool.h"
#include "rcu/error.h"

#define FAKE_STREAMS 8
#define FAKE_ARENAS 4096

struct fake_arena {
  uint64_t base, bytes;
  bool managed;
};

struct fake_event {
  struct fake_event *next;
  unsigned stream;
  uint64_t seq;
};

struct fakedev {
  pthread_mutex_t lock;
  uint64_t capacity, managed_capacity;         /* bytes; 0: without end */
  uint64_t used, managed_used;
  uint64_t next, skew;                         /* addresses: multiples of 2 MiB, plus skew */
  struct fake_arena arenas[FAKE_ARENAS];
  unsigned count;
  unsigned allocs, managed_allocs, frees, bad_frees;   /* calls */
  int alloc_fails, managed_fails, free_fails;  /* status of every call, while not 0 */
  int mark_fails, passed_fails;
  uint64_t marked[FAKE_STREAMS], run[FAKE_STREAMS];    /* by stream: events recorded, events passed */
  unsigned events, asked;                      /* alive; passed() calls */
  struct fake_event *all;
  uint64_t last_bytes;
  void (*on_alloc)(void);                      /* called first in alloc, passed and mark, without the lock */
  void (*on_passed)(void);
  void (*on_mark)(void);
};

static inline void fake_init(struct fakedev *d) {
  memset(d, 0, sizeof *d);
  pthread_mutex_init(&d->lock, NULL);
  d->next = UINT64_C(0x7f0000000000);
}

static inline int fake_alloc_locked(struct fakedev *d, size_t bytes, bool managed, uint64_t *out) {
  uint64_t *used = managed ? &d->managed_used : &d->used;
  uint64_t capacity = managed ? d->managed_capacity : d->capacity;
  int fails = managed ? d->managed_fails : d->alloc_fails;
  d->last_bytes = bytes;
  if (managed) d->managed_allocs++;
  else d->allocs++;
  if (fails) return oci_error(fails, "fake driver: %s refused, status %d", managed ? "managed" : "device", fails);
  if (capacity && (bytes > capacity || *used > capacity - bytes))
    return oci_error(POOL_E_DEVICE_NOMEM, "fake driver: %s out of memory", managed ? "managed" : "device");
  if (d->count == FAKE_ARENAS) abort();
  *used += bytes;
  *out = d->next + d->skew;
  d->next += (bytes + ((uint64_t)4 << 20) - 1) & ~(((uint64_t)2 << 20) - 1);
  d->arenas[d->count++] = (struct fake_arena){*out, bytes, managed};
  return 0;
}

static inline int fake_alloc(void *arg, size_t bytes, bool managed, uint64_t *out) {
  struct fakedev *d = arg;
  if (d->on_alloc) d->on_alloc();
  pthread_mutex_lock(&d->lock);
  int status = fake_alloc_locked(d, bytes, managed, out);
  pthread_mutex_unlock(&d->lock);
  return status;
}

static inline int fake_free_locked(struct fakedev *d, uint64_t base) {
  d->frees++;
  if (d->free_fails) return oci_error(d->free_fails, "fake driver: free refused");
  for (unsigned i = 0; i < d->count; i++) {
    if (d->arenas[i].base != base) continue;
    if (d->arenas[i].managed) d->managed_used -= d->arenas[i].bytes;
    else d->used -= d->arenas[i].bytes;
    d->arenas[i] = d->arenas[--d->count];
    return 0;
  }
  d->bad_frees++;
  return oci_error(-40, "fake driver: nothing at that address");
}

static inline int fake_free(void *arg, uint64_t base) {
  struct fakedev *d = arg;
  pthread_mutex_lock(&d->lock);
  int status = fake_free_locked(d, base);
  pthread_mutex_unlock(&d->lock);
  return status;
}

static inline int fake_mark(void *arg, void *stream, void **event) {
  struct fakedev *d = arg;
  if (d->on_mark) d->on_mark();
  struct fake_event *e = calloc(1, sizeof *e);
  pthread_mutex_lock(&d->lock);
  int status = d->mark_fails ? oci_error(d->mark_fails, "fake driver: mark refused") : 0;
  if (!status) {
    e->stream = (unsigned)(uintptr_t)stream % FAKE_STREAMS;
    e->seq = ++d->marked[e->stream];
    d->events++;
  }
  pthread_mutex_unlock(&d->lock);
  if (status) free(e);
  else *event = e;
  return status;
}

static inline int fake_passed(void *arg, void *event) {
  struct fakedev *d = arg;
  const struct fake_event *e = event;
  if (d->on_passed) d->on_passed();
  pthread_mutex_lock(&d->lock);
  d->asked++;
  int status = e->seq <= d->run[e->stream] ? 0 : 1;
  if (d->passed_fails) status = oci_error(d->passed_fails, "fake driver: query refused");
  pthread_mutex_unlock(&d->lock);
  return status;
}

static inline void fake_unmark(void *arg, void *event) {
  struct fakedev *d = arg;
  pthread_mutex_lock(&d->lock);
  d->events--;
  pthread_mutex_unlock(&d->lock);
  free(event);
}

/* The stream runs n more of what was queued. */
static inline void fake_run(struct fakedev *d, unsigned stream, uint64_t n) {
  pthread_mutex_lock(&d->lock);
  uint64_t left = d->marked[stream] - d->run[stream];
  d->run[stream] += n < left ? n : left;
  pthread_mutex_unlock(&d->lock);
}

static inline struct pool_device fake_device(struct fakedev *d, bool can_manage, bool events) {
  return (struct pool_device){
    .arg = d, .alloc = fake_alloc, .free = fake_free, .can_manage = can_manage,
    .mark = events ? fake_mark : NULL, .passed = events ? fake_passed : NULL, .unmark = events ? fake_unmark : NULL,
  };
}

#endif
