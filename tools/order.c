/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/order.h"

#include <stdlib.h>

static void shuffle(uint32_t *at, size_t n)
{
  uint64_t seed = n;

  for (size_t i = n; i > 1; i--) {
    size_t j = (size_t)(oct_random(&seed) % i);
    uint32_t was = at[i - 1];

    at[i - 1] = at[j];
    at[j] = was;
  }
}

bool oct_order_make(struct order *o, size_t n, struct fault *why)
{
  size_t length = 4 * LAP;

  while (length < n)
    length *= 2;
  o->mask = length - 1;
  o->at = malloc(length * sizeof *o->at);
  if (!o->at)
    return oct_fault(why, "no memory for an order of %zu numbers", length);
  for (size_t i = 0; i < length; i++)
    o->at[i] = (uint32_t)(i % n);
  shuffle(o->at, length);
  return true;
}

void oct_order_free(struct order *o)
{
  free(o->at);
}
