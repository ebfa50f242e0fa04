/* SPDX-License-Identifier: MIT */
/* Ctrl-C and SIGTERM as a flag that long work looks at. A second one ends the process at once. */
#ifndef OCTOOL_INTERRUPT_H
#define OCTOOL_INTERRUPT_H

#include <stdbool.h>

void oct_interrupt_catch(void);
/* Any thread. */
bool oct_interrupted(void);
/* 128 + the signal's number, as a shell would say; 0 without one. */
int oct_interrupt_exit_code(void);

#endif
