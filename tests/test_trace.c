/* SPDX-License-Identifier: MIT */
/* The trace: JSON in the trace-event format, a row a thread, spans that nest, tracks of bytes; bounded; over when it is. */
#include "config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/world.h"

static oc_backend *traced;   /* what threads make streams on */

struct gathered { char *text; size_t n, pieces; oc_status answer; };

static oc_status gather(void *arg, const char *json, size_t n) {
  struct gathered *g = arg;
  g->pieces++;
  g->text = realloc(g->text, g->n + n + 1);
  memcpy(g->text + g->n, json, n);
  g->n += n;
  g->text[g->n] = '\0';
  return g->answer;
}

static const char *text_of(const json_t *e, const char *name) {
  const char *s = json_string_value(json_object_get(e, name));
  ck_assert_msg(s != NULL, "an event without %s", name);
  return s;
}

static double number_of(const json_t *e, const char *name) {
  const json_t *v = json_object_get(e, name);
  ck_assert_msg(json_is_number(v), "an event without %s", name);
  return json_number_value(v);
}

/* What the format asks of each phase that we use. */
static void check_event(const json_t *e) {
  char ph = *text_of(e, "ph");
  ck_assert(json_is_integer(json_object_get(e, "pid")) && json_is_integer(json_object_get(e, "tid")));
  ck_assert_str_ne(text_of(e, "name"), "");
  ck_assert(json_is_object(json_object_get(e, "args")));
  if (ph != 'M') ck_assert(number_of(e, "ts") >= 0);
  switch (ph) {
  case 'M': ck_assert_ptr_nonnull(strstr("process_name thread_name", text_of(e, "name"))); break;
  case 'X': ck_assert(number_of(e, "dur") >= 0); text_of(e, "cat"); break;
  case 'i': ck_assert_str_eq(text_of(e, "s"), "t"); break;
  case 'b': case 'e': ck_assert(json_is_integer(json_object_get(e, "id"))); text_of(e, "cat"); break;
  case 'C':
    number_of(json_object_get(e, "args"), "retired");
    ck_assert(number_of(json_object_get(e, "args"), "live") <= number_of(json_object_get(e, "args"), "arenas"));
    break;
  default: ck_abort_msg("phase %c", ph);
  }
}

/* Spans of a row lie inside one another or apart: else a viewer draws nonsense. */
static void check_nesting(const json_t *events) {
  size_t i, k;
  json_t *x, *y;
  json_array_foreach(events, i, x) {
    if (*text_of(x, "ph") != 'X') continue;
    double from = number_of(x, "ts"), to = from + number_of(x, "dur");
    json_array_foreach(events, k, y) {
      if (k <= i || *text_of(y, "ph") != 'X' || number_of(x, "tid") != number_of(y, "tid")) continue;
      double f = number_of(y, "ts"), t = f + number_of(y, "dur"), slop = 0.0011;   /* microseconds, three decimals */
      ck_assert_msg(f >= to - slop || t <= from + slop || (f >= from - slop && t <= to + slop) || (from >= f - slop && to <= t + slop),
                    "%s %f..%f and %s %f..%f cross", text_of(x, "name"), from, to, text_of(y, "name"), f, t);
    }
  }
}

/* Down the document, a row's events are in the order of time, and so are a track's figures. The end of an asynchronous span
   stands with its begin. */
static void check_order(const json_t *events) {
  double last = -1;
  json_int_t row = -1;
  size_t i;
  json_t *e;
  json_array_foreach(events, i, e) {
    char ph = *text_of(e, "ph");
    if (ph == 'M' || ph == 'e') continue;
    json_int_t tid = json_integer_value(json_object_get(e, "tid"));
    ck_assert_msg((ph == 'C') == (tid == 0), "%c on row %lld", ph, (long long)tid);
    ck_assert_msg(tid != row || number_of(e, "ts") >= last, "row %lld goes back from %f to %f", (long long)tid, last, number_of(e, "ts"));
    ck_assert_msg(tid >= row, "row %lld in two parts", (long long)tid);
    row = tid;
    last = number_of(e, "ts");
  }
}

static json_t *stop(size_t *dropped) {
  struct gathered g = {0};
  ck_ok(oc_trace_stop(gather, &g));
  json_error_t why;
  json_t *d = json_loads(g.text, 0, &why);
  ck_assert_msg(d != NULL, "%s at %d: %s", why.text, why.line, g.text);
  const json_t *events = json_object_get(d, "traceEvents");
  size_t i;
  json_t *e;
  ck_assert(json_is_array(events));
  json_array_foreach(events, i, e) check_event(e);
  check_nesting(events);
  check_order(events);
  if (dropped) *dropped = (size_t)atoll(text_of(json_object_get(d, "otherData"), "dropped"));
  free(g.text);
  return d;
}

static size_t count(const json_t *d, const char *ph, const char *name) {
  size_t i, n = 0;
  json_t *e;
  json_array_foreach(json_object_get(d, "traceEvents"), i, e)
    if (strcmp(text_of(e, "ph"), ph) == 0 && (!name || strcmp(text_of(e, "name"), name) == 0)) n++;
  return n;
}

static oc_status cook(oc_build *b, void *arg, uint64_t *out) {
  oc_stream s = arg;
  oc_status st = s ? oc_build_on_stream(b, s) : OC_OK;
  return st ? st : oc_build_alloc(b, 1000, 0, out);
}

static void work(void *arg, unsigned i) {
  oc_model *m = arg;
  oc_stream s = fx_stream(traced);
  uint64_t value;
  for (uint64_t k = 0; k < 5; k++)
    ck_ok(oc_derived_get_or_build_ptr(oc_model_derived(m), OC_BF16, 0x7f0000 + 16 * (i * 100 + k), cook, s, &value));
  ck_ok(oc_model_forget_stream(m, s));
  fx_stream_free(traced, s);
}

START_TEST(builds_calls_and_bytes_of_two_threads) {
  oc_backend *b = fx_open(NULL);
  traced = b;
  ck_ok(oc_trace_start(NULL));
  oc_model *m = fx_model(b);
  fx_load(m, "test");
  fx_threads(2, work, m);
  char track[64];
  snprintf(track, sizeof track, "model %llu bytes", (unsigned long long)oc_model_generation(m));
  ck_ok(oc_model_destroy(m));
  size_t dropped;
  json_t *d = stop(&dropped);
  ck_assert_uint_eq(dropped, 0);
  ck_assert_uint_eq(count(d, "X", "bf16"), 10);
  ck_assert_uint_eq(count(d, "X", "module_load"), 1);
  ck_assert_uint_eq(count(d, "X", "alloc"), 1);
  ck_assert_uint_ge(count(d, "X", "event_record"), 10);
  ck_assert_uint_eq(count(d, "X", "wait for readers"), 1);
  ck_assert_uint_eq(count(d, "i", "done"), 1);
  ck_assert_uint_ge(count(d, "C", track), 2);
  ck_assert_uint_ge(count(d, "M", "thread_name"), 3);
  json_decref(d);
  fx_close(b);
}
END_TEST

/* Begun A, B; ended A, B: crosswise. */
START_TEST(builds_that_cross_get_a_track_of_their_own) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_build *build[2];
  uint64_t out[2];
  oc_devptr p;
  ck_ok(oc_trace_start(NULL));
  for (int i = 0; i < 2; i++) {
    ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 0x7f0000u + (uint64_t)i * 16, &build[i], out), OC_MISS);
    fx_msleep(1);
  }
  for (int i = 0; i < 2; i++) {
    ck_ok(oc_build_alloc(build[i], 100, 0, &p));
    ck_ok(oc_build_commit(build[i], (uint64_t[2]){p, 0}, NULL));
    fx_msleep(1);
  }
  json_t *d = stop(NULL);
  ck_assert_uint_eq(count(d, "X", "bf16"), 1);
  ck_assert_uint_eq(count(d, "b", "bf16"), 1);
  ck_assert_uint_eq(count(d, "e", "bf16"), 1);
  json_decref(d);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Of a build that was open when the trace began, what lies in the trace. */
START_TEST(a_build_begun_before_the_trace) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_build *build;
  uint64_t out[2];
  oc_devptr p;
  ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 0x7f0000, &build, out), OC_MISS);
  fx_msleep(30);
  ck_ok(oc_trace_start(NULL));
  ck_ok(oc_build_alloc(build, 100, 0, &p));
  ck_ok(oc_build_commit(build, (uint64_t[2]){p, 0}, NULL));
  json_t *d = stop(NULL);
  size_t i;
  json_t *e;
  json_array_foreach(json_object_get(d, "traceEvents"), i, e) {
    if (*text_of(e, "ph") != 'X' || strcmp(text_of(e, "name"), "bf16") != 0) continue;
    ck_assert_msg(number_of(e, "ts") == 0, "begins at %f", number_of(e, "ts"));
    ck_assert_msg(number_of(e, "dur") < 30000, "takes %f us", number_of(e, "dur"));
  }
  ck_assert_uint_eq(count(d, "X", "bf16"), 1);
  json_decref(d);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Forty builds within one another: a row shows 32 of them so, the others on tracks of their own. */
START_TEST(a_row_is_so_deep) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  oc_build *build[40];
  uint64_t out[2];
  ck_ok(oc_trace_start(NULL));
  for (uint64_t i = 0; i < 40; i++)
    ck_status(oc_derived_begin(oc_model_derived(m), OC_BF16, 0x7f0000 + i, &build[i], out), OC_MISS);
  for (int i = 39; i >= 0; i--) oc_build_abort(build[i]);
  json_t *d = stop(NULL);
  ck_assert_uint_eq(count(d, "X", "bf16"), 32);
  ck_assert_uint_eq(count(d, "b", "bf16"), 8);
  ck_assert_uint_eq(count(d, "e", "bf16"), 8);
  json_decref(d);
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* Text goes out in pieces; the one that is refused is the last. */
START_TEST(a_callback_that_fails_is_not_called_again) {
  oc_backend *b = fx_open(NULL);
  oc_model *m = fx_model(b);
  for (int fails = 0; fails < 2; fails++) {
    struct gathered g = {.answer = fails ? OC_E_IO : OC_OK};
    oc_devptr p;
    ck_ok(oc_trace_start(NULL));
    for (int i = 0; i < 1000; i++) {
      ck_ok(oc_pool_alloc(oc_model_pool(m), 256, 0, &p));
      ck_ok(oc_pool_free_on(oc_model_pool(m), p, NULL));
    }
    ck_status(oc_trace_stop(gather, &g), g.answer);
    if (fails) ck_assert_uint_eq(g.pieces, 1);
    else ck_assert_uint_gt(g.pieces, 2);
    free(g.text);
  }
  ck_ok(oc_model_destroy(m));
  fx_close(b);
}
END_TEST

/* No lock of ours is held while the callback runs: it may fork, to pipe into another program say. */
static oc_status fork_in_it(void *arg, const char *json, size_t n) {
  (void)json;
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  int status;
  *(size_t *)arg += n;
  return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 ? OC_OK : OC_E_IO;
}

START_TEST(a_callback_may_fork) {
  size_t bytes = 0;
  oc_backend *b = fx_open(NULL);
  ck_ok(oc_trace_start(NULL));
  ck_ok(oc_model_destroy(fx_model(b)));
  ck_ok(oc_trace_stop(fork_in_it, &bytes));
  ck_assert_uint_gt(bytes, 0);
  fx_close(b);
}
END_TEST

START_TEST(what_there_is_no_room_for_is_counted) {
  oc_backend *b = fx_open(NULL);
  oc_trace_options opt = {.struct_size = sizeof opt, .events = 3};
  ck_ok(oc_trace_start(&opt));
  oc_model *m = fx_model(b);
  fx_load(m, "test");
  ck_ok(oc_model_destroy(m));
  size_t dropped;
  json_t *d = stop(&dropped);
  ck_assert_uint_eq(count(d, "X", NULL) + count(d, "i", NULL) + count(d, "C", NULL), 3);
  ck_assert_uint_gt(dropped, 3);
  json_decref(d);
  fx_close(b);
}
END_TEST

START_TEST(g33_one_at_a_time_and_nonsense) {
  oc_trace_options opt = {.struct_size = sizeof opt};
  struct gathered g = {.answer = OC_E_IO};
  ck_status(oc_trace_stop(gather, &g), OC_E_NOT_FOUND);
  opt.flags = 1;
  ck_status(oc_trace_start(&opt), OC_E_INVALID);
  opt = (oc_trace_options){.struct_size = sizeof opt, .events = SIZE_MAX};
  ck_status(oc_trace_start(&opt), OC_E_INVALID);
  opt = (oc_trace_options){.struct_size = 4};
  ck_status(oc_trace_start(&opt), OC_E_INVALID);
  ck_ok(oc_trace_start(NULL));
  ck_status(oc_trace_start(NULL), OC_E_BUSY);
  ck_status(oc_trace_stop(gather, &g), OC_E_IO);
  ck_assert_uint_eq(g.pieces, 1);
  ck_ok(oc_trace_start(NULL));
  g.answer = OC_MISS;
  ck_status(oc_trace_stop(gather, &g), OC_E_INVALID);
  ck_ok(oc_trace_start(NULL));
  ck_ok(oc_trace_stop(NULL, NULL));
  ck_status(oc_trace_stop(gather, &g), OC_E_NOT_FOUND);
  ck_assert_uint_eq(g.pieces, 2);
  free(g.text);
}
END_TEST

struct busy { oc_model *m; unsigned over; };

static void churn(void *arg, unsigned i) {
  struct busy *w = arg;
  if (i == 0) {
    for (unsigned n = fx_scale(200); n; n--) {
      oc_trace_options opt = {.struct_size = sizeof opt, .events = n % 7 + 1};
      ck_ok(oc_trace_start(&opt));
      ck_ok(oc_trace_stop(NULL, NULL));
    }
    __atomic_store_n(&w->over, 1, __ATOMIC_RELEASE);
    return;
  }
  oc_stream s = fx_stream(traced);
  oc_devptr p;
  while (!__atomic_load_n(&w->over, __ATOMIC_ACQUIRE)) {
    ck_ok(oc_pool_alloc(oc_model_pool(w->m), 1000, 0, &p));
    ck_ok(oc_pool_free_on(oc_model_pool(w->m), p, s));
  }
  ck_ok(oc_model_forget_stream(w->m, s));
  fx_stream_free(traced, s);
}

/* No event is written into memory of a trace that is over. */
START_TEST(traces_come_and_go_under_load) {
  oc_backend *b = fx_open(NULL);
  traced = b;
  struct busy w = {.m = fx_model(b)};
  fx_threads(3, churn, &w);
  ck_ok(oc_model_destroy(w.m));
  fx_close(b);
}
END_TEST

static Suite *suite(void) {
  Suite *s = suite_create("trace");
  TCase *t = tcase_create("trace");
  tcase_add_test(t, builds_calls_and_bytes_of_two_threads);
  tcase_add_test(t, builds_that_cross_get_a_track_of_their_own);
  tcase_add_test(t, a_build_begun_before_the_trace);
  tcase_add_test(t, a_row_is_so_deep);
  tcase_add_test(t, a_callback_that_fails_is_not_called_again);
  tcase_add_test(t, a_callback_may_fork);
  tcase_add_test(t, what_there_is_no_room_for_is_counted);
  tcase_add_test(t, g33_one_at_a_time_and_nonsense);
  tcase_add_test(t, traces_come_and_go_under_load);
  suite_add_tcase(s, t);
  return s;
}

int main(void) { return fx_run(suite()); }
