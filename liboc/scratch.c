/* SPDX-License-Identifier: MIT */
/*
 * Scratch: device buffers by tag, or by tag and stream; grow-only (G7, G8).
 *
 * The race: forget_stream or release has records of outgrown buffers in hand, and graphs_gone gives their blocks back, for it
 * takes all that the pool has retired. So it takes those and the records' list in one step, under the lock; whoever has
 * records in hand has noted how often that was done before, and lets go of them if it was done again.
 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "liboc/model.h"
#include "liboc/opcache.h"
#include "rcu/guard.h"
#include "rcu/mem.h"

#define LIMBO_MAX 256u
#define GRAIN ((size_t)256)   /* the pool rounds a block up to this */

struct want {
  const char *call;
  bool on_stream;
  oc_stream stream;
  size_t bytes;
  const oc_site *site;
};

/* ---- the hit ---- */

static void mark_captured(struct oc_opcache *c, struct scratch *s) {
  uint32_t epoch = __atomic_load_n(&oci_model_of_opcache(c)->graph_epoch, __ATOMIC_RELAXED);
  __atomic_store_n(&s->captured, epoch, __ATOMIC_RELAXED);
}

static inline bool plain_hit(struct oc_opcache *c, const struct tag *t, size_t bytes, oc_devptr *out) {
  struct scratch *s = __atomic_load_n(&t->plain, __ATOMIC_ACQUIRE);
  if (!s || __atomic_load_n(&s->bytes, __ATOMIC_RELAXED) < bytes) return false;
  if (oci_in_capture()) mark_captured(c, s);
  *out = __atomic_load_n(&s->ptr, __ATOMIC_RELAXED);
  return true;
}

static inline bool stream_hit(struct oc_opcache *c, const struct tag *t, oc_stream s, size_t bytes, oc_devptr *out) {
  struct map_hit hit;
  if (!oci_map_get(&t->on_stream, oci_stream_key(s), &hit) || hit.v1 < bytes) return false;
  if (oci_in_capture()) mark_captured(c, oci_map_entry(hit.entry));
  *out = hit.v0;
  return true;
}

static inline bool scratch_hit(struct oc_opcache *c, const struct tag *t, const struct want *w, oc_devptr *out) {
  return w->on_stream ? stream_hit(c, t, w->stream, w->bytes, out) : plain_hit(c, t, w->bytes, out);
}

/* ---- the buffers of a stream; with the lock held ---- */

/* No two streams have one hash. */
static uint64_t stream_hash(oc_stream s) {
  return oci_hash_u64(oci_stream_key(s));
}

/* NULL: it has no buffer. */
static struct stream_scratch *stream_find(const struct oc_opcache *c, oc_stream s) {
  struct table_node *n = oci_table_find(&c->streams, stream_hash(s));
  return n ? CONTAINER(n, struct stream_scratch, node) : NULL;
}

/* NULL without host memory. One that is made is joined next, or it would never go. */
static struct stream_scratch *stream_get(struct oc_opcache *c, oc_stream s) {
  struct stream_scratch *of = stream_find(c, s);
  if (of || !oci_table_reserve(&c->streams)) return of;
  of = oci_alloc(c->tag_names.heap, sizeof *of);
  if (!of) return NULL;
  link_init(&of->scratches);
  oci_table_add(&c->streams, &of->node, stream_hash(s));
  return of;
}

static void join_stream(struct stream_scratch *of, struct scratch *s) {
  s->of = of;
  link_add_tail(&of->scratches, &s->in_stream);
}

static void detach(struct scratch *s) {
  link_remove(&s->in_stream);
  s->of = NULL;
}

static void drop_if_empty(struct oc_opcache *c, struct stream_scratch *of) {
  if (!link_empty(&of->scratches)) return;
  oci_table_remove(&c->streams, &of->node);
  oci_free(c->tag_names.heap, of, sizeof *of);
}

static void leave_stream(struct oc_opcache *c, struct scratch *s) {
  struct stream_scratch *of = s->of;
  if (!of) return;
  detach(s);
  drop_if_empty(c, of);
}

/* ---- the miss ---- */

static struct scratch *published(const struct tag *t, const struct want *w) {
  struct map_hit hit;
  if (!w->on_stream) return t->plain;
  return oci_map_get(&t->on_stream, oci_stream_key(w->stream), &hit) ? oci_map_entry(hit.entry) : NULL;
}

struct growth {
  struct link link;
  const struct tag *tag;
  bool on_stream;
  oc_stream stream;
  uint64_t thread;
};

static struct growth *growth_of(struct oc_opcache *c, const struct tag *t, const struct want *w) {
  LINK_EACH(l, &c->growing) {
    struct growth *g = CONTAINER(l, struct growth, link);
    if (g->tag == t && g->on_stream == w->on_stream && g->stream == w->stream) return g;
  }
  return NULL;
}

/* With the lock held: waits until nobody makes this buffer. False: this thread does. */
static bool wait_for_growth(struct oc_opcache *c, const struct tag *t, const struct want *w) {
  for (struct growth *g; (g = growth_of(c, t, w)); pthread_cond_wait(&c->turn, &c->lock))
    if (g->thread == oci_thread_id()) return false;
  return true;
}

/* A record, and room in the tag's map. */
static struct scratch *prepare(struct oc_opcache *c, struct tag *t, const struct want *w) {
  if (w->on_stream && !oci_map_reserve(&t->on_stream)) return NULL;
  if (link_empty(&c->idle)) return oci_alloc(c->tag_names.heap, sizeof(struct scratch));
  struct scratch *s = CONTAINER(c->idle.next, struct scratch, link);
  link_remove(&s->link);
  return s;
}

static void retire_old(struct oc_opcache *c, struct scratch *old) {
  (void)oci_pool_free(oci_model_of_opcache(c)->pool.core, old->ptr, BLOCK_BIT(BLOCK_SCRATCH), RELEASE_RETIRE, NULL, true);
  old->outgrown = true;
  link_move_tail(&c->outgrown, &old->link);
  __atomic_store_n(&c->scratch_count, c->scratch_count - 1, __ATOMIC_RELAXED);
}

static void publish(struct oc_opcache *c, struct tag *t, const struct want *w, struct scratch *s, uint64_t ptr, size_t bytes) {
  struct scratch *old = published(t, w);
  if (old && w->on_stream) oci_map_drop(&t->on_stream, oci_stream_key(w->stream));
  /* atomics: a reader without a guard may still look at what this record was before */
  __atomic_store_n(&s->ptr, ptr, __ATOMIC_RELAXED);
  __atomic_store_n(&s->bytes, bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&s->captured, 0, __ATOMIC_RELAXED);
  s->tag = t;
  s->outgrown = false;
  s->on_stream = w->on_stream;
  s->stream = w->stream;
  link_add_tail(&c->scratches, &s->link);
  if (w->on_stream) oci_map_put(&t->on_stream, oci_stream_key(w->stream), ptr, bytes, (uint64_t)(uintptr_t)s);
  else __atomic_store_n(&t->plain, s, __ATOMIC_RELEASE);
  __atomic_store_n(&c->scratch_count, c->scratch_count + 1, __ATOMIC_RELAXED);
  if (old) retire_old(c, old);
}

/* At least half as much again as the old block took, so that all that was outgrown is at most twice what lives, in
   blocks of few bytes too (G7). */
static size_t grown(const struct scratch *old, size_t bytes) {
  size_t block = old ? ((size_t)old->bytes + GRAIN - 1) / GRAIN * GRAIN : 0, least = block + block / 2;
  return bytes > least ? bytes : least;
}

static oc_status no_memory(const struct tag *t, const struct want *w) {
  return oci_error(OC_E_HOST_NOMEM, "%s(%s): out of host memory", w->call, oci_name_a(&t->name));
}

/* The block, without the lock. */
static oc_status make(struct oc_opcache *c, const struct tag *t, const struct want *w, size_t bytes, oc_devptr *out) {
  char owner[SCRATCH_OWNER_BYTES];
  snprintf(owner, sizeof owner, SCRATCH_OWNER "%s", oci_name_a(&t->name));
  return oci_model_alloc(oci_model_of_opcache(c), bytes, 0, BLOCK_SCRATCH, owner, w->site, out, w->call);
}

/* Its place among the stream's. Others may have filled the tag's map meanwhile. */
static bool place(struct oc_opcache *c, struct tag *t, const struct want *w, struct scratch *s) {
  if (!w->on_stream) return true;
  struct stream_scratch *of = oci_map_reserve(&t->on_stream) ? stream_get(c, w->stream) : NULL;
  if (of) join_stream(of, s);
  return of != NULL;
}

static oc_status publish_made(struct oc_opcache *c, struct tag *t, const struct want *w, struct scratch *s, uint64_t ptr, size_t bytes) {
  if (place(c, t, w, s)) {
    publish(c, t, w, s, ptr, bytes);
    return OC_OK;
  }
  (void)oci_pool_free(oci_model_of_opcache(c)->pool.core, ptr, BLOCK_BIT(BLOCK_SCRATCH), RELEASE_NOW, NULL, true);
  return no_memory(t, w);
}

static oc_status grow_locked(struct oc_opcache *c, struct tag *t, const struct want *w, oc_devptr *out) {
  struct scratch *s = prepare(c, t, w);
  if (!s) return no_memory(t, w);
  size_t bytes = grown(published(t, w), w->bytes);
  struct growth g = {.tag = t, .on_stream = w->on_stream, .stream = w->stream, .thread = oci_thread_id()};
  link_add_tail(&c->growing, &g.link);
  pthread_mutex_unlock(&c->lock);
  oc_status st = make(c, t, w, bytes, out);
  pthread_mutex_lock(&c->lock);
  if (!st) st = publish_made(c, t, w, s, *out, bytes);
  if (!st) oci_sight_scratch_grown(oci_model_of_opcache(c), oci_name_a(&t->name), bytes);
  if (st) link_add_tail(&c->idle, &s->link);
  link_remove(&g.link);
  pthread_cond_broadcast(&c->turn);
  return st;
}

static oc_status grow(struct oc_opcache *c, struct tag *t, const struct want *w, oc_devptr *out) {
  oc_devptr ptr = 0;
  oc_status st = OC_OK;
  pthread_mutex_lock(&c->lock);
  if (!wait_for_growth(c, t, w))
    st = oci_error(OC_E_REENTRANT, "%s(%s): the backend came back for the buffer it is making", w->call, oci_name_a(&t->name));
  else if (!scratch_hit(c, t, w, &ptr))
    st = grow_locked(c, t, w, &ptr);
  pthread_mutex_unlock(&c->lock);
  if (!st) *out = ptr;
  return st;
}

/* In a capture nothing grows. But a buffer that another thread is just replacing is there all the time. */
static bool hit_locked(struct oc_opcache *c, const struct tag *t, const struct want *w, oc_devptr *out) {
  pthread_mutex_lock(&c->lock);
  bool hit = scratch_hit(c, t, w, out);
  pthread_mutex_unlock(&c->lock);
  return hit;
}

static oc_status miss_in_call(struct oc_opcache *c, struct tag *t, const struct want *w, oc_devptr *out) {
  struct oc_model *m = oci_model_of_opcache(c);
  if (oci_in_capture())
    return hit_locked(c, t, w, out) ? OC_OK : oci_error(OC_E_CAPTURING, "%s(%s): no buffer of %zu bytes yet, and a capture is entered", w->call,
                     oci_name_a(&t->name), w->bytes);
  oc_status st = w->on_stream ? oci_stream_check(m, w->stream, w->call) : OC_OK;
  if (!st && w->on_stream) st = oci_stream_name(m, w->stream);
  return st ? st : grow(c, t, w, out);
}

static __attribute__((noinline)) oc_status scratch_miss(struct oc_opcache *c, struct tag *t, const struct want *w, oc_devptr *out) {
  if (!w->bytes) return oci_error(OC_E_INVALID, "%s(%s): 0 bytes", w->call, oci_name_a(&t->name));
  struct task call;
  oc_status st = oci_call_begin(oci_model_of_opcache(c), &call, w->call);
  if (st) return st;
  oci_sight_miss(oci_model_of_opcache(c), MISS_SCRATCH, oci_name_a(&t->name));
  st = miss_in_call(c, t, w, out);
  oci_call_end(&call);
  return st;
}

/* ---- the four forms ---- */

static inline oc_status hit(void) {
  oci_hit(HIT_SCRATCH);
  return OC_OK;
}

static inline oc_status scratch_of(struct oc_opcache *c, struct tag *t, const struct want *w, oc_devptr *out) {
  if (__builtin_expect(w->bytes != 0 && oci_model_live(oci_model_of_opcache(c)) && scratch_hit(c, t, w, out), 1)) return hit();
  return scratch_miss(c, t, w, out);
}

/* No record: refused, or out of host memory. */
static oc_status no_tag(oc_opcache *c, const struct want *w) {
  struct oc_model *m = oci_model_of_opcache(c);
  if (!oci_model_live(m)) return oci_model_refuses(m, w->call);
  return oci_error(OC_E_HOST_NOMEM, "%s: out of host memory", w->call);
}

static oc_status scratch_by_text(oc_opcache *c, const char *tag, const struct want *w, oc_devptr *out) {
  if (!c || !tag || !out) return oci_error(OC_E_INVALID, "%s: a NULL argument", w->call);
  struct lookup k = oci_lookup(tag, NULL);
  struct tag *t = oci_tag_get(c, &k);
  return t ? scratch_of(c, t, w, out) : no_tag(c, w);
}

static __attribute__((noinline)) oc_status scratch_by_key(oc_opcache *c, oc_tag_key *tag, const struct want *w, oc_devptr *out) {
  if (!c || !tag || !tag->tag || !out) return oci_error(OC_E_INVALID, "%s: a NULL argument", w->call);
  struct tag *t = oci_tag_of_key(c, tag);
  return t ? scratch_of(c, t, w, out) : no_tag(c, w);
}

/* The record behind a key that this model knows, for a hit; NULL: scratch_by_key has the whole story. */
static inline const struct tag *known_tag(oc_opcache *c, const oc_tag_key *tag, size_t bytes, const oc_devptr *out) {
  if (__builtin_expect(!c || !tag || !tag->tag || !out || !bytes, 0)) return NULL;
  const struct tag *t = oci_tag_known(c, tag);
  return oci_model_live(oci_model_of_opcache(c)) ? t : NULL;
}

oc_status oc_opcache_scratch_at(oc_opcache *c, const char *tag, size_t bytes, const oc_site *site, oc_devptr *out) {
  struct want w = {.call = "oc_opcache_scratch", .bytes = bytes, .site = site};
  return scratch_by_text(c, tag, &w, out);
}

oc_status oc_opcache_scratch_on_at(oc_opcache *c, const char *tag, oc_stream s, size_t bytes, const oc_site *site,
                                   oc_devptr *out) {
  struct want w = {.call = "oc_opcache_scratch_on", .on_stream = true, .stream = s, .bytes = bytes, .site = site};
  return scratch_by_text(c, tag, &w, out);
}

oc_status oc_opcache_scratch_k_at(oc_opcache *c, oc_tag_key *tag, size_t bytes, const oc_site *site, oc_devptr *out) {
  const struct tag *t = known_tag(c, tag, bytes, out);
  if (__builtin_expect(t && plain_hit(c, t, bytes, out), 1)) return hit();
  struct want w = {.call = "oc_opcache_scratch_k", .bytes = bytes, .site = site};
  return scratch_by_key(c, tag, &w, out);
}

oc_status oc_opcache_scratch_on_k_at(oc_opcache *c, oc_tag_key *tag, oc_stream s, size_t bytes, const oc_site *site,
                                     oc_devptr *out) {
  const struct tag *t = known_tag(c, tag, bytes, out);
  if (__builtin_expect(t && stream_hit(c, t, s, bytes, out), 1)) return hit();
  struct want w = {.call = "oc_opcache_scratch_on_k", .on_stream = true, .stream = s, .bytes = bytes, .site = site};
  return scratch_by_key(c, tag, &w, out);
}

/* ---- going back ---- */

static bool held_by_graph(const struct oc_model *m, const struct scratch *s) {
  return __atomic_load_n(&s->captured, __ATOMIC_RELAXED) == __atomic_load_n(&m->graph_epoch, __ATOMIC_RELAXED);
}

static uint64_t takes(struct oc_opcache *c) {
  return oci_pool_takes(oci_model_of_opcache(c)->pool.core);
}

static void unpublish(struct oc_opcache *c, struct scratch *s, struct link *out) {
  if (s->on_stream) oci_map_drop(&s->tag->on_stream, oci_stream_key(s->stream));
  else __atomic_store_n(&s->tag->plain, NULL, __ATOMIC_RELEASE);
  link_move_tail(out, &s->link);
  __atomic_store_n(&c->scratch_count, c->scratch_count - 1, __ATOMIC_RELAXED);
}

static void unpublish_all(struct oc_opcache *c, struct link *out) {
  LINK_EACH(l, &c->scratches) {
    struct scratch *s = CONTAINER(l, struct scratch, link);
    leave_stream(c, s);
    unpublish(c, s, out);
  }
}

static void outgrown_leave(struct oc_opcache *c) {
  LINK_EACH(l, &c->outgrown) leave_stream(c, CONTAINER(l, struct scratch, link));
}

/* Back to where forgetting their stream finds them, with what was published until now. One for which there is no host memory
   waits for graphs_gone or teardown. */
static void outgrown_return(struct oc_opcache *c, struct link *list) {
  LINK_EACH(l, list) {
    struct scratch *s = CONTAINER(l, struct scratch, link);
    s->outgrown = true;
    struct stream_scratch *of = s->on_stream ? stream_get(c, s->stream) : NULL;
    if (of) join_stream(of, s);
  }
  link_splice(&c->outgrown, list);
}

static void cut_limbo(struct oc_opcache *c, struct link *limbo) {
  link_init(limbo);
  link_splice(limbo, &c->limbo);
  __atomic_store_n(&c->limbo_count, 0, __ATOMIC_RELAXED);   /* recycle_limbo looks without the lock */
}

static void cut_locked(struct oc_opcache *c, struct scratch_cut *cut) {
  link_init(&cut->outgrown);
  cut->takes = takes(c);
  cut_limbo(c, &cut->limbo);
  outgrown_leave(c);
  link_splice(&cut->outgrown, &c->outgrown);
}

void oci_scratch_cut(struct oc_opcache *c, struct scratch_cut *cut) {
  pthread_mutex_lock(&c->lock);
  cut_locked(c, cut);
  pthread_mutex_unlock(&c->lock);
}

struct pool_batch oci_scratch_cut_retired(struct oc_opcache *c, struct scratch_cut *cut) {
  pthread_mutex_lock(&c->lock);
  struct pool_batch blocks = oci_pool_take(oci_model_of_opcache(c)->pool.core, POOL_TAKE_RETIRED);
  cut_locked(c, cut);
  pthread_mutex_unlock(&c->lock);
  return blocks;
}

void oci_scratch_cut_end(struct oc_opcache *c, struct scratch_cut *cut, bool outgrown_freed) {
  pthread_mutex_lock(&c->lock);
  link_splice(&c->idle, &cut->limbo);
  if (outgrown_freed || takes(c) != cut->takes) link_splice(&c->idle, &cut->outgrown);
  else outgrown_return(c, &cut->outgrown);
  pthread_mutex_unlock(&c->lock);
}

/* What was outgrown and is in no graph waited for guards and streams only: both have been waited for. */
static void free_outgrown(struct oc_model *m, struct scratch_cut *cut) {
  LINK_EACH(l, &cut->outgrown) {
    struct scratch *s = CONTAINER(l, struct scratch, link);
    if (held_by_graph(m, s)) continue;
    (void)oci_pool_unretire(m->pool.core, s->ptr, cut->takes);
    link_move_tail(&cut->limbo, l);
  }
}

static void free_blocks(struct oc_model *m, struct link *list, bool retire_all) {
  LINK_EACH(l, list) {
    struct scratch *s = CONTAINER(l, struct scratch, link);
    bool retire = retire_all || held_by_graph(m, s);
    (void)oci_pool_free(m->pool.core, s->ptr, BLOCK_BIT(BLOCK_SCRATCH), retire ? RELEASE_RETIRE : RELEASE_NOW, NULL, true);
  }
}

static oc_status release(struct oc_opcache *c) {
  struct oc_model *m = oci_model_of_opcache(c);
  struct link gone;
  link_init(&gone);
  pthread_mutex_lock(&c->lock);
  unpublish_all(c, &gone);
  pthread_mutex_unlock(&c->lock);
  struct scratch_cut cut;
  oci_scratch_cut(c, &cut);
  oci_sight_guard_sync(m);
  bool left_out = false;
  oc_status st = oci_streams_drain(m, &left_out);
  bool over = !st && !left_out;   /* else work may still use them: kept as for a graph */
  free_blocks(m, &gone, !over);
  if (over) free_outgrown(m, &cut);
  link_splice(over ? &cut.limbo : &cut.outgrown, &gone);
  oci_scratch_cut_end(c, &cut, false);
  return st;
}

oc_status oc_opcache_release(oc_opcache *c) {
  if (!c) return oci_error(OC_E_INVALID, "oc_opcache_release: the op cache is NULL");
  struct task call;
  oc_status st = oci_call_begin(oci_model_of_opcache(c), &call, "oc_opcache_release");
  if (st) return st;
  st = oci_may_wait("oc_opcache_release");
  if (!st) st = oci_streams_may_drain(oci_model_of_opcache(c), "oc_opcache_release");
  if (!st) st = release(c);
  oci_call_end(&call);
  return st;
}

/* ---- a stream is forgotten ---- */

struct forget_call {
  struct oc_opcache *c;
  oc_stream stream;
  struct link gone;       /* published until now */
  struct link outgrown;   /* before that, and in no graph */
  uint64_t takes;         /* when those were taken off their list */
};

static void forget_one(struct forget_call *f, struct scratch *s) {
  if (s->outgrown && held_by_graph(oci_model_of_opcache(f->c), s)) return;
  detach(s);
  if (s->outgrown) link_move_tail(&f->outgrown, &s->link);
  else unpublish(f->c, s, &f->gone);
}

static void forget_locked(struct forget_call *f) {
  struct stream_scratch *of = stream_find(f->c, f->stream);
  f->takes = takes(f->c);
  if (!of) return;
  LINK_EACH(l, &of->scratches) forget_one(f, CONTAINER(l, struct scratch, in_stream));
  drop_if_empty(f->c, of);
}

/* Reusable once the stream's work is done; without events the stream has been waited for. Where that cannot be
   marked, kept until graphs_gone or teardown: never handed out too early. */
static void free_after(struct oc_model *m, const struct scratch *s, oc_stream stream) {
  const unsigned class = BLOCK_BIT(BLOCK_SCRATCH);
  enum pool_release how = oci_dev_has_events(m->backend) ? RELEASE_AFTER : RELEASE_NOW;
  if (!held_by_graph(m, s) && oci_pool_free(m->pool.core, s->ptr, class, how, stream, true) == POOL_OK) return;
  (void)oci_pool_free(m->pool.core, s->ptr, class, RELEASE_RETIRE, NULL, true);
}

/* The same for one that is retired already. */
static bool unretire_after(struct oc_model *m, const struct scratch *s, const struct forget_call *f) {
  if (!oci_dev_has_events(m->backend)) return oci_pool_unretire(m->pool.core, s->ptr, f->takes) == POOL_OK;
  return oci_pool_unretire_after(m->pool.core, s->ptr, f->stream, f->takes) == POOL_OK;
}

/* All blocks of the stream; the records that have none any more are counted. */
static size_t free_forgotten(struct oc_model *m, struct forget_call *f) {
  size_t n = 0;
  LINK_EACH(l, &f->gone) {
    free_after(m, CONTAINER(l, struct scratch, link), f->stream);
    n++;
  }
  LINK_EACH(o, &f->outgrown) {
    if (!unretire_after(m, CONTAINER(o, struct scratch, link), f)) continue;
    link_move_tail(&f->gone, o);
    n++;
  }
  return n;
}

/* An engine that makes a stream a request, and nothing else that waits for guards, would pile records up. */
static void recycle_limbo(struct oc_opcache *c) {
  if (__atomic_load_n(&c->limbo_count, __ATOMIC_RELAXED) < LIMBO_MAX || oci_guarded()) return;
  struct link limbo;
  pthread_mutex_lock(&c->lock);
  cut_limbo(c, &limbo);
  pthread_mutex_unlock(&c->lock);
  oci_sight_guard_sync(oci_model_of_opcache(c));
  pthread_mutex_lock(&c->lock);
  link_splice(&c->idle, &limbo);
  pthread_mutex_unlock(&c->lock);
}

void oci_scratch_forget_stream(struct oc_opcache *c, oc_stream s) {
  struct oc_model *m = oci_model_of_opcache(c);
  struct forget_call f = {.c = c, .stream = s};
  link_init(&f.gone);
  link_init(&f.outgrown);
  pthread_mutex_lock(&c->lock);
  forget_locked(&f);
  pthread_mutex_unlock(&c->lock);
  size_t n = free_forgotten(m, &f);
  pthread_mutex_lock(&c->lock);
  link_splice(&c->limbo, &f.gone);
  link_splice(takes(c) == f.takes ? &c->outgrown : &c->limbo, &f.outgrown);
  __atomic_store_n(&c->limbo_count, c->limbo_count + n, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&c->lock);
  recycle_limbo(c);
}

/* ---- teardown's part ---- */

/* One whose tag was cut is no engine's, or nearly never. */
bool oci_scratch_owns(const struct oc_opcache *c, const char *owner) {
  if (strncmp(owner, SCRATCH_OWNER, sizeof SCRATCH_OWNER - 1) != 0) return false;
  struct lookup tag = oci_lookup(owner + sizeof SCRATCH_OWNER - 1, NULL);
  return strlen(owner) + 1 == SCRATCH_OWNER_BYTES || oci_names_get(&c->tag_names, &tag);
}

void oci_scratch_sweep(struct oc_opcache *c, size_t *count, uint64_t *bytes) {
  struct link gone;
  link_init(&gone);
  oci_scratch_figures(c, count, bytes);
  pthread_mutex_lock(&c->lock);
  unpublish_all(c, &gone);
  outgrown_leave(c);
  link_splice(&c->limbo, &gone);
  pthread_mutex_unlock(&c->lock);
}

/* ---- the latch ---- */

bool oc_opcache_alloc_fell_back(const oc_opcache *c) {
  return c && oci_model_live(oci_model_of_opcache(c)) && oci_pool_fell_back(oci_model_of_opcache(c)->pool.core);
}

void oc_opcache_note_alloc_fallback(oc_opcache *c) {
  if (!c || !oci_model_live(oci_model_of_opcache(c))) return;
  (void)oci_pool_latch(oci_model_of_opcache(c)->pool.core);
}
