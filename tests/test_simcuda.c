/* SPDX-License-Identifier: MIT */
/* Each knob of the simulated driver bites, and its rules are the driver's. Calls it as an engine does, without liboc. */
#include "config.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/fixture.h"
#include "tests/fixture_cuda.h"
#include "tests/simcuda/simcuda.h"

#define MiB ((size_t)1 << 20)

#define cu(call, want) ck_assert_msg((call) == (want), "%s is not %d", #call, (int)(want))
#define yes(call) cu(call, CU_OK)

static const struct cuda_driver *d;
static const struct cuda_more *x;
static const struct simcuda *sim;

static void find_driver(void) {
  d = cuda_direct();
  x = cuda_more();
  sim = simcuda_find();
  ck_assert_msg(d && x && sim, "this test runs over the simulated driver: by test_simcuda.cuda");
}

/* The primary context of a device, current. */
static cu_context begin_on(int ordinal, const struct simcuda_options *o) {
  cu_context c;
  find_driver();
  sim->simcuda_set_devices(2);
  ck_assert(sim->simcuda_configure(ordinal, o));
  yes(d->init(0));
  yes(d->primary_retain(&c, ordinal));
  yes(d->context_push(c));
  ck_assert(sim->simcuda_forget(ordinal));
  ck_assert(sim->simcuda_forget(SIMCUDA_ANY));
  return c;
}

static cu_context begin(void) { return begin_on(0, NULL); }

static void end(void) {
  cu_context c;
  yes(d->context_pop(&c));
  yes(d->primary_release(0));
}

static cu_deviceptr alloc(size_t bytes) {
  cu_deviceptr p = 0;
  yes(d->mem_alloc(&p, bytes));
  return p;
}

static cu_stream new_stream(unsigned flags) {
  cu_stream s = NULL;
  yes(d->stream_create(&s, flags));
  return s;
}

static cu_event new_event(void) {
  cu_event e = NULL;
  yes(d->event_create(&e, CU_EVENT_NO_TIMING));
  return e;
}

static struct simcuda_stats stats(cu_context c) {
  struct simcuda_stats s = {0};
  ck_assert(sim->simcuda_read_stats(c, &s));
  return s;
}

/* ---- orders ---- */

START_TEST(nth_call_fails_with_the_code) {
  begin();
  cu_deviceptr p;
  ck_assert(sim->simcuda_fail(0, "cuMemAlloc_v2", 2, 2, CU_E_OUT_OF_MEMORY));
  alloc(1);
  cu(d->mem_alloc(&p, 1), CU_E_OUT_OF_MEMORY);
  cu(d->mem_alloc(&p, 1), CU_E_OUT_OF_MEMORY);
  alloc(1);
  ck_assert(sim->simcuda_fail(0, "cuMemAlloc_v2", 1, 0, 999));
  for (int i = 0; i < 5; i++) cu(d->mem_alloc(&p, 1), 999);
  ck_assert(sim->simcuda_fail(0, "cuMemAlloc_v2", 0, 0, 0));
  alloc(1);
  p = 7;
  ck_assert(sim->simcuda_fail(0, "cuMemAlloc_v2", 1, 1, CU_OK));   /* a success that is none */
  yes(d->mem_alloc(&p, 1));
  ck_assert_uint_eq(p, 0);
  ck_assert(sim->simcuda_fail(0, "cuMemAlloc_v2", 1, 0, 999));
  ck_assert(sim->simcuda_forget(0));
  alloc(1);
  ck_assert(!sim->simcuda_fail(0, "cuMemAlloc", 1, 1, 1));
  ck_assert(!sim->simcuda_fail(99, "cuMemAlloc_v2", 1, 1, 1));
  end();
}
END_TEST

START_TEST(orders_are_a_devices_own) {
  cu_context a = begin(), b;
  cu_deviceptr p;
  yes(d->primary_retain(&b, 1));
  ck_assert(sim->simcuda_fail(1, "cuMemAlloc_v2", 1, 0, CU_E_OUT_OF_MEMORY));
  alloc(1);
  yes(d->context_push(b));
  cu(d->mem_alloc(&p, 1), CU_E_OUT_OF_MEMORY);
  ck_assert_uint_eq(sim->simcuda_calls(0, "cuMemAlloc_v2"), 1);
  ck_assert_uint_eq(sim->simcuda_calls(1, "cuMemAlloc_v2"), 1);
  ck_assert_uint_eq(sim->simcuda_calls(SIMCUDA_ANY, "cuMemAlloc_v2"), 2);
  yes(d->context_pop(&b));
  ck_assert_ptr_ne(a, b);
  ck_assert_int_eq(sim->simcuda_ordinal(b), 1);
  yes(d->primary_release(1));
  end();
}
END_TEST

START_TEST(calls_take_long) {
  begin();
  struct timespec from, to;
  ck_assert(sim->simcuda_delay(0, "cuMemAlloc_v2", 50000000));
  clock_gettime(CLOCK_MONOTONIC, &from);
  alloc(1);
  clock_gettime(CLOCK_MONOTONIC, &to);
  ck_assert_int_ge((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000, 49);
  end();
}
END_TEST

/* Read at the first call, so each such test needs a process of its own. */
static bool own_process(void) {
  const char *fork_mode = getenv("CK_FORK");
  if (!fork_mode || strcmp(fork_mode, "no") != 0) return true;
  fx_skip("the environment is read once a process, and CK_FORK=no");
  return false;
}

START_TEST(orders_by_environment) {
  if (!own_process()) return;
  setenv("SIMCUDA_DEVICES", "3", 1);
  setenv("SIMCUDA_DEVICE_BYTES", "1048576", 1);
  setenv("SIMCUDA_RECYCLE", "1", 1);
  setenv("SIMCUDA_MANAGED", "fails", 1);
  setenv("SIMCUDA_INTEGRATED", "1", 1);
  setenv("SIMCUDA_MISSING_FUNCTION", "null", 1);
  setenv("SIMCUDA_FAIL", "cuMemAlloc_v2:2:1:700,cuEventCreate:1:0:2", 1);
  find_driver();
  cu_context c;
  cu_deviceptr p, q;
  cu_event e;
  cu_module m;
  cu_function f;
  int n;
  yes(d->init(0));
  yes(d->device_count(&n));
  ck_assert_int_eq(n, 3);
  yes(d->device_attribute(&n, CU_ATTRIBUTE_INTEGRATED, 2));
  ck_assert_int_eq(n, 1);
  yes(d->primary_retain(&c, 2));
  yes(d->context_push(c));
  p = alloc(4096);
  cu(d->mem_alloc(&q, 1), 700);
  cu(d->mem_alloc(&q, 2 * MiB), CU_E_OUT_OF_MEMORY);
  yes(d->mem_free(p));
  ck_assert_uint_eq(alloc(4096), p);
  cu(d->event_create(&e, 0), 2);
  cu(d->mem_alloc_managed(&q, 1, CU_ATTACH_GLOBAL), CU_E_NOT_SUPPORTED);
  yes(d->module_load(&m, ".version 6.3\n.target sm_75\n", 0, NULL, NULL));
  yes(d->module_function(&f, m, "none"));
  ck_assert_ptr_null(f);
}
END_TEST

START_TEST(a_setting_not_understood_aborts) {
  if (!own_process()) abort();
  setenv("SIMCUDA_FAIL", "cuMemAlloc:1:1:2", 1);   /* no such symbol */
  find_driver();
  (void)d->init(0);
}
END_TEST

/* ---- memory ---- */

START_TEST(addresses_come_back_where_wanted) {
  begin();
  cu_deviceptr p = alloc(MiB);
  yes(d->mem_free(p));
  ck_assert_uint_ne(alloc(MiB), p);
  end();
  begin_on(0, &(struct simcuda_options){.recycle = true});
  p = alloc(MiB);
  yes(d->mem_free(p));
  ck_assert_uint_eq(alloc(MiB), p);
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING);
  yes(d->stream_destroy(s));
  ck_assert_ptr_eq(new_stream(CU_STREAM_NONBLOCKING), s);
  cu_event e = new_event();
  yes(d->event_destroy(e));
  ck_assert_ptr_eq(new_event(), e);
  end();
}
END_TEST

START_TEST(memory_has_an_end_and_a_cost) {
  cu_context c = begin_on(0, &(struct simcuda_options){.device_bytes = 64 * MiB, .chunks = true});
  size_t left, total;
  cu_deviceptr p;
  alloc(1100 << 10);   /* one a chunk */
  ck_assert_uint_eq(stats(c).device_used, 2 * MiB);
  alloc(400 << 10);    /* five a chunk */
  ck_assert_uint_eq(stats(c).device_used, 2 * MiB + 2 * MiB / 5);
  yes(d->mem_info(&left, &total));
  ck_assert_uint_eq(total, 64 * MiB);
  ck_assert_uint_eq(left, total - stats(c).device_used);
  cu(d->mem_alloc(&p, 62 * MiB), CU_E_OUT_OF_MEMORY);
  alloc(60 * MiB);
  cu(d->mem_alloc(&p, 0), CU_E_INVALID_VALUE);
  end();
}
END_TEST

START_TEST(frees_are_checked) {
  cu_context c = begin();
  cu_deviceptr p = alloc(4096);
  void *h;
  cu(d->mem_free(p + 256), CU_E_INVALID_VALUE);
  yes(d->mem_free(p));
  cu(d->mem_free(p), CU_E_INVALID_VALUE);
  yes(d->mem_free(0));
  yes(d->host_alloc(&h, 100, CU_HOST_PORTABLE));
  memset(h, 1, 100);
  cu(d->mem_free((cu_deviceptr)(uintptr_t)h), CU_E_INVALID_VALUE);
  yes(d->host_free(h));
  ck_assert_uint_eq(stats(c).bad_frees, 3);
  end();
}
END_TEST

START_TEST(managed_memory_may_be_missing) {
  static const struct { enum simcuda_managed how; int managed, concurrent; cu_result answer; } cases[] = {
    {SIMCUDA_MANAGED_YES, 1, 1, CU_OK},
    {SIMCUDA_MANAGED_NO, 0, 0, CU_E_NOT_SUPPORTED},
    {SIMCUDA_MANAGED_FAILS, 1, 1, CU_E_NOT_SUPPORTED},
    {SIMCUDA_MANAGED_EXCLUSIVE, 1, 0, CU_OK}};
  for (size_t i = 0; i < 4; i++) {
    int managed, concurrent;
    cu_deviceptr p;
    begin_on(0, &(struct simcuda_options){.managed = cases[i].how, .managed_bytes = MiB});
    yes(d->device_attribute(&managed, CU_ATTRIBUTE_MANAGED_MEMORY, 0));
    yes(d->device_attribute(&concurrent, CU_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
    ck_assert_int_eq(managed, cases[i].managed);
    ck_assert_int_eq(concurrent, cases[i].concurrent);
    cu(d->mem_alloc_managed(&p, 4096, CU_ATTACH_GLOBAL), cases[i].answer);
    if (cases[i].answer == CU_OK) cu(d->mem_alloc_managed(&p, 2 * MiB, CU_ATTACH_GLOBAL), CU_E_OUT_OF_MEMORY);
    end();
  }
}
END_TEST

/* ---- modules ---- */

static cu_module load(void) {
  cu_module m = NULL;
  fx_open(NULL);   /* registers the kernels; on a device of its own */
  yes(d->module_load(&m, fxc_ptx, 0, NULL, NULL));
  return m;
}

static cu_function function(cu_module m, const char *name) {
  cu_function f = NULL;
  yes(d->module_function(&f, m, name));
  return f;
}

static cu_result run_add(cu_function f, cu_stream s, cu_deviceptr p, uint32_t n) {
  return d->launch(f, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){&p, &n}, NULL);
}

static uint32_t word_at(cu_deviceptr p, cu_stream s) {
  uint32_t v = 0;
  yes(d->copy_d2h(&v, p, sizeof v, s));
  yes(d->stream_synchronize(s));
  return v;
}

START_TEST(ptx_runs_registered_functions) {
  find_driver();
  sim->simcuda_set_devices(2);
  fx_open(NULL);
  begin_on(1, NULL);
  cu_module m = load();
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING);
  cu_deviceptr p = alloc(4096);
  yes(d->memset_d8(p, 0, 4096, s));
  yes(run_add(function(m, "add"), s, p, 5));
  yes(run_add(function(m, "add"), s, p, 6));
  ck_assert_uint_eq(word_at(p, s), 11);
  cu(d->launch(function(m, "add"), 0, 1, 1, 1, 1, 1, 0, s, (void *[]){&p, &p}, NULL), CU_E_INVALID_VALUE);
  cu(d->launch(function(m, "add"), 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), CU_E_INVALID_VALUE);
}
END_TEST

START_TEST(images_are_read) {
  static const struct { const char *text; cu_result answer; const char *log; } cases[] = {
    {".version 6.3\n.target sm_75\n", CU_OK, ""},
    {".target sm_75\n", CU_E_INVALID_PTX, ".version"},
    {".version 6.3\n", CU_E_INVALID_PTX, ".target"},
    {"", CU_E_INVALID_PTX, ".version"},
    {".version 6.3\n.target sm_75\n.visible .entry other()\n{ ret; }\n", CU_E_INVALID_SOURCE, "entry other"},
    {".version 6.3\n.target sm_75\n.entry add(.param .u64 p)\n{ ret; }\n", CU_E_INVALID_SOURCE, "1 parameters"},
    {".version 6.3\n.target sm_75\n// .entry other()\n/* .entry more() */\n", CU_OK, ""},
    {"\x50\xED\x55\xBA", CU_E_NO_BINARY_FOR_GPU, ""}};
  begin_on(1, NULL);
  fx_open(NULL);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char log[200] = "";
    cu_jit_option options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)sizeof log};
    cu_module m;
    cu_result r = d->module_load(&m, cases[i].text, 2, options, values);
    ck_assert_msg(r == cases[i].answer, "case %zu: %d", i, (int)r);
    ck_assert_msg(strstr(log, cases[i].log) != NULL, "case %zu: %s", i, log);
  }
}
END_TEST

START_TEST(a_missing_function_is_answered_as_told) {
  begin_on(1, NULL);
  cu_context c;
  yes(d->context_current(&c));
  cu_module m = load();
  cu_function f = NULL;
  cu(d->module_function(&f, m, "none"), CU_E_NOT_FOUND);
  sim->simcuda_missing_function(1);
  f = (cu_function)(uintptr_t)1;
  yes(d->module_function(&f, m, "none"));
  ck_assert_ptr_null(f);
  sim->simcuda_missing_function(2);
  yes(d->module_function(&f, m, "none"));
  ck_assert_ptr_nonnull(f);
  cu(run_add(f, NULL, 0, 0), CU_E_INVALID_HANDLE);
  cu(run_add(NULL, NULL, 0, 0), CU_E_INVALID_HANDLE);
  ck_assert_uint_eq(stats(c).bad_launches, 2);
  sim->simcuda_missing_function(0);
}
END_TEST

START_TEST(unloaded_functions_are_recognised) {
  begin_on(1, NULL);
  cu_context c;
  yes(d->context_current(&c));
  cu_module m = load();
  cu_function f = function(m, "add");
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING);
  cu_deviceptr p = alloc(4096);
  ck_assert(sim->simcuda_stall(c, s, true));
  yes(run_add(f, s, p, 1));
  yes(d->module_unload(m));
  cu(d->module_unload(m), CU_E_INVALID_HANDLE);
  cu(run_add(f, s, p, 1), CU_E_INVALID_HANDLE);
  ck_assert_uint_eq(stats(c).stale_launches, 1);
  ck_assert(sim->simcuda_stall(c, s, false));
  cu(d->stream_synchronize(s), CU_E_UNKNOWN);   /* the queued one was not run */
  ck_assert_uint_eq(stats(c).stale_launches, 2);
  ck_assert_uint_eq(stats(c).launches, 0);
}
END_TEST

/* ---- streams ---- */

START_TEST(queues_wait_to_be_stepped) {
  cu_context c = begin();
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING);
  cu_deviceptr p = alloc(4096);
  cu_event e = new_event();
  ck_assert(sim->simcuda_stall(c, s, true));
  yes(d->memset_d8(p, 1, 4, s));
  yes(d->event_record(e, s));
  yes(d->memset_d8(p, 2, 4, s));
  cu(d->event_query(e), CU_E_NOT_READY);
  cu(x->stream_query(s), CU_E_NOT_READY);
  ck_assert(sim->simcuda_step(c, s, 1));
  ck_assert_uint_eq(*(volatile uint8_t *)(uintptr_t)p, 1);
  cu(d->event_query(e), CU_E_NOT_READY);
  ck_assert(sim->simcuda_step(c, s, 1));
  yes(d->event_query(e));
  yes(x->event_synchronize(e));
  ck_assert_uint_eq(*(volatile uint8_t *)(uintptr_t)p, 1);
  ck_assert(sim->simcuda_stall(c, s, false));
  yes(d->stream_synchronize(s));
  ck_assert_uint_eq(*(volatile uint8_t *)(uintptr_t)p, 2);
  ck_assert(!sim->simcuda_step(c, s, 1));
  end();
}
END_TEST

/* ---- contexts ---- */

static void *without_context(void *arg) {
  cu_context c = (cu_context)(uintptr_t)1;
  cu_deviceptr p;
  (void)arg;
  yes(d->context_current(&c));
  ck_assert_ptr_null(c);
  cu(d->mem_alloc(&p, 1), CU_E_INVALID_CONTEXT);
  cu(d->context_synchronize(), CU_E_INVALID_CONTEXT);
  cu(d->context_pop(&c), CU_E_INVALID_CONTEXT);
  return NULL;
}

START_TEST(the_current_context_is_a_threads_own) {
  cu_context c = begin(), now;
  pthread_t t;
  pthread_create(&t, NULL, without_context, NULL);
  pthread_join(t, NULL);
  yes(d->context_current(&now));
  ck_assert_ptr_eq(now, c);
  yes(x->context_set(NULL));
  cu_deviceptr p;
  cu(d->mem_alloc(&p, 1), CU_E_INVALID_CONTEXT);
  yes(x->context_set(c));
  alloc(1);
  cu(x->context_set((cu_context)(uintptr_t)0x1234), CU_E_INVALID_CONTEXT);
  end();
}
END_TEST

START_TEST(handles_belong_to_their_context) {
  begin();
  cu_context b;
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING);
  cu_event e = new_event();
  cu_deviceptr p = alloc(1);
  yes(d->primary_retain(&b, 1));
  yes(d->context_push(b));
  new_stream(CU_STREAM_NONBLOCKING);   /* the same number there */
  new_event();
  cu(d->stream_synchronize(s), CU_E_INVALID_HANDLE);
  cu(d->event_query(e), CU_E_INVALID_HANDLE);
  cu(d->mem_free(p), CU_E_INVALID_VALUE);
  yes(d->context_pop(&b));
  yes(d->primary_release(1));
  end();
}
END_TEST

START_TEST(primary_contexts_are_counted) {
  cu_context c = begin(), again;
  alloc(1);
  yes(d->primary_retain(&again, 0));
  ck_assert_ptr_eq(again, c);
  ck_assert_int_eq(sim->simcuda_primary_refs(0), 2);
  yes(d->primary_release(0));
  ck_assert_uint_eq(stats(c).device_blocks, 1);
  yes(d->primary_release(0));
  cu_deviceptr p;
  cu(d->mem_alloc(&p, 1), CU_E_CONTEXT_IS_DESTROYED);
  cu(d->primary_release(0), CU_E_INVALID_CONTEXT);
  yes(d->primary_retain(&again, 0));
  ck_assert_uint_eq(stats(again).device_blocks, 0);
}
END_TEST

START_TEST(contexts_are_destroyed_reset_and_lost) {
  cu_context c = begin(), own, now;
  cu_deviceptr p;
  size_t left, total;
  yes(x->context_create(&own, 0, 0));
  yes(d->context_current(&now));
  ck_assert_ptr_eq(now, own);
  alloc(1);
  yes(x->context_destroy(own));
  yes(d->context_current(&now));
  ck_assert_ptr_eq(now, c);
  cu(d->context_push(own), CU_E_INVALID_CONTEXT);
  cu(x->context_destroy(own), CU_E_INVALID_CONTEXT);
  ck_assert(sim->simcuda_lose(c, CU_E_ILLEGAL_ADDRESS));
  cu(d->mem_alloc(&p, 1), CU_E_ILLEGAL_ADDRESS);
  cu(d->mem_info(&left, &total), CU_E_ILLEGAL_ADDRESS);
  ck_assert(sim->simcuda_lose(c, 0));
  alloc(1);
  yes(x->primary_reset(0));
  cu(d->mem_alloc(&p, 1), CU_E_CONTEXT_IS_DESTROYED);
  yes(d->context_pop(&c));
}
END_TEST

/* ---- the end ---- */

START_TEST(shut_down_is_answered) {
  begin();
  cu_deviceptr p;
  sim->simcuda_shut_down(false);
  for (int i = 0; i < 3; i++) cu(d->mem_alloc(&p, 1), CU_E_DEINITIALIZED);
  cu(d->init(0), CU_E_DEINITIALIZED);
  ck_assert_uint_eq(sim->simcuda_calls_after_shut_down(), 4);
}
END_TEST

START_TEST(the_second_call_after_shut_down_aborts) {
  cu_deviceptr p;
  begin();
  sim->simcuda_shut_down(true);
  cu(d->mem_alloc(&p, 1), CU_E_DEINITIALIZED);
  (void)d->mem_alloc(&p, 1);
}
END_TEST

START_TEST(a_call_in_a_forked_child_aborts) {
  begin();
  pid_t child = fork();
  if (child == 0) {
    int n;
    signal(SIGABRT, SIG_DFL);
    (void)d->device_count(&n);
    _exit(0);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  end();
}
END_TEST

START_TEST(nothing_works_before_init) {
  if (!own_process()) return;
  find_driver();
  int n;
  const char *name = NULL;
  cu(d->device_count(&n), CU_E_NOT_INITIALIZED);
  yes(d->error_name(CU_E_OUT_OF_MEMORY, &name));
  ck_assert_str_eq(name, "CUDA_ERROR_OUT_OF_MEMORY");
  cu(d->error_name(12345, &name), CU_E_INVALID_VALUE);
  sim->simcuda_set_devices(0);
  cu(d->init(0), CU_E_NO_DEVICE);
  sim->simcuda_set_devices(1);
  cu(d->init(1), CU_E_INVALID_VALUE);
  yes(d->init(0));
}
END_TEST

/* ---- captures ---- */

/* What a thread does beside another's capture. */
struct beside {
  cu_context context;
  int mode;                    /* of the thread */
  cu_event event;
  cu_stream stream;
  cu_result alloc, query, free_, wait, create;
};

static void *act_beside(void *arg) {
  struct beside *b = arg;
  cu_deviceptr p = 0;
  cu_event e;
  cu_context c;
  cu_capture_mode mode = b->mode;
  yes(d->context_push(b->context));
  yes(d->capture_mode(&mode));
  b->query = d->event_query(b->event);
  b->wait = d->stream_synchronize(b->stream);
  b->create = d->event_create(&e, CU_EVENT_NO_TIMING);
  b->alloc = d->mem_alloc(&p, 4096);
  b->free_ = b->alloc ? CU_OK : d->mem_free(p);
  yes(d->capture_mode(&mode));
  ck_assert_int_eq(mode, b->mode);
  yes(d->context_pop(&c));
  return NULL;
}

static cu_result end_capture(cu_stream s) {
  cu_graph g = (cu_graph)(uintptr_t)1;
  cu_result r = x->end_capture(s, &g);
  if (r == CU_OK) yes(x->graph_destroy(g));
  else if (r == CU_E_CAPTURE_INVALIDATED || r == CU_E_CAPTURE_UNJOINED) ck_assert_ptr_null(g);
  return r;
}

/* Only a global capture, and a thread in global mode, clash. */
START_TEST(other_threads_beside_a_capture) {
  cu_context c = begin();
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING), other = new_stream(CU_STREAM_NONBLOCKING);
  cu_event e = new_event();
  yes(d->event_record(e, other));
  yes(x->event_synchronize(e));
  for (int capture = CU_CAPTURE_GLOBAL; capture <= CU_CAPTURE_RELAXED; capture++)
    for (int mode = CU_CAPTURE_GLOBAL; mode <= CU_CAPTURE_RELAXED; mode++) {
      struct beside b = {.context = c, .mode = mode, .event = e, .stream = other};
      pthread_t t;
      bool clash = capture == CU_CAPTURE_GLOBAL && mode == CU_CAPTURE_GLOBAL;
      yes(x->begin_capture(s, capture));
      pthread_create(&t, NULL, act_beside, &b);
      pthread_join(t, NULL);
      cu(b.query, clash ? CU_E_CAPTURE_UNSUPPORTED : CU_OK);
      cu(b.wait, CU_OK);     /* the first refused call has broken the capture: nothing is left to clash with */
      cu(b.alloc, CU_OK);
      cu(b.free_, CU_OK);
      cu(b.create, CU_OK);
      cu(end_capture(s), clash ? CU_E_CAPTURE_INVALIDATED : CU_OK);
    }
  end();
}
END_TEST

START_TEST(the_own_thread_beside_its_capture) {
  begin();
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING);
  for (int capture = CU_CAPTURE_GLOBAL; capture <= CU_CAPTURE_RELAXED; capture++)
    for (int own = CU_CAPTURE_GLOBAL; own <= CU_CAPTURE_RELAXED; own++) {
      cu_capture_mode mode = own;
      cu_deviceptr p;
      bool clash = capture != CU_CAPTURE_RELAXED && own != CU_CAPTURE_RELAXED;
      yes(d->capture_mode(&mode));
      yes(x->begin_capture(s, capture));
      cu(d->mem_alloc(&p, 1), clash ? CU_E_CAPTURE_UNSUPPORTED : CU_OK);
      cu(end_capture(s), clash ? CU_E_CAPTURE_INVALIDATED : CU_OK);
      yes(d->capture_mode(&mode));
    }
  end();
}
END_TEST

/* Refused whatever the modes; each breaks the capture. */
START_TEST(waiting_for_captured_work_is_refused) {
  begin();
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING), other = new_stream(CU_STREAM_NONBLOCKING);
  cu_event captured = new_event(), plain = new_event();
  cu_capture_mode mode = CU_CAPTURE_RELAXED;
  yes(d->capture_mode(&mode));
  yes(d->event_record(plain, other));
  for (int what = 0; what < 7; what++) {
    cu_capture_status status;
    yes(x->begin_capture(s, CU_CAPTURE_RELAXED));
    yes(d->event_record(captured, s));
    switch (what) {
      case 0: cu(d->stream_synchronize(s), CU_E_CAPTURE_UNSUPPORTED); break;
      case 1: cu(x->stream_query(s), CU_E_CAPTURE_UNSUPPORTED); break;
      case 2: cu(d->context_synchronize(), CU_E_CAPTURE_UNSUPPORTED); break;
      case 3: cu(d->event_query(captured), CU_E_CAPTURED_EVENT); break;
      case 4: cu(x->event_synchronize(captured), CU_E_CAPTURED_EVENT); break;
      case 5: cu(d->stream_wait(s, plain, 0), CU_E_CAPTURE_ISOLATION); break;
      default: cu(d->stream_destroy(s), CU_E_CAPTURE_UNSUPPORTED); break;
    }
    yes(d->stream_capturing(s, &status));
    ck_assert_int_eq((int)status, CU_CAPTURE_BROKEN);
    cu(d->event_record(captured, s), CU_E_CAPTURE_INVALIDATED);
    cu(end_capture(s), CU_E_CAPTURE_INVALIDATED);
    yes(d->stream_capturing(s, &status));
    ck_assert_int_eq((int)status, CU_CAPTURE_NONE);
  }
  cu(d->event_query(captured), CU_E_CAPTURED_EVENT);   /* as long as that was its last record */
  yes(d->event_record(captured, other));
  yes(x->event_synchronize(captured));
  yes(d->stream_synchronize(other));
  end();
}
END_TEST

START_TEST(the_legacy_stream_beside_a_blocking_capture) {
  begin();
  cu_stream blocking = new_stream(0), free_ = new_stream(CU_STREAM_NONBLOCKING);
  cu_deviceptr p = alloc(4096);
  cu_capture_status status;
  cu_event e = new_event();
  cu(x->begin_capture(NULL, CU_CAPTURE_GLOBAL), CU_E_CAPTURE_UNSUPPORTED);
  yes(x->begin_capture(free_, CU_CAPTURE_RELAXED));
  yes(d->memset_d8(p, 0, 4, NULL));
  yes(d->stream_synchronize(NULL));
  yes(d->stream_capturing(NULL, &status));
  ck_assert_int_eq((int)status, CU_CAPTURE_NONE);
  yes(end_capture(free_));
  yes(x->begin_capture(blocking, CU_CAPTURE_RELAXED));
  cu(d->stream_capturing(NULL, &status), CU_E_CAPTURE_IMPLICIT);
  yes(end_capture(blocking));   /* a question breaks nothing */
  for (int what = 0; what < 3; what++) {
    yes(x->begin_capture(blocking, CU_CAPTURE_RELAXED));
    if (what == 0) cu(d->memset_d8(p, 0, 4, NULL), CU_E_CAPTURE_IMPLICIT);
    if (what == 1) cu(d->stream_synchronize((cu_stream)CU_STREAM_LEGACY_ONE), CU_E_CAPTURE_IMPLICIT);
    if (what == 2) cu(d->event_record(e, NULL), CU_E_CAPTURE_IMPLICIT);
    cu(end_capture(blocking), CU_E_CAPTURE_INVALIDATED);
  }
  end();
}
END_TEST

START_TEST(captures_fork_and_join) {
  begin();
  cu_stream a = new_stream(CU_STREAM_NONBLOCKING), b = new_stream(CU_STREAM_NONBLOCKING);
  cu_event fork_ = new_event(), join = new_event();
  cu_deviceptr p = alloc(4096);
  cu_capture_status status;
  for (int joined = 0; joined < 2; joined++) {
    yes(x->begin_capture(a, CU_CAPTURE_GLOBAL));
    yes(d->event_record(fork_, a));
    yes(d->stream_wait(b, fork_, 0));
    yes(d->stream_capturing(b, &status));
    ck_assert_int_eq((int)status, CU_CAPTURE_ACTIVE);
    yes(d->memset_d8(p, 1, 4, b));
    yes(d->event_record(join, b));
    if (joined) yes(d->stream_wait(a, join, 0));
    cu(end_capture(a), joined ? CU_OK : CU_E_CAPTURE_UNJOINED);
    yes(d->stream_capturing(b, &status));
    ck_assert_int_eq((int)status, CU_CAPTURE_NONE);
  }
  yes(x->begin_capture(a, CU_CAPTURE_RELAXED));
  yes(x->begin_capture(b, CU_CAPTURE_RELAXED));
  yes(d->event_record(fork_, a));
  cu(d->stream_wait(b, fork_, 0), CU_E_CAPTURE_MERGE);
  cu(end_capture(a), CU_E_CAPTURE_INVALIDATED);
  cu(end_capture(b), CU_E_CAPTURE_INVALIDATED);
  cu(end_capture(a), CU_E_ILLEGAL_STATE);
  yes(x->begin_capture(a, CU_CAPTURE_GLOBAL));
  cu(x->begin_capture(a, CU_CAPTURE_GLOBAL), CU_E_ILLEGAL_STATE);
  yes(end_capture(a));
  end();
}
END_TEST

struct ender {
  cu_context context;
  cu_stream stream;
  cu_result answer;
};

static void *end_elsewhere(void *arg) {
  struct ender *n = arg;
  cu_context c;
  yes(d->context_push(n->context));
  n->answer = end_capture(n->stream);
  yes(d->context_pop(&c));
  return NULL;
}

START_TEST(captures_end_on_their_thread) {
  cu_context c = begin();
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING);
  for (int mode = CU_CAPTURE_GLOBAL; mode <= CU_CAPTURE_RELAXED; mode++) {
    struct ender n = {c, s, CU_OK};
    pthread_t t;
    yes(x->begin_capture(s, mode));
    pthread_create(&t, NULL, end_elsewhere, &n);
    pthread_join(t, NULL);
    cu(n.answer, mode == CU_CAPTURE_RELAXED ? CU_OK : CU_E_CAPTURE_WRONG_THREAD);
    if (mode != CU_CAPTURE_RELAXED) yes(end_capture(s));
  }
  end();
}
END_TEST

START_TEST(graphs_run_what_was_captured) {
  begin_on(1, NULL);
  cu_context c;
  yes(d->context_current(&c));
  cu_module m = load();
  cu_function f = function(m, "add");
  cu_stream s = new_stream(CU_STREAM_NONBLOCKING);
  cu_deviceptr p = alloc(4096);
  cu_graph g;
  cu_graph_exec exec;
  yes(x->begin_capture(s, CU_CAPTURE_GLOBAL));
  yes(d->memset_d8(p, 0, 4, s));
  yes(run_add(f, s, p, 3));
  yes(run_add(f, s, p, 4));
  yes(x->end_capture(s, &g));
  ck_assert_uint_eq(stats(c).launches, 0);   /* recorded, not run */
  yes(x->graph_instantiate(&exec, g, 0));
  yes(x->graph_destroy(g));
  cu(x->graph_destroy(g), CU_E_INVALID_VALUE);
  for (int i = 0; i < 3; i++) yes(x->graph_launch(exec, s));
  ck_assert_uint_eq(word_at(p, s), 7);
  ck_assert_uint_eq(stats(c).launches, 6);
  yes(d->module_unload(m));
  cu(x->graph_launch(exec, s), CU_E_ILLEGAL_ADDRESS);
  yes(d->stream_synchronize(s));
  ck_assert_uint_eq(stats(c).stale_launches, 1);
  yes(d->mem_free(p));
  cu(x->graph_launch(exec, s), CU_E_ILLEGAL_ADDRESS);
  ck_assert_uint_eq(stats(c).graphs, 1);
  yes(x->graph_exec_destroy(exec));
  ck_assert_uint_eq(stats(c).graphs, 0);
  cu(x->graph_launch(exec, s), CU_E_INVALID_VALUE);
}
END_TEST

int main(void) {
  Suite *s = suite_create("simcuda");
  TCase *t = tcase_create("simcuda");
  tcase_set_timeout(t, 30);
  tcase_add_test(t, nth_call_fails_with_the_code);
  tcase_add_test(t, orders_are_a_devices_own);
  tcase_add_test(t, calls_take_long);
  tcase_add_test(t, orders_by_environment);
  tcase_add_test_raise_signal(t, a_setting_not_understood_aborts, SIGABRT);
  tcase_add_test(t, addresses_come_back_where_wanted);
  tcase_add_test(t, memory_has_an_end_and_a_cost);
  tcase_add_test(t, frees_are_checked);
  tcase_add_test(t, managed_memory_may_be_missing);
  tcase_add_test(t, ptx_runs_registered_functions);
  tcase_add_test(t, images_are_read);
  tcase_add_test(t, a_missing_function_is_answered_as_told);
  tcase_add_test(t, unloaded_functions_are_recognised);
  tcase_add_test(t, queues_wait_to_be_stepped);
  tcase_add_test(t, the_current_context_is_a_threads_own);
  tcase_add_test(t, handles_belong_to_their_context);
  tcase_add_test(t, primary_contexts_are_counted);
  tcase_add_test(t, contexts_are_destroyed_reset_and_lost);
  tcase_add_test(t, shut_down_is_answered);
  tcase_add_test_raise_signal(t, the_second_call_after_shut_down_aborts, SIGABRT);
  tcase_add_test(t, a_call_in_a_forked_child_aborts);
  tcase_add_test(t, nothing_works_before_init);
  tcase_add_test(t, other_threads_beside_a_capture);
  tcase_add_test(t, the_own_thread_beside_its_capture);
  tcase_add_test(t, waiting_for_captured_work_is_refused);
  tcase_add_test(t, the_legacy_stream_beside_a_blocking_capture);
  tcase_add_test(t, captures_fork_and_join);
  tcase_add_test(t, captures_end_on_their_thread);
  tcase_add_test(t, graphs_run_what_was_captured);
  suite_add_tcase(s, t);
  return fx_run(s);
}
