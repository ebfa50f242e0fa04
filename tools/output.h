/* SPDX-License-Identifier: MIT */
/*
 * output: a file that octool writes. Opened before the work whose results it takes, so that a path that cannot be written is said
 * at once; under its name only when it is whole. Until then, and after a failure or a kill, what stood there stands. Owned by the
 * subcommand.
 */
#ifndef OCTOOL_OUTPUT_H
#define OCTOOL_OUTPUT_H

#include "tools/fault.h"

#include <jansson.h>
#include <stdio.h>

/* target: the name at the end of all links; NULL where the path is a device, a pipe or standard output, written as they are.
   temporary: the name that the file has meanwhile; NULL: none, it goes with its descriptor. */
struct output { const char *path; FILE *file; char *target, *temporary; };

/* NULL: no output, and all below succeeds without one. "-": standard output, which is then the document's alone. */
bool oct_output_open(struct output *o, const char *path, struct fault *why);
/* The same, where "-" is a file of that name, and there is a path. */
bool oct_output_open_file(struct output *o, const char *path, struct fault *why);
bool oct_output_is_stdout(const struct output *o);
/* Do both paths, which may be NULL, mean standard output? */
bool oct_both_stdout(const char *a, const char *b);
/* Says so where the path, which may be NULL, is one of the files that are read, under whatever name. */
bool oct_output_is_no_input(const char *path, char *const *files, size_t count, struct fault *why);
/* Writes and closes. Steals the reference to `document`, which may be NULL (no memory). */
bool oct_output_write(struct output *o, json_t *document, struct fault *why);
/* Closes what another wrote to; says why that failed (put: false), or the closing. */
bool oct_output_close(struct output *o, bool put, struct fault *why);
/* Closes without a document. */
void oct_output_abandon(struct output *o);

/* Everything printed so far has reached standard output; else a fault that says why. */
bool oct_flush_stdout(struct fault *why);

#endif
