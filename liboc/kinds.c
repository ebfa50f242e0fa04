/* SPDX-License-Identifier: MIT */
/* The process-wide table of derivation kinds. Readers look at the arity of an id without a lock. */
#include "config.h"

#include <string.h>

#include "liboc/derived.h"
#include "liboc/process.h"
#include "rcu/mem.h"

struct kind {
  const char *name;    /* atomic; set before the arity is, and never again */
  const char *owner;
};

#define OWNER "derived "

uint8_t oci_kind_arity[KINDS_MAX] = {
  [OC_ROWWISE_FP8] = OC_PAIR,
  [OC_BF16] = OC_PTR,
  [OC_CUTLASS_NVFP4_T] = OC_PTR,
  [OC_CUTLASS_NVFP4_FROM_FP8] = OC_PAIR,
};

static struct kind kinds[KINDS_MAX] = {
  [OC_ROWWISE_FP8] = {"rowwise-fp8", OWNER "rowwise-fp8"},
  [OC_BF16] = {"bf16", OWNER "bf16"},
  [OC_CUTLASS_NVFP4_T] = {"nvfp4-t", OWNER "nvfp4-t"},
  [OC_CUTLASS_NVFP4_FROM_FP8] = {"nvfp4-from-fp8", OWNER "nvfp4-from-fp8"},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t next_kind = OC_KIND_ENGINE;

void oci_kinds_fork(enum oci_fork_step step) {
  if (step == OCI_FORK_PREPARE) pthread_mutex_lock(&lock);
  else pthread_mutex_unlock(&lock);
}

static bool known(oc_kind kind) {
  return kind < KINDS_MAX && __atomic_load_n(&oci_kind_arity[kind], __ATOMIC_ACQUIRE) != 0;
}

const char *oci_kind_name(oc_kind kind) {
  return known(kind) ? kinds[kind].name : "?";
}

const char *oci_kind_owner(oc_kind kind) {
  return known(kind) ? kinds[kind].owner : OWNER "?";
}

bool oci_kind_owns(const char *owner) {
  for (oc_kind k = 0; k < KINDS_MAX; k++)
    if (known(k) && strcmp(kinds[k].owner, owner) == 0) return true;
  return false;
}

oc_status oci_kind_check(oc_kind kind, oc_arity arity, const char *call) {
  if (!known(kind)) return oci_error(OC_E_KIND, "%s: kind %u is not registered", call, kind);
  if (oci_kind_arity[kind] != (uint8_t)arity)
    return oci_error(OC_E_KIND, "%s: kind %s is a %s kind", call, kinds[kind].name,
                     oci_kind_arity[kind] == OC_PTR ? "pointer" : "pair");
  return OC_OK;
}

static oc_kind find(const char *name) {
  for (oc_kind k = 0; k < next_kind; k++)
    if (kinds[k].name && strcmp(kinds[k].name, name) == 0) return k;
  return KINDS_MAX;
}

static oc_status add(const char *name, oc_arity arity, oc_kind *out) {
  if (next_kind == KINDS_MAX)
    return oci_error(OC_E_INVALID, "oc_kind_register(%s): there are %u kinds, and no room for more", name, KINDS_MAX);
  size_t n = strlen(name);
  char *owner = oci_alloc(NULL, sizeof OWNER + n);
  if (!owner) return oci_error(OC_E_HOST_NOMEM, "oc_kind_register(%s): out of host memory", name);
  memcpy(owner, OWNER, sizeof OWNER - 1);
  memcpy(owner + sizeof OWNER - 1, name, n + 1);
  kinds[next_kind] = (struct kind){.name = owner + sizeof OWNER - 1, .owner = owner};
  __atomic_store_n(&oci_kind_arity[next_kind], (uint8_t)arity, __ATOMIC_RELEASE);
  *out = next_kind++;
  return OC_OK;
}

oc_status oc_kind_register(const char *name, oc_arity arity, oc_kind *out) {
  if (!name || !*name || !out) return oci_error(OC_E_INVALID, "oc_kind_register: a kind must have a name, and out");
  if (arity != OC_PTR && arity != OC_PAIR)
    return oci_error(OC_E_INVALID, "oc_kind_register(%s): arity %d is neither OC_PTR nor OC_PAIR", name, (int)arity);
  pthread_mutex_lock(&lock);
  oc_kind k = find(name);
  oc_status st = OC_OK;
  if (k == KINDS_MAX) st = add(name, arity, &k);
  else if (oci_kind_arity[k] != (uint8_t)arity)
    st = oci_error(OC_E_KIND, "oc_kind_register: %s is registered as a %s kind", name,
                   oci_kind_arity[k] == OC_PTR ? "pointer" : "pair");
  pthread_mutex_unlock(&lock);
  if (!st) *out = k;
  return st;
}
