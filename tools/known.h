/* SPDX-License-Identifier: MIT */
/*
 * What earlier generations' verification tells later ones. A file that has changed since is found by its tensors'
 * hashes. Of one that has not, the derivations are what they were: bytes that the reference found right are kept on the
 * host (job.known) while there is room, to be compared and not worked out anew. Used by the main thread.
 */
#ifndef OCTOOL_KNOWN_H
#define OCTOOL_KNOWN_H

#include "tools/checkpoint.h"

/* False if the tensor had other bytes the first time. */
bool oct_is_unchanged(struct placed *p, const unsigned char *bytes);

/* Were these very parts found right before? */
bool oct_is_known(const struct job *j, unsigned char *const part[2]);
/* They have been found right. Without room or memory they are not kept. */
void oct_keep_known(struct checkpoint *c, struct job *j, unsigned char *const part[2]);

#endif
