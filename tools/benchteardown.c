/* SPDX-License-Identifier: MIT */
/* The end of a model of 295,251 blocks: by its teardown, beside oc_pool_free of each in the order of allocation. */
#include "config.h"

#include "tools/benchlayout.h"
#include "tools/benchworld.h"
#include "tools/clock.h"
#include "tools/device.h"
#include "tools/growth.h"
#include "tools/race.h"

#include <stdlib.h>

enum { TEARDOWNS = 7 };

struct end { double ns, frees, arenas; };

static bool free_each(oc_pool *p, const oc_devptr *at, size_t n, struct fault *why)
{
  for (size_t i = 0; i < n; i++) {
    oc_status st = oc_pool_free(p, at[i]);

    if (st != OC_OK)
      return oct_liboc_fault(why, st, "freeing block %zu of %zu", i, n);
  }
  return true;
}

static bool tear_down(oc_model *m, struct end *out, struct fault *why)
{
  oc_report *report;
  oc_status st = oc_model_teardown(m, &report);

  if (st != OC_OK)
    return oct_liboc_fault(why, st, "teardown");
  out->arenas = (double)oc_report_arenas_freed(report);
  oc_report_free(report);
  return true;
}

/* Loads x, and times its end: one by one, or by the teardown. */
static bool end_of(const struct exl3 *x, bool one_by_one, struct end *out, struct fault *why)
{
  struct void_device d;
  oc_model *m = NULL;
  oc_devptr *at = malloc(x->count * sizeof *at);
  bool ok = at || oct_fault(why, "no memory for %zu addresses", x->count);

  d.backend = NULL;
  ok = ok && oct_void_open(&d, why) && oct_void_model(&d, 0, &m, why) && oct_exl3_load(x, oc_model_pool(m), at, why);
  if (ok) {
    uint64_t began = oct_now_ns();

    ok = one_by_one ? free_each(oc_model_pool(m), at, x->count, why) : tear_down(m, out, why);
    out->ns = (double)(oct_now_ns() - began);
    out->frees = (double)d.frees;
  }
  if (m)
    (void)!oc_model_destroy(m);
  free(at);
  return d.backend ? oct_void_close(&d, ok ? why : &(struct fault){""}) && ok : ok;
}

static bool repeat(const struct bench *b, const struct exl3 *x, struct times t[2], struct end *last, struct fault *why)
{
  unsigned rounds = b->quick ? 1 : TEARDOWNS;
  struct end one;

  for (unsigned i = 0; i < rounds; i++) {
    if (!oct_bench_goes_on(why) || !end_of(x, false, last, why) || !end_of(x, true, &one, why))
      return false;
    t[0].round[i] = last->ns / 1e6;
    t[1].round[i] = one.ns / 1e6;
  }
  oct_times_close(&t[0], rounds);
  oct_times_close(&t[1], rounds);
  return true;
}

static bool measure(struct bench *b, const struct exl3 *x, struct fault *why)
{
  static const struct racer r[] = {{.what = "teardown"}, {.what = "one by one"}};
  struct times t[2] = {0};
  struct end last = {0};
  struct row *row;

  if (!repeat(b, x, t, &last, why))
    return false;
  row = oct_bench_row(b, "arenas", "", "driver frees, teardown of %zu blocks", x->count);
  oct_row_judge(row, last.frees, last.arenas, AT_MOST, 1);
  oct_row_other(row, "one a block", (double)x->count);
  row = oct_bench_row(b, "oc_pool_free of each, in the order of allocation", "ms", "teardown of %zu blocks", x->count);
  oct_row_race(row, r, t, 2, FASTER, 10);
  return true;
}

bool oct_bench_teardown(struct bench *b, struct fault *why)
{
  struct exl3 x;
  bool ok = oct_exl3_make(&x, b->quick ? EXL3_QUICK_LAYERS : EXL3_LAYERS, why) && measure(b, &x, why);

  oct_exl3_free(&x);
  return ok;
}

/* ---- As the blocks grow in number ---- */

static bool point(const struct bench *b, size_t blocks, struct curve *c, struct fault *why)
{
  struct exl3 x = {.bytes = calloc(blocks, sizeof *x.bytes), .count = blocks};
  struct times t[2] = {0};
  struct end last;
  bool ok = x.bytes || oct_fault(why, "no memory for %zu sizes", blocks);

  for (size_t i = 0; ok && i < blocks; i++)
    x.bytes[i] = 4096;
  ok = ok && repeat(b, &x, t, &last, why);
  oct_exl3_free(&x);
  if (ok)
    oct_curve_point(c, (double)blocks, (const double[]){t[0].median * 1000, t[1].median * 1000});
  return ok;
}

bool oct_grow_teardown(struct bench *b, struct fault *why)
{
  struct curve *c = oct_bench_curve(b, "teardown by live blocks", "blocks", "us");

  oct_curve_lines(c, "teardown", "oc_pool_free of each", NULL);
  for (size_t blocks = 1000; blocks <= (b->quick ? 1000u : 1000000u); blocks *= 10)
    if (!point(b, blocks, c, why))
      return false;
  return true;
}
