/* SPDX-License-Identifier: MIT */
/*
 * What a CUDA driver's calls cost, against the library's for the same work; how the driver rounds memory; what loading and
 * unloading a model of many small tensors costs by single allocations and by the pool; and how long one model's launches
 * take while another is torn down.
 *   measure [--quick] [--json FILE]
 * A table on standard output. --quick: a twentieth of the work, for trying it out. All is scaled to the memory that is
 * free, and parts end early where the driver is slow; the figures say how far they came.
 */
#include "config.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simcuda/simcuda.h"
#include "tools/clock.h"
#include "tools/device.h"
#include "tools/histogram.h"
#include "tools/kernels.h"

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)
#define SECOND ((uint64_t)1000000000)

static struct world {
  const struct cuda_driver *driver;
  const struct cuda_more *more;
  struct device device;
  bool quick;
  json_t *out;
} w;

/* ---- what must work ---- */

static void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  fputs("measure: ", stderr);
  vfprintf(stderr, format, ap);
  fputc('\n', stderr);
  va_end(ap);
  exit(EXIT_FAILURE);
}

static void liboc_must(oc_status st, const char *what) {
  if (st != OC_OK) fail("%s: %s: %s", what, oc_status_name(st), oc_last_error());
}
#define LIBOC(call) liboc_must(call, #call)

static void driver_must(cu_result r, const char *what) {
  const char *name = "?";
  if (r == CU_OK) return;
  (void)w.driver->error_name(r, &name);
  fail("%s: %s (%d)", what, name, (int)r);
}
#define DRIVER(call) driver_must(w.driver->call, #call)

static void *need(size_t bytes) {
  void *p = calloc(bytes + 1, 1);
  if (!p) fail("no memory");
  return p;
}

static size_t scaled(size_t n) {
  return w.quick ? (n + 19) / 20 : n;
}

static size_t free_bytes(void) {
  size_t left, total;
  DRIVER(mem_info(&left, &total));
  return left;
}

static oc_model *model_new(size_t reserve) {
  const oc_model_options opt = {.struct_size = sizeof opt, .name = "measure", .reserve_bytes = reserve};
  oc_model *m;
  LIBOC(oc_model_create(w.device.backend, &opt, &m));
  return m;
}

static void load_kernels(oc_model *m) {
  size_t bytes;
  const void *image = oct_kernel_image("cuda", &bytes);
  LIBOC(oc_model_load_module(m, OCT_MODULE, image, bytes));
}

/* ---- single calls ---- */

/* n calls; the median of five rounds is what counts. */
typedef void round_fn(void *arg, size_t n);

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* before and after each round are not timed; either may be NULL. */
static double ns_each(round_fn *before, round_fn *timed, round_fn *after, void *arg, size_t n) {
  enum { ROUNDS = 5 };
  double ns[ROUNDS];
  for (int i = 0; i < ROUNDS; i++) {
    if (before) before(arg, n);
    uint64_t start = oct_now_ns();
    timed(arg, n);
    ns[i] = (double)(oct_now_ns() - start) / (double)n;
    if (after) after(arg, n);
  }
  qsort(ns, ROUNDS, sizeof *ns, by_size);
  return ns[ROUNDS / 2];
}

static void call_row(const char *work, const char *driver_call, double driver_ns, const char *library_call,
                     double library_ns) {
  printf("%-22s  %-34s %12.0f  %-34s %12.0f  %8.1fx\n", work, driver_call, driver_ns, library_call, library_ns,
         driver_ns / library_ns);
  json_array_append_new(json_object_get(w.out, "calls"),
                        json_pack("{ss ss sf ss sf}", "work", work, "driver", driver_call, "driver_ns", driver_ns, "library",
                                  library_call, "library_ns", library_ns));
}

struct calls {
  oc_model *model;
  cu_deviceptr *raw;
  oc_devptr *block;
  cu_module module;
  cu_context context;
  oc_event event;
};
enum { CALL_BYTES = 512 * 1024 };

static void raw_alloc(void *arg, size_t n) {
  struct calls *c = arg;
  for (size_t i = 0; i < n; i++) DRIVER(mem_alloc(&c->raw[i], CALL_BYTES));
}
static void raw_managed(void *arg, size_t n) {
  struct calls *c = arg;
  for (size_t i = 0; i < n; i++) DRIVER(mem_alloc_managed(&c->raw[i], CALL_BYTES, CU_ATTACH_GLOBAL));
}
static void raw_free(void *arg, size_t n) {
  struct calls *c = arg;
  for (size_t i = 0; i < n; i++) DRIVER(mem_free(c->raw[i]));
}
static void pool_alloc(void *arg, size_t n) {
  struct calls *c = arg;
  for (size_t i = 0; i < n; i++) LIBOC(oc_pool_alloc(oc_model_pool(c->model), CALL_BYTES, 0, &c->block[i]));
}
static void pool_free(void *arg, size_t n) {
  struct calls *c = arg;
  for (size_t i = 0; i < n; i++) LIBOC(oc_pool_free(oc_model_pool(c->model), c->block[i]));
}
static void raw_function(void *arg, size_t n) {
  struct calls *c = arg;
  cu_function f;
  for (size_t i = 0; i < n; i++) DRIVER(module_function(&f, c->module, "derive_bf16"));
}
static void kernel_by_strings(void *arg, size_t n) {
  struct calls *c = arg;
  oc_kernel k;
  for (size_t i = 0; i < n; i++) LIBOC(oc_opcache_kernel(oc_model_opcache(c->model), OCT_MODULE, "derive_bf16", &k));
}
static void kernel_by_key(void *arg, size_t n) {
  struct calls *c = arg;
  oc_kernel k;
  for (size_t i = 0; i < n; i++) LIBOC(oc_opcache_kernel_k(oc_model_opcache(c->model), oct_derive_key(DERIVE_BF16), &k));
}
static void push_pop(void *arg, size_t n) {
  struct calls *c = arg;
  cu_context was;
  for (size_t i = 0; i < n; i++) {
    DRIVER(context_push(c->context));
    DRIVER(context_pop(&was));
  }
}
/* Any call of the backend's that needs a context; this one does next to nothing else. */
static void query_event(void *arg, size_t n) {
  struct calls *c = arg;
  for (size_t i = 0; i < n; i++) LIBOC(w.device.ops->event_query(w.device.self, c->event));
}
static void raw_query_event(void *arg, size_t n) {
  struct calls *c = arg;
  for (size_t i = 0; i < n; i++) DRIVER(event_query((cu_event)(void *)c->event));
}

/* Through a model of its own, whose arenas are managed. */
static void measure_managed(struct calls *c, size_t n) {
  struct calls managed = *c;
  cu_deviceptr p;
  cu_result r = w.driver->mem_alloc_managed(&p, CALL_BYTES, CU_ATTACH_GLOBAL);
  if (r != CU_OK) {
    printf("%-22s  the driver says %d: not measured\n", "managed memory", (int)r);
    return;
  }
  DRIVER(mem_free(p));
  managed.model = model_new(0);
  oc_opcache_note_alloc_fallback(oc_model_opcache(managed.model));
  call_row("512 KiB, managed", "cuMemAllocManaged", ns_each(NULL, raw_managed, raw_free, c, n), "oc_pool_alloc, managed arenas",
           ns_each(NULL, pool_alloc, pool_free, &managed, n));
  LIBOC(oc_model_destroy(managed.model));
}

/* The backend's calls on a thread without its context, which they set and restore. */
static void measure_contexts(struct calls *c, size_t n) {
  cu_context was;
  call_row("an event asked", "cuEventQuery", ns_each(NULL, raw_query_event, NULL, c, n), "event_query, context current",
           ns_each(NULL, query_event, NULL, c, n));
  double pair = ns_each(NULL, push_pop, NULL, c, n);
  DRIVER(context_pop(&was));
  call_row("context pushed, popped", "cuCtxPushCurrent + cuCtxPopCurrent", pair, "event_query, none current",
           ns_each(NULL, query_event, NULL, c, n));
  DRIVER(context_push(c->context));
}

static void measure_calls(void) {
  size_t n = scaled(2000), hits = scaled(200000), few = scaled(400);
  struct calls c = {.model = model_new((size_t)n * CALL_BYTES), .raw = need(n * sizeof *c.raw),
                    .block = need(n * sizeof *c.block), .context = (cu_context)oc_cuda_context(w.device.backend)};
  size_t bytes;
  load_kernels(c.model);
  DRIVER(module_load(&c.module, oct_kernel_image("cuda", &bytes), 0, NULL, NULL));
  LIBOC(w.device.ops->event_create(w.device.self, &c.event));
  printf("\n%-22s  %-34s %12s  %-34s %12s  %9s\n", "work", "the driver's call", "ns", "the library's", "ns", "ratio");
  call_row("512 KiB", "cuMemAlloc", ns_each(NULL, raw_alloc, raw_free, &c, n), "oc_pool_alloc",
           ns_each(NULL, pool_alloc, pool_free, &c, n));
  call_row("512 KiB given back", "cuMemFree", ns_each(raw_alloc, raw_free, NULL, &c, n), "oc_pool_free",
           ns_each(pool_alloc, pool_free, NULL, &c, n));
  double function = ns_each(NULL, raw_function, NULL, &c, n);
  call_row("a kernel by strings", "cuModuleGetFunction", function, "oc_opcache_kernel, a hit",
           ns_each(NULL, kernel_by_strings, NULL, &c, hits));
  call_row("a kernel by key", "cuModuleGetFunction", function, "oc_opcache_kernel_k, a hit",
           ns_each(NULL, kernel_by_key, NULL, &c, hits));
  measure_contexts(&c, n);
  measure_managed(&c, few);
  LIBOC(w.device.ops->event_destroy(w.device.self, c.event));
  DRIVER(module_unload(c.module));
  LIBOC(oc_model_destroy(c.model));
  free(c.raw);
  free(c.block);
}

/* ---- granularity ---- */

/* n requests one by one, or fewer where that takes longer than `limit`. Returns how many. */
static size_t allocate_all(cu_deviceptr *p, const size_t *bytes, size_t each, size_t n, uint64_t limit) {
  uint64_t end = oct_now_ns() + limit;
  for (size_t i = 0; i < n; i++) {
    if (i % 64 == 0 && oct_now_ns() > end) return i;
    DRIVER(mem_alloc(&p[i], bytes ? bytes[i] : each));
  }
  return n;
}

static void free_all(const cu_deviceptr *p, size_t n) {
  for (size_t i = 0; i < n; i++) DRIVER(mem_free(p[i]));
}

static uint64_t used_since(size_t free_before) {
  size_t now = free_bytes();
  return free_before > now ? free_before - now : 0;
}

static void granularity_of(size_t bytes) {
  size_t before = free_bytes(), n = scaled(10000), fit = before / 2 / (bytes < 2 * MiB ? 2 * bytes : bytes + 2 * MiB);
  if (n > fit) n = fit;
  cu_deviceptr *p = need(n * sizeof *p);
  n = allocate_all(p, NULL, bytes, n, 4 * SECOND);
  uint64_t raw = used_since(before), asked = (uint64_t)n * bytes;
  free_all(p, n);
  before = free_bytes();
  oc_model *m = model_new(asked);
  oc_devptr block;
  for (size_t i = 0; i < n; i++) LIBOC(oc_pool_alloc_owned(oc_model_pool(m), "weights", bytes, 0, &block));
  uint64_t pool = used_since(before);
  LIBOC(oc_model_destroy(m));
  printf("%8zu KiB  %6zu  %16" PRIu64 "  %16" PRIu64 " %7.3f  %16" PRIu64 " %7.3f\n", bytes / KiB, n, asked, raw,
         (double)raw / (double)asked, pool, (double)pool / (double)asked);
  json_array_append_new(json_object_get(w.out, "granularity"),
                        json_pack("{sI sI sI sI sI}", "request_bytes", (json_int_t)bytes, "requests", (json_int_t)n, "asked",
                                  (json_int_t)asked, "driver_bytes", (json_int_t)raw, "pool_bytes", (json_int_t)pool));
  free(p);
}

static void measure_granularity(void) {
  static const size_t sizes[] = {4 * 1024, 400 * 1024, 600 * 1024, 800 * 1024, 1 << 20, 2 << 20, 3 << 20};
  printf("\n%12s  %6s  %16s  %16s %7s  %16s %7s\n", "request", "times", "asked", "by the driver", "ratio", "by the pool", "ratio");
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) granularity_of(sizes[i]);
}

/* ---- a model of many small tensors: exl3-moe-512e ---- */

enum { HIDDEN = 2560, VOCABULARY = 151936, EXPERTS = 512, LAYERS = 48, LAYER_TENSORS = 4 + 1 + EXPERTS * 3 * 4 + 2 };

struct tensors { size_t *bytes, count, layers; uint64_t sum; };

static void add(struct tensors *t, size_t bytes) {
  t->bytes[t->count++] = bytes;
  t->sum += bytes;
}

static void add_layer(struct tensors *t) {
  add(t, (size_t)4096 * HIDDEN * 2);      /* q */
  add(t, (size_t)512 * HIDDEN * 2);       /* k, v */
  add(t, (size_t)512 * HIDDEN * 2);
  add(t, (size_t)4096 * HIDDEN * 2);      /* o */
  add(t, (size_t)EXPERTS * HIDDEN * 2);   /* the gate */
  for (int i = 0; i < EXPERTS * 3; i++) {
    bool down = i % 3 == 2;
    add(t, 160 * 40 * 64 * 2);
    add(t, down ? 640 * 2 : HIDDEN * 2);
    add(t, down ? HIDDEN * 2 : 640 * 2);
    add(t, 4);
  }
  add(t, HIDDEN * 2);
  add(t, HIDDEN * 2);
}

/* As many layers as fit in two thirds of what is free, by a driver that loses a third. */
static struct tensors tensors_new(void) {
  struct tensors t = {.bytes = need((3 + (size_t)LAYERS * LAYER_TENSORS) * sizeof *t.bytes)};
  uint64_t room = free_bytes() / 3 * 2 / 4 * 3;
  size_t most = w.quick ? 1 : LAYERS;
  add(&t, (size_t)VOCABULARY * HIDDEN * 2);
  add(&t, HIDDEN * 2);
  add(&t, (size_t)VOCABULARY * HIDDEN * 2);
  while (t.layers < most && t.sum + (t.layers ? t.sum / t.layers : (uint64_t)1500 * MiB) <= room) {
    add_layer(&t);
    t.layers++;
  }
  return t;
}

struct load { double load_s, unload_s; uint64_t asked, used; size_t tensors, driver_frees; };

static double seconds_since(uint64_t start) {
  return (double)(oct_now_ns() - start) / 1e9;
}

static struct load load_singly(const struct tensors *t) {
  cu_deviceptr *p = need(t->count * sizeof *p);
  size_t before = free_bytes();
  struct load l = {0};
  uint64_t start = oct_now_ns();
  l.tensors = allocate_all(p, t->bytes, 0, t->count, 20 * SECOND);
  l.load_s = seconds_since(start);
  l.used = used_since(before);
  for (size_t i = 0; i < l.tensors; i++) l.asked += t->bytes[i];
  start = oct_now_ns();
  free_all(p, l.tensors);
  l.unload_s = seconds_since(start);
  l.driver_frees = l.tensors;
  free(p);
  return l;
}

/* The first n tensors, so that both did the same. reserve: their sum is told before. */
static struct load load_pooled(const struct tensors *t, size_t n, bool reserve) {
  struct load l = {.tensors = n};
  uint64_t rounded = 0;
  for (size_t i = 0; i < n; i++) {
    l.asked += t->bytes[i];
    rounded += (t->bytes[i] + 255) / 256 * 256;
  }
  size_t before = free_bytes();
  oc_devptr block;
  oc_report *report;
  uint64_t start = oct_now_ns();
  oc_model *m = model_new(reserve ? rounded : 0);
  for (size_t i = 0; i < n; i++) LIBOC(oc_pool_alloc_owned(oc_model_pool(m), "weights", t->bytes[i], 0, &block));
  l.load_s = seconds_since(start);
  l.used = used_since(before);
  start = oct_now_ns();
  LIBOC(oc_model_teardown(m, &report));
  l.unload_s = seconds_since(start);
  l.driver_frees = oc_report_arenas_freed(report);
  oc_report_free(report);
  LIBOC(oc_model_destroy(m));
  return l;
}

static void load_row(const char *how, const struct load *l) {
  printf("%-22s  %8zu  %12.3f  %12.3f  %16" PRIu64 " %7.3f  %8zu\n", how, l->tensors, l->load_s, l->unload_s, l->used,
         (double)l->used / (double)l->asked, l->driver_frees);
  json_array_append_new(json_object_get(w.out, "exl3_moe_512e"),
                        json_pack("{ss sI sf sf sI sI sI}", "how", how, "tensors", (json_int_t)l->tensors, "load_s", l->load_s,
                                  "unload_s", l->unload_s, "asked", (json_int_t)l->asked, "device_bytes", (json_int_t)l->used,
                                  "driver_frees", (json_int_t)l->driver_frees));
}

static void measure_model(void) {
  struct tensors t = tensors_new();
  printf("\nexl3-moe-512e, %zu of %d layers\n%-22s  %8s  %12s  %12s  %16s %7s  %8s\n", t.layers, LAYERS, "how", "tensors",
         "load s", "unload s", "device bytes", "ratio", "frees");
  struct load l = load_singly(&t);
  size_t n = l.tensors;
  load_row("cuMemAlloc of each", &l);
  l = load_pooled(&t, n, false);
  load_row("the pool", &l);
  l = load_pooled(&t, n, true);
  load_row("the pool, reserved", &l);
  json_object_set_new(w.out, "exl3_layers", json_integer((json_int_t)t.layers));
  free(t.bytes);
}

/* ---- model B's launches while A goes ---- */

enum { LAUNCH_ROWS = 64, LAUNCH_COLUMNS = 64 };

/* One thread launches and waits for it, all the time. A launch counts for the phase that it began in, or,
   where that was none, that began meanwhile: on a slow machine hardly one lies all within a teardown. */
enum phase { PHASE_OTHER, PHASE_ALONE, PHASE_TEARDOWN, PHASE_FREES, PHASES };

static struct b {
  pthread_t thread;
  oc_model *model;
  oc_stream stream;
  struct derive_params params;
  int stop, phase, phases, latest;    /* by __atomic; phases: how many began; latest: but PHASE_OTHER */
  struct histogram times[PHASES];     /* the thread's, until joined */
  uint64_t longest[PHASES];
  uint64_t counts[PHASES];            /* by __atomic */
} b;

static void launch_once(void) {
  struct fault why;
  oc_kernel k;
  LIBOC(oc_opcache_kernel_k(oc_model_opcache(b.model), oct_derive_key(DERIVE_BF16), &k));
  if (!oct_launch(&w.device, k, oct_derive_shape(DERIVE_BF16, LAUNCH_ROWS), (const uint64_t *)&b.params, sizeof b.params / 8,
                  b.stream, &why) || !oct_wait(&w.device, b.stream, &why))
    fail("%s", why.text);
}

static void *launching(void *none) {
  (void)none;
  LIBOC(oc_thread_attach());
  while (!__atomic_load_n(&b.stop, __ATOMIC_RELAXED)) {
    int phases = __atomic_load_n(&b.phases, __ATOMIC_ACQUIRE), phase = __atomic_load_n(&b.phase, __ATOMIC_ACQUIRE);
    uint64_t start = oct_now_ns();
    launch_once();
    uint64_t took = oct_now_ns() - start;
    if (phase == PHASE_OTHER && phases != __atomic_load_n(&b.phases, __ATOMIC_ACQUIRE))
      phase = __atomic_load_n(&b.latest, __ATOMIC_ACQUIRE);
    oct_histogram_add(&b.times[phase], took);
    if (took > b.longest[phase]) b.longest[phase] = took;
    __atomic_fetch_add(&b.counts[phase], 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void begin_launching(void) {
  struct fault why;
  b.model = model_new(0);
  load_kernels(b.model);
  if (!oct_stream_create(&w.device, &b.stream, &why)) fail("%s", why.text);
  LIBOC(oc_model_use_stream(b.model, b.stream));
  b.params = (struct derive_params){.kind = SOURCE_F32, .rows = LAUNCH_ROWS, .columns = LAUNCH_COLUMNS};
  LIBOC(oc_pool_alloc_owned(oc_model_pool(b.model), "weights", LAUNCH_ROWS * LAUNCH_COLUMNS * 4, 0, &b.params.source));
  LIBOC(oc_pool_alloc_owned(oc_model_pool(b.model), "weights", LAUNCH_ROWS * LAUNCH_COLUMNS * 2, 0, &b.params.out[0]));
  LIBOC(w.device.ops->memset(w.device.self, b.params.source, 0, LAUNCH_ROWS * LAUNCH_COLUMNS * 4, b.stream));
  launch_once();
  if (pthread_create(&b.thread, NULL, launching, NULL) != 0) fail("no thread");
}

static void end_launching(void) {
  struct fault why;
  __atomic_store_n(&b.stop, 1, __ATOMIC_RELAXED);
  pthread_join(b.thread, NULL);
  LIBOC(oc_model_destroy(b.model));
  if (!oct_stream_destroy(&w.device, b.stream, &why)) fail("%s", why.text);
}

static void set_phase(enum phase p) {
  if (p != PHASE_OTHER) __atomic_store_n(&b.latest, (int)p, __ATOMIC_RELEASE);
  __atomic_store_n(&b.phase, (int)p, __ATOMIC_RELEASE);
  __atomic_fetch_add(&b.phases, p != PHASE_OTHER, __ATOMIC_RELEASE);
}

/* Model A: blocks in arenas, kernels, a stream with work behind it. */
static void a_life(size_t blocks, oc_stream s) {
  oc_model *m = model_new((uint64_t)blocks * CALL_BYTES);
  oc_kernel k;
  oc_devptr p;
  load_kernels(m);
  LIBOC(oc_model_use_stream(m, s));
  LIBOC(oc_opcache_kernel_k(oc_model_opcache(m), oct_derive_key(DERIVE_BF16), &k));
  for (size_t i = 0; i < blocks; i++) LIBOC(oc_pool_alloc_owned(oc_model_pool(m), "weights", CALL_BYTES, 0, &p));
  set_phase(PHASE_TEARDOWN);
  LIBOC(oc_model_teardown(m, NULL));
  set_phase(PHASE_OTHER);
  LIBOC(oc_model_destroy(m));
}

/* The same memory as single allocations. */
static void a_life_singly(cu_deviceptr *p, size_t blocks) {
  size_t n = allocate_all(p, NULL, CALL_BYTES, blocks, SECOND);
  set_phase(PHASE_FREES);
  free_all(p, n);
  set_phase(PHASE_OTHER);
}

static bool enough(enum phase p, uint64_t end) {
  return __atomic_load_n(&b.counts[p], __ATOMIC_RELAXED) >= scaled(20000) || oct_now_ns() > end;
}

static void sleep_ms(long ms) {
  const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static void launches_row(const char *while_what, enum phase p) {
  double p50 = oct_histogram_quantile(&b.times[p], 0.5) / 1e3, p99 = oct_histogram_quantile(&b.times[p], 0.99) / 1e3;
  printf("%-34s  %8" PRIu64 "  %10.1f  %10.1f  %10.1f\n", while_what, b.times[p].total, p50, p99, (double)b.longest[p] / 1e3);
  json_array_append_new(json_object_get(w.out, "launch_to_done"),
                        json_pack("{ss sI sf sf sf}", "while", while_what, "launches", (json_int_t)b.times[p].total, "p50_us",
                                  p50, "p99_us", p99, "longest_us", (double)b.longest[p] / 1e3));
}

static void measure_launches(void) {
  size_t blocks = scaled(4000);
  if (blocks > free_bytes() / 4 / CALL_BYTES) blocks = free_bytes() / 4 / CALL_BYTES;
  cu_deviceptr *p = need(blocks * sizeof *p);
  uint64_t limit = scaled(8) * SECOND;
  struct fault why;
  oc_stream s;
  if (!oct_stream_create(&w.device, &s, &why)) fail("%s", why.text);
  begin_launching();
  set_phase(PHASE_ALONE);
  for (uint64_t end = oct_now_ns() + limit; !enough(PHASE_ALONE, end);) sleep_ms(1);
  set_phase(PHASE_OTHER);
  for (uint64_t end = oct_now_ns() + limit; !enough(PHASE_TEARDOWN, end);) a_life(blocks, s);
  for (uint64_t end = oct_now_ns() + limit; !enough(PHASE_FREES, end);) a_life_singly(p, blocks);
  end_launching();
  if (!oct_stream_destroy(&w.device, s, &why)) fail("%s", why.text);
  printf("\n%-34s  %8s  %10s  %10s  %10s\n", "B's launch to done, in microseconds", "launches", "p50", "p99", "longest");
  launches_row("alone", PHASE_ALONE);
  launches_row("A is torn down", PHASE_TEARDOWN);
  launches_row("A's blocks are freed one by one", PHASE_FREES);
  free(p);
}

/* ---- */

static void name_device(void) {
  char name[128] = "";
  int version = 0;
  size_t total = 0;
  cu_device device;
  DRIVER(device_get(&device, 0));
  driver_must(w.more->device_name(name, sizeof name, device), "cuDeviceGetName");
  driver_must(w.more->driver_version(&version), "cuDriverGetVersion");
  driver_must(w.more->device_total(&total, device), "cuDeviceTotalMem");
  printf("%s, %.1f GiB, CUDA driver %d.%d; liboc %s%s\n", name, (double)total / 0x1p30, version / 1000, version % 1000 / 10,
         oc_version(), w.quick ? "; quick: a twentieth of the work" : "");
  json_object_update_new(w.out, json_pack("{ss si sI ss sb}", "device", name, "cuda_driver", version, "device_bytes",
                                          (json_int_t)total, "liboc", oc_version(), "quick", (int)w.quick));
}

static void open_world(void) {
  struct fault why;
  w.out = json_pack("{s[] s[] s[] s[]}", "calls", "granularity", "exl3_moe_512e", "launch_to_done");
  if (!oct_device_open(&w.device, "cuda", 0, &why)) fail("%s", why.text);
  w.driver = cuda_direct();
  w.more = cuda_more();
  if (!w.driver || !w.more) fail("the driver lacks functions");
  DRIVER(context_push((cu_context)oc_cuda_context(w.device.backend)));
}

static void close_world(void) {
  cu_context was;
  struct fault why;
  DRIVER(context_pop(&was));
  if (!oct_device_close(&w.device, &why)) fail("%s", why.text);
}

int main(int argc, char **argv) {
  const char *json = NULL;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--quick") == 0) w.quick = true;
    else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) json = argv[++i];
    else fail("unknown argument '%s'", argv[i]);
  }
  open_world();
  name_device();
  measure_calls();
  measure_granularity();
  measure_model();
  measure_launches();
  close_world();
  if (json && json_dump_file(w.out, json, JSON_INDENT(2)) != 0) fail("%s cannot be written", json);
  json_decref(w.out);
  return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
