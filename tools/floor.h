/* SPDX-License-Identifier: MIT */
/*
 * floor: what no lookup can be faster than: an indexed load, and one more behind a call into the same shared library.
 * Owned by the part that races it; the model stays the part's.
 */
#ifndef OCTOOL_FLOOR_H
#define OCTOOL_FLOOR_H

#include "tools/order.h"

enum { FLOOR_ENTRIES = 256 };

struct floor { struct order order; const oc_model *table[FLOOR_ENTRIES]; };

bool oct_floor_make(struct floor *f, const oc_model *m, struct fault *why);
void oct_floor_free(struct floor *f);
void oct_floor_lap(void *floor, struct lap *lap);

#endif
