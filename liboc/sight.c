/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/sight.h"

#include <stdio.h>
#include <string.h>

#include "liboc/model.h"
#include "liboc/options.h"
#include "liboc/probe.h"
#include "liboc/process.h"
#include "liboc/publish.h"
#include "liboc/trace.h"
#include "rcu/guard.h"

/* cell: one of m's counts. */
static void add(struct oc_model *m, uint64_t *cell, uint64_t n) {
  /* seq_cst, with oci_publish_model: either its copy has this addition, or this thread sees that the counts are shown. */
  uint64_t sum = __atomic_add_fetch(cell, n, __ATOMIC_SEQ_CST);
  struct oc_stats_model *shown = __atomic_load_n(&m->shown, __ATOMIC_SEQ_CST);
  if (shown) oci_publish_count(m, shown, cell, sum);
}

static uint64_t read_cell(const uint64_t *cell) {
  return __atomic_load_n(cell, __ATOMIC_RELAXED);
}

/* ---- the trace ---- */

/* The pool's bytes, now and then. A pool's lock must be free. */
static void trace_bytes(struct oc_model *m, bool now) {
  enum { EVERY_NS = 200000 };
  uint64_t at = oci_now_ns(), last = read_cell(&m->counts.bytes_traced);
  if (!now && at - last < EVERY_NS) return;
  __atomic_store_n(&m->counts.bytes_traced, at, __ATOMIC_RELAXED);
  struct pool_stats s;
  oci_pool_stats(m->pool.core, &s);
  oci_trace_add(&(struct event){.kind = EVENT_BYTES, .begin = at, .generation = m->generation, .a = s.live_bytes, .b = s.retired_bytes, .c = s.arena_bytes});
}

static void trace_instant(struct oc_model *m, const char *name) {
  if (oci_tracing())
    oci_trace_add(&(struct event){.kind = EVENT_INSTANT, .begin = oci_now_ns(), .thread = oci_thread_id(),
                                  .generation = m->generation, .name = name});
}

static void trace_span(struct oc_model *m, enum event_kind kind, const char *name, uint64_t since, uint64_t ns, oc_status st) {
  if (!oci_tracing()) return;
  oci_trace_add(&(struct event){.kind = kind, .begin = since, .ns = ns, .thread = oci_thread_id(),
                                .generation = m->generation, .name = name, .a = (uint64_t)(int64_t)st});
  trace_bytes(m, false);
}

static void trace_build(struct oc_model *m, const struct oc_build *b, uint64_t ns, oc_status st) {
  if (!oci_tracing()) return;
  oci_trace_add(&(struct event){.kind = EVENT_BUILD, .begin = b->since, .ns = ns, .thread = b->task.thread,
                                .generation = m->generation, .name = oci_kind_name(b->kind), .a = b->key,
                                .b = (uint64_t)(int64_t)st});
  trace_bytes(m, false);
}

/* ---- what happens ---- */

void oci_sight_miss(struct oc_model *m, enum miss what, const char *name) {
  PROBE3(miss, m->generation, (int)what, name);
  add(m, &m->counts.misses[what], 1);
}

void oci_sight_build_begin(struct oc_build *b) {
  b->since = oci_now_ns();
  PROBE3(build_begin, oci_model_of_derived(b->derived)->generation, oci_kind_name(b->kind), b->key);
}

void oci_sight_build_end(const struct oc_build *b, oc_status st) {
  struct oc_model *m = oci_model_of_derived(b->derived);
  struct counts *c = &m->counts;
  uint64_t ns = oci_now_ns() - b->since;
  add(m, st == OC_OK ? &c->builds : &c->build_failures, 1);
  add(m, &c->build_ns, ns);
  trace_build(m, b, ns, st);
  PROBE5(build_end, m->generation, oci_kind_name(b->kind), b->key, (int)st, ns);
}

void oci_sight_build_waited(struct oc_model *m, uint64_t since) {
  uint64_t ns = oci_now_ns() - since;
  add(m, &m->counts.build_waits, 1);
  add(m, &m->counts.build_wait_ns, ns);
  trace_span(m, EVENT_WAIT, "wait for a build", since, ns, OC_OK);
  PROBE2(build_wait, m->generation, ns);
}

void oci_sight_scratch_grown(struct oc_model *m, const char *tag, uint64_t bytes) {
  add(m, &m->counts.scratch_growths, 1);
  PROBE3(scratch_grow, m->generation, tag, bytes);
}

void oci_sight_arena(struct oc_model *m, uint64_t bytes, bool managed) {
  PROBE3(arena_grow, m->generation, bytes, (int)managed);
}

void oci_sight_retired(struct oc_model *m, uint64_t bytes) {
  PROBE2(retire, m->generation, bytes);
}

void oci_sight_latch(struct oc_model *m) {
  oci_publish_latch(m);
  trace_instant(m, "latch");
  PROBE1(latch, m->generation);
}

void oci_sight_invalidate(struct oc_model *m, uint64_t values) {
  trace_instant(m, "invalidate");
  PROBE2(invalidate, m->generation, values);
}

void oci_sight_teardown(struct oc_model *m, const char *step) {
  trace_instant(m, step);
  if (oci_tracing()) trace_bytes(m, true);
  PROBE2(teardown, m->generation, step);
}

void oci_sight_driver(struct oc_model *m, oc_call_kind kind, const char *entry, uint64_t since, oc_status st) {
  oc_call_stats *c = &m->counts.driver[kind];
  uint64_t ns = oci_now_ns() - since;
  add(m, &c->calls, 1);
  if (st < 0) add(m, &c->failures, 1);
  add(m, &c->ns, ns);
  trace_span(m, EVENT_DRIVER, entry, since, ns, st);
  PROBE4(driver_call, m->generation, entry, (int)st, ns);
}

void oci_sight_guard_sync(struct oc_model *m) {
  uint64_t since = oci_now_ns();
  oci_guard_sync();
  uint64_t ns = oci_now_ns() - since;
  add(m, &m->counts.guard_waits, 1);
  add(m, &m->counts.guard_wait_ns, ns);
  trace_span(m, EVENT_GUARD_WAIT, "wait for readers", since, ns, OC_OK);
  PROBE2(guard_wait, m->generation, ns);
}

/* ---- the figures ---- */

static void copy_calls(const struct counts *c, oc_model_stats *out) {
  for (size_t i = 0; i < OC_CALL_KINDS; i++) {
    out->driver[i].calls = read_cell(&c->driver[i].calls);
    out->driver[i].failures = read_cell(&c->driver[i].failures);
    out->driver[i].ns = read_cell(&c->driver[i].ns);
  }
}

static void fill(struct oc_model *m, const struct pool_stats *pool, oc_model_stats *out) {
  const struct counts *c = &m->counts;
  *out = (oc_model_stats){
    .generation = m->generation,
    .kernel_misses = read_cell(&c->misses[MISS_KERNEL]),
    .scratch_misses = read_cell(&c->misses[MISS_SCRATCH]),
    .derived_misses = read_cell(&c->misses[MISS_DERIVED]),
    .builds = read_cell(&c->builds), .build_failures = read_cell(&c->build_failures), .build_ns = read_cell(&c->build_ns),
    .build_waits = read_cell(&c->build_waits), .build_wait_ns = read_cell(&c->build_wait_ns),
    .scratch_growths = read_cell(&c->scratch_growths), .arena_growths = pool->driver_allocs,
    .retired_bytes = pool->retired_bytes,
    .guard_waits = read_cell(&c->guard_waits), .guard_wait_ns = read_cell(&c->guard_wait_ns),
  };
  copy_calls(c, out);
}

void oci_sight_stats(struct oc_model *m, oc_model_stats *out) {
  struct pool_stats pool;
  oci_pool_stats(m->pool.core, &pool);
  fill(m, &pool, out);
}

oc_status oc_model_get_stats(oc_model *m, oc_model_stats *out) {
  static const char call[] = "oc_model_get_stats";
  if (!m || !out) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  uint32_t size = out->struct_size;
  if (size < sizeof *out)
    return oci_error(OC_E_INVALID, "%s: struct_size %u is below the first size, %zu", call, size, sizeof *out);
  if (size > STRUCT_MOST) return oci_error(OC_E_INVALID, "%s: struct_size %u is no size of the figures", call, size);
  oc_status st = oci_model_forked(m, call);
  if (st) return st;
  oci_sight_stats(m, out);
  out->struct_size = size;
  memset((char *)out + sizeof *out, 0, size - sizeof *out);   /* fields of a later version */
  return OC_OK;
}

/* ---- all models ---- */

static void look_at(struct oc_model *m, struct sighting *s) {
  struct pool_stats pool;
  oci_pool_stats(m->pool.core, &pool);
  fill(m, &pool, &s->stats);
  oci_pool_figures(&s->pool, &pool, oci_pool_fell_back(m->pool.core));
  snprintf(s->name, sizeof s->name, "%s", m->name);
  snprintf(s->backend, sizeof s->backend, "%s", m->backend->name);
  s->kernels = oc_opcache_kernels(&m->opcache);
  s->scratches = oc_opcache_scratches(&m->opcache);
  s->derived = oc_derived_len(&m->derived);
}

struct looking {
  struct sighting *out;
  size_t room, seen;
};

static void look(void *looking, struct oc_model *m) {
  struct looking *l = looking;
  if (l->seen < l->room) look_at(m, &l->out[l->seen]);
  l->seen++;
}

size_t oci_sight_all(struct sighting *out, size_t room) {
  struct looking l = {.out = out, .room = room};
  oci_process_each_model(look, &l);
  return l.seen;
}
