/* SPDX-License-Identifier: MIT */
/*
 * What the tests of derived weights start from.
 *
 * world: a backend and one model on it, with its parts at hand; owned by the test.
 * side:  a second thread that makes one blocking call, so that a test can see that it waits, and end the wait.
 * guarded: a side inside a guard, for a call to wait for.
 */
#ifndef TESTS_WORLD_H
#define TESTS_WORLD_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/fixture.h"

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)

struct world {
  oc_backend *b;
  oc_model *m;
  oc_derived *d;
  oc_pool *p;
};

static inline struct world world_on(oc_backend *b, oc_model_options opt) {
  oc_model *m = fx_model_opt(b, opt);
  return (struct world){b, m, oc_model_derived(m), oc_model_pool(m)};
}

static inline struct world world_open(void) {
  return world_on(fx_open(NULL), (oc_model_options){0});
}

/* The model ends well, every invariant holds, the device has nothing left. */
static inline void world_close(struct world *w) {
  ck_ok(oc_pool_check(w->p));
  ck_ok(oc_model_destroy(w->m));
  fx_close(w->b);
}

/* The same of a world in which the test has named a stream of its own. */
static inline void world_close_stream(struct world *w, oc_stream s) {
  ck_ok(oc_model_forget_stream(w->m, s));
  fx_stream_free(w->b, s);
  world_close(w);
}

static inline oc_devptr block_of(struct world *w, size_t bytes) {
  oc_devptr p = 0;
  ck_ok(oc_pool_alloc(w->p, bytes, 0, &p));
  return p;
}

static inline oc_pool_stats figures(struct world *w) {
  oc_pool_stats s = {.struct_size = sizeof s};
  ck_ok(oc_pool_get_stats(w->p, &s));
  return s;
}

static inline uint64_t live_blocks(struct world *w) { return figures(w).live_blocks; }

static inline void put(struct world *w, oc_kind kind, uint64_t key, uint64_t value) {
  ck_ok(oc_derived_insert_ptr(w->d, kind, key, value, NULL));
}

static inline void put_pair(struct world *w, uint64_t key, uint64_t first, uint64_t second) {
  const uint64_t v[2] = {first, second};
  ck_ok(oc_derived_insert_pair(w->d, OC_ROWWISE_FP8, key, v, NULL));
}

/* The value of a pointer kind; 0: a miss. */
static inline uint64_t value_of(struct world *w, oc_kind kind, uint64_t key) {
  uint64_t v = 0;
  oc_status st = oc_derived_get_ptr(w->d, kind, key, &v);
  ck_assert_msg(st == OC_OK || st == OC_MISS, "get_ptr: %s", oc_status_name(st));
  return v;
}

static inline bool has_pair(struct world *w, oc_kind kind, uint64_t key) {
  uint64_t v[2];
  oc_status st = oc_derived_get_pair(w->d, kind, key, v);
  ck_assert_msg(st == OC_OK || st == OC_MISS, "get_pair: %s", oc_status_name(st));
  return st == OC_OK;
}

/* A build of the caller's own, on its way. */
static inline oc_build *begin(struct world *w, oc_kind kind, uint64_t key) {
  oc_build *build = NULL;
  uint64_t out[2];
  ck_status(oc_derived_begin(w->d, kind, key, &build, out), OC_MISS);
  ck_assert_ptr_nonnull(build);
  return build;
}

static inline oc_devptr build_block(oc_build *build, size_t bytes) {
  oc_devptr p = 0;
  ck_ok(oc_build_alloc(build, bytes, 0, &p));
  return p;
}

static inline void commit_one(oc_build *build, uint64_t value) {
  const uint64_t v[2] = {value, 0};
  ck_ok(oc_build_commit(build, v, NULL));
}

/* ---- a second thread ---- */

struct side {
  pthread_t thread;
  void (*fn)(void *arg);
  void *arg;
  long tid;              /* atomic; 0: not begun */
  int done;              /* atomic */
};

static inline void *side_main(void *arg) {
  struct side *s = arg;
  __atomic_store_n(&s->tid, syscall(SYS_gettid), __ATOMIC_RELEASE);
  s->fn(s->arg);
  __atomic_store_n(&s->done, 1, __ATOMIC_RELEASE);
  return NULL;
}

static inline void side_start(struct side *s, void (*fn)(void *arg), void *arg) {
  *s = (struct side){.fn = fn, .arg = arg};
  ck_assert_int_eq(pthread_create(&s->thread, NULL, side_main, s), 0);
}

static inline bool side_done(struct side *s) { return __atomic_load_n(&s->done, __ATOMIC_ACQUIRE); }

/* The kernel says that the thread sleeps. */
static inline bool side_sleeps(struct side *s) {
  char path[64], line[512];
  long tid = __atomic_load_n(&s->tid, __ATOMIC_ACQUIRE);
  if (!tid) return false;
  snprintf(path, sizeof path, "/proc/self/task/%ld/stat", tid);
  FILE *f = fopen(path, "r");
  if (!f) return false;
  size_t n = fread(line, 1, sizeof line - 1, f);
  fclose(f);
  line[n] = 0;
  const char *state = strrchr(line, ')');
  return state && state[1] && state[2] == 'S';
}

/* It is inside its call and sleeps there (nobody else being in the library, it waits for something), and goes on to. */
static inline void side_waits(struct side *s) {
  for (unsigned in_a_row = 0; in_a_row < 3; in_a_row = side_sleeps(s) ? in_a_row + 1 : 0) {
    ck_assert_msg(!side_done(s), "the call should have waited");
    fx_msleep(2);
  }
  fx_msleep(10);
  ck_assert_msg(!side_done(s), "the call should have waited");
}

static inline void side_join(struct side *s) {
  fx_until(side_done(s));
  pthread_join(s->thread, NULL);
}

/* A side that is inside a guard until it is told to leave. */
struct guarded {
  struct side side;
  int in, leave;         /* atomic */
};

static inline void guarded_main(void *arg) {
  struct guarded *g = arg;
  oc_guard_enter();
  __atomic_store_n(&g->in, 1, __ATOMIC_RELEASE);
  fx_until(__atomic_load_n(&g->leave, __ATOMIC_ACQUIRE));
  oc_guard_leave();
}
static inline void guarded_start(struct guarded *g) {
  *g = (struct guarded){0};
  side_start(&g->side, guarded_main, g);
  fx_until(__atomic_load_n(&g->in, __ATOMIC_ACQUIRE));
}
static inline void guarded_end(struct guarded *g) {
  __atomic_store_n(&g->leave, 1, __ATOMIC_RELEASE);
  side_join(&g->side);
}

/* The blocking calls that sides make. */
struct call {
  struct world *w;
  oc_kind kind;
  uint64_t key;
  const uint64_t *keys;
  size_t n;
  oc_status status;
  uint64_t out[2];
  char words[256];
};

static inline void call_ended(struct call *c, oc_status st) {
  c->status = st;
  strncpy(c->words, oc_last_error(), sizeof c->words - 1);
}
static inline void call_invalidate(void *arg) {
  struct call *c = arg;
  call_ended(c, oc_derived_invalidate(c->w->d, c->key));
}
static inline void call_invalidate_n(void *arg) {
  struct call *c = arg;
  call_ended(c, oc_derived_invalidate_n(c->w->d, c->keys, c->n));
}
static inline void call_free(void *arg) {
  struct call *c = arg;
  call_ended(c, oc_pool_free(c->w->p, c->key));
}
static inline void call_release(void *arg) {
  struct call *c = arg;
  call_ended(c, oc_derived_release(c->w->d));
}
static inline void call_settle(void *arg) {
  struct call *c = arg;
  call_ended(c, oc_derived_settle(c->w->d));
}
static inline void call_teardown(void *arg) {
  struct call *c = arg;
  call_ended(c, oc_model_teardown(c->w->m, NULL));
}
/* begin, and if it is ours to build: abort. */
static inline void call_begin(void *arg) {
  struct call *c = arg;
  oc_build *b = NULL;
  call_ended(c, oc_derived_begin(c->w->d, c->kind, c->key, &b, c->out));
  if (b) oc_build_abort(b);
}

/* ---- a suite of one case ---- */

static inline Suite *world_suite(const char *name, TCase **tc) {
  Suite *s = suite_create(name);
  *tc = tcase_create(name);
  tcase_set_timeout(*tc, 60);
  suite_add_tcase(s, *tc);
  return s;
}

#endif
