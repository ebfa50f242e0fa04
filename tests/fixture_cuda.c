/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tests/fixture_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simcuda/simcuda.h"

/* ---- backends opened here ---- */

enum { OPEN_MAX = SIMCUDA_DEVICES_MAX };

/* inner is b, or what b is made of where the test wants a table without events. */
static struct opened {
  oc_backend *b, *inner;
  cu_stream blocking;          /* captures in place of the default stream, which cannot */
  uint64_t calls_before;       /* of the process, when it was opened */
} opened[OPEN_MAX];            /* each slot's backend under the lock, the rest its test's */
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;

static struct opened *find(const oc_backend *b) {
  struct opened *found = NULL;
  pthread_mutex_lock(&opened_lock);
  for (int i = 0; i < OPEN_MAX; i++)
    if (opened[i].b == b) found = &opened[i];
  pthread_mutex_unlock(&opened_lock);
  ck_assert_msg(found != NULL, "no backend of fx_open's");
  return found;
}

static void set(struct opened *o, const struct opened *value) {
  pthread_mutex_lock(&opened_lock);
  *o = *value;
  pthread_mutex_unlock(&opened_lock);
}

int fxc_ordinal(oc_backend *b) {
  return simcuda_find() ? (int)(find(b) - opened) : -1;
}

static void *context_of(const oc_backend *b) {
  return oc_cuda_context(find(b)->inner);
}

/* What a real driver cannot do ends the test in these words: tests/gpu/check.sh leaves out what says so. */
static const struct simcuda *sim(void) {
  const struct simcuda *s = simcuda_find();
  ck_assert_msg(s != NULL, "this needs the simulated driver");
  return s;
}

static struct simcuda_stats stats_of(const oc_backend *b) {
  struct simcuda_stats s = {0};
  ck_assert(sim()->simcuda_read_stats(context_of(b), &s));
  return s;
}

/* ---- open ---- */

static void close_inner(void *inner) {
  for (int i = 0; i < OPEN_MAX; i++)
    if (opened[i].inner && oc_backend_self(opened[i].inner) == inner) ck_ok(oc_backend_close(opened[i].inner));
}

static oc_backend *without_events(oc_backend *inner) {
  oc_backend_ops ops = *oc_backend_table(inner);
  oc_backend *b;
  ops.event_create = NULL;
  ops.event_record = NULL;
  ops.event_query = NULL;
  ops.event_wait = NULL;
  ops.event_destroy = NULL;
  ops.close = close_inner;
  ck_ok(oc_backend_create(&ops, oc_backend_self(inner), &b));
  return b;
}

static void prepare_device(int ordinal, const struct fx_options *o, const oc_host_module *kernels) {
  if (!simcuda_find() && !o->device_bytes && !o->managed_bytes && !o->no_managed && !o->recycle && !o->chunks) return;
  const struct simcuda_options options = {
    .device_bytes = o->device_bytes, .managed_bytes = o->managed_bytes, .recycle = o->recycle, .chunks = o->chunks,
    .poison = o->poison, .managed = o->no_managed ? SIMCUDA_MANAGED_NO : SIMCUDA_MANAGED_YES};
  sim()->simcuda_set_devices(SIMCUDA_DEVICES_MAX);
  sim()->simcuda_register(kernels);
  ck_assert(sim()->simcuda_configure(ordinal, &options));
  ck_assert(sim()->simcuda_forget(ordinal));
}

/* A slot that is claimed, and has no backend yet or no more. */
#define CHANGING ((oc_backend *)(uintptr_t)1)

/* A test may close a backend itself. */
static bool closed_elsewhere(int i) {
  return opened[i].b && opened[i].b != CHANGING && simcuda_find() && simcuda_find()->simcuda_primary_refs(i) == 0;
}

static int claim(void) {
  int free_slot = -1;
  pthread_mutex_lock(&opened_lock);
  for (int i = OPEN_MAX; i-- > 0;) {
    if (closed_elsewhere(i)) opened[i] = (struct opened){0};
    if (!opened[i].b) free_slot = i;
  }
  if (free_slot >= 0) opened[free_slot].b = CHANGING;
  pthread_mutex_unlock(&opened_lock);
  ck_assert_msg(free_slot >= 0, "more than %d backends open", OPEN_MAX);
  return free_slot;
}

oc_backend *fxc_open(const struct fx_options *o, const oc_host_module *kernels) {
  int slot = claim();
  oc_cuda_options opt = {.struct_size = sizeof opt, .ordinal = simcuda_find() ? slot : 0};
  prepare_device(slot, o, kernels);
  oc_backend *b;
  ck_ok(oc_backend_open_cuda(&opt, &b));
  struct opened fresh = {.inner = b, .b = o->no_events ? without_events(b) : b};
  if (simcuda_find()) {   /* calls of the opening do not count */
    ck_assert(simcuda_find()->simcuda_forget(slot));
    fresh.calls_before = simcuda_find()->simcuda_calls(SIMCUDA_ANY, NULL);
  }
  set(&opened[slot], &fresh);
  return fresh.b;
}

void fxc_close(oc_backend *b) {
  struct opened *o = find(b);
  if (o->blocking) fxc_capturing(b, NULL, false);
  const struct simcuda_stats none = {0}, s = simcuda_find() ? stats_of(b) : none;
  ck_assert_uint_eq(s.device_blocks + s.managed_blocks, 0);
  ck_assert_uint_eq(s.device_used + s.managed_used, 0);
  ck_assert_uint_eq(s.modules, 0);
  ck_assert_uint_eq(s.events, 0);
  ck_assert_uint_eq(s.stale_launches + s.bad_launches, 0);
  ck_assert_uint_eq(s.bad_frees, 0);
  struct opened closing = *o;
  closing.b = CHANGING;
  set(o, &closing);
  ck_ok(oc_backend_close(b));
  set(o, &(struct opened){0});
}

/* ---- knobs ---- */

/* A real driver can capture; the rest are the simulated one's. */
bool fxc_can(enum fx_knob k) {
  return k == FX_CAPTURE || simcuda_find();
}

static const struct { const char *entry, *function; } names[] = {
  {"alloc", "cuMemAlloc_v2"}, {"free", "cuMemFree_v2"}, {"module_load", "cuModuleLoadDataEx"},
  {"module_unload", "cuModuleUnload"}, {"module_function", "cuModuleGetFunction"},
  {"alloc_managed", "cuMemAllocManaged"}, {"mem_info", "cuMemGetInfo_v2"}, {"synchronize", "cuStreamSynchronize"},
  {"synchronize_all", "cuCtxSynchronize"}, {"capturing", "cuStreamIsCapturing"}, {"event_create", "cuEventCreate"},
  {"event_record", "cuEventRecord"}, {"event_query", "cuEventQuery"}, {"event_wait", "cuStreamWaitEvent"},
  {"event_destroy", "cuEventDestroy_v2"}, {"stream_create", "cuStreamCreate"},
  {"stream_destroy", "cuStreamDestroy_v2"}, {"copy_h2d", "cuMemcpyHtoDAsync_v2"},
  {"copy_d2h", "cuMemcpyDtoHAsync_v2"}, {"copy_d2d", "cuMemcpyDtoDAsync_v2"}, {"memset", "cuMemsetD8Async"},
  {"host_alloc", "cuMemHostAlloc"}, {"host_free", "cuMemFreeHost"}, {"launch", "cuLaunchKernel"},
};

static const char *function_of(const char *entry) {
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(names[i].entry, entry) == 0) return names[i].function;
  ck_abort_msg("no table entry %s", entry);
  return NULL;
}

/* The driver's answer that the backend turns into that status. */
static int code_of(oc_status st) {
  switch (st) {
    case OC_OK: return CU_OK;
    case OC_MISS: return CU_E_NOT_READY;
    case OC_E_INVALID: return CU_E_INVALID_VALUE;
    case OC_E_NOT_FOUND: return CU_E_NOT_FOUND;
    case OC_E_UNSUPPORTED: return CU_E_NOT_SUPPORTED;
    case OC_E_CAPTURING: return CU_E_CAPTURE_UNSUPPORTED;
    case OC_E_HOST_NOMEM:
    case OC_E_DEVICE_NOMEM: return CU_E_OUT_OF_MEMORY;
    case OC_E_DEVICE_LOST: return CU_E_LAUNCH_FAILED;
    default: return CU_E_UNKNOWN;
  }
}

void fxc_stall(oc_backend *b, oc_stream s, bool stalled) {
  ck_assert(sim()->simcuda_stall(context_of(b), s, stalled));
}

void fxc_fail(oc_backend *b, const char *entry, uint64_t nth, uint64_t count, oc_status as) {
  ck_assert(sim()->simcuda_fail(fxc_ordinal(b), function_of(entry), nth, count, code_of(as)));
}

void fxc_delay(oc_backend *b, const char *entry, uint64_t ns) {
  ck_assert(sim()->simcuda_delay(fxc_ordinal(b), function_of(entry), ns));
}

uint64_t fxc_calls(oc_backend *b, const char *entry) {
  return sim()->simcuda_calls(fxc_ordinal(b), function_of(entry));
}

/* Also those that name no device, so that none at all is none. */
uint64_t fxc_all_calls(oc_backend *b) {
  return sim()->simcuda_calls(SIMCUDA_ANY, NULL) - find(b)->calls_before;
}

uint64_t fxc_stale(oc_backend *b) { return stats_of(b).stale_launches + stats_of(b).bad_launches; }
uint64_t fxc_blocks(oc_backend *b) { return stats_of(b).device_blocks + stats_of(b).managed_blocks; }
uint64_t fxc_modules(oc_backend *b) { return stats_of(b).modules; }
uint64_t fxc_events(oc_backend *b) { return stats_of(b).events; }

/* A real one's figure is of all that uses the device. */
size_t fxc_used(oc_backend *b) { return stats_of(b).device_used; }

/* ---- captures that the library is not told of ---- */

static void enter(const oc_backend *b) {
  ck_assert_int_eq(cuda_direct()->context_push((cu_context)context_of(b)), CU_OK);
}

static void leave(void) {
  cu_context was;
  ck_assert_int_eq(cuda_direct()->context_pop(&was), CU_OK);
}

static void end_capture(cu_stream s) {
  cu_graph g = NULL;
  (void)cuda_more()->end_capture(s, &g);   /* a broken one ends too */
  if (g) ck_assert_int_eq(cuda_more()->graph_destroy(g), CU_OK);
}

/* The default stream cannot capture; a blocking stream that does makes it answer as if it did. */
static void capture_default(struct opened *o, bool on) {
  if (on) {
    ck_assert_int_eq(cuda_direct()->stream_create(&o->blocking, 0), CU_OK);
    ck_assert_int_eq(cuda_more()->begin_capture(o->blocking, CU_CAPTURE_RELAXED), CU_OK);
    return;
  }
  end_capture(o->blocking);
  ck_assert_int_eq(cuda_direct()->stream_destroy(o->blocking), CU_OK);
  o->blocking = NULL;
}

/* Relaxed, so that any thread may end it, and no other call is refused for it. */
void fxc_capturing(oc_backend *b, oc_stream s, bool on) {
  cu_stream stream = (cu_stream)(void *)s;
  enter(b);
  if (!s) capture_default(find(b), on);
  else if (on) ck_assert_int_eq(cuda_more()->begin_capture(stream, CU_CAPTURE_RELAXED), CU_OK);
  else end_capture(stream);
  leave();
}

/* ---- kernels ---- */

const char fxc_ptx[] =
  ".version 6.3\n"
  ".target sm_75\n"
  ".address_size 64\n"
  "// *ptr += n\n"
  ".visible .entry add(.param .u64 add_ptr, .param .u32 add_n)\n"
  "{\n"
  "  .reg .b32 %r<3>;\n"
  "  .reg .b64 %rd<3>;\n"
  "  ld.param.u64 %rd1, [add_ptr];\n"
  "  ld.param.u32 %r1, [add_n];\n"
  "  cvta.to.global.u64 %rd2, %rd1;\n"
  "  ld.global.u32 %r2, [%rd2];\n"
  "  add.s32 %r2, %r2, %r1;\n"
  "  st.global.u32 [%rd2], %r2;\n"
  "  ret;\n"
  "}\n"
  "// n words of value\n"
  ".visible .entry fill(.param .u64 fill_ptr, .param .u32 fill_value, .param .u32 fill_n)\n"
  "{\n"
  "  .reg .pred %p<2>;\n"
  "  .reg .b32 %r<4>;\n"
  "  .reg .b64 %rd<3>;\n"
  "  ld.param.u64 %rd1, [fill_ptr];\n"
  "  ld.param.u32 %r1, [fill_value];\n"
  "  ld.param.u32 %r2, [fill_n];\n"
  "  cvta.to.global.u64 %rd2, %rd1;\n"
  "NEXT:\n"
  "  setp.eq.u32 %p1, %r2, 0;\n"
  "  @%p1 bra DONE;\n"
  "  st.global.u32 [%rd2], %r1;\n"
  "  add.s64 %rd2, %rd2, 4;\n"
  "  sub.s32 %r2, %r2, 1;\n"
  "  bra NEXT;\n"
  "DONE:\n"
  "  ret;\n"
  "}\n";
const size_t fxc_ptx_bytes = sizeof fxc_ptx;
