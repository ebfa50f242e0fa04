/* SPDX-License-Identifier: MIT */
/*
 * Inside of the embedded device's streams: what devstream.c, devworker.c and devevent.c share.
 *
 * How a stream's numbers go: the n-th operation queued has number n. pushed counts what was queued, done what
 * ran; limit is the last number that may run. done <= pushed always; while stalled, limit stops the worker.
 *
 * stream: see devstream.h. Its lock is the producers'; the worker takes it to sleep, and to tell.
 */
#ifndef OCI_LIBOC_DEVSTREAM_INTERNAL_H
#define OCI_LIBOC_DEVSTREAM_INTERNAL_H

#include "liboc/devqueue.h"
#include "liboc/devstream.h"
#include "rcu/error.h"

#define NO_NUMBER UINT64_MAX

enum stream_state { STREAM_FREE, STREAM_LIVE, STREAM_DYING };

struct stream {
  /* producers' side, under lock */
  pthread_mutex_t lock;
  pthread_cond_t work;         /* for the worker */
  pthread_cond_t progress;     /* for who waits until an operation is done */
  struct streams *owner;
  struct stream *next;         /* in streams.all, never changes */
  enum stream_state state;     /* changes under streams.lock too */
  uint64_t handle;             /* 0: the default stream */
  uint32_t life;               /* counts the streams that this record was */
  bool started, sleeping, capturing;
  bool exited;                 /* atomic: the worker is past its last operation */
  pthread_t worker;
  struct opqueue queue;
  uint64_t pushed;             /* atomic */
  uint64_t limit;              /* atomic; NO_NUMBER: not stalled */
  oc_status failed;            /* of an operation, not yet told */
  char failed_words[160];
  /* the worker's side */
  uint64_t done __attribute__((aligned(64)));   /* atomic */
  uint64_t wanted;             /* atomic; the least number that somebody sleeps for */
};

/* The handle tables' records. A destroyed stream's record may be another stream's before its queue ends. */
struct stream_slot {
  struct slot slot;
  struct stream *stream;       /* atomic */
};

static inline uint64_t done_of(const struct stream *s) {
  return __atomic_load_n(&s->done, __ATOMIC_SEQ_CST);
}

static inline uint64_t limit_of(const struct stream *s) {
  return __atomic_load_n(&s->limit, __ATOMIC_ACQUIRE);
}

static inline uint64_t pushed_of(const struct stream *s) {
  return __atomic_load_n(&s->pushed, __ATOMIC_ACQUIRE);
}

/* devworker.c */
/* Waits until operation `number` is done. From any thread, other streams' workers included. */
void oci_devstream_wait_done(struct stream *s, uint64_t number);
/* Under the lock. Signals are the process's own threads' business. */
oc_status oci_devstream_start_worker(struct stream *s);

/* devstream.c */
/* Words it; the status that the driver has for it. */
oc_status oci_devstream_capture_refuses(const char *what);

/* devevent.c */
void oci_devevents_init(struct streams *ss, bool recycle);
void oci_devevents_fini(struct streams *ss);

#endif
