/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "allocator/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "rcu/mem.h"

static bool make_room(struct text *t, size_t more) {
  size_t room = t->room ? t->room : 1024;
  while (room - t->length <= more) room *= 2;
  if (room == t->room) return true;
  char *at = oci_alloc(NULL, room);
  if (!at) return t->failed = true, false;
  if (t->at) memcpy(at, t->at, t->length);
  oci_free(NULL, t->at, t->room);
  t->at = at;
  t->room = room;
  return true;
}

static void add(struct text *t, const char *s, size_t n) {
  if (t->failed || !make_room(t, n)) return;
  memcpy(t->at + t->length, s, n);
  t->length += n;
}

void oci_text_add(struct text *t, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  if (n < 0 || t->failed || !make_room(t, (size_t)n)) return;
  va_start(ap, fmt);
  vsnprintf(t->at + t->length, t->room - t->length, fmt, ap);
  va_end(ap);
  t->length += (size_t)n;
}

/* Bytes of the well-formed UTF-8 character at s; 0 if there is none. */
static size_t utf8_length(const unsigned char *s) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
  if (n < 2) return n;
  uint32_t point = s[0] & (0xFFu >> (n + 1));
  for (size_t i = 1; i < n; i++) {
    if (s[i] >> 6 != 2) return 0;
    point = point << 6 | (s[i] & 0x3Fu);
  }
  bool surrogate = point >= 0xD800 && point < 0xE000;
  return point < least[n] || point > 0x10FFFF || surrogate ? 0 : n;
}

static bool is_control(const unsigned char *s, size_t n) {
  return *s < 0x20 || *s == 0x7F || (n == 2 && s[0] == 0xC2 && s[1] < 0xA0);
}

void oci_text_add_plain(struct text *t, const char *s) {
  for (const unsigned char *c = (const unsigned char *)s; *c;) {
    size_t n = utf8_length(c);
    if (!n || is_control(c, n)) add(t, "?", 1);
    else add(t, (const char *)c, n);
    c += n ? n : 1;
  }
}

static void add_json_character(struct text *t, const unsigned char *c, size_t n) {
  if (!n) add(t, "\\ufffd", 6);
  else if (*c == '"' || *c == '\\') oci_text_add(t, "\\%c", *c);
  else if (*c < 0x20 || *c == 0x7F) oci_text_add(t, "\\u%04x", *c);
  else add(t, (const char *)c, n);
}

void oci_text_add_json(struct text *t, const char *s) {
  if (!s) {
    add(t, "null", 4);
    return;
  }
  add(t, "\"", 1);
  for (const unsigned char *c = (const unsigned char *)s; *c;) {
    size_t n = utf8_length(c);
    add_json_character(t, c, n);
    c += n ? n : 1;
  }
  add(t, "\"", 1);
}

void oci_text_bytes(char *buf, size_t n, uint64_t bytes) {
  static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
  uint64_t scale = 1;
  size_t u = 0;
  for (; bytes / scale >= 1000 && u + 1 < sizeof units / sizeof *units; u++) scale *= 1000;
  /* Without %f: its decimal point is the locale's. Rounded down. */
  if (u) snprintf(buf, n, "%" PRIu64 ".%02" PRIu64 " %s", bytes / scale, bytes % scale * 100 / scale, units[u]);
  else snprintf(buf, n, "%" PRIu64 " B", bytes);
}

void oci_text_add_bytes(struct text *t, uint64_t bytes) {
  char amount[40];
  oci_text_bytes(amount, sizeof amount, bytes);
  oci_text_add(t, "%s", amount);
}

char *oci_text_take(struct text *t) {
  char *s = NULL;
  add(t, "", 1);
  if (!t->failed) s = oci_strdup(NULL, t->at);
  oci_free(NULL, t->at, t->room);
  *t = (struct text){0};
  return s;
}
