/* SPDX-License-Identifier: MIT */
/*
 * exl3: the sizes of the 295,251 tensors of a mixture of 512 experts in 48 layers, an 800 KiB blob and three small vectors
 * for each projection of an expert: the layout that a driver's 2 MiB chunks cost most. In the order of loading.
 * Owned by who made it; immutable.
 */
#ifndef OCTOOL_BENCHLAYOUT_H
#define OCTOOL_BENCHLAYOUT_H

#include "tools/bench.h"

struct exl3 { uint64_t *bytes; size_t count; uint64_t sum, reserve; double chunk_rule; };

/* 48 layers are all of it. */
bool oct_exl3_make(struct exl3 *x, size_t layers, struct fault *why);
void oct_exl3_free(struct exl3 *x);
/* All of it into the pool; at, where not NULL, gets the blocks. */
bool oct_exl3_load(const struct exl3 *x, oc_pool *p, oc_devptr *at, struct fault *why);

enum { EXL3_LAYERS = 48, EXL3_QUICK_LAYERS = 1 };

#endif
