/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/blocknames.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS_MOST = 16, DIGITS_MOST = 15 };    /* 15 digits are exact in a page's numbers */

void oct_blocknames_init(struct blocknames *b)
{
  *b = (struct blocknames){.patterns = json_array(), .index = json_object()};
  b->failed = !b->patterns || !b->index;
}

void oct_blocknames_free(struct blocknames *b)
{
  json_decref(b->patterns);
  json_decref(b->index);
  free(b->packed.at);
  free(b->names);
  free(b->at);
  *b = (struct blocknames){0};
}

/* Room for one more; false without memory. */
static bool has_room(void **at, size_t *room, size_t count, size_t each)
{
  size_t more = *room ? *room * 2 : 1024;
  void *larger;

  if (count < *room)
    return true;
  larger = realloc(*at, more * each);
  if (!larger)
    return false;
  *at = larger;
  *room = more;
  return true;
}

/* ---- Names ---- */

static size_t digits(const char *s)
{
  return strspn(s, "0123456789");
}

/* A number that its digits can be had back from. */
static bool is_plain_number(const char *s, size_t n)
{
  return n > 0 && n <= DIGITS_MOST && !(s[0] == '0' && n > 1);
}

/* Takes plain numbers out of a text, in place. What they were is in numbers. */
static size_t take_numbers(char *text, uint64_t numbers[NUMBERS_MOST])
{
  size_t count = 0;
  char *to = text;

  for (const char *from = text; *from;) {
    size_t n = digits(from);

    if (is_plain_number(from, n) && count < NUMBERS_MOST) {
      numbers[count++] = strtoull(from, NULL, 10);
      *to++ = '\1';
      from += n;
      continue;
    }
    do
      *to++ = *from++;
    while (n-- > 1);
  }
  *to = '\0';
  return count;
}

static bool pattern_index(struct blocknames *b, const char *pattern, uint64_t *index)
{
  const json_t *known = json_object_get(b->index, pattern);

  *index = known ? (uint64_t)json_integer_value(known) : json_array_size(b->patterns);
  return known || (json_object_set_new(b->index, pattern, json_integer((json_int_t)*index)) == 0 &&
                   json_array_append_new(b->patterns, json_string(pattern)) == 0);
}

/* clean: without control bytes, so '\1' is free. */
static bool add_clean(struct blocknames *b, char *clean, uint64_t bytes)
{
  uint64_t numbers[NUMBERS_MOST], index;
  size_t count = take_numbers(clean, numbers);

  if (!pattern_index(b, clean, &index) || !has_room((void **)&b->names, &b->room, b->count, sizeof *b->names))
    return false;
  oct_pack_varint(&b->packed, index);
  for (size_t i = 0; i < count; i++)
    oct_pack_varint(&b->packed, numbers[i]);
  oct_pack_varint(&b->packed, bytes);
  b->names[b->count++] = (struct blockname){bytes, index};
  return true;
}

void oct_blocknames_add(struct blocknames *b, const char *name, uint64_t bytes)
{
  json_t *text = oct_page_text(name);
  char *clean = text ? strdup(json_string_value(text)) : NULL;

  b->failed = b->failed || !clean || !add_clean(b, clean, bytes);
  free(clean);
  json_decref(text);
}

/* ---- Places ---- */

void oct_blocknames_place(struct blocknames *b, size_t name, uint64_t address)
{
  if (address == 0 || name >= b->count)
    return;
  if (!has_room((void **)&b->at, &b->at_room, b->at_count, sizeof *b->at)) {
    b->failed = true;
    return;
  }
  b->at[b->at_count++] = (struct named){address, name};
}

void oct_blocknames_lift(struct blocknames *b)
{
  b->at_count = 0;
}

static int by_address(const void *a, const void *b)
{
  const struct named *x = a, *y = b;

  return (x->address > y->address) - (x->address < y->address);
}

void oct_blocknames_sort(struct blocknames *b)
{
  if (b->at_count > 0)
    qsort(b->at, b->at_count, sizeof *b->at, by_address);
}

bool oct_blocknames_find(const struct blocknames *b, uint64_t address, size_t *name)
{
  const struct named key = {.address = address}, *found;

  found = b->at_count > 0 ? bsearch(&key, b->at, b->at_count, sizeof *b->at, by_address) : NULL;
  if (found)
    *name = found->name;
  return found;
}

json_t *oct_blocknames_json(struct blocknames *b)
{
  json_t *data = oct_packed_text(&b->packed);

  if (b->failed || !data) {
    json_decref(data);
    return NULL;
  }
  return json_pack("{s:O, s:I, s:o}", "patterns", b->patterns, "count", (json_int_t)b->count, "data", data);
}
