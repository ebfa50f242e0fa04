/* SPDX-License-Identifier: MIT */
/*
 * octool bench, and what its parts share.
 *
 * bench: the options, and what was measured. Owned by the subcommand; parts add to it from the main thread.
 * row: one line of the table: a figure beside its baseline of the same run, and the budget for their ratio. A row of a race
 *   has all its contestants: the figure, the baseline, others that ran beside them.
 * curve: figures as one thing grows; drawn, and in the JSON.
 */
#ifndef OCTOOL_BENCH_H
#define OCTOOL_BENCH_H

#include "liboc/oc.h"
#include "tools/fault.h"
#include "tools/histogram.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_ROWS = 64, BENCH_CURVES = 16, CURVE_POINTS = 32, CURVE_LINES = 6, ROW_OTHERS = 4, RACERS = 8 };

/* FASTER: ratio = baseline / value, at least the budget. AT_MOST: ratio = value / baseline, at most the budget; where
   there is no baseline (0) the ratio is the value itself. */
enum sense { FASTER, AT_MOST };

/* Median and quartiles of its rounds. */
struct contestant { const char *what; double median, low, high; };

struct row {
  char name[64];                 /* "kernel_k, 2 threads" */
  const char *against;           /* what the baseline is */
  const char *unit;
  double value, baseline;        /* medians */
  double low, high;              /* the ratio's quartiles over the rounds */
  double ratio;                  /* the median of the rounds' */
  double budget;                 /* 0: none */
  enum sense sense;
  double floors, floors_most;    /* the baseline in floors of this run, and what a fair opponent takes; 0: not asked */
  struct contestant contestant[RACERS];
  size_t contestants;
  struct { const char *what; double value; } other[ROW_OTHERS];   /* counted beside them */
  size_t others;
  unsigned rounds;               /* that it is of; 1: counted, or measured once */
  bool whole_cores;              /* only what ran on a core of its own counts, as race.h has it */
  unsigned shared;               /* where it does: rounds in which a neighbour had part of a core all the same */
  const char *unjudged;          /* why the budget says nothing on this machine; NULL: it is judged */
  bool met;
};

struct curve {
  const char *title, *x, *unit;
  const char *line[CURVE_LINES];
  size_t lines, points;
  double at[CURVE_POINTS];
  double value[CURVE_POINTS][CURVE_LINES];
  bool bars;                     /* drawn so; each point has its own name then */
  const char *point[CURVE_POINTS];
};

struct bench {
  bool quick;
  unsigned cores;                /* that this process may use */
  unsigned rounds;               /* of a race */
  uint64_t window_ns;            /* of one contestant in one round */
  double floor_ns;
  struct row row[BENCH_ROWS];
  size_t rows;
  struct curve curve[BENCH_CURVES];
  size_t curves;
};

/* The next row, named; it is the caller's to fill. */
struct row *oct_bench_row(struct bench *b, const char *against, const char *unit, const char *name, ...)
  __attribute__((format(printf, 4, 5)));
/* From one figure and, where there is one, its baseline, each measured once or by count: ratio and verdict. */
void oct_row_judge(struct row *r, double value, double baseline, enum sense sense, double budget);
/* That many threads at once: where they have to share a core, the row says nothing. */
void oct_row_threads(const struct bench *b, struct row *r, unsigned threads);
/* Another figure, listed beside it. */
void oct_row_other(struct row *r, const char *what, double value);
struct curve *oct_bench_curve(struct bench *b, const char *title, const char *x, const char *unit);

/* False, in words, once Ctrl-C or SIGTERM came: long work asks between its rounds. */
bool oct_bench_goes_on(struct fault *why);

/* One line on the processor, its cores, the kernel, the compiler, and the load when it was first asked. */
const char *oct_machine(void);
void oct_bench_print(const struct bench *b);
json_t *oct_bench_json(const struct bench *b);
/* A file for each curve, in the folder. */
bool oct_bench_draw(const struct bench *b, const char *folder, struct fault *why);

/* The parts, in the order of the table. */
bool oct_bench_kernels(struct bench *b, struct fault *why);
bool oct_bench_tags(struct bench *b, struct fault *why);
bool oct_bench_derived(struct bench *b, struct fault *why);
bool oct_bench_guard(struct bench *b, struct fault *why);
bool oct_bench_swap(struct bench *b, struct fault *why);
bool oct_bench_pool(struct bench *b, struct fault *why);
bool oct_bench_layout(struct bench *b, struct fault *why);
bool oct_bench_teardown(struct bench *b, struct fault *why);
bool oct_bench_growth(struct bench *b, struct fault *why);

#endif
