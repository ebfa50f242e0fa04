/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/page.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Text ---- */

/* Bytes of the UTF-8 sequence that begins here: one that a strict reader takes, and no control byte. 0: none does. */
static size_t sequence(const unsigned char *s)
{
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  size_t n = s[0] < 0x80 ? 1 : s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
  uint32_t c = n == 1 ? s[0] : s[0] & (0x7Fu >> n);

  if (n == 1)
    return s[0] >= 0x20 && s[0] != 0x7F;
  if (s[0] < 0xC2 || s[0] > 0xF4)
    return 0;
  for (size_t i = 1; i < n; i++) {
    if ((s[i] & 0xC0) != 0x80)
      return 0;
    c = c << 6 | (s[i] & 0x3Fu);
  }
  return c >= least[n] && c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF) && c >= 0xA0 ? n : 0;
}

static json_t *clean_text(const char *text, bool lines)
{
  const unsigned char *from = (const unsigned char *)text;
  char *clean, *to;
  json_t *string;

  if (!text)
    return json_null();
  clean = to = malloc(4 * strlen(text) + 1);
  if (!clean)
    return NULL;
  while (*from) {
    size_t n = lines && *from == '\n' ? 1 : sequence(from);

    if (n == 0) {
      to += sprintf(to, "\\x%02x", *from++);
    } else {
      memcpy(to, from, n);
      to += n;
      from += n;
    }
  }
  *to = '\0';
  string = json_string(clean);
  free(clean);
  return string;
}

json_t *oct_page_text(const char *text)
{
  return clean_text(text, false);
}

json_t *oct_page_lines(const char *text)
{
  return clean_text(text, true);
}

/* ---- Packed bytes ---- */

static void pack(struct packed *p, unsigned char byte)
{
  if (p->count == p->room && !p->failed) {
    size_t room = p->room ? p->room * 2 : 4096;
    unsigned char *at = realloc(p->at, room);

    p->failed = !at;
    if (at) {
      p->at = at;
      p->room = room;
    }
  }
  if (!p->failed)
    p->at[p->count++] = byte;
}

void oct_pack_varint(struct packed *p, uint64_t n)
{
  for (; n >= 0x80; n >>= 7)
    pack(p, (unsigned char)(n | 0x80));
  pack(p, (unsigned char)n);
}

static char *base64(const unsigned char *from, size_t n)
{
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  char *text = malloc((n + 2) / 3 * 4 + 1), *to = text;

  for (size_t i = 0; text && i < n; i += 3) {
    uint32_t second = i + 1 < n ? from[i + 1] : 0u, third = i + 2 < n ? from[i + 2] : 0u;
    uint32_t three = (uint32_t)from[i] << 16 | second << 8 | third;

    *to++ = digits[three >> 18];
    *to++ = digits[three >> 12 & 63];
    *to++ = (char)(i + 1 < n ? digits[three >> 6 & 63] : '=');
    *to++ = (char)(i + 2 < n ? digits[three & 63] : '=');
  }
  if (text)
    *to = '\0';
  return text;
}

json_t *oct_packed_text(struct packed *p)
{
  char *text = p->failed ? NULL : base64(p->at, p->count);
  json_t *string = text ? json_string(text) : NULL;

  free(text);
  free(p->at);
  *p = (struct packed){0};
  return string;
}

/* ---- The file ---- */

/* In JSON '<' stands in strings only. Without it, nothing in them can end the script element or change how its end is
   looked for. */
static int put_data(const char *json, size_t n, void *file)
{
  for (const char *end = json + n; json < end;) {
    const char *mark = memchr(json, '<', (size_t)(end - json));
    size_t plain = (size_t)((mark ? mark : end) - json);

    if (fwrite(json, 1, plain, file) != plain || (mark && fputs("\\u003c", file) == EOF))
      return -1;
    json += plain + (mark != NULL);
  }
  return 0;
}

bool oct_page_write(struct output *o, json_t *data, struct fault *why)
{
  bool put;

  if (!o->file) {
    json_decref(data);
    return true;
  }
  if (!data) {
    oct_output_abandon(o);
    return oct_fault(why, "no memory for the page's data");
  }
  put = fputs(oct_page_head, o->file) != EOF && json_dump_callback(data, put_data, o->file, JSON_COMPACT) == 0 &&
        fputs(oct_page_tail, o->file) != EOF;
  json_decref(data);
  return oct_output_close(o, put, why);
}
