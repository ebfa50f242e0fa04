/* SPDX-License-Identifier: MIT */
/* Quantiles of the histogram against a sorted list of the same values: right to 1/32. */
#include "config.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "tools/histogram.h"
#include "tools/stopwatch.h"

static int ascending(const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

  return x < y ? -1 : x > y;
}

START_TEST(quantiles_agree_with_a_sorted_list)
{
  enum { N = 20000 };
  static const double q[] = {0, 0.001, 0.5, 0.9, 0.99, 0.999, 1};
  uint64_t *v = calloc(N, sizeof *v), state = 7;
  struct histogram *h = calloc(2, sizeof *h);

  for (int i = 0; i < N; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    v[i] = (state >> 20) >> (state >> 58) % 44;      /* all magnitudes */
    oct_histogram_add(&h[i % 2], v[i]);
  }
  oct_histogram_merge(&h[0], &h[1]);
  ck_assert_uint_eq(h[0].total, N);
  qsort(v, N, sizeof *v, ascending);
  for (size_t i = 0; i < sizeof q / sizeof q[0]; i++) {
    size_t rank = (size_t)fmax(ceil(q[i] * N), 1) - 1;
    double got = oct_histogram_quantile(&h[0], q[i]), want = (double)v[rank];

    ck_assert_msg(fabs(got - want) <= want / 32, "q %g: %g, sorted list %g", q[i], got, want);
  }
  free(h);
  free(v);
}
END_TEST

START_TEST(extremes_have_a_bucket)
{
  struct histogram *h = calloc(1, sizeof *h);

  ck_assert(oct_histogram_quantile(h, 0.5) == 0);
  oct_histogram_add(h, 0);
  ck_assert(oct_histogram_quantile(h, 1) == 0);
  oct_histogram_add(h, UINT64_MAX);
  ck_assert(oct_histogram_quantile(h, 1) >= 0x1p63);
  for (uint64_t i = 0; i < 64; i++) {
    struct histogram *one = calloc(1, sizeof *one);

    oct_histogram_add(one, i);
    ck_assert(oct_histogram_quantile(one, 0.5) == (double)i);      /* exact below 64 */
    free(one);
  }
  free(h);
}
END_TEST

/* An interval with nothing in it must come out near 0 once the clock's own cost is off. */
START_TEST(the_clock_is_taken_off)
{
  struct stopwatch *w = calloc(1, sizeof *w);

  oct_stopwatch_init(w);
  ck_assert_uint_gt(w->cost_ns, 0);
  for (int i = 0; i < 10000; i++) {
    oct_stopwatch_start(w);
    oct_stopwatch_stop(w);
  }
  ck_assert_uint_eq(w->durations.total, 10000);
  ck_assert(oct_histogram_quantile(&w->durations, 0.5) <= (double)w->cost_ns);
  free(w);
}
END_TEST

int main(void)
{
  Suite *s = suite_create("histogram");
  TCase *c = tcase_create("all");
  SRunner *r;
  int failed;

  tcase_add_test(c, quantiles_agree_with_a_sorted_list);
  tcase_add_test(c, extremes_have_a_bucket);
  tcase_add_test(c, the_clock_is_taken_off);
  suite_add_tcase(s, c);
  r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
