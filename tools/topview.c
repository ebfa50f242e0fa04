/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/topview.h"
#include "tools/number.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lines ---- */

static struct top_line *new_line(struct top_text *t, enum top_style style)
{
  if (t->count == t->room) {
    size_t room = t->room ? t->room * 2 : 32;
    struct top_line *grown = realloc(t->line, room * sizeof *grown);

    if (!grown) {
      t->failed = true;
      return NULL;
    }
    t->line = grown;
    t->room = room;
  }
  t->line[t->count] = (struct top_line){.style = style};
  return &t->line[t->count++];
}

/* Names are whatever the process wrote. */
static void make_plain(char *s)
{
  for (; *s; s++)
    if (*s < 0x20 || *s > 0x7e)
      *s = '?';
}

static void __attribute__((format(printf, 4, 5)))
add(struct top_text *t, const struct top_view *v, enum top_style style, const char *format, ...)
{
  struct top_line *line = new_line(t, style);
  va_list ap;

  if (!line)
    return;
  va_start(ap, format);
  vsnprintf(line->text, sizeof line->text, format, ap);
  va_end(ap);
  make_plain(line->text);
  if (v->width < TOP_MOST_WIDTH)
    line->text[v->width] = '\0';
}

/* ---- Figures ---- */

struct cell { char text[32]; };

static const char *scaled(struct cell *c, double n, bool tenths)
{
  static const char unit[] = " kMGTPE";
  size_t i = 0;

  for (; n >= 9999.5 && i + 2 < sizeof unit; i++)
    n /= 1000;
  snprintf(c->text, sizeof c->text, tenths ? "%.1f" : "%.0f", n);
  if (i > 0)
    snprintf(c->text + strlen(c->text), sizeof c->text - strlen(c->text), "%c", unit[i]);
  return c->text;
}

static const char *count_text(struct cell *c, uint64_t n) { return scaled(c, (double)n, false); }

static const char *rate_text(struct cell *c, double a_second) { return scaled(c, a_second, a_second > 0 && a_second < 99.95); }

static double seconds_of(const struct top_view *v)
{
  return (double)(v->now->at_ns - v->before->at_ns) / 1e9;
}

/* What came since the look before, a second. Counters only grow; in a page that does not keep to that it is 0. */
static double rate(const struct top_view *v, uint64_t before, uint64_t now)
{
  double s = seconds_of(v);

  return s > 0 && now > before ? (double)(now - before) / s : 0;
}

static const oc_stats_model *find_before(const struct top_view *v, const oc_stats_model *m)
{
  for (size_t i = 0; i < v->before->models; i++)
    if (v->before->model[i].generation == m->generation)
      return &v->before->model[i];
  return m;
}

static uint64_t misses(const oc_stats_model *m) { return m->kernel_misses + m->scratch_misses + m->derived_misses; }

/* The moments of three figures differ: never less than nothing. */
static uint64_t free_bytes(const oc_stats_model *m)
{
  uint64_t used = m->live_bytes + m->retired_bytes;

  return used < m->arena_bytes ? m->arena_bytes - used : 0;
}

static void sum_calls(const oc_stats_model *m, uint64_t *calls, uint64_t *ns)
{
  for (size_t i = 0; i < OC_CALL_KINDS; i++) {
    *calls += m->driver[i].calls;
    *ns += m->driver[i].ns;
  }
}

/* ---- The head ---- */

struct sum { uint64_t arenas, arena, live, free, retired, external, latched; double builds, misses, calls, driver_ns; };

static void add_model(struct sum *s, const struct top_view *v, const oc_stats_model *m)
{
  const oc_stats_model *b = find_before(v, m);
  uint64_t calls[2] = {0, 0}, ns[2] = {0, 0};

  sum_calls(b, &calls[0], &ns[0]);
  sum_calls(m, &calls[1], &ns[1]);
  s->arenas += m->arenas;
  s->arena += m->arena_bytes;
  s->live += m->live_bytes;
  s->free += free_bytes(m);
  s->retired += m->retired_bytes;
  s->external += m->external_bytes;
  s->latched += m->fell_back != 0;
  s->builds += rate(v, b->builds, m->builds);
  s->misses += rate(v, misses(b), misses(m));
  s->calls += rate(v, calls[0], calls[1]);
  s->driver_ns += rate(v, ns[0], ns[1]);
}

static void write_memory(struct top_text *t, const struct top_view *v, const struct sum *s)
{
  struct human a, l, f, r, e;

  add(t, v, STYLE_PLAIN, "arenas   %" PRIu64 " of %s: live %s, free %s, retired %s; external %s", s->arenas,
      oct_human_bytes(&a, s->arena), oct_human_bytes(&l, s->live), oct_human_bytes(&f, s->free),
      oct_human_bytes(&r, s->retired), oct_human_bytes(&e, s->external));
  if (s->latched)
    add(t, v, STYLE_ALERT, "latch    device memory ran out: %" PRIu64 " model%s on managed memory", s->latched,
        s->latched == 1 ? " is" : "s are");
}

static void write_rates(struct top_text *t, const struct top_view *v, const struct sum *s)
{
  const struct look *b = v->before, *n = v->now;
  struct cell k, c, d, g, bu, mi, ca;

  add(t, v, STYLE_PLAIN, "hits/s   kernel %s, scratch %s, derived %s, gate %s", rate_text(&k, rate(v, b->kernel_hits, n->kernel_hits)),
      rate_text(&c, rate(v, b->scratch_hits, n->scratch_hits)), rate_text(&d, rate(v, b->derived_hits, n->derived_hits)),
      rate_text(&g, rate(v, b->gate_hits, n->gate_hits)));
  add(t, v, STYLE_PLAIN, "builds/s %s, misses/s %s, driver calls/s %s, %.1f ms/s in them", rate_text(&bu, s->builds),
      rate_text(&mi, s->misses), rate_text(&ca, s->calls), s->driver_ns / 1e6);
}

static void write_head(struct top_text *t, const struct top_view *v)
{
  const struct look *n = v->now;
  struct sum s = {0};
  char library[sizeof v->of->head.library + 1] = "";

  memcpy(library, v->of->head.library, sizeof v->of->head.library);
  for (size_t i = 0; i < n->models; i++)
    add_model(&s, v, &n->model[i]);
  add(t, v, STYLE_TITLE, "octool top - process %" PRIu64 ", liboc %s - %zu model%s, %" PRIu64 " thread%s that hit%s", v->of->pid,
      library, n->models, n->models == 1 ? "" : "s", n->threads, n->threads == 1 ? "" : "s", v->paused ? " - PAUSED" : "");
  write_memory(t, v, &s);
  write_rates(t, v, &s);
  if (n->models_left_out || n->threads_left_out)
    add(t, v, STYLE_ALERT, "not seen %" PRIu64 " models, %" PRIu64 " threads: the page has no slot for them", n->models_left_out,
        n->threads_left_out);
}

/* ---- The table ---- */

static const char *state_text(const oc_stats_model *m)
{
  static const char *const names[] = {"live", "stopping", "releasing", "torn down"};

  return m->state < sizeof names / sizeof names[0] ? names[m->state] : "?";
}

static void put_name(struct cell *c, const oc_stats_model *m) { snprintf(c->text, sizeof c->text, "%.22s", m->name); }

/* How a column's cell is written; `b` is the model at the look before. */
typedef void (*column_fn)(struct cell *c, const struct top_view *v, const oc_stats_model *b, const oc_stats_model *m);

static void put_bytes(struct cell *c, uint64_t bytes)
{
  struct human h;

  snprintf(c->text, sizeof c->text, "%.20s", oct_human_bytes(&h, bytes));
}

#define COLUMN(name) static void name(struct cell *c, const struct top_view *v, const oc_stats_model *b, const oc_stats_model *m)
COLUMN(generation) { (void)v, (void)b; snprintf(c->text, sizeof c->text, "%" PRIu64, m->generation); }
COLUMN(state) { (void)v, (void)b; snprintf(c->text, sizeof c->text, "%s", state_text(m)); }
COLUMN(live) { (void)v, (void)b; put_bytes(c, m->live_bytes); }
COLUMN(room) { (void)v, (void)b; put_bytes(c, free_bytes(m)); }
COLUMN(retired) { (void)v, (void)b; put_bytes(c, m->retired_bytes); }
COLUMN(blocks) { (void)v, (void)b; count_text(c, m->live_blocks); }
COLUMN(arenas) { (void)v, (void)b; count_text(c, m->arenas); }
COLUMN(external) { (void)v, (void)b; put_bytes(c, m->external_bytes); }
COLUMN(builds) { rate_text(c, rate(v, b->builds, m->builds)); }
COLUMN(missed) { rate_text(c, rate(v, misses(b), misses(m))); }
COLUMN(latch) { (void)v, (void)b; snprintf(c->text, sizeof c->text, "%s", m->fell_back ? "MANAGED" : "-"); }
COLUMN(backend) { (void)v, (void)b; snprintf(c->text, sizeof c->text, "%.10s", m->backend); }

/* rank: the larger, the sooner it is left out. */
static const struct column { const char *title; unsigned width, rank; column_fn put; } columns[] = {
  {"GEN", 5, 5, generation},    {"STATE", 9, 2, state},      {"LIVE", 9, 0, live},        {"FREE", 9, 1, room},
  {"RETIRED", 9, 3, retired},   {"BLOCKS", 7, 8, blocks},    {"ARENAS", 6, 6, arenas},    {"EXTERNAL", 9, 9, external},
  {"BUILDS/S", 8, 4, builds},   {"MISSES/S", 8, 7, missed},  {"LATCH", 7, 1, latch},      {"BACKEND", 10, 10, backend}};
enum { COLUMNS = sizeof columns / sizeof columns[0], NAME_WIDTH = 22, NO_RANK = 11 };

/* Columns of a rank below this one fit. */
static unsigned rank_that_fits(unsigned width)
{
  for (unsigned rank = NO_RANK; rank > 0; rank--) {
    unsigned sum = NAME_WIDTH;

    for (size_t i = 0; i < COLUMNS; i++)
      sum += columns[i].rank < rank ? columns[i].width + 1 : 0;
    if (sum <= width)
      return rank;
  }
  return 0;
}

static void write_titles(struct top_text *t, const struct top_view *v, unsigned rank)
{
  char row[TOP_MOST_WIDTH + 1];
  int at = snprintf(row, sizeof row, "%-*s", NAME_WIDTH, "MODEL");

  for (size_t i = 0; i < COLUMNS; i++)
    if (columns[i].rank < rank)
      at += snprintf(row + at, sizeof row - (size_t)at, " %*s", (int)columns[i].width, columns[i].title);
  add(t, v, STYLE_HEADER, "%s", row);
}

static void write_row(struct top_text *t, const struct top_view *v, const oc_stats_model *m, unsigned rank)
{
  const oc_stats_model *b = find_before(v, m);
  char row[TOP_MOST_WIDTH + 1];
  struct cell c;
  int at;

  put_name(&c, m);
  at = snprintf(row, sizeof row, "%-*s", NAME_WIDTH, c.text);
  for (size_t i = 0; i < COLUMNS; i++)
    if (columns[i].rank < rank) {
      columns[i].put(&c, v, b, m);
      at += snprintf(row + at, sizeof row - (size_t)at, " %*s", (int)columns[i].width, c.text);
    }
  add(t, v, m->fell_back ? STYLE_ALERT : STYLE_PLAIN, "%s", row);
}

/* ---- The order ---- */

const char *oct_top_sort_name(enum top_sort sort)
{
  static const char *const names[SORTS] = {"live", "builds", "retired", "name", "newest"};

  return names[sort];
}

static int down(uint64_t a, uint64_t b) { return (a < b) - (a > b); }

/* qsort has no argument for it; octool top draws in one thread. */
static enum top_sort order;

static int compare(const void *pa, const void *pb)
{
  const oc_stats_model *a = *(const oc_stats_model *const *)pa, *b = *(const oc_stats_model *const *)pb;
  int c = order == SORT_LIVE      ? down(a->live_bytes, b->live_bytes)
          : order == SORT_BUILDS  ? down(a->builds, b->builds)
          : order == SORT_RETIRED ? down(a->retired_bytes, b->retired_bytes)
          : order == SORT_NAME    ? strcmp(a->name, b->name)
                                  : 0;

  return c ? c : down(a->generation, b->generation);
}

static void write_models(struct top_text *t, const struct top_view *v)
{
  const oc_stats_model **sorted = calloc(v->now->models + 1, sizeof *sorted);
  unsigned rank = rank_that_fits(v->width);

  if (!sorted) {
    t->failed = true;
    return;
  }
  for (size_t i = 0; i < v->now->models; i++)
    sorted[i] = &v->now->model[i];
  order = v->sort;
  qsort(sorted, v->now->models, sizeof *sorted, compare);
  write_titles(t, v, rank);
  for (size_t i = 0; i < v->now->models; i++)
    write_row(t, v, sorted[i], rank);
  if (v->now->models == 0)
    add(t, v, STYLE_PLAIN, "(no models)");
  free(sorted);
}

bool oct_top_write(struct top_text *t, const struct top_view *v)
{
  t->count = 0;
  t->failed = false;
  write_head(t, v);
  add(t, v, STYLE_PLAIN, "%s", "");
  write_models(t, v);
  return !t->failed;
}

void oct_top_text_free(struct top_text *t)
{
  free(t->line);
  *t = (struct top_text){0};
}
