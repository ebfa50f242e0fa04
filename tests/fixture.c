/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tests/fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/fixture_cuda.h"

/* ---- opening ---- */

enum fx_backend fx_which(void) {
  const char *name = getenv("LIBOC_TEST_BACKEND");
  if (!name || strcmp(name, "host") == 0) return FX_HOST;
  ck_assert_msg(strcmp(name, "cuda") == 0, "LIBOC_TEST_BACKEND is %s: host or cuda", name);
  return FX_CUDA;
}

static oc_backend *open_host(const struct fx_options *o) {
  oc_host_options opt = {.struct_size = sizeof opt, .device_bytes = o->device_bytes, .managed_bytes = o->managed_bytes};
  if (o->no_managed) opt.flags |= OC_HOST_NO_MANAGED;
  if (o->recycle) opt.flags |= OC_HOST_RECYCLE;
  if (o->chunks) opt.flags |= OC_HOST_CHUNKS;
  if (o->poison) opt.flags |= OC_HOST_POISON;
  if (o->no_events) opt.flags |= OC_HOST_NO_EVENTS;
  oc_backend *b;
  ck_ok(oc_backend_open_host(&opt, &b));
  return b;
}

static const oc_host_module host_module;   /* the test kernels, below */

static bool on_cuda(void) { return fx_which() == FX_CUDA; }

/* A test may open a host backend whatever the choice. */
static bool is_cuda(const oc_backend *b) { return on_cuda() && strcmp(oc_backend_table(b)->name, "host") != 0; }

oc_backend *fx_open(const struct fx_options *opt) {
  const struct fx_options none = {0};
  if (!opt) opt = &none;
  return on_cuda() ? fxc_open(opt, &host_module) : open_host(opt);
}

static oc_host_stats host_stats(oc_backend *b) {
  oc_host_stats s = {.struct_size = sizeof s};
  ck_ok(oc_host_get_stats(b, &s));
  return s;
}

void fx_close(oc_backend *b) {
  if (is_cuda(b)) {
    fxc_close(b);
    return;
  }
  oc_host_stats s = host_stats(b);
  ck_assert_uint_eq(s.device_blocks + s.managed_blocks, 0);
  ck_assert_uint_eq(s.device_used + s.managed_used, 0);
  ck_assert_uint_eq(s.modules, 0);
  ck_assert_uint_eq(s.events, 0);
  ck_assert_uint_eq(s.stale_launches, 0);
  ck_assert_uint_eq(s.bad_frees, 0);
  ck_ok(oc_backend_close(b));
}

oc_model *fx_model_opt(oc_backend *b, oc_model_options opt) {
  oc_model *m;
  opt.struct_size = sizeof opt;
  ck_ok(oc_model_create(b, &opt, &m));
  return m;
}

oc_model *fx_model(oc_backend *b) {
  return fx_model_opt(b, (oc_model_options){0});
}

/* ---- knobs ---- */

bool fx_can(enum fx_knob k) {
  return !on_cuda() || fxc_can(k);
}

void fx_skip_at(const char *file, int line, const char *why) {
  printf("SKIPPED %s:%d: %s\n", file, line, why);
}

void fx_stall(oc_backend *b, oc_stream s, bool stalled) {
  if (is_cuda(b)) fxc_stall(b, s, stalled);
  else ck_ok(oc_host_stall(b, s, stalled));
}

void fx_fail(oc_backend *b, const char *entry, uint64_t nth, uint64_t count, oc_status as) {
  if (is_cuda(b)) fxc_fail(b, entry, nth, count, as);
  else ck_ok(oc_host_fail(b, entry, nth, count, as));
}

void fx_delay(oc_backend *b, const char *entry, uint64_t ns) {
  if (is_cuda(b)) fxc_delay(b, entry, ns);
  else ck_ok(oc_host_delay(b, entry, ns));
}

void fx_capturing(oc_backend *b, oc_stream s, bool on) {
  if (is_cuda(b)) fxc_capturing(b, s, on);
  else ck_ok(oc_host_set_capturing(b, s, on));
}

uint64_t fx_calls(oc_backend *b, const char *entry) {
  return is_cuda(b) ? fxc_calls(b, entry) : oc_host_calls(b, entry);
}

uint64_t fx_all_calls(oc_backend *b) { return is_cuda(b) ? fxc_all_calls(b) : host_stats(b).calls; }
uint64_t fx_stale(oc_backend *b) { return is_cuda(b) ? fxc_stale(b) : host_stats(b).stale_launches; }
size_t fx_used(oc_backend *b) { return is_cuda(b) ? fxc_used(b) : host_stats(b).device_used; }

uint64_t fx_blocks(oc_backend *b) {
  return is_cuda(b) ? fxc_blocks(b) : host_stats(b).device_blocks + host_stats(b).managed_blocks;
}

uint64_t fx_modules(oc_backend *b) { return is_cuda(b) ? fxc_modules(b) : host_stats(b).modules; }
uint64_t fx_events(oc_backend *b) { return is_cuda(b) ? fxc_events(b) : host_stats(b).events; }

/* ---- streams and memory ---- */

static const oc_backend_ops *table(oc_backend *b) { return oc_backend_table(b); }
static void *self(oc_backend *b) { return oc_backend_self(b); }

oc_stream fx_stream(oc_backend *b) {
  oc_stream s;
  ck_ok(table(b)->stream_create(self(b), &s));
  return s;
}

void fx_stream_free(oc_backend *b, oc_stream s) { ck_ok(table(b)->stream_destroy(self(b), s)); }
void fx_sync(oc_backend *b, oc_stream s) { ck_ok(table(b)->synchronize(self(b), s)); }

void fx_read(oc_backend *b, void *dst, oc_devptr src, size_t n) {
  ck_ok(table(b)->copy_d2h(self(b), dst, src, n, NULL));
  fx_sync(b, NULL);
}

void fx_write(oc_backend *b, oc_devptr dst, const void *src, size_t n) {
  ck_ok(table(b)->copy_h2d(self(b), dst, src, n, NULL));
  fx_sync(b, NULL);
}

/* ---- kernels ---- */

static void k_add(const oc_host_launch *launch, void *const *params) {
  (void)launch;
  uint64_t ptr;
  memcpy(&ptr, params[0], sizeof ptr);
  *(uint32_t *)(uintptr_t)ptr += *(const uint32_t *)params[1];
}

static void k_fill(const oc_host_launch *launch, void *const *params) {
  (void)launch;
  uint64_t ptr;
  memcpy(&ptr, params[0], sizeof ptr);
  uint32_t value = *(const uint32_t *)params[1], n = *(const uint32_t *)params[2];
  for (uint32_t i = 0; i < n; i++) ((uint32_t *)(uintptr_t)ptr)[i] = value;
}

static const uint32_t add_params[] = {8, 4}, fill_params[] = {8, 4, 4};
static const oc_host_function functions[] = {
  {"add", k_add, 2, add_params},
  {"fill", k_fill, 3, fill_params},
};
static const oc_host_module host_module = {sizeof host_module, 2, functions};

const void *fx_image(size_t *bytes) {
  *bytes = on_cuda() ? fxc_ptx_bytes : sizeof host_module;
  return on_cuda() ? (const void *)fxc_ptx : &host_module;
}

void fx_load(oc_model *m, const char *name) {
  size_t bytes;
  const void *image = fx_image(&bytes);
  ck_ok(oc_model_load_module(m, name, image, bytes));
}

static void launch(oc_backend *b, oc_kernel k, oc_stream s, void **params) {
  const uint32_t one[3] = {1, 1, 1};
  ck_ok(table(b)->launch(self(b), k, one, one, 0, s, params));
}

void fx_launch_add(oc_backend *b, oc_kernel k, oc_stream s, oc_devptr ptr, uint32_t n) {
  launch(b, k, s, (void *[]){&ptr, &n});
}

void fx_launch_fill(oc_backend *b, oc_kernel k, oc_stream s, oc_devptr ptr, uint32_t value, uint32_t n) {
  launch(b, k, s, (void *[]){&ptr, &value, &n});
}

/* ---- threads ---- */

struct crew {
  pthread_barrier_t start;
  void (*fn)(void *arg, unsigned i);
  void *arg;
};

struct hand {
  struct crew *crew;
  unsigned i;
};

static void *work(void *arg) {
  struct hand *h = arg;
  pthread_barrier_wait(&h->crew->start);
  h->crew->fn(h->crew->arg, h->i);
  return NULL;
}

void fx_threads(unsigned n, void (*fn)(void *arg, unsigned i), void *arg) {
  struct crew crew = {.fn = fn, .arg = arg};
  pthread_t threads[64];
  struct hand hands[64];
  ck_assert_uint_le(n, 64);
  pthread_barrier_init(&crew.start, NULL, n);
  for (unsigned i = 0; i < n; i++) {
    hands[i] = (struct hand){&crew, i};
    ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &hands[i]), 0);
  }
  for (unsigned i = 0; i < n; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&crew.start);
}

void fx_msleep(unsigned ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

/* ---- random numbers ---- */

uint64_t fx_seed(void) {
  const char *given = getenv("LIBOC_TEST_SEED");
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 20;
  printf("LIBOC_TEST_SEED=%llu\n", (unsigned long long)seed);
  fflush(stdout);
  return seed;
}

/* splitmix64 */
uint64_t fx_random(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

unsigned fx_scale(unsigned n) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return (n + 9) / 10;
#else
  return n;
#endif
}

bool fx_wanted(const char *test) {
  const char *only = getenv("LIBOC_TEST_ONLY");
  return !only || strcmp(only, test) == 0;
}

int fx_run(Suite *s) {
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
