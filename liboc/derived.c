/* SPDX-License-Identifier: MIT */
/* Derived weights: lookups, inserts, figures. */
#include "config.h"

#include <stdio.h>

#include "liboc/model.h"
#include "rcu/mem.h"

void oci_derived_init(struct oc_derived *d, struct heap *h) {
  for (size_t i = 0; i < KINDS_MAX; i++) oci_map_init(&d->maps[i], h);
  pthread_mutex_init(&d->lock, NULL);
  d->heap = d->spans.heap = d->builds.heap = h;
  oci_records_init(&d->entry_records, h, sizeof(struct entry));
  oci_records_init(&d->span_records, h, sizeof(struct span));
  struct link *lists[] = {&d->open, &d->batches, &d->foreign, &d->retired_foreign, &d->zombies};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) link_init(lists[i]);
}

void oci_derived_free(struct oc_derived *d) {
  for (size_t i = 0; i < KINDS_MAX; i++) oci_map_free(&d->maps[i]);
  oci_records_free(&d->entry_records);
  oci_records_free(&d->span_records);
  oci_builds_free(d);
  oci_table_free(&d->spans);
  oci_table_free(&d->builds);
  pthread_mutex_destroy(&d->lock);
}

/* ---- lookups ---- */

static __attribute__((noinline)) void mark_captured(oc_derived *d, const struct map_hit *hit) {
  struct entry *e = oci_map_entry(hit->entry);
  uint32_t epoch = __atomic_load_n(&oci_model_of_derived(d)->graph_epoch, __ATOMIC_RELAXED);
  __atomic_store_n(&e->captured, epoch, __ATOMIC_RELAXED);
}

/* Why a lookup is no hit: words what is wrong, or says OC_MISS. */
static __attribute__((noinline)) oc_status no_hit(const oc_derived *d, oc_kind kind, oc_arity arity, uint64_t key,
                                                  const void *out, const char *call) {
  if (!d || !out) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  if (!key) return oci_error(OC_E_INVALID, "%s: key 0 is no source pointer", call);
  oc_status st = oci_kind_check(kind, arity, call);
  if (st) return st;
  const struct oc_model *m = oci_model_of_derived(d);
  return oci_model_live(m) ? OC_MISS : oci_model_refuses(m, call);
}

/* always_inline: the compiler would rather make one function of it, and pass arity and name in registers. */
#define HIT static inline __attribute__((always_inline))

HIT bool may_look(const oc_derived *d, oc_kind kind, oc_arity arity, uint64_t key, const void *out) {
  return __builtin_expect(d && out && key && oci_kind_is(kind, arity), 1);
}

HIT bool lookup(oc_derived *d, oc_kind kind, oc_arity arity, uint64_t key, const void *out, struct map_hit *hit) {
  if (!may_look(d, kind, arity, key, out)) return false;
  if (__builtin_expect(!oci_map_get(&d->maps[kind], key, hit), 0)) return false;
  if (!oci_model_live(oci_model_of_derived(d))) return false;
  if (oci_in_capture()) mark_captured(d, hit);
  return true;
}

/* Not in its own line of the map: in another, in a capture, or no hit. */
static __attribute__((noinline)) oc_status get_far(oc_derived *d, oc_kind kind, uint64_t key, uint64_t *out) {
  static const char call[] = "oc_derived_get_ptr";
  struct map_hit hit;
  if (!may_look(d, kind, OC_PTR, key, out) || !oci_model_live(oci_model_of_derived(d)))
    return no_hit(d, kind, OC_PTR, key, out, call);
  uint64_t value = 0;
  if (!oci_in_capture()) {
    value = oci_map_far(&d->maps[kind], key);
  } else if (oci_map_get(&d->maps[kind], key, &hit)) {
    mark_captured(d, &hit);
    value = hit.v0;
  }
  if (!value) return OC_MISS;
  *out = value;
  oci_hit(HIT_DERIVED);
  return OC_OK;
}

/* A pointer kind's value is never 0, so that one cache line of its map has all of a hit; but a capture marks the entry. A pair
   kind's map has no such values, an unknown kind no map, and no map has the key 0: what is wrong is seen after the look. */
oc_status oc_derived_get_ptr(oc_derived *d, oc_kind kind, uint64_t key, uint64_t *out) {
  if (__builtin_expect(!d, 0) || __builtin_expect(!out, 0) || __builtin_expect(kind >= KINDS_MAX, 0))
    return get_far(d, kind, key, out);
  uint64_t value = oci_map_near(&d->maps[kind], key);
  if (__builtin_expect(!value, 0) || oci_in_capture() || !oci_model_live(oci_model_of_derived(d)))
    return get_far(d, kind, key, out);
  *out = value;
  oci_hit(HIT_DERIVED);
  return OC_OK;
}

oc_status oc_derived_get_pair(oc_derived *d, oc_kind kind, uint64_t key, uint64_t out[2]) {
  struct map_hit hit;
  if (!lookup(d, kind, OC_PAIR, key, out, &hit)) return no_hit(d, kind, OC_PAIR, key, out, "oc_derived_get_pair");
  out[0] = hit.v0;
  out[1] = hit.v1;
  oci_hit(HIT_DERIVED);
  return OC_OK;
}

/* The stream is not named yet, or the value was not seen finished. OC_MISS: look again. */
static __attribute__((noinline)) oc_status order(oc_derived *d, oc_kind kind, uint64_t key, oc_stream s,
                                                 const struct map_hit *hit, const char *call) {
  struct oc_model *m = oci_model_of_derived(d);
  bool unfinished = hit->entry & MAP_FLAG;
  if (unfinished && oci_in_capture())
    return oci_error(OC_E_CAPTURING, "%s: the value was not yet seen finished, and a capture is entered", call);
  struct task task;
  oc_status st = oci_call_begin(m, &task, call);
  if (st) return st;
  st = oci_stream_check(m, s, call);
  if (!st) st = oci_stream_name(m, s);
  if (!st && unfinished) st = oci_batch_order(d, kind, key, oci_map_entry(hit->entry), s);
  oci_call_end(&task);
  return st;
}

HIT oc_status lookup_on(oc_derived *d, oc_kind kind, oc_arity arity, uint64_t key, oc_stream s, const void *out,
                                  struct map_hit *hit, const char *call) {
  for (;;) {
    if (!lookup(d, kind, arity, key, out, hit)) return no_hit(d, kind, arity, key, out, call);
    if (__builtin_expect(!(hit->entry & MAP_FLAG) && oci_stream_named(oci_model_of_derived(d), s), 1)) return OC_OK;
    oc_status st = order(d, kind, key, s, hit, call);
    if (st != OC_MISS) return st;
  }
}

static __attribute__((noinline)) oc_status get_far_on(oc_derived *d, oc_kind kind, uint64_t key, oc_stream s, uint64_t *out) {
  struct map_hit hit;
  oc_status st = lookup_on(d, kind, OC_PTR, key, s, out, &hit, "oc_derived_get_ptr_on");
  if (st) return st;
  *out = hit.v0;   // NOLINT(clang-analyzer-core.*): lookup_on says OC_OK for a hit alone, and for none without out
  oci_hit(HIT_DERIVED);
  return OC_OK;
}

/* As oc_derived_get_ptr: finished values, asked for on streams that were named, are two cache lines and a bit. */
oc_status oc_derived_get_ptr_on(oc_derived *d, oc_kind kind, uint64_t key, oc_stream s, uint64_t *out) {
  if (__builtin_expect(!d, 0) || __builtin_expect(!out, 0) || __builtin_expect(kind >= KINDS_MAX, 0))
    return get_far_on(d, kind, key, s, out);
  uint64_t value = oci_map_near_plain(&d->maps[kind], key);
  if (__builtin_expect(!value, 0) || oci_in_capture() || !oci_model_live(oci_model_of_derived(d)) ||
      !oci_stream_named(oci_model_of_derived(d), s))
    return get_far_on(d, kind, key, s, out);
  *out = value;
  oci_hit(HIT_DERIVED);
  return OC_OK;
}

oc_status oc_derived_get_pair_on(oc_derived *d, oc_kind kind, uint64_t key, oc_stream s, uint64_t out[2]) {
  struct map_hit hit;
  oc_status st = lookup_on(d, kind, OC_PAIR, key, s, out, &hit, "oc_derived_get_pair_on");
  if (st) return st;
  out[0] = hit.v0;   // NOLINT(clang-analyzer-core.*): as above
  out[1] = hit.v1;
  oci_hit(HIT_DERIVED);
  return OC_OK;
}

/* ---- inserts ---- */

static oc_status insert_locked(oc_derived *d, oc_kind kind, uint64_t key, const uint64_t value[2], uint64_t kept[2],
                               const char *call) {
  struct entry *e = oci_entry_find(d, kind, key);
  if (e) {
    kept[0] = e->value[0];
    kept[1] = e->value[1];
    return OC_EXISTS;
  }
  oc_status st = oci_entry_make(d, kind, key, value, NULL, call, &e);
  if (st) return st;
  e->born = ++d->clock;
  oci_entry_publish(d, e);
  kept[0] = value[0];
  kept[1] = value[1];
  return OC_OK;
}

static oc_status insert(oc_derived *d, oc_kind kind, oc_arity arity, uint64_t key, const uint64_t value[2],
                        uint64_t kept[2], const char *call) {
  if (!d) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  oc_status st = oci_kind_check(kind, arity, call);
  if (st) return st;
  if (!key) return oci_error(OC_E_INVALID, "%s: key 0 is no source pointer", call);
  if (!value[0] && !value[1]) return oci_error(OC_E_INVALID, "%s: a value of 0", call);
  struct task task;
  st = oci_call_begin(oci_model_of_derived(d), &task, call);
  if (st) return st;
  pthread_mutex_lock(&d->lock);
  st = insert_locked(d, kind, key, value, kept, call);
  pthread_mutex_unlock(&d->lock);
  oci_call_end(&task);
  return st;
}

oc_status oc_derived_insert_ptr(oc_derived *d, oc_kind kind, uint64_t key, uint64_t value, uint64_t *kept) {
  uint64_t v[2] = {value, 0}, k[2] = {0, 0};
  oc_status st = insert(d, kind, OC_PTR, key, v, k, "oc_derived_insert_ptr");
  if (kept && st >= 0) *kept = k[0];
  return st;
}

oc_status oc_derived_insert_pair(oc_derived *d, oc_kind kind, uint64_t key, const uint64_t value[2], uint64_t kept[2]) {
  if (!value) return oci_error(OC_E_INVALID, "oc_derived_insert_pair: value is NULL");
  uint64_t v[2] = {value[0], value[1]}, k[2] = {0, 0};   /* kept may be value */
  oc_status st = insert(d, kind, OC_PAIR, key, v, k, "oc_derived_insert_pair");
  if (kept && st >= 0) {
    kept[0] = k[0];
    kept[1] = k[1];
  }
  return st;
}

/* ---- about itself ---- */

const char *oc_derived_label(const oc_derived *d) {
  return d ? "derived weights" : NULL;
}

size_t oc_derived_len(const oc_derived *d) {
  return d ? __atomic_load_n(&d->len, __ATOMIC_RELAXED) : 0;
}

bool oc_derived_is_empty(const oc_derived *d) {
  return oc_derived_len(d) == 0;
}

int oc_derived_describe(const oc_derived *d, char *buf, size_t n) {
  if (!d || (!buf && n)) return -1;
  char kinds[512] = "";
  size_t at = 0;
  bool cut = false;
  for (oc_kind k = 0; k < KINDS_MAX && !cut; k++) {
    size_t live = __atomic_load_n(&d->maps[k].live, __ATOMIC_RELAXED);
    if (!live) continue;
    int w = snprintf(kinds + at, sizeof kinds - at, ", %s: %zu", oci_kind_name(k), live);
    cut = (size_t)w >= sizeof kinds - at;
    if (cut) kinds[at] = 0;
    else at += (size_t)w;
  }
  return snprintf(buf, n, "DerivedWeights { entries: %zu%s%s }", oc_derived_len(d), kinds, cut ? ", ..." : "");
}

oc_status oc_derived_settle(oc_derived *d) {
  if (!d) return oci_error(OC_E_INVALID, "oc_derived_settle: the derived weights are NULL");
  struct task task;
  oc_status st = oci_call_begin(oci_model_of_derived(d), &task, "oc_derived_settle");
  if (st) return st;
  st = oci_may_wait("oc_derived_settle");
  if (!st) st = oci_batches_settle(d);
  oci_call_end(&task);
  return st;
}
