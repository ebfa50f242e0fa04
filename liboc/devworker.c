/* SPDX-License-Identifier: MIT */
/* A stream's worker: runs what is queued, sleeps, tells those who wait how far it is. */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "liboc/devstream_internal.h"

void oci_devstream_wait_done(struct stream *s, uint64_t number) {
  if (done_of(s) >= number) return;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    /* The worker stores done, then reads wanted; we store wanted, then read done. In the one order of both,
       one of us sees the other's store: either it wakes us, or we do not sleep. */
    if (number < __atomic_load_n(&s->wanted, __ATOMIC_RELAXED))
      __atomic_store_n(&s->wanted, number, __ATOMIC_SEQ_CST);
    if (done_of(s) >= number) break;
    pthread_cond_wait(&s->progress, &s->lock);
  }
  pthread_mutex_unlock(&s->lock);
}

static void publish_done(struct stream *s, uint64_t number) {
  __atomic_store_n(&s->done, number, __ATOMIC_SEQ_CST);
  if (number < __atomic_load_n(&s->wanted, __ATOMIC_SEQ_CST)) return;
  /* Who waits for more says so anew. */
  pthread_mutex_lock(&s->lock);
  __atomic_store_n(&s->wanted, NO_NUMBER, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&s->lock);
  pthread_cond_broadcast(&s->progress);
}

static void note_failure(struct stream *s, oc_status st) {
  pthread_mutex_lock(&s->lock);
  if (s->failed == OC_OK) {
    s->failed = st;
    snprintf(s->failed_words, sizeof s->failed_words, "%s", oci_error_text());
  }
  pthread_mutex_unlock(&s->lock);
}

static void recycle_chunk(struct stream *s, struct opchunk *c) {
  pthread_mutex_lock(&s->lock);
  oci_devqueue_recycle(&s->queue, s->owner->heap, c);
  pthread_mutex_unlock(&s->lock);
}

static void run_next(struct stream *s) {
  struct opchunk *emptied;
  struct devop *op = oci_devqueue_next(&s->queue, &emptied);
  if (emptied) recycle_chunk(s, emptied);
  oc_status st = op->run(op);
  if (st != OC_OK) note_failure(s, st);
}

/* Runs what is queued up to that number, unless a stall comes between. */
static void run_to(struct stream *s, uint64_t number) {
  for (uint64_t n = s->done; n < number && n < limit_of(s);) {
    run_next(s);
    publish_done(s, ++n);
  }
}

static bool may_run(const struct stream *s) {
  return s->done < s->pushed && s->done < limit_of(s);
}

/* Looks for more without the lock, for a short while. */
static void spin_for_work(struct stream *s) {
  uint64_t seen = s->pushed;
  pthread_mutex_unlock(&s->lock);
  for (unsigned i = 0; i < s->owner->spins && pushed_of(s) == seen; i++) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }
  pthread_mutex_lock(&s->lock);
}

/* Under the lock. False: the stream was destroyed and its queue is empty. */
static bool await_work(struct stream *s) {
  if (!may_run(s) && s->owner->spins) spin_for_work(s);
  while (!may_run(s)) {
    if (s->state == STREAM_DYING && s->done == s->pushed) return false;
    s->sleeping = true;
    pthread_cond_wait(&s->work, &s->lock);
    s->sleeping = false;
  }
  return true;
}

static void *work(void *arg) {
  struct stream *s = arg;
  pthread_mutex_lock(&s->lock);
  while (await_work(s)) {
    uint64_t number = s->pushed;
    pthread_mutex_unlock(&s->lock);
    run_to(s, number);
    pthread_mutex_lock(&s->lock);
  }
  pthread_mutex_unlock(&s->lock);
  __atomic_store_n(&s->exited, true, __ATOMIC_RELEASE);
  return NULL;
}

oc_status oci_devstream_start_worker(struct stream *s) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int err = pthread_create(&s->worker, NULL, work, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (err != 0) return oci_error(OC_E_BACKEND, "no thread for a stream's worker: %s", strerror(err));
  s->started = true;
  return OC_OK;
}
