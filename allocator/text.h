/* SPDX-License-Identifier: MIT */
/*
 * text: a string that grows while it is written. Owned by who writes it, in the process heap; running out of
 *       memory is remembered and said at the end.
 */
#ifndef OCI_ALLOCATOR_TEXT_H
#define OCI_ALLOCATOR_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
  char *at;
  size_t length, room;
  bool failed;
};

void oci_text_add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Callers' strings, whatever is in them. Text: what does not print becomes '?'. JSON: quoted, escaped, valid
   UTF-8 (U+FFFD for what is not); NULL becomes null. */
void oci_text_add_plain(struct text *t, const char *s);
void oci_text_add_json(struct text *t, const char *s);
/* "2.07 GB", "1152 B"; 40 bytes are always enough. */
void oci_text_bytes(char *buf, size_t n, uint64_t bytes);
void oci_text_add_bytes(struct text *t, uint64_t bytes);
/* The string, for oci_strfree(NULL, ...); NULL if memory ran out. t is empty afterwards. */
char *oci_text_take(struct text *t);

#endif
