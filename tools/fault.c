/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void oct_fault_write(struct fault *f, const char *format, ...)
{
  va_list ap;

  va_start(ap, format);
  vsnprintf(f->text, sizeof f->text, format, ap);
  va_end(ap);
}

void oct_fault_prefix(struct fault *f, const char *format, ...)
{
  struct fault inner = *f;
  va_list ap;
  size_t n;

  va_start(ap, format);
  vsnprintf(f->text, sizeof f->text, format, ap);
  va_end(ap);
  n = strlen(f->text);
  snprintf(f->text + n, sizeof f->text - n, ": %s", inner.text);
}

static size_t put_escaped(char *out, unsigned char c)
{
  static const char hex[] = "0123456789abcdef";

  if (c >= 0x20 && c != 0x7f && c != '\\') {
    out[0] = (char)c;
    return 1;
  }
  out[0] = '\\';
  out[1] = 'x';
  out[2] = hex[c >> 4];
  out[3] = hex[c & 15];
  return 4;
}

/* Continuation bytes of UTF-8 must not be torn from what they continue. */
static const char *character_start(const char *s)
{
  while (((unsigned char)*s & 0xc0) == 0x80)
    s++;
  return s;
}

const char *oct_quote(struct quoted *q, const char *name)
{
  enum { ROOM = sizeof q->text - 1, TAIL = 32, ELLIPSIS = 3 };
  size_t length = strlen(name), out = 0;
  const char *tail = length > TAIL ? character_start(name + length - TAIL) : name;
  /* 4 bytes for each of the tail's, in the worst case; the head gets what is left. */
  size_t head_room = length <= ROOM / 4 ? ROOM : ROOM - ELLIPSIS - 2 * TAIL;

  for (const char *s = name; *s; s++) {
    if (out + 4 > head_room && length > ROOM / 4 && s < tail) {
      memcpy(q->text + out, "...", ELLIPSIS);
      out += ELLIPSIS;
      s = tail;
      head_room = ROOM;
    }
    if (out + 4 > ROOM)
      break;
    out += put_escaped(q->text + out, (unsigned char)*s);
  }
  q->text[out] = '\0';
  return q->text;
}
