/* SPDX-License-Identifier: MIT */
/*
 * The issue rate: how many independent operations a core takes from its thread in a nanosecond. Where a neighbour works on
 * the core's other hyperthread it falls to half or so, though no thread is stopped and no clock is slower. Code that keeps a
 * core busy then loses more than code that waits for memory, and a ratio of the two says less about either than about the
 * neighbour.
 */
#ifndef OCTOOL_ISSUERATE_H
#define OCTOOL_ISSUERATE_H

#include <stdbool.h>

/* Of the calling thread's core, in a microsecond. Any thread. */
double oct_issue_rate(void);
/* Is it that of a core that has no other work: close to the highest that was seen often? */
bool oct_issue_is_whole(double rate);
/* Looks for 50 milliseconds, so that the highest is known. */
void oct_issue_learn(void);

#endif
