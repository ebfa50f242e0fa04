/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/histogram.h"

enum { SUB_BITS = 5 };
_Static_assert(1 << SUB_BITS == HISTOGRAM_SUB, "");

/* Values under 64 have a bucket each; above, the leading bit chooses 32 buckets and the next five one of them. */
static size_t bucket_of(uint64_t value)
{
  unsigned leading;

  if (value < 2 * HISTOGRAM_SUB)
    return (size_t)value;
  leading = 63 - (unsigned)__builtin_clzll(value);
  return (leading - SUB_BITS) * HISTOGRAM_SUB + (size_t)(value >> (leading - SUB_BITS));
}

struct bucket oct_histogram_bucket(const struct histogram *h, size_t i)
{
  unsigned shift = i < 2 * HISTOGRAM_SUB ? 0 : (unsigned)(i / HISTOGRAM_SUB) - 1;
  uint64_t first = i < 2 * HISTOGRAM_SUB ? i : (uint64_t)(HISTOGRAM_SUB + i % HISTOGRAM_SUB) << shift;

  return (struct bucket){first, first + ((UINT64_C(1) << shift) - 1), h->bucket[i]};
}

static double middle_of(const struct histogram *h, size_t i)
{
  struct bucket b = oct_histogram_bucket(h, i);

  return (double)b.least + (double)(b.most - b.least) / 2;
}

void oct_histogram_add(struct histogram *h, uint64_t value)
{
  h->bucket[bucket_of(value)]++;
  h->total++;
}

void oct_histogram_merge(struct histogram *into, const struct histogram *from)
{
  for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
    into->bucket[i] += from->bucket[i];
  into->total += from->total;
}

double oct_histogram_quantile(const struct histogram *h, double q)
{
  double rank = q * (double)h->total;
  uint64_t seen = 0;

  for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
    seen += h->bucket[i];
    if (seen > 0 && (double)seen >= rank)
      return middle_of(h, i);
  }
  return 0;
}
