/* SPDX-License-Identifier: MIT */
/* Streams of the embedded device: their records, their life, what is queued, and the tests' controls. */
#include "config.h"

#include <inttypes.h>
#include <sched.h>

#include "liboc/devstream_internal.h"

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
  oci_devevents_init(ss, recycle);
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

void oci_devstreams_fini(struct streams *ss) {
  end_all(ss);   /* all of them before the first join: one may wait for another */
  for (struct stream *s = ss->all; s; s = s->next) {
    if (s->started) pthread_join(s->worker, NULL);
  }
  for (struct stream *s; (s = ss->all);) {
    ss->all = s->next;
    free_record_memory(ss, s);
  }
  oci_devevents_fini(ss);
  oci_devslots_fini(&ss->handles);
  pthread_mutex_destroy(&ss->lock);
}

/* ---- queueing ---- */

oc_status oci_devstream_capture_refuses(const char *what) {
  return oci_error(OC_E_BACKEND, "%s: not permitted while the stream is capturing", what);
}

/* Opens a record on a locked stream, or unlocks it. */
static oc_status add_locked(struct stream *s, size_t bytes, struct devop **op) {
  oc_status st = s->started ? OC_OK : oci_devstream_start_worker(s);
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
  if (capturing) return oci_devstream_capture_refuses("synchronize");
  oci_devstream_wait_done(s, number);
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
  if (any_capturing(ss)) return oci_devstream_capture_refuses("synchronize_all");
  oc_status worst = OC_OK;
  for (struct stream *s = first_record(ss); s; s = s->next) {
    oci_devstream_wait_done(s, pushed_of(s));
    oc_status st = take_failure(s);
    if (worst == OC_OK) worst = st;
  }
  return worst;
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
  oci_devstream_wait_done(s, to);
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
