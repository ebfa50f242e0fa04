/* SPDX-License-Identifier: MIT */
/*
 * An engine's own driver behind liboc: a table of functions and a `self`. This one is malloc with a limit; yours calls
 * what you have. Only alloc, free and a way to find kernels are required: without events liboc synchronises, without
 * synchronize it takes calls as finished on return.
 * cc engine.c $(pkg-config --cflags --libs liboc)
 */
#include <liboc/oc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct engine {
  size_t used, limit;       /* atomic: liboc calls any entry from any thread */
  const char *words;        /* this thread's last failure; one thread here */
};

struct header { size_t bytes; char pad[4096 - sizeof(size_t)]; };

static oc_status engine_alloc(void *self, size_t bytes, oc_devptr *out) {
  struct engine *e = self;
  if (__atomic_add_fetch(&e->used, bytes, __ATOMIC_RELAXED) > e->limit) {
    __atomic_sub_fetch(&e->used, bytes, __ATOMIC_RELAXED);
    e->words = "ENGINE_OUT_OF_MEMORY (2)";
    return OC_E_DEVICE_NOMEM;   /* this, and nothing else, lets liboc fall back */
  }
  struct header *h = aligned_alloc(sizeof *h, sizeof *h + (bytes + 4095) / 4096 * 4096);
  if (!h) {
    __atomic_sub_fetch(&e->used, bytes, __ATOMIC_RELAXED);
    return OC_E_DEVICE_NOMEM;
  }
  h->bytes = bytes;
  *out = (oc_devptr)(uintptr_t)(h + 1);
  return OC_OK;   // cppcheck-suppress memleak ; freed by that address
}

static oc_status engine_free(void *self, oc_devptr p) {
  struct engine *e = self;
  struct header *h = (struct header *)(uintptr_t)p - 1;
  __atomic_sub_fetch(&e->used, h->bytes, __ATOMIC_RELAXED);
  free(h);
  return OC_OK;
}

static oc_status engine_kernel(void *self, const char *module, const char *func, oc_kernel *out) {
  static int rope;   /* its address is the handle */
  struct engine *e = self;
  if (strcmp(module, "ops") == 0 && strcmp(func, "rope") == 0) {
    *out = (oc_kernel)(void *)&rope;
    return OC_OK;
  }
  e->words = "ENGINE_NO_SUCH_KERNEL (500)";
  return OC_E_NOT_FOUND;
}

static const char *engine_last_error(void *self) {
  return ((struct engine *)self)->words;
}

static void engine_close(void *self) {
  ((struct engine *)self)->words = "closed";
}

static void expect(oc_status st, oc_status want) {
  if (st == want) return;
  fprintf(stderr, "%s instead of %s: %s\n", oc_status_name(st), oc_status_name(want), oc_last_error());
  exit(1);
}

int main(void) {
  struct engine engine = {.limit = (size_t)96 << 20, .words = ""};
  const oc_backend_ops ops = {.struct_size = sizeof ops, .name = "engine", .alloc = engine_alloc, .free = engine_free,
                              .kernel = engine_kernel, .last_error = engine_last_error, .close = engine_close};
  oc_backend *b;
  oc_model *m;
  oc_kernel k;
  oc_devptr p;
  expect(oc_backend_create(&ops, &engine, &b), OC_OK);
  expect(oc_model_create(b, NULL, &m), OC_OK);

  expect(oc_opcache_kernel(oc_model_opcache(m), "ops", "rope", &k), OC_OK);
  expect(oc_opcache_kernel(oc_model_opcache(m), "ops", "rpoe", &k), OC_E_NOT_FOUND);
  printf("%s\n", oc_last_error());
  expect(oc_pool_alloc_owned(oc_model_pool(m), "weights", 1000000, 0, &p), OC_OK);
  memset((void *)(uintptr_t)p, 1, 1000000);   /* here a device address is a host address */
  expect(oc_pool_alloc(oc_model_pool(m), (size_t)64 << 20, 0, &p), OC_E_DEVICE_NOMEM);
  printf("%s\n", oc_last_error());

  expect(oc_model_destroy(m), OC_OK);
  expect(oc_backend_close(b), OC_OK);
  printf("%zu bytes left with the engine, which is %s\n", engine.used, engine.words);
  return engine.used == 0 ? 0 : 1;
}
