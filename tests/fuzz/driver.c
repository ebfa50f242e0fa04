/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tests/fuzz/driver.h"

#include <string.h>

#define GRAIN (UINT64_C(2) << 20)

static void is_wrong(struct driver *d, const char *what) {
  if (!d->wrong) d->wrong = what;
}

/* What the call at this entry must answer, if not what it would. */
static bool ordered(struct driver *d, enum entry_point at, oc_status *as) {
  if (d->capture) is_wrong(d, "a call in a capture");
  if (d->order_at != at || !d->order_in || --d->order_in) return false;
  if (--d->order_count) d->order_in = 1;
  d->met++;
  d->lost |= d->order_as == OC_E_DEVICE_LOST;
  *as = d->order_as;
  return true;
}

/* ---- memory ---- */

static oc_status give(struct driver *d, size_t bytes, oc_devptr *out) {
  if (d->memory_count == MEMORY_MOST || bytes > (uint64_t)1 << 40) return OC_E_DEVICE_NOMEM;
  *out = d->next;
  d->next += (bytes + 2 * GRAIN - 1) / GRAIN * GRAIN;
  d->memory[d->memory_count].at = *out;
  d->memory[d->memory_count++].bytes = bytes;
  d->bytes += bytes;
  return OC_OK;
}

static oc_status at_alloc(void *self, size_t bytes, oc_devptr *out) {
  oc_status st;
  return ordered(self, AT_ALLOC, &st) ? (*out = 0, st) : give(self, bytes, out);
}
static oc_status at_managed(void *self, size_t bytes, oc_devptr *out) {
  oc_status st;
  return ordered(self, AT_MANAGED, &st) ? (*out = 0, st) : give(self, bytes, out);
}

static oc_status at_free(void *self, oc_devptr ptr) {
  struct driver *d = self;
  oc_status st;
  if (ordered(d, AT_FREE, &st) && st != OC_OK) return st;
  for (unsigned i = 0; i < d->memory_count; i++) {
    if (d->memory[i].at != ptr) continue;
    d->bytes -= d->memory[i].bytes;
    d->memory[i] = d->memory[--d->memory_count];
    return OC_OK;
  }
  is_wrong(d, "a free of what is no allocation");
  return OC_E_INVALID;
}

bool driver_holds(const struct driver *d, uint64_t at, uint64_t bytes) {
  for (unsigned i = 0; i < d->memory_count; i++)
    if (at >= d->memory[i].at && at - d->memory[i].at + bytes <= d->memory[i].bytes) return true;
  return false;
}

/* ---- modules ---- */

oc_kernel driver_kernel(uint64_t module, const char *function) {
  return (oc_kernel)(uintptr_t)(module << 16 | (uint64_t)function[0] << 8 | 1);
}

static oc_status kernel_of(uint64_t module, const char *function, oc_kernel *out) {
  if (function[0] == 'n') return OC_E_NOT_FOUND;
  *out = function[0] == 'z' ? NULL : driver_kernel(module, function);   /* success, and no handle */
  return OC_OK;
}
static oc_status at_kernel(void *self, const char *module, const char *function, oc_kernel *out) {
  oc_status st;
  if (ordered(self, AT_KERNEL, &st)) return *out = NULL, st;
  return kernel_of((uint64_t)(uint8_t)module[0], function, out);
}
static oc_status at_load(void *self, const void *image, size_t bytes, oc_module *out) {
  struct driver *d = self;
  oc_status st;
  (void)image;
  (void)bytes;
  if (ordered(d, AT_LOAD, &st)) return *out = NULL, st;
  d->modules++;
  *out = (oc_module)(uintptr_t)(0x1000 + ++d->made);
  return OC_OK;
}
static oc_status at_unload(void *self, oc_module m) {
  struct driver *d = self;
  oc_status st;
  if (ordered(d, AT_UNLOAD, &st) && st != OC_OK) return st;
  if ((uintptr_t)m <= 0x1000 || !d->modules) is_wrong(d, "an unload of what was not loaded");
  d->modules--;
  return OC_OK;
}
static oc_status at_function(void *self, oc_module m, const char *function, oc_kernel *out) {
  oc_status st;
  if (ordered(self, AT_FUNCTION, &st)) return *out = NULL, st;
  return kernel_of((uintptr_t)m, function, out);
}

/* ---- streams and events ---- */

oc_stream driver_stream(unsigned i) { return (oc_stream)(uintptr_t)(0x100 * (i + 1)); }

static unsigned index_of(struct driver *d, oc_stream s) {
  uintptr_t i = (uintptr_t)s / 0x100 - 1;
  if (i < STREAMS) return (unsigned)i;
  is_wrong(d, "a stream that is none");
  return 0;
}

void driver_run(struct driver *d, unsigned stream) { d->ran[stream] = d->queued[stream]; }

static oc_status at_sync(void *self, oc_stream s) {
  struct driver *d = self;
  oc_status st;
  if (ordered(d, AT_SYNC, &st) && st != OC_OK) return st;
  driver_run(d, index_of(d, s));
  return OC_OK;
}
static oc_status at_sync_all(void *self) {
  struct driver *d = self;
  oc_status st;
  if (ordered(d, AT_SYNC, &st) && st != OC_OK) return st;
  for (unsigned i = 0; i < STREAMS; i++) driver_run(d, i);
  return OC_OK;
}
static oc_status at_capturing(void *self, oc_stream s, bool *out) {
  index_of(self, s);
  *out = false;
  return OC_OK;
}

static oc_status at_event_create(void *self, oc_event *out) {
  struct driver *d = self;
  oc_status st;
  unsigned i = 0;
  if (ordered(d, AT_EVENT, &st)) return *out = NULL, st;
  while (i < EVENTS_MOST && d->event[i].there) i++;
  if (i == EVENTS_MOST) return OC_E_BACKEND;
  d->event[i].there = true;
  d->events++;
  *out = (oc_event)(uintptr_t)(i + 1);
  return OC_OK;
}

/* The event behind a handle; NULL: none. */
static unsigned event_of(struct driver *d, oc_event e) {
  uintptr_t i = (uintptr_t)e - 1;
  if (i < EVENTS_MOST && d->event[i].there) return (unsigned)i;
  is_wrong(d, "an event that is none");
  return 0;
}

static oc_status at_record(void *self, oc_event e, oc_stream s) {
  struct driver *d = self;
  oc_status st;
  if (ordered(d, AT_RECORD, &st) && st != OC_OK) return st;
  unsigned i = event_of(d, e);
  d->event[i].stream = index_of(d, s);
  d->event[i].place = d->queued[d->event[i].stream];
  return OC_OK;
}

/* Whoever asks and asks waits: the device goes on meanwhile. */
static oc_status at_query(void *self, oc_event e) {
  struct driver *d = self;
  oc_status st;
  if (ordered(d, AT_QUERY, &st) && st != OC_OK) return st;
  unsigned i = event_of(d, e), stream = d->event[i].stream;
  if (d->ran[stream] < d->event[i].place && ++d->asked >= 16) driver_run(d, stream);
  return d->ran[stream] >= d->event[i].place ? OC_OK : OC_MISS;
}
static oc_status at_wait(void *self, oc_stream s, oc_event e) {
  struct driver *d = self;
  oc_status st;
  if (ordered(d, AT_WAIT, &st) && st != OC_OK) return st;
  event_of(d, e);
  index_of(d, s);
  return OC_OK;
}
static oc_status at_event_destroy(void *self, oc_event e) {
  struct driver *d = self;
  d->event[event_of(d, e)].there = false;
  d->events--;
  return OC_OK;
}

static const char *at_words(void *self) {
  (void)self;
  return "the driver's own words";
}

const oc_backend_ops driver_table = {
  .struct_size = sizeof driver_table, .name = "fuzz", .alloc = at_alloc, .free = at_free, .alloc_managed = at_managed,
  .kernel = at_kernel, .module_load = at_load, .module_unload = at_unload, .module_function = at_function,
  .synchronize = at_sync, .synchronize_all = at_sync_all, .capturing = at_capturing, .event_create = at_event_create,
  .event_record = at_record, .event_query = at_query, .event_wait = at_wait, .event_destroy = at_event_destroy,
  .last_error = at_words,
};

void driver_open(struct driver *d, uint64_t skew) {
  memset(d, 0, sizeof *d);
  d->next = UINT64_C(0x7f0000000000) + skew;
}
