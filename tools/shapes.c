/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/shapes.h"
#include "tools/number.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 65536, FIELDS = 4, RANK_MAX = 64 };

/* Cuts the line at its tabs. */
static bool split(char *line, char *field[FIELDS], struct fault *why)
{
  size_t n = 0;

  for (char *at = line; at; n++) {
    char *tab = strchr(at, '\t');

    if (tab)
      *tab = '\0';
    if (n < FIELDS)
      field[n] = at;
    at = tab ? tab + 1 : NULL;
  }
  return n == FIELDS || oct_fault(why, "%zu fields; name, dtype, shape and bytes are expected, with tabs between", n);
}

/* "160x40x64" */
static bool read_shape(char *text, uint64_t shape[RANK_MAX], size_t *rank, struct fault *why)
{
  struct quoted q;
  char *next;

  *rank = 0;
  for (char *at = *text ? text : NULL; at; at = next) {
    next = strchr(at, 'x');
    if (next)
      *next++ = '\0';
    if (*rank == RANK_MAX)
      return oct_fault(why, "shape has more than %d dimensions", RANK_MAX);
    if (!oct_parse_u64(at, &shape[*rank]))
      return oct_fault(why, "dimension %zu of the shape, '%s', is not a count", *rank + 1, oct_quote(&q, at));
    ++*rank;
  }
  return true;
}

static bool read_line(char *line, struct tensor_list *out, struct fault *why)
{
  uint64_t shape[RANK_MAX], bytes, expected;
  const struct dtype *type;
  char *field[FIELDS];
  struct tensor *t;
  struct quoted q;
  size_t rank;

  if (!split(line, field, why))
    return false;
  if (field[0][0] == '\0')
    return oct_fault(why, "the name is empty");
  type = oct_dtype(field[1]);
  if (!type)
    return oct_fault(why, "unknown dtype '%s'", oct_quote(&q, field[1]));
  if (!read_shape(field[2], shape, &rank, why))
    return false;
  if (!oct_parse_u64(field[3], &bytes))
    return oct_fault(why, "bytes '%s' is not a count", oct_quote(&q, field[3]));
  if (!oct_dtype_bytes(type, shape, rank, &expected))
    return oct_fault(why, "the shape overflows, or ends inside a byte");
  if (bytes != expected)
    return oct_fault(why, "%" PRIu64 " bytes, where dtype and shape make %" PRIu64, bytes, expected);
  t = oct_tensors_add(out, field[0], type, shape, rank);
  if (!t)
    return oct_fault(why, "no memory");
  t->bytes = bytes;
  return true;
}

/* The next line, without its end; a last one may lack it. *more is false where there is none. */
static bool next_line(FILE *in, char line[LINE_BYTES], bool *more, struct fault *why)
{
  size_t n = 0;
  int c;

  while ((c = getc(in)) != EOF && c != '\n') {
    if (c == '\0')
      return oct_fault(why, "has a NUL byte in it");
    if (n + 1 == LINE_BYTES)
      return oct_fault(why, "is over %d bytes long", LINE_BYTES - 1);
    line[n++] = (char)c;
  }
  line[n] = '\0';
  *more = c == '\n' || n > 0;
  return !ferror(in) || oct_fault(why, "cannot be read: %s", strerror(errno));
}

static bool read_all(FILE *in, struct tensor_list *out, struct fault *why)
{
  char line[LINE_BYTES];
  uint64_t number = 0;
  bool more;

  for (;;) {
    number++;
    if (!next_line(in, line, &more, why) || (more && !read_line(line, out, why)))
      return oct_fault_in(why, "line %" PRIu64, number);
    if (!more)
      return number > 1 || oct_fault(why, "has no tensor");
  }
}

static bool read_path(const char *path, struct tensor_list *out, struct fault *why)
{
  bool own = strcmp(path, "-") != 0, ok;
  FILE *in = own ? fopen(path, "re") : stdin;

  if (!in)
    return oct_fault(why, "cannot be opened: %s", strerror(errno));
  ok = read_all(in, out, why);
  if (own)
    fclose(in);
  return ok;
}

bool oct_shapes_read(const char *path, struct tensor_list *out, struct fault *why)
{
  struct tensor_list list = {0};
  struct quoted q;

  if (read_path(path, &list, why)) {
    *out = list;
    return true;
  }
  oct_tensors_free(&list);
  return oct_fault_in(why, "%s", strcmp(path, "-") == 0 ? "standard input" : oct_quote(&q, path));
}
