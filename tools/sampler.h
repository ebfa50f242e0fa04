/* SPDX-License-Identifier: MIT */
/*
 * sampler: the bytes of some models over time, looked at by a thread of its own. However long it takes, there are
 * SAMPLES_MOST at most: when they are full, every second one goes, and it looks half as often.
 * Owned by the subcommand; models come and go from one thread.
 */
#ifndef OCTOOL_SAMPLER_H
#define OCTOOL_SAMPLER_H

#include "liboc/oc.h"
#include "tools/page.h"

enum { SAMPLES_MOST = 2000, SAMPLED_MODELS = 8, SAMPLER_MARKS = 400 };

struct sampler;

/* NULL with `why`: no memory, no thread. */
struct sampler *oct_sampler_start(struct fault *why);
/* From now on the model is looked at; past SAMPLED_MODELS it is not. All below: NULL is no sampler, and does nothing. */
void oct_sampler_add(struct sampler *s, oc_model *m);
/* No more: before oc_model_destroy. */
void oct_sampler_remove(struct sampler *s, oc_model *m);
/* Something happened now: "generation 2 served". The text is copied; past SAMPLER_MARKS it is left out. */
void oct_sampler_mark(struct sampler *s, const char *text);
/* Ends the thread; {interval_ms, columns, rows, marks}. NULL without memory. Frees it. */
json_t *oct_sampler_end(struct sampler *s);

#endif
