/* SPDX-License-Identifier: MIT */
/*
 * page: one HTML file that holds all it needs, its data too: page/ has what it looks like and does.
 *
 * Names in the data are of anybody's making. They reach the page as JSON in UTF-8 without one '<', and its script puts
 * them into the document as text only.
 */
#ifndef OCTOOL_PAGE_H
#define OCTOOL_PAGE_H

#include "tools/output.h"

#include <stdint.h>

/* The page around the data, made at build time out of page/. */
extern const char oct_page_head[], oct_page_tail[];

/* Writes the page and closes the output, which may be none. Steals the reference to `data`, which may be NULL
   (no memory). */
bool oct_page_write(struct output *o, json_t *data, struct fault *why);

/* A string of any bytes: what is no UTF-8, and control bytes, as \xNN. NULL for NULL is null. */
json_t *oct_page_text(const char *text);
/* The same of a text of lines. */
json_t *oct_page_lines(const char *text);

/* Bytes of data that would be too many as JSON numbers. */
struct packed { unsigned char *at; size_t count, room; bool failed; };
void oct_pack_varint(struct packed *p, uint64_t n);      /* seven bits a byte, lowest first; the top bit: more */
/* As base64; NULL where memory ran out at any point. Frees what is packed. */
json_t *oct_packed_text(struct packed *p);

#endif
