/* SPDX-License-Identifier: MIT */
/*
 * sight: what octool bench --sight turns on while it measures. Owned by the subcommand.
 */
#ifndef OCTOOL_BENCHSIGHT_H
#define OCTOOL_BENCHSIGHT_H

#include "tools/fault.h"

#include <pthread.h>
#include <stdint.h>

struct sight { pthread_t thread; bool started; int stopping; uint64_t scrapes; };

bool oct_sight_on(struct sight *s, struct fault *why);
/* Whatever oct_sight_on said. */
bool oct_sight_off(struct sight *s, struct fault *why);

#endif
