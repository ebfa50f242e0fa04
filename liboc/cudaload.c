/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "liboc/cudaload.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rcu/error.h"
#include "rcu/mem.h"

#define LIBRARY "libcuda.so.1"

static struct cuda_process *process;   /* atomic; set once */

/* ---- finding it ---- */

/* One symbol's place in the table. Function and object pointers have one shape wherever dlsym is. */
struct wanted {
  const char *symbol;
  size_t offset;
};

static const struct wanted wanted[] = {
#define CUDA_WANTED(field, symbol, params) {#symbol, offsetof(struct cuda_driver, field)},
    CUDA_FUNCTIONS(CUDA_WANTED)
#undef CUDA_WANTED
};

static oc_status find_symbols(void *library, struct cuda_driver *d) {
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    void *symbol = dlsym(library, wanted[i].symbol);
    if (!symbol)
      return oci_error(OC_E_NO_DRIVER, "oc_backend_open_cuda: " LIBRARY " has no %s: the driver is older than CUDA 11.0, "
                       "or it is no CUDA driver", wanted[i].symbol);
    memcpy((char *)d + wanted[i].offset, &symbol, sizeof symbol);
  }
  return OC_OK;
}

static oc_status find_library(struct cuda_driver *d, void **library) {
  *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!*library) return oci_error(OC_E_NO_DRIVER, "oc_backend_open_cuda: no CUDA driver: %s", dlerror());
  oc_status st = find_symbols(*library, d);
  if (st) dlclose(*library);
  return st;
}

/* ---- once ---- */

/* Two threads may both come here: the second one's copy goes. dlopen counts, so the library stays loaded. */
static oc_status find_process(struct cuda_process **out) {
  void *library;
  struct cuda_process *p = oci_alloc(NULL, sizeof *p);
  if (!p) return oci_error(OC_E_HOST_NOMEM, "oc_backend_open_cuda: out of host memory");
  oc_status st = find_library(&p->driver, &library);
  if (st) {
    oci_free(NULL, p, sizeof *p);
    return st;
  }
  p->pid = getpid();
  struct cuda_process *first = NULL;
  if (__atomic_compare_exchange_n(&process, &first, p, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    *out = p;
    return OC_OK;
  }
  dlclose(library);
  oci_free(NULL, p, sizeof *p);
  *out = first;
  return OC_OK;
}

#define STUB_LIBRARY 34   /* the toolkit's, to link with: it has no words either */

static oc_status refuse_init(struct cuda_process *p, cu_result r) {
  char words[256];
  if (r == STUB_LIBRARY)
    return oci_error(OC_E_NO_DRIVER, "oc_backend_open_cuda: the " LIBRARY " that was found is the toolkit's stub, no driver");
  oci_cuda_note(p, r);
  oci_cuda_words(p, r, words, sizeof words);
  return oci_error(r == CU_E_DEINITIALIZED ? OC_E_DEVICE_LOST : OC_E_NO_DRIVER, "oc_backend_open_cuda: cuInit: %s", words);
}

oc_status oci_cuda_load(struct cuda_process **out) {
  struct cuda_process *p = __atomic_load_n(&process, __ATOMIC_ACQUIRE);
  oc_status st = p ? OC_OK : find_process(&p);
  if (st) return st;
  if (p->pid != getpid())
    return oci_error(OC_E_FORKED, "oc_backend_open_cuda: a parent process has used the CUDA driver, which does not survive "
                     "a fork");
  if (oci_cuda_shut_down(p))
    return oci_error(OC_E_DEVICE_LOST, "oc_backend_open_cuda: the CUDA driver is shut down");
  cu_result r = p->driver.init(0);   /* more often than once is allowed */
  if (r) return refuse_init(p, r);
  *out = p;
  return OC_OK;
}

/* ---- its words ---- */

void oci_cuda_note(struct cuda_process *p, cu_result r) {
  if (r == CU_E_DEINITIALIZED) __atomic_store_n(&p->shut_down, true, __ATOMIC_RELEASE);
}

bool oci_cuda_shut_down(const struct cuda_process *p) {
  return __atomic_load_n(&p->shut_down, __ATOMIC_ACQUIRE);
}

void oci_cuda_words(const struct cuda_process *p, cu_result r, char *words, size_t bytes) {
  const char *name = NULL, *text = NULL;
  if (oci_cuda_shut_down(p)) {
    snprintf(words, bytes, "CUDA_ERROR_DEINITIALIZED (4): the driver is shut down");
    return;
  }
  if (p->driver.error_name(r, &name) || !name) name = "an error without a name";
  if (p->driver.error_string(r, &text) || !text) text = "no text";
  snprintf(words, bytes, "%s (%d): %s", name, (int)r, text);
}
