/* SPDX-License-Identifier: MIT */
/*
 * What octool top shows, as lines of text: the same for a screen and for a pipe. All of it is ASCII that prints.
 *
 * top_text: the lines. Owned by who made it; used by one thread.
 */
#ifndef OCTOOL_TOPVIEW_H
#define OCTOOL_TOPVIEW_H

#include "tools/statspage.h"

enum top_sort { SORT_LIVE, SORT_BUILDS, SORT_RETIRED, SORT_NAME, SORT_NEWEST, SORTS };
const char *oct_top_sort_name(enum top_sort sort);

enum top_style { STYLE_PLAIN, STYLE_TITLE, STYLE_HEADER, STYLE_ALERT };
enum { TOP_MOST_WIDTH = 240 };
struct top_line { enum top_style style; char text[TOP_MOST_WIDTH + 1]; };
struct top_text { struct top_line *line; size_t count, room; bool failed; };

struct top_view {
  const struct watched *of;
  const struct look *before, *now;   /* before: for what happens a second; may be `now` */
  enum top_sort sort;
  bool paused;
  unsigned width;                    /* columns that do not fit are left out, the least wanted first */
};

/* Writes the lines anew; false without memory. */
bool oct_top_write(struct top_text *t, const struct top_view *v);
void oct_top_text_free(struct top_text *t);

#endif
