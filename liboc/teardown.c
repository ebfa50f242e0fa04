/* SPDX-License-Identifier: MIT */
/*
 * Teardown (G22): stop, wait, unpublish, wait for guards and streams, release in reverse order, report.
 *
 * Until `release` everything can be taken back: a holder, call, build or capture that does not end makes the model
 * live again (G24). From then on nothing refuses any more: failures become rows (G23), and a context that is gone becomes one row
 * and the end of all driver calls (G25).
 */
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "allocator/text.h"
#include "liboc/model.h"
#include "liboc/publish.h"
#include "liboc/report.h"
#include "rcu/error.h"
#include "rcu/guard.h"
#include "rcu/mem.h"
#include "rcu/table.h"

struct owner {
  struct table_node node;          /* by name */
  const char *name;
  uint64_t blocks, bytes;
};

struct owner_list {
  struct owner *owner;             /* [room] */
  size_t n, room;
  struct table by_name;            /* by the name's address */
};

struct teardown {
  struct oc_model *m;
  struct oc_report *report;
  struct owner_list owners;        /* empty; there is room for all */
  bool failed;
};

/* ---- states; under the tasks lock ---- */

static void set_state(struct oc_model *m, enum model_state state) {
  __atomic_store_n(&m->state, state, __ATOMIC_RELEASE);
  oci_publish_state(m);
  pthread_cond_broadcast(&m->tasks.changed);   /* those who wait for a build */
}

static void change_state(struct oc_model *m, enum model_state state) {
  oci_tasks_lock();
  set_state(m, state);
  oci_tasks_unlock();
}

/* ---- who keeps it from ending ---- */

static void name_build(const struct oc_build *b) {
  oci_error_add(OC_E_BUSY, "the build of %s 0x%llx begun at %s:%u (%s)", oci_kind_name(b->kind), (unsigned long long)b->key,
                b->site.file ? b->site.file : "an unknown site", b->site.line, b->site.func ? b->site.func : "?");
}

#define NAMED_MAX 8

/* Under the tasks lock: what is still there, in the error's words. */
static oc_status name_the_living(struct oc_model *m, oc_status st) {
  unsigned named = 0, more = 0;
  oci_error(st, "oc_model_teardown: model %s is %s", m->name,
            st == OC_E_REENTRANT ? "kept by what waits for this thread" : "still in use");
  LINK_EACH(l, &m->tasks.holds) {
    const struct hold *h = CONTAINER(l, struct hold, link);
    if (named++ < NAMED_MAX) oci_error_add(st, "the holder %s (%u)", h->who, h->count);
    else more++;
  }
  LINK_EACH(l, &m->tasks.tasks) {
    const struct task *t = CONTAINER(l, struct task, link);
    if (named++ >= NAMED_MAX) more++;
    else if (t->call) oci_error_add(st, "a call of %s", t->call);
    else name_build(CONTAINER(l, struct oc_build, task));
  }
  return more ? oci_error_add(st, "and %u more", more) : st;
}

/* Captures that the engine said it entered: no driver call. */
static oc_status check_declared(struct oc_model *m) {
  if (oci_captured_now(m)) return oci_error(OC_E_BUSY, "oc_model_teardown: a capture is entered on model %s", m->name);
  pthread_mutex_lock(&m->lock);
  bool whole_device = !m->newest_stream;
  pthread_mutex_unlock(&m->lock);
  if (whole_device && __atomic_load_n(&m->backend->captures, __ATOMIC_RELAXED))
    return oci_error(OC_E_BUSY, "oc_model_teardown: model %s has named no stream, so the whole device would be waited for, "
                     "and a capture is entered on backend %s", m->name, m->backend->name);
  return OC_OK;
}

static oc_status check_captures(struct oc_model *m) {
  oc_stream s;
  oc_status st = check_declared(m);
  if (!st && oci_streams_capturing(m, &s))
    st = oci_error(OC_E_BUSY, "oc_model_teardown: stream %p of model %s is capturing", (void *)s, m->name);
  return st;
}

/* ---- stop ---- */

static void stop(struct oc_model *m) {
  oci_pool_stop(m->pool.core, true);
  change_state(m, MODEL_STOPPING);
}

static void resume(struct oc_model *m) {
  oci_pool_stop(m->pool.core, false);
  change_state(m, MODEL_LIVE);
}

static oc_status wait_idle(struct oc_model *m) {
  struct timespec deadline = oci_deadline(m->teardown_wait_ms);
  oci_tasks_lock();
  oc_status st = oci_wait_idle(m, &deadline);
  if (st) name_the_living(m, st);
  oci_tasks_unlock();
  return st;
}

static void count_row(void *count, const struct ledger_row *row) {
  (void)row;
  ++*(size_t *)count;
}

/* For list->room owners. False without host memory. */
static bool make_room(struct owner_list *list) {
  if (!list->room) return true;
  list->owner = oci_alloc(NULL, list->room * sizeof *list->owner);
  return list->owner && oci_table_reserve(&list->by_name);
}

/* Rows for everything that may need one, and room for the owners. No call is in flight, so nothing is added to these
   lists any more but by resource releases. */
static oc_status make_report(struct teardown *t) {
  struct oc_model *m = t->m;
  size_t rows = 12;
  oci_pool_ledger(m->pool.core, count_row, &t->owners.room);
  pthread_mutex_lock(&m->lock);   /* pop still works */
  LINK_EACH(l, &m->resources) rows++;
  pthread_mutex_unlock(&m->lock);
  LINK_EACH(l, &m->modules) rows++;
  bool room = make_room(&t->owners);
  t->report = room ? oci_report_new(m->name, m->generation, rows + t->owners.room) : NULL;
  return t->report ? OC_OK : oci_error(OC_E_HOST_NOMEM, "oc_model_teardown: out of host memory for the report");
}

static void free_owners(struct teardown *t) {
  oci_table_free(&t->owners.by_name);
  oci_free(NULL, t->owners.owner, t->owners.room * sizeof *t->owners.owner);
}

/* Everything that can refuse. Afterwards the model is RELEASING. */
static oc_status prepare(struct teardown *t) {
  struct oc_model *m = t->m;
  oc_status st = check_captures(m);
  if (st) return st;
  oci_sight_teardown(m, "stop");
  stop(m);
  st = wait_idle(m);
  if (!st) st = check_captures(m);
  if (!st) st = make_report(t);
  if (st) {
    oci_sight_teardown(m, "refused");
    resume(m);
  } else {
    change_state(m, MODEL_RELEASING);
  }
  return st;
}

/* ---- release ---- */

/* A row for an outcome. The first "context gone" is a row; nothing after it is a failure. */
static void __attribute__((format(printf, 4, 5))) add_row(struct teardown *t, oc_status st, const char *label, const char *fmt, ...) {
  char detail[512];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(detail, sizeof detail, fmt, ap);
  va_end(ap);
  if (st == OC_E_DEVICE_LOST) {
    if (!t->m->context_gone) oci_report_add(t->report, OC_OK, "context gone", "%s", detail);
    t->m->context_gone = true;
    return;
  }
  if (st) t->failed = true;
  oci_report_add(t->report, st, label, "%s", detail);
}

static void drain(struct teardown *t) {
  oci_sight_guard_sync(t->m);
  bool left_out;
  oc_status st = oci_streams_drain(t->m, &left_out);
  if (st) add_row(t, st, "streams", "%s", oci_error_text());
}

static void release_resources(struct teardown *t) {
  struct resource *r;
  while ((r = oci_resource_take(t->m))) {
    uint32_t before = oci_error_count();
    oc_status st = r->ops.release(r->self, t->m->backend);
    if (st > 0) st = OC_E_INVALID;
    const char *why = oci_error_count() == before ? oc_status_text(st) : oci_error_text();
    add_row(t, st, r->label, "%s", st ? why : "released");
    oci_resource_free(t->m, r);
  }
}

/* A release may have forgotten a stream: what it queued there may still use our memory. */
static void await_resources(struct teardown *t) {
  if (t->m->context_gone) return;
  oc_status st = oci_farewells_await(t->m);
  if (st) add_row(t, st, "streams", "%s", oci_error_text());
}

static void release_scratch(struct teardown *t) {
  size_t buffers;
  uint64_t bytes;
  oci_scratch_sweep(&t->m->opcache, &buffers, &bytes);
  add_row(t, OC_OK, oc_opcache_label(&t->m->opcache), "%zu buffers, %llu bytes", buffers, (unsigned long long)bytes);
}

static void release_derived(struct teardown *t) {
  struct sweep s;
  oci_derived_sweep(&t->m->derived, t->m->context_gone, &s);
  const char *label = oc_derived_label(&t->m->derived);
  if (s.first) {
    add_row(t, s.first, label, "%llu entries; %llu of %llu values outside the pool could not be freed: %s",
        (unsigned long long)s.entries, (unsigned long long)s.failures, (unsigned long long)s.failures + s.foreign,
        oci_error_text());
    return;
  }
  add_row(t, OC_OK, label, "%llu entries, %llu values outside the pool freed", (unsigned long long)s.entries,
      (unsigned long long)s.foreign);
}

/* ---- what the arenas take with them ---- */

struct unowned {
  uint64_t swept_blocks, swept_bytes, largest;
  char site[160];
  unsigned sites;
};

static void sum_unowned(void *arg, const struct ledger_row *row) {
  struct unowned *o = arg;
  if (row->owner || row->external || !row->live_blocks) return;
  o->sites++;
  o->swept_blocks += row->live_blocks;
  o->swept_bytes += row->live_bytes;
  if (row->live_bytes <= o->largest) return;
  o->largest = row->live_bytes;
  snprintf(o->site, sizeof o->site, "%s:%u", row->file ? row->file : "unknown", row->line);
}

static void add_site(void *teardown, const struct ledger_row *row) {
  if (row->owner || row->external || !row->live_blocks) return;
  char label[128], amount[48];
  snprintf(label, sizeof label, "unowned at %s:%u", row->file ? row->file : "unknown", row->line);
  oci_text_bytes(amount, sizeof amount, row->live_bytes);
  add_row(teardown, OC_OK, label, "%s in %llu blocks", amount, (unsigned long long)row->live_blocks);
}

/* Each owner at its first row of the ledger, which interns names: one address an owner, and one hash. There is room for all: it
   is counted when nobody allocates any more. */
static struct owner *owner_of(struct owner_list *list, const char *name) {
  uint64_t hash = oci_hash_u64((uint64_t)(uintptr_t)name);
  struct table_node *there = oci_table_find(&list->by_name, hash);
  if (there) return CONTAINER(there, struct owner, node);
  struct owner *o = &list->owner[list->n++];
  o->name = name;
  (void)oci_table_reserve(&list->by_name);   /* it was once: without memory it is slower, no more */
  oci_table_add(&list->by_name, &o->node, hash);
  return o;
}

static void sum_owner(void *arg, const struct ledger_row *row) {
  if (!row->owner || row->external || !row->live_blocks) return;
  struct owner *o = owner_of(arg, row->owner);
  o->blocks += row->live_blocks;
  o->bytes += row->live_bytes;
}

/* Has its row as scratch, or as derived weights. An engine may name an owner so too. */
static bool ours(const struct oc_model *m, const char *owner) {
  return oci_scratch_owns(&m->opcache, owner) || oci_kind_owns(owner);
}

static void report_owners(struct teardown *t) {
  struct owner_list *list = &t->owners;
  oci_pool_ledger(t->m->pool.core, sum_owner, list);
  for (size_t i = 0; i < list->n; i++) {
    const struct owner *o = &list->owner[i];
    if (ours(t->m, o->name)) continue;
    add_row(t, OC_OK, o->name, "%llu blocks, %llu bytes", (unsigned long long)o->blocks, (unsigned long long)o->bytes);
  }
}

static void sweep_unowned(struct teardown *t) {
  struct unowned o = {0};
  oci_pool_ledger(t->m->pool.core, sum_unowned, &o);
  oci_report_totals(t->report)->blocks_swept = o.swept_blocks;
  if (!o.swept_blocks) return;
  char amount[48];
  oci_text_bytes(amount, sizeof amount, o.swept_bytes);
  add_row(t, OC_OK, "unowned blocks", "%s in %llu blocks, largest site %s", amount, (unsigned long long)o.swept_blocks, o.site);
  if (o.sites > 1) oci_pool_ledger(t->m->pool.core, add_site, t);
}

struct arenas {
  struct teardown *t;
  oc_status first;
  char words[256];
  uint64_t failed, failed_bytes;
};

static void arena_outcome(void *arg, const struct pool_arena_info *a, int status) {
  struct arenas *s = arg;
  if (!status) {
    oci_report_totals(s->t->report)->arenas_freed++;
    oci_report_totals(s->t->report)->bytes_freed += a->bytes;
    return;
  }
  s->failed++;
  s->failed_bytes += a->bytes;
  if (!s->first || (status == OC_E_DEVICE_LOST && s->first != OC_E_DEVICE_LOST)) {
    s->first = status;
    snprintf(s->words, sizeof s->words, "%s", oci_error_text());
  }
}

static void release_arenas(struct teardown *t) {
  struct arenas s = {.t = t};
  if (t->m->context_gone) {
    oci_pool_abandon_arenas(t->m->pool.core);
    return;
  }
  oci_pool_release_arenas(t->m->pool.core, arena_outcome, &s);
  const struct report_totals *sum = oci_report_totals(t->report);
  if (s.first)
    add_row(t, s.first, "arenas", "%llu freed, %llu bytes; %llu (%llu bytes) could not be: %s", (unsigned long long)sum->arenas_freed,
        (unsigned long long)sum->bytes_freed, (unsigned long long)s.failed, (unsigned long long)s.failed_bytes, s.words);
  else
    add_row(t, OC_OK, "arenas", "%llu freed, %llu bytes", (unsigned long long)sum->arenas_freed, (unsigned long long)sum->bytes_freed);
}

static void release_module(struct teardown *t, struct module *mod) {
  char label[128];
  snprintf(label, sizeof label, "module %s", mod->name);
  if (mod->borrowed) {
    add_row(t, OC_OK, label, "borrowed: left loaded");
    return;
  }
  oc_status st = t->m->context_gone ? OC_E_DEVICE_LOST : oci_dev_module_unload(t->m, mod->handle);
  if (!st) oci_report_totals(t->report)->modules_unloaded++;
  add_row(t, st, label, "%s", st ? oci_error_text() : "unloaded");
}

/* Frees and forgets of other threads still work: refused from now on, and waited for. */
static void end_calls(struct oc_model *m) {
  oci_tasks_lock();
  set_state(m, MODEL_RELEASED);
  oci_wait_calls(m);
  oci_tasks_unlock();
}

static void release_events(struct teardown *t) {
  oci_batches_drop(&t->m->derived);
  if (t->m->context_gone) return;
  oc_status st = oci_events_destroy(t->m);
  if (st) add_row(t, st, "events", "%s", oci_error_text());
}

static oc_status release(struct teardown *t) {
  struct oc_model *m = t->m;
  oci_sight_teardown(m, "drain");
  drain(t);
  oci_sight_teardown(m, "resources");
  release_resources(t);
  await_resources(t);
  oci_sight_teardown(m, "derived");
  release_scratch(t);
  release_derived(t);
  report_owners(t);
  sweep_unowned(t);
  oci_sight_teardown(m, "arenas");
  release_arenas(t);
  oci_sight_teardown(m, "modules");
  LINK_EACH(l, &m->modules) release_module(t, CONTAINER(l, struct module, link));
  end_calls(m);
  release_events(t);
  oci_sight_teardown(m, "done");
  return t->failed ? OC_E_TEARDOWN : OC_OK;
}

/* ---- once ---- */

/* Under the tasks lock: waits for another thread's teardown. OC_OK: this thread's turn, or it is done. */
static oc_status take_turn(struct oc_model *m) {
  if (m->tasks.teardown_thread == oci_thread_id())
    return oci_error(OC_E_REENTRANT, "oc_model_teardown: called from within the teardown of model %s", m->name);
  if (oci_wait_turn(m)) return name_the_living(m, OC_E_REENTRANT);
  if (!m->report) m->tasks.teardown_thread = oci_thread_id();
  return OC_OK;
}

static void give_turn(struct oc_model *m, struct oc_report *report, oc_status st) {
  oci_tasks_lock();
  if (report) {
    oci_report_end(report, st);
    m->report = report;
    m->teardown_status = st;
    set_state(m, MODEL_RELEASED);
  }
  m->tasks.teardown_thread = 0;
  pthread_cond_broadcast(&m->tasks.changed);
  oci_tasks_unlock();
}

/* m->report is set once this is OK or TEARDOWN. */
static oc_status teardown(struct oc_model *m) {
  oci_tasks_lock();
  oc_status st = take_turn(m);
  bool done = m->report != NULL;
  if (done) st = m->teardown_status;   /* nothing is left that could lead to this thread */
  oci_tasks_unlock();
  if (st || done) return st == OC_E_TEARDOWN ? oci_error(st, "oc_model_teardown: finished with failures; see the report") : st;
  struct teardown t = {.m = m};
  st = prepare(&t);
  if (!st) st = release(&t);
  free_owners(&t);
  give_turn(m, t.report, st);
  return st == OC_E_TEARDOWN ? oci_error(st, "oc_model_teardown: finished with failures; see the report") : st;
}

/* A capture that this model's teardown must not disturb is OC_E_BUSY, whichever thread entered it (G22); any other of
   this thread's keeps us from the driver (G28). */
static oc_status may_begin(struct oc_model *m, const char *call) {
  if (oci_guarded() || !oci_in_capture() || !oci_model_live(m)) return oci_may_wait(call);
  oc_status st = check_declared(m);
  return st ? st : oci_may_wait(call);
}

oc_status oc_model_teardown(oc_model *m, oc_report **report) {
  static const char call[] = "oc_model_teardown";
  if (report) *report = NULL;
  if (!m) return oci_error(OC_E_INVALID, "%s: the model is NULL", call);
  oc_status st = oci_model_forked(m, call);
  int cancel = oci_cancel_off();
  if (!st) st = may_begin(m, call);
  if (!st) st = teardown(m);
  oci_cancel_back(cancel);
  if (report && (st == OC_OK || st == OC_E_TEARDOWN)) *report = oci_report_ref(m->report);
  return st;
}
