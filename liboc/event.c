/* SPDX-License-Identifier: MIT */
/* Events are created once and used again: creating one costs a driver more than recording it. */
#include "config.h"

#include <time.h>

#include "liboc/model.h"
#include "rcu/mem.h"

#define SPARE_MAX 256u

oc_status oci_event_get(struct oc_model *m, oc_event *out) {
  pthread_mutex_lock(&m->lock);
  bool spare = m->spare_count > 0;
  if (spare) *out = m->spare_events[--m->spare_count];
  pthread_mutex_unlock(&m->lock);
  return spare ? OC_OK : oci_dev_event_create(m, out);
}

static bool room_for_spare(struct oc_model *m) {
  if (m->spare_count < m->spare_cap) return true;
  size_t cap = m->spare_cap ? m->spare_cap * 2 : 16;
  if (cap > SPARE_MAX) return false;
  oc_event *more = oci_alloc(m->heap, cap * sizeof *more);
  if (!more) return false;
  for (size_t i = 0; i < m->spare_count; i++) more[i] = m->spare_events[i];
  oci_free(m->heap, m->spare_events, m->spare_cap * sizeof *more);
  m->spare_events = more;
  m->spare_cap = cap;
  return true;
}

void oci_event_put(struct oc_model *m, oc_event e) {
  pthread_mutex_lock(&m->lock);
  bool kept = room_for_spare(m);
  if (kept) m->spare_events[m->spare_count++] = e;
  pthread_mutex_unlock(&m->lock);
  if (!kept && !m->context_gone && oci_dev_event_destroy(m, e) != OC_OK)
    oci_log(OCI_LOG_WARNING, "an event could not be destroyed: %s", oci_error_text());
}

oc_status oci_event_mark(struct oc_model *m, oc_stream s, oc_event *out) {
  if (oci_dev_capturing(m, s))
    return oci_error(OC_E_CAPTURING, "event_record(stream %p) on %s: the stream is capturing", (void *)s,
                     m->backend->name);
  oc_event e;
  oc_status st = oci_event_get(m, &e);
  if (st) return st;
  st = oci_dev_event_record(m, e, s);
  if (st) {
    oci_event_put(m, e);
    return st;
  }
  *out = e;
  return OC_OK;
}

/* The table has no call that waits for an event on the host, so we ask, less and less often. */
oc_status oci_event_await(struct oc_model *m, oc_event e) {
  long ns = 5000;
  for (;;) {
    oc_status st = oci_dev_event_query(m, e);
    if (st != OC_MISS) return st;
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    if (ns < 500000) ns += ns / 2;
  }
}

static bool take_any(struct oc_model *m, oc_event *out) {
  if (!m->spare_count) return oci_farewell_take(m, out);
  *out = m->spare_events[--m->spare_count];
  return true;
}

oc_status oci_events_destroy(struct oc_model *m) {
  oc_status first = OC_OK;
  oc_event e;
  while (first != OC_E_DEVICE_LOST && take_any(m, &e)) {
    oc_status st = oci_dev_event_destroy(m, e);
    if (st && (!first || st == OC_E_DEVICE_LOST)) first = st;
  }
  return first;
}
