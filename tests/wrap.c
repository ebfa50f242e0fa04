/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tests/wrap.h"

#include <string.h>

static bool answered(struct wrap *w, const char *entry, uint64_t arg, oc_status *st) {
  return w->hook && w->hook(w, entry, arg, st);
}

static oc_status written(struct wrap *w, const char *entry, uint64_t arg, oc_status st) {
  pthread_mutex_lock(&w->lock);
  if (w->count < WRAP_LOG) w->log[w->count] = (struct wrap_call){entry, arg, st};
  w->count++;
  pthread_mutex_unlock(&w->lock);
  return st;
}

/* Asks the hook, then the inner table, and writes the answer down. */
#define THROUGH(w, entry, arg, ...)                                                            \
  do {                                                                                         \
    oc_status st_;                                                                             \
    if (!answered(w, #entry, arg, &st_))                                                       \
      st_ = oc_backend_table((w)->inner)->entry(oc_backend_self((w)->inner), __VA_ARGS__);     \
    return written(w, #entry, arg, st_);                                                       \
  } while (0)
#define P(x) ((uint64_t)(uintptr_t)(x))

static oc_status w_alloc(void *w, size_t n, oc_devptr *out) { THROUGH((struct wrap *)w, alloc, n, n, out); }
static oc_status w_free(void *w, oc_devptr p) { THROUGH((struct wrap *)w, free, p, p); }
static oc_status w_module_load(void *w, const void *image, size_t n, oc_module *out) {
  THROUGH((struct wrap *)w, module_load, n, image, n, out);
}
static oc_status w_module_unload(void *w, oc_module m) { THROUGH((struct wrap *)w, module_unload, P(m), m); }
static oc_status w_module_function(void *w, oc_module m, const char *func, oc_kernel *out) {
  THROUGH((struct wrap *)w, module_function, P(m), m, func, out);
}
static oc_status w_alloc_managed(void *w, size_t n, oc_devptr *out) { THROUGH((struct wrap *)w, alloc_managed, n, n, out); }
static oc_status w_mem_info(void *w, size_t *f, size_t *t) { THROUGH((struct wrap *)w, mem_info, 0, f, t); }
static oc_status w_synchronize(void *w, oc_stream s) { THROUGH((struct wrap *)w, synchronize, P(s), s); }
static oc_status w_synchronize_all(void *self) {
  struct wrap *w = self;
  oc_status st;
  if (!answered(w, "synchronize_all", 0, &st))
    st = oc_backend_table(w->inner)->synchronize_all(oc_backend_self(w->inner));
  return written(w, "synchronize_all", 0, st);
}
static oc_status w_capturing(void *w, oc_stream s, bool *out) { THROUGH((struct wrap *)w, capturing, P(s), s, out); }
static oc_status w_event_create(void *w, oc_event *out) { THROUGH((struct wrap *)w, event_create, 0, out); }
static oc_status w_event_record(void *w, oc_event e, oc_stream s) { THROUGH((struct wrap *)w, event_record, P(s), e, s); }
static oc_status w_event_query(void *w, oc_event e) { THROUGH((struct wrap *)w, event_query, P(e), e); }
static oc_status w_event_wait(void *w, oc_stream s, oc_event e) { THROUGH((struct wrap *)w, event_wait, P(s), s, e); }
static oc_status w_event_destroy(void *w, oc_event e) { THROUGH((struct wrap *)w, event_destroy, P(e), e); }
static oc_status w_stream_create(void *w, oc_stream *out) { THROUGH((struct wrap *)w, stream_create, 0, out); }
static oc_status w_stream_destroy(void *w, oc_stream s) { THROUGH((struct wrap *)w, stream_destroy, P(s), s); }
static oc_status w_copy_h2d(void *w, oc_devptr d, const void *src, size_t n, oc_stream s) {
  THROUGH((struct wrap *)w, copy_h2d, d, d, src, n, s);
}
static oc_status w_copy_d2h(void *w, void *dst, oc_devptr src, size_t n, oc_stream s) {
  THROUGH((struct wrap *)w, copy_d2h, src, dst, src, n, s);
}
static oc_status w_copy_d2d(void *w, oc_devptr d, oc_devptr src, size_t n, oc_stream s) {
  THROUGH((struct wrap *)w, copy_d2d, d, d, src, n, s);
}
static oc_status w_memset(void *w, oc_devptr d, uint8_t v, size_t n, oc_stream s) {
  THROUGH((struct wrap *)w, memset, d, d, v, n, s);
}
static oc_status w_launch(void *w, oc_kernel k, const uint32_t g[3], const uint32_t b[3], uint32_t shared, oc_stream s,
                          void **params) {
  THROUGH((struct wrap *)w, launch, P(k), k, g, b, shared, s, params);
}
static const char *w_last_error(void *self) {
  struct wrap *w = self;
  return oc_backend_table(w->inner)->last_error(oc_backend_self(w->inner));
}
static void w_close(void *self) { ((struct wrap *)self)->closed++; }

oc_backend_ops wrap_table(void) {
  return (oc_backend_ops){
    .struct_size = sizeof(oc_backend_ops), .name = "wrapped", .alloc = w_alloc, .free = w_free,
    .module_load = w_module_load, .module_unload = w_module_unload, .module_function = w_module_function,
    .alloc_managed = w_alloc_managed, .mem_info = w_mem_info, .synchronize = w_synchronize,
    .synchronize_all = w_synchronize_all, .capturing = w_capturing, .event_create = w_event_create,
    .event_record = w_event_record, .event_query = w_event_query, .event_wait = w_event_wait,
    .event_destroy = w_event_destroy, .stream_create = w_stream_create, .stream_destroy = w_stream_destroy,
    .copy_h2d = w_copy_h2d, .copy_d2h = w_copy_d2h, .copy_d2d = w_copy_d2d, .memset = w_memset, .launch = w_launch,
    .last_error = w_last_error, .close = w_close,
  };
}

void wrap_open_ops(struct wrap *w, const struct fx_options *opt, const oc_backend_ops *ops) {
  memset(w, 0, sizeof *w);
  pthread_mutex_init(&w->lock, NULL);
  w->inner = fx_open(opt);
  ck_ok(oc_backend_create(ops, w, &w->outer));
}

void wrap_open(struct wrap *w, const struct fx_options *opt) {
  oc_backend_ops ops = wrap_table();
  wrap_open_ops(w, opt, &ops);
}

static void close_outer(struct wrap *w) {
  w->hook = NULL;
  ck_ok(oc_backend_close(w->outer));
  pthread_mutex_destroy(&w->lock);
}

void wrap_close(struct wrap *w) {
  close_outer(w);
  fx_close(w->inner);
}

void wrap_close_dirty(struct wrap *w) {
  close_outer(w);
  ck_ok(oc_backend_close(w->inner));
}

static unsigned logged(const struct wrap *w) { return w->count < WRAP_LOG ? w->count : WRAP_LOG; }

unsigned wrap_calls(struct wrap *w, const char *entry) {
  unsigned n = 0;
  pthread_mutex_lock(&w->lock);
  for (unsigned i = 0; i < logged(w); i++) n += strcmp(w->log[i].entry, entry) == 0;
  pthread_mutex_unlock(&w->lock);
  return n;
}

int wrap_at(struct wrap *w, const char *entry, unsigned nth) {
  int at = -1;
  pthread_mutex_lock(&w->lock);
  for (unsigned i = 0; i < logged(w) && at < 0; i++)
    if (strcmp(w->log[i].entry, entry) == 0 && --nth == 0) at = (int)i;
  pthread_mutex_unlock(&w->lock);
  return at;
}

int wrap_at_arg(struct wrap *w, const char *entry, uint64_t arg) {
  int at = -1;
  pthread_mutex_lock(&w->lock);
  for (unsigned i = 0; i < logged(w) && at < 0; i++)
    if (strcmp(w->log[i].entry, entry) == 0 && w->log[i].arg == arg) at = (int)i;
  pthread_mutex_unlock(&w->lock);
  return at;
}

void wrap_forget(struct wrap *w) {
  pthread_mutex_lock(&w->lock);
  w->count = 0;
  pthread_mutex_unlock(&w->lock);
}
