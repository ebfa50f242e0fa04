/* SPDX-License-Identifier: MIT */
/*
 * The host backend: the table of driver functions over the embedded device, and the controls that tests have
 * of it.
 *
 * host: self of the table. Owned by the backend; closed by its close entry.
 */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "liboc/backend.h"
#include "liboc/device.h"
#include "liboc/options.h"
#include "rcu/error.h"
#include "rcu/mem.h"

#define DEVICE_BYTES ((size_t)16 << 30)
#define MANAGED_BYTES ((size_t)64 << 30)
#define ALL_FLAGS (OC_HOST_POISON | OC_HOST_RECYCLE | OC_HOST_CHUNKS | OC_HOST_NO_MANAGED | OC_HOST_NO_EVENTS)

/* The table's entries that are counted and can be made to fail or to take long. */
#define ENTRIES(X)                                                                                     \
  X(alloc) X(free) X(module_load) X(module_unload) X(module_function) X(alloc_managed) X(mem_info)     \
  X(synchronize) X(synchronize_all) X(capturing) X(event_create) X(event_record) X(event_query)        \
  X(event_wait) X(event_destroy) X(stream_create) X(stream_destroy) X(copy_h2d) X(copy_d2h)            \
  X(copy_d2d) X(memset) X(host_alloc) X(host_free) X(launch)

#define AS_ENUM(name) ENTRY_##name,
#define AS_STRING(name) #name,
enum entry { ENTRIES(AS_ENUM) ENTRY_COUNT };
static const char *const entry_name[ENTRY_COUNT] = {ENTRIES(AS_STRING)};

/* What was ordered for an entry. Calls are numbered from 1 on. */
struct knob {
  uint64_t calls;              /* atomic */
  uint64_t delay_ns;           /* atomic */
  bool armed;                  /* atomic; what follows is under the lock */
  uint64_t first, last;        /* calls that fail */
  oc_status as;
};

struct host {
  struct device *device;
  oc_backend *backend;         /* NULL until it is open */
  uint32_t flags;
  pthread_mutex_t lock;
  struct knob knob[ENTRY_COUNT];
};

/* ---- what happens before every entry ---- */

static void sleep_ns(uint64_t ns) {
  struct timespec left = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;   /* a signal came */
}

static bool injected(struct host *h, struct knob *k, uint64_t call, oc_status *st) {
  if (!__atomic_load_n(&k->armed, __ATOMIC_ACQUIRE)) return false;
  pthread_mutex_lock(&h->lock);
  bool hit = k->armed && call >= k->first && call <= k->last;
  if (hit) *st = k->as;
  pthread_mutex_unlock(&h->lock);
  return hit;
}

static bool in_child(const struct host *h) {
  return h->backend && __atomic_load_n(&h->backend->forked, __ATOMIC_RELAXED);
}

/* Counts and delays the call. True where that was all: *st is the answer, made by oc_host_fail or by a
   mistake of the caller's. A success so made has an output of zeros. */
static bool answered(struct host *h, enum entry e, void *out, size_t out_bytes, oc_status *st) {
  struct knob *k = &h->knob[e];
  if (in_child(h)) {
    *st = oci_error(OC_E_FORKED, "%s: the device was opened by a parent process", entry_name[e]);
    return true;
  }
  uint64_t call = __atomic_add_fetch(&k->calls, 1, __ATOMIC_RELAXED);
  uint64_t delay = __atomic_load_n(&k->delay_ns, __ATOMIC_RELAXED);
  if (delay) sleep_ns(delay);
  if (out_bytes && !out) {
    *st = oci_error(OC_E_INVALID, "%s: no place for the output", entry_name[e]);
    return true;
  }
  if (!injected(h, k, call, st)) return false;
  if (*st != OC_OK) oci_error(*st, "%s: ordered to fail (call %" PRIu64 ")", entry_name[e], call);
  else if (out_bytes) memset(out, 0, out_bytes);
  return true;
}

/* ---- memory ---- */

static oc_status host_alloc(void *self, size_t bytes, oc_devptr *out) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_alloc, out, sizeof *out, &st)) return st;
  return oci_devmem_alloc(&h->device->memory, MEM_DEVICE, bytes, out);
}

static oc_status host_alloc_managed(void *self, size_t bytes, oc_devptr *out) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_alloc_managed, out, sizeof *out, &st)) return st;
  return oci_devmem_alloc(&h->device->memory, MEM_MANAGED, bytes, out);
}

static oc_status host_free(void *self, oc_devptr ptr) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_free, NULL, 0, &st)) return st;
  return oci_devmem_free(&h->device->memory, ptr, false);
}

static oc_status host_host_alloc(void *self, size_t bytes, void **out) {
  struct host *h = self;
  oc_status st;
  oc_devptr p;
  if (answered(h, ENTRY_host_alloc, out, sizeof *out, &st)) return st;
  st = oci_devmem_alloc(&h->device->memory, MEM_HOST, bytes, &p);
  if (st == OC_OK) *out = (void *)(uintptr_t)p;
  return st;
}

static oc_status host_host_free(void *self, void *ptr) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_host_free, NULL, 0, &st)) return st;
  return oci_devmem_free(&h->device->memory, (uint64_t)(uintptr_t)ptr, true);
}

static oc_status host_mem_info(void *self, size_t *free_bytes, size_t *total_bytes) {
  struct host *h = self;
  oc_status st;
  uint64_t used, blocks;
  size_t info[2] = {0, 0};
  bool outputs = free_bytes && total_bytes;
  if (!answered(h, ENTRY_mem_info, outputs ? info : NULL, sizeof info, &st)) {
    oci_devmem_usage(&h->device->memory, MEM_DEVICE, &used, &blocks);
    info[1] = h->device->memory.opt.capacity[MEM_DEVICE];
    info[0] = info[1] - used;
    st = OC_OK;
  }
  if (st != OC_OK) return st;
  *free_bytes = info[0];
  *total_bytes = info[1];
  return OC_OK;
}

/* ---- modules ---- */

static oc_status host_module_load(void *self, const void *image, size_t bytes, oc_module *out) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_module_load, out, sizeof *out, &st)) return st;
  return oci_devmodule_load(&h->device->modules, image, bytes, out);
}

static oc_status host_module_unload(void *self, oc_module m) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_module_unload, NULL, 0, &st)) return st;
  return oci_devmodule_unload(&h->device->modules, m);
}

static oc_status host_module_function(void *self, oc_module m, const char *func, oc_kernel *out) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_module_function, out, sizeof *out, &st)) return st;
  return oci_devmodule_function(&h->device->modules, m, func, out);
}

static oc_status host_launch(void *self, oc_kernel k, const uint32_t grid[3], const uint32_t block[3],
                             uint32_t shared_bytes, oc_stream s, void **params) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_launch, NULL, 0, &st)) return st;
  if (!grid || !block) return oci_error(OC_E_INVALID, "launch: %s is NULL", grid ? "block" : "grid");
  oc_host_launch shape = {{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes};
  return oci_device_launch(h->device, k, &shape, s, params);
}

/* ---- streams and events ---- */

static oc_status host_synchronize(void *self, oc_stream s) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_synchronize, NULL, 0, &st)) return st;
  return oci_devstream_synchronize(&h->device->streams, s);
}

static oc_status host_synchronize_all(void *self) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_synchronize_all, NULL, 0, &st)) return st;
  return oci_devstreams_synchronize(&h->device->streams);
}

static oc_status host_capturing(void *self, oc_stream s, bool *out) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_capturing, out, sizeof *out, &st)) return st;
  return oci_devstream_capturing(&h->device->streams, s, out);
}

static oc_status host_event_create(void *self, oc_event *out) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_event_create, out, sizeof *out, &st)) return st;
  return oci_devevent_create(&h->device->streams, out);
}

static oc_status host_event_record(void *self, oc_event e, oc_stream s) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_event_record, NULL, 0, &st)) return st;
  return oci_devevent_record(&h->device->streams, e, s);
}

static oc_status host_event_query(void *self, oc_event e) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_event_query, NULL, 0, &st)) return st;
  return oci_devevent_query(&h->device->streams, e);
}

static oc_status host_event_wait(void *self, oc_stream s, oc_event e) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_event_wait, NULL, 0, &st)) return st;
  return oci_devevent_wait(&h->device->streams, s, e);
}

static oc_status host_event_destroy(void *self, oc_event e) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_event_destroy, NULL, 0, &st)) return st;
  return oci_devevent_destroy(&h->device->streams, e);
}

static oc_status host_stream_create(void *self, oc_stream *out) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_stream_create, out, sizeof *out, &st)) return st;
  return oci_devstream_create(&h->device->streams, out);
}

static oc_status host_stream_destroy(void *self, oc_stream s) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_stream_destroy, NULL, 0, &st)) return st;
  return oci_devstream_destroy(&h->device->streams, s);
}

/* ---- copies ---- */

static oc_status host_copy_h2d(void *self, oc_devptr dst, const void *src, size_t n, oc_stream s) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_copy_h2d, NULL, 0, &st)) return st;
  return oci_device_copy_in(h->device, dst, src, n, s);
}

static oc_status host_copy_d2h(void *self, void *dst, oc_devptr src, size_t n, oc_stream s) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_copy_d2h, NULL, 0, &st)) return st;
  return oci_device_copy_out(h->device, dst, src, n, s);
}

static oc_status host_copy_d2d(void *self, oc_devptr dst, oc_devptr src, size_t n, oc_stream s) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_copy_d2d, NULL, 0, &st)) return st;
  return oci_device_copy(h->device, dst, src, n, s);
}

static oc_status host_memset(void *self, oc_devptr dst, uint8_t value, size_t n, oc_stream s) {
  struct host *h = self;
  oc_status st;
  if (answered(h, ENTRY_memset, NULL, 0, &st)) return st;
  return oci_device_fill(h->device, dst, value, n, s);
}

/* ---- open and close ---- */

static const char *host_last_error(void *self) {
  (void)self;
  return oci_error_text();
}

static void free_host(struct host *h) {
  pthread_mutex_destroy(&h->lock);
  oci_free(NULL, h, sizeof *h);
}

static void host_close(void *self) {
  struct host *h = self;
  oci_device_close(h->device);
  free_host(h);
}

static const oc_backend_ops host_ops = {
    .struct_size = sizeof(oc_backend_ops),
    .name = "host",
    .alloc = host_alloc,
    .free = host_free,
    .module_load = host_module_load,
    .module_unload = host_module_unload,
    .module_function = host_module_function,
    .alloc_managed = host_alloc_managed,
    .mem_info = host_mem_info,
    .synchronize = host_synchronize,
    .synchronize_all = host_synchronize_all,
    .capturing = host_capturing,
    .event_create = host_event_create,
    .event_record = host_event_record,
    .event_query = host_event_query,
    .event_wait = host_event_wait,
    .event_destroy = host_event_destroy,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .copy_h2d = host_copy_h2d,
    .copy_d2h = host_copy_d2h,
    .copy_d2d = host_copy_d2d,
    .memset = host_memset,
    .host_alloc = host_host_alloc,
    .host_free = host_host_free,
    .launch = host_launch,
    .last_error = host_last_error,
    .close = host_close,
};

static oc_backend_ops table_for(uint32_t flags) {
  oc_backend_ops ops = host_ops;
  if (flags & OC_HOST_NO_MANAGED) ops.alloc_managed = NULL;
  if (flags & OC_HOST_NO_EVENTS) {
    ops.event_create = NULL;
    ops.event_record = NULL;
    ops.event_query = NULL;
    ops.event_wait = NULL;
    ops.event_destroy = NULL;
  }
  return ops;
}

/* The options with their defaults filled in. */
static oc_status read_options(const oc_host_options *opt, oc_host_options *out) {
  oc_status st = OCI_OPTIONS(out, opt, "oc_backend_open_host");
  if (st != OC_OK) return st;
  uint32_t unknown = out->flags & ~(uint32_t)ALL_FLAGS;
  if (unknown) return oci_error(OC_E_INVALID, "oc_backend_open_host: unknown flags 0x%" PRIx32, unknown);
  if (!out->device_bytes) out->device_bytes = DEVICE_BYTES;
  if (!out->managed_bytes) out->managed_bytes = MANAGED_BYTES;
  return OC_OK;
}

static oc_status open_device(const oc_host_options *o, struct device **out) {
  struct device_options d = {
      .memory = {.poison = o->flags & OC_HOST_POISON,
                 .recycle = o->flags & OC_HOST_RECYCLE,
                 .chunks = o->flags & OC_HOST_CHUNKS,
                 .capacity = {[MEM_DEVICE] = o->device_bytes, [MEM_MANAGED] = o->managed_bytes}},
      .recycle_handles = o->flags & OC_HOST_RECYCLE};
  return oci_device_open(&d, out);
}

oc_status oc_backend_open_host(const oc_host_options *opt, oc_backend **out) {
  if (!out) return oci_error(OC_E_INVALID, "oc_backend_open_host: out is NULL");
  oc_host_options o;
  oc_status st = read_options(opt, &o);
  if (st != OC_OK) return st;
  struct host *h = oci_alloc(NULL, sizeof *h);
  if (!h) return oci_error(OC_E_HOST_NOMEM, "oc_backend_open_host: out of host memory");
  h->flags = o.flags;
  pthread_mutex_init(&h->lock, NULL);
  st = open_device(&o, &h->device);
  if (st != OC_OK) goto undo_host;
  oc_backend_ops ops = table_for(o.flags);
  st = oc_backend_create(&ops, h, &h->backend);
  if (st != OC_OK) goto undo_device;
  *out = h->backend;
  return OC_OK;

undo_device:
  oci_device_close(h->device);
undo_host:
  free_host(h);
  return st;
}

/* ---- controls ---- */

static oc_status find_host(const oc_backend *b, const char *call, struct host **out) {
  oc_status st = oci_backend_usable(b, call);
  if (st != OC_OK) return st;
  if (oc_backend_table(b)->alloc != host_alloc)
    return oci_error(OC_E_INVALID, "%s: backend %s is no host backend", call, oc_backend_table(b)->name);
  *out = oc_backend_self(b);
  return OC_OK;
}

static oc_status find_knob(struct host *h, const char *call, const char *entry, struct knob **out) {
  for (size_t i = 0; entry && i < ENTRY_COUNT; i++) {
    if (strcmp(entry, entry_name[i]) != 0) continue;
    *out = &h->knob[i];
    return OC_OK;
  }
  return oci_error(entry ? OC_E_NOT_FOUND : OC_E_INVALID, "%s: no table entry %s can be watched", call,
                   entry ? entry : "NULL");
}

static uint64_t all_calls(const struct host *h) {
  uint64_t sum = 0;
  for (size_t i = 0; i < ENTRY_COUNT; i++) sum += __atomic_load_n(&h->knob[i].calls, __ATOMIC_RELAXED);
  return sum;
}

static void read_stats(struct host *h, oc_host_stats *s) {
  struct device *d = h->device;
  s->flags = h->flags;
  oci_devmem_usage(&d->memory, MEM_DEVICE, &s->device_used, &s->device_blocks);
  oci_devmem_usage(&d->memory, MEM_MANAGED, &s->managed_used, &s->managed_blocks);
  s->modules = oci_devmodules_live(&d->modules);
  s->streams = oci_devstreams_live(&d->streams);
  s->events = oci_devevents_live(&d->streams);
  s->launches = __atomic_load_n(&d->launches, __ATOMIC_RELAXED);
  s->stale_launches = __atomic_load_n(&d->stale_launches, __ATOMIC_RELAXED);
  s->bad_frees = oci_devmem_bad_frees(&d->memory);
  s->calls = all_calls(h);
}

oc_status oc_host_get_stats(oc_backend *b, oc_host_stats *out) {
  struct host *h;
  oc_status st = find_host(b, "oc_host_get_stats", &h);
  if (st != OC_OK) return st;
  if (!out) return oci_error(OC_E_INVALID, "oc_host_get_stats: out is NULL");
  if (out->struct_size < offsetof(oc_host_stats, device_used))
    return oci_error(OC_E_INVALID, "oc_host_get_stats: struct_size is not set");
  oc_host_stats s = {.struct_size = out->struct_size};
  read_stats(h, &s);
  memcpy(out, &s, s.struct_size < sizeof s ? s.struct_size : sizeof s);
  return OC_OK;
}

uint64_t oc_host_calls(oc_backend *b, const char *entry) {
  struct host *h;
  struct knob *k;
  if (find_host(b, "oc_host_calls", &h) != OC_OK || find_knob(h, "oc_host_calls", entry, &k) != OC_OK)
    return 0;
  return __atomic_load_n(&k->calls, __ATOMIC_RELAXED);
}

oc_status oc_host_stall(oc_backend *b, oc_stream s, bool stalled) {
  struct host *h;
  oc_status st = find_host(b, "oc_host_stall", &h);
  return st == OC_OK ? oci_devstream_stall(&h->device->streams, s, stalled) : st;
}

oc_status oc_host_step(oc_backend *b, oc_stream s, uint32_t n) {
  struct host *h;
  oc_status st = find_host(b, "oc_host_step", &h);
  return st == OC_OK ? oci_devstream_step(&h->device->streams, s, n) : st;
}

oc_status oc_host_set_capturing(oc_backend *b, oc_stream s, bool capturing) {
  struct host *h;
  oc_status st = find_host(b, "oc_host_set_capturing", &h);
  return st == OC_OK ? oci_devstream_set_capturing(&h->device->streams, s, capturing) : st;
}

static void order_failures(struct knob *k, uint64_t nth, uint64_t count, oc_status as) {
  uint64_t done = __atomic_load_n(&k->calls, __ATOMIC_RELAXED);
  k->first = nth > UINT64_MAX - done ? UINT64_MAX : done + nth;
  k->last = count == 0 || count - 1 > UINT64_MAX - k->first ? UINT64_MAX : k->first + (count - 1);
  k->as = as;
  __atomic_store_n(&k->armed, nth != 0, __ATOMIC_RELEASE);
}

oc_status oc_host_fail(oc_backend *b, const char *entry, uint64_t nth, uint64_t count, oc_status as) {
  struct host *h;
  struct knob *k;
  oc_status st = find_host(b, "oc_host_fail", &h);
  if (st == OC_OK) st = find_knob(h, "oc_host_fail", entry, &k);
  if (st != OC_OK) return st;
  pthread_mutex_lock(&h->lock);
  order_failures(k, nth, count, as);
  pthread_mutex_unlock(&h->lock);
  return OC_OK;
}

oc_status oc_host_delay(oc_backend *b, const char *entry, uint64_t ns) {
  struct host *h;
  struct knob *k;
  oc_status st = find_host(b, "oc_host_delay", &h);
  if (st == OC_OK) st = find_knob(h, "oc_host_delay", entry, &k);
  if (st != OC_OK) return st;
  __atomic_store_n(&k->delay_ns, ns, __ATOMIC_RELAXED);
  return OC_OK;
}
