/* SPDX-License-Identifier: MIT */
/* The subcommands. Each gets its own argv, [0] being its name, and answers with octool's exit code. */
#ifndef OCTOOL_COMMAND_H
#define OCTOOL_COMMAND_H

#include "tools/fault.h"

#include <stdbool.h>
#include <stdint.h>

enum { EXIT_USAGE = 2 };

int oct_bench_main(int argc, char **argv);
int oct_sample_main(int argc, char **argv);
int oct_inspect_main(int argc, char **argv);
int oct_run_main(int argc, char **argv);
int oct_top_main(int argc, char **argv);

/* "octool <command>: <words>" on standard error. */
void oct_complain(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, with a hint at --help. Always EXIT_USAGE. */
int oct_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Words for what getopt_long answered '?' or ':' to. */
int oct_bad_option(const char *command, int answer, char **argv);
/* Prints a help text; EXIT_SUCCESS if it could be printed. */
int oct_help(const char *command, const char *text);

/* An option's count, from `least` to `most`. */
bool oct_count_option(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out,
                      struct fault *why);

#endif
