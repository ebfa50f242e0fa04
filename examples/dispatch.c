/* SPDX-License-Identifier: MIT */
/* Serves requests while the model under them is swapped. cc dispatch.c $(pkg-config --cflags --libs liboc) -pthread */
#include <liboc/oc.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SWAPS = 20, THREADS = 2, KEY = 0x7f0000 };

static oc_backend *backend;
static oc_model *current;   /* atomic: read inside a guard only */
static int stopping;        /* atomic */
static oc_kernel_key scale_key = OC_KERNEL_KEY("ops", "scale");
static oc_tag_key act_key = OC_TAG_KEY("act");

static void check(oc_status st) {
  if (st == OC_OK) return;
  fprintf(stderr, "%s: %s\n", oc_status_name(st), oc_last_error());
  exit(1);
}

/* ---- one kernel of the embedded device: out[0] = 2 * weight[0] ---- */

static void scale(const oc_host_launch *launch, void *const *params) {
  uint64_t out, weight;
  (void)launch;
  memcpy(&out, params[0], sizeof out);
  memcpy(&weight, params[1], sizeof weight);
  *(uint32_t *)(uintptr_t)out = 2 * *(const uint32_t *)(uintptr_t)weight;
}

static const uint32_t param_bytes[] = {8, 8};
static const oc_host_function functions[] = {{"scale", scale, 2, param_bytes}};
static const oc_host_module ops_image = {sizeof ops_image, 1, functions};

static oc_status launch(oc_stream s, oc_kernel k, oc_devptr out, uint64_t weight) {
  const uint32_t one[3] = {1, 1, 1};
  void *params[] = {&out, &weight};
  return oc_backend_table(backend)->launch(oc_backend_self(backend), k, one, one, 0, s, params);
}

/* ---- the dispatch path: once the model is warm, hits only, no lock ---- */

/* Inside the model's guard: what these calls return stays valid until it is left, whoever tears the model down. */
static oc_status dispatch(oc_model *m, oc_stream s) {
  oc_kernel k;
  oc_devptr act;
  uint64_t weight;
  oc_status st = oc_derived_get_ptr_on(oc_model_derived(m), OC_BF16, KEY, s, &weight);
  if (!st) st = oc_opcache_kernel_k(oc_model_opcache(m), &scale_key, &k);
  if (!st) st = oc_opcache_scratch_on_k(oc_model_opcache(m), &act_key, s, 4096, &act);
  return st ? st : launch(s, k, act, weight);
}

/* The weight as the kernel wants it. Queued on the build's stream; others who want it wait for its event. */
static oc_status convert(oc_build *b, void *stream, uint64_t *out) {
  oc_status st = oc_build_alloc(b, 4096, 0, out);
  if (!st) st = oc_build_on_stream(b, stream);
  if (!st) st = oc_backend_table(backend)->memset(oc_backend_self(backend), *out, 1, 4096, stream);
  return st;
}

/* Outside every guard, for it may wait: the hold keeps the model. */
static void build_what_is_missing(oc_model *m, oc_stream s) {
  uint64_t weight;
  oc_status st = oc_derived_get_or_build_ptr(oc_model_derived(m), OC_BF16, KEY, convert, s, &weight);
  if (st != OC_E_RELEASED) check(st);   /* RELEASED: swapped meanwhile; the next try finds the new model */
  check(oc_model_release_hold(m, "miss"));
}

/* OC_OK: served. OC_E_RELEASED: the pointer was read just before a swap; try again. OC_MISS: built; try again. */
static oc_status serve(oc_stream s) {
  oc_guard_enter();
  oc_model *m = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
  oc_status st = oc_model_enter(m);
  if (!st) {
    st = dispatch(m, s);
    if (st == OC_MISS && oc_model_retain(m, "miss") != OC_OK) st = OC_E_RELEASED;
    oc_model_leave(m);
  }
  oc_guard_leave();
  if (st == OC_MISS) build_what_is_missing(m, s);
  return st;
}

struct worker {
  pthread_t thread;
  oc_stream stream;      /* outlives every model that it is named to: else oc_model_forget_stream first */
  unsigned long served;  /* atomic */
};

static void *work(void *arg) {
  struct worker *w = arg;
  while (!__atomic_load_n(&stopping, __ATOMIC_ACQUIRE)) {
    oc_status st = serve(w->stream);
    if (st == OC_OK) __atomic_add_fetch(&w->served, 1, __ATOMIC_RELAXED);
    else if (st != OC_E_RELEASED && st != OC_MISS) check(st);
    check(oc_backend_table(backend)->synchronize(oc_backend_self(backend), w->stream));
  }
  return NULL;
}

/* ---- the swap ---- */

static oc_model *load(void) {
  oc_model_options options = {.struct_size = sizeof options, .name = "demo"};
  oc_model *m;
  check(oc_model_create(backend, &options, &m));
  check(oc_model_load_module(m, "ops", &ops_image, sizeof ops_image));
  return m;
}

/* Waits for guards, holds and queued work; then everything of the old model goes. */
static void unload(oc_model *m, int print) {
  oc_report *report;
  check(oc_model_teardown(m, &report));
  char *text = oc_report_text(report);
  if (print) fputs(text, stdout);
  oc_string_free(text);
  oc_report_free(report);
  check(oc_model_destroy(m));
}

static unsigned long served(struct worker *w) {
  unsigned long sum = 0;
  for (int i = 0; i < THREADS; i++) sum += __atomic_load_n(&w[i].served, __ATOMIC_RELAXED);
  return sum;
}

static void serve_some(struct worker *w) {
  unsigned long enough = served(w) + 100;
  while (served(w) < enough) sched_yield();
}

int main(void) {
  struct worker w[THREADS] = {0};
  check(oc_backend_open_host(NULL, &backend));
  const oc_backend_ops *ops = oc_backend_table(backend);
  current = load();
  for (int i = 0; i < THREADS; i++) {
    check(ops->stream_create(oc_backend_self(backend), &w[i].stream));
    pthread_create(&w[i].thread, NULL, work, &w[i]);
  }
  for (int i = 0; i < SWAPS; i++) {
    serve_some(w);
    unload(__atomic_exchange_n(&current, load(), __ATOMIC_ACQ_REL), 0);
  }
  serve_some(w);
  __atomic_store_n(&stopping, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < THREADS; i++) pthread_join(w[i].thread, NULL);
  unload(current, 1);
  for (int i = 0; i < THREADS; i++) check(ops->stream_destroy(oc_backend_self(backend), w[i].stream));
  check(oc_backend_close(backend));
  printf("%lu requests over %d models\n", served(w), SWAPS + 1);
  return 0;
}
