/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/devmodule.h"

#include <inttypes.h>
#include <string.h>

#include "rcu/error.h"
#include "rcu/hash.h"

/* Bounds by which a garbage image is seen. */
#define FUNCTIONS_MAX ((uint32_t)1 << 20)
#define PARAMS_MAX ((uint32_t)4096)
#define LAUNCH_BYTES_MAX ((size_t)1 << 20)

struct kernel {
  struct slot slot;
  oc_host_fn fn;                  /* atomic */
  const struct signature *sig;    /* atomic */
  oc_kernel handle;
};

struct module {
  struct slot slot;
  uint32_t count;                 /* kernels */
  uint32_t buckets;               /* a power of two, at least twice count; 0 for an empty module */
  struct kernel **by_name;        /* [buckets]: open addressing by the name's hash */
};

void oci_devmodules_init(struct modules *ms, struct heap *heap) {
  *ms = (struct modules){.heap = heap};
  pthread_mutex_init(&ms->lock, NULL);
  oci_devslots_init(&ms->table, heap, sizeof(struct module), SLOT_MODULE, false);
  oci_devslots_init(&ms->kernels, heap, sizeof(struct kernel), SLOT_KERNEL, false);
}

/* ---- signatures ---- */

static uint64_t hash_name(const char *name) {
  return oci_hash_bytes(name, strlen(name), 0);
}

static uint64_t hash_function(const oc_host_function *f) {
  uint64_t h = hash_name(f->name);
  return f->param_count ? oci_hash_bytes((const char *)f->param_bytes, f->param_count * sizeof(uint32_t), h)
                        : h;
}

static bool same_signature(const struct signature *s, const oc_host_function *f) {
  return s->param_count == f->param_count && strcmp(s->name, f->name) == 0 &&
         (f->param_count == 0 ||
          memcmp(s->param_bytes, f->param_bytes, f->param_count * sizeof(uint32_t)) == 0);
}

static struct signature *make_signature(struct modules *ms, const oc_host_function *f, uint64_t hash) {
  size_t name_bytes = strlen(f->name) + 1;
  size_t bytes = sizeof(struct signature) + f->param_count * sizeof(uint32_t) + name_bytes;
  struct signature *s = oci_alloc(ms->heap, bytes);
  if (!s) return NULL;
  s->hash = hash;
  s->record_bytes = bytes;
  s->param_count = f->param_count;
  for (uint32_t i = 0; i < f->param_count; i++) {
    s->param_bytes[i] = f->param_bytes[i];
    s->launch_bytes += oci_devparam_stride(f->param_bytes[i]);
  }
  s->name = memcpy(&s->param_bytes[s->param_count], f->name, name_bytes);
  return s;
}

static const struct signature *intern_signature(struct modules *ms, const oc_host_function *f) {
  uint64_t hash = hash_function(f);
  struct signature **head = &ms->signatures[hash % SIGNATURE_BUCKETS];
  for (struct signature *s = *head; s; s = s->next) {
    if (s->hash == hash && same_signature(s, f)) return s;
  }
  struct signature *s = make_signature(ms, f, hash);
  if (!s) return NULL;
  s->next = *head;
  return *head = s;
}

/* ---- images ---- */

static oc_status bad_function(const oc_host_function *f, uint32_t i) {
  if (!f->name || !f->name[0])
    return oci_error(OC_E_INVALID, "module image: function %" PRIu32 " has no name", i);
  if (!f->fn) return oci_error(OC_E_INVALID, "module image: function %s has no code", f->name);
  if (f->param_count > PARAMS_MAX)
    return oci_error(OC_E_INVALID, "module image: function %s says %" PRIu32 " parameters; more than %" PRIu32
                     " are not supported", f->name, f->param_count, PARAMS_MAX);
  if (f->param_count && !f->param_bytes)
    return oci_error(OC_E_INVALID, "module image: function %s has parameters but no sizes", f->name);
  size_t sum = 0;
  for (uint32_t p = 0; p < f->param_count; p++) {
    if (!f->param_bytes[p])
      return oci_error(OC_E_INVALID, "module image: function %s: parameter %" PRIu32 " has 0 bytes", f->name,
                       p);
    sum += oci_devparam_stride(f->param_bytes[p]);
  }
  if (sum <= LAUNCH_BYTES_MAX) return OC_OK;
  return oci_error(OC_E_INVALID,
                   "module image: function %s takes %zu bytes of parameters; more than %zu are not"
                   " supported",
                   f->name, sum, LAUNCH_BYTES_MAX);
}

static bool zero_tail(const void *image, size_t from, size_t to) {
  const unsigned char *p = image;
  while (from < to && p[from] == 0) from++;
  return from >= to;
}

/* Copies the image's head, checked as far as can be seen. */
static oc_status read_image(const void *image, size_t bytes, oc_host_module *out) {
  if (!image) return oci_error(OC_E_INVALID, "module image is NULL");
  if (bytes < sizeof *out)
    return oci_error(OC_E_INVALID, "module image of %zu bytes: an oc_host_module has %zu", bytes,
                     sizeof *out);
  memcpy(out, image, sizeof *out);
  if (out->struct_size < sizeof *out || out->struct_size > bytes ||
      !zero_tail(image, sizeof *out, out->struct_size))
    return oci_error(OC_E_INVALID,
                     "module image is no oc_host_module: struct_size %" PRIu32 " of %zu bytes, or"
                     " unknown fields are set",
                     out->struct_size, bytes);
  if (out->function_count > FUNCTIONS_MAX)
    return oci_error(OC_E_INVALID, "module image says %" PRIu32 " functions; more than %" PRIu32
                     " are not supported", out->function_count, FUNCTIONS_MAX);
  if (out->function_count && (!out->functions || (uintptr_t)out->functions % _Alignof(oc_host_function)))
    return oci_error(OC_E_INVALID, "module image says %" PRIu32 " functions, but their table is %s",
                     out->function_count, out->functions ? "misaligned" : "NULL");
  for (uint32_t i = 0; i < out->function_count; i++) {
    oc_status st = bad_function(&out->functions[i], i);
    if (st != OC_OK) return st;
  }
  return OC_OK;
}

/* ---- load and unload ---- */

/* Where the name is, or where it would go. */
static struct kernel **name_place(const struct module *m, const char *name) {
  uint64_t at = hash_name(name);
  for (;; at++) {
    struct kernel **k = &m->by_name[at & (m->buckets - 1)];
    if (!*k || strcmp((*k)->sig->name, name) == 0) return k;
  }
}

static void drop_kernels(struct modules *ms, struct module *m) {
  for (uint32_t i = 0; i < m->buckets; i++) {
    if (m->by_name[i]) oci_devslots_drop(&ms->kernels, &m->by_name[i]->slot);
  }
  oci_free(ms->heap, m->by_name, m->buckets * sizeof(struct kernel *));
  m->by_name = NULL;
  m->count = m->buckets = 0;
}

static oc_status add_kernel(struct modules *ms, struct module *m, const oc_host_function *f) {
  struct kernel **place = name_place(m, f->name);
  if (*place) return oci_error(OC_E_INVALID, "module image has two functions %s", f->name);
  const struct signature *sig = intern_signature(ms, f);
  struct kernel *k = sig ? (struct kernel *)oci_devslots_take(&ms->kernels) : NULL;
  if (!k) return oci_error(OC_E_HOST_NOMEM, "no host memory for function %s", f->name);
  /* A launch with an old handle may be reading these: release, so that if it sees one it sees the handle's
     end. */
  __atomic_store_n(&k->fn, f->fn, __ATOMIC_RELEASE);
  __atomic_store_n(&k->sig, sig, __ATOMIC_RELEASE);
  k->handle = (oc_kernel)(uintptr_t)oci_devslots_publish(&ms->kernels, &k->slot);
  *place = k;
  m->count++;
  return OC_OK;
}

static uint32_t buckets_for(uint32_t count) {
  uint32_t n = 2;
  while (n < 2 * count) n *= 2;
  return n;
}

static oc_status fill_module(struct modules *ms, struct module *m, const oc_host_module *image) {
  uint32_t buckets = buckets_for(image->function_count);
  m->by_name = oci_alloc(ms->heap, buckets * sizeof(struct kernel *));
  if (!m->by_name)
    return oci_error(OC_E_HOST_NOMEM, "no host memory for a module of %" PRIu32 " functions",
                     image->function_count);
  m->buckets = buckets;
  oc_status st = OC_OK;
  for (uint32_t i = 0; i < image->function_count && st == OC_OK; i++)
    st = add_kernel(ms, m, &image->functions[i]);
  if (st != OC_OK) drop_kernels(ms, m);
  return st;
}

static oc_status load_locked(struct modules *ms, const oc_host_module *image, oc_module *out) {
  struct module *m = (struct module *)oci_devslots_take(&ms->table);
  if (!m) return oci_error(OC_E_HOST_NOMEM, "no host memory for a module");
  oc_status st = fill_module(ms, m, image);
  if (st == OC_OK) *out = (oc_module)(uintptr_t)oci_devslots_publish(&ms->table, &m->slot);
  else oci_devslots_drop(&ms->table, &m->slot);
  return st;
}

oc_status oci_devmodule_load(struct modules *ms, const void *image, size_t bytes, oc_module *out) {
  oc_host_module head;
  oc_status st = read_image(image, bytes, &head);
  if (st != OC_OK) return st;
  pthread_mutex_lock(&ms->lock);
  st = load_locked(ms, &head, out);
  pthread_mutex_unlock(&ms->lock);
  return st;
}

static struct module *find_module_locked(struct modules *ms, oc_module m) {
  uint64_t handle = (uint64_t)(uintptr_t)m;
  struct slot *s = oci_devslots_find(&ms->table, handle);
  if (s && oci_devslot_is(&ms->table, s, handle)) return (struct module *)s;
  oci_error(OC_E_INVALID, "module handle 0x%" PRIx64 ": %s", handle,
            s && oci_devslot_was(s, handle) ? "unloaded" : "no such module");
  return NULL;
}

oc_status oci_devmodule_unload(struct modules *ms, oc_module handle) {
  pthread_mutex_lock(&ms->lock);
  struct module *m = find_module_locked(ms, handle);
  if (m) {
    drop_kernels(ms, m);
    oci_devslots_drop(&ms->table, &m->slot);
  }
  pthread_mutex_unlock(&ms->lock);
  return m ? OC_OK : OC_E_INVALID;
}

static oc_status function_locked(struct modules *ms, oc_module handle, const char *func, oc_kernel *out) {
  const struct module *m = find_module_locked(ms, handle);
  if (!m) return OC_E_INVALID;
  const struct kernel *k = *name_place(m, func);
  if (!k)
    return oci_error(OC_E_NOT_FOUND, "the module has no function %s among its %" PRIu32, func, m->count);
  *out = k->handle;
  return OC_OK;
}

oc_status oci_devmodule_function(struct modules *ms, oc_module m, const char *func, oc_kernel *out) {
  if (!func) return oci_error(OC_E_INVALID, "function name is NULL");
  pthread_mutex_lock(&ms->lock);
  oc_status st = function_locked(ms, m, func, out);
  pthread_mutex_unlock(&ms->lock);
  return st;
}

uint32_t oci_devmodules_live(const struct modules *ms) {
  return oci_devslots_live(&ms->table);
}

void oci_devmodules_fini(struct modules *ms) {
  for (uint32_t i = 1; i < ms->table.count; i++) {
    struct module *m = (struct module *)oci_devslots_at(&ms->table, i);
    oci_free(ms->heap, m->by_name, m->buckets * sizeof(struct kernel *));
  }
  for (size_t b = 0; b < SIGNATURE_BUCKETS; b++) {
    for (struct signature *s; (s = ms->signatures[b]);) {
      ms->signatures[b] = s->next;
      oci_free(ms->heap, s, s->record_bytes);
    }
  }
  oci_devslots_fini(&ms->kernels);
  oci_devslots_fini(&ms->table);
  pthread_mutex_destroy(&ms->lock);
}

/* ---- kernels ---- */

static bool read_kernel(const struct modules *ms, const struct kernel *k, uint64_t handle,
                        struct kernel_ref *out) {
  uint32_t gen = __atomic_load_n(&k->slot.gen, __ATOMIC_ACQUIRE);
  out->fn = __atomic_load_n(&k->fn, __ATOMIC_ACQUIRE);
  out->sig = __atomic_load_n(&k->sig, __ATOMIC_ACQUIRE);
  out->gen_at = &k->slot.gen;
  out->gen = gen;
  /* The module may have been unloaded, and the record used again, since gen was read: then gen has moved on,
     and what was read counts for nothing. */
  return oci_devslot_is(&ms->kernels, &k->slot, handle) && oci_devkernel_loaded(out);
}

oc_status oci_devkernel_resolve(const struct modules *ms, oc_kernel kernel, struct kernel_ref *out,
                                bool *stale) {
  uint64_t handle = (uint64_t)(uintptr_t)kernel;
  const struct slot *s = oci_devslots_find(&ms->kernels, handle);
  *stale = false;
  if (s && read_kernel(ms, (const struct kernel *)s, handle, out)) return OC_OK;
  *stale = s && oci_devslot_was(s, handle);
  return oci_error(OC_E_INVALID, "kernel handle 0x%" PRIx64 ": %s", handle,
                   *stale ? "stale, its module was unloaded" : "no such kernel");
}
