/* SPDX-License-Identifier: MIT */
/* Curves as pictures: one SVG file each, lines over logarithmic axes or bars, named after the curve's title. */
#include "config.h"

#include "tools/bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 440, LEFT = 70, RIGHT = 190, TOP = 48, BOTTOM = 60 };

static const char *const colour[CURVE_LINES] = {"#1b6ca8", "#c2452d", "#3c8d40", "#8a5ab5", "#b88a00", "#555555"};

/* What one axis shows, from its lowest to its highest, and where that is in the picture. */
struct axis { double low, high; int from, to; };

static double place(const struct axis *a, double x)
{
  return a->from + (log10(x) - log10(a->low)) / (log10(a->high) - log10(a->low)) * (a->to - a->from);
}

/* To whole decades below and above. */
static void widen(struct axis *a, double x)
{
  if (x <= 0)
    return;
  a->low = a->low == 0 || x < a->low ? pow(10, floor(log10(x))) : a->low;
  a->high = x >= a->high ? pow(10, floor(log10(x)) + 1) : a->high;
}

static double x_of(const struct curve *c, size_t p)
{
  return c->point[p] ? (double)(p + 1) : c->at[p];
}

static void head(FILE *f, const struct curve *c)
{
  fprintf(f,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"13\">\n"
          "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
          "<text x=\"%d\" y=\"26\" font-size=\"16\">%s, %s</text>\n",
          WIDTH, HEIGHT, LEFT, c->title, c->unit);
}

/* 1,000,000 -> "1M"; marks of an axis are round. */
static void mark(FILE *f, double x)
{
  const char *unit = x >= 1e9 ? "G" : x >= 1e6 ? "M" : x >= 1e3 ? "k" : "";

  fprintf(f, "%g%s</text>\n", x / (x >= 1e9 ? 1e9 : x >= 1e6 ? 1e6 : x >= 1e3 ? 1e3 : 1), unit);
}

static void y_grid(FILE *f, const struct axis *y)
{
  // NOLINTNEXTLINE(cert-flp30-c,clang-analyzer-security.FloatLoopCounter): a line a decade
  for (double at = y->low; at <= y->high * 1.001; at *= 10) {
    fprintf(f,
            "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
            LEFT, WIDTH - RIGHT, place(y, at), place(y, at), LEFT - 8, place(y, at) + 4);
    mark(f, at);
  }
}

static void x_label(FILE *f, double at, const char *name, double number)
{
  fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", at, HEIGHT - BOTTOM + 20);
  if (name)
    fprintf(f, "%s</text>\n", name);
  else
    mark(f, number);
}

static void line(FILE *f, const struct curve *c, size_t l, const double *x, const struct axis *y)
{
  fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour[l]);
  for (size_t p = 0; p < c->points; p++)
    if (c->value[p][l] > 0)
      fprintf(f, "%.1f,%.1f ", x[p], place(y, c->value[p][l]));
  fprintf(f, "\"/>\n<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n", (double)(WIDTH - RIGHT + 12), TOP + 16.0 + 20.0 * (double)l,
          colour[l], c->line[l]);
}

static void lines(FILE *f, const struct curve *c)
{
  struct axis x = {.from = LEFT + 10, .to = WIDTH - RIGHT - 10}, y = {.from = HEIGHT - BOTTOM, .to = TOP};
  double at[CURVE_POINTS];
  bool named = c->points > 0 && c->point[0];

  for (size_t p = 0; p < c->points; p++)
    for (size_t l = 0; l < c->lines; l++)
      widen(&y, c->value[p][l]);
  x.low = x_of(c, 0);
  x.high = c->points > 1 ? x_of(c, c->points - 1) : x.low * 2;
  y_grid(f, &y);
  for (size_t p = 0; p < c->points; p++) {
    double share = c->points > 1 ? (double)p / (double)(c->points - 1) : 0;

    at[p] = named ? x.from + share * (x.to - x.from) : place(&x, x_of(c, p));
    x_label(f, at[p], c->point[p], c->at[p]);
  }
  for (size_t l = 0; l < c->lines; l++)
    line(f, c, l, at, &y);
}

static void bars(FILE *f, const struct curve *c)
{
  double most = 0, step = (double)(WIDTH - LEFT - 30) / (double)c->points;

  for (size_t p = 0; p < c->points; p++)
    most = c->value[p][0] > most ? c->value[p][0] : most;
  for (size_t p = 0; p < c->points; p++) {
    double tall = c->value[p][0] / most * (HEIGHT - TOP - BOTTOM - 20), at = LEFT + step * (double)p;

    fprintf(f,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>"
            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.2f</text>\n",
            at, HEIGHT - BOTTOM - tall, step * 0.7, tall, colour[p % CURVE_LINES], at + step * 0.35, HEIGHT - BOTTOM - tall - 6,
            c->value[p][0]);
    x_label(f, at + step * 0.35, c->point[p], c->at[p]);
  }
}

static void tail(FILE *f, const struct curve *c)
{
  fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"black\"/>\n", LEFT, c->bars ? WIDTH - 20 : WIDTH - RIGHT,
          HEIGHT - BOTTOM, HEIGHT - BOTTOM);
  if (!c->bars)
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, c->x);
  fprintf(f, "</svg>\n");
}

/* "get_ptr by derived keys" -> FOLDER/get_ptr-by-derived-keys.svg */
static bool file_name(char *out, size_t n, const char *folder, const char *title)
{
  size_t to = (size_t)snprintf(out, n, "%s/", folder);

  if (to >= n)
    return false;

  for (const char *from = title; *from && to + sizeof ".svg" < n; from++)
    if (!strchr(" ,+", *from))
      out[to++] = *from;
    else if (out[to - 1] != '-')
      out[to++] = '-';
  return snprintf(out + to, n - to, ".svg") < (int)(n - to);
}

static bool draw(const struct curve *c, const char *folder, struct fault *why)
{
  char path[1024];
  FILE *f;
  bool written;

  if (!file_name(path, sizeof path, folder, c->title))
    return oct_fault(why, "%.200s...: the name is too long", folder);
  f = fopen(path, "we");
  if (!f)
    return oct_fault(why, "%s: %s", path, strerror(errno));
  head(f, c);
  if (c->bars)
    bars(f, c);
  else
    lines(f, c);
  tail(f, c);
  written = !ferror(f);
  return (fclose(f) == 0 && written) || oct_fault(why, "%s: cannot be written: %s", path, strerror(errno));
}

bool oct_bench_draw(const struct bench *b, const char *folder, struct fault *why)
{
  for (size_t i = 0; i < b->curves; i++)
    if (!draw(&b->curve[i], folder, why))
      return false;
  return true;
}
