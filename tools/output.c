/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/output.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool cannot_write(const char *path, struct fault *why)
{
  struct quoted q;

  return oct_fault(why, "%s: cannot be written: %s", oct_quote(&q, path), strerror(errno));
}

bool oct_output_open(struct output *o, const char *path, struct fault *why)
{
  *o = (struct output){.path = path};
  if (!path)
    return true;
  o->file = oct_output_is_stdout(o) ? stdout : fopen(path, "we");
  return o->file || cannot_write(path, why);
}

bool oct_output_is_stdout(const struct output *o)
{
  return o->path && strcmp(o->path, "-") == 0;
}

bool oct_both_stdout(const char *a, const char *b)
{
  return a && b && strcmp(a, "-") == 0 && strcmp(b, "-") == 0;
}

static bool close_file(struct output *o)
{
  FILE *f = o->file;

  o->file = NULL;
  return f == stdout ? fflush(f) == 0 : fclose(f) == 0;
}

bool oct_output_write(struct output *o, json_t *document, struct fault *why)
{
  bool dumped;

  if (!o->file) {
    json_decref(document);
    return true;
  }
  if (!document) {
    oct_output_abandon(o);
    return oct_fault(why, "no memory for the JSON document");
  }
  dumped = json_dumpf(document, o->file, JSON_INDENT(2)) == 0 && fputc('\n', o->file) != EOF;
  json_decref(document);
  return oct_output_close(o, dumped, why);
}

bool oct_output_close(struct output *o, bool put, struct fault *why)
{
  if (!put)
    cannot_write(o->path, why);
  if (!close_file(o))
    put = cannot_write(o->path, why);
  if (!put && !oct_output_is_stdout(o))
    oct_output_remove(o->path);
  return put;
}

void oct_output_abandon(struct output *o)
{
  if (!o->file)
    return;
  close_file(o);
  if (!oct_output_is_stdout(o))
    oct_output_remove(o->path);
}

void oct_output_remove(const char *path)
{
  struct stat st;

  if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
    unlink(path);
}

bool oct_flush_stdout(struct fault *why)
{
  if (fflush(stdout) == 0 && !ferror(stdout))
    return true;
  return oct_fault(why, "standard output: cannot be written: %s", strerror(errno));
}
