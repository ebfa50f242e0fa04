/* SPDX-License-Identifier: MIT */
/* octool bench: the library's speed, each figure beside a baseline of the same run. */
#include "config.h"

#include "tools/bench.h"
#include "tools/benchsight.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/issuerate.h"
#include "tools/number.h"
#include "tools/output.h"
#include "tools/race.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help[] =
  "usage: octool bench [--rounds N] [--json OUT] [--svg DIR] [--sight] [--quick] [NAME...]\n"
  "\n"
  "Measures the library through its shared object, each figure beside a baseline in the same run, turn by turn, and\n"
  "says which budgets are met. Only what ran while a thread had its core to itself counts, as far as that can be had:\n"
  "on a machine that does other work it takes longer, and rows say how many rounds shared a core all the same. On fewer\n"
  "cores than a row has threads it is not judged.\n"
  "\n"
  "  NAME         kernels, tags, derived, guard, swap, pool, layout, teardown, growth; all of them without one\n"
  "  --rounds N   rounds of what is timed in turn, 5 to 201 (default: 41); swap and teardown have their own number\n"
  "  --json OUT   the table as JSON; - is standard output, alone then\n"
  "  --svg DIR    draws each curve into that folder, which is made if it is not there\n"
  "  --sight      with all that shows what the library does turned on: figures published, a trace running, a thread that\n"
  "               reads all metrics ten times a second; the budgets are the same\n"
  "  --quick      little of everything, to see that it works: the figures mean nothing\n";

static const struct part { const char *name; bool (*measure)(struct bench *b, struct fault *why); } parts[] = {
  {"kernels", oct_bench_kernels}, {"tags", oct_bench_tags},     {"derived", oct_bench_derived},
  {"guard", oct_bench_guard},     {"swap", oct_bench_swap},     {"pool", oct_bench_pool},
  {"layout", oct_bench_layout},   {"teardown", oct_bench_teardown}, {"growth", oct_bench_growth}};

enum { PARTS = sizeof parts / sizeof parts[0] };

struct options { const char *json, *svg; bool sight; char **names; size_t name_count; };

static bool is_part(const char *name)
{
  for (size_t i = 0; i < PARTS; i++)
    if (strcmp(parts[i].name, name) == 0)
      return true;
  return false;
}

static bool is_asked(const struct options *o, const char *part)
{
  for (size_t i = 0; i < o->name_count; i++)
    if (strcmp(o->names[i], part) == 0)
      return true;
  return o->name_count == 0;
}

bool oct_bench_goes_on(struct fault *why)
{
  return !oct_interrupted() || oct_fault(why, "interrupted");
}

static bool measure(struct bench *b, const struct options *o, struct fault *why)
{
  for (size_t i = 0; i < PARTS; i++) {
    if (!is_asked(o, parts[i].name))
      continue;
    if (!oct_bench_goes_on(why))
      return false;
    if (!parts[i].measure(b, why))
      return oct_fault_in(why, "%s", parts[i].name);
  }
  return oct_bench_goes_on(why);
}

static bool measure_in_sight(struct bench *b, const struct options *o, struct fault *why)
{
  struct sight s = {0};
  bool ok = (!o->sight || oct_sight_on(&s, why)) && measure(b, o, why);

  return oct_sight_off(&s, ok ? why : &(struct fault){""}) && ok;
}

/* Said before the minutes of measuring, not after them. */
static bool folder_ready(const char *folder, struct fault *why)
{
  int fd;

  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return oct_fault(why, "%s: cannot be made: %s", folder, strerror(errno));
  fd = open(folder, O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || close(fd) != 0 || access(folder, W_OK | X_OK) != 0)
    return oct_fault(why, "%s: no folder that can be written: %s", folder, strerror(errno));
  return true;
}

static bool bench(struct bench *b, const struct options *o, struct fault *why)
{
  struct output out;

  (void)oct_machine();   /* before the load is the bench's own */
  if ((o->svg && !folder_ready(o->svg, why)) || !oct_output_open(&out, o->json, why))
    return false;
  if (!b->quick)
    oct_issue_learn();
  if (!measure_in_sight(b, o, why)) {
    oct_output_abandon(&out);
    return false;
  }
  if (!oct_output_is_stdout(&out))
    oct_bench_print(b);
  return oct_output_write(&out, out.file ? oct_bench_json(b) : NULL, why) && oct_flush_stdout(why) &&
         (!o->svg || oct_bench_draw(b, o->svg, why));
}

static void quicken(struct bench *b)
{
  b->quick = true;
  b->rounds = 1;
  b->window_ns = 200000;
}

int oct_bench_main(int argc, char **argv)
{
  static const struct option options[] = {
    {"rounds", required_argument, NULL, 'r'}, {"json", required_argument, NULL, 'j'}, {"svg", required_argument, NULL, 's'},
    {"quick", no_argument, NULL, 'q'}, {"sight", no_argument, NULL, 'i'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  struct options o = {0};
  static struct bench b = {.rounds = 41, .window_ns = 2 * 1000 * 1000};
  struct fault why;
  struct quoted q;
  uint64_t rounds = b.rounds;
  bool quick = false, ok;
  int c;

  while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1)
    switch (c) {
    case 'r':
      if (!oct_count_option("--rounds", optarg, ROUNDS_LEAST, ROUNDS_MOST, &rounds, &why))
        return oct_usage("bench", "%s", why.text);
      break;
    case 'j': o.json = optarg; break;
    case 's': o.svg = optarg; break;
    case 'q': quick = true; break;
    case 'i': o.sight = true; break;
    case 'h': return oct_help("bench", help);
    default: return oct_bad_option("bench", c, argv);
    }
  o.names = argv + optind;
  o.name_count = (size_t)(argc - optind);
  for (size_t i = 0; i < o.name_count; i++)
    if (!is_part(o.names[i]))
      return oct_usage("bench", "'%s' is no part of the bench", oct_quote(&q, o.names[i]));
  b.rounds = (unsigned)rounds;
  b.cores = oct_cores();
  if (quick)
    quicken(&b);
  oct_interrupt_catch();
  ok = bench(&b, &o, &why);
  if (!ok)
    oct_complain("bench", "%s", why.text);
  return oct_interrupt_exit_code() ? oct_interrupt_exit_code() : ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
