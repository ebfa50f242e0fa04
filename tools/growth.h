/* SPDX-License-Identifier: MIT */
/* Curves: how figures grow with the work. Each file that measures one thing measures its curve too. */
#ifndef OCTOOL_GROWTH_H
#define OCTOOL_GROWTH_H

#include "tools/bench.h"

/* Names the lines, up to a NULL. */
void oct_curve_lines(struct curve *c, ...) __attribute__((sentinel));
/* A value for each line. */
void oct_curve_point(struct curve *c, double at, const double *value);
/* The same, under a name of its own. */
void oct_curve_named_point(struct curve *c, const char *name, const double *value);

bool oct_grow_kernels(struct bench *b, struct fault *why);
bool oct_grow_derived(struct bench *b, struct fault *why);
bool oct_grow_loaders(struct bench *b, struct fault *why);
bool oct_grow_pool(struct bench *b, struct fault *why);
bool oct_grow_threads(struct bench *b, struct fault *why);
bool oct_grow_models(struct bench *b, struct fault *why);
bool oct_grow_teardown(struct bench *b, struct fault *why);

#endif
