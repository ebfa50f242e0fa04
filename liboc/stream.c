/* SPDX-License-Identifier: MIT */
/*
 * The streams that carry a model's work: which they are, and waiting for them.
 *
 * A hit asks the lock-free map whether its stream is named; naming takes the model's lock once a stream.
 *
 * The race: one thread waits for the streams while another forgets one and then destroys it. So whoever calls the
 * driver on a stream that it was not handed says so in the record, and forget waits for it to come back.
 */
#include "config.h"

#include "liboc/model.h"
#include "rcu/guard.h"
#include "rcu/mem.h"

struct stream {
  struct link link;
  oc_stream handle;
  uint64_t number;      /* the list of those in use is in their order */
  uint32_t users;       /* threads that call the driver on it, unasked */
  bool forgotten;       /* its farewell stands for it; on the list as long as it has users */
};

/* Stays on the list, for all to see, while a thread asks its event or waits for it: the last of them takes it off. */
struct farewell {
  struct link link;
  oc_event event;
  uint64_t number;      /* the list is in their order */
  uint32_t users;
  bool passed;
};

oc_status oci_stream_check(const struct oc_model *m, oc_stream s, const char *call) {
  if (s && s == m->backend->per_thread_stream)
    return oci_error(OC_E_INVALID, "%s: stream %p is the per-thread default stream: it names many streams", call,
                     (void *)s);
  if (!oci_stream_key(s)) return oci_error(OC_E_INVALID, "%s: stream %p is no stream's handle", call, (void *)s);
  return OC_OK;
}

/* A record for the handle, in no list; NULL without memory. */
static struct stream *take_record(struct oc_model *m) {
  if (link_empty(&m->idle_streams)) return oci_alloc(m->heap, sizeof(struct stream));
  struct stream *r = CONTAINER(m->idle_streams.next, struct stream, link);
  link_remove(&r->link);
  return r;
}

static oc_status name_locked(struct oc_model *m, oc_stream s) {
  if (oci_stream_named(m, s)) return OC_OK;
  if (!oci_map_reserve(&m->streams)) return OC_E_HOST_NOMEM;
  struct stream *r = take_record(m);
  if (!r) return OC_E_HOST_NOMEM;
  r->handle = s;
  r->number = ++m->newest_stream;
  r->forgotten = false;
  link_add_tail(&m->named_streams, &r->link);
  oci_map_put(&m->streams, oci_stream_key(s), 1, 0, (uint64_t)(uintptr_t)r);
  return OC_OK;
}

oc_status oci_stream_name(struct oc_model *m, oc_stream s) {
  if (oci_stream_named(m, s)) return OC_OK;
  pthread_mutex_lock(&m->lock);
  oc_status st = name_locked(m, s);
  pthread_mutex_unlock(&m->lock);
  return st ? oci_error(st, "stream %p could not be named: out of host memory", (void *)s) : OC_OK;
}

oc_status oc_model_use_stream(oc_model *m, oc_stream s) {
  if (!m) return oci_error(OC_E_INVALID, "oc_model_use_stream: the model is NULL");
  struct task call;
  oc_status st = oci_call_begin(m, &call, "oc_model_use_stream");
  if (st) return st;
  st = oci_stream_check(m, s, "oc_model_use_stream");
  if (!st) st = oci_stream_name(m, s);
  oci_call_end(&call);
  return st;
}

/* ---- forgetting ---- */

/* Waits for the stream, or leaves an event there for those who wait later. */
static oc_status say_farewell(struct oc_model *m, oc_stream s, struct farewell **out) {
  if (!oci_dev_has_events(m->backend)) {
    if (oci_guarded())
      return oci_error(OC_E_GUARDED, "oc_model_forget_stream: without events it would wait for the stream, inside a guard");
    if (oci_dev_capturing(m, s))
      return oci_error(OC_E_CAPTURING, "oc_model_forget_stream: stream %p is capturing", (void *)s);
    return oci_dev_sync(m, s);
  }
  struct farewell *f = oci_alloc(m->heap, sizeof *f);
  if (!f) return oci_error(OC_E_HOST_NOMEM, "oc_model_forget_stream: out of host memory");
  oc_status st = oci_event_mark(m, s, &f->event);
  if (st) {
    oci_free(m->heap, f, sizeof *f);
    return st;
  }
  *out = f;
  return OC_OK;
}

static void farewell_free(struct oc_model *m, struct farewell *f) {
  oci_event_put(m, f->event);
  oci_free(m->heap, f, sizeof *f);
}

/* With the lock held: the first from there on, up to number `until`, that is not known to have passed. NULL: none. */
static struct farewell *use_farewell(struct oc_model *m, struct link *from, uint64_t until) {
  for (struct link *l = from; l != &m->farewells; l = l->next) {
    struct farewell *f = CONTAINER(l, struct farewell, link);
    if (f->number > until) return NULL;
    if (f->passed) continue;
    f->users++;
    return f;
  }
  return NULL;
}

/* With the lock held. True: f is off the list, and the caller's to free. */
static bool unuse_farewell(struct farewell *f, bool passed) {
  if (passed) f->passed = true;
  if (--f->users || !f->passed) return false;
  link_remove(&f->link);
  return true;
}

/* From one that is in use to the next; `at` is NULL before the first. */
static struct farewell *next_farewell(struct oc_model *m, struct farewell *at, bool passed, uint64_t until) {
  pthread_mutex_lock(&m->lock);
  struct farewell *next = use_farewell(m, at ? at->link.next : m->farewells.next, until);
  bool ours = at && unuse_farewell(at, passed);
  pthread_mutex_unlock(&m->lock);
  if (ours) farewell_free(m, at);
  return next;
}

/* Farewells of streams long gone would pile up in an engine that makes a stream a request. */
static void drop_passed(struct oc_model *m) {
  struct farewell *f = next_farewell(m, NULL, false, UINT64_MAX);
  while (f) {
    bool passed = oci_dev_event_query(m, f->event) == OC_OK;
    f = next_farewell(m, f, passed, passed ? UINT64_MAX : 0);
  }
}

/* With the lock held; NULL: not named (any more). */
static struct stream *find(struct oc_model *m, oc_stream s) {
  struct map_hit hit;
  return oci_map_get(&m->streams, oci_stream_key(s), &hit) ? oci_map_entry(hit.entry) : NULL;
}

/* Nobody uses it from here on: its farewell stands for it. */
static void unname(struct oc_model *m, oc_stream s, struct farewell *f) {
  pthread_mutex_lock(&m->lock);
  struct stream *r = oci_map_entry(oci_map_drop(&m->streams, oci_stream_key(s)));   /* NULL: another forget was first */
  if (f) {
    f->number = ++m->newest_farewell;
    link_add_tail(&m->farewells, &f->link);
  }
  if (r) r->forgotten = true;
  while (r && r->users) pthread_cond_wait(&m->stream_left, &m->lock);
  if (r) link_move_tail(&m->idle_streams, &r->link);
  pthread_mutex_unlock(&m->lock);
}

/* Inside a guard forget must not wait, for what may take as long as the stream's work. */
static bool in_use(struct oc_model *m, oc_stream s) {
  pthread_mutex_lock(&m->lock);
  const struct stream *r = find(m, s);
  bool used = r && r->users;
  pthread_mutex_unlock(&m->lock);
  return used;
}

static oc_status forget(struct oc_model *m, oc_stream s) {
  struct farewell *f = NULL;
  if (oci_guarded() && in_use(m, s))
    return oci_error(OC_E_GUARDED, "oc_model_forget_stream: another thread waits for stream %p, and this one is inside a guard",
                     (void *)s);
  oc_status st = say_farewell(m, s, &f);
  if (st) return st;
  oci_batches_forget_stream(&m->derived, s);
  oci_scratch_forget_stream(&m->opcache, s);
  unname(m, s, f);
  if (f) drop_passed(m);
  return OC_OK;
}

oc_status oc_model_forget_stream(oc_model *m, oc_stream s) {
  if (!m) return oci_error(OC_E_INVALID, "oc_model_forget_stream: the model is NULL");
  struct task call;
  oc_status st = oci_call_begin_give(m, &call, "oc_model_forget_stream");
  if (st) return st;
  if (oci_stream_named(m, s))
    st = oci_in_capture() ? oci_error(OC_E_CAPTURING, "oc_model_forget_stream: called inside a capture") : forget(m, s);
  oci_call_end(&call);
  return st;
}

/* ---- waiting ---- */

/* Those that are there now. */
oc_status oci_farewells_await(struct oc_model *m) {
  oc_status first = OC_OK;
  pthread_mutex_lock(&m->lock);
  uint64_t until = m->newest_farewell;
  pthread_mutex_unlock(&m->lock);
  struct farewell *f = next_farewell(m, NULL, false, until);
  while (f) {
    oc_status st = oci_event_await(m, f->event);
    if (st && !first) first = st;
    f = next_farewell(m, f, st == OC_OK, until);
  }
  return first;
}

/* A walk over the streams that were named when it began, without those under a capture: it takes no memory, for teardown
   has nobody to tell that there is none. One step: from a stream that is in use to the next. */
struct walk {
  struct stream *at;     /* in use; NULL: before the first, or at the end */
  uint64_t until;
  bool left_out;
};

static struct walk walk_begin(struct oc_model *m) {
  pthread_mutex_lock(&m->lock);
  struct walk w = {.until = m->newest_stream};
  pthread_mutex_unlock(&m->lock);
  return w;
}

/* With the lock held: the first from there on that the walk is for, in use now. */
static struct stream *use_stream(struct oc_model *m, struct link *from, struct walk *w) {
  for (struct link *l = from; l != &m->named_streams; l = l->next) {
    struct stream *r = CONTAINER(l, struct stream, link);
    if (r->number > w->until) return NULL;
    if (r->forgotten) continue;
    if (oci_capture_on(m, r->handle)) {
      w->left_out = true;
      continue;
    }
    r->users++;
    return r;
  }
  return NULL;
}

/* False at the end. */
static bool walk_on(struct oc_model *m, struct walk *w) {
  struct stream *old = w->at;
  pthread_mutex_lock(&m->lock);
  w->at = use_stream(m, old ? old->link.next : m->named_streams.next, w);
  if (old && --old->users == 0) pthread_cond_broadcast(&m->stream_left);
  pthread_mutex_unlock(&m->lock);
  return w->at != NULL;
}

/* Not to the end. */
static void walk_stop(struct oc_model *m, struct walk *w) {
  w->until = 0;
  (void)walk_on(m, w);
}

static oc_status drain_named(struct oc_model *m, bool *left_out) {
  oc_status first = OC_OK;
  struct walk w = walk_begin(m);
  while (first != OC_E_DEVICE_LOST && walk_on(m, &w)) {
    oc_status st = oci_dev_sync(m, w.at->handle);
    if (st && (!first || st == OC_E_DEVICE_LOST)) first = st;
  }
  if (w.at) walk_stop(m, &w);
  *left_out = w.left_out;
  return first;
}

static bool ever_named(struct oc_model *m) {
  pthread_mutex_lock(&m->lock);
  bool named = m->newest_stream != 0;
  pthread_mutex_unlock(&m->lock);
  return named;
}

static oc_status drain(struct oc_model *m, bool *left_out) {
  oc_status st = ever_named(m) ? drain_named(m, left_out) : oci_dev_sync_all(m);
  oc_status fare = st == OC_E_DEVICE_LOST ? st : oci_farewells_await(m);
  return st ? st : fare;
}

oc_status oci_streams_drain(struct oc_model *m, bool *left_out) {
  *left_out = false;
  /* what free_on holds because there are no events waits for just this */
  struct pool_batch held = oci_pool_take(m->pool.core, POOL_TAKE_HELD);
  oc_status st = drain(m, left_out);
  if (st || *left_out) oci_pool_put_back(m->pool.core, &held);
  else oci_pool_give_back(m->pool.core, &held);
  return st;
}

bool oci_streams_capturing(struct oc_model *m, oc_stream *out) {
  if (!m->backend->ops.capturing) return false;
  struct walk w = walk_begin(m);
  while (walk_on(m, &w)) {
    if (!oci_dev_capturing(m, w.at->handle)) continue;
    *out = w.at->handle;
    walk_stop(m, &w);
    return true;
  }
  return false;
}

oc_status oci_streams_may_drain(struct oc_model *m, const char *call) {
  oc_stream s;
  if (!oci_streams_capturing(m, &s)) return OC_OK;
  return oci_error(OC_E_CAPTURING, "%s: stream %p is capturing, and would have to be waited for", call, (void *)s);
}

bool oci_farewell_take(struct oc_model *m, oc_event *out) {
  if (link_empty(&m->farewells)) return false;
  struct farewell *f = CONTAINER(m->farewells.next, struct farewell, link);
  *out = f->event;
  link_remove(&f->link);
  oci_free(m->heap, f, sizeof *f);
  return true;
}

void oci_streams_free(struct oc_model *m) {
  struct link *lists[] = {&m->named_streams, &m->idle_streams};
  for (size_t i = 0; i < 2; i++) {
    LINK_EACH(l, lists[i]) oci_free(m->heap, CONTAINER(l, struct stream, link), sizeof(struct stream));
  }
  LINK_EACH(l, &m->farewells) oci_free(m->heap, CONTAINER(l, struct farewell, link), sizeof(struct farewell));
  oci_map_free(&m->streams);
}
