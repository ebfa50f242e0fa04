/* SPDX-License-Identifier: MIT */
/*
 * view: a file mapped read-only, whose bytes are only ever copied out. Another process may truncate the file
 * meanwhile, and a touch of a page past its new end is then a SIGBUS: copies catch that and say so.
 * Owned by its opener; any thread may copy.
 */
#ifndef OCTOOL_VIEW_H
#define OCTOOL_VIEW_H

#include "tools/fault.h"

#include <stdint.h>

struct view { const unsigned char *at; uint64_t bytes; };

/* Regular files only; an empty one is a view of 0 bytes. The fault does not name the path. */
bool oct_view_open(const char *path, struct view *v, struct fault *why);
void oct_view_close(struct view *v);
/* Copies [offset, offset + n) out. False where that is past the end as it was at open, or no longer there. */
bool oct_view_copy(const struct view *v, void *to, uint64_t offset, size_t n, struct fault *why);

#endif
