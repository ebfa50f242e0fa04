/* SPDX-License-Identifier: MIT */
/* Rows: verdicts, the table, the JSON; and the machine that they were measured on. */
#include "config.h"

#include "tools/bench.h"
#include "tools/number.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

struct row *oct_bench_row(struct bench *b, const char *against, const char *unit, const char *name, ...)
{
  struct row *r = &b->row[b->rows < BENCH_ROWS ? b->rows++ : BENCH_ROWS - 1];
  va_list ap;

  *r = (struct row){.against = against, .unit = unit, .rounds = 1};
  va_start(ap, name);
  vsnprintf(r->name, sizeof r->name, name, ap);
  va_end(ap);
  return r;
}

void oct_row_judge(struct row *r, double value, double baseline, enum sense sense, double budget)
{
  r->value = value;
  r->baseline = baseline;
  r->sense = sense;
  r->budget = budget;
  if (sense == FASTER)
    r->ratio = baseline / value;
  else
    r->ratio = baseline > 0 ? value / baseline : value;
  r->low = r->high = r->ratio;
  r->met = sense == FASTER ? r->ratio >= budget : r->ratio <= budget;
}

void oct_row_threads(const struct bench *b, struct row *r, unsigned threads)
{
  if (b->cores < threads)
    r->unjudged = "its threads have to share a core";
}

void oct_row_other(struct row *r, const char *what, double value)
{
  if (r->others == ROW_OTHERS)
    return;
  r->other[r->others].what = what;
  r->other[r->others++].value = value;
}

struct curve *oct_bench_curve(struct bench *b, const char *title, const char *x, const char *unit)
{
  struct curve *c = &b->curve[b->curves < BENCH_CURVES ? b->curves++ : BENCH_CURVES - 1];

  *c = (struct curve){.title = title, .x = x, .unit = unit};
  return c;
}

/* ---- The machine ---- */

/* The first "model name" of /proc/cpuinfo, without its line end. */
static void processor(char *out, size_t n)
{
  FILE *f = fopen("/proc/cpuinfo", "re");
  char line[256];

  snprintf(out, n, "processor unknown");
  while (f && fgets(line, sizeof line, f)) {
    const char *name = strncmp(line, "model name", 10) == 0 ? strstr(line, ": ") : NULL;

    if (name) {
      snprintf(out, n, "%.*s", (int)strcspn(name + 2, "\n"), name + 2);
      break;
    }
  }
  if (f)
    fclose(f);
}

const char *oct_machine(void)
{
  static char text[512];
  char cpu[160];
  struct utsname u;
  double load = 0;
  struct human h;

  if (text[0])
    return text;
  processor(cpu, sizeof cpu);
  if (uname(&u) != 0)
    snprintf(u.release, sizeof u.release, "?");
  (void)!getloadavg(&load, 1);
  snprintf(text, sizeof text, "%s, %ld cores, %s, Linux %s, built with " __VERSION__ ", liboc %s, load %.1f", cpu,
           sysconf(_SC_NPROCESSORS_ONLN),
           oct_human_bytes(&h, (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE)), u.release,
           oc_version(), load);
  return text;
}

/* ---- Text ---- */

static void print_number(double x, int width)
{
  int decimals = x >= 1000 || x == (double)(int)x ? 0 : x >= 100 ? 1 : x >= 10 ? 2 : 3;

  printf(" %*.*f", width, decimals, x);
}

static bool is_judged(const struct row *r)
{
  return r->budget > 0 && !r->unjudged;
}

static void print_budget(const struct row *r)
{
  if (r->budget == 0)
    printf(" %10s %s", "-", "-");
  else
    printf(" %8.4g%s %s", r->budget, r->sense == FASTER ? "x+" : "x-", r->unjudged ? "not judged" : r->met ? "met" : "NOT MET");
}

static void print_rounds(const struct row *r)
{
  if (r->rounds == 1)
    printf("; once");
  else
    printf("; %u rounds", r->rounds);
  if (r->shared > 0)
    printf(", %u on a shared core", r->shared);
  if (r->unjudged)
    printf("; not judged: %s", r->unjudged);
}

static void print_row(const struct row *r)
{
  printf("%-40s", r->name);
  print_number(r->value, 9);
  printf(" %-3s", r->unit);
  if (r->baseline > 0)
    print_number(r->baseline, 9);
  else
    printf(" %9s", "-");
  printf(" %8.2fx [%.2f, %.2f]", r->ratio, r->low, r->high);
  print_budget(r);
  printf("\n%-40s against %s", "", r->against);
  if (r->floors > 0)
    printf(" (%.1f floors", r->floors);
  if (r->floors_most > 0)
    printf(", fair up to %.1f", r->floors_most);
  if (r->floors > 0)
    printf(")");
  for (size_t i = 2; i < r->contestants; i++)
    printf("; %s %.2f", r->contestant[i].what, r->contestant[i].median);
  for (size_t i = 0; i < r->others; i++)
    printf("; %s %.2f", r->other[i].what, r->other[i].value);
  print_rounds(r);
  printf("\n");
}

static void print_curve(const struct curve *c)
{
  printf("\n%s, %s\n%-14s", c->title, c->unit, c->x);
  for (size_t l = 0; l < c->lines; l++)
    printf(" %22s", c->line[l]);
  for (size_t p = 0; p < c->points; p++) {
    if (c->point[p])
      printf("\n%-14s", c->point[p]);
    else
      printf("\n%-14.0f", c->at[p]);
    for (size_t l = 0; l < c->lines; l++)
      print_number(c->value[p][l], 22);
  }
  printf("\n");
}

void oct_bench_print(const struct bench *b)
{
  size_t met = 0, asked = 0;

  printf("%s\n", oct_machine());
  printf("medians of each row's rounds, ratio with its quartiles; x+ at least, x- at most\n\n");
  printf("%-40s %13s %9s %9s %22s\n", "", "figure", "baseline", "ratio", "budget");
  for (size_t i = 0; i < b->rows; i++) {
    print_row(&b->row[i]);
    asked += is_judged(&b->row[i]);
    met += is_judged(&b->row[i]) && b->row[i].met;
  }
  for (size_t i = 0; i < b->curves; i++)
    print_curve(&b->curve[i]);
  printf("\n%zu of %zu budgets met%s\n", met, asked, b->quick ? " (quick: the figures mean nothing)" : "");
}

/* ---- JSON ---- */

static json_t *others_json(const struct row *r)
{
  json_t *o = json_object();

  for (size_t i = 0; i < r->others; i++)
    json_object_set_new(o, r->other[i].what, json_real(r->other[i].value));
  return o;
}

static json_t *contestants_json(const struct row *r)
{
  json_t *all = json_array();

  for (size_t i = 0; i < r->contestants; i++)
    json_array_append_new(all, json_pack("{s:s, s:f, s:f, s:f}", "name", r->contestant[i].what, "median",
                                         r->contestant[i].median, "lower_quartile", r->contestant[i].low, "upper_quartile",
                                         r->contestant[i].high));
  return all;
}

/* null: not asked, or not judged. */
static json_t *number_or_null(double x)
{
  return x > 0 ? json_real(x) : json_null();
}

static void verdict_json(json_t *o, const struct row *r)
{
  json_object_set_new(o, "budget", number_or_null(r->budget));
  json_object_set_new(o, "sense", json_string(r->sense == FASTER ? "at least" : "at most"));
  json_object_set_new(o, "met", is_judged(r) ? json_boolean(r->met) : json_null());
  if (r->unjudged)
    json_object_set_new(o, "not_judged", json_string(r->unjudged));
}

static json_t *row_json(const struct row *r)
{
  json_t *o = json_pack("{s:s, s:f, s:s, s:o, s:s, s:f, s:f, s:f, s:i, s:o, s:o, s:o}", "name", r->name, "value", r->value,
                        "unit", r->unit, "baseline", number_or_null(r->baseline), "against", r->against, "ratio", r->ratio,
                        "lower_quartile", r->low, "upper_quartile", r->high, "rounds", (int)r->rounds,
                        "rounds_on_a_shared_core", r->whole_cores ? json_integer(r->shared) : json_null(),
                        "contestants", contestants_json(r), "others", others_json(r));

  if (o)
    verdict_json(o, r);
  if (o && r->floors > 0) {
    json_object_set_new(o, "baseline_in_floors", json_real(r->floors));
    if (r->floors_most > 0)
      json_object_set_new(o, "fair_up_to", json_real(r->floors_most));
  }
  return o;
}

static json_t *point_json(const struct curve *c, size_t p)
{
  json_t *o = json_object();

  json_object_set_new(o, c->x, c->point[p] ? json_string(c->point[p]) : json_real(c->at[p]));
  for (size_t l = 0; l < c->lines; l++)
    json_object_set_new(o, c->line[l], json_real(c->value[p][l]));
  return o;
}

static json_t *curve_json(const struct curve *c)
{
  json_t *points = json_array();

  for (size_t p = 0; p < c->points; p++)
    json_array_append_new(points, point_json(c, p));
  return json_pack("{s:s, s:s, s:o}", "title", c->title, "unit", c->unit, "points", points);
}

json_t *oct_bench_json(const struct bench *b)
{
  json_t *rows = json_array(), *curves = json_array();

  for (size_t i = 0; i < b->rows; i++)
    json_array_append_new(rows, row_json(&b->row[i]));
  for (size_t i = 0; i < b->curves; i++)
    json_array_append_new(curves, curve_json(&b->curve[i]));
  return json_pack("{s:s, s:b, s:o, s:o}", "machine", oct_machine(), "quick", b->quick, "rows", rows, "curves", curves);
}
