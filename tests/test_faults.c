/* SPDX-License-Identifier: MIT */
/*
 * Every function that the library exports, with each fault that can meet it (G33, G23): its Nth host allocation fails, all
 * from the Nth on fail, its Nth call of each entry of the backend's table fails; for N = 1, 2, 3, ... until a run meets no
 * fault any more. After each: a status and words, a pool whose invariants hold, nothing half done, the same call works,
 * and after teardown no block, module, event or host byte is left. OC_OK is believed where the row says that the fault may
 * be hidden, and what the call was for is there. The driver also fails for good: its device is lost, and nothing goes back.
 *
 * Each row of the table is one function in a state where it has real work to do, and runs over a table with events and
 * over one without. A release that the driver refused by our order is made up for at the end, once: so a release that
 * was forgotten, or done twice, shows.
 *
 * Healthy output is "100%" and the number of points: one point is one run with one fault that was met.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "liboc/cudaload.h"
#include "liboc/model.h"
#include "rcu/mem.h"
#include "tests/world.h"
#include "tests/wrap.h"

/* ---- faults ---- */

static struct fault {
  const char *entry;     /* of the backend's table; NULL: host memory */
  oc_status as;
  bool for_good;         /* and all after the nth */
  unsigned nth, count;   /* atomic */
  bool armed, met;
} fault;

static bool strikes(void) {
  if (!fault.armed) return false;
  unsigned n = __atomic_add_fetch(&fault.count, 1, __ATOMIC_RELAXED);
  bool now = fault.for_good ? n >= fault.nth : n == fault.nth;
  if (now) fault.met = true;
  return now;
}

static bool no_memory(void *arg, size_t bytes) {
  (void)arg;
  (void)bytes;
  return !fault.entry && strikes();
}

/* ---- what the device holds; what the driver refused to take back by our order is ours to release, unless the library tries
   again ---- */

#define HELD_MAX 256

static struct held {
  const char *release;   /* the entry that gives it back */
  uint64_t handle;
  bool refused;
} held[HELD_MAX];
static unsigned held_count;

static oc_status note_held(oc_status st, const char *release, const void *handle) {
  if (st) return st;
  ck_assert_uint_lt(held_count, HELD_MAX);
  held[held_count] = (struct held){.release = release};
  memcpy(&held[held_count++].handle, handle, sizeof held->handle);   /* addresses and handles alike are of 64 bits */
  return OC_OK;
}

static oc_backend_ops through;   /* wrap's own table */

static oc_status noting_alloc(void *self, size_t bytes, oc_devptr *out) {
  return note_held(through.alloc(self, bytes, out), "free", out);
}
static oc_status noting_alloc_managed(void *self, size_t bytes, oc_devptr *out) {
  return note_held(through.alloc_managed(self, bytes, out), "free", out);
}
static oc_status noting_module_load(void *self, const void *image, size_t bytes, oc_module *out) {
  return note_held(through.module_load(self, image, bytes, out), "module_unload", out);
}
static oc_status noting_event_create(void *self, oc_event *out) {
  return note_held(through.event_create(self, out), "event_destroy", out);
}

static void note_release(const char *entry, uint64_t handle, bool refused) {
  for (unsigned i = 0; i < held_count; i++) {
    if (held[i].handle != handle || strcmp(held[i].release, entry) != 0) continue;
    held[i].refused = refused;
    if (!refused) held[i] = held[--held_count];
    return;
  }
}

/* A device that is lost is so for every call. */
static bool is_lost(void) { return fault.as == OC_E_DEVICE_LOST && fault.met; }

static bool hook(struct wrap *w, const char *entry, uint64_t arg, oc_status *answer) {
  (void)w;
  bool ours = fault.entry && (is_lost() || (strcmp(fault.entry, entry) == 0 && strikes()));
  if (ours) *answer = fault.as;
  note_release(entry, arg, ours);
  return ours;
}

static void release_held(oc_backend *inner, const struct held *h) {
  const oc_backend_ops *t = oc_backend_table(inner);
  void *self = oc_backend_self(inner), *handle = (void *)(uintptr_t)h->handle;
  if (strcmp(h->release, "free") == 0) ck_ok(t->free(self, h->handle));
  else if (strcmp(h->release, "module_unload") == 0) ck_ok(t->module_unload(self, handle));
  else ck_ok(t->event_destroy(self, handle));
}

/* What a lost device held is gone with it, whether the library tried to give it back or not. */
static void make_up_for(oc_backend *inner) {
  for (unsigned i = 0; i < held_count; i++)
    if (held[i].refused || is_lost()) release_held(inner, &held[i]);
  held_count = 0;
}

/* ---- the log ---- */

static unsigned logged;

static void on_log(void *arg, int level, const char *line) {
  (void)arg;
  (void)level;
  logged++;
  ck_assert_msg(!strstr(line, "bug"), "the library logged: %s", line);   /* a heap that was not empty, and the like */
}

/* ---- the stage ---- */

struct stage {
  struct wrap *w;
  oc_backend *b, *host;
  oc_model *m;
  oc_opcache *c;
  oc_derived *d;
  oc_pool *p;
  oc_stream s, idle;                 /* named; not */
  oc_devptr src, mine, other, old;   /* the caller's blocks; old is the source of an entry */
  oc_build *build;
  oc_report *report;
  oc_kernel_key key;
  oc_tag_key tag;
  unsigned released;                 /* times that the resource was */
  size_t written;                    /* bytes of a trace */
  char name[32];                     /* new each time: names are interned for ever */
};

#define TABLE(t) oc_backend_table((t)->w->inner)
#define SELF(t) oc_backend_self((t)->w->inner)

static const char refused_words[] = "refused by the test";

static const char *words(void *self) {
  struct wrap *w = self;
  return fault.entry && fault.met ? refused_words : oc_backend_table(w->inner)->last_error(oc_backend_self(w->inner));
}

static oc_status a_kernel(void *self, const char *module, const char *func, oc_kernel *out) {
  oc_status st;
  (void)module;
  if (hook(self, "kernel", 0, &st)) return st;
  if (strcmp(func, "named") != 0) return OC_E_NOT_FOUND;
  *out = (oc_kernel)self;
  return OC_OK;
}

static oc_status gone(void *self, oc_backend *b) {
  (void)b;
  ++*(unsigned *)self;
  return OC_OK;
}
static const oc_resource_ops resource = {sizeof resource, "graph", gone};

static oc_status make(oc_build *b, void *arg, uint64_t *out) {
  struct stage *t = arg;
  oc_devptr unused;
  oc_status st = oc_build_on_stream(b, t->s);
  for (unsigned i = 0; i < 5 && !st; i++) st = oc_build_alloc(b, 256, 0, &unused);
  return st ? st : oc_build_alloc(b, 1024, 0, out);
}

static oc_status make_pair(oc_build *b, void *arg, uint64_t out[2]) {
  oc_status st = make(b, arg, &out[0]);
  return st ? st : oc_build_alloc(b, 512, 0, &out[1]);
}

#define A_KEY ((uint64_t)0x7f0000)   /* no block's */

static void open_stage(struct stage *t, struct wrap *w, unsigned turn) {
  *t = (struct stage){.w = w, .b = w->outer};
  snprintf(t->name, sizeof t->name, "n%u", turn);
  t->key = (oc_kernel_key)OC_KERNEL_KEY(t->name, "add");
  t->tag = (oc_tag_key)OC_TAG_KEY(t->name);
  t->m = fx_model_opt(t->b, (oc_model_options){.name = t->name, .arena_min = 2 * MiB});
  t->c = oc_model_opcache(t->m);
  t->d = oc_model_derived(t->m);
  t->p = oc_model_pool(t->m);
  t->s = fx_stream(w->inner);
  t->idle = fx_stream(w->inner);
  ck_ok(oc_model_use_stream(t->m, t->s));
  ck_ok(oc_pool_alloc(t->p, 4096, 0, &t->src));
  ck_ok(oc_pool_alloc(t->p, 4096, 0, &t->old));
  ck_ok(oc_pool_alloc(t->p, 1000, 0, &t->mine));
  ck_ok(oc_pool_alloc(t->p, 1000, 0, &t->other));
  fx_load(t->m, t->name);
}

/* Nothing strikes any more. */
static void disarm(void) { fault.armed = false; }

static void close_stage(struct stage *t) {
  disarm();
  if (t->build) oc_build_abort(t->build);
  oc_report_free(t->report);
  if (t->m) {
    oc_status st = oc_model_destroy(t->m);
    ck_assert_msg(st == OC_OK || (st == OC_E_TEARDOWN && !is_lost()), "destroy: %s", oc_last_error());
  }
  if (t->host) ck_ok(oc_backend_close(t->host));
  make_up_for(t->w->inner);
  fx_stream_free(t->w->inner, t->s);
  fx_stream_free(t->w->inner, t->idle);
  ck_assert_uint_eq(fx_blocks(t->w->inner), 0);
  ck_assert_uint_eq(fx_modules(t->w->inner), 0);
  ck_assert_uint_eq(fx_events(t->w->inner), 0);
  ck_assert_uint_le(t->released, 1);
}

/* ---- what a row starts from ---- */

static void with_entry(struct stage *t) {
  uint64_t v;
  ck_ok(oc_derived_get_or_build_ptr(t->d, OC_BF16, t->old, make, t, &v));
  const uint64_t of[2] = {t->mine, t->other};
  ck_ok(oc_derived_insert_pair(t->d, OC_ROWWISE_FP8, v, of, NULL));
}
static void with_pair(struct stage *t) {
  uint64_t v[2];
  ck_ok(oc_derived_get_or_build_pair(t->d, OC_ROWWISE_FP8, t->old, make_pair, t, v));
}
static void with_build(struct stage *t) {
  uint64_t v[2];
  ck_status(oc_derived_begin(t->d, OC_BF16, A_KEY, &t->build, v), OC_MISS);
}
static void with_built(struct stage *t) {
  with_build(t);
  ck_ok(make(t->build, t, &t->src));
}
static void with_scratch(struct stage *t) {
  oc_devptr p;
  ck_ok(oc_opcache_scratch(t->c, t->name, 3 * MiB, &p));
  ck_ok(oc_opcache_scratch_on(t->c, t->name, t->s, 1 * MiB, &p));
  ck_ok(oc_opcache_scratch_on(t->c, t->name, t->s, 2 * MiB, &p));
}
/* What graphs_gone gives back. */
static void with_retired(struct stage *t) {
  oc_devptr p;
  with_entry(t);
  ck_ok(oc_pool_alloc(t->p, 4096, 0, &p));
  ck_ok(oc_derived_settle(t->d));
  ck_ok(oc_capture_enter(t->m, t->s));
  uint64_t v;
  ck_ok(oc_derived_get_ptr(t->d, OC_BF16, t->old, &v));
  ck_ok(oc_pool_free(t->p, p));
  oc_capture_leave(t->m);
  with_scratch(t);
}
/* All that a teardown releases. */
static void with_everything(struct stage *t) {
  with_retired(t);
  ck_ok(oc_model_push(t->m, &resource, &t->released));
  ck_ok(oc_pool_alloc_owned(t->p, "weights", 100 * KiB, 0, &t->src));
  oc_devptr foreign, block;
  ck_ok(oc_pool_alloc(t->p, 4096, 0, &block));
  ck_ok(oc_pool_free_on(t->p, block, t->s));
  ck_ok(oc_backend_table(t->b)->alloc(oc_backend_self(t->b), 4096, &foreign));
  ck_ok(oc_derived_insert_ptr(t->d, OC_BF16, A_KEY, foreign, NULL));
  ck_ok(oc_model_use_stream(t->m, t->idle));
  ck_ok(oc_model_forget_stream(t->m, t->idle));
}
/* Two arenas that hold nothing, and a block that its stream has passed. */
static void with_empty(struct stage *t) {
  oc_devptr big[2];
  for (int i = 0; i < 2; i++) ck_ok(oc_pool_alloc(t->p, 9 * MiB, 0, &big[i]));
  ck_ok(oc_pool_free(t->p, big[0]));
  ck_ok(oc_pool_free_on(t->p, big[1], t->s));
}
static void with_external(struct stage *t) {
  ck_ok(oc_pool_note_external(t->p, 0x4000, 0x1000, "framework"));
  ck_ok(oc_derived_insert_ptr(t->d, OC_BF16, A_KEY, 0x4100, NULL));
}
static void with_hold(struct stage *t) { ck_ok(oc_model_retain(t->m, "holder")); }
static void with_pushed(struct stage *t) { ck_ok(oc_model_push(t->m, &resource, &t->released)); }
static void with_report(struct stage *t) {
  with_everything(t);
  ck_ok(oc_model_teardown(t->m, &t->report));
}
static void with_host(struct stage *t) { ck_ok(oc_backend_open_host(NULL, &t->host)); }

/* ---- rows: one function each. What returns no status is OC_OK, or OC_E_HOST_NOMEM where it has nothing ---- */

#define ROW(symbol) static oc_status row_##symbol(struct stage *t)
#define PLAIN(symbol, expression) \
  ROW(symbol) { (void)t; return (expression) ? OC_OK : OC_E_INVALID; }
#define CALL(symbol, expression) \
  ROW(symbol) { (void)t; return (expression); }

static oc_status text_or_none(char *text) {
  oc_string_free(text);
  return text ? OC_OK : OC_E_HOST_NOMEM;
}
static oc_status opened(oc_status st, oc_backend **b) {
  disarm();
  if (!st) ck_ok(oc_backend_close(*b));
  else ck_assert_ptr_null(*b);
  return st;
}

ROW(oc_backend_create) {
  oc_backend *b = NULL;
  const oc_backend_ops ops = wrap_table();
  return opened(oc_backend_create(&ops, t->w, &b), &b);
}
ROW(oc_backend_open_host) {
  (void)t;
  oc_backend *b = NULL;
  return opened(oc_backend_open_host(NULL, &b), &b);
}
ROW(oc_backend_open_cuda) {
  (void)t;
  oc_backend *b = NULL;
  oc_status st = opened(oc_backend_open_cuda(NULL, &b), &b);
  return st == OC_E_NO_DRIVER && fx_which() == FX_HOST ? OC_OK : st;
}
ROW(oc_backend_close) {
  oc_status st = oc_backend_close(t->host);
  if (!st) t->host = NULL;
  return st;
}
PLAIN(oc_backend_self, oc_backend_self(t->b) == t->w)
PLAIN(oc_backend_table, oc_backend_table(t->b) != NULL)
PLAIN(oc_cuda_context, oc_cuda_context(t->b) == NULL)

ROW(oc_host_get_stats) {
  oc_host_stats s = {.struct_size = sizeof s};
  return oc_host_get_stats(t->host, &s);
}
PLAIN(oc_host_calls, oc_host_calls(t->host, "alloc") == 0)
CALL(oc_host_fail, oc_host_fail(t->host, "alloc", 1, 1, OC_E_BACKEND))
CALL(oc_host_delay, oc_host_delay(t->host, "alloc", 1))
CALL(oc_host_set_capturing, oc_host_set_capturing(t->host, NULL, false))
ROW(oc_host_stall) {
  oc_status st = oc_host_stall(t->host, NULL, true);
  return st ? st : oc_host_stall(t->host, NULL, false);
}
ROW(oc_host_step) {
  oc_status st = oc_host_stall(t->host, NULL, true);
  return st ? st : oc_host_step(t->host, NULL, 1);
}

ROW(oc_model_create) {
  oc_model *m = NULL;
  const oc_model_options o = {.struct_size = sizeof o, .name = "another", .arena_min = 2 * MiB, .reserve_bytes = 5 * MiB};
  oc_status st = oc_model_create(t->b, &o, &m);
  disarm();
  if (st) ck_assert_ptr_null(m);
  else ck_ok(oc_model_destroy(m));
  return st;
}
PLAIN(oc_model_generation, oc_model_generation(t->m) > 0)
PLAIN(oc_model_opcache, oc_model_opcache(t->m) == t->c)
PLAIN(oc_model_derived, oc_model_derived(t->m) == t->d)
PLAIN(oc_model_pool, oc_model_pool(t->m) == t->p)
ROW(oc_model_load_module) {
  size_t bytes;
  const void *image = fx_image(&bytes);
  if (fx_which() == FX_CUDA) bytes--;   /* PTX without its NUL, to which the library adds one */
  return oc_model_load_module(t->m, "another", image, bytes);
}
CALL(oc_model_adopt_module, oc_model_adopt_module(t->m, "adopted", (oc_module)t->w))
ROW(oc_model_module) {
  oc_module mod;
  return oc_model_module(t->m, t->name, &mod);
}
ROW(oc_model_retain) {
  oc_status st = oc_model_retain(t->m, "holder");
  if (!st) ck_ok(oc_model_release_hold(t->m, "holder"));
  return st;
}
CALL(oc_model_release_hold, oc_model_release_hold(t->m, "holder"))
ROW(oc_model_use_stream) {
  oc_status st = oc_model_use_stream(t->m, t->idle);
  return st;
}
CALL(oc_model_forget_stream, oc_model_forget_stream(t->m, t->s))
CALL(oc_model_push, oc_model_push(t->m, &resource, &t->released))
CALL(oc_model_pop, oc_model_pop(t->m, &t->released))
ROW(oc_model_enter) {
  oc_status st = oc_model_enter(t->m);
  if (!st) oc_model_leave(t->m);
  return st;
}
ROW(oc_model_leave) {
  oc_guard_enter();
  oc_model_leave(t->m);
  return OC_OK;
}
ROW(oc_guard_enter) {
  (void)t;
  oc_guard_enter();
  oc_guard_leave();
  return OC_OK;
}
#define row_oc_guard_leave row_oc_guard_enter
CALL(oc_thread_attach, oc_thread_attach())
ROW(oc_capture_enter) {
  oc_status st = oc_capture_enter(t->m, t->idle);
  if (!st) oc_capture_leave(t->m);
  return st;
}
#define row_oc_capture_leave row_oc_capture_enter
CALL(oc_model_graphs_gone, oc_model_graphs_gone(t->m))
ROW(oc_model_teardown) {
  oc_status st = oc_model_teardown(t->m, &t->report);
  ck_assert_msg((st == OC_OK || st == OC_E_TEARDOWN) == (t->report != NULL), "a report only with OK or TEARDOWN");
  return st;
}
ROW(oc_model_destroy) {
  oc_status st = oc_model_destroy(t->m);
  if (st == OC_OK || st == OC_E_TEARDOWN) t->m = NULL;
  return st;
}

PLAIN(oc_report_count, oc_report_count(t->report) > 0)
ROW(oc_report_row) {
  const char *label, *detail;
  oc_status st;
  return oc_report_row(t->report, 0, &label, &st, &detail);
}
PLAIN(oc_report_arenas_freed, oc_report_arenas_freed(t->report) > 0)
PLAIN(oc_report_bytes_freed, oc_report_bytes_freed(t->report) > 0)
PLAIN(oc_report_blocks_swept, oc_report_blocks_swept(t->report) > 0)
PLAIN(oc_report_modules_unloaded, oc_report_modules_unloaded(t->report) == 1)
CALL(oc_report_text, text_or_none(oc_report_text(t->report)))
CALL(oc_report_json, text_or_none(oc_report_json(t->report)))
ROW(oc_report_free) {
  oc_report_free(t->report);
  t->report = NULL;
  return OC_OK;
}
#define row_oc_string_free row_oc_report_text

ROW(oc_opcache_kernel) {
  oc_kernel k;
  oc_status st = oc_opcache_kernel(t->c, t->name, "fill", &k);
  return st ? st : oc_opcache_kernel(t->c, "elsewhere", "named", &k);
}
ROW(oc_opcache_kernel_k) {
  oc_kernel k;
  return oc_opcache_kernel_k(t->c, &t->key, &k);
}
ROW(oc_opcache_warm) {
  oc_kernel_key *keys[] = {&t->key};
  return oc_opcache_warm(t->c, keys, 1);
}
ROW(oc_opcache_scratch_at) {
  oc_devptr p;
  return oc_opcache_scratch(t->c, t->name, 9 * MiB, &p);
}
ROW(oc_opcache_scratch_k_at) {
  oc_devptr p;
  return oc_opcache_scratch_k(t->c, &t->tag, 9 * MiB, &p);
}
ROW(oc_opcache_scratch_on_at) {
  oc_devptr p;
  return oc_opcache_scratch_on(t->c, t->name, t->idle, 9 * MiB, &p);
}
ROW(oc_opcache_scratch_on_k_at) {
  oc_devptr p;
  return oc_opcache_scratch_on_k(t->c, &t->tag, t->idle, 9 * MiB, &p);
}
/* A gate without memory is false, and says so in the log only. */
#define GATE(symbol, ...) \
  ROW(symbol) { return symbol(t->c, __VA_ARGS__) ? OC_OK : OC_E_HOST_NOMEM; }
GATE(oc_opcache_first_n, t->name, 1000)
GATE(oc_opcache_first_n_k, &t->tag, 1000)
GATE(oc_opcache_once, t->name)
GATE(oc_opcache_once_k, &t->tag)
GATE(oc_opcache_first_shape, t->name, 1, 2, 3)
GATE(oc_opcache_first_shape_k, &t->tag, 1, 2, 3)
PLAIN(oc_opcache_alloc_fell_back, !oc_opcache_alloc_fell_back(t->c))
ROW(oc_opcache_note_alloc_fallback) {
  oc_opcache_note_alloc_fallback(t->c);
  return oc_opcache_alloc_fell_back(t->c) ? OC_OK : OC_E_INVALID;
}
CALL(oc_opcache_release, oc_opcache_release(t->c))
PLAIN(oc_opcache_label, oc_opcache_label(t->c) != NULL)
PLAIN(oc_opcache_kernels, oc_opcache_kernels(t->c) == 0)
PLAIN(oc_opcache_scratches, oc_opcache_scratches(t->c) == 0)
PLAIN(oc_opcache_describe, oc_opcache_describe(t->c, NULL, 0) > 0)

ROW(oc_kind_register) {
  oc_kind k;
  return oc_kind_register(t->name, OC_PTR, &k);
}
ROW(oc_derived_get_ptr) {
  uint64_t v;
  return oc_derived_get_ptr(t->d, OC_BF16, t->old, &v);
}
ROW(oc_derived_get_ptr_on) {
  uint64_t v;
  return oc_derived_get_ptr_on(t->d, OC_BF16, t->old, t->idle, &v);
}
ROW(oc_derived_get_pair) {
  uint64_t v[2];
  return oc_derived_get_pair(t->d, OC_ROWWISE_FP8, t->old, v);
}
ROW(oc_derived_get_pair_on) {
  uint64_t v[2];
  return oc_derived_get_pair_on(t->d, OC_ROWWISE_FP8, t->old, t->idle, v);
}
CALL(oc_derived_insert_ptr, oc_derived_insert_ptr(t->d, OC_BF16, t->src, t->mine, NULL))
ROW(oc_derived_insert_pair) {
  const uint64_t v[2] = {t->mine, t->other};
  return oc_derived_insert_pair(t->d, OC_ROWWISE_FP8, t->src + 8, v, NULL);
}
ROW(oc_derived_get_or_build_ptr_at) {
  uint64_t v;
  return oc_derived_get_or_build_ptr(t->d, OC_BF16, t->src, make, t, &v);
}
ROW(oc_derived_get_or_build_pair_at) {
  uint64_t v[2];
  return oc_derived_get_or_build_pair(t->d, OC_ROWWISE_FP8, t->src, make_pair, t, v);
}
ROW(oc_derived_begin_at) {
  uint64_t v[2];
  oc_status st = oc_derived_begin(t->d, OC_BF16, t->src, &t->build, v);
  return st == OC_MISS ? OC_OK : st;
}
ROW(oc_build_alloc_at) {
  oc_devptr p;
  return oc_build_alloc(t->build, 9 * MiB, 0, &p);
}
CALL(oc_build_on_stream, oc_build_on_stream(t->build, t->idle))
ROW(oc_build_commit) {
  const uint64_t v[2] = {t->src, 0};
  oc_build *b = t->build;
  t->build = NULL;
  return oc_build_commit(b, v, NULL);
}
ROW(oc_build_abort) {
  oc_build_abort(t->build);
  t->build = NULL;
  return OC_OK;
}
CALL(oc_derived_settle, oc_derived_settle(t->d))
CALL(oc_derived_invalidate, oc_derived_invalidate(t->d, t->old))
ROW(oc_derived_invalidate_n) {
  const uint64_t keys[2] = {t->old, A_KEY};
  return oc_derived_invalidate_n(t->d, keys, 2);
}
PLAIN(oc_derived_len, oc_derived_len(t->d) == 2)
PLAIN(oc_derived_is_empty, !oc_derived_is_empty(t->d))
PLAIN(oc_derived_describe, oc_derived_describe(t->d, NULL, 0) > 0)
CALL(oc_derived_release, oc_derived_release(t->d))
PLAIN(oc_derived_label, oc_derived_label(t->d) != NULL)

ROW(oc_pool_alloc_at) {
  oc_devptr p;
  return oc_pool_alloc(t->p, 9 * MiB, 4096, &p);
}
ROW(oc_pool_alloc_owned_at) {
  oc_devptr p;
  return oc_pool_alloc_owned(t->p, t->name, 9 * MiB, 0, &p);
}
CALL(oc_pool_free, oc_pool_free(t->p, t->old))
CALL(oc_pool_free_on, oc_pool_free_on(t->p, t->old, t->idle))
CALL(oc_pool_note_external_at, oc_pool_note_external(t->p, 0x4000, 0x1000, t->name))
CALL(oc_pool_forget_external, oc_pool_forget_external(t->p, 0x4000))
ROW(oc_pool_get_stats) {
  oc_pool_stats s = {.struct_size = sizeof s};
  return oc_pool_get_stats(t->p, &s);
}
CALL(oc_pool_check, oc_pool_check(t->p))
CALL(oc_pool_trim, oc_pool_trim(t->p))
static oc_status take_note(void *arg, const oc_block_info *b) {
  ++*(unsigned *)arg;
  return b->bytes ? OC_OK : OC_E_INVALID;
}
ROW(oc_pool_each_block) {
  unsigned told = 0;
  oc_status st = oc_pool_each_block(t->p, take_note, &told);
  ck_assert_msg(!st == (told > 0), "told of %u blocks: %s", told, oc_status_name(st));
  return st;
}
CALL(oc_pool_report_text, text_or_none(oc_pool_report_text(t->p, 0)))
CALL(oc_pool_report_json, text_or_none(oc_pool_report_json(t->p)))

ROW(oc_model_get_stats) {
  oc_model_stats s = {.struct_size = sizeof s};
  return oc_model_get_stats(t->m, &s);
}
static const oc_trace_options short_trace = {.struct_size = sizeof short_trace, .events = 16};
static oc_status swallow(void *arg, const char *json, size_t n) {
  ((struct stage *)arg)->written += n;
  return json && n ? OC_OK : OC_E_IO;
}
ROW(oc_trace_start) {
  (void)t;
  oc_status st = oc_trace_start(&short_trace);
  return st ? st : oc_trace_stop(NULL, NULL);
}
ROW(oc_trace_stop) {
  oc_status st = oc_trace_start(&short_trace);
  return st ? st : oc_trace_stop(swallow, t);
}
ROW(oc_stats_publish) {
  (void)t;
  oc_status st = oc_stats_publish(NULL);
  return st ? st : oc_stats_unpublish();
}
ROW(oc_stats_unpublish) {
  (void)t;
  oc_status st = oc_stats_publish(NULL);
  return st ? st : oc_stats_unpublish();
}
ROW(oc_metrics_prometheus) {
  char text[64];
  return oc_metrics_prometheus(text, t->m ? sizeof text : 0) > 0 ? OC_OK : OC_E_HOST_NOMEM;
}
PLAIN(oc_last_error, oc_last_error() != NULL)
PLAIN(oc_status_name, strcmp(oc_status_name(OC_E_BUSY), "OC_E_BUSY") == 0)
PLAIN(oc_status_text, oc_status_text(OC_E_BUSY) != NULL)
PLAIN(oc_version, oc_version() != NULL)
ROW(oc_set_log) {
  (void)t;
  oc_set_log(on_log, NULL);
  return OC_OK;
}

/* ---- what a row has done, asked after OC_OK; no driver is needed for it ---- */

static bool has(struct stage *t, oc_kind kind, uint64_t key) {
  uint64_t v[2];
  oc_status st = kind == OC_BF16 ? oc_derived_get_ptr(t->d, kind, key, v) : oc_derived_get_pair(t->d, kind, key, v);
  return st == OC_OK && v[0];
}
static bool has_ptr(struct stage *t) { return has(t, OC_BF16, t->src); }
static bool has_pair_of_src(struct stage *t) { return has(t, OC_ROWWISE_FP8, t->src); }
static bool has_pair_beside(struct stage *t) { return has(t, OC_ROWWISE_FP8, t->src + 8); }
static bool old_is_gone(struct stage *t) { return !has(t, OC_BF16, t->old) && !has(t, OC_ROWWISE_FP8, t->old); }
static bool both_are_gone(struct stage *t) { return old_is_gone(t) && !has(t, OC_BF16, A_KEY); }
static bool is_empty(struct stage *t) { return oc_derived_is_empty(t->d); }
static bool is_built(struct stage *t) { return has(t, OC_BF16, A_KEY); }
static bool is_not_built(struct stage *t) {
  if (is_built(t)) return false;
  with_build(t);   /* nobody's any more */
  return true;
}
static bool has_begun(struct stage *t) { return t->build != NULL; }
/* Inside a capture, what is not finished, or not there, is no hit. */
static bool is_settled(struct stage *t) {
  if (oc_capture_enter(t->m, t->s)) return false;
  bool hit = has(t, OC_ROWWISE_FP8, t->old);
  oc_capture_leave(t->m);
  return hit;
}
static bool large_scratch(struct stage *t, bool on) {
  oc_devptr p = 0;
  if (oc_capture_enter(t->m, t->s)) return false;
  oc_status st = on ? oc_opcache_scratch_on(t->c, t->name, t->idle, 9 * MiB, &p) : oc_opcache_scratch(t->c, t->name, 9 * MiB, &p);
  oc_capture_leave(t->m);
  return !st && p;
}
static bool has_large(struct stage *t) { return large_scratch(t, false); }
static bool has_large_on(struct stage *t) { return large_scratch(t, true); }
static bool has_one_scratch(struct stage *t) { return oc_opcache_scratches(t->c) == 1; }
static bool has_no_scratch(struct stage *t) { return oc_opcache_scratches(t->c) == 0; }
static bool has_none_retired(struct stage *t) {
  oc_pool_stats s = {.struct_size = sizeof s};
  return oc_pool_get_stats(t->p, &s) == OC_OK && s.retired_bytes == 0;
}
static bool has_loaded(struct stage *t, const char *name) {
  oc_module mod = NULL;
  return oc_model_module(t->m, name, &mod) == OC_OK && mod;
}
static bool has_module(struct stage *t) { return has_loaded(t, "another"); }
static bool has_adopted(struct stage *t) { return has_loaded(t, "adopted"); }
static bool has_named(struct stage *t) { return oci_stream_named(t->m, t->idle); }
static bool is_pushed(struct stage *t) { return oc_model_pop(t->m, &t->released) == OC_OK; }
static bool is_not_pushed(struct stage *t) { return oc_model_pop(t->m, &t->released) == OC_E_NOT_FOUND; }
static bool is_not_held(struct stage *t) { return oc_model_release_hold(t->m, "holder") == OC_E_NOT_FOUND; }
static bool is_torn_down(struct stage *t) { return oc_model_enter(t->m) == OC_E_RELEASED && t->report; }
static bool is_destroyed(struct stage *t) { return !t->m; }
static bool has_kernel(struct stage *t) { return oc_opcache_kernels(t->c) == 1; }
static bool has_both_kernels(struct stage *t) { return oc_opcache_kernels(t->c) == 2; }
static bool is_open(struct stage *t) { return !oc_opcache_once(t->c, t->name); }
static bool has_shape(struct stage *t) { return !oc_opcache_first_shape(t->c, t->name, 1, 2, 3); }
static bool has_counted(struct stage *t) {
  for (unsigned i = 1; i < 1000; i++)
    if (!oc_opcache_first_n(t->c, t->name, 1000)) return false;
  return !oc_opcache_first_n(t->c, t->name, 1000);
}
static bool is_forgotten(struct stage *t) {
  return !has(t, OC_BF16, A_KEY) && oc_pool_note_external(t->p, 0x4000, 0x1000, "framework") == OC_OK;
}
static bool is_noted(struct stage *t) { return oc_pool_forget_external(t->p, 0x4000) == OC_OK; }
static bool old_is_freed(struct stage *t) { return old_is_gone(t) && oc_pool_free(t->p, t->old) == OC_E_NOT_OWNED; }
static bool has_written(struct stage *t) { return t->written > 0; }

/* ---- the table ---- */

enum {
  ENDS = 1,        /* whatever it says, it is not called again */
  GOES_ON = 2,     /* past a point of no return a failure leaves less than there was */
  WORDLESS = 4,    /* returns no status */
  KEEPS = 8,       /* what cannot be marked on a stream stays until teardown, unseen by the caller */
  SPARES = 16,     /* some host memory only saves work (a spare record, a larger table): it does without */
  TEARS = 32,      /* a lost device is no failure, but a row of the report */
};

struct row {
  const char *symbol;
  oc_status (*run)(struct stage *t);
  void (*before)(struct stage *t);
  bool (*did)(struct stage *t);   /* after OC_OK: is it done? NULL: there is nothing to see */
  unsigned flags;
};

static const struct row rows[] = {
#define R(symbol, before, did, flags) {#symbol, row_##symbol, before, did, flags}
  R(oc_backend_close, with_host, NULL, 0),
  R(oc_backend_create, NULL, NULL, 0),
  R(oc_backend_open_cuda, NULL, NULL, 0),
  R(oc_backend_open_host, NULL, NULL, 0),
  R(oc_backend_self, NULL, NULL, 0),
  R(oc_backend_table, NULL, NULL, 0),
  R(oc_build_abort, with_built, is_not_built, ENDS | KEEPS | SPARES),
  R(oc_build_alloc_at, with_build, NULL, 0),
  R(oc_build_commit, with_built, is_built, ENDS | KEEPS | SPARES),
  R(oc_build_on_stream, with_build, NULL, 0),
  R(oc_capture_enter, NULL, NULL, 0),
  R(oc_capture_leave, NULL, NULL, 0),
  R(oc_cuda_context, NULL, NULL, 0),
  R(oc_derived_begin_at, NULL, has_begun, SPARES),
  R(oc_derived_describe, with_entry, NULL, 0),
  R(oc_derived_get_or_build_pair_at, NULL, has_pair_of_src, KEEPS | SPARES),
  R(oc_derived_get_or_build_ptr_at, NULL, has_ptr, KEEPS | SPARES),
  R(oc_derived_get_pair, with_pair, NULL, 0),
  R(oc_derived_get_pair_on, with_pair, has_named, SPARES),
  R(oc_derived_get_ptr, with_entry, NULL, 0),
  R(oc_derived_get_ptr_on, with_entry, has_named, SPARES),
  R(oc_derived_insert_pair, NULL, has_pair_beside, 0),
  R(oc_derived_insert_ptr, NULL, has_ptr, 0),
  R(oc_derived_invalidate, with_retired, old_is_gone, GOES_ON | SPARES),
  R(oc_derived_invalidate_n, with_everything, both_are_gone, GOES_ON | SPARES),
  R(oc_derived_is_empty, with_entry, NULL, 0),
  R(oc_derived_label, NULL, NULL, 0),
  R(oc_derived_len, with_entry, NULL, 0),
  R(oc_derived_release, with_everything, is_empty, GOES_ON | SPARES),
  R(oc_derived_settle, with_pair, is_settled, SPARES),
  R(oc_guard_enter, NULL, NULL, 0),
  R(oc_guard_leave, NULL, NULL, 0),
  R(oc_host_calls, with_host, NULL, 0),
  R(oc_host_delay, with_host, NULL, 0),
  R(oc_host_fail, with_host, NULL, 0),
  R(oc_host_get_stats, with_host, NULL, 0),
  R(oc_host_set_capturing, with_host, NULL, 0),
  R(oc_host_stall, with_host, NULL, 0),
  R(oc_host_step, with_host, NULL, 0),
  R(oc_kind_register, NULL, NULL, 0),
  R(oc_last_error, NULL, NULL, 0),
  R(oc_metrics_prometheus, with_everything, NULL, WORDLESS),
  R(oc_model_adopt_module, NULL, has_adopted, 0),
  R(oc_model_create, NULL, NULL, 0),
  R(oc_model_derived, NULL, NULL, 0),
  R(oc_model_destroy, with_everything, is_destroyed, ENDS | TEARS | SPARES),
  R(oc_model_enter, NULL, NULL, 0),
  R(oc_model_forget_stream, with_retired, has_one_scratch, KEEPS | SPARES),
  R(oc_model_generation, NULL, NULL, 0),
  R(oc_model_get_stats, with_everything, NULL, 0),
  R(oc_model_graphs_gone, with_retired, has_none_retired, SPARES),
  R(oc_model_leave, NULL, NULL, 0),
  R(oc_model_load_module, NULL, has_module, 0),
  R(oc_model_module, NULL, NULL, 0),
  R(oc_model_opcache, NULL, NULL, 0),
  R(oc_model_pool, NULL, NULL, 0),
  R(oc_model_pop, with_pushed, is_not_pushed, 0),
  R(oc_model_push, NULL, is_pushed, 0),
  R(oc_model_release_hold, with_hold, is_not_held, 0),
  R(oc_model_retain, NULL, NULL, 0),
  R(oc_model_teardown, with_everything, is_torn_down, ENDS | TEARS | SPARES),
  R(oc_model_use_stream, NULL, has_named, 0),
  R(oc_opcache_alloc_fell_back, NULL, NULL, 0),
  R(oc_opcache_describe, with_scratch, NULL, 0),
  R(oc_opcache_first_n, NULL, has_counted, WORDLESS),
  R(oc_opcache_first_n_k, NULL, has_counted, WORDLESS | SPARES),
  R(oc_opcache_first_shape, NULL, has_shape, WORDLESS),
  R(oc_opcache_first_shape_k, NULL, has_shape, WORDLESS | SPARES),
  R(oc_opcache_kernel, NULL, has_both_kernels, 0),
  R(oc_opcache_kernel_k, NULL, has_kernel, SPARES),
  R(oc_opcache_kernels, NULL, NULL, 0),
  R(oc_opcache_label, NULL, NULL, 0),
  R(oc_opcache_note_alloc_fallback, NULL, NULL, 0),
  R(oc_opcache_once, NULL, is_open, WORDLESS),
  R(oc_opcache_once_k, NULL, is_open, WORDLESS | SPARES),
  R(oc_opcache_release, with_scratch, has_no_scratch, GOES_ON | SPARES),
  R(oc_opcache_scratch_at, with_scratch, has_large, 0),
  R(oc_opcache_scratch_k_at, with_scratch, has_large, SPARES),
  R(oc_opcache_scratch_on_at, with_scratch, has_large_on, 0),
  R(oc_opcache_scratch_on_k_at, with_scratch, has_large_on, SPARES),
  R(oc_opcache_scratches, NULL, NULL, 0),
  R(oc_opcache_warm, NULL, has_kernel, SPARES),
  R(oc_pool_alloc_at, NULL, NULL, 0),
  R(oc_pool_alloc_owned_at, NULL, NULL, 0),
  R(oc_pool_check, with_entry, NULL, 0),
  R(oc_pool_each_block, with_external, NULL, 0),
  R(oc_pool_forget_external, with_external, is_forgotten, GOES_ON | SPARES),
  R(oc_pool_free, with_retired, old_is_freed, GOES_ON | SPARES),
  R(oc_pool_free_on, with_retired, old_is_freed, GOES_ON | SPARES),
  R(oc_pool_get_stats, NULL, NULL, 0),
  R(oc_pool_note_external_at, NULL, is_noted, 0),
  R(oc_pool_report_json, with_entry, NULL, WORDLESS),
  R(oc_pool_report_text, with_entry, NULL, WORDLESS),
  R(oc_pool_trim, with_empty, NULL, GOES_ON | SPARES),
  R(oc_report_arenas_freed, with_report, NULL, 0),
  R(oc_report_blocks_swept, with_report, NULL, 0),
  R(oc_report_bytes_freed, with_report, NULL, 0),
  R(oc_report_count, with_report, NULL, 0),
  R(oc_report_free, with_report, NULL, ENDS),
  R(oc_report_json, with_report, NULL, WORDLESS),
  R(oc_report_modules_unloaded, with_report, NULL, 0),
  R(oc_report_row, with_report, NULL, 0),
  R(oc_report_text, with_report, NULL, WORDLESS),
  R(oc_set_log, NULL, NULL, 0),
  R(oc_status_name, NULL, NULL, 0),
  R(oc_status_text, NULL, NULL, 0),
  R(oc_string_free, with_report, NULL, WORDLESS),
  R(oc_thread_attach, NULL, NULL, 0),
  R(oc_stats_publish, NULL, NULL, 0),
  R(oc_stats_unpublish, NULL, NULL, 0),
  R(oc_trace_start, NULL, NULL, 0),
  R(oc_trace_stop, NULL, has_written, SPARES),
  R(oc_version, NULL, NULL, 0),
#undef R
};
#define ROWS ((int)(sizeof rows / sizeof *rows))

/* ---- one attempt ---- */

struct tally { uint64_t host, host_for_good, backend, lost; };
static struct tally *tally;   /* shared with the tests' processes */

struct state { size_t len; uint64_t blocks, bytes; };

static struct state look(struct stage *t) {
  oc_pool_stats f = {.struct_size = sizeof f};
  if (!t->m || oc_pool_get_stats(t->p, &f) != OC_OK) return (struct state){0};
  return (struct state){oc_derived_len(t->d), f.live_blocks, f.live_bytes};
}

static const char *fault_name(void) {
  static char name[96];
  snprintf(name, sizeof name, "%s %u%s as %s", fault.entry ? fault.entry : "host allocation", fault.nth,
           fault.for_good ? " and all after" : "", oc_status_name(fault.as));
  return name;
}

/* The statuses that this fault may come out as. */
static bool is_answer(oc_status st) {
  if (st == fault.as || st == OC_E_TEARDOWN) return true;
  if (!fault.entry) return false;
  /* a stream that cannot be asked is taken to be capturing */
  return strcmp(fault.entry, "capturing") == 0 && (st == OC_E_CAPTURING || st == OC_E_BUSY);
}

/* The words are this failure's, and have the driver's own where it was the driver's. */
static void check_words(const struct row *r, oc_status st, const char *before) {
  const char *now = oc_last_error();
  if (r->flags & WORDLESS) return;
  ck_assert_msg(*now && strcmp(now, before) != 0, "%s, %s: no words", r->symbol, fault_name());
  if (fault.entry && st == fault.as)
    ck_assert_msg(strstr(now, refused_words) != NULL, "%s, %s: the driver's words are not in: %s", r->symbol, fault_name(), now);
}

/* The fault was met, and the call worked. */
static bool may_be_hidden(const struct row *r) {
  if (!fault.entry) return r->flags & SPARES;
  if (is_lost() && (r->flags & TEARS)) return true;
  if (fault.as == OC_E_DEVICE_NOMEM) return true;   /* managed memory then */
  if (strcmp(fault.entry, "event_query") == 0) return true;   /* asked again another time */
  if (strcmp(fault.entry, "free") == 0) return r->run == row_oc_pool_trim;   /* logged; teardown tries it again */
  return (r->flags & KEEPS) && (strcmp(fault.entry, "capturing") == 0 || strncmp(fault.entry, "event_", 6) == 0);
}

static void check_did(const struct row *r, struct stage *t) {
  ck_assert_msg(!r->did || r->did(t), "%s, %s: OC_OK, and nothing was done", r->symbol, fault_name());
}

static void check_worked(const struct row *r, struct stage *t) {
  ck_assert_msg(!fault.met || may_be_hidden(r), "%s, %s: and yet OC_OK", r->symbol, fault_name());
  check_did(r, t);
  ck_assert_msg(!t->m || oc_pool_check(t->p) != OC_E_INVALID, "%s, %s: %s", r->symbol, fault_name(), oc_last_error());
}

static bool may_say_again(const struct row *r, oc_status again) {
  if (is_lost()) return again == OC_E_DEVICE_LOST || (again == OC_OK && (r->flags & GOES_ON));   /* nothing of it is left to do */
  /* the block went, its neighbour's free failed */
  return again == OC_OK || (again == OC_E_NOT_OWNED && (r->flags & GOES_ON));
}

static void check_failed(const struct row *r, struct stage *t, oc_status st, struct state was, const char *before) {
  ck_assert_msg(fault.met && is_answer(st), "%s, %s: %s: %s", r->symbol, fault_name(), oc_status_name(st), oc_last_error());
  check_words(r, st, before);
  if (!t->m) return;
  oc_status check = st == OC_E_TEARDOWN ? OC_OK : oc_pool_check(t->p);
  ck_assert_msg(check == OC_OK || check == OC_E_RELEASED, "%s, %s: %s", r->symbol, fault_name(), oc_last_error());
  struct state is = look(t);
  bool less = (r->flags & (GOES_ON | ENDS)) && is.len <= was.len && is.blocks <= was.blocks;
  ck_assert_msg(less || memcmp(&is, &was, sizeof is) == 0, "%s, %s: %zu entries, %llu blocks, %llu bytes; before: %zu, %llu, %llu",
                r->symbol, fault_name(), is.len, (unsigned long long)is.blocks, (unsigned long long)is.bytes, was.len,
                (unsigned long long)was.blocks, (unsigned long long)was.bytes);
  if (r->flags & ENDS) return;
  oc_status again = r->run(t);
  ck_assert_msg(may_say_again(r, again), "%s, %s, then once more: %s: %s", r->symbol, fault_name(), oc_status_name(again), oc_last_error());
  if (again == OC_OK) check_did(r, t);
}

static unsigned turn;   /* of new names */

/* False: the fault was not met any more. */
static bool attempt(const struct row *r, struct wrap *w, struct fault f) {
  struct stage t;
  fault = (struct fault){0};
  open_stage(&t, w, turn);
  if (r->before) r->before(&t);
  struct state was = look(&t);
  char before[512];
  ck_status(oc_derived_invalidate(t.d, 0), OC_E_INVALID);   /* the thread has room for its errors' words now */
  snprintf(before, sizeof before, "%s", oc_last_error());
  f.armed = true;
  fault = f;
  oc_status st = r->run(&t);
  disarm();
  bool met = fault.met;
  if (st == OC_OK) check_worked(r, &t);
  else check_failed(r, &t, st, was, before);
  close_stage(&t);
  return met;
}

/* Names and their like stay on the process heap, once; what is lost there is lost each time. */
static void attempt_again(const struct row *r, struct wrap *w, struct fault f) {
  size_t before, tries = 0;
  do {
    ck_assert_msg(tries++ < 5, "%s, %s: the process heap grows each time", r->symbol, fault_name());
    before = oci_heap_bytes(NULL);
    attempt(r, w, f);
  } while (oci_heap_bytes(NULL) != before);
}

static void every_nth(const struct row *r, struct wrap *w, struct fault f, uint64_t *points) {
  for (f.nth = 1; turn++, attempt(r, w, f); f.nth++) {
    attempt_again(r, w, f);
    __atomic_add_fetch(points, 1, __ATOMIC_RELAXED);
    ck_assert_msg(f.nth < 1000, "%s meets faults without end", r->symbol);
  }
}

static const struct fault driver_faults[] = {
  {.entry = "alloc", .as = OC_E_BACKEND},           {.entry = "alloc", .as = OC_E_DEVICE_NOMEM},
  {.entry = "alloc", .as = OC_E_DEVICE_NOMEM, .for_good = true},
  {.entry = "alloc_managed", .as = OC_E_BACKEND},   {.entry = "free", .as = OC_E_BACKEND},
  {.entry = "kernel", .as = OC_E_BACKEND},          {.entry = "module_load", .as = OC_E_BACKEND},
  {.entry = "module_unload", .as = OC_E_BACKEND},   {.entry = "module_function", .as = OC_E_BACKEND},
  {.entry = "synchronize", .as = OC_E_BACKEND},     {.entry = "synchronize_all", .as = OC_E_BACKEND},
  {.entry = "capturing", .as = OC_E_BACKEND},       {.entry = "event_create", .as = OC_E_BACKEND},
  {.entry = "event_record", .as = OC_E_BACKEND},    {.entry = "event_query", .as = OC_E_BACKEND},
  {.entry = "event_wait", .as = OC_E_BACKEND},      {.entry = "event_destroy", .as = OC_E_BACKEND},
  {.entry = "mem_info", .as = OC_E_BACKEND},
};

static void every_fault(const struct row *r, struct wrap *w) {
  const struct fault memory = {.as = OC_E_HOST_NOMEM}, no_more_memory = {.as = OC_E_HOST_NOMEM, .for_good = true};
  every_nth(r, w, memory, &tally->host);
  every_nth(r, w, no_more_memory, &tally->host_for_good);
  for (size_t i = 0; i < sizeof driver_faults / sizeof *driver_faults; i++) {
    struct fault f = driver_faults[i];
    every_nth(r, w, f, &tally->backend);
    if (f.as != OC_E_BACKEND) continue;
    f.as = OC_E_DEVICE_LOST;
    every_nth(r, w, f, &tally->lost);
  }
}

static void in_world(const struct row *r, bool events) {
  struct wrap *w = calloc(1, sizeof *w);
  const struct fx_options o = {.no_events = !events};
  oc_backend_ops ops = through = wrap_table();
  ops.alloc = noting_alloc;
  ops.alloc_managed = noting_alloc_managed;
  ops.module_load = noting_module_load;
  ops.event_create = noting_event_create;
  ops.kernel = a_kernel;
  ops.last_error = words;
  if (!events) {
    ops.event_create = NULL;
    ops.event_record = NULL;
    ops.event_query = NULL;
    ops.event_wait = NULL;
    ops.event_destroy = NULL;
  }
  wrap_open_ops(w, &o, &ops);
  w->hook = hook;
  every_fault(r, w);
  wrap_close(w);
  free(w);
}

START_TEST(g33_every_fault_of_every_function) {
  oc_set_log(on_log, NULL);
  oci_mem_set_fault(no_memory, NULL);
  in_world(&rows[_i], true);
  in_world(&rows[_i], false);
  oci_mem_set_fault(NULL, NULL);
}
END_TEST

/* ---- where the fault is another thread's haste ---- */

static oc_backend *first;
static bool opens_first(void *arg, size_t bytes) {
  (void)arg;
  if (bytes != sizeof(struct cuda_process) || first) return false;
  oci_mem_set_fault(NULL, NULL);
  ck_ok(oc_backend_open_cuda(NULL, &first));
  return false;
}

/* Of two that load the driver at once, the second uses what the first has found. */
START_TEST(two_load_the_driver_at_once) {
  oc_backend *second;
  if (fx_which() != FX_CUDA) { fx_skip("needs a CUDA driver"); return; }
  oci_mem_set_fault(opens_first, NULL);
  ck_ok(oc_backend_open_cuda(NULL, &second));
  oci_mem_set_fault(NULL, NULL);
  if (!first) { fx_skip("the driver was loaded before, as with CK_FORK=no"); ck_ok(oc_backend_close(second)); return; }
  ck_assert_ptr_eq(oc_cuda_context(first), oc_cuda_context(second));
  ck_ok(oc_backend_close(first));
  ck_ok(oc_backend_close(second));
}
END_TEST

/* ---- the table is whole ---- */

static bool has_row(const char *symbol) {
  for (int i = 0; i < ROWS; i++)
    if (strcmp(rows[i].symbol, symbol) == 0) return true;
  return false;
}

START_TEST(every_export_has_its_row) {
  FILE *f = fopen(LIBOC_MAP, "r");
  ck_assert_msg(f != NULL, "%s cannot be read", LIBOC_MAP);
  char line[256], symbol[128];
  int symbols = 0;
  while (fgets(line, sizeof line, f)) {
    if (sscanf(line, " oc_%100[a-z0-9_];", symbol) != 1) continue;
    char whole[160];
    snprintf(whole, sizeof whole, "oc_%s", symbol);
    ck_assert_msg(has_row(whole), "%s is exported, and no row here calls it", whole);
    symbols++;
  }
  fclose(f);
  ck_assert_int_eq(symbols, ROWS);
}
END_TEST

int main(void) {
  TCase *tc;
  tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (tally == MAP_FAILED) return EXIT_FAILURE;
  Suite *s = world_suite("faults", &tc);
  tcase_add_test(tc, two_load_the_driver_at_once);
  tcase_add_test(tc, every_export_has_its_row);
  tcase_add_loop_test(tc, g33_every_fault_of_every_function, 0, ROWS);
  int rc = fx_run(s);
  /* fx_which() asserts, and there is no test here. */
  const char *which = getenv("LIBOC_TEST_BACKEND");
  printf("figure: every fault of every function, %s | %d functions, %llu points: %llu host allocations, %llu and all after, "
         "%llu calls of the driver, %llu that lost the device\n", which && strcmp(which, "cuda") == 0 ? "simulated CUDA" : "host device", ROWS,
         (unsigned long long)tally->host + tally->host_for_good + tally->backend + tally->lost, (unsigned long long)tally->host,
         (unsigned long long)tally->host_for_good, (unsigned long long)tally->backend, (unsigned long long)tally->lost);
  return rc;
}
