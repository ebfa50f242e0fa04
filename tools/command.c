/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/command.h"
#include "tools/number.h"
#include "tools/output.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

static void complain(const char *command, const char *format, va_list ap)
{
  fflush(stdout);
  fprintf(stderr, "octool%s%s: ", command ? " " : "", command ? command : "");
  vfprintf(stderr, format, ap);
  fputc('\n', stderr);
}

void oct_complain(const char *command, const char *format, ...)
{
  va_list ap;

  va_start(ap, format);
  complain(command, format, ap);
  va_end(ap);
}

int oct_usage(const char *command, const char *format, ...)
{
  va_list ap;

  va_start(ap, format);
  complain(command, format, ap);
  va_end(ap);
  fprintf(stderr, "Try 'octool %s%s--help'.\n", command ? command : "", command ? " " : "");
  return EXIT_USAGE;
}

int oct_bad_option(const char *command, int answer, char **argv)
{
  struct quoted q;

  if (answer == ':')
    return oct_usage(command, "option '%s' needs an argument", oct_quote(&q, argv[optind - 1]));
  return oct_usage(command, "'%s' is no option here, or takes no argument", oct_quote(&q, argv[optind - 1]));
}

int oct_help(const char *command, const char *text)
{
  struct fault why;

  fputs(text, stdout);
  if (oct_flush_stdout(&why))
    return EXIT_SUCCESS;
  oct_complain(command, "%s", why.text);
  return EXIT_FAILURE;
}

bool oct_count_option(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out,
                      struct fault *why)
{
  struct quoted q;

  if (oct_parse_u64(text, out) && *out >= least && *out <= most)
    return true;
  return oct_fault(why, "%s: '%s' is not a number from %" PRIu64 " to %" PRIu64, option, oct_quote(&q, text), least,
                   most);
}
