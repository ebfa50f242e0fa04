/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/floor.h"

bool oct_floor_make(struct floor *f, const oc_model *m, struct fault *why)
{
  for (size_t i = 0; i < FLOOR_ENTRIES; i++)
    f->table[i] = m;
  return oct_order_make(&f->order, FLOOR_ENTRIES, why);
}

void oct_floor_free(struct floor *f)
{
  oct_order_free(&f->order);
}

void oct_floor_lap(void *floor, struct lap *lap)
{
  const struct floor *f = floor;

  for (size_t i = 0; i < LAP; i++)
    oct_use(oc_model_generation(f->table[oct_order_at(&f->order, lap->at + i)]));
  lap->at += LAP;
}
