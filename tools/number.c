/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool oct_parse_u64(const char *text, uint64_t *out)
{
  uint64_t n = 0;

  if (*text == '\0')
    return false;
  for (; *text; text++) {
    if (*text < '0' || *text > '9')
      return false;
    if (__builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, (uint64_t)(*text - '0'), &n))
      return false;
  }
  *out = n;
  return true;
}

bool oct_parse_seconds(const char *text, double *out)
{
  char *end;
  double v;

  /* strtod would also take signs, spaces, hexadecimal, "inf" and "nan". */
  if (*text == '\0' || strspn(text, "0123456789.") != strlen(text))
    return false;
  v = strtod(text, &end);
  if (*end != '\0' || !isfinite(v))
    return false;
  *out = v;
  return true;
}

const char *oct_human_bytes(struct human *h, uint64_t bytes)
{
  static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double v = (double)bytes / 1024;
  size_t i = 0;

  if (bytes < 1024) {
    snprintf(h->text, sizeof h->text, "%" PRIu64 " B", bytes);
    return h->text;
  }
  for (; v >= 1024 && i + 1 < sizeof unit / sizeof unit[0]; i++)
    v /= 1024;
  snprintf(h->text, sizeof h->text, "%.*f %s", v < 10 ? 2 : 1, v, unit[i]);
  return h->text;
}
