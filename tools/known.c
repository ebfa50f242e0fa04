/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/known.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t keep_max = 512 << 20;

static bool same_source(const struct matrix *m, const unsigned char *source, size_t bytes)
{
  return m->source && memcmp(m->source, source, bytes) == 0;
}

bool oct_is_known(const struct job *j, const unsigned char *source, size_t source_bytes, unsigned char *const part[2])
{
  return j->known && same_source(j->matrix, source, source_bytes) && memcmp(j->known, part[0], j->bytes[0]) == 0 &&
         memcmp(j->known + j->bytes[0], part[1], j->bytes[1]) == 0;
}

static unsigned char *keep(struct checkpoint *c, const unsigned char *a, size_t na, const unsigned char *b, size_t nb)
{
  unsigned char *kept = c->kept + na + nb <= keep_max ? malloc(na + nb) : NULL;

  if (!kept)
    return NULL;
  memcpy(kept, a, na);
  memcpy(kept + na, b, nb);
  c->kept += na + nb;
  return kept;
}

void oct_keep_known(struct checkpoint *c, struct job *j, const unsigned char *source, size_t source_bytes,
                    unsigned char *const part[2])
{
  struct matrix *m = j->matrix;

  if (!m->source)
    m->source = keep(c, source, source_bytes, source, 0);
  /* A file may have changed between two generations: then what is right now is not what is kept. */
  if (!j->known && same_source(m, source, source_bytes))
    j->known = keep(c, part[0], j->bytes[0], part[1], j->bytes[1]);
}
