/* SPDX-License-Identifier: MIT */
/*
 * What all API tests start from: a backend, chosen by LIBOC_TEST_BACKEND (host, the default, or cuda: the real CUDA
 * backend over whatever libcuda.so.1 is found), knobs on the device under it, and a module of test kernels.
 * A test that needs what a backend lacks asks fx_can and skips that part aloud (fx_skip), never silently.
 */
#ifndef TESTS_FIXTURE_H
#define TESTS_FIXTURE_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>

#include "liboc/oc.h"

/* Check's own asserts, with the library's words. Check is told of failures only: each note that it gets is a lock and a
   write, which inside a guard is all that a hot loop would do. */
#define ck_ok(call)                                                                                    \
  do {                                                                                                 \
    oc_status ck_st_ = (call);                                                                         \
    if (ck_st_ != OC_OK) ck_abort_msg("%s: %s: %s", #call, oc_status_name(ck_st_), oc_last_error());    \
  } while (0)
#define ck_status(call, want)                                                                          \
  do {                                                                                                 \
    oc_status ck_st_ = (call);                                                                         \
    if (ck_st_ != (want))                                                                              \
      ck_abort_msg("%s: %s instead of %s: %s", #call, oc_status_name(ck_st_), oc_status_name(want), oc_last_error()); \
  } while (0)
/* The last error's words contain this. */
#define ck_words(part) ck_assert_msg(strstr(oc_last_error(), part) != NULL, "\"%s\" is not in: %s", part, oc_last_error())

struct fx_options {
  size_t device_bytes, managed_bytes;   /* 0: the device's default */
  bool no_managed, recycle, chunks, poison;
  bool no_events;                       /* the table lacks the event entries */
};

enum fx_backend { FX_HOST, FX_CUDA };
enum fx_backend fx_which(void);

/* Opened, or the test fails. NULL options: defaults. */
oc_backend *fx_open(const struct fx_options *opt);
/* Closes it and fails the test unless the device has nothing left: no memory, module, event, stale launch, bad free. */
void fx_close(oc_backend *b);
/* A model with default options, or given ones. */
oc_model *fx_model(oc_backend *b);
oc_model *fx_model_opt(oc_backend *b, oc_model_options opt);   /* struct_size is set here */

/* ---- knobs; entries by their names in oc_backend_ops ---- */
enum fx_knob { FX_STALL = 1, FX_FAIL = 2, FX_CALLS = 4, FX_CAPTURE = 8, FX_DELAY = 16, FX_STALE = 32 };
bool fx_can(enum fx_knob k);          /* false on a real driver */
#define fx_skip(why) fx_skip_at(__FILE__, __LINE__, why)
void fx_skip_at(const char *file, int line, const char *why);
void fx_stall(oc_backend *b, oc_stream s, bool stalled);
void fx_fail(oc_backend *b, const char *entry, uint64_t nth, uint64_t count, oc_status as);
void fx_delay(oc_backend *b, const char *entry, uint64_t ns);
void fx_capturing(oc_backend *b, oc_stream s, bool on);   /* begins or ends an undeclared capture on s */
uint64_t fx_calls(oc_backend *b, const char *entry);
uint64_t fx_all_calls(oc_backend *b);
uint64_t fx_stale(oc_backend *b);                         /* launches of unloaded functions */
size_t fx_used(oc_backend *b);                            /* device bytes in use */
uint64_t fx_blocks(oc_backend *b);                        /* device and managed allocations alive */
uint64_t fx_modules(oc_backend *b);
uint64_t fx_events(oc_backend *b);

/* ---- streams, memory, kernels, through the table ---- */
oc_stream fx_stream(oc_backend *b);
void fx_stream_free(oc_backend *b, oc_stream s);
void fx_sync(oc_backend *b, oc_stream s);
void fx_read(oc_backend *b, void *dst, oc_devptr src, size_t n);
void fx_write(oc_backend *b, oc_devptr dst, const void *src, size_t n);
/* The module "test" with `add` (u64 ptr, u32 n: *ptr += n, 32 bits), `fill` (u64 ptr, u32 value, u32 n: n words),
   `spin` (u64 ptr of u32 flag in host-visible memory, host device only). fx_extra_modules: same functions, other names. */
void fx_load(oc_model *m, const char *name);
const void *fx_image(size_t *bytes);                      /* what fx_load loads */
void fx_launch_add(oc_backend *b, oc_kernel k, oc_stream s, oc_devptr ptr, uint32_t n);
void fx_launch_fill(oc_backend *b, oc_kernel k, oc_stream s, oc_devptr ptr, uint32_t value, uint32_t n);

/* Runs fn(arg) on n threads at once (started together), joins all. */
void fx_threads(unsigned n, void (*fn)(void *arg, unsigned i), void *arg);
/* Sleeps; waits until cond() or 10 s have passed (then the test fails). */
void fx_msleep(unsigned ms);
#define fx_until(cond)                                                     \
  do {                                                                     \
    unsigned fx_n_ = 0;                                                    \
    while (!(cond) && fx_n_++ < 10000) fx_msleep(1);                       \
    ck_assert_msg(cond, "did not come true in time: %s", #cond);           \
  } while (0)

/* Random numbers of a property test. The seed is printed; LIBOC_TEST_SEED=n repeats a run. */
uint64_t fx_seed(void);
uint64_t fx_random(uint64_t *state);
/* n, or fewer where a sanitizer makes each step several times slower. */
unsigned fx_scale(unsigned n);

/* LIBOC_TEST_ONLY=name runs that test alone. */
bool fx_wanted(const char *test);
#undef tcase_add_test
#undef tcase_add_loop_test
#define tcase_add_test(tc, tf) tcase_add_loop_test(tc, tf, 0, 1)
#define tcase_add_loop_test(tc, tf, from, to)                             \
  do {                                                                    \
    if (fx_wanted((tf)->name)) _tcase_add_test((tc), (tf), 0, 0, (from), (to));  \
  } while (0)

/* Main of a test program: runs the suite in this process if CK_FORK=no, with a timeout fit for slow machines. */
int fx_run(Suite *s);

#endif
