/* SPDX-License-Identifier: MIT */
/*
 * Builds: one at a time a key (G11), each the owner of what it allocates until it ends (G12).
 *
 * A build is in derived.builds from begin to end, and its task in the model's list a little longer: so whoever finds
 * it under the derived lock, and takes the tasks lock before letting go, can wait for it.
 */
#include "config.h"

#include "liboc/model.h"
#include "rcu/guard.h"
#include "rcu/mem.h"

/* ---- records ---- */

static uint64_t build_hash(oc_kind kind, uint64_t key) {
  return oci_mix(key ^ ((uint64_t)kind << 56), 0xE7037ED1A0B428DBu);
}

static struct oc_build *build_find(const struct oc_derived *d, oc_kind kind, uint64_t key) {
  for (struct table_node *n = oci_table_find(&d->builds, build_hash(kind, key)); n; n = oci_table_next(n)) {
    struct oc_build *b = CONTAINER(n, struct oc_build, node);
    if (b->kind == kind && b->key == key) return b;
  }
  return NULL;
}

static void build_free(struct oc_build *b) {
  struct heap *h = b->derived->heap;
  oci_strfree(h, (char *)(uintptr_t)b->site.file);
  oci_strfree(h, (char *)(uintptr_t)b->site.func);
  oci_free(h, b->blocks, b->block_cap * sizeof *b->blocks);
  oci_free(h, b, sizeof *b);
}

/* The names of a site may dangle while a build is open: they are copied, or left out for want of memory. */
static oc_site copy_site(struct heap *h, const oc_site *site) {
  oc_site copy = {0};
  if (!site) return copy;
  copy.line = site->line;
  copy.file = site->file ? oci_strdup(h, site->file) : NULL;
  copy.func = site->func ? oci_strdup(h, site->func) : NULL;
  return copy;
}

static struct oc_build *build_new(struct oc_derived *d, oc_kind kind, uint64_t key, const oc_site *site) {
  struct oc_build *b = oci_alloc(d->heap, sizeof *b);
  if (!b) return NULL;
  b->derived = d;
  b->kind = kind;
  b->key = key;
  b->site = copy_site(d->heap, site);
  return b;
}

void oci_builds_free(struct oc_derived *d) {
  LINK_EACH(l, &d->zombies) build_free(CONTAINER(l, struct oc_build, link));
}

/* ---- begin ---- */

/* With the lock held. */
static oc_status open_build(struct oc_derived *d, oc_kind kind, uint64_t key, const oc_site *site, struct oc_build **out) {
  struct oc_build *b = oci_table_reserve(&d->builds) ? build_new(d, kind, key, site) : NULL;
  if (!b) return oci_error(OC_E_HOST_NOMEM, "begin of %s: out of host memory", oci_kind_name(kind));
  oc_status st = oci_span_of_key(d, key, "begin", &b->key_span);
  if (st) goto free_build;
  st = oci_task_begin(oci_model_of_derived(d), &b->task);
  if (st) goto put_span;
  b->begun = ++d->clock;
  oci_table_add(&d->builds, &b->node, build_hash(kind, key));
  link_add_tail(&d->open, &b->link);
  if (b->key_span) link_add_tail(&b->key_span->builds, &b->by_key);
  *out = b;
  return OC_OK;

put_span:
  oci_span_put(d, b->key_span);
free_build:
  build_free(b);
  return st;
}

/* Unlocks. OC_OK: it ended, look again. */
static oc_status wait_unlock(struct oc_derived *d, struct oc_build *b, const char *call) {
  oc_kind kind = b->kind;
  uint64_t key = b->key;
  uint64_t since = oci_now_ns();
  oci_tasks_lock();
  pthread_mutex_unlock(&d->lock);
  oc_status st = oci_wait_task(&b->task, NULL, false);
  oci_tasks_unlock();
  oci_sight_build_waited(oci_model_of_derived(d), since);
  if (st == OC_E_REENTRANT)
    return oci_error(st, "%s: the build of %s 0x%llx waits, directly or round a circle, for this thread", call,
                     oci_kind_name(kind), (unsigned long long)key);
  return st ? oci_model_refuses(oci_model_of_derived(d), call) : OC_OK;
}

/* The value (OC_OK), or a build of our own (OC_MISS). */
static oc_status find_or_open(struct oc_derived *d, oc_kind kind, uint64_t key, const oc_site *site,
                              struct oc_build **build, uint64_t out[2], const char *call) {
  bool may_race = oci_model_of_derived(d)->flags & OC_MODEL_BUILD_MAY_RACE;
  for (;;) {
    pthread_mutex_lock(&d->lock);
    struct entry *e = oci_entry_find(d, kind, key);
    if (e) {
      out[0] = e->value[0];
      out[1] = e->value[1];
      pthread_mutex_unlock(&d->lock);
      return OC_OK;
    }
    struct oc_build *other = may_race ? NULL : build_find(d, kind, key);
    if (!other) break;
    oc_status st = wait_unlock(d, other, call);
    if (st) return st;
  }
  oc_status st = open_build(d, kind, key, site, build);
  if (!st) oci_sight_build_begin(*build);
  pthread_mutex_unlock(&d->lock);
  return st ? st : OC_MISS;
}

static oc_status begin(struct oc_derived *d, oc_kind kind, uint64_t key, const oc_site *site, struct oc_build **build,
                       uint64_t out[2], const char *call) {
  oc_status st = oci_may_wait(call);
  if (st) return st;
  struct task task;
  st = oci_call_begin(oci_model_of_derived(d), &task, call);
  if (st) return st;
  oci_sight_miss(oci_model_of_derived(d), MISS_DERIVED, oci_kind_name(kind));
  st = find_or_open(d, kind, key, site, build, out, call);
  oci_call_end(&task);
  return st;
}

static oc_arity arity_of(oc_kind kind) {
  return oci_kind_is(kind, OC_PAIR) ? OC_PAIR : OC_PTR;
}

static oc_status get(struct oc_derived *d, oc_kind kind, oc_arity arity, uint64_t key, uint64_t out[2]) {
  return arity == OC_PTR ? oc_derived_get_ptr(d, kind, key, out) : oc_derived_get_pair(d, kind, key, out);
}

oc_status oc_derived_begin_at(oc_derived *d, oc_kind kind, uint64_t key, const oc_site *site, oc_build **build,
                              uint64_t out[2]) {
  static const char call[] = "oc_derived_begin";
  if (!d || !build || !out) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  oc_arity arity = arity_of(kind);
  uint64_t value[2];
  struct oc_build *b = NULL;
  oc_status st = get(d, kind, arity, key, value);
  if (st == OC_MISS) st = begin(d, kind, key, site, &b, value, call);
  if (st < 0) return st;
  *build = b;
  if (st == OC_MISS) return st;
  out[0] = value[0];
  if (arity == OC_PAIR) out[1] = value[1];
  return OC_OK;
}

/* ---- in between ---- */

static oc_status check_owner(const oc_build *b, const char *call) {
  if (!b) return oci_error(OC_E_INVALID, "%s: the build is NULL", call);
  if (b->task.thread != oci_thread_id())
    return oci_error(OC_E_INVALID, "%s: the build of %s 0x%llx belongs to the thread that began it", call,
                     oci_kind_name(b->kind), (unsigned long long)b->key);
  return OC_OK;
}

static oc_status check_open(const oc_build *b, const char *call) {
  if (b->state == BUILD_OPEN) return OC_OK;
  return oci_error(OC_E_INVALID, "%s: the build of %s 0x%llx was aborted", call, oci_kind_name(b->kind),
                   (unsigned long long)b->key);
}

/* Room for one more block, so that none is lost once it is there. */
static bool reserve_block(oc_build *b) {
  if (b->block_count < b->block_cap) return true;
  size_t cap = b->block_cap ? b->block_cap * 2 : 4;
  uint64_t *more = oci_alloc(b->derived->heap, cap * sizeof *more);
  if (!more) return false;
  for (size_t i = 0; i < b->block_count; i++) more[i] = b->blocks[i];
  oci_free(b->derived->heap, b->blocks, b->block_cap * sizeof *more);
  b->blocks = more;
  b->block_cap = cap;
  return true;
}

static oc_status alloc_in_call(oc_build *b, size_t bytes, size_t align, const oc_site *site, oc_devptr *out, const char *call) {
  struct oc_derived *d = b->derived;
  struct oc_model *m = oci_model_of_derived(d);
  pthread_mutex_lock(&d->lock);
  oc_status st = check_open(b, call);
  if (!st && !reserve_block(b)) st = oci_error(OC_E_HOST_NOMEM, "%s: out of host memory", call);
  pthread_mutex_unlock(&d->lock);
  if (st) return st;
  oc_devptr ptr;
  st = oci_model_alloc(m, bytes, align, BLOCK_BUILD, oci_kind_owner(b->kind), site, &ptr, call);
  if (st) return st;
  pthread_mutex_lock(&d->lock);
  st = check_open(b, call);   /* another thread may have aborted it meanwhile */
  if (!st) b->blocks[b->block_count++] = ptr;
  pthread_mutex_unlock(&d->lock);
  if (!st) *out = ptr;
  else (void)oci_pool_free(m->pool.core, ptr, BLOCK_BIT(BLOCK_BUILD), RELEASE_NOW, NULL, true);
  return st;
}

oc_status oc_build_alloc_at(oc_build *b, size_t bytes, size_t align, const oc_site *site, oc_devptr *out) {
  static const char call[] = "oc_build_alloc";
  oc_status st = check_owner(b, call);
  if (st) return st;
  if (!out) return oci_error(OC_E_INVALID, "%s: out is NULL", call);
  struct task task;
  st = oci_call_begin(oci_model_of_derived(b->derived), &task, call);
  if (st) return st;
  st = alloc_in_call(b, bytes, align, site, out, call);
  oci_call_end(&task);
  return st;
}

static oc_status set_stream(oc_build *b, oc_stream s, const char *call) {
  pthread_mutex_lock(&b->derived->lock);
  oc_status st = check_open(b, call);
  if (!st) {
    b->has_stream = true;
    b->stream = s;
  }
  pthread_mutex_unlock(&b->derived->lock);
  return st;
}

oc_status oc_build_on_stream(oc_build *b, oc_stream s) {
  static const char call[] = "oc_build_on_stream";
  oc_status st = check_owner(b, call);
  if (st) return st;
  struct oc_model *m = oci_model_of_derived(b->derived);
  if (b->has_stream && b->stream != s)
    return oci_error(OC_E_INVALID, "%s: the build is on stream %p already", call, (void *)b->stream);
  struct task task;
  st = oci_call_begin(m, &task, call);
  if (st) return st;
  st = oci_stream_check(m, s, call);
  if (!st) st = oci_stream_name(m, s);
  if (!st) st = set_stream(b, s, call);
  oci_call_end(&task);
  return st;
}

/* ---- the end ---- */

/* With the lock held: nobody finds it any more. */
static void close_build(oc_build *b, enum build_state state) {
  b->state = state;
  oci_table_remove(&b->derived->builds, &b->node);
  link_remove(&b->link);
  link_remove(&b->by_key);
  oci_span_put(b->derived, b->key_span);
  b->key_span = NULL;
}

static bool has_value(struct oc_model *m, uint64_t block, const uint64_t value[2]) {
  for (int i = 0; value && i < 2; i++) {
    struct block_info info;
    if (value[i] && oci_pool_find(m->pool.core, value[i], &info) == POOL_OK && info.start == block) return true;
  }
  return false;
}

/* Something was derived from a block of the build, which now goes: that goes first. */
static bool forget_derived(struct oc_model *m, uint64_t block) {
  static const char call[] = "giving a build's block back";
  struct doom what = {.start = block, .patient = true};
  return oci_may_wait(call) == OC_OK && oci_derived_doom(&m->derived, &what, NULL, call) == OC_OK;
}

/* A block of the build goes back after the work queued on its stream. Where that cannot be marked, it waits for
   graphs_gone or teardown; one that is no longer the build's is refused once more. Where it is a source and we may not
   wait, it stays until teardown: never handed out too early. */
static void give_block_back(struct oc_model *m, const oc_build *b, uint64_t block) {
  const unsigned class = BLOCK_BIT(BLOCK_BUILD);
  enum pool_release how = oci_in_capture() ? RELEASE_RETIRE : b->has_stream ? RELEASE_AFTER : RELEASE_NOW;
  int st = oci_pool_free(m->pool.core, block, class, how, b->stream, false);
  while (st == POOL_TRACKED && forget_derived(m, block))
    st = oci_pool_free(m->pool.core, block, class, how, b->stream, false);
  if (st < 0) (void)oci_pool_free(m->pool.core, block, class, RELEASE_RETIRE, NULL, false);
}

/* What a block of a stored value was reclassed to is not BLOCK_BUILD any more, so freeing it here is refused: value
   only spares the attempt. */
static void give_blocks_back(const oc_build *b, const uint64_t *value) {
  struct oc_model *m = oci_model_of_derived(b->derived);
  for (size_t i = 0; i < b->block_count; i++)
    if (!has_value(m, b->blocks[i], value)) give_block_back(m, b, b->blocks[i]);
}

static void finish_build(oc_build *b) {
  oci_task_end(&b->task);
  build_free(b);
}

static oc_status store_locked(oc_build *b, const uint64_t value[2], struct batch *batch, uint64_t kept[2], const char *call) {
  struct oc_derived *d = b->derived;
  struct oc_model *m = oci_model_of_derived(d);
  if (!oci_model_live(m)) return oci_model_refuses(m, call);
  struct entry *e = oci_entry_find(d, b->kind, b->key);
  if (e) {
    kept[0] = e->value[0];
    kept[1] = e->value[1];
    return OC_EXISTS;
  }
  oc_status st = oci_entry_make(d, b->kind, b->key, value, b, call, &e);
  if (st) return st;
  e->born = b->begun;
  if (batch) oci_batch_stored(d, batch, e);
  oci_entry_publish(d, e);
  kept[0] = e->value[0];
  kept[1] = e->value[1];
  return OC_OK;
}

/* The value is finished once what is queued on the stream now is done: an event there, or a wait. */
static oc_status ask_driver(oc_build *b, struct batch **batch) {
  struct oc_model *m = oci_model_of_derived(b->derived);
  if (!b->has_stream) return OC_OK;
  if (oci_in_capture()) return oci_error(OC_E_CAPTURING, "oc_build_commit: on a stream, inside a capture");
  if (oci_dev_has_events(m->backend)) return oci_batch_record(b->derived, b->stream, batch);
  return oci_dev_sync(m, b->stream);
}

/* A driver's OC_E_INVALID, of a stream that is gone, ends the build as all its failures do; a commit's own leaves it open. */
static oc_status mark_stream(oc_build *b, struct batch **batch) {
  oc_status st = ask_driver(b, batch);
  return st == OC_E_INVALID ? oci_error_add(OC_E_BACKEND, "oc_build_commit") : st;
}

/* Ends the build: the caller has checked that it may. */
static oc_status commit(oc_build *b, const uint64_t value[2], uint64_t kept[2], const char *call) {
  struct oc_derived *d = b->derived;
  struct batch *batch = NULL;
  oc_status st = mark_stream(b, &batch);
  pthread_mutex_lock(&d->lock);
  oc_status aborted = check_open(b, call);
  if (aborted) st = aborted;
  if (!st) st = store_locked(b, value, batch, kept, call);
  if (batch && st != OC_OK) oci_batch_stored(d, batch, NULL);
  if (!aborted) close_build(b, BUILD_ENDED);
  pthread_mutex_unlock(&d->lock);
  if (aborted) return st;   /* OC_E_INVALID, so the record is its owner's still, to abort */
  give_blocks_back(b, st == OC_OK ? value : NULL);
  oci_sight_build_end(b, st);
  finish_build(b);
  return st;
}

static oc_status check_value(const oc_build *b, const uint64_t value[2], const char *call) {
  if (!value) return oci_error(OC_E_INVALID, "%s: value is NULL", call);
  bool pair = oci_kind_arity[b->kind] == OC_PAIR;
  if (value[0] || (pair && value[1])) return OC_OK;
  return oci_error(OC_E_INVALID, "%s: a value of 0", call);
}

oc_status oc_build_commit(oc_build *b, const uint64_t value[2], uint64_t kept[2]) {
  static const char call[] = "oc_build_commit";
  oc_status st = check_owner(b, call);
  if (!st) st = check_value(b, value, call);
  if (st) return st;
  if (b->callback) return oci_error(OC_E_INVALID, "%s: this build ends when its callback returns", call);
  struct oc_model *m = oci_model_of_derived(b->derived);
  bool pair = oci_kind_arity[b->kind] == OC_PAIR;
  uint64_t v[2] = {value[0], pair ? value[1] : 0}, k[2];
  struct task task;
  st = oci_call_begin_give(m, &task, call);
  if (st) return st;
  st = commit(b, v, k, call);
  oci_call_end(&task);
  if (kept && st >= 0) {
    kept[0] = k[0];
    if (pair) kept[1] = k[1];
  }
  return st;
}

/* Ends the build without a value. Its record stays for its owner, or for the library that runs its callback. */
static void abort_build(oc_build *b) {
  struct oc_derived *d = b->derived;
  pthread_mutex_lock(&d->lock);
  bool open = b->state == BUILD_OPEN;
  bool own = b->task.thread == oci_thread_id() && !b->callback;
  if (open) {
    close_build(b, BUILD_ABORTED);
    if (!own) link_add_tail(&d->zombies, &b->link);
  } else if (own) {
    link_remove(&b->link);
  }
  pthread_mutex_unlock(&d->lock);
  if (open) {
    give_blocks_back(b, NULL);
    oci_sight_build_end(b, OC_E_INVALID);
    oci_task_end(&b->task);
  }
  if (own) build_free(b);
}

void oc_build_abort(oc_build *b) {
  struct task task;
  if (!b || oci_call_begin_give(oci_model_of_derived(b->derived), &task, "oc_build_abort")) return;
  abort_build(b);
  oci_call_end(&task);
}

/* ---- with a callback ---- */

struct recipe {
  oc_kind kind;
  oc_arity arity;
  oc_build_ptr_fn ptr;
  oc_build_pair_fn pair;
  void *arg;
  const oc_site *site;
  const char *call;
};

static oc_status run(const struct recipe *r, oc_build *b, uint64_t value[2]) {
  uint32_t before = oci_error_count();
  oc_status st = r->ptr ? r->ptr(b, r->arg, value) : r->pair(b, r->arg, value);
  /* Where a call in it failed, that call's words stay. */
  if (st > 0 || (st < 0 && oci_error_count() == before))
    return oci_error(st > 0 ? OC_E_INVALID : st, "%s: the build function answered %s (%d)", r->call, oc_status_name(st), st);
  if (st == OC_OK) st = check_value(b, value, r->call);
  return st;
}

static oc_status still_open(oc_build *b, const char *call) {
  pthread_mutex_lock(&b->derived->lock);
  oc_status st = check_open(b, call);
  pthread_mutex_unlock(&b->derived->lock);
  return st;
}

static oc_status build_now(const struct recipe *r, oc_build *b, uint64_t out[2]) {
  uint64_t value[2] = {0, 0};
  b->callback = true;
  oc_status st = run(r, b, value);
  struct task task;
  oc_status refused = oci_call_begin_give(oci_model_of_derived(b->derived), &task, r->call);
  b->callback = false;
  if (refused) return refused;   /* forked inside the callback: nothing here is ours any more */
  if (!st) st = still_open(b, r->call);
  if (st) abort_build(b);
  else st = commit(b, value, out, r->call);
  oci_call_end(&task);
  return st == OC_EXISTS ? OC_OK : st;
}

static oc_status get_or_build(oc_derived *d, const struct recipe *r, uint64_t key, uint64_t out[2]) {
  if (!r->ptr && !r->pair) return oci_error(OC_E_INVALID, "%s: the build function is NULL", r->call);
  oc_status st = get(d, r->kind, r->arity, key, out);
  if (st != OC_MISS) return st;
  struct oc_build *b;
  int cancel = oci_cancel_off();   /* nobody but this thread ends that build */
  st = begin(d, r->kind, key, r->site, &b, out, r->call);
  if (st == OC_MISS) st = build_now(r, b, out);   // NOLINT(clang-analyzer-core.CallAndMessage): OC_MISS opens b
  oci_cancel_back(cancel);
  return st;
}

oc_status oc_derived_get_or_build_ptr_at(oc_derived *d, oc_kind kind, uint64_t key, oc_build_ptr_fn fn, void *arg,
                                         const oc_site *site, uint64_t *out) {
  static const char call[] = "oc_derived_get_or_build_ptr";
  if (!d || !out) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  struct recipe r = {.kind = kind, .arity = OC_PTR, .ptr = fn, .arg = arg, .site = site, .call = call};
  uint64_t value[2];
  oc_status st = get_or_build(d, &r, key, value);
  if (!st) *out = value[0];
  return st;
}

oc_status oc_derived_get_or_build_pair_at(oc_derived *d, oc_kind kind, uint64_t key, oc_build_pair_fn fn, void *arg,
                                          const oc_site *site, uint64_t out[2]) {
  static const char call[] = "oc_derived_get_or_build_pair";
  if (!d || !out) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  struct recipe r = {.kind = kind, .arity = OC_PAIR, .pair = fn, .arg = arg, .site = site, .call = call};
  uint64_t value[2];
  oc_status st = get_or_build(d, &r, key, value);
  if (st) return st;
  out[0] = value[0];
  out[1] = value[1];
  return OC_OK;
}
