/* SPDX-License-Identifier: MIT */
/* octool top: its options, and what it does without a screen. */
#include "config.h"

#include "tools/top.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/number.h"
#include "tools/output.h"

#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
  "usage: octool top [OPTION...] PID\n"
  "       octool top [OPTION...] --demo\n"
  "\n"
  "Shows what a running process owns through liboc, and how busy it is: models, arenas, live, free and retired bytes,\n"
  "hits, misses and builds a second, the latch. The process must have called oc_stats_publish; it does nothing more for\n"
  "it, and is not slowed. Keys: q quits, h shows the others.\n"
  "\n"
  "  --demo            look at a small workload that octool runs for it, until octool top ends\n"
  "  --interval S      look every S seconds, 0.1 to 60; default 1\n"
  "  --sort KEY        live (the default), builds, retired, name or newest first\n"
  "  --batch           text, a block a look, instead of a screen; so it is too where the output is no terminal\n"
  "  --count N         N looks, then end; default: until the process ends. Text only\n"
  "  --once            the same as --batch --count 1\n"
  "\n"
  "Rates are over the time between two looks. NO_COLOR=1: no colours. Exit status 0 when asked to end, after N looks, and\n"
  "when the process has ended; 1 where there is no such process, no page of figures, or one that is not as it should be.\n";

struct options { bool demo, batch; uint64_t pid, count; double interval; enum top_sort sort; };

bool oct_top_look(struct top *t, struct fault *why)
{
  struct look next;

  if (!oct_look(&t->of, &next, why))
    return false;
  oct_look_free(&t->before);
  t->before = t->now;
  t->now = next;
  return true;
}

/* ---- Text ---- */

/* False: interrupted, or the process has ended. */
static bool wait_for(const struct top *t)
{
  // NOLINTNEXTLINE(cert-flp30-c,clang-analyzer-security.FloatLoopCounter): a nap less or more is no matter
  for (double left = t->interval; left > 0; left -= 0.05) {
    poll(NULL, 0, 50);
    if (oct_interrupted() || !oct_watched_lives(&t->of))
      return false;
  }
  return true;
}

static bool print(struct top *t, struct fault *why)
{
  t->view.width = TOP_MOST_WIDTH;
  if (!oct_top_write(&t->text, &t->view))
    return oct_fault(why, "no memory for the text");
  for (size_t i = 0; i < t->text.count; i++)
    puts(t->text.line[i].text);
  putchar('\n');
  return oct_flush_stdout(why);
}

/* Each block's rates are over the interval before it. */
static enum top_end batch(struct top *t, uint64_t count, struct fault *why)
{
  for (uint64_t i = 0; count == 0 || i < count; i++) {
    if (!wait_for(t))
      return oct_interrupted() ? TOP_QUIT : TOP_PROCESS_ENDED;
    if (!oct_top_look(t, why))
      return oct_watched_lives(&t->of) ? TOP_FAILED : TOP_PROCESS_ENDED;
    if (!print(t, why))
      return TOP_FAILED;
  }
  return TOP_QUIT;
}

/* ---- Both ---- */

static enum top_end show(struct top *t, const struct options *o, struct fault *why)
{
  const char *no_screen = o->batch ? NULL : oct_top_no_screen();

  if (no_screen)
    oct_complain("top", "%s: a block of text every %.1f s instead", no_screen, t->interval);
  return o->batch || no_screen ? batch(t, o->count, why) : oct_top_screen(t, why);
}

static int end(const struct top *t, enum top_end how, const struct fault *why)
{
  if (how == TOP_FAILED)
    oct_complain("top", "%s", why->text);
  if (how == TOP_PROCESS_ENDED)
    oct_complain("top", "process %" PRIu64 " has ended", t->of.pid);
  return how == TOP_FAILED ? EXIT_FAILURE : oct_interrupt_exit_code();
}

static int watch(const struct options *o)
{
  struct top t = {.interval = o->interval, .view = {.of = &t.of, .before = &t.before, .now = &t.now, .sort = o->sort}};
  struct fault why = {""};
  enum top_end how = TOP_FAILED;
  int code;

  if (!oct_watch(&t.of, o->pid, &why)) {
    oct_complain("top", "%s", why.text);
    return EXIT_FAILURE;
  }
  if (oct_top_look(&t, &why) && oct_top_look(&t, &why))
    how = show(&t, o, &why);
  code = end(&t, how, &why);
  oct_look_free(&t.before);
  oct_look_free(&t.now);
  oct_top_text_free(&t.text);
  oct_unwatch(&t.of);
  return code;
}

/* ---- The demo ---- */

/* It publishes before it does anything else; that takes a moment. */
static bool wait_for_page(pid_t pid, struct fault *why)
{
  struct watched w;

  for (int i = 0; i < 100; i++) {
    if (oct_watch(&w, (uint64_t)pid, why)) {
      oct_unwatch(&w);
      return true;
    }
    poll(NULL, 0, 20);
  }
  return false;
}

static int demo(struct options *o)
{
  struct fault why;
  pid_t pid;
  int code = EXIT_FAILURE;

  if (!oct_demo_begin(&pid, &why)) {
    oct_complain("top", "%s", why.text);
    return EXIT_FAILURE;
  }
  o->pid = (uint64_t)pid;
  if (wait_for_page(pid, &why))
    code = watch(o);
  else
    oct_complain("top", "--demo: %s", why.text);
  oct_demo_end(pid);
  return code;
}

/* ---- Options ---- */

static bool sort_option(const char *text, enum top_sort *out, struct fault *why)
{
  struct quoted q;

  for (enum top_sort s = 0; s < SORTS; s++)
    if (strcmp(text, oct_top_sort_name(s)) == 0) {
      *out = s;
      return true;
    }
  return oct_fault(why, "--sort: '%s' is not live, builds, retired, name or newest", oct_quote(&q, text));
}

static bool interval_option(const char *text, double *out, struct fault *why)
{
  struct quoted q;

  if (oct_parse_seconds(text, out) && *out >= 0.1 && *out <= 60)
    return true;
  return oct_fault(why, "--interval: '%s' is not a number from 0.1 to 60", oct_quote(&q, text));
}

enum { OPT_DEMO = 256, OPT_INTERVAL, OPT_SORT, OPT_BATCH, OPT_COUNT, OPT_ONCE };

static bool take_option(struct options *o, int c, struct fault *why)
{
  switch (c) {
  case OPT_DEMO: o->demo = true; return true;
  case OPT_INTERVAL: return interval_option(optarg, &o->interval, why);
  case OPT_SORT: return sort_option(optarg, &o->sort, why);
  case OPT_BATCH: o->batch = true; return true;
  case OPT_COUNT: return oct_count_option("--count", optarg, 1, 1000000000, &o->count, why);
  default: o->batch = true; o->count = 1; return true;
  }
}

int oct_top_main(int argc, char **argv)
{
  static const struct option options[] = {
    {"demo", no_argument, NULL, OPT_DEMO},      {"interval", required_argument, NULL, OPT_INTERVAL},
    {"sort", required_argument, NULL, OPT_SORT}, {"batch", no_argument, NULL, OPT_BATCH},
    {"count", required_argument, NULL, OPT_COUNT}, {"once", no_argument, NULL, OPT_ONCE},
    {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  struct options o = {.interval = 1};
  struct fault why;
  int c;

  while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
    if (c == 'h')
      return oct_help("top", help);
    if (c == '?' || c == ':')
      return oct_bad_option("top", c, argv);
    if (!take_option(&o, c, &why))
      return oct_usage("top", "%s", why.text);
  }
  if (argc - optind != (o.demo ? 0 : 1))
    return o.demo ? oct_usage("top", "--demo takes the place of a process")
                  : oct_usage("top", "one process is expected, %d are given", argc - optind);
  if (!o.demo && !oct_count_option("PID", argv[optind], 1, 1 << 30, &o.pid, &why))
    return oct_usage("top", "%s", why.text);
  oct_interrupt_catch();
  return o.demo ? demo(&o) : watch(&o);
}
