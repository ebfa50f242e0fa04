/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "tests/simcuda/simcuda.h"

struct wanted {
  const char *symbol;
  size_t offset;
};

static struct simcuda controls;
static struct cuda_driver driver;
static struct cuda_more more;
static bool have_controls, have_driver, have_more;

static bool find_all(void *library, const struct wanted *w, size_t n, void *into) {
  for (size_t i = 0; i < n; i++) {
    void *symbol = dlsym(library, w[i].symbol);
    if (!symbol) return false;
    memcpy((char *)into + w[i].offset, &symbol, sizeof symbol);
  }
  return true;
}

#define COUNT(list) (sizeof(list) / sizeof (list)[0])

static void find(void) {
#define WANT_CONTROL(name, result, params) {#name, offsetof(struct simcuda, name)},
  static const struct wanted of_controls[] = {SIMCUDA_CONTROLS(WANT_CONTROL)};
#define WANT_DRIVER(field, symbol, params) {#symbol, offsetof(struct cuda_driver, field)},
  static const struct wanted of_driver[] = {CUDA_FUNCTIONS(WANT_DRIVER)};
#define WANT_MORE(field, symbol, params) {#symbol, offsetof(struct cuda_more, field)},
  static const struct wanted of_more[] = {CUDA_MORE_FUNCTIONS(WANT_MORE)};
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  have_controls = find_all(library, of_controls, COUNT(of_controls), &controls);
  have_driver = find_all(library, of_driver, COUNT(of_driver), &driver);
  have_more = find_all(library, of_more, COUNT(of_more), &more);
}

static void find_once(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find);
}

const struct simcuda *simcuda_find(void) {
  find_once();
  return have_controls ? &controls : NULL;
}

const struct cuda_driver *cuda_direct(void) {
  find_once();
  return have_driver ? &driver : NULL;
}

const struct cuda_more *cuda_more(void) {
  find_once();
  return have_more ? &more : NULL;
}
