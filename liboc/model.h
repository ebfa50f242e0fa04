/* SPDX-License-Identifier: MIT */
/*
 * The model and its parts.
 *
 * model:   owns op cache, derived weights, pool, modules, streams, resources, holds; made by oc_model_create, freed by
 *          oc_model_destroy. The parts are embedded, so that a hit reaches the model's state without a load.
 * stream:  one that carries the model's work; forgotten ones stay as records (type-stable) and leave an event behind.
 * farewell: an event recorded on a stream when it was forgotten; owned by the model until it has passed.
 *
 * Locks, outermost first: model.lock, opcache.lock or derived.lock; then process; then tasks; then a pool's own. None is held
 * while waiting for guards, builds, the device or the driver (G19).
 */
#ifndef OCI_LIBOC_MODEL_H
#define OCI_LIBOC_MODEL_H

#include <pthread.h>

#include "allocator/pool.h"
#include "liboc/backend.h"
#include "liboc/derived.h"
#include "liboc/oc.h"
#include "liboc/opcache.h"
#include "liboc/sight.h"
#include "liboc/tasks.h"
#include "rcu/list.h"
#include "rcu/map.h"
#include "rcu/table.h"
#include "rcu/thread.h"

enum model_state {
  MODEL_LIVE = 0,
  MODEL_STOPPING,     /* teardown waits for calls: new ones are refused; may become LIVE again */
  MODEL_RELEASING,    /* past the point of no return; what gives back still works, from resource releases */
  MODEL_RELEASED,
  MODEL_FORKED,       /* in a child of the process that opened the backend */
};

struct oc_pool {
  struct pool *core;
};

struct oc_model {
  uint32_t state;            /* atomic; every hit reads it, teardown writes it (under the tasks lock) */
  uint32_t graph_epoch;      /* atomic to read; starts at 1, grows with oc_model_graphs_gone: see capture.c */
  oc_backend *backend;
  struct map streams;        /* named streams, for the lock-free "is it named?"; entry: struct stream */

  struct oc_opcache opcache __attribute__((aligned(64)));
  struct oc_derived derived __attribute__((aligned(64)));
  struct oc_pool pool __attribute__((aligned(64)));

  uint64_t generation;
  char *name;
  uint32_t flags, teardown_wait_ms;
  struct heap *heap;
  struct task_list tasks;
  struct link in_backend;    /* process.c: under its lock */

  pthread_mutex_t lock;      /* all that follows */
  struct link named_streams, idle_streams;   /* struct stream: in use; forgotten, to be used again */
  uint64_t newest_stream;    /* number of the last one named; 0: none ever was */
  pthread_cond_t stream_left;  /* a call into the driver on a named stream is over */
  struct link farewells;
  uint64_t newest_farewell;  /* number of the last one said */
  struct link modules;       /* struct module, newest first */
  struct table modules_by_name;
  pthread_cond_t module_loaded;
  struct link resources;     /* struct resource, newest first */
  struct table resources_by_self;
  struct link captures;      /* struct capture */
  uint64_t captures_entered; /* so far */
  oc_event *spare_events;    /* recycled; [spare_cap] */
  size_t spare_count, spare_cap;

  struct oc_report *report;  /* of the teardown; NULL before; under the tasks lock */
  oc_status teardown_status;
  bool context_gone;         /* teardown's: the driver is not called any more */

  struct counts counts __attribute__((aligned(64)));
  struct oc_stats_model *shown;   /* atomic: the counts stand there too; NULL: nobody looks */
};

static inline struct oc_model *oci_model_of_opcache(const oc_opcache *c) {
  return CONTAINER((uintptr_t)c, struct oc_model, opcache);
}
static inline struct oc_model *oci_model_of_derived(const oc_derived *d) {
  return CONTAINER((uintptr_t)d, struct oc_model, derived);
}
static inline struct oc_model *oci_model_of_pool(const oc_pool *p) {
  return CONTAINER((uintptr_t)p, struct oc_model, pool);
}

/* relaxed: inside a guard, teardown's change of state is ordered by the grace period; outside, it is a hint */
static inline bool oci_model_live(const struct oc_model *m) {
  return __builtin_expect(__atomic_load_n(&m->state, __ATOMIC_RELAXED) == MODEL_LIVE, 1);
}

static inline bool oci_model_is_forked(const struct oc_model *m) {
  return __atomic_load_n(&m->state, __ATOMIC_RELAXED) == MODEL_FORKED;
}

/* Words why the model does not take `call`: OC_E_RELEASED or OC_E_FORKED. */
oc_status oci_model_refuses(const struct oc_model *m, const char *call);
/* OC_E_FORKED in a child, else OC_OK. */
oc_status oci_model_forked(const struct oc_model *m, const char *call);
/* Not inside a guard, not inside a capture: OC_E_GUARDED, OC_E_CAPTURING. For what waits or releases. */
oc_status oci_may_wait(const char *call);

/* ---- streams (stream.c) ---- */
/* NULL is a stream too, but the map's keys are not 0. ~0 is none (oci_stream_check): what is looked up for it is not there. */
static inline uint64_t oci_stream_key(oc_stream s) {
  return (uint64_t)(uintptr_t)s + 1;
}
static inline bool oci_stream_named(const struct oc_model *m, oc_stream s) {
  return oci_map_value(&m->streams, oci_stream_key(s)) != 0;
}
/* OC_E_INVALID for a handle that names many streams, or none. */
oc_status oci_stream_check(const struct oc_model *m, oc_stream s, const char *call);
/* Names it, if it is not. Inside a call. */
oc_status oci_stream_name(struct oc_model *m, oc_stream s);
/* Waits for what is queued now on the model's streams (all of the device, where none was ever named), and for
   farewells. Streams that a capture is entered on are left out, and *left_out says that there were some (their work
   is not known to be over). Nothing locked. */
oc_status oci_streams_drain(struct oc_model *m, bool *left_out);
/* Waits for farewells only. */
oc_status oci_farewells_await(struct oc_model *m);
/* An undeclared capture on one of the streams; out: which. */
bool oci_streams_capturing(struct oc_model *m, oc_stream *out);
/* With no call in flight: takes the event of a farewell that nobody waits for any more; false: none left. */
bool oci_farewell_take(struct oc_model *m, oc_event *out);
/* OC_E_CAPTURING where such a stream would have to be waited for. */
oc_status oci_streams_may_drain(struct oc_model *m, const char *call);
/* The records; no stream is used any more. */
void oci_streams_free(struct oc_model *m);

/* ---- events (event.c): created once, used again ---- */
oc_status oci_event_get(struct oc_model *m, oc_event *out);
void oci_event_put(struct oc_model *m, oc_event e);
/* One recorded on s now: OC_E_CAPTURING where the driver says that s is capturing. */
oc_status oci_event_mark(struct oc_model *m, oc_stream s, oc_event *out);
/* Polls until it passed. */
oc_status oci_event_await(struct oc_model *m, oc_event e);
/* All of them, those of farewells too. No call is in flight. The first failure. */
oc_status oci_events_destroy(struct oc_model *m);

/* ---- captures (capture.c) ---- */
/* A capture on m is entered, by any thread. */
bool oci_captured_now(struct oc_model *m);
/* s is one that a capture on m is entered on. With model.lock held. */
bool oci_capture_on(struct oc_model *m, oc_stream s);

/* ---- modules (module.c) ---- */
struct module {
  struct link link;
  struct table_node node;   /* by name */
  char *name;
  oc_module handle;
  bool borrowed;
  uint64_t turn;         /* thread that loads it now */
};
oc_status oci_module_kernel(struct oc_model *m, const char *module, const char *func, oc_kernel *out);
void oci_modules_free(struct oc_model *m);

/* ---- holds, resources (holders.c) ---- */
struct hold {
  struct link link;
  struct table_node node;   /* by who */
  uint32_t count;
  char *who;
};
struct resource {
  struct link link;
  struct table_node node;   /* by self */
  oc_resource_ops ops;
  char *label;
  void *self;
};
/* The newest, off the list; NULL: none. */
struct resource *oci_resource_take(struct oc_model *m);
void oci_resource_free(struct oc_model *m, struct resource *r);
/* What found them; none is left. */
void oci_holders_free(struct oc_model *m);

/* ---- the pool's public side (poolapi.c) ---- */
oc_status oci_pool_open(struct oc_model *m, const oc_model_options *opt);
void oci_pool_figures(oc_pool_stats *out, const struct pool_stats *s, bool fell_back);
/* Allocates for one of the model's own purposes, inside a call: a miss in a capture is OC_E_CAPTURING. */
oc_status oci_model_alloc(struct oc_model *m, size_t bytes, size_t align, enum block_class class, const char *owner,
                          const oc_site *site, oc_devptr *out, const char *call);

#endif
