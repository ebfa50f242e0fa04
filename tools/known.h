/* SPDX-License-Identifier: MIT */
/*
 * Derived bytes that the reference found right are kept on the host, with the source that they are right for, while
 * there is room: the same source in a later generation has the same derivation, to be compared and not worked out anew.
 * Kept in the checkpoint (matrix.source, job.known). Used by the main thread.
 */
#ifndef OCTOOL_KNOWN_H
#define OCTOOL_KNOWN_H

#include "tools/checkpoint.h"

/* For this very source, were these very parts found right before? */
bool oct_is_known(const struct job *j, const unsigned char *source, size_t source_bytes, unsigned char *const part[2]);
/* They have been found right. Without room or memory they are not kept. */
void oct_keep_known(struct checkpoint *c, struct job *j, const unsigned char *source, size_t source_bytes,
                    unsigned char *const part[2]);

#endif
