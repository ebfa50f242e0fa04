/* SPDX-License-Identifier: MIT */
/*
 * Streams and events of the embedded device: real asynchrony, on threads.
 *
 * streams: one device's; owned by the device, any thread may use it.
 * stream:  an ordered queue of operations and the worker thread that runs them. Never freed before the
 *          device, and its operation numbers go on when it is used again: (stream, number) stays a good
 *          question for ever. A destroyed one runs its queue to the end.
 * event:   the stream and the number of its latest record. Nothing queued refers to the event itself.
 * devop:   one queued operation, in its stream's memory.
 */
#ifndef OCI_LIBOC_DEVSTREAM_H
#define OCI_LIBOC_DEVSTREAM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "liboc/devslots.h"
#include "liboc/oc.h"

struct stream;

/* Runs on the worker. Anything but OC_OK is told, with its words, to the next synchronize of the stream. */
struct devop {
  oc_status (*run)(struct devop *op);
  size_t bytes;                /* of the whole record, a multiple of 16 */
};

struct streams {
  struct heap *heap;
  pthread_mutex_t lock;        /* create, destroy, reuse; taken before a stream's */
  struct slots handles, events;
  struct stream *all;          /* every stream ever made; pushed at the front only, atomic */
  struct stream *null_stream;
  unsigned spins;              /* rounds that an idle worker looks again before it sleeps */
};

/* Outcomes: OC_E_HOST_NOMEM. */
oc_status oci_devstreams_init(struct streams *ss, struct heap *heap, bool recycle);
/* Undoes stalls, lets all queues run to their end, joins every worker. */
void oci_devstreams_fini(struct streams *ss);

oc_status oci_devstream_create(struct streams *ss, oc_stream *out);
/* Never waits: what is queued still runs; a stalled queue stays stalled, and its handle still names it to
   oci_devstream_stall and oci_devstream_step. */
oc_status oci_devstream_destroy(struct streams *ss, oc_stream s);
uint32_t oci_devstreams_live(const struct streams *ss);

/* Opens a record of that many bytes at the queue's end and returns with the stream locked; *op is NULL, and
   nothing is locked, where the stream is capturing: the operation is recorded away. Fill in the record at
   once, then close it. Outcomes: OC_E_INVALID (no such stream), OC_E_HOST_NOMEM, OC_E_BACKEND (no worker
   thread). */
oc_status oci_devstream_open(struct streams *ss, oc_stream stream, size_t bytes, struct stream **out,
                             struct devop **op);
void oci_devstream_close(struct stream *s);

/* Waits for what was queued before. Outcomes: OC_E_INVALID; OC_E_BACKEND: an operation of it failed (told
   once), or the stream is capturing. */
oc_status oci_devstream_synchronize(struct streams *ss, oc_stream s);
/* The same for every stream, destroyed ones too. */
oc_status oci_devstreams_synchronize(struct streams *ss);

/* ---- events: of a capturing stream all are refused (OC_E_BACKEND), as the driver does ---- */
oc_status oci_devevent_create(struct streams *ss, oc_event *out);
oc_status oci_devevent_destroy(struct streams *ss, oc_event e);
oc_status oci_devevent_record(struct streams *ss, oc_event e, oc_stream s);
/* OC_OK: done, or never recorded. OC_MISS: not yet. */
oc_status oci_devevent_query(struct streams *ss, oc_event e);
/* s waits for the record made before this call. */
oc_status oci_devevent_wait(struct streams *ss, oc_stream s, oc_event e);
uint32_t oci_devevents_live(const struct streams *ss);

/* ---- controls ---- */
oc_status oci_devstream_stall(struct streams *ss, oc_stream s, bool stalled);
/* Lets a stalled stream run n more operations, or what it has, and waits for them. */
oc_status oci_devstream_step(struct streams *ss, oc_stream s, uint32_t n);
oc_status oci_devstream_set_capturing(struct streams *ss, oc_stream s, bool capturing);
oc_status oci_devstream_capturing(struct streams *ss, oc_stream s, bool *out);

#endif
