/* SPDX-License-Identifier: MIT */
/* Kernel handles, and what the op cache says about itself. Scratch is in scratch.c, gates in gates.c. */
#include "config.h"

#include "liboc/opcache.h"

#include <stdio.h>

#include "liboc/model.h"
#include "liboc/turn.h"
#include "rcu/mem.h"

void oci_opcache_init(struct oc_opcache *c, struct heap *h) {
  oci_map_init(&c->kernel_names, h);
  oci_map_init(&c->tag_names, h);
  c->streams.heap = h;
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->turn, NULL);
  link_init(&c->scratches);
  link_init(&c->outgrown);
  link_init(&c->growing);
  link_init(&c->limbo);
  link_init(&c->idle);
}

static void free_shapes(void *heap, uint64_t key, const struct map_hit *hit) {
  (void)key;
  for (struct shape *s = oci_map_entry(hit->entry), *next; s; s = next) {
    next = s->same_hash;
    oci_free(heap, s, sizeof *s);
  }
}

static void free_tag(void *arg, struct name *n) {
  (void)arg;
  struct tag *t = (struct tag *)n;
  oci_map_free(&t->on_stream);
  oci_map_each(&t->shapes, free_shapes, t->shapes.heap);
  oci_map_free(&t->shapes);
}

void oci_opcache_free(struct oc_opcache *c) {
  struct heap *h = c->kernel_names.heap;
  struct link *lists[] = {&c->scratches, &c->outgrown, &c->limbo, &c->idle};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    LINK_EACH(l, lists[i]) oci_free(h, CONTAINER(l, struct scratch, link), sizeof(struct scratch));
  }
  oci_table_free(&c->streams);
  oci_names_free(&c->tag_names, sizeof(struct tag), free_tag, NULL);
  oci_names_free(&c->kernel_names, sizeof(struct kernel), NULL, NULL);
  oci_dense_free(&c->tags, h);
  oci_dense_free(&c->kernels, h);
  pthread_mutex_destroy(&c->lock);
  pthread_cond_destroy(&c->turn);
}

/* ---- kernels: the miss ---- */

static struct kernel *kernel_record(struct oc_opcache *c, const struct lookup *k) {
  struct name *n = oci_names_get(&c->kernel_names, k);
  if (!n) n = oci_names_add(&c->kernel_names, k, sizeof(struct kernel));
  return (struct kernel *)n;
}

/* Asks the driver, and runs the key's init, in this thread's turn and without the lock. */
static oc_status ask(struct oc_model *m, struct kernel *r, const oc_kernel_key *key, oc_kernel *out) {
  const char *module = oci_name_a(&r->name), *func = oci_name_b(&r->name);
  oc_status st = OC_OK;
  *out = r->handle;
  if (!*out) st = oci_module_kernel(m, module, func, out);
  if (st || !key || !key->init) return st;
  st = key->init(m->backend, *out, key->arg);
  if (!st) return OC_OK;
  return oci_error(st > 0 ? OC_E_BACKEND : st, "init of kernel %s::%s answered %s", module, func, oc_status_name(st));
}

static bool init_done(const struct kernel *r, const oc_kernel_key *key) {
  return !key || !key->init || r->init;
}

static oc_status resolve_locked(struct oc_opcache *c, struct kernel *r, const oc_kernel_key *key) {
  if (!oci_turn_wait(&r->turn, &c->turn, &c->lock))
    return oci_error(OC_E_REENTRANT, "kernel %s::%s: its init asked for it", oci_name_a(&r->name), oci_name_b(&r->name));
  if (key && key->init && r->init && r->init != key->init)
    return oci_error(OC_E_INVALID, "kernel %s::%s: this model has run another init for it", oci_name_a(&r->name),
                     oci_name_b(&r->name));
  if (r->handle && init_done(r, key)) return OC_OK;
  oci_turn_take(&r->turn);
  pthread_mutex_unlock(&c->lock);
  oc_kernel handle;
  oc_status st = ask(oci_model_of_opcache(c), r, key, &handle);
  pthread_mutex_lock(&c->lock);
  if (!st) {
    if (!r->handle) __atomic_store_n(&c->kernel_count, c->kernel_count + 1, __ATOMIC_RELAXED);
    if (key && key->init) __atomic_store_n(&r->init, key->init, __ATOMIC_RELEASE);
    __atomic_store_n(&r->handle, handle, __ATOMIC_RELEASE);
  }
  oci_turn_give(&r->turn, &c->turn);
  return st;
}

/* Into the dense vector: from now on the key is an indexed load. */
static void remember(struct oc_opcache *c, const oc_kernel_key *key, oc_kernel handle) {
  uint32_t id = __atomic_load_n(&key->id, __ATOMIC_RELAXED);
  if (id - 1 >= DENSE_IDS) return;
  (void)oci_dense_set(&c->kernels, c->kernel_names.heap, id - 1, handle);   /* without memory: asked again */
}

static oc_status miss(struct oc_opcache *c, const struct lookup *k, const oc_kernel_key *key, oc_kernel *out) {
  if (oci_in_capture())
    return oci_error(OC_E_CAPTURING, "kernel %s::%s is not memoized, and a capture is entered", k->a, k->b);
  pthread_mutex_lock(&c->lock);
  struct kernel *r = kernel_record(c, k);
  oc_status st = r ? resolve_locked(c, r, key) : oci_error(OC_E_HOST_NOMEM, "kernel %s::%s: out of host memory", k->a, k->b);
  if (!st) {
    if (key) remember(c, key, r->handle);
    *out = r->handle;
  }
  pthread_mutex_unlock(&c->lock);
  return st;
}

static oc_status counted_miss(struct oc_opcache *c, const struct lookup *k, const oc_kernel_key *key, oc_kernel *out,
                              const char *name) {
  struct task call;
  oc_status st = oci_call_begin(oci_model_of_opcache(c), &call, name);
  if (st) return st;
  oci_sight_miss(oci_model_of_opcache(c), MISS_KERNEL, k->b);
  st = miss(c, k, key, out);
  oci_call_end(&call);
  return st;
}

/* ---- kernels: the hit ---- */

/* What is no hit; so that a hit keeps its key in registers. */
static __attribute__((noinline)) oc_status no_hit(oc_opcache *c, const char *module, const char *func, oc_kernel *out) {
  static const char call[] = "oc_opcache_kernel";
  if (!c || !module || !func || !out) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  if (!oci_model_live(oci_model_of_opcache(c))) return oci_model_refuses(oci_model_of_opcache(c), call);
  struct lookup k = oci_lookup(module, func);
  return counted_miss(c, &k, NULL, out, call);
}

oc_status oc_opcache_kernel(oc_opcache *c, const char *module, const char *func, oc_kernel *out) {
  if (__builtin_expect(!c || !module || !func || !out, 0)) return no_hit(c, module, func, out);
  struct lookup k = oci_lookup(module, func);
  const struct kernel *r = (const struct kernel *)oci_names_get(&c->kernel_names, &k);
  oc_kernel handle = r ? __atomic_load_n(&r->handle, __ATOMIC_ACQUIRE) : NULL;
  if (__builtin_expect(!handle || !oci_model_live(oci_model_of_opcache(c)), 0)) return no_hit(c, module, func, out);
  *out = handle;
  oci_hit(HIT_KERNEL);
  return OC_OK;
}

/* The handle under these names, if the key's init has run on it. */
static bool by_names(const struct oc_opcache *c, const struct lookup *k, const oc_kernel_key *key, oc_kernel *out) {
  const struct kernel *r = (const struct kernel *)oci_names_get(&c->kernel_names, k);
  oc_kernel handle = r ? __atomic_load_n(&r->handle, __ATOMIC_ACQUIRE) : NULL;
  if (!handle || (key->init && __atomic_load_n(&r->init, __ATOMIC_ACQUIRE) != key->init)) return false;
  *out = handle;
  oci_hit(HIT_KERNEL);
  return true;
}

/* By a key whose id this model does not know, or that has none. */
static __attribute__((noinline)) oc_status kernel_by_text(oc_opcache *c, oc_kernel_key *key, oc_kernel *out) {
  static const char call[] = "oc_opcache_kernel_k";
  if (!c || !key || !out || !key->module || !key->func) return oci_error(OC_E_INVALID, "%s: a NULL argument", call);
  if (!oci_model_live(oci_model_of_opcache(c))) return oci_model_refuses(oci_model_of_opcache(c), call);
  struct lookup k = oci_lookup(key->module, key->func);
  bool by_text = oci_kernel_key_id(key) == KEY_BY_TEXT;
  /* Inside a capture too, where it would be no hit otherwise: memoized under these names, new to this key. */
  if ((by_text || oci_in_capture()) && by_names(c, &k, key, out)) return OC_OK;
  return counted_miss(c, &k, key, out, call);
}

oc_status oc_opcache_kernel_k(oc_opcache *c, oc_kernel_key *key, oc_kernel *out) {
  if (__builtin_expect(!c || !key || !out, 0)) return kernel_by_text(c, key, out);
  /* id 0 (none yet) and KEY_BY_TEXT are out of the vector's bounds */
  oc_kernel handle = oci_dense_get(&c->kernels, __atomic_load_n(&key->id, __ATOMIC_RELAXED) - 1);
  if (__builtin_expect(!handle || !oci_model_live(oci_model_of_opcache(c)), 0)) return kernel_by_text(c, key, out);
  *out = handle;
  oci_hit(HIT_KERNEL);
  return OC_OK;
}

oc_status oc_opcache_warm(oc_opcache *c, oc_kernel_key *const *keys, size_t n) {
  if (!c || (!keys && n)) return oci_error(OC_E_INVALID, "oc_opcache_warm: a NULL argument");
  for (size_t i = 0; i < n; i++) {
    oc_kernel unused;
    oc_status st = oc_opcache_kernel_k(c, keys[i], &unused);
    if (st) return st;
  }
  return oci_model_live(oci_model_of_opcache(c)) ? OC_OK : oci_model_refuses(oci_model_of_opcache(c), "oc_opcache_warm");
}

/* ---- about itself ---- */

const char *oc_opcache_label(const oc_opcache *c) {
  return c ? "op scratch" : NULL;
}

size_t oc_opcache_kernels(const oc_opcache *c) {
  return c ? __atomic_load_n(&c->kernel_count, __ATOMIC_RELAXED) : 0;
}

size_t oc_opcache_scratches(const oc_opcache *c) {
  return c ? __atomic_load_n(&c->scratch_count, __ATOMIC_RELAXED) : 0;
}

static uint64_t sum_bytes(const struct link *list) {
  uint64_t sum = 0;
  LINK_EACH(l, list) sum += CONTAINER(l, struct scratch, link)->bytes;
  return sum;
}

void oci_scratch_figures(struct oc_opcache *c, size_t *count, uint64_t *bytes) {
  pthread_mutex_lock(&c->lock);
  *count = c->scratch_count;
  *bytes = sum_bytes(&c->scratches);
  pthread_mutex_unlock(&c->lock);
}

int oc_opcache_describe(const oc_opcache *c, char *buf, size_t n) {
  if (!c || (!buf && n)) return -1;
  struct oc_model *m = oci_model_of_opcache(c);
  if (__atomic_load_n(&m->state, __ATOMIC_RELAXED) == MODEL_FORKED) return snprintf(buf, n, "OpCache { forked }");
  struct oc_opcache *w = &m->opcache;
  pthread_mutex_lock(&w->lock);
  size_t kernels = w->kernel_count, scratches = w->scratch_count;
  unsigned long long live = sum_bytes(&w->scratches), retired = sum_bytes(&w->outgrown);
  pthread_mutex_unlock(&w->lock);
  return snprintf(buf, n, "OpCache { kernels: %zu, scratch buffers: %zu, scratch bytes: %llu, retired bytes: %llu, fell back: %s }",
                  kernels, scratches, live, retired, oc_opcache_alloc_fell_back(c) ? "yes" : "no");
}
