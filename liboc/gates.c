/* SPDX-License-Identifier: MIT */
/*
 * Gates: "the first time this model ...". A record once made is found without a lock; whether a gate has fired is
 * one atomic, so exactly one caller gets true whatever grows meanwhile (G6).
 */
#include "config.h"

#include "liboc/model.h"
#include "liboc/opcache.h"
#include "rcu/mem.h"

#define REACH_MAX (1u << 20)

static bool lives(const oc_opcache *c) {
  return c && oci_model_live(oci_model_of_opcache(c));
}

/* ---- the tag's record ---- */

static struct tag *tag_add(struct oc_opcache *c, const struct lookup *k) {
  struct tag *t = (struct tag *)oci_names_get(&c->tag_names, k);
  if (t) return t;
  t = (struct tag *)oci_names_add(&c->tag_names, k, sizeof *t);
  if (t) t->on_stream.heap = t->shapes.heap = c->tag_names.heap;   /* the writers', who come by this lock */
  return t;
}

struct tag *oci_tag_get(struct oc_opcache *c, const struct lookup *k) {
  struct name *n = oci_names_get(&c->tag_names, k);
  if (n) return (struct tag *)n;
  struct task call;
  if (oci_call_begin(oci_model_of_opcache(c), &call, "a new tag")) return NULL;
  pthread_mutex_lock(&c->lock);
  struct tag *t = tag_add(c, k);
  pthread_mutex_unlock(&c->lock);
  oci_call_end(&call);
  if (!t) oci_log(OCI_LOG_WARNING, "tag %s: out of host memory", k->a);
  return t;
}

static void remember(struct oc_opcache *c, uint32_t id, struct tag *t) {
  if (id - 1 >= DENSE_IDS) return;
  pthread_mutex_lock(&c->lock);
  (void)oci_dense_set(&c->tags, c->tag_names.heap, id - 1, t);   /* without memory: found by its text */
  pthread_mutex_unlock(&c->lock);
}

struct tag *oci_tag_by_text(struct oc_opcache *c, oc_tag_key *key) {
  struct lookup k = oci_lookup(key->tag, NULL);
  struct tag *t = oci_tag_get(c, &k);
  if (t) remember(c, oci_tag_key_id(key), t);
  return t;
}

/* ---- once ---- */

/* What a gate that is closed for good says. */
static inline bool hit(void) {
  oci_hit(HIT_GATE);
  return false;
}

static bool fire(struct tag *t) {
  /* The load keeps later callers off the line; the exchange lets exactly one through. */
  if (__atomic_load_n(&t->fired, __ATOMIC_RELAXED)) return hit();
  return !__atomic_exchange_n(&t->fired, 1, __ATOMIC_ACQ_REL);
}

bool oc_opcache_once(oc_opcache *c, const char *key) {
  if (!lives(c) || !key) return false;
  struct lookup k = oci_lookup(key, NULL);
  struct tag *t = oci_tag_get(c, &k);
  return t && fire(t);
}

bool oc_opcache_once_k(oc_opcache *c, oc_tag_key *key) {
  if (!lives(c) || !key || !key->tag) return false;
  struct tag *t = oci_tag_of_key(c, key);
  return t && fire(t);
}

/* ---- first n ---- */

/* Past REACH_MAX nothing is counted any more: so it never wraps, and is a read. */
static bool reach(struct tag *t, uint32_t n) {
  if (__atomic_load_n(&t->reached, __ATOMIC_RELAXED) >= REACH_MAX) return hit();
  return __atomic_fetch_add(&t->reached, 1, __ATOMIC_RELAXED) < (n < REACH_MAX ? n : REACH_MAX);
}

bool oc_opcache_first_n(oc_opcache *c, const char *key, uint32_t n) {
  if (!lives(c) || !key) return false;
  struct lookup k = oci_lookup(key, NULL);
  struct tag *t = oci_tag_get(c, &k);
  return t && reach(t, n);
}

bool oc_opcache_first_n_k(oc_opcache *c, oc_tag_key *key, uint32_t n) {
  if (!lives(c) || !key || !key->tag) return false;
  struct tag *t = oci_tag_of_key(c, key);
  return t && reach(t, n);
}

/* ---- first shape ---- */

static uint64_t shape_hash(uint64_t mn, uint32_t k) {
  uint64_t h = oci_mix(mn ^ 0xA0761D6478BD642Fu, (uint64_t)k ^ 0xE7037ED1A0B428DBu);
  return h ? h : 1;
}

static bool has_shape(const struct tag *t, uint64_t hash, uint64_t mn, uint32_t k) {
  struct map_hit hit;
  if (!oci_map_get(&t->shapes, hash, &hit)) return false;
  for (const struct shape *s = oci_map_entry(hit.entry); s; s = s->same_hash)
    if (s->mn == mn && s->k == k) return true;
  return false;
}

/* With the lock held: OC_OK if it was not there, OC_EXISTS, OC_E_HOST_NOMEM. */
static oc_status add_shape(struct tag *t, uint64_t hash, uint64_t mn, uint32_t k) {
  if (has_shape(t, hash, mn, k)) return OC_EXISTS;
  struct shape *s = oci_map_reserve(&t->shapes) ? oci_alloc(t->shapes.heap, sizeof *s) : NULL;
  if (!s) return OC_E_HOST_NOMEM;
  struct map_hit hit;
  bool chained = oci_map_get(&t->shapes, hash, &hit);
  *s = (struct shape){.same_hash = chained ? oci_map_entry(hit.entry) : NULL, .mn = mn, .k = k};
  if (chained) oci_map_set_entry(&t->shapes, hash, (uint64_t)(uintptr_t)s);
  else oci_map_put(&t->shapes, hash, 0, 0, (uint64_t)(uintptr_t)s);
  return OC_OK;
}

static bool first_shape(oc_opcache *c, struct tag *t, uint32_t m, uint32_t n, uint32_t k) {
  uint64_t mn = (uint64_t)m << 32 | n, hash = shape_hash(mn, k);
  if (has_shape(t, hash, mn, k)) return hit();
  struct task call;
  if (oci_call_begin(oci_model_of_opcache(c), &call, "oc_opcache_first_shape")) return false;
  pthread_mutex_lock(&c->lock);
  oc_status st = add_shape(t, hash, mn, k);
  pthread_mutex_unlock(&c->lock);
  oci_call_end(&call);
  if (st == OC_E_HOST_NOMEM)
    oci_log(OCI_LOG_WARNING, "shape %u x %u x %u of %s: out of host memory", m, n, k, oci_name_a(&t->name));
  return st == OC_OK;
}

bool oc_opcache_first_shape(oc_opcache *c, const char *name, uint32_t m, uint32_t n, uint32_t k) {
  if (!lives(c) || !name) return false;
  struct lookup l = oci_lookup(name, NULL);
  struct tag *t = oci_tag_get(c, &l);
  return t && first_shape(c, t, m, n, k);
}

bool oc_opcache_first_shape_k(oc_opcache *c, oc_tag_key *name, uint32_t m, uint32_t n, uint32_t k) {
  if (!lives(c) || !name || !name->tag) return false;
  struct tag *t = oci_tag_of_key(c, name);
  return t && first_shape(c, t, m, n, k);
}
