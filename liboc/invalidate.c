/* SPDX-License-Identifier: MIT */
/*
 * Forgetting derived values: by key, by block, or all (G15).
 *
 * One walk collects what goes, values derived from values that go included; if an older build of something that goes
 * is open, the walk is undone, the build waited for, and the walk made again. Then all of it is unpublished at once,
 * guards and streams are waited for with nothing locked, and the memory goes back.
 */
#include "config.h"

#include "liboc/model.h"
#include "rcu/guard.h"
#include "rcu/mem.h"

struct walk {
  struct oc_derived *d;
  const struct doom *what;
  uint64_t before;        /* entries and builds born earlier go */
  struct link doomed;     /* entries */
};

/* ---- collecting; with the lock held ---- */

static void doom_entry(struct walk *w, struct entry *e) {
  if (e && !link_on(&e->link)) link_add_tail(&w->doomed, &e->link);
}

/* Not what was made of the source as it is now. */
static void doom_older(struct walk *w, struct entry *e) {
  if (e && e->born < w->before) doom_entry(w, e);
}

static void doom_keys_in(struct walk *w, struct span *s) {
  LINK_EACH(l, &s->keys) doom_entry(w, CONTAINER(l, struct entry, by_key));
}

static void doom_values_in(struct walk *w, struct span *s) {
  LINK_EACH(l, &s->values) {
    struct entry_value *half = CONTAINER(l, struct entry_value, link);
    if (!half->owned) doom_entry(w, half->entry);
  }
}

static bool in_span(const struct span *s, uint64_t addr) {
  return addr >= s->start && addr - s->start < s->bytes;
}

/* Is addr a value of e that e owns? (Both halves may lie in the first one's span.) */
/* analyzer: takes a list's own head for an entry */
static bool owns_value(const struct entry *e, uint64_t addr) {
  for (int i = 0; i < 2; i++) {
    const struct span *s = e->half[i].span ? e->half[i].span : e->half[0].span;
    const struct entry_value *half = e->half[i].span ? &e->half[i] : &e->half[0];
    if (e->value[i] == addr && s && half->owned && in_span(s, addr)) return true;
  }
  return false;
}

/* What is derived from the value of a doomed entry: keyed by it, or by any address in a span that now loses its
   last owner. Whenever that was made, it was made of the old value. A borrowed value stays where it is, and so does
   what was derived from it. */
static void doom_derived_from(struct walk *w, struct entry *e) {
  for (int i = 0; i < 2; i++) {
    struct span *s = e->half[i].span;
    if (owns_value(e, e->value[i]))
      for (oc_kind k = 0; k < w->d->kinds; k++) doom_entry(w, oci_entry_find(w->d, k, e->value[i]));
    if (s && e->half[i].owned && ++s->going == s->owners) doom_keys_in(w, s);
  }
}

static void doom_each(void *arg, uint64_t key, const struct map_hit *hit) {
  (void)key;
  doom_older(arg, oci_map_entry(hit->entry));
}

static void doom_older_of_key(struct walk *w, uint64_t key) {
  for (oc_kind k = 0; k < w->d->kinds; k++) doom_older(w, oci_entry_find(w->d, k, key));
}

static void collect(struct walk *w) {
  const struct doom *what = w->what;
  link_init(&w->doomed);
  if (w->d->swept) return;
  for (size_t i = 0; i < what->n; i++)
    doom_older_of_key(w, what->keys[i]);
  struct span *s = what->start ? oci_span_find(w->d, what->start, false) : NULL;
  if (s) doom_keys_in(w, s);
  if (s) doom_values_in(w, s);
  for (oc_kind k = 0; what->all && k < w->d->kinds; k++) oci_map_each(&w->d->maps[k], doom_each, w);
  /* the list grows behind the one we are at */
  for (struct link *l = w->doomed.next; l != &w->doomed; l = l->next) doom_derived_from(w, CONTAINER(l, struct entry, link));
}

static void undo(struct walk *w) {
  LINK_EACH(l, &w->doomed) {
    struct entry *e = CONTAINER(l, struct entry, link);
    link_remove(l);
    for (int i = 0; i < 2; i++)
      if (e->half[i].span) e->half[i].span->going = 0;
  }
}

/* ---- open builds of what goes ---- */

static bool is_doomed_value(const struct walk *w, uint64_t key) {
  for (const struct link *l = w->doomed.next; l != &w->doomed; l = l->next)
    if (owns_value(CONTAINER(l, struct entry, link), key)) return true;
  return false;
}

/* Of a key that was named, if it began before; of a value that goes, whenever it began. */
static bool build_goes(const struct walk *w, const struct oc_build *b) {
  const struct doom *what = w->what;
  bool older = b->begun < w->before;
  if (what->all && older) return true;
  for (size_t i = 0; i < what->n && older; i++)
    if (what->keys[i] == b->key) return true;
  const struct span *s = b->key_span;
  if (what->start && s && s->start == what->start) return true;
  return (s && s->owners && s->going == s->owners) || is_doomed_value(w, b->key);
}

static struct oc_build *open_build(const struct walk *w) {
  LINK_EACH(l, &w->d->open) {
    struct oc_build *b = CONTAINER(l, struct oc_build, link);
    if (build_goes(w, b)) return b;
  }
  return NULL;
}

/* Unlocks. */
static oc_status wait_for_build(struct walk *w, struct oc_build *b, const struct timespec *deadline, const char *call) {
  const char *kind = oci_kind_name(b->kind);
  unsigned long long key = b->key;
  oci_tasks_lock();
  pthread_mutex_unlock(&w->d->lock);
  oc_status st = oci_wait_task(&b->task, deadline, w->what->patient);
  oci_tasks_unlock();
  if (st == OC_E_RELEASED) return oci_model_refuses(oci_model_of_derived(w->d), call);
  if (st) return oci_error(st, "%s: %s the open build of %s 0x%llx", call,
                           st == OC_E_BUSY ? "it did not end in time:" : "this thread is waited for by", kind, key);
  return OC_OK;
}

/* Locks, and leaves it locked on OC_OK with everything that goes in w->doomed. */
static oc_status collect_settled(struct walk *w, const struct timespec *deadline, const char *call) {
  pthread_mutex_lock(&w->d->lock);
  w->before = ++w->d->clock;
  for (;;) {
    collect(w);
    struct oc_build *b = open_build(w);
    if (!b) return OC_OK;
    undo(w);
    oc_status st = wait_for_build(w, b, deadline, call);
    if (st) return st;
    pthread_mutex_lock(&w->d->lock);
  }
}

/* ---- giving back ---- */

static bool held_by_graph(const struct oc_model *m, const struct span *s) {
  return s->captured == __atomic_load_n(&m->graph_epoch, __ATOMIC_RELAXED);
}

/* With the lock held: blocks of the pool go back at once; foreign values stay on the list. */
static void free_blocks(struct oc_derived *d, struct link *gone, bool keep_all) {
  struct oc_model *m = oci_model_of_derived(d);
  LINK_EACH(l, gone) {
    struct span *s = CONTAINER(l, struct span, link);
    bool keep = keep_all || held_by_graph(m, s);
    if (s->type == SPAN_FOREIGN) {
      if (keep) link_move_tail(&d->retired_foreign, l);
      continue;
    }
    link_remove(l);
    uint64_t start = s->start;
    oci_span_drop(d, s);
    (void)oci_pool_free(m->pool.core, start, BLOCK_BIT(BLOCK_DERIVED), keep ? RELEASE_RETIRE : RELEASE_NOW, NULL, true);
  }
}

/* Nothing locked; forgets the spans. */
static oc_status free_foreign(struct oc_derived *d, struct link *gone, uint64_t *freed, uint64_t *failed) {
  oc_status first = OC_OK;
  LINK_EACH(l, gone) {
    struct span *s = CONTAINER(l, struct span, link);
    oc_status st = first == OC_E_DEVICE_LOST ? first : oci_dev_free(oci_model_of_derived(d), s->start);
    if (st) ++*failed;
    else ++*freed;
    if (st && (!first || st == OC_E_DEVICE_LOST)) first = st;
    pthread_mutex_lock(&d->lock);
    link_remove(l);
    oci_span_drop(d, s);
    pthread_mutex_unlock(&d->lock);
  }
  return first;
}

static oc_status give_back(struct oc_derived *d, struct link *doomed, bool keep_all) {
  struct link gone;
  link_init(&gone);
  pthread_mutex_lock(&d->lock);
  LINK_EACH(l, doomed) oci_entry_settle(d, CONTAINER(l, struct entry, link), &gone);
  free_blocks(d, &gone, keep_all);
  pthread_mutex_unlock(&d->lock);
  uint64_t freed = 0, failed = 0;
  return free_foreign(d, &gone, &freed, &failed);
}

oc_status oci_derived_doom(struct oc_derived *d, const struct doom *what, const struct timespec *deadline, const char *call) {
  struct oc_model *m = oci_model_of_derived(d);
  struct walk w = {.d = d, .what = what};
  oc_status st = oci_streams_may_drain(m, call);
  if (st) return st;
  st = collect_settled(&w, deadline, call);
  if (st) return st;
  /* What another thread is forgetting right now must be out of use too when we return. */
  bool any = !link_empty(&w.doomed) || d->leaving;
  uint64_t values = 0;
  LINK_EACH(l, &w.doomed) {
    oci_entry_unpublish(d, CONTAINER(l, struct entry, link));
    values++;
  }
  pthread_mutex_unlock(&d->lock);
  if (!any) return OC_OK;
  oci_sight_invalidate(m, values);
  oci_sight_guard_sync(m);
  bool left_out = false;
  st = oci_streams_drain(m, &left_out);
  /* A stream that another thread captures on could not be waited for, nor one that failed: kept as for a graph. */
  oc_status freed = give_back(d, &w.doomed, st != OC_OK || left_out);
  return st ? st : freed;
}

/* ---- the public forms ---- */

static oc_status doom_in_call(oc_derived *d, const struct doom *what, const struct timespec *deadline, const char *call) {
  struct task task;
  oc_status st = oci_call_begin(oci_model_of_derived(d), &task, call);
  if (st) return st;
  st = oci_may_wait(call);
  if (!st) st = oci_derived_doom(d, what, deadline, call);
  oci_call_end(&task);
  return st;
}

oc_status oc_derived_invalidate(oc_derived *d, uint64_t key) {
  static const char call[] = "oc_derived_invalidate";
  if (!d) return oci_error(OC_E_INVALID, "%s: the derived weights are NULL", call);
  if (!key) return oci_error(OC_E_INVALID, "%s: key 0 is no source pointer", call);
  struct doom what = {.keys = &key, .n = 1};
  return doom_in_call(d, &what, NULL, call);
}

oc_status oc_derived_invalidate_n(oc_derived *d, const uint64_t *keys, size_t n) {
  static const char call[] = "oc_derived_invalidate_n";
  if (!d || (!keys && n)) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  for (size_t i = 0; i < n; i++)
    if (!keys[i]) return oci_error(OC_E_INVALID, "%s: key %zu is 0, which is no source pointer", call, i);
  struct doom what = {.keys = keys, .n = n};
  return doom_in_call(d, &what, NULL, call);
}

oc_status oc_derived_release(oc_derived *d) {
  static const char call[] = "oc_derived_release";
  if (!d) return oci_error(OC_E_INVALID, "%s: the derived weights are NULL", call);
  struct timespec deadline = oci_deadline(oci_model_of_derived(d)->teardown_wait_ms);
  struct doom what = {.all = true};
  return doom_in_call(d, &what, &deadline, call);
}

/* ---- graphs gone, teardown ---- */

void oci_derived_take_retired(struct oc_derived *d, struct link *out) {
  pthread_mutex_lock(&d->lock);
  link_splice(out, &d->retired_foreign);
  pthread_mutex_unlock(&d->lock);
}

oc_status oci_derived_graphs_gone(struct oc_derived *d, struct link *taken, bool free_now) {
  uint64_t freed = 0, failed = 0;
  if (free_now) return free_foreign(d, taken, &freed, &failed);
  pthread_mutex_lock(&d->lock);
  link_splice(&d->retired_foreign, taken);
  pthread_mutex_unlock(&d->lock);
  return OC_OK;
}

/* Foreign values that nobody is about to free: who unpublished one of their entries frees it, when its waits are over. */
static void take_foreign(struct oc_derived *d, struct link *out) {
  LINK_EACH(l, &d->foreign) {
    struct span *s = CONTAINER(l, struct span, link);
    s->owners = 0;
    s->dying = true;
    link_remove(l);
    if (!s->leaving) link_add_tail(out, l);
  }
  link_splice(out, &d->retired_foreign);
}

/* Blocks of the pool go with its arenas, and what is known of them here with the model: an end that looked at each would take
   as long as its values are many. Frees of other threads may still come by; they find nothing. */
static void forget_all(struct oc_derived *d) {
  d->swept = true;
  oci_pool_untrack(oci_model_of_derived(d)->pool.core);
  __atomic_store_n(&d->len, 0, __ATOMIC_RELAXED);
  for (oc_kind k = 0; k < d->kinds; k++) __atomic_store_n(&d->maps[k].live, 0, __ATOMIC_RELAXED);
}

void oci_derived_sweep(struct oc_derived *d, bool context_gone, struct sweep *out) {
  struct link gone;
  link_init(&gone);
  pthread_mutex_lock(&d->lock);
  *out = (struct sweep){.entries = d->len};
  forget_all(d);
  take_foreign(d, &gone);
  pthread_mutex_unlock(&d->lock);
  if (context_gone) return;
  out->first = free_foreign(d, &gone, &out->foreign, &out->failures);
}
