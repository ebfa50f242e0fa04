/* SPDX-License-Identifier: MIT */
/* The CUDA backend, over the simulated driver. */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fixture.h"
#include "tests/over_cuda.h"

#define MiB ((size_t)1 << 20)

static void begin(void) {
  find_driver();
  if (simcuda_find()) sim->simcuda_set_devices(2);
}

static const oc_backend_ops *table(const oc_backend *b) { return oc_backend_table(b); }
static void *self(const oc_backend *b) { return oc_backend_self(b); }

static oc_backend *open_on(int ordinal, const struct simcuda_options *o) {
  oc_cuda_options opt = {.struct_size = sizeof opt, .ordinal = ordinal};
  oc_backend *b;
  begin();
  ck_assert(sim->simcuda_configure(ordinal, o));
  ck_ok(oc_backend_open_cuda(&opt, &b));
  return b;
}

static cu_context current(void) {
  cu_context c;
  ck_assert_int_eq(d->context_current(&c), CU_OK);
  return c;
}

/* ---- processes: cuda_probe ---- */

/* What cuda_probe prints with a folder to find libcuda.so.1 in, and how it ends. */
static int probe(const char *folder, const char *environment, const char *what, char *out, size_t bytes) {
  char command[1024];
  snprintf(command, sizeof command, "LD_LIBRARY_PATH=%s %s ./cuda_probe %s 2>&1", folder, environment, what);
  FILE *f = popen(command, "r");
  ck_assert_ptr_nonnull(f);
  size_t n = fread(out, 1, bytes - 1, f);
  out[n] = 0;
  int status = pclose(f);
  ck_assert_msg(WIFEXITED(status), "%s: %s", command, out);
  return WEXITSTATUS(status);
}

#define SIM "simcuda/.libs"

static void one_sentence(const char *text) {
  const char *line = strchr(text, '\n');
  ck_assert_msg(line && line[1] == 0, "not one line: %s", text);
}

static void in_text(const char *text, const char *part) {
  ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in: %s", part, text);
}

START_TEST(no_driver_is_one_sentence) {
  char out[2000], folder[] = "/tmp/oc_no_cudaXXXXXX", file[64];
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(file, sizeof file, "%s/libcuda.so.1", folder);
  FILE *f = fopen(file, "w");   /* found first, and no library */
  ck_assert_ptr_nonnull(f);
  fputs("no library", f);
  fclose(f);
  ck_assert_int_eq(probe(folder, "", "", out, sizeof out), 1);
  unlink(file);
  rmdir(folder);
  one_sentence(out);
  in_text(out, "OC_E_NO_DRIVER");
  in_text(out, "libcuda.so.1");
}
END_TEST

START_TEST(a_driver_without_a_symbol_is_named) {
  char out[2000];
  ck_assert_int_eq(probe("simcuda/old/.libs", "", "", out, sizeof out), 1);
  one_sentence(out);
  in_text(out, "OC_E_NO_DRIVER");
  in_text(out, "has no cu");
}
END_TEST

START_TEST(no_device_is_no_driver) {
  char out[2000];
  ck_assert_int_eq(probe(SIM, "SIMCUDA_DEVICES=0", "", out, sizeof out), 1);
  one_sentence(out);
  in_text(out, "OC_E_NO_DRIVER");
  in_text(out, "CUDA_ERROR_NO_DEVICE (100)");
  ck_assert_int_eq(probe(SIM, "SIMCUDA_FAIL=cuInit:1:1:999", "", out, sizeof out), 1);
  in_text(out, "OC_E_NO_DRIVER");
  in_text(out, "CUDA_ERROR_UNKNOWN (999)");
  ck_assert_int_eq(probe(SIM, "SIMCUDA_FAIL=cuInit:1:1:34", "", out, sizeof out), 1);
  in_text(out, "stub");
  ck_assert_int_eq(probe(SIM, "SIMCUDA_FAIL=cuInit:1:1:4", "", out, sizeof out), 1);
  in_text(out, "OC_E_DEVICE_LOST");
}
END_TEST

/* S6: the driver aborts the process if it is called once more. */
START_TEST(nothing_is_called_after_shut_down) {
  char out[4000];
  ck_assert_int_eq(probe(SIM, "", "shut", out, sizeof out), 0);
  in_text(out, "OC_OK");
  const char *row = strstr(out, "context gone");
  ck_assert_ptr_nonnull(row);
  ck_assert_ptr_null(strstr(row + 1, "context gone"));
  in_text(out, "1 blocks swept");
  ck_assert_int_eq(probe(SIM, "", "leave", out, sizeof out), 0);
  ck_assert_int_eq(probe(SIM, "", "shut-exit", out, sizeof out), 0);
}
END_TEST

/* G32: so it does if it is called in a forked child. */
START_TEST(a_forked_child_does_not_reach_the_driver) {
  char out[2000];
  ck_assert_int_eq(probe(SIM, "", "fork", out, sizeof out), 0);
  in_text(out, "child 0");
}
END_TEST

/* ---- open and close ---- */

START_TEST(options_are_checked) {
  begin();
  need_sim();   /* two devices */
  oc_backend *b = NULL;
  oc_cuda_options o = {.struct_size = sizeof o, .ordinal = 2};
  ck_status(oc_backend_open_cuda(NULL, NULL), OC_E_INVALID);
  ck_status(oc_backend_open_cuda(&o, &b), OC_E_INVALID);
  ck_words("ordinal 2");
  ck_words("2 devices");
  o.ordinal = -1;
  ck_status(oc_backend_open_cuda(&o, &b), OC_E_INVALID);
  sim->simcuda_set_devices(1);
  o.ordinal = 1;
  ck_status(oc_backend_open_cuda(&o, &b), OC_E_INVALID);
  ck_assert_str_eq(oc_last_error(), "oc_backend_open_cuda: ordinal 1: the CUDA driver has 1 device");
  sim->simcuda_set_devices(2);
  o.ordinal = 0;
  o.flags = 1;
  ck_status(oc_backend_open_cuda(&o, &b), OC_E_INVALID);
  o.flags = 0;
  o.struct_size = 8;
  ck_status(oc_backend_open_cuda(&o, &b), OC_E_INVALID);
  ck_assert_ptr_null(b);
  ck_assert_int_eq(sim->simcuda_primary_refs(0), 0);
}
END_TEST

START_TEST(the_primary_context_is_retained_and_released_once) {
  oc_backend *a = open_on(1, NULL), *b = open_on(1, NULL);
  ck_assert_int_eq(sim->simcuda_primary_refs(1), 2);
  ck_assert_int_eq(sim->simcuda_ordinal(oc_cuda_context(a)), 1);
  ck_assert_ptr_eq(oc_cuda_context(a), oc_cuda_context(b));
  ck_assert_ptr_null(current());
  ck_ok(oc_backend_close(a));
  ck_assert_int_eq(sim->simcuda_primary_refs(1), 1);
  ck_ok(oc_backend_close(b));
  ck_assert_int_eq(sim->simcuda_primary_refs(1), 0);
}
END_TEST

/* Calls of a driver's function that opening a backend makes. */
static uint64_t calls_of_opening(const char *function) {
  oc_backend *b;
  uint64_t before = sim->simcuda_calls(SIMCUDA_ANY, function);
  ck_ok(oc_backend_open_cuda(NULL, &b));
  uint64_t calls = sim->simcuda_calls(SIMCUDA_ANY, function) - before;
  ck_ok(oc_backend_close(b));
  return calls;
}

/* A call that puts the thread back as it was cannot make the opening fail: it is over by then. */
static bool puts_back(const char *function, uint64_t nth) {
  return strcmp(function, "cuThreadExchangeStreamCaptureMode") == 0 && nth % 2 == 0;
}

/* Fail call N, for every N that there is: nothing is kept. */
START_TEST(opening_fails_at_every_call_and_keeps_nothing) {
  static const char *const calls[] = {"cuInit", "cuThreadExchangeStreamCaptureMode", "cuDeviceGetCount", "cuDeviceGet",
                                      "cuDevicePrimaryCtxRetain", "cuDeviceGetAttribute"};
  begin();
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    uint64_t last = calls_of_opening(calls[i]);
    ck_assert_msg(last > 0, "%s is not called", calls[i]);
    for (uint64_t nth = 1; nth <= last; nth++) {
      oc_backend *b = NULL;
      ck_assert(sim->simcuda_fail(SIMCUDA_ANY, calls[i], nth, 1, CU_E_UNKNOWN));
      oc_status st = oc_backend_open_cuda(NULL, &b);
      ck_assert(sim->simcuda_fail(SIMCUDA_ANY, calls[i], 0, 0, 0));
      ck_assert_msg((st == OC_OK) == puts_back(calls[i], nth), "call %u of %s: %s", (unsigned)nth, calls[i], oc_status_name(st));
      if (st) ck_words("CUDA_ERROR_UNKNOWN (999)");
      if (st) ck_assert_ptr_null(b);
      else ck_ok(oc_backend_close(b));
      ck_assert_int_eq(sim->simcuda_primary_refs(0), 0);
    }
  }
}
END_TEST

/* The same where each says that the driver is shut down: none is called after it. */
START_TEST(opening_hears_of_a_shut_down_at_any_call) {
  begin();
  uint64_t last = calls_of_opening("cuThreadExchangeStreamCaptureMode");
  ck_assert_int_lt(_i, (int)last);
  oc_backend *b = NULL;
  ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuThreadExchangeStreamCaptureMode", (uint64_t)_i + 1, 1, CU_E_DEINITIALIZED));
  uint64_t before = sim->simcuda_calls(SIMCUDA_ANY, "cuThreadExchangeStreamCaptureMode");
  oc_status st = oc_backend_open_cuda(NULL, &b);
  ck_assert_uint_eq(sim->simcuda_calls(SIMCUDA_ANY, "cuThreadExchangeStreamCaptureMode"), before + (uint64_t)_i + 1);
  if (_i + 1 == (int)last) {   /* all was said and done */
    ck_ok(st);
    ck_ok(oc_backend_close(b));
  } else {
    ck_assert_int_eq(st, OC_E_DEVICE_LOST);
    ck_words("CUDA_ERROR_DEINITIALIZED");
    ck_assert_ptr_null(b);
  }
}
END_TEST

/* Success, with outputs of zeros. */
START_TEST(empty_answers_at_opening_are_refused) {
  oc_backend *b = NULL;
  begin();
  ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuDeviceGetCount", 1, 1, CU_OK));
  ck_status(oc_backend_open_cuda(NULL, &b), OC_E_NO_DRIVER);
  ck_words("no device");
  ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuDevicePrimaryCtxRetain", 1, 1, CU_OK));
  ck_status(oc_backend_open_cuda(NULL, &b), OC_E_BACKEND);
  ck_words("null context");
  ck_assert_ptr_null(b);
  ck_assert_uint_eq(sim->simcuda_calls(SIMCUDA_ANY, "cuDevicePrimaryCtxRelease_v2"), 0);   /* it was never ours */
}
END_TEST

static char last_warning[512];
static void keep_warning(void *arg, int level, const char *text) {
  (void)arg;
  if (level == 1) snprintf(last_warning, sizeof last_warning, "%s", text);
}

/* Closing cannot fail: what the driver refuses there is logged. */
START_TEST(a_context_that_is_not_released_is_logged) {
  static const char *const calls[] = {"cuDevicePrimaryCtxRelease_v2", "cuThreadExchangeStreamCaptureMode"};
  oc_set_log(keep_warning, NULL);
  for (size_t i = 0; i < 2; i++) {
    oc_backend *b = open_on(0, NULL);
    last_warning[0] = 0;
    ck_assert(sim->simcuda_fail(SIMCUDA_ANY, calls[i], 1, 1, CU_E_UNKNOWN));
    ck_ok(oc_backend_close(b));
    ck_assert_msg(strstr(last_warning, "device 0 was not released") && strstr(last_warning, calls[i]), "%s", last_warning);
  }
  oc_set_log(NULL, NULL);
}
END_TEST

START_TEST(the_engines_own_context_is_used_and_left_alone) {
  begin();
  need_sim();   /* two devices */
  cu_context own, was;
  oc_backend *b;
  oc_devptr p;
  ck_assert_int_eq(d->init(0), CU_OK);
  ck_assert_int_eq(x->context_create(&own, 0, 1), CU_OK);
  ck_assert_int_eq(d->context_pop(&was), CU_OK);
  oc_cuda_options o = {.struct_size = sizeof o, .context = own};
  ck_ok(oc_backend_open_cuda(&o, &b));
  ck_assert_ptr_eq(oc_cuda_context(b), own);
  ck_assert_int_eq(sim->simcuda_primary_refs(0) + sim->simcuda_primary_refs(1), 0);
  ck_ok(table(b)->alloc(self(b), 4096, &p));
  struct simcuda_stats s;
  ck_assert(sim->simcuda_read_stats(own, &s));
  ck_assert_uint_eq(s.device_blocks, 1);
  ck_ok(table(b)->free(self(b), p));
  ck_ok(oc_backend_close(b));
  ck_assert_int_eq(x->context_destroy(own), CU_OK);   /* it was the engine's to destroy */
  ck_status(oc_backend_open_cuda(&o, &b), OC_E_INVALID);
  ck_words("destroyed");
  ck_assert_ptr_null(current());
  ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuCtxGetCurrent", 1, 1, CU_E_DEINITIALIZED));
  ck_status(oc_backend_open_cuda(&o, &b), OC_E_DEVICE_LOST);   /* the driver, not the context */
}
END_TEST

START_TEST(other_backends_have_no_context) {
  oc_backend *b;
  ck_ok(oc_backend_open_host(NULL, &b));
  ck_assert_ptr_null(oc_cuda_context(b));
  ck_assert_ptr_null(oc_cuda_context(NULL));
  ck_ok(oc_backend_close(b));
}
END_TEST

/* ---- the current context ---- */

/* Every entry, well or badly called: the context is as before. */
static void call_everything(const oc_backend *b) {
  const oc_backend_ops *t = table(b);
  void *me = self(b), *host;
  oc_devptr p, q;
  oc_stream s;
  oc_event e;
  oc_module m;
  oc_kernel k;
  size_t left, total, bytes;
  uint32_t word = 1, one[3] = {1, 1, 1};
  bool capturing;
  const void *image = fx_image(&bytes);
  ck_ok(t->alloc(me, 4096, &p));
  ck_ok(t->alloc_managed(me, 4096, &q));
  ck_ok(t->host_alloc(me, 64, &host));
  ck_ok(t->mem_info(me, &left, &total));
  ck_ok(t->stream_create(me, &s));
  ck_ok(t->event_create(me, &e));
  ck_ok(t->module_load(me, image, bytes, &m));
  ck_ok(t->module_function(me, m, "add", &k));
  ck_status(t->module_function(me, m, "none", &k), OC_E_NOT_FOUND);
  ck_ok(t->memset(me, p, 0, 4096, s));
  ck_ok(t->copy_h2d(me, p, &word, 4, s));
  ck_ok(t->copy_d2d(me, q, p, 4, s));
  ck_ok(t->launch(me, k, one, one, 0, s, (void *[]){&q, &word}));
  ck_ok(t->copy_d2h(me, &word, q, 4, s));
  ck_ok(t->capturing(me, s, &capturing));
  ck_ok(t->event_record(me, e, s));
  ck_ok(t->event_wait(me, NULL, e));
  ck_ok(t->synchronize(me, s));
  ck_assert_uint_eq(word, 2);
  ck_ok(t->event_query(me, e));
  ck_ok(t->synchronize_all(me));
  ck_ok(t->free(me, p));
  ck_ok(t->free(me, q));
  ck_ok(t->host_free(me, host));
  ck_ok(t->event_destroy(me, e));
  ck_ok(t->stream_destroy(me, s));
  ck_ok(t->module_unload(me, m));
  ck_status(t->module_unload(me, m), OC_E_INVALID);
}

static void *without_context(void *b) {
  call_everything(b);
  ck_assert_ptr_null(current());
  return NULL;
}

START_TEST(the_current_context_is_as_before) {
  begin();
  oc_backend *b = fx_open(NULL), *other = fx_open(NULL);
  cu_context elsewhere = oc_cuda_context(other), was;
  pthread_t t;
  pthread_create(&t, NULL, without_context, b);
  pthread_join(t, NULL);
  ck_assert_int_eq(d->context_push(elsewhere), CU_OK);
  call_everything(b);
  ck_assert_ptr_eq(current(), elsewhere);
  /* Where it is current already, it is not changed at all. */
  uint64_t pushes = sim->simcuda_calls(SIMCUDA_ANY, "cuCtxPushCurrent_v2");
  call_everything(other);
  ck_assert_uint_eq(sim->simcuda_calls(SIMCUDA_ANY, "cuCtxPushCurrent_v2"), pushes);
  ck_assert_int_eq(d->context_pop(&was), CU_OK);
  ck_assert_ptr_null(current());   /* the stack is no deeper than it was */
  fx_close(other);
  fx_close(b);
}
END_TEST

/* A call that fails on the way in or out leaves the thread as it was. */
START_TEST(failures_on_the_way_restore_too) {
  oc_backend *b = open_on(0, NULL);
  oc_devptr p;
  cu_capture_mode mode = CU_CAPTURE_THREAD_LOCAL;
  ck_assert_int_eq(d->capture_mode(&mode), CU_OK);
  static const char *const calls[] = {"cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode",
                                      "cuMemAlloc_v2"};
  for (size_t i = 0; i < 4; i++) {
    ck_assert(sim->simcuda_fail(SIMCUDA_ANY, calls[i], 1, 1, CU_E_UNKNOWN));
    ck_status(table(b)->alloc(self(b), 4096, &p), OC_E_BACKEND);
    ck_words(calls[i]);
    ck_words("CUDA_ERROR_UNKNOWN (999): unknown error");
    ck_assert_ptr_null(current());
  }
  mode = CU_CAPTURE_GLOBAL;
  ck_assert_int_eq(d->capture_mode(&mode), CU_OK);
  ck_assert_int_eq((int)mode, CU_CAPTURE_THREAD_LOCAL);
  ck_ok(oc_backend_close(b));
}
END_TEST

/* ---- each entry ---- */

static oc_devptr out_ptr;
static void *out_host;
static oc_module out_module;
static oc_kernel out_kernel;
static oc_event out_event;
static oc_stream out_stream;
static size_t out_sizes[2];
static bool out_capturing;

static bool outputs_are_untouched(void) {
  return !out_ptr && !out_host && !out_module && !out_kernel && !out_event && !out_stream && !out_sizes[0] && !out_sizes[1] &&
         !out_capturing;
}

static const uint32_t shape[3] = {1, 1, 1};

/* X(entry, the driver's function, arguments) */
#define ENTRIES(X)                                                              \
  X(alloc, "cuMemAlloc_v2", 4096, &out_ptr)                                     \
  X(free, "cuMemFree_v2", 4096)                                                 \
  X(module_load, "cuModuleLoadDataEx", fxc_ptx, fxc_ptx_bytes, &out_module)     \
  X(module_unload, "cuModuleUnload", NULL)                                      \
  X(module_function, "cuModuleGetFunction", NULL, "add", &out_kernel)           \
  X(alloc_managed, "cuMemAllocManaged", 4096, &out_ptr)                         \
  X(mem_info, "cuMemGetInfo_v2", &out_sizes[0], &out_sizes[1])                  \
  X(synchronize, "cuStreamSynchronize", NULL)                                   \
  X(synchronize_all, "cuCtxSynchronize")                                        \
  X(capturing, "cuStreamIsCapturing", NULL, &out_capturing)                     \
  X(event_create, "cuEventCreate", &out_event)                                  \
  X(event_record, "cuEventRecord", NULL, NULL)                                  \
  X(event_query, "cuEventQuery", NULL)                                          \
  X(event_wait, "cuStreamWaitEvent", NULL, NULL)                                \
  X(event_destroy, "cuEventDestroy_v2", NULL)                                   \
  X(stream_create, "cuStreamCreate", &out_stream)                               \
  X(stream_destroy, "cuStreamDestroy_v2", NULL)                                 \
  X(copy_h2d, "cuMemcpyHtoDAsync_v2", 4096, "x", 1, NULL)                       \
  X(copy_d2h, "cuMemcpyDtoHAsync_v2", &out_sizes[0], 4096, 1, NULL)             \
  X(copy_d2d, "cuMemcpyDtoDAsync_v2", 4096, 8192, 1, NULL)                      \
  X(memset, "cuMemsetD8Async", 4096, 7, 1, NULL)                                \
  X(host_alloc, "cuMemHostAlloc", 64, &out_host)                                \
  X(host_free, "cuMemFreeHost", NULL)                                           \
  X(launch, "cuLaunchKernel", NULL, shape, shape, 0, NULL, NULL)

#define COMMA_ARGS(...) , ##__VA_ARGS__
#define CALL_ENTRY(entry, function, ...) \
  static oc_status call_##entry(const oc_backend *b) { return table(b)->entry(self(b) COMMA_ARGS(__VA_ARGS__)); }
ENTRIES(CALL_ENTRY)
#define NAME_ENTRY(entry, function, ...) {#entry, function, call_##entry},
static const struct { const char *name, *function; oc_status (*call)(const oc_backend *b); } entries[] = {ENTRIES(NAME_ENTRY)};

/* Refused on the way in, nothing is called; refused by the function itself, its name is in the words. */
START_TEST(each_entry_says_what_failed_and_touches_no_output) {
  oc_backend *b = open_on(0, NULL);
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
    uint64_t calls = sim->simcuda_calls(SIMCUDA_ANY, entries[i].function);
    ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuCtxPushCurrent_v2", 1, 1, CU_E_UNKNOWN));
    oc_status st = entries[i].call(b);
    ck_assert_msg(st == OC_E_BACKEND && strstr(oc_last_error(), "cuCtxPushCurrent_v2"), "%s: %s", entries[i].name, oc_last_error());
    ck_assert_uint_eq(sim->simcuda_calls(SIMCUDA_ANY, entries[i].function), calls);
    ck_assert(sim->simcuda_fail(SIMCUDA_ANY, entries[i].function, 1, 1, CU_E_NOT_SUPPORTED));
    st = entries[i].call(b);
    ck_assert_msg(st == OC_E_UNSUPPORTED && strstr(oc_last_error(), entries[i].function), "%s: %s", entries[i].name, oc_last_error());
    ck_assert_msg(outputs_are_untouched(), "%s", entries[i].name);
    ck_assert_ptr_null(current());
  }
  ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuMemHostAlloc", 1, 1, CU_E_OUT_OF_MEMORY));
  ck_status(call_host_alloc(b), OC_E_HOST_NOMEM);   /* it is the host's memory that is out */
  ck_ok(oc_backend_close(b));
}
END_TEST

/* ---- answers ---- */

START_TEST(out_of_memory_says_what_is_free) {
  oc_backend *b = open_on(0, &(struct simcuda_options){.device_bytes = 8 * MiB, .managed_bytes = 4 * MiB});
  oc_devptr p = 7;
  ck_status(table(b)->alloc(self(b), 16 * MiB, &p), OC_E_DEVICE_NOMEM);
  ck_words("cuMemAlloc_v2(16777216)");
  ck_words("CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
  ck_words("8388608 of 8388608 bytes free");
  ck_assert_uint_eq(p, 7);
  ck_status(table(b)->alloc_managed(self(b), 16 * MiB, &p), OC_E_DEVICE_NOMEM);
  ck_words("cuMemAllocManaged(16777216)");
  ck_assert_str_eq(table(b)->last_error(self(b)), oc_last_error());
  ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuMemGetInfo_v2", 1, 1, CU_E_UNKNOWN));
  ck_status(table(b)->alloc(self(b), 16 * MiB, &p), OC_E_DEVICE_NOMEM);
  ck_words("cuMemAlloc_v2(16777216)");
  ck_assert_ptr_null(strstr(oc_last_error(), "bytes free"));   /* it could not say */
  ck_ok(oc_backend_close(b));
}
END_TEST

/* The driver has no word for an answer, or does not say it. */
START_TEST(answers_without_words_are_numbers) {
  oc_backend *b = open_on(0, NULL);
  oc_devptr p;
  for (int how = 0; how < 2; how++) {
    ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuGetErrorName", 1, 1, how ? CU_OK : CU_E_INVALID_VALUE));
    ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuGetErrorString", 1, 1, how ? CU_OK : CU_E_INVALID_VALUE));
    ck_assert(sim->simcuda_fail(SIMCUDA_ANY, "cuMemAlloc_v2", 1, 1, CU_E_UNKNOWN));
    ck_status(table(b)->alloc(self(b), 4096, &p), OC_E_BACKEND);
    ck_words("an error without a name (999): no text");
  }
  ck_ok(oc_backend_close(b));
}
END_TEST

START_TEST(answers_become_statuses) {
  static const struct { int code; oc_status st; } cases[] = {
    {CU_E_OUT_OF_MEMORY, OC_E_DEVICE_NOMEM}, {CU_E_INVALID_VALUE, OC_E_INVALID}, {CU_E_INVALID_HANDLE, OC_E_INVALID},
    {CU_E_NOT_SUPPORTED, OC_E_UNSUPPORTED}, {CU_E_UNKNOWN, OC_E_BACKEND}, {CU_E_CAPTURE_UNSUPPORTED, OC_E_CAPTURING},
    {205, OC_E_BACKEND}, {46, OC_E_BACKEND}, {CU_E_INVALID_CONTEXT, OC_E_DEVICE_LOST},
    {CU_E_CONTEXT_IS_DESTROYED, OC_E_DEVICE_LOST}, {CU_E_ILLEGAL_ADDRESS, OC_E_DEVICE_LOST},
    {CU_E_LAUNCH_TIMEOUT, OC_E_DEVICE_LOST}, {CU_E_ASSERT, OC_E_DEVICE_LOST}, {CU_E_LAUNCH_FAILED, OC_E_DEVICE_LOST},
    {CU_E_ECC_UNCORRECTABLE, OC_E_DEVICE_LOST}, {CU_E_ILLEGAL_INSTRUCTION, OC_E_DEVICE_LOST},
    {CU_E_MISALIGNED_ADDRESS, OC_E_DEVICE_LOST}, {CU_E_HARDWARE_STACK_ERROR, OC_E_DEVICE_LOST},
    {CU_E_MPS_CLIENT_TERMINATED, OC_E_DEVICE_LOST}};
  oc_backend *b = open_on(0, NULL);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char number[16];
    oc_devptr p;
    ck_assert(sim->simcuda_fail(0, "cuMemAlloc_v2", 1, 1, cases[i].code));
    ck_status(table(b)->alloc(self(b), 4096, &p), cases[i].st);
    snprintf(number, sizeof number, "(%d)", cases[i].code);
    ck_words(number);
    ck_assert_ptr_null(current());
  }
  ck_ok(oc_backend_close(b));
}
END_TEST

START_TEST(shut_down_is_remembered_by_all_backends) {
  oc_backend *a = open_on(0, NULL), *b = open_on(1, NULL);
  oc_devptr p;
  oc_backend *more;
  ck_ok(table(a)->alloc(self(a), 4096, &p));
  sim->simcuda_shut_down(false);
  ck_status(table(a)->free(self(a), p), OC_E_DEVICE_LOST);
  ck_words("CUDA_ERROR_DEINITIALIZED");
  for (int i = 0; i < 3; i++) ck_status(table(b)->alloc(self(b), 4096, &p), OC_E_DEVICE_LOST);
  ck_status(oc_backend_open_cuda(NULL, &more), OC_E_DEVICE_LOST);
  ck_ok(oc_backend_close(a));
  ck_ok(oc_backend_close(b));
  ck_assert_uint_eq(sim->simcuda_calls_after_shut_down(), 1);
}
END_TEST

/* In the middle of an entry, at each of its driver calls. */
START_TEST(shut_down_is_heard_at_any_call) {
  static const char *const calls[] = {"cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode",
                                      "cuMemAlloc_v2"};
  oc_backend *b = open_on(0, NULL);
  oc_devptr p;
  ck_assert(sim->simcuda_fail(SIMCUDA_ANY, calls[_i], 1, 1, CU_E_DEINITIALIZED));
  ck_status(table(b)->alloc(self(b), 4096, &p), OC_E_DEVICE_LOST);
  uint64_t before = sim->simcuda_calls(SIMCUDA_ANY, NULL);
  ck_status(table(b)->alloc(self(b), 4096, &p), OC_E_DEVICE_LOST);
  ck_ok(oc_backend_close(b));
  ck_assert_uint_eq(sim->simcuda_calls(SIMCUDA_ANY, NULL), before);
}
END_TEST

/* ---- modules ---- */

static oc_status load(oc_backend *b, const void *image, size_t bytes) {
  oc_module m;
  oc_status st = table(b)->module_load(self(b), image, bytes, &m);
  if (!st) ck_ok(table(b)->module_unload(self(b), m));
  return st;
}

/* The text ends at the end of a page: who reads past it faults. */
START_TEST(ptx_without_a_nul_is_given_one) {
  oc_backend *b = fx_open(NULL);
  size_t page = (size_t)sysconf(_SC_PAGESIZE), n = fxc_ptx_bytes - 1;
  char *guarded = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(guarded, MAP_FAILED);
  ck_assert_int_eq(mprotect(guarded + page, page, PROT_NONE), 0);
  ck_assert_uint_lt(n, page);
  memset(guarded, 'x', page);
  memcpy(guarded + page - n, fxc_ptx, n);
  ck_ok(load(b, guarded + page - n, n));
  ck_ok(load(b, fxc_ptx, fxc_ptx_bytes));
  memcpy(guarded + page - n - 1, fxc_ptx, n + 1);
  ck_ok(load(b, guarded + page - n - 1, n + 1));
  munmap(guarded, 2 * page);
  fx_close(b);
}
END_TEST

START_TEST(the_compilers_log_is_in_the_words) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  static const char bad[] = ".version 6.3\n.target sm_75\n.entry unheard_of()\n{ ret; }\n";
  ck_status(oc_model_load_module(m, "bad", bad, sizeof bad), OC_E_INVALID);
  ck_words("no C function is registered for entry unheard_of (OC_E_INVALID)");   /* without the log's last space and newline */
  ck_words("CUDA_ERROR_INVALID_SOURCE (300)");
  ck_words("bad");
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

static void put(unsigned char *p, size_t bytes, uint64_t v) {
  for (size_t i = 0; i < bytes; i++) p[i] = (unsigned char)(v >> 8 * i);
}

enum { CUBIN = 64 + 3 * 64 + 32 };

/* A cubin with one function: a header, three sections (none, names, .text.add), the names. */
static void make_cubin(unsigned char p[CUBIN]) {
  static const char names[] = "\0.shstrtab\0.text.add";
  memset(p, 0, CUBIN);
  memcpy(p, "\177ELF\2\1\1", 7);   // NOLINT(bugprone-not-null-terminated-result): bytes
  put(p + 40, 8, 64);          /* sections at */
  put(p + 58, 2, 64);
  put(p + 60, 2, 3);
  put(p + 62, 2, 1);
  put(p + 64 + 64, 4, 1);      /* .shstrtab */
  put(p + 64 + 64 + 4, 4, 3);
  put(p + 64 + 64 + 24, 8, 64 + 3 * 64);
  put(p + 64 + 64 + 32, 8, sizeof names);
  put(p + 64 + 128, 4, 11);    /* .text.add, of no bytes */
  put(p + 64 + 128 + 4, 4, 1);
  put(p + 64 + 128 + 24, 8, 64);
  memcpy(p + 64 + 3 * 64, names, sizeof names);
}

START_TEST(images_that_say_they_are_longer_are_refused) {
  oc_backend *b = fx_open(NULL);
  unsigned char cubin[CUBIN], fatbin[32] = {0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 16};
  uint64_t calls;
  make_cubin(cubin);
  ck_ok(load(b, cubin, sizeof cubin));
  calls = fx_calls(b, "module_load");
  for (size_t n = 4; n < 64 + 3 * 64; n++) ck_status(load(b, cubin, n), OC_E_INVALID);
  put(cubin + 60, 2, 400);     /* sections past the end */
  ck_status(load(b, cubin, sizeof cubin), OC_E_INVALID);
  make_cubin(cubin);
  put(cubin + 40, 8, UINT64_MAX - 10);
  ck_status(load(b, cubin, sizeof cubin), OC_E_INVALID);
  make_cubin(cubin);
  put(cubin + 64 + 64 + 32, 8, UINT64_MAX);   /* names past the end */
  ck_status(load(b, cubin, sizeof cubin), OC_E_INVALID);
  ck_words("longer");
  put(cubin + 64 + 64 + 4, 4, 8);             /* they take no place in the image: what is there is another matter */
  ck_ok(load(b, cubin, sizeof cubin));
  calls++;
  make_cubin(cubin);
  put(cubin + 56, 2, 1);                      /* a segment, of a size that is none */
  ck_status(load(b, cubin, sizeof cubin), OC_E_INVALID);
  ck_words("its headers are of 0 and 64 bytes");
  put(cubin + 54, 2, 56);
  put(cubin + 32, 8, CUBIN - 55);             /* past the end */
  ck_status(load(b, cubin, sizeof cubin), OC_E_INVALID);
  ck_words("longer");
  put(cubin + 32, 8, CUBIN - 56);
  ck_ok(load(b, cubin, sizeof cubin));
  calls++;
  put(cubin + 58, 2, 63);
  ck_status(load(b, cubin, sizeof cubin), OC_E_INVALID);
  ck_words("its headers are of 56 and 63 bytes");
  put(cubin + 58, 2, 0);
  put(cubin + 60, 2, 0);                      /* no sections, which need no size: a matter for the driver */
  ck_status(load(b, cubin, sizeof cubin), OC_E_INVALID);
  ck_words("CUDA_ERROR_INVALID_IMAGE");
  calls++;
  for (size_t at = 4; at < 6; at++) {         /* 32 bits; the other end first */
    make_cubin(cubin);
    cubin[at] ^= 3;
    ck_status(load(b, cubin, sizeof cubin), OC_E_INVALID);
    ck_words("64-bit and little-endian");
  }
  for (size_t n = 4; n < sizeof fatbin; n++) ck_status(load(b, fatbin, n), OC_E_INVALID);
  ck_assert_uint_eq(fx_calls(b, "module_load"), calls);   /* the driver never saw them */
  ck_status(load(b, fatbin, sizeof fatbin), OC_E_UNSUPPORTED);
  ck_words("CUDA_ERROR_NO_BINARY_FOR_GPU");
  ck_status(load(b, NULL, 100), OC_E_INVALID);
  ck_status(load(b, "", 0), OC_E_INVALID);
  ck_status(load(b, "\177EL", 3), OC_E_INVALID);   /* too short to be either: text, which the driver does not like */
  ck_words("CUDA_ERROR_INVALID_PTX");
  fx_close(b);
}
END_TEST

/* S5, straight from the table. */
START_TEST(a_null_function_is_not_found) {
  begin();
  oc_backend *b = fx_open(NULL);
  size_t bytes;
  const void *image = fx_image(&bytes);
  oc_module m;
  oc_kernel k = (oc_kernel)(uintptr_t)7;
  ck_ok(table(b)->module_load(self(b), image, bytes, &m));
  sim->simcuda_missing_function(1);
  ck_status(table(b)->module_function(self(b), m, "none", &k), OC_E_NOT_FOUND);
  ck_assert_ptr_eq(k, (oc_kernel)(uintptr_t)7);
  sim->simcuda_missing_function(0);
  ck_ok(table(b)->module_unload(self(b), m));
  fx_close(b);
}
END_TEST

/* ---- memory ---- */

START_TEST(managed_memory_needs_both_attributes) {
  static const struct { enum simcuda_managed how; bool there; } cases[] = {
    {SIMCUDA_MANAGED_YES, true}, {SIMCUDA_MANAGED_FAILS, true}, {SIMCUDA_MANAGED_NO, false}, {SIMCUDA_MANAGED_EXCLUSIVE, false}};
  for (size_t i = 0; i < 4; i++) {
    oc_backend *b = open_on(0, &(struct simcuda_options){.managed = cases[i].how});
    ck_assert_int_eq(table(b)->alloc_managed != NULL, cases[i].there);
    oc_devptr p;
    if (cases[i].how == SIMCUDA_MANAGED_FAILS) {
      ck_status(table(b)->alloc_managed(self(b), 4096, &p), OC_E_UNSUPPORTED);
      ck_words("CUDA_ERROR_NOT_SUPPORTED (801)");
    }
    ck_ok(oc_backend_close(b));
  }
}
END_TEST

static size_t memory_available(void) {
  char line[128];
  size_t kib = 0;
  FILE *f = fopen("/proc/meminfo", "r");
  ck_assert_ptr_nonnull(f);
  while (fgets(line, sizeof line, f))
    if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1) break;
  fclose(f);
  return kib * 1024;
}

START_TEST(an_integrated_device_has_what_the_host_has) {
  size_t left, total, available = memory_available();
  struct simcuda_options o = {.device_bytes = 64 * MiB, .integrated = true};
  oc_backend *b = open_on(0, &o);
  ck_ok(table(b)->mem_info(self(b), &left, &total));
  ck_assert_uint_gt(left, 64 * MiB);
  ck_assert_uint_ge(total, left);
  ck_assert_uint_lt(left, available * 2);
  ck_assert_uint_gt(left, available / 2);
  ck_ok(oc_backend_close(b));
  o.device_bytes = (size_t)1 << 46;   /* the driver's figure is the larger one */
  b = open_on(0, &o);
  ck_ok(table(b)->mem_info(self(b), &left, &total));
  ck_assert_uint_eq(left, o.device_bytes);
  ck_ok(oc_backend_close(b));
  o = (struct simcuda_options){.device_bytes = 64 * MiB};
  b = open_on(0, &o);
  ck_ok(table(b)->mem_info(self(b), &left, &total));
  ck_assert_uint_eq(left, 64 * MiB);
  ck_ok(oc_backend_close(b));
}
END_TEST

/* Where the kernel cannot be asked, the driver's figure counts. */
START_TEST(an_integrated_device_without_proc) {
  size_t left, total;
  oc_backend *b = open_on(0, &(struct simcuda_options){.device_bytes = 64 * MiB, .integrated = true});
  struct rlimit were, none;
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &were), 0);
  none = (struct rlimit){0, were.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
  oc_status st = table(b)->mem_info(self(b), &left, &total);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &were), 0);
  ck_ok(st);
  ck_assert_uint_eq(left, 64 * MiB);
  ck_assert_uint_eq(total, 64 * MiB);
  ck_ok(oc_backend_close(b));
}
END_TEST

START_TEST(bad_frees_are_refused) {
  oc_backend *b = open_on(0, NULL);
  oc_devptr p;
  ck_ok(table(b)->alloc(self(b), 4096, &p));
  ck_status(table(b)->free(self(b), p + 8), OC_E_INVALID);
  ck_words("CUDA_ERROR_INVALID_VALUE (1)");
  ck_ok(table(b)->free(self(b), p));
  ck_status(table(b)->free(self(b), p), OC_E_INVALID);
  ck_ok(oc_backend_close(b));
}
END_TEST

START_TEST(bad_arguments_are_refused) {
  oc_backend *b = open_on(0, NULL);
  const oc_backend_ops *t = table(b);
  uint32_t one[3] = {1, 1, 1};
  size_t n;
  uint64_t calls = sim->simcuda_calls(SIMCUDA_ANY, NULL);
  ck_status(t->alloc(self(b), 1, NULL), OC_E_INVALID);
  ck_status(t->alloc_managed(self(b), 1, NULL), OC_E_INVALID);
  ck_status(t->host_alloc(self(b), 1, NULL), OC_E_INVALID);
  ck_status(t->mem_info(self(b), &n, NULL), OC_E_INVALID);
  ck_status(t->mem_info(self(b), NULL, &n), OC_E_INVALID);
  ck_status(t->stream_create(self(b), NULL), OC_E_INVALID);
  ck_status(t->event_create(self(b), NULL), OC_E_INVALID);
  ck_status(t->capturing(self(b), NULL, NULL), OC_E_INVALID);
  ck_status(t->module_load(self(b), "x", 1, NULL), OC_E_INVALID);
  ck_status(t->module_function(self(b), NULL, NULL, NULL), OC_E_INVALID);
  ck_status(t->module_function(self(b), NULL, NULL, &out_kernel), OC_E_INVALID);
  ck_words("name is NULL");
  ck_status(t->launch(self(b), NULL, NULL, one, 0, NULL, NULL), OC_E_INVALID);
  ck_status(t->launch(self(b), NULL, one, NULL, 0, NULL, NULL), OC_E_INVALID);
  ck_assert_uint_eq(sim->simcuda_calls(SIMCUDA_ANY, NULL), calls);
  ck_status(t->event_query(self(b), (oc_event)(uintptr_t)0x1234), OC_E_INVALID);
  ck_status(t->synchronize(self(b), (oc_stream)(uintptr_t)0x1234), OC_E_INVALID);
  ck_status(t->launch(self(b), (oc_kernel)(uintptr_t)0x1234, one, one, 0, NULL, NULL), OC_E_INVALID);
  ck_words("0x1234");
  ck_ok(oc_backend_close(b));
}
END_TEST

/* ---- streams ---- */

START_TEST(streams_are_nonblocking_and_events_without_timing) {
  begin();
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b);
  /* A blocking stream's capture makes the default stream unusable; a non-blocking one's does not. */
  bool capturing;
  fx_capturing(b, s, true);
  ck_ok(table(b)->capturing(self(b), s, &capturing));
  ck_assert(capturing);
  ck_ok(table(b)->capturing(self(b), NULL, &capturing));
  ck_assert(!capturing);
  fx_capturing(b, s, false);
  fx_capturing(b, NULL, true);   /* by a blocking stream: 906, which means capturing */
  ck_ok(table(b)->capturing(self(b), NULL, &capturing));
  ck_assert(capturing);
  ck_ok(table(b)->capturing(self(b), s, &capturing));
  ck_assert(!capturing);
  fx_capturing(b, NULL, false);
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

START_TEST(a_broken_capture_counts_as_capturing) {
  begin();
  oc_backend *b = fx_open(NULL);
  oc_stream s = fx_stream(b);
  bool capturing = false;
  fx_capturing(b, s, true);
  ck_status(table(b)->synchronize(self(b), s), OC_E_CAPTURING);
  ck_words("(900)");
  ck_ok(table(b)->capturing(self(b), s, &capturing));
  ck_assert(capturing);
  fx_capturing(b, s, false);
  ck_ok(table(b)->synchronize(self(b), s));
  fx_stream_free(b, s);
  fx_close(b);
}
END_TEST

/* G8 */
START_TEST(the_per_thread_stream_names_many) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_stream two = (oc_stream)(uintptr_t)2;
  oc_devptr p;
  ck_status(oc_opcache_scratch_on(oc_model_opcache(m), "act", two, 4096, &p), OC_E_INVALID);
  ck_words("per-thread");
  ck_status(oc_model_use_stream(m, two), OC_E_INVALID);
  ck_status(oc_capture_enter(m, two), OC_E_INVALID);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* ---- many threads ---- */

static void use(void *backend, unsigned i) {
  for (unsigned n = 0; n < 20; n++) {
    oc_backend *b = NULL;
    oc_devptr p;
    oc_cuda_options o = {.struct_size = sizeof o, .ordinal = (int)(i % 2)};
    ck_ok(table(backend)->alloc(self(backend), 4096, &p));
    ck_ok(oc_backend_open_cuda(&o, &b));
    call_everything(b);
    ck_ok(table(backend)->free(self(backend), p));
    ck_ok(oc_backend_close(b));
    ck_assert_ptr_null(current());
  }
}

START_TEST(backends_on_many_threads) {
  begin();
  need_sim();   /* two devices */
  oc_backend *kernels = fx_open(NULL);   /* registers them */
  oc_cuda_options o = {.struct_size = sizeof o, .ordinal = 1};
  oc_backend *b;
  ck_ok(oc_backend_open_cuda(&o, &b));
  fx_threads(4, use, b);
  ck_ok(oc_backend_close(b));
  ck_assert_int_eq(sim->simcuda_primary_refs(0), 1);
  ck_assert_int_eq(sim->simcuda_primary_refs(1), 0);
  fx_close(kernels);
}
END_TEST

int main(void) {
  Suite *s = suite_create("cuda");
  TCase *t = tcase_create("cuda");
  tcase_set_timeout(t, 60);
  tcase_add_test(t, no_driver_is_one_sentence);
  tcase_add_test(t, a_driver_without_a_symbol_is_named);
  tcase_add_test(t, no_device_is_no_driver);
  tcase_add_test(t, nothing_is_called_after_shut_down);
  tcase_add_test(t, a_forked_child_does_not_reach_the_driver);
  tcase_add_test(t, options_are_checked);
  tcase_add_test(t, the_primary_context_is_retained_and_released_once);
  tcase_add_test(t, opening_fails_at_every_call_and_keeps_nothing);
  tcase_add_loop_test(t, opening_hears_of_a_shut_down_at_any_call, 0, 10);
  tcase_add_test(t, empty_answers_at_opening_are_refused);
  tcase_add_test(t, a_context_that_is_not_released_is_logged);
  tcase_add_test(t, the_engines_own_context_is_used_and_left_alone);
  tcase_add_test(t, other_backends_have_no_context);
  tcase_add_test(t, the_current_context_is_as_before);
  tcase_add_test(t, failures_on_the_way_restore_too);
  tcase_add_test(t, each_entry_says_what_failed_and_touches_no_output);
  tcase_add_test(t, out_of_memory_says_what_is_free);
  tcase_add_test(t, answers_without_words_are_numbers);
  tcase_add_test(t, answers_become_statuses);
  tcase_add_test(t, shut_down_is_remembered_by_all_backends);
  tcase_add_loop_test(t, shut_down_is_heard_at_any_call, 0, 4);
  tcase_add_test(t, ptx_without_a_nul_is_given_one);
  tcase_add_test(t, the_compilers_log_is_in_the_words);
  tcase_add_test(t, images_that_say_they_are_longer_are_refused);
  tcase_add_test(t, a_null_function_is_not_found);
  tcase_add_test(t, managed_memory_needs_both_attributes);
  tcase_add_test(t, an_integrated_device_has_what_the_host_has);
  tcase_add_test(t, an_integrated_device_without_proc);
  tcase_add_test(t, bad_frees_are_refused);
  tcase_add_test(t, bad_arguments_are_refused);
  tcase_add_test(t, streams_are_nonblocking_and_events_without_timing);
  tcase_add_test(t, a_broken_capture_counts_as_capturing);
  tcase_add_test(t, the_per_thread_stream_names_many);
  tcase_add_test(t, backends_on_many_threads);
  suite_add_tcase(s, t);
  return fx_run(s);
}
