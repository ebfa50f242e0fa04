/* SPDX-License-Identifier: MIT */
/* octool: liboc's main job on real weights, and the plans and inputs around it. */
#include "config.h"

#include "liboc/oc.h"
#include "tools/command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
  "usage: octool COMMAND [OPTION...] [ARGUMENT...]\n"
  "\n"
  "  sample    write a small transformer-shaped model as a safetensors file\n"
  "  inspect   list tensors, and lay them out in device memory with the real pool\n"
  "  run       load models, derive and verify their encodings, serve, swap, tear down\n"
  "  top       look at what a running process owns, and how busy it is\n"
  "  bench     how fast the library is, beside baselines in the same run\n"
  "\n"
  "  octool COMMAND --help    a command's options\n"
  "  octool --version         the library's version\n"
  "\n"
  "Exit status: 0 success; 1 failure, with the reason on standard error; 2 wrong usage; 130 interrupted.\n";

static const struct { const char *name; int (*main)(int argc, char **argv); } commands[] = {
  {"sample", oct_sample_main}, {"inspect", oct_inspect_main}, {"run", oct_run_main},
  {"top", oct_top_main}, {"bench", oct_bench_main}};

static int version(void)
{
  char text[64];

  snprintf(text, sizeof text, "octool, liboc %s\n", oc_version());
  return oct_help(NULL, text);
}

int main(int argc, char **argv)
{
  struct quoted q;

  /* A file that grows past the process's limit is then a failed write like any other. */
  signal(SIGXFSZ, SIG_IGN);
  if (argc < 2)
    return oct_usage(NULL, "a command is missing");
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
    return oct_help(NULL, help);
  if (strcmp(argv[1], "--version") == 0)
    return version();
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
    if (strcmp(argv[1], commands[i].name) == 0)
      return commands[i].main(argc - 1, argv + 1);
  return oct_usage(NULL, "'%s' is no command", oct_quote(&q, argv[1]));
}
