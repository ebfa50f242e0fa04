/* SPDX-License-Identifier: MIT */
/* order: a random order of the numbers below n, as long as a power of two; the same in each run. Its owner's; immutable. */
#ifndef OCTOOL_ORDER_H
#define OCTOOL_ORDER_H

#include "tools/race.h"

struct order { uint32_t *at; size_t mask; };

/* At least n long, and at least four laps. */
bool oct_order_make(struct order *o, size_t n, struct fault *why);
void oct_order_free(struct order *o);

static inline uint32_t oct_order_at(const struct order *o, uint64_t i)
{
  return o->at[i & o->mask];
}

#endif
