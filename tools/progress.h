/* SPDX-License-Identifier: MIT */
/*
 * progress: one line on standard error that is drawn over, where that is a terminal; else nothing is written.
 * Used by one thread. What else is written to the terminal goes between oct_progress_end and the next begin.
 */
#ifndef OCTOOL_PROGRESS_H
#define OCTOOL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress { bool on; const char *label; uint64_t total, done, drawn_ns; };

void oct_progress_begin(struct progress *p, const char *label, uint64_t total);
void oct_progress_step(struct progress *p, uint64_t n);
/* Takes the line away. */
void oct_progress_end(struct progress *p);

#endif
