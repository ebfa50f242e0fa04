/* SPDX-License-Identifier: MIT */
/*
 * fault: one failure in words. The first detector writes it; those above may put their step before it.
 *   Owned by whoever declares it (mostly on the stack of a subcommand); used by one thread at a time.
 */
#ifndef OCTOOL_FAULT_H
#define OCTOOL_FAULT_H

#include <stdbool.h>
#include <stddef.h>

struct fault { char text[1024]; };

/* Writes the failure down. Always false, so that a failing function can end with `return oct_fault(...)`; a macro
   so that the compiler sees that. */
#define oct_fault(f, ...) (oct_fault_write(f, __VA_ARGS__), false)
/* Puts "<words>: " before what is there. Always false. */
#define oct_fault_in(f, ...) (oct_fault_prefix(f, __VA_ARGS__), false)
void oct_fault_write(struct fault *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
void oct_fault_prefix(struct fault *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A name out of an untrusted file, fit for a terminal and a line: control bytes as \xNN, the middle of a
   long one cut out. */
struct quoted { char text[132]; };
const char *oct_quote(struct quoted *q, const char *name);

#endif
