/* SPDX-License-Identifier: MIT */
/*
 * The library in a process: fork (G32), signals and threads (G30). A child says what it found by its exit status: 0, or the
 * number of the line that was not right, as far as eight bits go; it prints the line too.
 */
#include "config.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/child.h"
#include "tests/fixture.h"

#define MiB ((size_t)1 << 20)

/* In a child there is no Check. */
#define child_check(cond)                                                                                     \
  do {                                                                                                        \
    if (cond) break;                                                                                          \
    fprintf(stderr, "child: line %d: %s: %s\n", __LINE__, #cond, oc_last_error());                            \
    _exit(__LINE__ % 255 + 1);                                                                                \
  } while (0)
#define child_forked(call) child_check((call) == OC_E_FORKED)

static void in_child(void (*fn)(void *arg), void *arg) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);   /* a hang is a death by SIGALRM */
    fn(arg);
    child_end(0);
  }
  int status;
  ck_assert_int_gt(pid, 0);   /* not before: another thread may have had Check's lock when the child was made */
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status 0x%x", (unsigned)status);
}

/* ---- what a child of the process may not do, and may ---- */

struct parent {
  oc_backend *b;
  oc_model *m;
  oc_build *build;
  oc_report *report;
  oc_devptr p;
  oc_kernel_key kernel;
  oc_tag_key tag;
  oc_stream s;
};

static oc_status no_release(void *self, oc_backend *b) {
  (void)self;
  (void)b;
  return OC_OK;
}
static oc_status no_build(oc_build *b, void *arg, uint64_t *out) {
  (void)arg;
  return oc_build_alloc(b, 256, 0, out);
}
static oc_status no_pair(oc_build *b, void *arg, uint64_t out[2]) {
  (void)arg;
  return oc_build_alloc(b, 256, 0, out);
}

static void open_parent(struct parent *t) {
  oc_kernel k;
  oc_devptr p;
  uint64_t out[2];
  *t = (struct parent){.b = fx_open(NULL), .kernel = OC_KERNEL_KEY("test", "add"), .tag = OC_TAG_KEY("act")};
  t->m = fx_model(t->b);
  t->s = fx_stream(t->b);
  fx_load(t->m, "test");
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(t->m), &t->kernel, &k));
  ck_ok(oc_opcache_scratch_k(oc_model_opcache(t->m), &t->tag, 4096, &p));
  ck_ok(oc_opcache_scratch_on_k(oc_model_opcache(t->m), &t->tag, t->s, 4096, &p));
  ck_ok(oc_pool_alloc(oc_model_pool(t->m), 4096, 0, &t->p));
  ck_ok(oc_pool_alloc(oc_model_pool(t->m), 4096, 0, &p));
  ck_ok(oc_derived_insert_ptr(oc_model_derived(t->m), OC_BF16, 1, p, NULL));
  ck_status(oc_derived_begin(oc_model_derived(t->m), OC_BF16, 2, &t->build, out), OC_MISS);
  fx_launch_add(t->b, k, t->s, p, 1);
}

static void close_parent(struct parent *t) {
  oc_build_abort(t->build);
  ck_ok(oc_model_destroy(t->m));
  fx_stream_free(t->b, t->s);
  fx_close(t->b);
}

static void forked_hits(struct parent *t) {
  oc_opcache *c = oc_model_opcache(t->m);
  oc_derived *d = oc_model_derived(t->m);
  oc_kernel k;
  oc_devptr p;
  uint64_t v[2];
  child_forked(oc_model_enter(t->m));
  child_forked(oc_opcache_kernel(c, "test", "add", &k));
  child_forked(oc_opcache_kernel_k(c, &t->kernel, &k));
  child_forked(oc_opcache_scratch(c, "act", 16, &p));
  child_forked(oc_opcache_scratch_k(c, &t->tag, 16, &p));
  child_forked(oc_opcache_scratch_on(c, "act", t->s, 16, &p));
  child_forked(oc_opcache_scratch_on_k(c, &t->tag, t->s, 16, &p));
  child_forked(oc_derived_get_ptr(d, OC_BF16, 1, v));
  child_forked(oc_derived_get_ptr_on(d, OC_BF16, 1, t->s, v));
  child_forked(oc_derived_get_pair(d, OC_ROWWISE_FP8, 1, v));
  child_forked(oc_derived_get_pair_on(d, OC_ROWWISE_FP8, 1, t->s, v));
  child_check(!oc_opcache_once(c, "new") && !oc_opcache_once_k(c, &t->tag));
  child_check(!oc_opcache_first_n(c, "new", 3) && !oc_opcache_first_n_k(c, &t->tag, 3));
  child_check(!oc_opcache_first_shape(c, "new", 1, 2, 3) && !oc_opcache_first_shape_k(c, &t->tag, 1, 2, 3));
}

static void forked_model(struct parent *t) {
  oc_model *m = t->m, *other = NULL;
  oc_module h;
  oc_report *r = (oc_report *)&r;
  int image = 0;
  const oc_resource_ops ops = {sizeof ops, "x", no_release};
  child_forked(oc_model_create(t->b, NULL, &other));
  child_forked(oc_model_load_module(m, "x", &image, sizeof image));
  child_forked(oc_model_adopt_module(m, "x", (oc_module)&image));
  child_forked(oc_model_module(m, "test", &h));
  child_forked(oc_model_retain(m, "x"));
  child_forked(oc_model_release_hold(m, "x"));
  child_forked(oc_model_use_stream(m, t->s));
  child_forked(oc_model_forget_stream(m, t->s));
  child_forked(oc_model_push(m, &ops, &image));
  child_forked(oc_model_pop(m, &image));
  child_forked(oc_capture_enter(m, t->s));
  oc_capture_leave(m);
  child_forked(oc_model_graphs_gone(m));
  child_forked(oc_model_teardown(m, &r));
  child_check(r == NULL);
  child_forked(oc_model_destroy(m));
  child_forked(oc_backend_close(t->b));
  child_check(oc_model_generation(m) != 0);
  char text[8000];
  child_check(oc_metrics_prometheus(text, sizeof text) > 0 && !strstr(text, "model="));   /* none is this process's */
}

static void forked_rest(struct parent *t) {
  oc_opcache *c = oc_model_opcache(t->m);
  oc_derived *d = oc_model_derived(t->m);
  oc_pool *p = oc_model_pool(t->m);
  oc_kernel_key *keys[] = {&t->kernel};
  oc_devptr q;
  uint64_t v[2] = {t->p, 0}, key = 1;
  oc_build *build;
  char text[200];
  oc_pool_stats s = {.struct_size = sizeof s};
  child_forked(oc_opcache_warm(c, keys, 1));
  child_forked(oc_opcache_release(c));
  oc_opcache_note_alloc_fallback(c);
  child_check(!oc_opcache_alloc_fell_back(c));
  child_check(oc_opcache_describe(c, text, sizeof text) >= 0 && oc_derived_describe(d, text, sizeof text) >= 0);
  child_forked(oc_derived_insert_ptr(d, OC_BF16, 7, t->p, NULL));
  child_forked(oc_derived_insert_pair(d, OC_ROWWISE_FP8, 7, v, NULL));
  child_forked(oc_derived_begin(d, OC_BF16, 9, &build, v));
  child_forked(oc_derived_get_or_build_ptr(d, OC_BF16, 9, no_build, NULL, v));
  child_forked(oc_derived_get_or_build_pair(d, OC_ROWWISE_FP8, 9, no_pair, NULL, v));
  child_forked(oc_build_alloc(t->build, 256, 0, &q));
  child_forked(oc_build_on_stream(t->build, t->s));
  child_forked(oc_build_commit(t->build, v, NULL));
  oc_build_abort(t->build);
  child_forked(oc_derived_settle(d));
  child_forked(oc_derived_invalidate(d, 1));
  child_forked(oc_derived_invalidate_n(d, &key, 1));
  child_forked(oc_derived_release(d));
  child_forked(oc_pool_alloc(p, 256, 0, &q));
  child_forked(oc_pool_alloc_owned(p, "x", 256, 0, &q));
  child_forked(oc_pool_free(p, t->p));
  child_forked(oc_pool_free_on(p, t->p, t->s));
  child_forked(oc_pool_note_external(p, 1 << 20, 256, "x"));
  child_forked(oc_pool_forget_external(p, 1 << 20));
  child_forked(oc_pool_get_stats(p, &s));
  oc_model_stats counts = {.struct_size = sizeof counts};
  child_forked(oc_model_get_stats(t->m, &counts));
  child_forked(oc_pool_check(p));
  child_check(oc_pool_report_text(p, 0) == NULL && oc_pool_report_json(p) == NULL);
  child_check(strstr(oc_last_error(), "parent") != NULL);
}

/* What the embedded device's own table says when it is called past the library. */
static void forked_table(struct parent *t) {
  if (fx_which() != FX_HOST) return;
  const oc_backend_ops *ops = oc_backend_table(t->b);
  void *self = oc_backend_self(t->b);
  const uint32_t one[3] = {1, 1, 1};
  oc_devptr p;
  void *host;
  size_t sizes[2];
  bool capturing;
  oc_event e;
  oc_stream s2;
  oc_module m;
  oc_kernel k;
  oc_host_stats s = {.struct_size = sizeof s};
  child_forked(ops->alloc(self, 4096, &p));
  child_forked(ops->alloc_managed(self, 4096, &p));
  child_forked(ops->free(self, t->p));
  child_forked(ops->host_alloc(self, 64, &host));
  child_forked(ops->host_free(self, sizes));
  child_forked(ops->mem_info(self, &sizes[0], &sizes[1]));
  child_forked(ops->module_load(self, sizes, sizeof sizes, &m));
  child_forked(ops->module_unload(self, NULL));
  child_forked(ops->module_function(self, NULL, "add", &k));
  child_forked(ops->launch(self, NULL, one, one, 0, t->s, NULL));
  child_forked(ops->synchronize(self, t->s));
  child_forked(ops->synchronize_all(self));
  child_forked(ops->capturing(self, t->s, &capturing));
  child_forked(ops->event_create(self, &e));
  child_forked(ops->event_record(self, NULL, t->s));
  child_forked(ops->event_query(self, NULL));
  child_forked(ops->event_wait(self, t->s, NULL));
  child_forked(ops->event_destroy(self, NULL));
  child_forked(ops->stream_create(self, &s2));
  child_forked(ops->stream_destroy(self, t->s));
  child_forked(ops->copy_h2d(self, t->p, "x", 1, t->s));
  child_forked(ops->copy_d2h(self, sizes, t->p, 1, t->s));
  child_forked(ops->copy_d2d(self, t->p, t->p, 1, t->s));
  child_forked(ops->memset(self, t->p, 0, 16, t->s));
  child_forked(oc_host_get_stats(t->b, &s));
  child_forked(oc_host_stall(t->b, t->s, true));
  child_forked(oc_host_step(t->b, t->s, 1));
  child_forked(oc_host_fail(t->b, "alloc", 1, 1, OC_E_IO));
  child_forked(oc_host_delay(t->b, "alloc", 1));
  child_forked(oc_host_set_capturing(t->b, t->s, true));
  child_check(oc_host_calls(t->b, "alloc") == 0);
}

/* A whole life on a backend of the child's own. */
static void own_life(void) {
  oc_backend *b;
  oc_model *m;
  oc_devptr p;
  uint64_t v;
  child_check(oc_backend_open_host(NULL, &b) == OC_OK);
  child_check(oc_model_create(b, NULL, &m) == OC_OK);
  child_check(oc_opcache_scratch_on(oc_model_opcache(m), "act", NULL, 4096, &p) == OC_OK);
#ifndef __SANITIZE_THREAD__   /* which lets no thread start in a child of several, and a stream's worker is one */
  child_check(oc_backend_table(b)->memset(oc_backend_self(b), p, 7, 16, NULL) == OC_OK);
#endif
  child_check(oc_derived_get_or_build_ptr(oc_model_derived(m), OC_BF16, 9, no_build, NULL, &v) == OC_OK);
  child_check(oc_model_enter(m) == OC_OK);
  child_check(oc_derived_get_ptr(oc_model_derived(m), OC_BF16, 9, &v) == OC_OK);
  oc_model_leave(m);
  child_check(oc_derived_invalidate(oc_model_derived(m), 9) == OC_OK);   /* a grace period ends */
  oc_kind kind;
  child_check(oc_kind_register("child's", OC_PTR, &kind) == OC_OK);
  child_check(oc_model_destroy(m) == OC_OK);
  child_check(oc_backend_close(b) == OC_OK);
}

static void check_child(void *arg) {
  struct parent *t = arg;
  forked_hits(t);
  forked_model(t);
  forked_rest(t);
  forked_table(t);
  own_life();
  forked_hits(t);
}

static void check_parent(struct parent *t) {
  oc_kernel k;
  oc_devptr p;
  ck_ok(oc_model_enter(t->m));
  ck_ok(oc_opcache_kernel_k(oc_model_opcache(t->m), &t->kernel, &k));
  oc_model_leave(t->m);
  ck_ok(oc_opcache_scratch(oc_model_opcache(t->m), "more", 4096, &p));
  fx_launch_add(t->b, k, t->s, p, 1);
  fx_sync(t->b, t->s);
}

START_TEST(g32_every_call_in_a_child_is_forked_and_a_new_backend_works) {
  struct parent t;
  open_parent(&t);
  in_child(check_child, &t);
  check_parent(&t);
  in_child(check_child, &t);
  close_parent(&t);
}
END_TEST

/* After the parent's model is torn down: FORKED still, not RELEASED. */
START_TEST(g32_of_a_model_torn_down) {
  struct parent t;
  open_parent(&t);
  oc_build_abort(t.build);
  ck_ok(oc_model_teardown(t.m, &t.report));
  in_child((void (*)(void *))forked_hits, &t);
  in_child((void (*)(void *))forked_model, &t);
  oc_report_free(t.report);
  ck_ok(oc_model_destroy(t.m));
  fx_stream_free(t.b, t.s);
  fx_close(t.b);
}
END_TEST

/* A child in which this thread is in a capture: the capture was the parent's. */
START_TEST(g32_a_capture_stays_behind) {
  struct parent t;
  open_parent(&t);
  ck_ok(oc_capture_enter(t.m, t.s));
  in_child(check_child, &t);
  oc_capture_leave(t.m);
  close_parent(&t);
}
END_TEST

/* A grandchild of two parents. */
static void child_with_child(void *arg) {
  struct parent *t = arg;
  oc_backend *b;
  oc_model *m;
  child_check(oc_backend_open_host(NULL, &b) == OC_OK && oc_model_create(b, NULL, &m) == OC_OK);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    child_forked(oc_model_enter(m));
    child_forked(oc_backend_close(b));
    check_child(t);
    child_end(0);
  }
  int status;
  child_check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  child_check(oc_model_destroy(m) == OC_OK && oc_backend_close(b) == OC_OK);
}
START_TEST(g32_grandchildren) {
  struct parent t;
  open_parent(&t);
  in_child(child_with_child, &t);
  close_parent(&t);
}
END_TEST

/* The child's part of a build function that forks: its value is nobody's, and the build is the parent's. */
struct forker {
  pid_t pid;
};
static oc_status fork_in_build(oc_build *b, void *arg, uint64_t *out) {
  struct forker *f = arg;
  fflush(NULL);
  f->pid = fork();
  if (f->pid) return oc_build_alloc(b, 256, 0, out);
  alarm(60);
  *out = 4096;
  return OC_OK;
}
START_TEST(g32_inside_a_build_function) {
  struct parent t;
  struct forker f = {0};
  uint64_t v = 77;
  int status;
  open_parent(&t);
  oc_status st = oc_derived_get_or_build_ptr(oc_model_derived(t.m), OC_BF16, 77, fork_in_build, &f, &v);
  if (f.pid == 0) {
    child_check(st == OC_E_FORKED && v == 77);
    forked_hits(&t);
    own_life();
    child_end(0);
  }
  ck_ok(st);
  ck_assert_int_eq(waitpid(f.pid, &status, 0), f.pid);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status 0x%x", (unsigned)status);
  ck_ok(oc_derived_get_ptr(oc_model_derived(t.m), OC_BF16, 77, &v));
  close_parent(&t);
}
END_TEST

/* A trace is its process's: the child has none, and may have its own. */
static oc_status count_text(void *arg, const char *json, size_t n) {
  *(size_t *)arg += n;
  return json ? OC_OK : OC_E_IO;
}
static void trace_in_child(void *arg) {
  size_t bytes = 0;
  (void)arg;
  child_check(oc_trace_stop(NULL, NULL) == OC_E_NOT_FOUND);
  own_life();
  child_check(oc_trace_start(NULL) == OC_OK);
  own_life();
  child_check(oc_trace_stop(count_text, &bytes) == OC_OK);
  child_check(bytes > 500);   /* more than the head of one that is empty */
}
START_TEST(g32_a_trace_stays_behind) {
  struct parent t;
  size_t before = 0;
  ck_ok(oc_trace_start(NULL));
  open_parent(&t);
  in_child(trace_in_child, NULL);
  check_parent(&t);
  ck_ok(oc_trace_stop(count_text, &before));
  ck_assert_uint_gt(before, 500);
  close_parent(&t);
}
END_TEST

/* ---- what other threads are at when the fork comes ---- */

struct other {
  struct parent *t;
  pthread_t thread;
  bool in, leave;
  oc_status st;
};
static bool is_in(struct other *o) { return __atomic_load_n(&o->in, __ATOMIC_ACQUIRE); }
static void *sit_in_guard(void *arg) {
  struct other *o = arg;
  ck_ok(oc_model_enter(o->t->m));
  __atomic_store_n(&o->in, true, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&o->leave, __ATOMIC_ACQUIRE)) fx_msleep(1);
  oc_model_leave(o->t->m);
  return NULL;
}
static void start(struct other *o, struct parent *t, void *(*fn)(void *)) {
  *o = (struct other){.t = t};
  ck_assert_int_eq(pthread_create(&o->thread, NULL, fn, o), 0);
}
static void stop(struct other *o) {
  __atomic_store_n(&o->leave, true, __ATOMIC_RELEASE);
  pthread_join(o->thread, NULL);
}

START_TEST(g32_while_another_thread_is_in_a_guard) {
  struct parent t;
  struct other o;
  open_parent(&t);
  start(&o, &t, sit_in_guard);
  fx_until(is_in(&o));
  in_child(check_child, &t);   /* its grace periods end, although that guard never does there */
  stop(&o);
  check_parent(&t);
  close_parent(&t);
}
END_TEST

static void *wait_for_guards(void *arg) {
  struct other *o = arg;
  o->st = oc_derived_invalidate(oc_model_derived(o->t->m), 1);
  return NULL;
}

/* Two threads wait for each other's ends through this one: fork must come back, whatever the child can then do. */
static void check_unlucky_child(void *arg) {
  struct parent *t = arg;
  oc_backend *b;
  forked_hits(t);
  forked_model(t);
  oc_status st = oc_backend_open_host(NULL, &b);
  child_check(st == OC_OK || st == OC_E_FORKED);
}
START_TEST(g32_while_a_thread_waits_for_a_guard_that_waits_for_us) {
  struct parent t;
  struct other guard, waiter;
  open_parent(&t);
  start(&guard, &t, sit_in_guard);
  fx_until(is_in(&guard));
  start(&waiter, &t, wait_for_guards);
  fx_until(oc_derived_len(oc_model_derived(t.m)) == 0);   /* unpublished: it waits for the guard now */
  fx_msleep(20);
  in_child(check_unlucky_child, &t);
  stop(&guard);
  pthread_join(waiter.thread, NULL);
  ck_ok(waiter.st);
  in_child(check_child, &t);
  check_parent(&t);
  close_parent(&t);
}
END_TEST

/* Nobody could ever wait for that guard's end there. */
static void check_useless_child(void *arg) {
  struct parent *t = arg;
  oc_backend *b;
  forked_hits(t);
  forked_model(t);
  child_forked(oc_backend_open_host(NULL, &b));
  child_check(strstr(oc_last_error(), "forked inside a guard") != NULL);
}

/* This thread itself is in a guard. */
START_TEST(g32_inside_a_guard_of_our_own) {
  struct parent t;
  open_parent(&t);
  ck_ok(oc_model_enter(t.m));
  in_child(check_useless_child, &t);
  oc_model_leave(t.m);
  in_child(check_child, &t);
  close_parent(&t);
}
END_TEST

/* What such a child may not do, the parent's other threads may, all the while. */
static int forks_left;

static void *fork_inside_a_guard(void *arg) {
  for (; __atomic_load_n(&forks_left, __ATOMIC_RELAXED) > 0; __atomic_fetch_sub(&forks_left, 1, __ATOMIC_RELAXED)) {
    oc_guard_enter();
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    oc_guard_leave();
    if (pid > 0) waitpid(pid, NULL, 0);
  }
  return arg;
}

START_TEST(g32_others_open_while_one_forks_inside_a_guard) {
  pthread_t other;
  oc_backend *b;
  ck_ok(oc_backend_open_host(NULL, &b));
  ck_ok(oc_backend_close(b));
  forks_left = (int)fx_scale(400);
  ck_assert_int_eq(pthread_create(&other, NULL, fork_inside_a_guard, NULL), 0);
  while (__atomic_load_n(&forks_left, __ATOMIC_RELAXED) > 0) {
    ck_ok(oc_backend_open_host(NULL, &b));
    ck_ok(oc_backend_close(b));
  }
  pthread_join(other, NULL);
}
END_TEST

/* An unusable process's child is one, whatever its own fork waited for. */
static void fork_once_more(void *arg) {
  oc_guard_leave();
  pid_t pid = fork();
  if (pid == 0) check_useless_child(arg);
  if (pid == 0) _exit(0);
  int status = 1;
  child_check(waitpid(pid, &status, 0) == pid && status == 0);
}

START_TEST(g32_a_child_of_a_useless_child) {
  struct parent t;
  open_parent(&t);
  oc_guard_enter();
  in_child(fork_once_more, &t);
  oc_guard_leave();
  close_parent(&t);
}
END_TEST

START_TEST(g32_while_another_thread_waits_for_the_device) {
  if (!fx_can(FX_STALL)) { fx_skip("needs stalled streams"); return; }
  struct parent t;
  struct other o;
  open_parent(&t);
  fx_sync(t.b, t.s);
  fx_stall(t.b, t.s, true);
  ck_ok(oc_backend_table(t.b)->memset(oc_backend_self(t.b), t.p, 1, 16, t.s));
  uint64_t syncs = fx_calls(t.b, "synchronize");
  start(&o, &t, wait_for_guards);
  fx_until(fx_calls(t.b, "synchronize") > syncs);
  in_child(check_child, &t);
  fx_stall(t.b, t.s, false);
  stop(&o);
  ck_ok(o.st);
  close_parent(&t);
}
END_TEST

/* Threads in every lock there is, all the time; many forks. */
static void *busy(void *arg) {
  struct other *o = arg;
  oc_model *m = o->t->m;
  for (uint64_t n = 100; !__atomic_load_n(&o->leave, __ATOMIC_ACQUIRE); n++) {
    oc_devptr p;
    uint64_t v;
    char text[100], name[32];
    oc_kind kind;
    snprintf(name, sizeof name, "kind-%u", (unsigned)(n % 50));
    ck_ok(oc_pool_alloc(oc_model_pool(m), 3 * MiB, 0, &p));
    ck_ok(oc_pool_free_on(oc_model_pool(m), p, o->t->s));
    ck_ok(oc_derived_get_or_build_ptr(oc_model_derived(m), OC_BF16, n, no_build, NULL, &v));
    ck_ok(oc_derived_invalidate(oc_model_derived(m), n));
    ck_assert_int_ge(oc_opcache_describe(oc_model_opcache(m), text, sizeof text), 0);
    ck_ok(oc_kind_register(name, OC_PTR, &kind));
    ck_ok(oc_model_retain(m, name));
    ck_ok(oc_model_release_hold(m, name));
    oc_model *other = fx_model(o->t->b);
    ck_ok(oc_model_destroy(other));
    oc_guard_leave();   /* logs */
  }
  return NULL;
}
#ifdef __SANITIZE_THREAD__
#define FORKS 10
#else
#define FORKS 60
#endif
START_TEST(g32_while_other_threads_hold_locks) {
#ifdef __SANITIZE_ADDRESS__
  fx_skip("AddressSanitizer's allocator does not take its own locks around fork: a child may wait for one for ever");
  return;
#endif
  struct parent t;
  struct other o[3];
  open_parent(&t);
  for (int i = 0; i < 3; i++) start(&o[i], &t, busy);
  for (int i = 0; i < FORKS; i++) in_child(check_child, &t);
  for (int i = 0; i < 3; i++) stop(&o[i]);
  close_parent(&t);
}
END_TEST

/* ---- exit ---- */

static void exit_without_teardown(void *arg) {
  (void)arg;
  oc_backend *b;
  oc_model *m;
  oc_devptr p;
  child_check(oc_backend_open_host(NULL, &b) == OC_OK && oc_model_create(b, NULL, &m) == OC_OK);
  child_check(oc_opcache_scratch_on(oc_model_opcache(m), "act", NULL, 4096, &p) == OC_OK);
  child_check(oc_backend_table(b)->memset(oc_backend_self(b), p, 7, 16, NULL) == OC_OK);
  child_check(oc_model_enter(m) == OC_OK);
  exit(0);   /* destructors run, workers are alive, a guard is open */
}
START_TEST(s6_exit_without_teardown) { in_child(exit_without_teardown, NULL); }
END_TEST

/* ---- threads and descriptors (G30) ---- */

static size_t count_entries(const char *path) {
  DIR *d = opendir(path);
  size_t n = 0;
  while (d && readdir(d)) n++;
  if (d) closedir(d);
  return n;
}
static oc_status plain_alloc(void *self, size_t n, oc_devptr *out) {
  (void)self;
  (void)n;
  *out = (oc_devptr)1 << 40;
  return OC_OK;
}
static oc_status plain_free(void *self, oc_devptr p) {
  (void)self;
  (void)p;
  return OC_OK;
}
START_TEST(g30_no_thread_and_no_descriptor_of_our_own) {
  size_t threads = count_entries("/proc/self/task"), fds = count_entries("/proc/self/fd");
  const oc_backend_ops ops = {.struct_size = sizeof ops, .alloc = plain_alloc, .free = plain_free};
  oc_backend *b;
  oc_devptr p;
  uint64_t v;
  ck_ok(oc_backend_create(&ops, NULL, &b));
  oc_model *m = fx_model(b);
  ck_ok(oc_opcache_scratch(oc_model_opcache(m), "act", 4096, &p));
  ck_ok(oc_derived_get_or_build_ptr(oc_model_derived(m), OC_BF16, 9, no_build, NULL, &v));
  ck_ok(oc_derived_invalidate(oc_model_derived(m), 9));
  ck_assert_uint_eq(count_entries("/proc/self/task"), threads);
  ck_assert_uint_eq(count_entries("/proc/self/fd"), fds);
  ck_ok(oc_model_destroy(m));
  ck_ok(oc_backend_close(b));
  b = fx_open(NULL);
  if (fx_which() == FX_HOST) ck_assert_uint_eq(count_entries("/proc/self/task"), threads);   /* until a stream is used */
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("process");
  TCase *t = tcase_create("process");
  tcase_set_timeout(t, 60);
  suite_add_tcase(s, t);
  tcase_add_test(t, g32_every_call_in_a_child_is_forked_and_a_new_backend_works);
  tcase_add_test(t, g32_of_a_model_torn_down);
  tcase_add_test(t, g32_a_capture_stays_behind);
  tcase_add_test(t, g32_grandchildren);
  tcase_add_test(t, g32_while_another_thread_is_in_a_guard);
  tcase_add_test(t, g32_while_a_thread_waits_for_a_guard_that_waits_for_us);
  tcase_add_test(t, g32_inside_a_guard_of_our_own);
  tcase_add_test(t, g32_others_open_while_one_forks_inside_a_guard);
  tcase_add_test(t, g32_a_child_of_a_useless_child);
  tcase_add_test(t, g32_inside_a_build_function);
  tcase_add_test(t, g32_a_trace_stays_behind);
  tcase_add_test(t, g32_while_another_thread_waits_for_the_device);
  tcase_add_test(t, g32_while_other_threads_hold_locks);
  tcase_add_test(t, s6_exit_without_teardown);
  tcase_add_test(t, g30_no_thread_and_no_descriptor_of_our_own);
  return s;
}

int main(void) { return fx_run(suite()); }
