/* SPDX-License-Identifier: MIT */
/*
 * The host backend as an engine sees it, through its table and the oc_host_ controls alone. Nothing here
 * waits by the clock to see that something happened; where something must not happen, the device is stalled,
 * not slow.
 */
#include "config.h"

#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "liboc/oc.h"
#include "tests/child.h"

#define MIB ((size_t)1 << 20)

/* ---- a device to test, and kernels for it ---- */

static oc_backend *b;
static const oc_backend_ops *t;
static void *self;
static oc_module module;
static oc_kernel k_add, k_append, k_gate, k_mask;

#define OK(call) ck_assert_msg((call) == OC_OK, #call ": %s", oc_last_error())
#define IS(call, status) ck_assert_int_eq(call, status)

static uint64_t load(const uint64_t *x) {
  return __atomic_load_n(x, __ATOMIC_ACQUIRE);
}

/* *(uint64_t *)p0 += p1 */
static void add(const oc_host_launch *l, void *const *p) {
  (void)l;
  __atomic_add_fetch(*(uint64_t *const *)p[0], *(const uint64_t *)p[1], __ATOMIC_RELEASE);
}

/* Appends p0 to the log. */
enum { LOG_MAX = 20000 };
static uint64_t logged[LOG_MAX], log_count;
static void append(const oc_host_launch *l, void *const *p) {
  (void)l;
  logged[log_count++ % LOG_MAX] = *(const uint64_t *)p[0];
}

/* Waits until *(uint64_t *)p0 is not 0. */
static void gate(const oc_host_launch *l, void *const *p) {
  (void)l;
  while (!load(*(uint64_t *const *)p[0])) nanosleep(&(struct timespec){0, 100000}, NULL);
}

/* Stores whether all signals are blocked on the worker. */
static void mask(const oc_host_launch *l, void *const *p) {
  (void)l;
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, NULL, &set);
  bool all = sigismember(&set, SIGINT) && sigismember(&set, SIGTERM) && sigismember(&set, SIGPROF) &&
             sigismember(&set, SIGCHLD) && sigismember(&set, SIGRTMIN + 1);
  __atomic_store_n(*(uint64_t *const *)p[0], all, __ATOMIC_RELEASE);
}

static const uint32_t sizes[] = {8, 8};
static const oc_host_function functions[] = {
    {"add", add, 2, sizes}, {"append", append, 1, sizes}, {"gate", gate, 1, sizes}, {"mask", mask, 1, sizes}};
static const oc_host_module image = {sizeof image, 4, functions};
static const uint32_t one[3] = {1, 1, 1};

static void open_with(const oc_host_options *opt) {
  OK(oc_backend_open_host(opt, &b));
  t = oc_backend_table(b);
  self = oc_backend_self(b);
  OK(t->module_load(self, &image, sizeof image, &module));
  OK(t->module_function(self, module, "add", &k_add));
  OK(t->module_function(self, module, "append", &k_append));
  OK(t->module_function(self, module, "gate", &k_gate));
  OK(t->module_function(self, module, "mask", &k_mask));
}

static void open_flags(uint32_t flags) {
  open_with(&(oc_host_options){sizeof(oc_host_options), flags, 64 * MIB, 64 * MIB});
}

static void open_default(void) {
  open_with(NULL);
}

static void close_it(void) {
  OK(oc_backend_close(b));
}

static oc_stream new_stream(void) {
  oc_stream s = NULL;
  OK(t->stream_create(self, &s));
  ck_assert_ptr_nonnull(s);
  return s;
}

static oc_event new_event(void) {
  oc_event e = NULL;
  OK(t->event_create(self, &e));
  ck_assert_ptr_nonnull(e);
  return e;
}

static void launch_add(oc_stream s, uint64_t *x, uint64_t n) {
  void *params[] = {&x, &n};
  OK(t->launch(self, k_add, one, one, 0, s, params));
}

static void launch_append(oc_stream s, uint64_t n) {
  void *params[] = {&n};
  OK(t->launch(self, k_append, one, one, 0, s, params));
}

static void launch_gate(oc_stream s, uint64_t *open) {
  void *params[] = {&open};
  OK(t->launch(self, k_gate, one, one, 0, s, params));
}

static void sync_stream(oc_stream s) {
  OK(t->synchronize(self, s));
}

static oc_host_stats stats(void) {
  oc_host_stats s = {.struct_size = sizeof s};
  OK(oc_host_get_stats(b, &s));
  return s;
}

static void has_words(const char *words) {
  ck_assert_msg(strstr(oc_last_error(), words) != NULL, "\"%s\" has no \"%s\"", oc_last_error(), words);
}

static int threads(void) {
  DIR *d = opendir("/proc/self/task");
  int n = 0;
  ck_assert_ptr_nonnull(d);
  while (readdir(d)) n++;
  closedir(d);
  return n - 2;
}

/* ---- asynchrony ---- */

START_TEST(launch_returns_before_the_kernel_runs) {
  uint64_t x = 0;
  OK(oc_host_stall(b, NULL, true));
  launch_add(NULL, &x, 1);
  ck_assert_uint_eq(load(&x), 0);
  ck_assert_uint_eq(stats().launches, 0);
  OK(oc_host_stall(b, NULL, false));
  sync_stream(NULL);
  ck_assert_uint_eq(load(&x), 1);
  ck_assert_uint_eq(stats().launches, 1);
}
END_TEST

/* The kernel can't end before the launch has returned. */
START_TEST(launch_does_not_wait_for_the_kernel) {
  uint64_t open = 0, x = 0;
  launch_gate(NULL, &open);
  launch_add(NULL, &x, 1);
  ck_assert_uint_eq(load(&x), 0);
  __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
  sync_stream(NULL);
  ck_assert_uint_eq(load(&x), 1);
}
END_TEST

START_TEST(a_stalled_stream_stops_no_other) {
  oc_stream s = new_stream(), other = new_stream();
  uint64_t x = 0, y = 0;
  OK(oc_host_stall(b, s, true));
  launch_add(s, &x, 1);
  launch_add(other, &y, 1);
  launch_add(NULL, &y, 1);
  sync_stream(other);
  sync_stream(NULL);
  ck_assert_uint_eq(load(&y), 2);
  ck_assert_uint_eq(load(&x), 0);

  OK(oc_host_stall(b, NULL, true));   /* nor does the default stream */
  launch_add(NULL, &y, 1);
  launch_add(other, &y, 10);
  sync_stream(other);
  ck_assert_uint_eq(load(&y), 12);
  OK(oc_host_stall(b, s, false));
  OK(oc_host_stall(b, NULL, false));
  OK(t->synchronize_all(self));
}
END_TEST

START_TEST(a_stream_runs_in_order) {
  oc_stream s = new_stream();
  for (uint64_t i = 0; i < LOG_MAX; i++) launch_append(s, i);
  sync_stream(s);
  ck_assert_uint_eq(log_count, LOG_MAX);
  for (uint64_t i = 0; i < LOG_MAX; i++)
    if (logged[i] != i) ck_abort_msg("place %ju: %ju", (uintmax_t)i, (uintmax_t)logged[i]);
}
END_TEST

START_TEST(parameters_are_copied_at_launch) {
  uint64_t x = 0, n = 5, *px = &x;
  void *params[] = {&px, &n};
  OK(oc_host_stall(b, NULL, true));
  OK(t->launch(self, k_add, one, one, 0, NULL, params));
  n = 100;
  px = NULL;
  params[0] = params[1] = NULL;
  OK(oc_host_stall(b, NULL, false));
  sync_stream(NULL);
  ck_assert_uint_eq(load(&x), 5);
}
END_TEST

static oc_host_launch seen_shape;
static bool params_aligned;
static struct { char c[5]; } seen_odd;
static uint16_t seen_short;
static void look(const oc_host_launch *l, void *const *p) {
  seen_shape = *l;
  params_aligned = ((uintptr_t)p[0] | (uintptr_t)p[1]) % 16 == 0;
  memcpy(&seen_odd, p[0], sizeof seen_odd);
  seen_short = *(const uint16_t *)p[1];
}

START_TEST(a_kernel_gets_shape_and_odd_parameters) {
  const uint32_t odd_sizes[] = {5, 2}, grid[3] = {1, 2, 3}, block[3] = {4, 5, 6};
  const oc_host_function f = {"look", look, 2, odd_sizes};
  const oc_host_module m = {sizeof m, 1, &f};
  uint16_t n = 0x1234;
  void *params[] = {"abcd", &n};
  oc_module loaded;
  oc_kernel k;
  OK(t->module_load(self, &m, sizeof m, &loaded));
  OK(t->module_function(self, loaded, "look", &k));
  OK(t->launch(self, k, grid, block, 7, NULL, params));
  sync_stream(NULL);
  const oc_host_launch want = {{1, 2, 3}, {4, 5, 6}, 7};
  ck_assert_mem_eq(&seen_shape, &want, sizeof want);
  ck_assert_str_eq(seen_odd.c, "abcd");
  ck_assert_uint_eq(seen_short, 0x1234);
  ck_assert(params_aligned);
}
END_TEST

/* A joined thread may show for a moment longer. */
static bool threads_come_to(int n) {
  for (int i = 0; i < 10000 && threads() != n; i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
  return threads() == n;
}

START_TEST(workers_start_at_first_use_and_end) {
  oc_stream s = new_stream(), other = new_stream();
  uint64_t x = 0, all_blocked = 0, *p = &all_blocked;
  void *params[] = {&p};
  launch_add(other, &x, 1);           /* a sanitizer's own thread comes with the first one */
  sync_stream(other);
  int before = threads();
  sync_stream(s);
  OK(oc_host_stall(b, s, true));
  OK(oc_host_stall(b, s, false));
  ck_assert_int_eq(threads(), before);
  launch_add(s, &x, 1);
  launch_add(NULL, &x, 1);
  ck_assert_int_eq(threads(), before + 2);
  OK(t->launch(self, k_mask, one, one, 0, s, params));
  sync_stream(s);
  ck_assert_uint_eq(all_blocked, 1);
  OK(t->stream_destroy(self, s));
  ck_assert(threads_come_to(before + 1));
  close_it();
  ck_assert(threads_come_to(before - 1));
  open_default();
}
END_TEST

START_TEST(copies_and_memset_are_queued) {
  oc_stream s = new_stream();
  oc_devptr p, q;
  char in[] = "the quick brown fox", out[sizeof in] = "";
  OK(t->alloc(self, 4096, &p));
  OK(t->alloc_managed(self, 4096, &q));
  OK(oc_host_stall(b, s, true));
  OK(t->memset(self, p, 0x11, 4096, s));
  OK(t->copy_h2d(self, p, in, sizeof in, s));
  OK(t->copy_d2d(self, q, p, 4096, s));
  OK(t->copy_d2h(self, out, q, sizeof out, s));
  ck_assert_int_eq(out[0], 0);
  ck_assert_int_eq(*(char *)(uintptr_t)p, 0);
  in[0] = 'T';                        /* not copied at the call: it must live until s has passed */
  OK(oc_host_stall(b, s, false));
  sync_stream(s);
  ck_assert_str_eq(out, "The quick brown fox");
  ck_assert_int_eq(((unsigned char *)(uintptr_t)q)[4095], 0x11);
  OK(t->copy_d2d(self, p + 1, p, 100, s));   /* overlapping */
  sync_stream(s);
  ck_assert_int_eq(memcmp((char *)(uintptr_t)p, "TThe quick", 10), 0);
}
END_TEST

START_TEST(synchronize_all_waits_for_every_stream) {
  enum { N = 8 };
  uint64_t x[N + 1] = {0};
  for (int i = 0; i < N; i++) {
    oc_stream s = new_stream();
    for (int n = 0; n < 1000; n++) launch_add(s, &x[i], 1);
    if (i % 2) OK(t->stream_destroy(self, s));
  }
  for (int n = 0; n < 1000; n++) launch_add(NULL, &x[N], 1);
  OK(t->synchronize_all(self));
  for (int i = 0; i <= N; i++) ck_assert_uint_eq(load(&x[i]), 1000);
}
END_TEST

/* ---- stepping ---- */

START_TEST(step_runs_so_many) {
  oc_stream s = new_stream();
  oc_event e = new_event();
  IS(oc_host_step(b, s, 1), OC_E_INVALID);
  has_words("not stalled");
  OK(oc_host_stall(b, s, true));
  OK(oc_host_step(b, s, 5));          /* nothing there */
  for (uint64_t i = 0; i < 10; i++) launch_append(s, i);
  OK(t->event_record(self, e, s));
  OK(oc_host_step(b, s, 1));
  ck_assert_uint_eq(log_count, 1);
  OK(oc_host_step(b, s, 0));
  OK(oc_host_step(b, s, 4));
  ck_assert_uint_eq(log_count, 5);
  OK(oc_host_step(b, s, 5));
  ck_assert_uint_eq(log_count, 10);
  IS(t->event_query(self, e), OC_MISS);
  OK(oc_host_step(b, s, 100));
  OK(t->event_query(self, e));
  launch_append(s, 10);               /* still stalled */
  OK(oc_host_stall(b, s, true));      /* no matter how often it is said */
  ck_assert_uint_eq(log_count, 10);
  OK(oc_host_stall(b, s, false));
  sync_stream(s);
  ck_assert_uint_eq(log_count, 11);
}
END_TEST

/* ---- events ---- */

START_TEST(events_order_streams) {
  oc_stream first = new_stream(), second = new_stream();
  oc_event e = new_event();
  uint64_t x = 0;
  OK(oc_host_stall(b, first, true));
  launch_append(first, 1);
  OK(t->event_record(self, e, first));
  OK(t->event_wait(self, second, e));
  launch_append(second, 2);
  launch_add(NULL, &x, 1);
  sync_stream(NULL);                  /* time for the second to go wrong */
  IS(t->event_query(self, e), OC_MISS);
  ck_assert_uint_eq(log_count, 0);
  OK(oc_host_stall(b, first, false));
  sync_stream(second);
  OK(t->event_query(self, e));
  ck_assert_uint_eq(log_count, 2);
  ck_assert_uint_eq(logged[0], 1);
  ck_assert_uint_eq(logged[1], 2);
}
END_TEST

START_TEST(an_event_never_recorded_is_done) {
  oc_stream s = new_stream();
  oc_event e = new_event();
  OK(t->event_query(self, e));
  OK(t->event_wait(self, s, e));
  sync_stream(s);
}
END_TEST

/* The last record counts for queries; a wait is for the record before it. */
START_TEST(events_can_be_recorded_again) {
  oc_stream s = new_stream(), stalled = new_stream(), waiting = new_stream(), later = new_stream();
  oc_event e = new_event();
  uint64_t x = 0, y = 0;
  OK(oc_host_stall(b, stalled, true));
  OK(t->event_record(self, e, s));
  OK(t->event_wait(self, waiting, e));
  launch_add(waiting, &x, 1);
  OK(t->event_record(self, e, stalled));
  OK(t->event_wait(self, later, e));
  launch_add(later, &y, 1);
  sync_stream(waiting);
  ck_assert_uint_eq(load(&x), 1);
  sync_stream(s);
  IS(t->event_query(self, e), OC_MISS);
  ck_assert_uint_eq(load(&y), 0);
  OK(t->event_record(self, e, s));    /* back: done soon, though the other record never was */
  sync_stream(s);
  OK(t->event_query(self, e));
  ck_assert_uint_eq(load(&y), 0);
  OK(oc_host_stall(b, stalled, false));
  sync_stream(later);
  ck_assert_uint_eq(load(&y), 1);
}
END_TEST

START_TEST(an_event_may_be_destroyed_while_in_use) {
  oc_stream first = new_stream(), second = new_stream();
  oc_event e = new_event();
  OK(oc_host_stall(b, first, true));
  launch_append(first, 1);
  OK(t->event_record(self, e, first));
  OK(t->event_wait(self, second, e));
  launch_append(second, 2);
  OK(t->event_destroy(self, e));
  IS(t->event_query(self, e), OC_E_INVALID);
  has_words("destroyed");
  IS(t->event_record(self, e, first), OC_E_INVALID);
  IS(t->event_wait(self, first, e), OC_E_INVALID);
  IS(t->event_destroy(self, e), OC_E_INVALID);
  oc_event other = new_event();       /* perhaps the same record: the wait is not touched */
  OK(t->event_record(self, other, NULL));
  sync_stream(NULL);
  ck_assert_uint_eq(log_count, 0);
  OK(oc_host_stall(b, first, false));
  sync_stream(second);
  ck_assert_uint_eq(logged[0], 1);
  ck_assert_uint_eq(logged[1], 2);
  ck_assert_uint_eq(stats().events, 1);
}
END_TEST

/* ---- streams that go ---- */

START_TEST(a_destroyed_stream_runs_its_queue) {
  oc_stream s = new_stream(), waiting = new_stream();
  oc_event e = new_event();
  uint64_t x = 0, open = 0;
  launch_gate(s, &open);
  launch_add(s, &x, 1);
  OK(t->event_record(self, e, s));
  OK(t->stream_destroy(self, s));     /* returns while the kernel runs */
  ck_assert_uint_eq(stats().streams, 1);
  IS(t->synchronize(self, s), OC_E_INVALID);
  has_words("destroyed");
  IS(t->stream_destroy(self, s), OC_E_INVALID);
  IS(t->event_query(self, e), OC_MISS);
  OK(t->event_wait(self, waiting, e));
  __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
  sync_stream(waiting);
  ck_assert_uint_eq(load(&x), 1);
  OK(t->event_query(self, e));
}
END_TEST

/* S27: the handle comes back while the old stream's work is still there. */
START_TEST(a_recycled_stream_is_another_stream) {
  uint64_t x = 0, y = 0;
  close_it();
  open_flags(OC_HOST_RECYCLE);
  oc_stream s = new_stream();
  OK(oc_host_stall(b, s, true));
  launch_add(s, &x, 1);
  OK(t->stream_destroy(self, s));
  oc_stream again = new_stream();
  ck_assert_ptr_eq(again, s);
  launch_add(again, &y, 1);
  sync_stream(again);
  ck_assert_uint_eq(load(&y), 1);
  ck_assert_uint_eq(load(&x), 0);
  OK(oc_host_step(b, s, 1));          /* the stalled one of the two */
  ck_assert_uint_eq(load(&x), 1);
  OK(oc_host_stall(b, s, false));
  OK(t->synchronize_all(self));
}
END_TEST

START_TEST(a_handle_does_not_come_back_by_itself) {
  oc_stream seen[200];
  oc_event seen_event[200];
  for (int i = 0; i < 200; i++) {
    seen[i] = new_stream();
    seen_event[i] = new_event();
    OK(t->stream_destroy(self, seen[i]));
    OK(t->event_destroy(self, seen_event[i]));
    for (int j = 0; j < i; j++) ck_assert(seen[j] != seen[i] && seen_event[j] != seen_event[i]);
  }
}
END_TEST

START_TEST(a_stalled_stream_can_be_destroyed) {
  oc_stream s = new_stream();
  uint64_t x = 0;
  OK(oc_host_stall(b, s, true));
  launch_add(s, &x, 1);
  launch_add(s, &x, 1);
  OK(t->stream_destroy(self, s));
  ck_assert_uint_eq(load(&x), 0);
  OK(oc_host_step(b, s, 1));
  ck_assert_uint_eq(load(&x), 1);
  IS(oc_host_stall(b, s, true), OC_E_INVALID);
  OK(oc_host_stall(b, s, false));
  OK(t->synchronize_all(self));
  ck_assert_uint_eq(load(&x), 2);
  IS(t->stream_destroy(self, NULL), OC_E_INVALID);
}
END_TEST

/* The new stream may have the old one's record inside: its capture is not the old one's. */
START_TEST(an_event_outlives_its_stream) {
  oc_stream s = new_stream();
  oc_event e = new_event();
  uint64_t x = 0;
  launch_add(NULL, &x, 1);            /* a sanitizer's own thread comes with the first one */
  int before = threads();
  launch_add(s, &x, 1);
  OK(t->event_record(self, e, s));
  sync_stream(s);
  OK(t->stream_destroy(self, s));
  ck_assert(threads_come_to(before));
  oc_stream next = new_stream();
  OK(oc_host_set_capturing(b, next, true));
  OK(t->event_query(self, e));
  OK(t->event_wait(self, NULL, e));
  sync_stream(NULL);
}
END_TEST

START_TEST(close_runs_what_was_queued) {
  oc_stream s = new_stream(), other = new_stream(), gone = new_stream();
  oc_event e = new_event();
  uint64_t x = 0;
  OK(oc_host_stall(b, s, true));
  OK(oc_host_stall(b, gone, true));
  OK(oc_host_stall(b, NULL, true));
  launch_add(s, &x, 1);
  launch_add(gone, &x, 10);
  OK(t->event_record(self, e, gone));
  OK(t->event_wait(self, NULL, e));
  launch_add(NULL, &x, 100);
  launch_add(other, &x, 1000);
  OK(t->stream_destroy(self, gone));
  close_it();
  ck_assert_uint_eq(load(&x), 1111);
  open_default();
}
END_TEST

/* ---- many threads ---- */

enum { THREADS = 8, LAUNCHES = 5000 };
static uint64_t total;

static void *launch_many(void *s) {
  oc_stream own = new_stream();
  oc_event e = new_event();
  for (int i = 0; i < LAUNCHES; i++) {
    launch_add(s, &total, 1);
    launch_add(own, &total, 1);
    if (i % 100 == 0) {
      OK(t->event_record(self, e, own));
      OK(t->event_wait(self, s, e));
    }
    if (i % 1000 == 0) sync_stream(i % 2000 ? own : (oc_stream)s);
  }
  OK(t->stream_destroy(self, own));
  OK(t->event_destroy(self, e));
  return NULL;
}

START_TEST(launches_from_many_threads_all_run) {
  pthread_t thread[THREADS];
  oc_stream s = new_stream();
  total = 0;
  for (int i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, launch_many, s), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  OK(t->synchronize_all(self));
  ck_assert_uint_eq(load(&total), 2 * THREADS * LAUNCHES);
  ck_assert_uint_eq(stats().launches, 2 * THREADS * LAUNCHES);
  ck_assert_uint_eq(stats().events, 0);
}
END_TEST

/* Launches race with the stream's end: each is refused or runs, none is lost or goes to the next stream. */
static oc_stream shared;
static uint64_t accepted;
static bool racing;

static void *launch_on_shared(void *arg) {
  uint64_t n = 1, *x = &total;
  void *params[] = {&x, &n};
  (void)arg;
  while (__atomic_load_n(&racing, __ATOMIC_RELAXED)) {
    oc_stream s = __atomic_load_n(&shared, __ATOMIC_RELAXED);
    if (t->launch(self, k_add, one, one, 0, s, params) == OC_OK)
      __atomic_add_fetch(&accepted, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void race_with_destroy(void) {
  pthread_t thread[3];
  total = accepted = 0;
  racing = true;
  __atomic_store_n(&shared, new_stream(), __ATOMIC_RELAXED);
  for (int i = 0; i < 3; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, launch_on_shared, NULL), 0);
  for (int i = 0; i < 100; i++) {
    oc_stream old = shared;
    for (uint64_t seen = load(&accepted); load(&accepted) == seen;) sched_yield();
    OK(t->stream_destroy(self, old));
    __atomic_store_n(&shared, new_stream(), __ATOMIC_RELAXED);
  }
  __atomic_store_n(&racing, false, __ATOMIC_RELAXED);
  for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
  OK(t->synchronize_all(self));
  ck_assert_uint_eq(load(&total), accepted);
  ck_assert_uint_eq(stats().streams, 1);
}

START_TEST(destroying_under_launches_loses_none) {
  race_with_destroy();
  close_it();
  open_flags(OC_HOST_RECYCLE);
  race_with_destroy();
}
END_TEST

/* Launches race with unloading: each runs, or is counted as stale; none does both, none crashes. */
static uint64_t refused;
static void *launch_until_stale(void *s) {
  uint64_t n = 1, *x = &total;
  void *params[] = {&x, &n};
  for (int i = 0; i < LAUNCHES; i++) {
    if (t->launch(self, k_add, one, one, 0, s, params) != OC_OK)
      __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

START_TEST(unloading_under_launches_is_seen) {
  pthread_t thread[4];
  oc_stream s = new_stream();
  total = refused = 0;
  OK(oc_host_stall(b, s, true));
  for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, launch_until_stale, s), 0);
  while (oc_host_calls(b, "launch") < LAUNCHES) sched_yield();
  OK(t->module_unload(self, module));
  OK(t->module_load(self, &image, sizeof image, &module));   /* the records are used again */
  for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
  OK(oc_host_stall(b, s, false));
  IS(t->synchronize(self, s), OC_E_BACKEND);
  ck_assert_uint_eq(load(&total) + stats().stale_launches, 4 * LAUNCHES);
  ck_assert_uint_eq(load(&total), 0);   /* all were queued behind the stall */
  ck_assert_uint_le(refused, stats().stale_launches);
}
END_TEST

/* ---- modules ---- */

START_TEST(a_stale_launch_is_refused_and_counted) {
  uint64_t x = 0, n = 1, *px = &x;
  void *params[] = {&px, &n};
  OK(oc_host_stall(b, NULL, true));
  launch_add(NULL, &x, 1);
  launch_add(NULL, &x, 1);
  OK(t->module_unload(self, module));
  IS(t->launch(self, k_add, one, one, 0, NULL, params), OC_E_INVALID);
  has_words("stale");
  ck_assert_uint_eq(stats().stale_launches, 1);
  OK(oc_host_stall(b, NULL, false));
  IS(t->synchronize(self, NULL), OC_E_BACKEND);
  has_words("add");
  has_words("unloaded");
  ck_assert_str_eq(t->last_error(self), oc_last_error());
  OK(t->synchronize(self, NULL));     /* told once */
  ck_assert_uint_eq(stats().stale_launches, 3);
  ck_assert_uint_eq(stats().launches, 0);
  ck_assert_uint_eq(x, 0);
  ck_assert_uint_eq(stats().modules, 0);

  oc_kernel fresh = NULL;             /* loaded again it is another kernel */
  OK(t->module_load(self, &image, sizeof image, &module));
  OK(t->module_function(self, module, "add", &fresh));
  ck_assert_ptr_ne(fresh, k_add);
  IS(t->launch(self, k_add, one, one, 0, NULL, params), OC_E_INVALID);
  OK(t->launch(self, fresh, one, one, 0, NULL, params));
  sync_stream(NULL);
  ck_assert_uint_eq(x, 1);
}
END_TEST

START_TEST(an_unknown_function_is_not_found) {
  oc_kernel k = k_gate, before = k;
  IS(t->module_function(self, module, "subtract", &k), OC_E_NOT_FOUND);
  has_words("subtract");
  ck_assert_ptr_eq(k, before);
  IS(t->module_function(self, module, NULL, &k), OC_E_INVALID);
  IS(t->module_function(self, module, "", &k), OC_E_NOT_FOUND);
  oc_kernel again = NULL;
  OK(t->module_function(self, module, "add", &again));
  ck_assert_ptr_eq(again, k_add);
}
END_TEST

/* The image may go, and so may its names and sizes. */
START_TEST(images_are_copied) {
  char name[] = "add";
  uint32_t own_sizes[] = {8, 8};
  oc_host_function f = {name, add, 2, own_sizes};
  oc_host_module m = {sizeof m, 1, &f};
  uint64_t x = 0, n = 3, *px = &x;
  void *params[] = {&px, &n};
  oc_module loaded;
  oc_kernel k;
  OK(t->module_load(self, &m, sizeof m, &loaded));
  memset(name, 'z', 3);
  memset(own_sizes, 0xff, sizeof own_sizes);
  memset(&f, 0, sizeof f);
  memset(&m, 0, sizeof m);
  OK(t->module_function(self, loaded, "add", &k));
  OK(t->launch(self, k, one, one, 0, NULL, params));
  sync_stream(NULL);
  ck_assert_uint_eq(x, 3);
}
END_TEST

START_TEST(bad_launches_are_refused) {
  uint64_t x = 0, n = 1, *px = &x;
  void *params[] = {&px, &n}, *missing[] = {&px, NULL};
  const uint32_t none[3] = {1, 0, 1};
  IS(t->launch(self, k_add, none, one, 0, NULL, params), OC_E_INVALID);
  IS(t->launch(self, k_add, one, none, 0, NULL, params), OC_E_INVALID);
  IS(t->launch(self, k_add, NULL, one, 0, NULL, params), OC_E_INVALID);
  IS(t->launch(self, k_add, one, NULL, 0, NULL, params), OC_E_INVALID);
  IS(t->launch(self, k_add, one, one, 0, NULL, NULL), OC_E_INVALID);
  IS(t->launch(self, k_add, one, one, 0, NULL, missing), OC_E_INVALID);
  has_words("parameter 1");
  IS(t->launch(self, NULL, one, one, 0, NULL, params), OC_E_INVALID);
  ck_assert_uint_eq(stats().stale_launches, 0);
  sync_stream(NULL);
  ck_assert_uint_eq(x, 0);
}
END_TEST

static uint64_t plain_runs;
static void plain(const oc_host_launch *l, void *const *p) {
  (void)l;
  (void)p;
  __atomic_add_fetch(&plain_runs, 1, __ATOMIC_RELEASE);
}

START_TEST(a_kernel_without_parameters_needs_none) {
  const oc_host_function f = {"plain", plain, 0, NULL};
  const oc_host_module m = {sizeof m, 1, &f};
  oc_module loaded;
  oc_kernel k;
  OK(t->module_load(self, &m, sizeof m, &loaded));
  OK(t->module_function(self, loaded, "plain", &k));
  OK(t->launch(self, k, one, one, 0, NULL, NULL));
  OK(t->launch(self, k, one, one, 0, NULL, (void *[]){NULL}));
  sync_stream(NULL);
  ck_assert_uint_eq(load(&plain_runs), 2);
}
END_TEST

START_TEST(bad_copies_are_refused) {
  oc_devptr p;
  char here = 7;
  OK(t->alloc(self, 256, &p));
  IS(t->copy_h2d(self, p, NULL, 1, NULL), OC_E_INVALID);
  has_words("source is NULL");
  IS(t->copy_d2h(self, NULL, p, 1, NULL), OC_E_INVALID);
  has_words("destination is NULL");
  IS(t->copy_h2d(self, 4096, &here, 1, NULL), OC_E_INVALID);
  IS(t->copy_d2h(self, &here, 4096, 1, NULL), OC_E_INVALID);
  IS(t->copy_d2d(self, 4096, p, 1, NULL), OC_E_INVALID);
  has_words("destination");
  IS(t->copy_d2d(self, p, 4096, 1, NULL), OC_E_INVALID);
  has_words("source");
  IS(t->memset(self, 4096, 1, 1, NULL), OC_E_INVALID);
  IS(t->memset(self, p, 1, 1, (oc_stream)&here), OC_E_INVALID);   /* no stream */
  OK(t->synchronize_all(self));
  ck_assert_int_eq(*(char *)(uintptr_t)p, 0);
  ck_assert_int_eq(here, 7);
}
END_TEST

/* G33: handles of nothing, and of other things. */
START_TEST(nonsense_is_refused) {
  uint64_t x = 0, n = 1, *px = &x;
  void *params[] = {&px, &n};
  oc_stream s = new_stream();
  oc_event e = new_event();
  const uintptr_t bad[] = {
      1, 2, 3, 16, 4096, UINTPTR_MAX, (uintptr_t)&x, (uintptr_t)e + 15, (uintptr_t)s + 16};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    oc_stream bs = (oc_stream)bad[i];
    oc_event be = (oc_event)bad[i];
    bool yes;
    oc_kernel k;
    IS(t->launch(self, k_add, one, one, 0, bs, params), OC_E_INVALID);
    IS(t->launch(self, (oc_kernel)bad[i], one, one, 0, s, params), OC_E_INVALID);
    IS(t->synchronize(self, bs), OC_E_INVALID);
    IS(t->capturing(self, bs, &yes), OC_E_INVALID);
    IS(t->event_record(self, e, bs), OC_E_INVALID);
    IS(t->event_record(self, be, s), OC_E_INVALID);
    IS(t->event_query(self, be), OC_E_INVALID);
    IS(t->event_wait(self, s, be), OC_E_INVALID);
    IS(t->event_destroy(self, be), OC_E_INVALID);
    IS(t->stream_destroy(self, bs), OC_E_INVALID);
    IS(t->module_unload(self, (oc_module)bad[i]), OC_E_INVALID);
    IS(t->module_function(self, (oc_module)bad[i], "add", &k), OC_E_INVALID);
    IS(oc_host_stall(b, bs, true), OC_E_INVALID);
    IS(oc_host_step(b, bs, 1), OC_E_INVALID);
    IS(oc_host_set_capturing(b, bs, true), OC_E_INVALID);
  }
  IS(t->event_query(self, NULL), OC_E_INVALID);
  IS(t->module_unload(self, NULL), OC_E_INVALID);
  IS(t->event_record(self, (oc_event)s, s), OC_E_INVALID);   /* a stream is no event */
  IS(t->alloc(self, 1, NULL), OC_E_INVALID);
  IS(t->alloc_managed(self, 1, NULL), OC_E_INVALID);
  IS(t->host_alloc(self, 1, NULL), OC_E_INVALID);
  IS(t->mem_info(self, NULL, NULL), OC_E_INVALID);
  size_t bytes = 7;
  IS(t->mem_info(self, &bytes, NULL), OC_E_INVALID);
  IS(t->mem_info(self, NULL, &bytes), OC_E_INVALID);
  ck_assert_uint_eq(bytes, 7);
  IS(t->capturing(self, s, NULL), OC_E_INVALID);
  IS(t->event_create(self, NULL), OC_E_INVALID);
  IS(t->stream_create(self, NULL), OC_E_INVALID);
  IS(t->module_load(self, &image, sizeof image, NULL), OC_E_INVALID);
  IS(t->module_function(self, module, "add", NULL), OC_E_INVALID);
}
END_TEST

/* ---- memory, as far as the table shows it ---- */

START_TEST(memory_is_counted) {
  size_t free_bytes, total_bytes;
  oc_devptr p, q;
  void *h;
  close_it();
  open_flags(0);
  OK(t->mem_info(self, &free_bytes, &total_bytes));
  ck_assert_uint_eq(free_bytes, 64 * MIB);
  ck_assert_uint_eq(total_bytes, 64 * MIB);
  OK(t->alloc(self, 1000, &p));
  OK(t->alloc_managed(self, 3 * MIB, &q));
  OK(t->host_alloc(self, MIB, &h));
  memset(h, 1, MIB);
  OK(t->mem_info(self, &free_bytes, &total_bytes));
  ck_assert_uint_eq(free_bytes, 64 * MIB - 1024);
  oc_host_stats s = stats();
  ck_assert_uint_eq(s.device_used, 1024);
  ck_assert_uint_eq(s.device_blocks, 1);
  ck_assert_uint_eq(s.managed_used, 3 * MIB);
  ck_assert_uint_eq(s.managed_blocks, 1);
  IS(t->alloc(self, 64 * MIB, &p), OC_E_DEVICE_NOMEM);
  void *none = &none;
  IS(t->host_alloc(self, 0, &none), OC_E_INVALID);
  has_words("0 bytes of page-locked host memory");
  ck_assert_ptr_eq(none, &none);
  IS(t->free(self, p + 8), OC_E_INVALID);
  has_words("inside");
  IS(t->host_free(self, (void *)(uintptr_t)p), OC_E_INVALID);
  IS(t->free(self, (oc_devptr)(uintptr_t)h), OC_E_INVALID);
  OK(t->free(self, p));
  IS(t->free(self, p), OC_E_INVALID);
  OK(t->free(self, q));
  OK(t->host_free(self, h));
  IS(t->host_free(self, h), OC_E_INVALID);
  s = stats();
  ck_assert_uint_eq(s.bad_frees, 5);
  ck_assert_uint_eq(s.device_used + s.managed_used + s.device_blocks + s.managed_blocks, 0);
}
END_TEST

START_TEST(flags_do_what_they_say) {
  oc_devptr p, q;
  close_it();
  open_flags(OC_HOST_POISON | OC_HOST_CHUNKS | OC_HOST_RECYCLE);
  ck_assert_uint_eq(stats().flags, OC_HOST_POISON | OC_HOST_CHUNKS | OC_HOST_RECYCLE);
  OK(t->alloc(self, 800 << 10, &p));
  ck_assert_uint_eq(stats().device_used, MIB);
  ck_assert_int_eq(*(unsigned char *)(uintptr_t)p, 0xA5);
  OK(t->free(self, p));
  OK(t->alloc(self, 800 << 10, &q));
  ck_assert_uint_eq(q, p);
  oc_event e = new_event();
  OK(t->event_destroy(self, e));
  ck_assert_ptr_eq(new_event(), e);
  close_it();

  open_flags(OC_HOST_NO_MANAGED | OC_HOST_NO_EVENTS);
  ck_assert(!t->alloc_managed);
  ck_assert(!t->event_create && !t->event_record && !t->event_query && !t->event_wait && !t->event_destroy);
  ck_assert(t->alloc && t->synchronize && t->launch);
}
END_TEST

START_TEST(defaults_are_as_documented) {
  size_t free_bytes, total_bytes;
  oc_devptr p;
  OK(t->mem_info(self, &free_bytes, &total_bytes));
  ck_assert_uint_eq(total_bytes, (size_t)16 << 30);
  OK(t->alloc_managed(self, (size_t)64 << 30, &p));
  IS(t->alloc_managed(self, 1, &p), OC_E_DEVICE_NOMEM);
  ck_assert_str_eq(t->name, "host");
  ck_assert(!t->kernel);
}
END_TEST

START_TEST(bad_options_are_refused) {
  struct { oc_host_options o; uint64_t tail; } longer = {{sizeof longer, 0, 0, 0}, 0};
  oc_backend *other = NULL;
  OK(oc_backend_open_host(&longer.o, &other));
  OK(oc_backend_close(other));
  other = NULL;
  longer.tail = 1;
  IS(oc_backend_open_host(&longer.o, &other), OC_E_INVALID);
  IS(oc_backend_open_host(&(oc_host_options){.struct_size = 8}, &other), OC_E_INVALID);
  IS(oc_backend_open_host(&(oc_host_options){sizeof(oc_host_options), 1u << 31, 0, 0}, &other), OC_E_INVALID);
  has_words("unknown flags");
  ck_assert_ptr_null(other);
  IS(oc_backend_open_host(NULL, NULL), OC_E_INVALID);
}
END_TEST

/* ---- controls ---- */

START_TEST(calls_can_be_made_to_fail) {
  oc_devptr p = 7;
  OK(oc_host_fail(b, "alloc", 2, 2, OC_E_DEVICE_LOST));
  OK(t->alloc(self, 1, &p));
  oc_devptr kept = p;
  IS(t->alloc(self, 1, &p), OC_E_DEVICE_LOST);
  has_words("alloc");
  has_words("ordered to fail");
  ck_assert_uint_eq(p, kept);
  IS(t->alloc(self, 1, &p), OC_E_DEVICE_LOST);
  OK(t->alloc(self, 1, &p));
  ck_assert_uint_eq(stats().device_blocks, 2);

  OK(oc_host_fail(b, "free", 1, 0, OC_E_BACKEND));   /* all from now on */
  for (int i = 0; i < 100; i++) IS(t->free(self, p), OC_E_BACKEND);
  ck_assert_uint_eq(stats().bad_frees, 0);
  OK(oc_host_fail(b, "free", 0, 0, OC_OK));          /* taken back */
  OK(t->free(self, p));
  OK(t->free(self, kept));

  OK(oc_host_fail(b, "alloc", UINT64_MAX, UINT64_MAX, OC_E_BACKEND));
  OK(t->alloc(self, 1, &p));
}
END_TEST

/* X(entry, arguments). The handles are of nothing: what is ordered to fail does not look at them. */
static oc_devptr out_ptr;
static void *out_host;
static size_t out_sizes[2];
static bool out_yes;
static oc_event out_event;
static oc_stream out_stream;
static oc_module out_module;
static oc_kernel out_kernel;
#define ENTRIES(X)                                                                                                          \
  X(alloc, 1, &out_ptr) X(free, 4096) X(module_load, &image, sizeof image, &out_module) X(module_unload, NULL)              \
  X(module_function, NULL, "add", &out_kernel) X(alloc_managed, 1, &out_ptr) X(mem_info, &out_sizes[0], &out_sizes[1])      \
  X(synchronize, NULL) X(synchronize_all) X(capturing, NULL, &out_yes) X(event_create, &out_event)                          \
  X(event_record, NULL, NULL) X(event_query, NULL) X(event_wait, NULL, NULL) X(event_destroy, NULL)                         \
  X(stream_create, &out_stream) X(stream_destroy, NULL) X(copy_h2d, 4096, "x", 1, NULL)                                     \
  X(copy_d2h, &out_sizes[0], 4096, 1, NULL) X(copy_d2d, 4096, 8192, 1, NULL) X(memset, 4096, 7, 1, NULL)                    \
  X(host_alloc, 1, &out_host) X(host_free, NULL) X(launch, NULL, one, one, 0, NULL, NULL)

#define CALL_ENTRY(entry, ...) \
  static oc_status call_##entry(void) { return t->entry(self, ##__VA_ARGS__); }
ENTRIES(CALL_ENTRY)
#define NAME_ENTRY(entry, ...) {#entry, call_##entry},
static const struct { const char *name; oc_status (*call)(void); } entries[] = {ENTRIES(NAME_ENTRY)};

/* Each says so with its name, is counted and has touched nothing. */
START_TEST(each_entry_can_be_made_to_fail) {
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
    uint64_t calls = oc_host_calls(b, entries[i].name);
    OK(oc_host_fail(b, entries[i].name, 1, 1, OC_E_IO));
    oc_status st = entries[i].call();
    ck_assert_msg(st == OC_E_IO, "%s: %s", entries[i].name, oc_status_name(st));
    has_words(entries[i].name);
    ck_assert_uint_eq(oc_host_calls(b, entries[i].name), calls + 1);
  }
  ck_assert(!out_ptr && !out_host && !out_sizes[0] && !out_sizes[1] && !out_yes && !out_event && !out_stream && !out_module &&
            !out_kernel);
  oc_host_stats s = stats();
  ck_assert_uint_eq(s.device_blocks + s.managed_blocks + s.streams + s.events + s.launches + s.bad_frees, 0);
  ck_assert_uint_eq(s.modules, 1);
}
END_TEST

/* S5: a driver that answers success and has nothing. */
START_TEST(a_success_can_be_empty) {
  oc_kernel k = k_add;
  oc_devptr p = 7;
  size_t free_bytes = 7, total_bytes = 7;
  OK(oc_host_fail(b, "module_function", 1, 1, OC_OK));
  OK(t->module_function(self, module, "add", &k));
  ck_assert_ptr_null(k);
  OK(oc_host_fail(b, "alloc", 1, 1, OC_OK));
  OK(t->alloc(self, 1, &p));
  ck_assert_uint_eq(p, 0);
  OK(oc_host_fail(b, "mem_info", 1, 1, OC_OK));
  OK(t->mem_info(self, &free_bytes, &total_bytes));
  ck_assert_uint_eq(free_bytes + total_bytes, 0);
  ck_assert_uint_eq(stats().device_blocks, 0);
  OK(t->alloc(self, 1, &p));
  OK(oc_host_fail(b, "free", 1, 1, OC_OK));   /* one without an output: it has done nothing */
  OK(t->free(self, p));
  ck_assert_uint_eq(stats().device_blocks, 1);
  OK(t->free(self, p));
}
END_TEST

static uint64_t now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

START_TEST(calls_can_be_made_slow) {
  bool yes;
  OK(oc_host_delay(b, "capturing", 30000000));
  uint64_t from = now_ns();
  OK(t->capturing(self, NULL, &yes));
  ck_assert_uint_ge(now_ns() - from, 30000000);
  OK(oc_host_delay(b, "capturing", (uint64_t)3600 * 1000000000u));
  OK(oc_host_delay(b, "capturing", 0));
  OK(t->capturing(self, NULL, &yes));
}
END_TEST

static unsigned signals;
static void count_signal(int s) {
  (void)s;
  __atomic_add_fetch(&signals, 1, __ATOMIC_RELAXED);
}
static void *send_signals(void *target) {
  for (int i = 0; i < 5; i++) {
    nanosleep(&(struct timespec){0, 3000000}, NULL);
    pthread_kill(*(pthread_t *)target, SIGUSR1);
  }
  return NULL;
}

/* A signal that comes meanwhile does not end the delay. */
START_TEST(slow_calls_outlast_signals) {
  const struct sigaction on = {.sa_handler = count_signal};   /* no SA_RESTART */
  struct sigaction was;
  pthread_t me = pthread_self(), sender;
  bool yes;
  ck_assert_int_eq(sigaction(SIGUSR1, &on, &was), 0);
  OK(oc_host_delay(b, "capturing", 50000000));
  uint64_t from = now_ns();
  ck_assert_int_eq(pthread_create(&sender, NULL, send_signals, &me), 0);
  OK(t->capturing(self, NULL, &yes));
  ck_assert_uint_ge(now_ns() - from, 50000000);
  pthread_join(sender, NULL);
  ck_assert_uint_gt(signals, 0);
  ck_assert_int_eq(sigaction(SIGUSR1, &was, NULL), 0);
}
END_TEST

START_TEST(calls_are_counted) {
  oc_devptr p;
  bool yes;
  ck_assert_uint_eq(oc_host_calls(b, "module_function"), 4);
  ck_assert_uint_eq(oc_host_calls(b, "alloc"), 0);
  uint64_t before = stats().calls;
  OK(t->alloc(self, 1, &p));
  OK(oc_host_fail(b, "alloc", 1, 1, OC_E_BACKEND));
  IS(t->alloc(self, 1, &p), OC_E_BACKEND);
  OK(t->free(self, p));
  OK(t->capturing(self, NULL, &yes));
  ck_assert_uint_eq(oc_host_calls(b, "alloc"), 2);
  ck_assert_uint_eq(oc_host_calls(b, "free"), 1);
  ck_assert_uint_eq(stats().calls, before + 4);
  ck_assert_uint_eq(oc_host_calls(b, "cuMemAlloc"), 0);
  ck_assert_uint_eq(oc_host_calls(b, NULL), 0);
  ck_assert_uint_eq(oc_host_calls(NULL, "alloc"), 0);
  IS(oc_host_fail(b, "close", 1, 1, OC_E_BACKEND), OC_E_NOT_FOUND);
  IS(oc_host_fail(b, NULL, 1, 1, OC_E_BACKEND), OC_E_INVALID);
  IS(oc_host_delay(b, "allocate", 1), OC_E_NOT_FOUND);
  has_words("allocate");
}
END_TEST

/* G28: what a device refuses on a stream that captures. */
START_TEST(a_capturing_stream_refuses_and_records_away) {
  oc_stream s = new_stream(), other = new_stream();
  oc_event e = new_event(), before = new_event();
  oc_devptr p;
  uint64_t x = 0;
  bool yes = true;
  OK(t->alloc(self, 100, &p));
  OK(t->event_record(self, before, s));
  sync_stream(s);
  OK(t->capturing(self, s, &yes));
  ck_assert(!yes);
  OK(oc_host_set_capturing(b, s, true));
  OK(t->capturing(self, s, &yes));
  ck_assert(yes);
  OK(t->capturing(self, other, &yes));
  ck_assert(!yes);
  launch_add(s, &x, 1);
  OK(t->memset(self, p, 1, 100, s));
  IS(t->event_record(self, e, s), OC_E_BACKEND);
  has_words("capturing");
  IS(t->event_wait(self, s, e), OC_E_BACKEND);
  IS(t->event_query(self, before), OC_E_BACKEND);
  IS(t->event_wait(self, other, before), OC_E_BACKEND);
  IS(t->synchronize(self, s), OC_E_BACKEND);
  IS(t->synchronize_all(self), OC_E_BACKEND);
  launch_add(other, &x, 10);          /* others are not concerned */
  OK(t->event_record(self, e, other));
  sync_stream(other);
  OK(t->event_query(self, e));
  OK(oc_host_set_capturing(b, s, false));
  OK(t->capturing(self, s, &yes));
  ck_assert(!yes);
  OK(t->event_query(self, before));
  launch_add(s, &x, 100);
  OK(t->synchronize_all(self));
  ck_assert_uint_eq(x, 110);
  ck_assert_int_eq(*(char *)(uintptr_t)p, 0);
}
END_TEST

START_TEST(stats_fill_what_the_caller_has) {
  struct { oc_host_stats s; uint64_t after; } own = {{.struct_size = offsetof(oc_host_stats, modules)}, 7};
  oc_devptr p;
  OK(t->alloc(self, 1, &p));
  own.s.modules = 77;
  OK(oc_host_get_stats(b, &own.s));
  ck_assert_uint_eq(own.s.device_blocks, 1);
  ck_assert_uint_eq(own.s.modules, 77);
  own.s.struct_size = sizeof own;
  OK(oc_host_get_stats(b, &own.s));
  ck_assert_uint_eq(own.s.modules, 1);
  ck_assert_uint_eq(own.after, 7);
  own.s.struct_size = 0;
  IS(oc_host_get_stats(b, &own.s), OC_E_INVALID);
  IS(oc_host_get_stats(b, NULL), OC_E_INVALID);
}
END_TEST

static oc_status no_alloc(void *own, size_t bytes, oc_devptr *out) {
  (void)own;
  (void)bytes;
  (void)out;
  return OC_E_DEVICE_NOMEM;
}

static oc_status no_free(void *own, oc_devptr p) {
  (void)own;
  (void)p;
  return OC_E_INVALID;
}

START_TEST(controls_are_for_host_backends) {
  const oc_backend_ops ops = {.struct_size = sizeof ops, .name = "mine", .alloc = no_alloc, .free = no_free};
  oc_backend *mine;
  oc_host_stats s = {.struct_size = sizeof s};
  OK(oc_backend_create(&ops, NULL, &mine));
  IS(oc_host_get_stats(mine, &s), OC_E_INVALID);
  has_words("mine");
  IS(oc_host_stall(mine, NULL, true), OC_E_INVALID);
  IS(oc_host_step(mine, NULL, 1), OC_E_INVALID);
  IS(oc_host_fail(mine, "alloc", 1, 1, OC_E_BACKEND), OC_E_INVALID);
  IS(oc_host_delay(mine, "alloc", 1), OC_E_INVALID);
  IS(oc_host_set_capturing(mine, NULL, true), OC_E_INVALID);
  ck_assert_uint_eq(oc_host_calls(mine, "alloc"), 0);
  IS(oc_host_stall(NULL, NULL, true), OC_E_INVALID);
  IS(oc_host_get_stats(NULL, &s), OC_E_INVALID);
  OK(oc_backend_close(mine));
}
END_TEST

/* ThreadSanitizer starts no threads after such a fork. */
#ifndef OC_TSAN

/* G32: the parent's device is refused in a child, with its work still queued; a new one works there. */
static int in_child(uint64_t *x) {
  oc_devptr p;
  uint64_t y = 0;
  if (t->alloc(self, 1, &p) != OC_E_FORKED || t->synchronize(self, NULL) != OC_E_FORKED) return 1;
  if (oc_host_stall(b, NULL, false) != OC_E_FORKED || oc_host_calls(b, "alloc") != 0) return 2;
  if (oc_backend_close(b) != OC_E_FORKED) return 3;
  open_default();
  launch_add(NULL, &y, 1);
  launch_add(new_stream(), &y, 1);
  if (t->synchronize_all(self) != OC_OK || y != 2 || *x != 0) return 4;
  return oc_backend_close(b) == OC_OK ? 0 : 5;
}

START_TEST(a_child_gets_a_device_of_its_own) {
  uint64_t x = 0;
  int status = 0;
  launch_add(NULL, &x, 0); /* a worker that starts may hold AddressSanitizer's locks: not while we fork */
  sync_stream(NULL);
  OK(oc_host_stall(b, NULL, true));
  launch_add(NULL, &x, 1);
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) child_end(in_child(&x));
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_msg(WIFEXITED(status), "signal %d", WTERMSIG(status));
  ck_assert_int_eq(WEXITSTATUS(status), 0);
  OK(oc_host_stall(b, NULL, false));
  sync_stream(NULL);
  ck_assert_uint_eq(x, 1);
}
END_TEST

#endif

#define TESTS(...) add_tests(c, (const TTest *const[]){__VA_ARGS__, NULL})
static void add_tests(TCase *c, const TTest *const *test) {
  for (; *test; test++) tcase_add_test(c, *test);
}

static TCase *new_case(Suite *s, const char *name) {
  TCase *c = tcase_create(name);
  tcase_add_checked_fixture(c, open_default, close_it);
  tcase_set_timeout(c, 30);
  suite_add_tcase(s, c);
  return c;
}

static Suite *host_suite(void) {
  Suite *s = suite_create("host backend");
  TCase *c = new_case(s, "asynchrony");
  TESTS(launch_returns_before_the_kernel_runs, launch_does_not_wait_for_the_kernel,
        a_stalled_stream_stops_no_other, a_stream_runs_in_order, parameters_are_copied_at_launch,
        a_kernel_gets_shape_and_odd_parameters, workers_start_at_first_use_and_end,
        copies_and_memset_are_queued, synchronize_all_waits_for_every_stream, step_runs_so_many);
  c = new_case(s, "events");
  TESTS(events_order_streams, an_event_never_recorded_is_done, events_can_be_recorded_again,
        an_event_may_be_destroyed_while_in_use);
  c = new_case(s, "streams that go");
  TESTS(a_destroyed_stream_runs_its_queue, a_recycled_stream_is_another_stream,
        a_handle_does_not_come_back_by_itself, a_stalled_stream_can_be_destroyed,
        an_event_outlives_its_stream, close_runs_what_was_queued);
  c = new_case(s, "threads");
  TESTS(launches_from_many_threads_all_run, destroying_under_launches_loses_none,
        unloading_under_launches_is_seen);
  c = new_case(s, "modules");
  TESTS(a_stale_launch_is_refused_and_counted, an_unknown_function_is_not_found, images_are_copied,
        bad_launches_are_refused, a_kernel_without_parameters_needs_none, bad_copies_are_refused, nonsense_is_refused);
  c = new_case(s, "memory and options");
  TESTS(memory_is_counted, flags_do_what_they_say, defaults_are_as_documented, bad_options_are_refused);
  c = new_case(s, "controls");
  TESTS(calls_can_be_made_to_fail, each_entry_can_be_made_to_fail, a_success_can_be_empty, calls_can_be_made_slow,
        slow_calls_outlast_signals, calls_are_counted,
        a_capturing_stream_refuses_and_records_away, stats_fill_what_the_caller_has,
        controls_are_for_host_backends);
#ifndef OC_TSAN
  c = new_case(s, "fork");
  TESTS(a_child_gets_a_device_of_its_own);
#endif
  return s;
}

int main(void) {
  SRunner *r = srunner_create(host_suite());
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? 1 : 0;
}
