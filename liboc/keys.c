/* SPDX-License-Identifier: MIT */
/*
 * Interned keys: small process-wide ids for kernel names and tags, given at a key's first use. Same content (for a
 * kernel: module, function and init), same id. Past the last id a key takes the string path.
 */
#include "config.h"

#include "liboc/opcache.h"
#include "liboc/process.h"
#include "rcu/mem.h"

struct interned {
  struct name name;
  struct variant {
    oc_status (*init)(oc_backend *b, oc_kernel k, void *arg);
    uint32_t id;
    struct variant *next;
  } first;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct map kernel_names, tag_names;   /* on the process heap, for ever */
static uint32_t kernel_ids, tag_ids;

void oci_keys_fork(enum oci_fork_step step) {
  if (step == OCI_FORK_PREPARE) pthread_mutex_lock(&lock);
  else pthread_mutex_unlock(&lock);
}

static uint32_t new_id(uint32_t *count) {
  return *count < DENSE_IDS ? ++*count : KEY_BY_TEXT;
}

/* The record of a name; 0 in first.id: made just now. NULL without memory. Once the ids are out no name is added:
   it would fill memory that nothing ever gives back. */
static struct interned *record(struct map *names, const struct lookup *k, uint32_t ids) {
  struct name *n = oci_names_get(names, k);
  if (!n && ids < DENSE_IDS) n = oci_names_add(names, k, sizeof(struct interned));
  return (struct interned *)n;
}

static uint32_t no_record(uint32_t ids) {
  return ids < DENSE_IDS ? 0 : KEY_BY_TEXT;
}

static struct variant *find_variant(struct interned *r, const oc_kernel_key *key) {
  for (struct variant *v = &r->first; v; v = v->next)
    if (v->id && v->init == key->init) return v;
  return NULL;
}

static struct variant *add_variant(struct interned *r, const oc_kernel_key *key) {
  struct variant *v = r->first.id ? oci_alloc(NULL, sizeof *v) : &r->first;
  if (!v) return NULL;
  v->init = key->init;
  v->id = new_id(&kernel_ids);
  if (v != &r->first) {
    v->next = r->first.next;
    r->first.next = v;
  }
  return v;
}

/* 0 without host memory. */
static uint32_t kernel_id(const oc_kernel_key *key) {
  struct lookup k = oci_lookup(key->module, key->func);
  struct interned *r = record(&kernel_names, &k, kernel_ids);
  if (!r) return no_record(kernel_ids);
  struct variant *v = find_variant(r, key);
  if (!v) v = add_variant(r, key);
  return v ? v->id : 0;
}

static uint32_t tag_id(const oc_tag_key *key) {
  struct lookup k = oci_lookup(key->tag, NULL);
  struct interned *r = record(&tag_names, &k, tag_ids);
  if (!r) return no_record(tag_ids);
  if (!r->first.id) r->first.id = new_id(&tag_ids);
  return r->first.id;
}

uint32_t oci_kernel_key_id(oc_kernel_key *key) {
  uint32_t id = __atomic_load_n(&key->id, __ATOMIC_RELAXED);
  if (id) return id;
  pthread_mutex_lock(&lock);
  id = kernel_id(key);
  pthread_mutex_unlock(&lock);
  /* Two threads at one key store the same id. */
  if (id) __atomic_store_n(&key->id, id, __ATOMIC_RELAXED);
  return id;
}

uint32_t oci_tag_key_id(oc_tag_key *key) {
  uint32_t id = __atomic_load_n(&key->id, __ATOMIC_RELAXED);
  if (id) return id;
  pthread_mutex_lock(&lock);
  id = tag_id(key);
  pthread_mutex_unlock(&lock);
  if (id) __atomic_store_n(&key->id, id, __ATOMIC_RELAXED);
  return id;
}
