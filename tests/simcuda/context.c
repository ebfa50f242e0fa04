/* SPDX-License-Identifier: MIT */
/* Devices, contexts, and which one is current on a thread. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "rcu/mem.h"
#include "tests/simcuda/sim.h"

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
__thread struct sim_thread sim_thread;

static struct sim_context *contexts;                      /* all there ever were; under sim_lock */
static struct sim_context *primaries[SIMCUDA_DEVICES_MAX];

/* ---- lookups ---- */

struct sim_context *sim_current(void) {
  return sim_thread.depth ? sim_thread.stack[sim_thread.depth - 1] : NULL;
}

static struct sim_context *find_locked(const void *handle) {
  struct sim_context *c = contexts;
  while (c && c != handle) c = c->next;
  return c;
}

struct sim_context *sim_context_of(const void *handle) {
  pthread_mutex_lock(&sim_lock);
  struct sim_context *c = find_locked(handle);
  pthread_mutex_unlock(&sim_lock);
  return c;
}

static bool is_alive(const struct sim_context *c) {
  return c && __atomic_load_n(&c->alive, __ATOMIC_ACQUIRE);
}

cu_result sim_stream(struct sim_context *c, cu_stream handle, oc_stream *out) {
  void *core;
  bool capturing;
  *out = NULL;
  if ((uintptr_t)handle <= CU_STREAM_LEGACY_ONE) return CU_OK;
  if (!sim_core(c, handle, &core) || oci_devstream_capturing(&c->device->streams, core, &capturing) != OC_OK)
    return CU_E_INVALID_HANDLE;
  *out = core;
  return CU_OK;
}

cu_result sim_result(oc_status st, cu_result bad) {
  switch (st) {
    case OC_OK: return CU_OK;
    case OC_MISS: return CU_E_NOT_READY;
    case OC_E_INVALID: return bad;
    case OC_E_NOT_FOUND: return CU_E_NOT_FOUND;
    case OC_E_HOST_NOMEM:
    case OC_E_DEVICE_NOMEM: return CU_E_OUT_OF_MEMORY;
    default: return CU_E_UNKNOWN;
  }
}

/* ---- life ---- */

/* Under the lock. A tag that no living context has. */
static unsigned free_tag(void) {
  unsigned used = 0;
  for (const struct sim_context *c = contexts; c; c = c->next)
    if (c->alive || c->primary) used |= 1u << c->tag;
  for (unsigned tag = 1; tag < 16; tag++)
    if (!(used & 1u << tag)) return tag;
  return 0;
}

static struct sim_context *new_context(int ordinal, bool primary) {
  unsigned tag = free_tag();
  struct sim_context *c = tag ? oci_alloc(NULL, sizeof *c) : NULL;
  if (!c) return NULL;
  c->ordinal = ordinal;
  c->primary = primary;
  c->tag = tag;
  c->next = contexts;
  contexts = c;
  return c;
}

/* Under the lock: gives it a fresh device. */
static cu_result wake(struct sim_context *c) {
  const struct simcuda_options *o = sim_options(c->ordinal);
  struct device_options d = {.memory = {.poison = o->poison,
                                        .recycle = o->recycle,
                                        .chunks = o->chunks,
                                        .capacity = {[MEM_DEVICE] = o->device_bytes, [MEM_MANAGED] = o->managed_bytes}},
                             .recycle_handles = o->recycle};
  struct device *fresh;
  if (oci_device_open(&d, &fresh) != OC_OK) return CU_E_OUT_OF_MEMORY;
  __atomic_store_n(&c->device, fresh, __ATOMIC_RELEASE);
  __atomic_store_n(&c->sticky, CU_OK, __ATOMIC_RELAXED);
  __atomic_store_n(&c->bad_launches, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&c->alive, true, __ATOMIC_RELEASE);
  return CU_OK;
}

static void forget_streams(struct sim_context *c) {
  for (struct sim_stream *s; (s = c->blocking);) {
    c->blocking = s->next;
    oci_free(NULL, s, sizeof *s);
  }
}

/* Ends all that is in it, once what was queued has run. Called without the lock. */
static void end_context(struct sim_context *c) {
  pthread_mutex_lock(&sim_lock);
  struct device *d = c->alive ? c->device : NULL;
  __atomic_store_n(&c->alive, false, __ATOMIC_RELEASE);
  __atomic_store_n(&c->device, NULL, __ATOMIC_RELEASE);
  forget_streams(c);
  sim_capture_forget_context(c);
  pthread_mutex_unlock(&sim_lock);
  if (d) oci_device_close(d);
}

/* ---- driver and devices ---- */

cu_result cuInit(unsigned flags) {
  cu_result r;
  if (sim_answered(FN_cuInit, NULL, NULL, 0, &r)) return r;
  if (flags) return CU_E_INVALID_VALUE;
  if (sim_device_count() == 0) return CU_E_NO_DEVICE;
  sim_initialised();
  return CU_OK;
}

cu_result cuDriverGetVersion(int *version) {
  cu_result r;
  if (sim_answered(FN_cuDriverGetVersion, NULL, version, sizeof *version, &r)) return r;
  *version = 11000;
  return CU_OK;
}

cu_result cuDeviceGetCount(int *count) {
  cu_result r;
  if (sim_answered(FN_cuDeviceGetCount, NULL, count, sizeof *count, &r)) return r;
  *count = sim_device_count();
  return CU_OK;
}

static bool is_device(cu_device d) {
  return d >= 0 && d < sim_device_count();
}

cu_result cuDeviceGet(cu_device *device, int ordinal) {
  cu_result r;
  if (sim_answered(FN_cuDeviceGet, NULL, device, sizeof *device, &r)) return r;
  if (!is_device(ordinal)) return CU_E_INVALID_DEVICE;
  *device = ordinal;
  return CU_OK;
}

cu_result cuDeviceGetName(char *name, int bytes, cu_device device) {
  cu_result r;
  if (sim_answered(FN_cuDeviceGetName, NULL, name, 1, &r)) return r;
  if (!is_device(device)) return CU_E_INVALID_DEVICE;
  if (bytes <= 0) return CU_E_INVALID_VALUE;
  snprintf(name, (size_t)bytes, "simulated device %d", device);
  return CU_OK;
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device) {
  cu_result r;
  if (sim_answered(FN_cuDeviceTotalMem_v2, NULL, bytes, sizeof *bytes, &r)) return r;
  if (!is_device(device)) return CU_E_INVALID_DEVICE;
  *bytes = sim_options(device)->device_bytes;
  return CU_OK;
}

static int attribute(const struct simcuda_options *o, cu_attribute a) {
  switch (a) {
    case CU_ATTRIBUTE_INTEGRATED: return o->integrated;
    case CU_ATTRIBUTE_MANAGED_MEMORY: return o->managed != SIMCUDA_MANAGED_NO;
    case CU_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
      return o->managed == SIMCUDA_MANAGED_YES || o->managed == SIMCUDA_MANAGED_FAILS;
    default: return 0;
  }
}

cu_result cuDeviceGetAttribute(int *value, cu_attribute a, cu_device device) {
  cu_result r;
  if (sim_answered(FN_cuDeviceGetAttribute, NULL, value, sizeof *value, &r)) return r;
  if (!is_device(device)) return CU_E_INVALID_DEVICE;
  *value = attribute(sim_options(device), a);
  return CU_OK;
}

/* ---- primary contexts ---- */

static cu_result retain_locked(cu_device device, cu_context *out) {
  struct sim_context *c = primaries[device];
  if (!c) c = primaries[device] = new_context(device, true);
  if (!c) return CU_E_OUT_OF_MEMORY;
  cu_result r = c->alive ? CU_OK : wake(c);
  if (r) return r;
  c->refs++;
  *out = (cu_context)c;
  return CU_OK;
}

cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device) {
  cu_result r;
  if (sim_answered(FN_cuDevicePrimaryCtxRetain, NULL, context, sizeof *context, &r)) return r;
  if (!is_device(device)) return CU_E_INVALID_DEVICE;
  pthread_mutex_lock(&sim_lock);
  r = retain_locked(device, context);
  pthread_mutex_unlock(&sim_lock);
  return r;
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device) {
  cu_result r;
  if (sim_answered(FN_cuDevicePrimaryCtxRelease_v2, NULL, NULL, 0, &r)) return r;
  if (!is_device(device)) return CU_E_INVALID_DEVICE;
  pthread_mutex_lock(&sim_lock);
  struct sim_context *c = primaries[device];
  bool held = c && c->refs;
  bool last = held && --c->refs == 0;
  pthread_mutex_unlock(&sim_lock);
  if (!held) return CU_E_INVALID_CONTEXT;
  if (last) end_context(c);
  return CU_OK;
}

/* All that is in it is gone, whoever holds it; the next retain brings it back, empty. */
cu_result cuDevicePrimaryCtxReset_v2(cu_device device) {
  cu_result r;
  if (sim_answered(FN_cuDevicePrimaryCtxReset_v2, NULL, NULL, 0, &r)) return r;
  if (!is_device(device)) return CU_E_INVALID_DEVICE;
  if (primaries[device]) end_context(primaries[device]);
  return CU_OK;
}

/* ---- a thread's contexts ---- */

static cu_result push(struct sim_context *c) {
  if (!is_alive(c)) return CU_E_INVALID_CONTEXT;
  if (sim_thread.depth == SIM_STACK) return CU_E_OUT_OF_MEMORY;
  sim_thread.stack[sim_thread.depth++] = c;
  return CU_OK;
}

cu_result cuCtxGetCurrent(cu_context *context) {
  cu_result r;
  if (sim_answered(FN_cuCtxGetCurrent, NULL, context, sizeof *context, &r)) return r;
  *context = (cu_context)sim_current();
  return CU_OK;
}

cu_result cuCtxSetCurrent(cu_context context) {
  cu_result r;
  if (sim_answered(FN_cuCtxSetCurrent, NULL, NULL, 0, &r)) return r;
  struct sim_context *c = sim_context_of(context);
  if (context && !is_alive(c)) return CU_E_INVALID_CONTEXT;
  if (sim_thread.depth) sim_thread.depth--;
  return context ? push(c) : CU_OK;
}

cu_result cuCtxPushCurrent_v2(cu_context context) {
  cu_result r;
  if (sim_answered(FN_cuCtxPushCurrent_v2, NULL, NULL, 0, &r)) return r;
  return push(sim_context_of(context));
}

cu_result cuCtxPopCurrent_v2(cu_context *context) {
  cu_result r;
  if (sim_answered(FN_cuCtxPopCurrent_v2, NULL, NULL, 0, &r)) return r;
  if (!sim_thread.depth) return CU_E_INVALID_CONTEXT;
  struct sim_context *c = sim_thread.stack[--sim_thread.depth];
  if (context) *context = (cu_context)c;
  return CU_OK;
}

cu_result cuCtxGetDevice(cu_device *device) {
  struct sim_context *c;
  cu_result r;
  if (sim_answered(FN_cuCtxGetDevice, &c, device, sizeof *device, &r)) return r;
  *device = c->ordinal;
  return CU_OK;
}

cu_result cuCtxCreate_v2(cu_context *context, unsigned flags, cu_device device) {
  cu_result r;
  (void)flags;
  if (sim_answered(FN_cuCtxCreate_v2, NULL, context, sizeof *context, &r)) return r;
  if (!is_device(device)) return CU_E_INVALID_DEVICE;
  pthread_mutex_lock(&sim_lock);
  struct sim_context *c = new_context(device, false);
  r = c ? wake(c) : CU_E_OUT_OF_MEMORY;
  pthread_mutex_unlock(&sim_lock);
  if (r == CU_OK) r = push(c);
  if (r == CU_OK) *context = (cu_context)c;
  return r;
}

/* Popped if it is on top of this thread's stack; where it is current on another thread it stays so, destroyed. */
cu_result cuCtxDestroy_v2(cu_context context) {
  cu_result r;
  if (sim_answered(FN_cuCtxDestroy_v2, NULL, NULL, 0, &r)) return r;
  struct sim_context *c = sim_context_of(context);
  if (!is_alive(c) || c->primary) return CU_E_INVALID_CONTEXT;
  if (sim_current() == c) sim_thread.depth--;
  end_context(c);
  return CU_OK;
}

/* ---- controls ---- */

bool simcuda_lose(void *context, int code) {
  struct sim_context *c = sim_context_of(context);
  if (c) __atomic_store_n(&c->sticky, code, __ATOMIC_RELAXED);
  return c != NULL;
}

static struct sim_context *living(const void *context) {
  struct sim_context *c = sim_context_of(context);
  return is_alive(c) ? c : NULL;
}

/* Not asked of the device first: a destroyed stream's handle still stalls and steps. */
static bool core_stream(const struct sim_context *c, const void *stream, oc_stream *out) {
  void *core = NULL;
  if ((uintptr_t)stream > CU_STREAM_LEGACY_ONE && !sim_core(c, stream, &core)) return false;
  *out = core;
  return true;
}

bool simcuda_stall(void *context, void *stream, bool stalled) {
  struct sim_context *c = living(context);
  oc_stream s;
  return c && core_stream(c, stream, &s) && oci_devstream_stall(&c->device->streams, s, stalled) == OC_OK;
}

bool simcuda_step(void *context, void *stream, uint32_t n) {
  struct sim_context *c = living(context);
  oc_stream s;
  return c && core_stream(c, stream, &s) && oci_devstream_step(&c->device->streams, s, n) == OC_OK;
}

bool simcuda_read_stats(void *context, struct simcuda_stats *out) {
  struct sim_context *c = living(context);
  uint64_t bytes;
  if (!c) return false;
  struct device *d = c->device;
  oci_devmem_usage(&d->memory, MEM_DEVICE, &out->device_used, &out->device_blocks);
  oci_devmem_usage(&d->memory, MEM_MANAGED, &out->managed_used, &out->managed_blocks);
  oci_devmem_usage(&d->memory, MEM_HOST, &bytes, &out->host_blocks);
  out->modules = oci_devmodules_live(&d->modules);
  out->streams = oci_devstreams_live(&d->streams);
  out->events = oci_devevents_live(&d->streams);
  out->graphs = sim_graphs(c);
  out->launches = __atomic_load_n(&d->launches, __ATOMIC_RELAXED);
  out->stale_launches = __atomic_load_n(&d->stale_launches, __ATOMIC_RELAXED);
  out->bad_launches = __atomic_load_n(&c->bad_launches, __ATOMIC_RELAXED);
  out->bad_frees = oci_devmem_bad_frees(&d->memory);
  return true;
}

int simcuda_primary_refs(int ordinal) {
  if (ordinal < 0 || ordinal >= SIMCUDA_DEVICES_MAX) return -1;
  pthread_mutex_lock(&sim_lock);
  int refs = primaries[ordinal] ? (int)primaries[ordinal]->refs : 0;
  pthread_mutex_unlock(&sim_lock);
  return refs;
}

int simcuda_ordinal(void *context) {
  const struct sim_context *c = sim_context_of(context);
  return c ? c->ordinal : -1;
}
