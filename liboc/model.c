/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/model.h"

#include <stdio.h>

#include "liboc/options.h"
#include "liboc/process.h"
#include "liboc/report.h"
#include "rcu/guard.h"
#include "rcu/mem.h"

#define DEFAULT_WAIT_MS 10000u

static uint64_t newest_generation;

/* ---- what a model refuses ---- */

oc_status oci_model_forked(const struct oc_model *m, const char *call) {
  if (__atomic_load_n(&m->state, __ATOMIC_RELAXED) != MODEL_FORKED) return OC_OK;
  return oci_error(OC_E_FORKED, "%s: the backend of model %s was opened by a parent process", call, m->name);
}

oc_status oci_model_refuses(const struct oc_model *m, const char *call) {
  oc_status st = oci_model_forked(m, call);
  if (st) return st;
  return oci_error(OC_E_RELEASED, "%s: model %s is torn down, or being torn down", call, m->name);
}

oc_status oci_may_wait(const char *call) {
  if (oci_guarded()) return oci_error(OC_E_GUARDED, "%s: called inside a guard, which it would wait for", call);
  if (oci_in_capture()) return oci_error(OC_E_CAPTURING, "%s: called inside a capture", call);
  return OC_OK;
}

/* ---- create ---- */

static void init_lists(struct oc_model *m) {
  struct link *lists[] = {&m->named_streams, &m->idle_streams, &m->farewells, &m->modules, &m->resources, &m->captures};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) link_init(lists[i]);
  struct table *tables[] = {&m->modules_by_name, &m->resources_by_self, &m->tasks.holds_by_name};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) tables[i]->heap = m->heap;
  pthread_mutex_init(&m->lock, NULL);
  pthread_cond_init(&m->module_loaded, NULL);
  pthread_cond_init(&m->stream_left, NULL);
  oci_tasks_init(&m->tasks);
}

static char *own_name(struct oc_model *m, const char *name) {
  char made[40];
  snprintf(made, sizeof made, "model-%llu", (unsigned long long)m->generation);
  return oci_strdup(m->heap, name && *name ? name : made);
}

static oc_status open_parts(struct oc_model *m, const oc_model_options *opt) {
  /* first what cannot fail: free_parts undoes all of it */
  oci_map_init(&m->streams, m->heap);
  oci_map_of_values(&m->streams);
  oci_opcache_init(&m->opcache, m->heap);
  oci_derived_init(&m->derived, m->heap);
  m->name = own_name(m, opt->name);
  if (!m->name) return oci_error(OC_E_HOST_NOMEM, "oc_model_create: out of host memory");
  return oci_pool_open(m, opt);
}

/* Frees what open_parts made. The arenas are gone; holds, captures and resources too: teardown waits for the first, is refused
   by the second and releases the others. */
static void free_parts(struct oc_model *m) {
  if (m->pool.core) oci_pool_destroy(m->pool.core);
  oci_derived_free(&m->derived);
  oci_opcache_free(&m->opcache);
  oci_streams_free(m);
  oci_modules_free(m);
  oci_holders_free(m);
  oci_free(m->heap, m->spare_events, m->spare_cap * sizeof *m->spare_events);
  oci_strfree(m->heap, m->name);
  pthread_mutex_destroy(&m->lock);
  pthread_cond_destroy(&m->module_loaded);
  pthread_cond_destroy(&m->stream_left);
  oci_tasks_free(&m->tasks);
}

static struct oc_model *model_new(oc_backend *b, const oc_model_options *opt) {
  struct oc_model *m = oci_alloc(NULL, sizeof *m);
  if (!m) return NULL;
  m->heap = oci_heap_create();
  if (!m->heap) {
    oci_free(NULL, m, sizeof *m);
    return NULL;
  }
  m->backend = b;
  m->flags = opt->flags;
  m->graph_epoch = 1;
  m->generation = __atomic_add_fetch(&newest_generation, 1, __ATOMIC_RELAXED);
  m->teardown_wait_ms = opt->teardown_wait_ms ? opt->teardown_wait_ms : DEFAULT_WAIT_MS;
  init_lists(m);
  return m;
}

static void model_free(struct oc_model *m) {
  free_parts(m);
  oci_report_unref(m->report);
  oci_heap_destroy(m->heap);
  oci_free(NULL, m, sizeof *m);
}

static oc_status check_options(const oc_model_options *opt) {
  const uint32_t known = OC_MODEL_NO_MANAGED | OC_MODEL_BUILD_MAY_RACE;
  if (opt->flags & ~known) return oci_error(OC_E_INVALID, "oc_model_create: unknown flags 0x%x", opt->flags & ~known);
  if (opt->arena_min && opt->arena_max && opt->arena_min > opt->arena_max)
    return oci_error(OC_E_INVALID, "oc_model_create: arena_min %zu is above arena_max %zu", opt->arena_min, opt->arena_max);
  return OC_OK;
}

static oc_status create(oc_backend *b, const oc_model_options *opt, oc_model **out) {
  struct oc_model *m = model_new(b, opt);
  if (!m) return oci_error(OC_E_HOST_NOMEM, "oc_model_create: out of host memory");
  oc_status st = open_parts(m, opt);
  if (!st) st = oci_process_add_model(b, m);
  if (st) goto undo;
  *out = m;
  return OC_OK;

undo:   /* part of the reserve may be there */
  if (m->pool.core) oci_pool_release_arenas(m->pool.core, NULL, NULL);
  model_free(m);
  return st;
}

oc_status oc_model_create(oc_backend *b, const oc_model_options *given, oc_model **out) {
  oc_model_options opt;
  oc_status st = oci_backend_usable(b, "oc_model_create");
  if (st) return st;
  if (!out) return oci_error(OC_E_INVALID, "oc_model_create: out is NULL");
  st = OCI_OPTIONS(&opt, given, "oc_model_create");
  if (!st) st = check_options(&opt);
  if (!st && opt.reserve_bytes) st = oci_in_capture() ? oci_error(OC_E_CAPTURING, "oc_model_create: would allocate inside a capture") : OC_OK;
  if (st) return st;
  int cancel = oci_cancel_off();
  st = create(b, &opt, out);
  oci_cancel_back(cancel);
  return st;
}

/* ---- destroy ---- */

static bool refused(oc_status st) {
  return st != OC_OK && st != OC_E_TEARDOWN;
}

static oc_status destroy(struct oc_model *m) {
  oc_status st = oc_model_teardown(m, NULL);
  if (refused(st)) return st;
  oci_process_remove_model(m);
  /* Hits may still read the lookup tables: G3. */
  oci_guard_sync();
  model_free(m);
  return st;
}

oc_status oc_model_destroy(oc_model *m) {
  int cancel = oci_cancel_off();
  oc_status st = destroy(m);
  oci_cancel_back(cancel);
  return st;
}

/* ---- parts ---- */

uint64_t oc_model_generation(const oc_model *m) { return m ? m->generation : 0; }
oc_opcache *oc_model_opcache(oc_model *m) { return m ? &m->opcache : NULL; }
oc_derived *oc_model_derived(oc_model *m) { return m ? &m->derived : NULL; }
oc_pool *oc_model_pool(oc_model *m) { return m ? &m->pool : NULL; }

/* ---- guards ---- */

void oc_guard_enter(void) {
  oci_guard_enter();
}

void oc_guard_leave(void) {
  if (__builtin_expect(!oci_guard_leave(), 0))
    oci_log(OCI_LOG_WARNING, "oc_guard_leave: this thread is in no guard");
}

oc_status oc_model_enter(oc_model *m) {
  if (__builtin_expect(!m, 0)) return oci_error(OC_E_INVALID, "oc_model_enter: the model is NULL");
  oci_guard_enter();
  /* Either this load sees that teardown began, or teardown's grace period sees our guard. */
  if (oci_model_live(m)) return OC_OK;
  (void)oci_guard_leave();
  return oci_model_refuses(m, "oc_model_enter");
}

void oc_model_leave(oc_model *m) {
  (void)m;
  oc_guard_leave();
}

oc_status oc_thread_attach(void) {
  oci_guard_attach();
  (void)oci_thread_id();
  return OC_OK;
}
