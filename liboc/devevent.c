/* SPDX-License-Identifier: MIT */
/* Events of the embedded device: the stream and the number of their latest record. */
#include "config.h"

#include <inttypes.h>

#include "liboc/devstream_internal.h"

struct event {
  struct slot slot;
  pthread_mutex_t lock;        /* taken before a stream's */
  bool made;                   /* the lock is there */
  struct stream *stream;       /* of the latest record; NULL: never recorded */
  uint32_t life;
  uint64_t number;
};

void oci_devevents_init(struct streams *ss, bool recycle) {
  oci_devslots_init(&ss->events, ss->heap, sizeof(struct event), SLOT_EVENT, recycle);
}

void oci_devevents_fini(struct streams *ss) {
  for (uint32_t i = 1; i < ss->events.count; i++) {
    struct event *e = (struct event *)oci_devslots_at(&ss->events, i);
    pthread_mutex_destroy(&e->lock);   /* made with the record */
  }
  oci_devslots_fini(&ss->events);
}

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
  if (!op) return oci_devstream_capture_refuses("event_record");
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
  return out->stream && captures_now(out->stream, life) ? oci_devstream_capture_refuses(what) : OC_OK;
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
  if (w->until.stream) oci_devstream_wait_done(w->until.stream, w->until.number);
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
  if (!op) return oci_devstream_capture_refuses("event_wait");
  op->run = run_wait;
  ((struct wait_op *)op)->until = m;
  oci_devstream_close(s);
  return OC_OK;
}
