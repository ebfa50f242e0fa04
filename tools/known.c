/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/known.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t keep_max = 512 << 20;

static uint64_t mix(uint64_t h, uint64_t word)
{
  h = (h ^ word) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 32;
}

/* Never 0, which is "none yet". */
static uint64_t hash_of(const unsigned char *bytes, size_t n)
{
  uint64_t h = n, word;

  for (; n >= 8; n -= 8, bytes += 8) {
    memcpy(&word, bytes, 8);
    h = mix(h, word);
  }
  word = 0;
  memcpy(&word, bytes, n);
  h = mix(h, word);
  return h ? h : 1;
}

bool oct_is_unchanged(struct placed *p, const unsigned char *bytes)
{
  uint64_t h = hash_of(bytes, (size_t)p->tensor->bytes);

  if (p->hash == 0)
    p->hash = h;
  return p->hash == h;
}

bool oct_is_known(const struct job *j, unsigned char *const part[2])
{
  return j->known && memcmp(j->known, part[0], j->bytes[0]) == 0 &&
         memcmp(j->known + j->bytes[0], part[1], j->bytes[1]) == 0;
}

void oct_keep_known(struct checkpoint *c, struct job *j, unsigned char *const part[2])
{
  uint64_t n = j->bytes[0] + j->bytes[1];

  if (j->known || c->kept + n > keep_max)
    return;
  j->known = malloc((size_t)n);
  if (!j->known)
    return;
  memcpy(j->known, part[0], j->bytes[0]);
  memcpy(j->known + j->bytes[0], part[1], j->bytes[1]);
  c->kept += n;
}
