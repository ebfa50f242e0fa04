/* SPDX-License-Identifier: MIT */
/*
 * histogram: counts of durations; 32 buckets a power of two, so that a quantile is right to 1/32 of itself.
 * Owned by one thread while it adds; merged after that thread is joined.
 */
#ifndef OCTOOL_HISTOGRAM_H
#define OCTOOL_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

enum { HISTOGRAM_SUB = 32, HISTOGRAM_BUCKETS = 60 * HISTOGRAM_SUB };

struct histogram { uint64_t total, bucket[HISTOGRAM_BUCKETS]; };

void oct_histogram_add(struct histogram *h, uint64_t value);
void oct_histogram_merge(struct histogram *into, const struct histogram *from);
/* The values from least to most, and how many there were. i < HISTOGRAM_BUCKETS. */
struct bucket { uint64_t least, most, count; };
struct bucket oct_histogram_bucket(const struct histogram *h, size_t i);
/* The smallest value that the share q of all is not above, to the bucket's middle; 0 for an empty one. */
double oct_histogram_quantile(const struct histogram *h, double q);

#endif
