/* SPDX-License-Identifier: MIT */
/*
 * How a forked child of a test ends: by _exit, since what runs at exit is the parent's. gcov writes its counts at exit, so that
 * in tests/coverage.sh's build, which defines OC_COVERED, a child ends there.
 */
#ifndef OC_TEST_CHILD_H
#define OC_TEST_CHILD_H

#include <stdlib.h>
#include <unistd.h>

static inline __attribute__((noreturn)) void child_end(int status) {
#ifdef OC_COVERED
  exit(status);
#else
  _exit(status);
#endif
}

#endif
