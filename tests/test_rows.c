/* SPDX-License-Identifier: MIT */
/* What no run of a model can be made to do for sure: a report without room, two events of one moment, a count that comes late. */
#include "config.h"

#include <jansson.h>
#include <string.h>

#include "liboc/model.h"
#include "liboc/report.h"
#include "liboc/sight.h"
#include "liboc/trace.h"
#include "tests/fixture.h"

/* G23: a report says what it has no room for. */
START_TEST(g23_rows_that_do_not_fit_are_counted) {
  for (int missing = 0; missing < 3; missing++) {
    oc_report *r = oci_report_new("crowded", 7, 2);
    for (int i = 0; i < 2 + missing; i++) oci_report_add(r, OC_E_IO, "part", "number %d", i);
    oci_report_end(r, OC_E_TEARDOWN);
    ck_assert_uint_eq(oc_report_count(r), 2);
    char *text = oc_report_text(r), *json = oc_report_json(r), more[32];
    snprintf(more, sizeof more, "\n  and %d more\n", missing);
    ck_assert_int_eq(strstr(text, more) != NULL, missing > 0);
    ck_assert_ptr_nonnull(strstr(text, "number 1"));
    json_t *j = json_loads(json, 0, NULL);
    ck_assert_ptr_nonnull(j);
    ck_assert_int_eq(json_integer_value(json_object_get(j, "rows_left_out")), missing);
    ck_assert_uint_eq(json_array_size(json_object_get(j, "rows")), 2);
    json_decref(j);
    oc_string_free(text);
    oc_string_free(json);
    oc_report_free(r);
  }
}
END_TEST

struct gathered { char text[8192]; size_t n; };

static oc_status gather(void *arg, const char *json, size_t n) {
  struct gathered *g = arg;
  ck_assert_uint_lt(g->n + n, sizeof g->text);
  memcpy(g->text + g->n, json, n);
  g->n += n;
  return OC_OK;
}

/* The wider is the outer one, whichever was written first; of two that are equal each lies in the other. */
START_TEST(spans_that_begin_at_once_nest) {
  const uint64_t ns[] = {1000, 3000, 2000, 3000};
  struct gathered g = {.n = 0};
  ck_ok(oc_trace_start(NULL));
  uint64_t begin = oci_now_ns();
  for (int i = 0; i < 4; i++)
    oci_trace_add(&(struct event){.kind = EVENT_DRIVER, .begin = begin, .ns = ns[i], .thread = 5, .generation = 1, .name = "call"});
  ck_ok(oc_trace_stop(gather, &g));
  json_t *d = json_loads(g.text, 0, NULL), *e;
  size_t i, spans = 0;
  double last = 1e9;
  ck_assert_ptr_nonnull(d);
  json_array_foreach(json_object_get(d, "traceEvents"), i, e) {
    const char *ph = json_string_value(json_object_get(e, "ph"));
    ck_assert_msg(*ph == 'X' || *ph == 'M', "phase %s: on a track of its own", ph);
    if (*ph != 'X') continue;
    double dur = json_number_value(json_object_get(e, "dur"));
    ck_assert(dur <= last);
    last = dur;
    spans++;
  }
  ck_assert_uint_eq(spans, 4);
  json_decref(d);
}
END_TEST

/* A writer that saw the trace on, and comes when it is over. */
START_TEST(an_event_that_comes_late_is_nobodys) {
  const struct event e = {.kind = EVENT_INSTANT, .begin = oci_now_ns(), .thread = 5, .generation = 1, .name = "late"};
  struct gathered g = {.n = 0};
  oci_trace_add(&e);
  ck_ok(oc_trace_start(NULL));
  ck_ok(oc_trace_stop(NULL, NULL));
  oci_trace_add(&e);
  ck_ok(oc_trace_start(NULL));
  ck_ok(oc_trace_stop(gather, &g));
  ck_assert_ptr_null(strstr(g.text, "late"));
  ck_assert_ptr_nonnull(strstr(g.text, "\"dropped\":\"0\""));
}
END_TEST

/* ---- a count of the page ---- */

struct counting {
  oc_model *m;
  unsigned wrong;   /* atomic */
};

#define MISSES 100000u

static void miss(void *arg, unsigned i) {
  struct counting *x = arg;
  uint64_t last = 0;
  (void)i;
  for (unsigned n = 1; n <= fx_scale(MISSES); n++) {
    oci_sight_miss(x->m, MISS_KERNEL, "a kernel");
    uint64_t now = __atomic_load_n(&x->m->shown->kernel_misses, __ATOMIC_RELAXED);
    if (now < n || now < last) __atomic_add_fetch(&x->wrong, 1, __ATOMIC_RELAXED);
    last = now;
  }
}

/* Sums come to the page in any order: it never goes back, and has the last one at the end. */
START_TEST(a_count_of_the_page_only_grows) {
  oc_backend *b = fx_open(NULL);
  struct counting x = {.m = fx_model(b)};
  ck_ok(oc_stats_publish(NULL));
  fx_threads(4, miss, &x);
  ck_assert_uint_eq(x.wrong, 0);
  ck_assert_uint_eq(x.m->shown->kernel_misses, 4 * fx_scale(MISSES));
  ck_ok(oc_stats_unpublish());
  ck_ok(oc_model_destroy(x.m));
  fx_close(b);
}
END_TEST

START_TEST(a_kind_that_is_none_has_a_name) {
  ck_assert_str_eq(oci_kind_name(KINDS_MAX), "?");
  ck_assert_str_eq(oci_kind_name(KINDS_MAX - 1), "?");   /* not registered */
  ck_assert_str_eq(oci_kind_owner(KINDS_MAX), "derived ?");
  ck_assert_str_eq(oci_kind_name(OC_BF16), "bf16");
  ck_assert_str_eq(oci_kind_owner(OC_BF16), "derived bf16");
}
END_TEST

int main(void) {
  Suite *s = suite_create("rows");
  TCase *t = tcase_create("rows");
  suite_add_tcase(s, t);
  tcase_add_test(t, g23_rows_that_do_not_fit_are_counted);
  tcase_add_test(t, spans_that_begin_at_once_nest);
  tcase_add_test(t, an_event_that_comes_late_is_nobodys);
  tcase_add_test(t, a_count_of_the_page_only_grows);
  tcase_add_test(t, a_kind_that_is_none_has_a_name);
  return fx_run(s);
}
