/* SPDX-License-Identifier: MIT */
/*
 * output: where a JSON document will go. Opened before the work whose results it takes, so that a path that
 * cannot be written is said at once. Owned by the subcommand.
 */
#ifndef OCTOOL_OUTPUT_H
#define OCTOOL_OUTPUT_H

#include "tools/fault.h"

#include <jansson.h>
#include <stdio.h>

struct output { const char *path; FILE *file; };

/* NULL: no output, and all below succeeds without one. "-": standard output, which is then the document's alone. */
bool oct_output_open(struct output *o, const char *path, struct fault *why);
bool oct_output_is_stdout(const struct output *o);
/* Do both paths, which may be NULL, mean standard output? */
bool oct_both_stdout(const char *a, const char *b);
/* Writes and closes. Steals the reference to `document`, which may be NULL (no memory). After a failure the file is gone. */
bool oct_output_write(struct output *o, json_t *document, struct fault *why);
/* Closes what another wrote to; says why that failed (put: false), or the closing. After a failure the file is gone. */
bool oct_output_close(struct output *o, bool put, struct fault *why);
/* Closes without a document. The file goes. */
void oct_output_abandon(struct output *o);
/* Half a file is worse than none: away with it. Devices and pipes stay. */
void oct_output_remove(const char *path);

/* Everything printed so far has reached standard output; else a fault that says why. */
bool oct_flush_stdout(struct fault *why);

#endif
