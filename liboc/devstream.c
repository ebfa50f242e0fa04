/* SPDX-License-Identifier: MIT */
/*
 * How a stream's numbers go: the n-th operation queued has number n. pushed counts what was queued, done what
 * ran; limit is the last number that may run. done <= pushed always; while stalled, limit stops the worker.
 */
#include "config.h"

#include "liboc/devstream.h"

#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "liboc/devqueue.h"
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

struct event {
  struct slot slot;
  pthread_mutex_t lock;        /* taken before a stream's */
  bool made;                   /* the lock is there */
  struct stream *stream;       /* of the latest record; NULL: never recorded */
  uint32_t life;
  uint64_t number;
};

/* ---- the worker ---- */

static uint64_t done_of(const struct stream *s) {
  return __atomic_load_n(&s->done, __ATOMIC_SEQ_CST);
}

static uint64_t limit_of(const struct stream *s) {
  return __atomic_load_n(&s->limit, __ATOMIC_ACQUIRE);
}

static uint64_t pushed_of(const struct stream *s) {
  return __atomic_load_n(&s->pushed, __ATOMIC_ACQUIRE);
}

/* Waits until operation `number` is done. From any thread, other streams' workers included. */
static void wait_done(struct stream *s, uint64_t number) {
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

/* Under the lock. Signals are the process's own threads' business. */
static oc_status start_worker(struct stream *s) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int err = pthread_create(&s->worker, NULL, work, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (err != 0) return oci_error(OC_E_BACKEND, "no thread for a stream's worker: %s", strerror(err));
  s->started = true;
  return OC_OK;
}

/* ---- records ---- */

static struct stream *make_record(struct streams *ss) {
  struct stream *s = oci_alloc(ss->heap, sizeof *s);
  if (!s) return NULL;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->work, NULL);
  pthread_cond_init(&s->progress, NULL);
  s->owner = ss;
  s->limit = s->wanted = NO_NUMBER;
  s->next = ss->all;
  __atomic_store_n(&ss->all, s, __ATOMIC_RELEASE);
  return s;
}

static struct stream *first_record(const struct streams *ss) {
  return __atomic_load_n(&ss->all, __ATOMIC_ACQUIRE);
}

/* Under streams.lock: a destroyed stream whose queue has ended can be another one. */
static void reap(struct stream *s) {
  if (s->state != STREAM_DYING) return;
  if (s->started && !__atomic_load_n(&s->exited, __ATOMIC_ACQUIRE)) return;
  if (s->started) pthread_join(s->worker, NULL);
  pthread_mutex_lock(&s->lock);
  s->started = s->exited = s->capturing = false;
  s->failed = OC_OK;
  s->state = STREAM_FREE;
  s->limit = NO_NUMBER;
  s->life++;
  oci_devqueue_fini(&s->queue, s->owner->heap);
  pthread_mutex_unlock(&s->lock);
}

static struct stream *free_record(struct streams *ss) {
  struct stream *found = NULL;
  for (struct stream *s = ss->all; s; s = s->next) {
    reap(s);
    if (s->state == STREAM_FREE) found = s;
  }
  return found ? found : make_record(ss);
}

static void open_record(struct stream *s, uint64_t handle) {
  pthread_mutex_lock(&s->lock);
  s->handle = handle;
  s->state = STREAM_LIVE;
  pthread_mutex_unlock(&s->lock);
}

/* The stream, locked; NULL with words. */
static struct stream *lock_stream(const struct streams *ss, oc_stream stream) {
  uint64_t handle = (uint64_t)(uintptr_t)stream;
  struct stream_slot *slot = (struct stream_slot *)oci_devslots_find(&ss->handles, handle);
  struct stream *s = NULL;
  if (handle == 0) s = ss->null_stream;
  else if (slot && oci_devslot_is(&ss->handles, &slot->slot, handle))
    s = __atomic_load_n(&slot->stream, __ATOMIC_ACQUIRE);
  if (s) {
    pthread_mutex_lock(&s->lock);
    /* Another thread may have destroyed it, and made another of it, since the handle was looked up. */
    if (s->state == STREAM_LIVE && s->handle == handle) return s;
    pthread_mutex_unlock(&s->lock);
  }
  oci_error(OC_E_INVALID, "stream handle 0x%" PRIx64 ": %s", handle,
            slot ? "that stream was destroyed" : "no such stream");
  return NULL;
}

/* Under the lock. Release: the worker takes the limit without the lock, and what the caller did before it let
   operations run must have happened before they do. */
static void set_limit(struct stream *s, uint64_t limit) {
  __atomic_store_n(&s->limit, limit, __ATOMIC_RELEASE);
  pthread_cond_signal(&s->work);
}

/* ---- life ---- */

/* Where each stream has a processor to itself, looking again saves the wakeup; else it takes the producer's
   time. */
static unsigned spins_here(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= 4 ? 400 : 0;
}

oc_status oci_devstreams_init(struct streams *ss, struct heap *heap, bool recycle) {
  *ss = (struct streams){.heap = heap, .spins = spins_here()};
  ss->null_stream = make_record(ss);
  if (!ss->null_stream) return oci_error(OC_E_HOST_NOMEM, "no host memory for the default stream");
  pthread_mutex_init(&ss->lock, NULL);
  oci_devslots_init(&ss->handles, heap, sizeof(struct stream_slot), SLOT_STREAM, recycle);
  oci_devslots_init(&ss->events, heap, sizeof(struct event), SLOT_EVENT, recycle);
  open_record(ss->null_stream, 0);
  return OC_OK;
}

static oc_status create_locked(struct streams *ss, oc_stream *out) {
  struct stream *s = free_record(ss);
  struct stream_slot *slot = s ? (struct stream_slot *)oci_devslots_take(&ss->handles) : NULL;
  if (!slot) return oci_error(OC_E_HOST_NOMEM, "no host memory for a stream");
  __atomic_store_n(&slot->stream, s, __ATOMIC_RELEASE);
  uint64_t handle = oci_devslots_publish(&ss->handles, &slot->slot);
  open_record(s, handle);
  *out = (oc_stream)(uintptr_t)handle;
  return OC_OK;
}

oc_status oci_devstream_create(struct streams *ss, oc_stream *out) {
  pthread_mutex_lock(&ss->lock);
  oc_status st = create_locked(ss, out);
  pthread_mutex_unlock(&ss->lock);
  return st;
}

/* Under the lock: the worker runs the queue to its end, then ends. */
static void end_stream(struct stream *s) {
  s->state = STREAM_DYING;
  s->capturing = false;
  pthread_cond_signal(&s->work);
}

static oc_status destroy_locked(struct streams *ss, oc_stream stream) {
  if (!stream) return oci_error(OC_E_INVALID, "the default stream can't be destroyed");
  struct stream *s = lock_stream(ss, stream);
  if (!s) return OC_E_INVALID;
  end_stream(s);
  pthread_mutex_unlock(&s->lock);
  oci_devslots_drop(&ss->handles, oci_devslots_find(&ss->handles, (uint64_t)(uintptr_t)stream));
  for (s = ss->all; s; s = s->next) reap(s);
  return OC_OK;
}

oc_status oci_devstream_destroy(struct streams *ss, oc_stream s) {
  pthread_mutex_lock(&ss->lock);
  oc_status st = destroy_locked(ss, s);
  pthread_mutex_unlock(&ss->lock);
  return st;
}

uint32_t oci_devstreams_live(const struct streams *ss) {
  return oci_devslots_live(&ss->handles);
}

static void end_all(struct streams *ss) {
  for (struct stream *s = ss->all; s; s = s->next) {
    pthread_mutex_lock(&s->lock);
    set_limit(s, NO_NUMBER);
    end_stream(s);
    pthread_mutex_unlock(&s->lock);
  }
}

static void free_record_memory(struct streams *ss, struct stream *s) {
  oci_devqueue_fini(&s->queue, ss->heap);
  pthread_cond_destroy(&s->progress);
  pthread_cond_destroy(&s->work);
  pthread_mutex_destroy(&s->lock);
  oci_free(ss->heap, s, sizeof *s);
}

static void destroy_events(struct streams *ss) {
  for (uint32_t i = 1; i < ss->events.count; i++) {
    struct event *e = (struct event *)oci_devslots_at(&ss->events, i);
    if (e->made) pthread_mutex_destroy(&e->lock);
  }
}

void oci_devstreams_fini(struct streams *ss) {
  end_all(ss);   /* all of them before the first join: one may wait for another */
  for (struct stream *s = ss->all; s; s = s->next) {
    if (s->started) pthread_join(s->worker, NULL);
  }
  for (struct stream *s; (s = ss->all);) {
    ss->all = s->next;
    free_record_memory(ss, s);
  }
  destroy_events(ss);
  oci_devslots_fini(&ss->events);
  oci_devslots_fini(&ss->handles);
  pthread_mutex_destroy(&ss->lock);
}

/* ---- queueing ---- */

static oc_status capture_refuses(const char *what) {
  return oci_error(OC_E_BACKEND, "%s: not permitted while the stream is capturing", what);
}

/* Opens a record on a locked stream, or unlocks it. */
static oc_status add_locked(struct stream *s, size_t bytes, struct devop **op) {
  oc_status st = s->started ? OC_OK : start_worker(s);
  *op = st == OC_OK ? oci_devqueue_add(&s->queue, s->owner->heap, bytes) : NULL;
  if (*op) return OC_OK;
  pthread_mutex_unlock(&s->lock);
  return st != OC_OK ? st : oci_error(OC_E_HOST_NOMEM, "no host memory to queue an operation");
}

oc_status oci_devstream_open(struct streams *ss, oc_stream stream, size_t bytes, struct stream **out,
                          struct devop **op) {
  struct stream *s = lock_stream(ss, stream);
  if (!s) return OC_E_INVALID;
  *out = s;
  *op = NULL;
  if (!s->capturing) return add_locked(s, bytes, op);
  pthread_mutex_unlock(&s->lock);
  return OC_OK;
}

/* Counts the record; the lock stays. */
static bool count_locked(struct stream *s) {
  __atomic_store_n(&s->pushed, s->pushed + 1, __ATOMIC_RELEASE);
  bool wake = s->sleeping && done_of(s) < limit_of(s);
  if (wake) s->sleeping = false;   /* one signal is enough */
  return wake;
}

void oci_devstream_close(struct stream *s) {
  bool wake = count_locked(s);
  pthread_mutex_unlock(&s->lock);
  if (wake) pthread_cond_signal(&s->work);
}

/* ---- synchronize ---- */

static oc_status take_failure(struct stream *s) {
  pthread_mutex_lock(&s->lock);
  oc_status st = s->failed;
  if (st != OC_OK) oci_error(st, "%s", s->failed_words);
  s->failed = OC_OK;
  pthread_mutex_unlock(&s->lock);
  return st;
}

oc_status oci_devstream_synchronize(struct streams *ss, oc_stream stream) {
  struct stream *s = lock_stream(ss, stream);
  if (!s) return OC_E_INVALID;
  uint64_t number = s->pushed;
  bool capturing = s->capturing;
  pthread_mutex_unlock(&s->lock);
  if (capturing) return capture_refuses("synchronize");
  wait_done(s, number);
  return take_failure(s);
}

static bool any_capturing(const struct streams *ss) {
  bool found = false;
  for (struct stream *s = first_record(ss); s && !found; s = s->next) {
    pthread_mutex_lock(&s->lock);
    found = s->capturing;
    pthread_mutex_unlock(&s->lock);
  }
  return found;
}

oc_status oci_devstreams_synchronize(struct streams *ss) {
  if (any_capturing(ss)) return capture_refuses("synchronize_all");
  oc_status worst = OC_OK;
  for (struct stream *s = first_record(ss); s; s = s->next) {
    wait_done(s, pushed_of(s));
    oc_status st = take_failure(s);
    if (worst == OC_OK) worst = st;
  }
  return worst;
}

/* ---- events ---- */

oc_status oci_devevent_create(struct streams *ss, oc_event *out) {
  struct event *e = (struct event *)oci_devslots_take(&ss->events);
  if (!e) return oci_error(OC_E_HOST_NOMEM, "no host memory for an event");
  if (!e->made) pthread_mutex_init(&e->lock, NULL);
  e->made = true;
  e->stream = NULL;
  *out = (oc_event)(uintptr_t)oci_devslots_publish(&ss->events, &e->slot);
  return OC_OK;
}

/* The event, locked; NULL with words. */
static struct event *lock_event(const struct streams *ss, oc_event event) {
  uint64_t handle = (uint64_t)(uintptr_t)event;
  struct event *e = (struct event *)oci_devslots_find(&ss->events, handle);
  if (e && oci_devslot_is(&ss->events, &e->slot, handle)) {
    pthread_mutex_lock(&e->lock);
    if (oci_devslot_is(&ss->events, &e->slot, handle)) return e;
    pthread_mutex_unlock(&e->lock);
  }
  oci_error(OC_E_INVALID, "event handle 0x%" PRIx64 ": %s", handle,
            e ? "that event was destroyed" : "no such event");
  return NULL;
}

oc_status oci_devevent_destroy(struct streams *ss, oc_event event) {
  struct event *e = lock_event(ss, event);
  if (!e) return OC_E_INVALID;
  e->stream = NULL;
  oci_devslots_drop(&ss->events, &e->slot);
  pthread_mutex_unlock(&e->lock);
  return OC_OK;
}

uint32_t oci_devevents_live(const struct streams *ss) {
  return oci_devslots_live(&ss->events);
}

static oc_status run_nothing(struct devop *op) {
  (void)op;
  return OC_OK;
}

static oc_status record_locked(struct streams *ss, struct event *e, oc_stream stream) {
  struct stream *s;
  struct devop *op;
  oc_status st = oci_devstream_open(ss, stream, sizeof *op, &s, &op);
  if (st != OC_OK) return st;
  if (!op) return capture_refuses("event_record");
  op->run = run_nothing;
  e->stream = s;
  e->life = s->life;
  e->number = s->pushed + 1;
  oci_devstream_close(s);
  return OC_OK;
}

oc_status oci_devevent_record(struct streams *ss, oc_event event, oc_stream s) {
  struct event *e = lock_event(ss, event);
  if (!e) return OC_E_INVALID;
  oc_status st = record_locked(ss, e, s);
  pthread_mutex_unlock(&e->lock);
  return st;
}

/* What an event stands for at the moment. */
struct moment {
  struct stream *stream;
  uint64_t number;
};

static bool captures_now(struct stream *s, uint32_t life) {
  pthread_mutex_lock(&s->lock);
  bool yes = s->capturing && s->life == life;
  pthread_mutex_unlock(&s->lock);
  return yes;
}

static oc_status read_event(struct streams *ss, oc_event event, const char *what, struct moment *out) {
  struct event *e = lock_event(ss, event);
  if (!e) return OC_E_INVALID;
  *out = (struct moment){e->stream, e->number};
  uint32_t life = e->life;
  pthread_mutex_unlock(&e->lock);
  return out->stream && captures_now(out->stream, life) ? capture_refuses(what) : OC_OK;
}

oc_status oci_devevent_query(struct streams *ss, oc_event event) {
  struct moment m;
  oc_status st = read_event(ss, event, "event_query", &m);
  if (st != OC_OK) return st;
  return !m.stream || done_of(m.stream) >= m.number ? OC_OK : OC_MISS;
}

struct wait_op {
  struct devop op;
  struct moment until;
};

static oc_status run_wait(struct devop *op) {
  const struct wait_op *w = (const struct wait_op *)op;
  if (w->until.stream) wait_done(w->until.stream, w->until.number);
  return OC_OK;
}

oc_status oci_devevent_wait(struct streams *ss, oc_stream stream, oc_event event) {
  struct moment m;
  oc_status st = read_event(ss, event, "event_wait", &m);
  if (st != OC_OK) return st;
  struct stream *s;
  struct devop *op;
  st = oci_devstream_open(ss, stream, sizeof(struct wait_op), &s, &op);
  if (st != OC_OK) return st;
  if (!op) return capture_refuses("event_wait");
  op->run = run_wait;
  ((struct wait_op *)op)->until = m;
  oci_devstream_close(s);
  return OC_OK;
}

/* ---- controls ---- */

/* Under the lock. An operation that has begun ends by itself. */
static void set_stall(struct stream *s, bool stalled) {
  uint64_t limit = stalled ? done_of(s) : NO_NUMBER;
  if (!stalled || limit_of(s) == NO_NUMBER) set_limit(s, limit);
}

static bool release_destroyed(struct streams *ss, uint64_t handle) {
  bool found = false;
  for (struct stream *s = first_record(ss); s; s = s->next) {
    pthread_mutex_lock(&s->lock);
    if (s->state == STREAM_DYING && s->handle == handle) {
      set_stall(s, false);
      found = true;
    }
    pthread_mutex_unlock(&s->lock);
  }
  return found;
}

oc_status oci_devstream_stall(struct streams *ss, oc_stream stream, bool stalled) {
  bool released = !stalled && release_destroyed(ss, (uint64_t)(uintptr_t)stream);
  struct stream *s = lock_stream(ss, stream);
  if (!s) return released ? OC_OK : OC_E_INVALID;
  set_stall(s, stalled);
  pthread_mutex_unlock(&s->lock);
  return OC_OK;
}

/* Under the lock: the number of the last operation that the step lets run. */
static uint64_t allow(struct stream *s, uint32_t n) {
  uint64_t from = limit_of(s) > done_of(s) ? limit_of(s) : done_of(s);
  uint64_t to = s->pushed - from < n ? s->pushed : from + n;
  set_limit(s, to);
  return to;
}

/* The newest destroyed stream of that handle that is stalled, locked. */
static struct stream *lock_destroyed(const struct streams *ss, uint64_t handle) {
  for (struct stream *s = first_record(ss); s; s = s->next) {
    pthread_mutex_lock(&s->lock);
    if (s->state == STREAM_DYING && s->handle == handle && limit_of(s) != NO_NUMBER) return s;
    pthread_mutex_unlock(&s->lock);
  }
  return NULL;
}

oc_status oci_devstream_step(struct streams *ss, oc_stream stream, uint32_t n) {
  struct stream *s = lock_destroyed(ss, (uint64_t)(uintptr_t)stream);
  if (!s) s = lock_stream(ss, stream);
  if (!s) return OC_E_INVALID;
  bool stalled = limit_of(s) != NO_NUMBER;
  uint64_t to = stalled ? allow(s, n) : 0;
  pthread_mutex_unlock(&s->lock);
  if (!stalled) return oci_error(OC_E_INVALID, "the stream is not stalled: there is nothing to step");
  wait_done(s, to);
  return OC_OK;
}

oc_status oci_devstream_set_capturing(struct streams *ss, oc_stream stream, bool capturing) {
  struct stream *s = lock_stream(ss, stream);
  if (!s) return OC_E_INVALID;
  s->capturing = capturing;
  pthread_mutex_unlock(&s->lock);
  return OC_OK;
}

oc_status oci_devstream_capturing(struct streams *ss, oc_stream stream, bool *out) {
  struct stream *s = lock_stream(ss, stream);
  if (!s) return OC_E_INVALID;
  *out = s->capturing;
  pthread_mutex_unlock(&s->lock);
  return OC_OK;
}
