/* SPDX-License-Identifier: MIT */
/* The public side of a model's pool: states, captures and tracked blocks in front of allocator/. */
#include "config.h"

#include <string.h>

#include "liboc/model.h"
#include "liboc/options.h"
#include "liboc/report.h"
#include "rcu/mem.h"

#define CALLERS (BLOCK_BIT(BLOCK_USER) | BLOCK_BIT(BLOCK_OWNED))   /* classes that oc_pool_free may free */

/* ---- the device, as the pool sees it ---- */

static int dev_alloc(void *arg, size_t bytes, bool managed, uint64_t *out) {
  oc_status st = oci_dev_alloc(arg, bytes, managed, out);
  if (!st) oci_sight_arena(arg, bytes, managed);
  return st;
}

static int dev_free(void *arg, uint64_t base) {
  return oci_dev_free(arg, base);
}

static int dev_mark(void *arg, void *stream, void **event) {
  oc_event e;
  oc_status st = oci_event_mark(arg, stream, &e);
  if (!st) *event = e;
  return st;
}

static int dev_passed(void *arg, void *event) {
  return oci_dev_event_query(arg, event);
}

static void dev_unmark(void *arg, void *event) {
  oci_event_put(arg, event);
}

static void dev_note(void *arg, enum pool_note what, uint64_t bytes) {
  if (what == POOL_NOTE_LATCH) oci_sight_latch(arg);
  else oci_sight_retired(arg, bytes);
}

oc_status oci_pool_open(struct oc_model *m, const oc_model_options *opt) {
  struct pool_device dev = {.arg = m, .alloc = dev_alloc, .free = dev_free, .note = dev_note,
                            .can_manage = m->backend->ops.alloc_managed};
  if (oci_dev_has_events(m->backend)) {
    dev.mark = dev_mark;
    dev.passed = dev_passed;
    dev.unmark = dev_unmark;
  }
  struct pool_options po = {.arena_min = opt->arena_min, .arena_max = opt->arena_max,
                            .no_managed = opt->flags & OC_MODEL_NO_MANAGED};
  int st = oci_pool_create(&dev, &po, m->heap, &m->pool.core);
  if (!st) st = oci_pool_reserve(m->pool.core, opt->reserve_bytes);
  return st;
}

/* ---- allocation ---- */

/* Blocks whose stream has passed them come back first; in a capture nothing is asked. */
static void collect(struct oc_model *m) {
  if (!oci_in_capture()) oci_pool_collect_some(m->pool.core);
}

oc_status oci_model_alloc(struct oc_model *m, size_t bytes, size_t align, enum block_class class, const char *owner,
                          const oc_site *site, oc_devptr *out, const char *call) {
  struct pool_request r = {.bytes = bytes, .align = align, .class = class, .owner = owner,
                           .site = (const struct pool_site *)site};
  collect(m);
  if (!oci_in_capture()) return oci_pool_alloc(m->pool.core, &r, out);
  int st = oci_pool_try_alloc(m->pool.core, &r, out);
  if (st != POOL_MISS) return st;
  return oci_error(OC_E_CAPTURING, "%s: no arena has room for %zu bytes, and a capture is entered", call, bytes);
}

/* No arena had room: from now on it counts as a call. */
static __attribute__((noinline)) oc_status grow(struct oc_model *m, const struct pool_request *r, oc_devptr *out, const char *call) {
  if (oci_in_capture())
    return oci_error(OC_E_CAPTURING, "%s: no arena has room for %zu bytes, and a capture is entered", call, r->bytes);
  struct task task;
  oc_status st = oci_call_begin(m, &task, call);
  if (st) return st;
  st = oci_pool_alloc(m->pool.core, r, out);
  oci_call_end(&task);
  return st;
}

static __attribute__((noinline)) void collect_pending(struct oc_model *m, void (*collects)(struct pool *p)) {
  struct task task;
  if (oci_in_capture()) return;
  if (oci_call_begin_give(m, &task, "collect")) return;
  collects(m->pool.core);
  oci_call_end(&task);
}

/* What an allocation or a free does for the others' blocks on its way: a few streams, in turn. */
static inline void collect_in_call(struct oc_model *m) {
  if (__builtin_expect(oci_pool_pending(m->pool.core), 0)) collect_pending(m, oci_pool_collect_some);
}

/* For what tells how things are. */
static void collect_all(struct oc_model *m) {
  if (oci_pool_pending(m->pool.core)) collect_pending(m, oci_pool_collect);
}

/* Inlined into its two callers, as is all up to the pool itself: it is a third of an allocation. */
static inline __attribute__((always_inline)) oc_status pool_alloc(oc_pool *p, const struct pool_request *r, oc_devptr *out,
                                                                  const char *call) {
  if (__builtin_expect(!p || !out, 0)) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  struct oc_model *m = oci_model_of_pool(p);
  if (!oci_model_live(m)) return oci_model_refuses(m, call);
  collect_in_call(m);
  int st = oci_pool_try_alloc(p->core, r, out);
  return __builtin_expect(st != POOL_MISS, 1) ? st : grow(m, r, out, call);
}

oc_status oc_pool_alloc_at(oc_pool *p, size_t bytes, size_t align, const oc_site *site, oc_devptr *out) {
  struct pool_request r = {.bytes = bytes, .align = align, .class = BLOCK_USER, .site = (const struct pool_site *)site};
  return pool_alloc(p, &r, out, "oc_pool_alloc");
}

oc_status oc_pool_alloc_owned_at(oc_pool *p, const char *owner, size_t bytes, size_t align, const oc_site *site,
                                 oc_devptr *out) {
  if (!owner || !*owner) return oci_error(OC_E_INVALID, "oc_pool_alloc_owned: an owner must have a name");
  struct pool_request r = {.bytes = bytes, .align = align, .class = BLOCK_OWNED, .owner = owner,
                           .site = (const struct pool_site *)site};
  return pool_alloc(p, &r, out, "oc_pool_alloc_owned");
}

/* ---- free ---- */

/* In a resource's release the model's entries are still there, but all waits are over and no reader is left: they
   only have to be forgotten. oci_derived_doom would wait for the same streams again, which is harmless. */
static oc_status forget_entries(struct oc_model *m, uint64_t start, const char *call) {
  oc_status st = oci_may_wait(call);
  if (st) return st;
  struct doom what = {.start = start, .patient = true};
  return oci_derived_doom(&m->derived, &what, NULL, call);
}

static oc_status free_tracked(struct oc_model *m, oc_devptr ptr, enum pool_release how, oc_stream s, const char *call) {
  int st;
  do {   /* entries may be added while we wait */
    st = forget_entries(m, ptr, call);
    if (!st) st = oci_pool_free(m->pool.core, ptr, CALLERS, how, s, false);
  } while (st == POOL_TRACKED);
  return st;
}

/* Entries have keys or values in the block: from now on it counts as a call. */
static __attribute__((noinline)) oc_status free_tracked_in_call(struct oc_model *m, oc_devptr ptr, enum pool_release how,
                                                                oc_stream s, const char *call) {
  struct task task;
  oc_status st = oci_call_begin_give(m, &task, call);
  if (st) return st;
  st = free_tracked(m, ptr, how, s, call);
  oci_call_end(&task);
  return st;
}

static inline oc_status pool_free(oc_pool *p, oc_devptr ptr, enum pool_release how, oc_stream s, const char *call) {
  int st = oci_pool_free(p->core, ptr, CALLERS, how, s, false);
  return __builtin_expect(st != POOL_TRACKED, 1) ? st : free_tracked_in_call(oci_model_of_pool(p), ptr, how, s, call);
}

static __attribute__((noinline)) oc_status cannot_free(const oc_pool *p, const char *call) {
  if (!p) return oci_error(OC_E_INVALID, "%s: the pool is NULL", call);
  oc_status st = oci_model_forked(oci_model_of_pool(p), call);
  return st ? st : oci_error(OC_E_INVALID, "%s: the pointer is 0", call);
}

oc_status oc_pool_free(oc_pool *p, oc_devptr ptr) {
  static const char call[] = "oc_pool_free";
  if (__builtin_expect(!p || !ptr || oci_model_is_forked(oci_model_of_pool(p)), 0)) return cannot_free(p, call);
  collect_in_call(oci_model_of_pool(p));
  return pool_free(p, ptr, oci_in_capture() ? RELEASE_RETIRE : RELEASE_NOW, NULL, call);
}

static oc_status free_on(oc_pool *p, oc_devptr ptr, oc_stream s, const char *call) {
  struct oc_model *m = oci_model_of_pool(p);
  oc_status st = oci_stream_check(m, s, call);
  if (!st) st = oci_stream_name(m, s);
  if (!st) oci_pool_collect_some(p->core);
  return st ? st : pool_free(p, ptr, RELEASE_AFTER, s, call);
}

oc_status oc_pool_free_on(oc_pool *p, oc_devptr ptr, oc_stream s) {
  static const char call[] = "oc_pool_free_on";
  if (!p) return oci_error(OC_E_INVALID, "%s: the pool is NULL", call);
  if (!ptr) return oci_error(OC_E_INVALID, "%s: the pointer is 0", call);
  if (oci_in_capture()) return oci_error(OC_E_CAPTURING, "%s: inside a capture; the block stays yours", call);
  struct task task;
  oc_status st = oci_call_begin_give(oci_model_of_pool(p), &task, call);
  if (st) return st;
  st = free_on(p, ptr, s, call);
  oci_call_end(&task);
  return st;
}

oc_status oc_pool_trim(oc_pool *p) {
  static const char call[] = "oc_pool_trim";
  if (!p) return oci_error(OC_E_INVALID, "%s: the pool is NULL", call);
  if (oci_in_capture()) return oci_error(OC_E_CAPTURING, "%s: inside a capture", call);
  struct task task;
  oc_status st = oci_call_begin(oci_model_of_pool(p), &task, call);
  if (st) return st;
  oci_pool_trim(p->core);
  oci_call_end(&task);
  return OC_OK;
}

/* ---- other allocators' memory ---- */

oc_status oc_pool_note_external_at(oc_pool *p, oc_devptr ptr, size_t bytes, const char *owner, const oc_site *site) {
  static const char call[] = "oc_pool_note_external";
  if (!p) return oci_error(OC_E_INVALID, "%s: the pool is NULL", call);
  if (!ptr || !bytes) return oci_error(OC_E_INVALID, "%s: 0x%llx, %zu bytes", call, (unsigned long long)ptr, bytes);
  struct oc_model *m = oci_model_of_pool(p);
  if (!oci_model_live(m)) return oci_model_refuses(m, call);
  return oci_pool_note_external(p->core, ptr, bytes, owner, (const struct pool_site *)site);
}

static oc_status forget_external(struct oc_model *m, oc_devptr ptr, const char *call) {
  int st;
  while ((st = oci_pool_forget_external(m->pool.core, ptr, false)) == POOL_TRACKED) {
    oc_status forgot = forget_entries(m, ptr, call);
    if (forgot) return forgot;
  }
  return st;
}

oc_status oc_pool_forget_external(oc_pool *p, oc_devptr ptr) {
  static const char call[] = "oc_pool_forget_external";
  if (!p) return oci_error(OC_E_INVALID, "%s: the pool is NULL", call);
  struct task task;
  oc_status st = oci_call_begin_give(oci_model_of_pool(p), &task, call);
  if (st) return st;
  st = forget_external(oci_model_of_pool(p), ptr, call);
  oci_call_end(&task);
  return st;
}

/* ---- figures ---- */

void oci_pool_figures(oc_pool_stats *out, const struct pool_stats *s, bool fell_back) {
  *out = (oc_pool_stats){
    .fell_back = fell_back,
    .arenas = s->arenas, .arena_bytes = s->arena_bytes,
    .managed_arenas = s->managed_arenas, .managed_bytes = s->managed_bytes,
    .live_blocks = s->live_blocks, .live_bytes = s->live_bytes, .peak_live_bytes = s->peak_live_bytes,
    .retired_bytes = s->retired_bytes, .free_bytes = s->free_bytes, .largest_free = s->largest_free,
    .driver_allocs = s->driver_allocs, .driver_alloc_failures = s->driver_alloc_failures,
    .driver_frees = s->driver_frees, .host_metadata_bytes = s->host_metadata_bytes,
  };
}

/* Works in a resource's release too. */
static oc_status has_arenas(const struct oc_model *m, const char *call) {
  return __atomic_load_n(&m->state, __ATOMIC_RELAXED) < MODEL_RELEASED ? OC_OK : oci_model_refuses(m, call);
}

oc_status oc_pool_get_stats(oc_pool *p, oc_pool_stats *out) {
  static const char call[] = "oc_pool_get_stats";
  if (!p || !out) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  uint32_t size = out->struct_size;
  if (size < sizeof *out)
    return oci_error(OC_E_INVALID, "%s: struct_size %u is below the first size, %zu", call, size, sizeof *out);
  if (size > STRUCT_MOST) return oci_error(OC_E_INVALID, "%s: struct_size %u is no size of the figures", call, size);
  oc_status st = has_arenas(oci_model_of_pool(p), call);
  if (st) return st;
  collect_all(oci_model_of_pool(p));
  struct pool_stats s;
  oci_pool_stats(p->core, &s);
  oci_pool_figures(out, &s, oci_pool_fell_back(p->core));
  out->struct_size = size;
  memset((char *)out + sizeof *out, 0, size - sizeof *out);   /* fields of a later version */
  return OC_OK;
}

oc_status oc_pool_check(oc_pool *p) {
  if (!p) return oci_error(OC_E_INVALID, "oc_pool_check: the pool is NULL");
  oc_status st = has_arenas(oci_model_of_pool(p), "oc_pool_check");
  return st ? st : (oc_status)oci_pool_check(p->core);
}

/* ---- the walk ---- */

struct listener {
  oc_block_fn fn;
  void *arg;
};

_Static_assert(OC_BLOCK_FREE == (int)VIEW_FREE && OC_BLOCK_LIVE == (int)VIEW_LIVE && OC_BLOCK_RETIRED == (int)VIEW_RETIRED &&
               OC_BLOCK_LOST == (int)VIEW_LOST && OC_BLOCK_EXTERNAL == (int)VIEW_EXTERNAL, "");

static oc_block_role role_of(const struct block_view *b) {
  static const oc_block_role roles[] = {[BLOCK_USER] = OC_ROLE_CALLER, [BLOCK_OWNED] = OC_ROLE_OWNER,
                                        [BLOCK_SCRATCH] = OC_ROLE_SCRATCH, [BLOCK_BUILD] = OC_ROLE_BUILD,
                                        [BLOCK_DERIVED] = OC_ROLE_DERIVED};
  if (b->state == VIEW_EXTERNAL) return OC_ROLE_EXTERNAL;
  return b->tag ? roles[b->class] : OC_ROLE_NONE;
}

static oc_arena_info arena_info(const struct pool_arena_view *a) {
  return (oc_arena_info){
    .struct_size = sizeof(oc_arena_info), .index = a->index, .base = a->base, .bytes = a->bytes, .used_bytes = a->used,
    .driver_base = a->driver_base, .driver_bytes = a->driver_bytes,
    .flags = (a->managed ? OC_ARENA_MANAGED : 0u) | (a->lost ? OC_ARENA_LOST : 0u)};
}

static int tell_block(void *arg, const struct block_view *b) {
  const struct listener *l = arg;
  oc_arena_info arena;
  oc_block_info info = {
    .struct_size = sizeof info, .flags = b->tracked ? OC_BLOCK_HAS_ENTRIES : 0u, .state = (oc_block_state)b->state,
    .role = role_of(b), .start = b->start, .bytes = b->bytes, .requested = b->requested};
  if (b->arena) {
    arena = arena_info(b->arena);
    info.arena = &arena;
  }
  if (b->tag) {
    info.owner = b->tag->owner;
    info.site = (oc_site){b->tag->file, b->tag->line, b->tag->func};
  }
  return l->fn(l->arg, &info);
}

oc_status oc_pool_each_block(oc_pool *p, oc_block_fn fn, void *arg) {
  static const char call[] = "oc_pool_each_block";
  if (!p || !fn) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  oc_status st = has_arenas(oci_model_of_pool(p), call);
  if (st) return st;
  collect_all(oci_model_of_pool(p));
  struct listener l = {fn, arg};
  return oci_pool_walk(p->core, tell_block, &l);
}

char *oc_pool_report_text(oc_pool *p, size_t top) {
  if (!p || oci_model_forked(oci_model_of_pool(p), "oc_pool_report_text")) return NULL;
  return oci_string_out(oci_pool_report_text(p->core, top));
}

char *oc_pool_report_json(oc_pool *p) {
  if (!p || oci_model_forked(oci_model_of_pool(p), "oc_pool_report_json")) return NULL;
  return oci_string_out(oci_pool_report_json(p->core));
}
