/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tools/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, RANK_MAX = 64 };

/* ---- One tensor's entry ---- */

static bool tensor_fault(struct fault *why, const char *name, const char *words)
{
  struct quoted q;

  return oct_fault(why, "tensor '%s': %s", oct_quote(&q, name), words);
}

static bool read_count(json_t *v, uint64_t *out)
{
  if (!json_is_integer(v) || json_integer_value(v) < 0)
    return false;
  *out = (uint64_t)json_integer_value(v);
  return true;
}

static bool check_keys(const char *name, json_t *entry, struct fault *why)
{
  const char *key;
  json_t *value;
  struct quoted qn, qk;

  json_object_foreach(entry, key, value)
    if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
      return oct_fault(why, "tensor '%s': unknown key '%s'", oct_quote(&qn, name), oct_quote(&qk, key));
  return true;
}

static bool read_dtype(const char *name, json_t *entry, const struct dtype **out, struct fault *why)
{
  json_t *v = json_object_get(entry, "dtype");
  struct quoted qn, qt;

  if (!v)
    return tensor_fault(why, name, "no dtype");
  if (!json_is_string(v))
    return tensor_fault(why, name, "dtype is not a string");
  *out = oct_dtype(json_string_value(v));
  if (!*out)
    return oct_fault(why, "tensor '%s': unknown dtype '%s'", oct_quote(&qn, name),
                     oct_quote(&qt, json_string_value(v)));
  return true;
}

static bool read_shape(const char *name, json_t *entry, uint64_t shape[RANK_MAX], size_t *rank, struct fault *why)
{
  json_t *v = json_object_get(entry, "shape");

  if (!v)
    return tensor_fault(why, name, "no shape");
  if (!json_is_array(v))
    return tensor_fault(why, name, "shape is not a list");
  *rank = json_array_size(v);
  if (*rank > RANK_MAX)
    return tensor_fault(why, name, "shape has more than 64 dimensions");
  for (size_t i = 0; i < *rank; i++)
    if (!read_count(json_array_get(v, i), &shape[i]))
      return tensor_fault(why, name, "shape has a dimension that is not a count");
  return true;
}

static bool read_offsets(const char *name, json_t *entry, uint64_t offset[2], struct fault *why)
{
  json_t *v = json_object_get(entry, "data_offsets");
  struct quoted q;

  if (!v)
    return tensor_fault(why, name, "no data_offsets");
  if (!json_is_array(v) || json_array_size(v) != 2)
    return tensor_fault(why, name, "data_offsets is not a list of two");
  for (size_t i = 0; i < 2; i++)
    if (!read_count(json_array_get(v, i), &offset[i]))
      return tensor_fault(why, name, "data_offsets has an offset that is not a count");
  if (offset[1] < offset[0])
    return oct_fault(why, "tensor '%s': data_offsets end at %" PRIu64 ", before their begin %" PRIu64,
                     oct_quote(&q, name), offset[1], offset[0]);
  return true;
}

static bool check_extent(const char *name, const struct tensor *t, uint64_t begin, uint64_t end, uint64_t data_bytes,
                         struct fault *why)
{
  char shape[160];
  struct quoted q;

  if (end > data_bytes)
    return oct_fault(why, "tensor '%s': ends at byte %" PRIu64 " of the data, which has %" PRIu64 " (truncated?)",
                     oct_quote(&q, name), end, data_bytes);
  if (end - begin != t->bytes)
    return oct_fault(why, "tensor '%s': %s takes %" PRIu64 " bytes, data_offsets give it %" PRIu64,
                     oct_quote(&q, name), oct_tensor_shape(t, shape, sizeof shape), t->bytes, end - begin);
  return true;
}

static bool add_tensor(struct safetensors *s, const char *name, json_t *entry, struct fault *why)
{
  uint64_t shape[RANK_MAX], offset[2], bytes;
  const struct dtype *type;
  struct tensor *t;
  size_t rank;

  if (!json_is_object(entry))
    return tensor_fault(why, name, "its entry is not an object");
  if (!check_keys(name, entry, why) || !read_dtype(name, entry, &type, why) ||
      !read_shape(name, entry, shape, &rank, why) || !read_offsets(name, entry, offset, why))
    return false;
  if (!oct_dtype_bytes(type, shape, rank, &bytes))
    return tensor_fault(why, name, "its shape overflows, or ends inside a byte");
  t = oct_tensors_add(&s->tensors, name, type, shape, rank);
  if (!t)
    return tensor_fault(why, name, "no memory");
  t->bytes = bytes;
  t->offset = s->data + offset[0];
  return check_extent(name, t, offset[0], offset[1], s->view.bytes - s->data, why);
}

/* ---- The whole ---- */

static bool check_metadata(json_t *meta, struct fault *why)
{
  const char *key;
  json_t *value;
  struct quoted q;

  if (!json_is_object(meta))
    return oct_fault(why, "header: __metadata__ is not an object");
  json_object_foreach(meta, key, value)
    if (!json_is_string(value))
      return oct_fault(why, "header: __metadata__ '%s' is not a string", oct_quote(&q, key));
  return true;
}

static int by_offset(const void *a, const void *b)
{
  const struct tensor *s = a, *t = b;

  if (s->offset != t->offset)
    return s->offset < t->offset ? -1 : 1;
  /* An empty tensor may share its offset with the next. */
  if (s->bytes != t->bytes)
    return s->bytes < t->bytes ? -1 : 1;
  return strcmp(s->name, t->name);
}

/* Sorted by offset, each tensor must begin where the one before ended, the first at 0, the last ending the file. */
static bool check_cover(const struct safetensors *s, struct fault *why)
{
  uint64_t at = s->data;
  struct quoted q, p;

  for (size_t i = 0; i < s->tensors.count; i++) {
    const struct tensor *t = &s->tensors.at[i];

    if (t->offset < at)
      return oct_fault(why, "tensor '%s': overlaps tensor '%s'", oct_quote(&q, t->name),
                       oct_quote(&p, s->tensors.at[i - 1].name));
    if (t->offset > at)
      return oct_fault(why, "tensor '%s': a hole of %" PRIu64 " bytes before it", oct_quote(&q, t->name),
                       t->offset - at);
    at = t->offset + t->bytes;
  }
  if (at != s->view.bytes)
    return oct_fault(why, "%" PRIu64 " bytes after the last tensor belong to none", s->view.bytes - at);
  return true;
}

static bool add_all(struct safetensors *s, json_t *header, struct fault *why)
{
  const char *name;
  json_t *entry;

  if (!json_is_object(header))
    return oct_fault(why, "header: not an object");
  json_object_foreach(header, name, entry) {
    bool meta = strcmp(name, "__metadata__") == 0;

    if (!(meta ? check_metadata(entry, why) : add_tensor(s, name, entry, why)))
      return false;
  }
  if (s->tensors.count)
    qsort(s->tensors.at, s->tensors.count, sizeof *s->tensors.at, by_offset);
  return check_cover(s, why);
}

static bool header_length(const struct view *v, uint64_t *length, struct fault *why)
{
  unsigned char raw[LENGTH_BYTES];
  uint64_t n = 0;

  if (v->bytes == 0)
    return oct_fault(why, "is empty");
  if (v->bytes < LENGTH_BYTES)
    return oct_fault(why, "has %" PRIu64 " bytes, too few for the header's length (truncated?)", v->bytes);
  if (!oct_view_copy(v, raw, 0, sizeof raw, why))
    return false;
  for (int i = LENGTH_BYTES - 1; i >= 0; i--)
    n = n << 8 | raw[i];
  if (n > OCT_SAFETENSORS_HEADER_MAX)
    return oct_fault(why, "header: its length, %" PRIu64 " bytes, is over the format's limit of %u: no safetensors file?",
                     n, OCT_SAFETENSORS_HEADER_MAX);
  if (n > v->bytes - LENGTH_BYTES)
    return oct_fault(why, "header: of %" PRIu64 " bytes, in a file of %" PRIu64 " (truncated?)", n, v->bytes);
  if (n < 2)
    return oct_fault(why, "header: of %" PRIu64 " bytes, too short for an object", n);
  *length = n;
  return true;
}

static bool parse(struct safetensors *s, const char *text, size_t n, struct fault *why)
{
  json_error_t err;
  json_t *header;
  struct quoted q;
  bool ok;

  if (text[0] != '{')
    return oct_fault(why, "header: does not begin with '{'");
  header = json_loadb(text, n, JSON_REJECT_DUPLICATES, &err);
  if (!header)
    return oct_fault(why, "header: no valid JSON at byte %d: %s", err.position, oct_quote(&q, err.text));
  ok = add_all(s, header, why);
  json_decref(header);
  return ok;
}

static bool read_header(struct safetensors *s, struct fault *why)
{
  uint64_t n;
  char *text;
  bool ok;

  if (!header_length(&s->view, &n, why))
    return false;
  s->data = LENGTH_BYTES + n;
  /* Parsed from a copy: the file may change under us, what was checked may not. */
  text = malloc((size_t)n);
  if (!text)
    return oct_fault(why, "header: no memory for %" PRIu64 " bytes", n);
  ok = oct_view_copy(&s->view, text, LENGTH_BYTES, (size_t)n, why) && parse(s, text, (size_t)n, why);
  free(text);
  return ok;
}

bool oct_safetensors_open(const char *path, struct safetensors *out, struct fault *why)
{
  struct safetensors s = {.path = path};
  struct quoted q;

  if (oct_view_open(path, &s.view, why) && read_header(&s, why)) {
    *out = s;
    return true;
  }
  oct_safetensors_close(&s);
  return oct_fault_in(why, "%s", oct_quote(&q, path));
}

void oct_safetensors_close(struct safetensors *s)
{
  oct_tensors_free(&s->tensors);
  oct_view_close(&s->view);
}

bool oct_safetensors_read(const struct safetensors *s, const struct tensor *t, uint64_t from, void *to, size_t n,
                          struct fault *why)
{
  bool inside = from <= t->bytes && n <= t->bytes - from;
  struct quoted q, p;

  if (inside ? oct_view_copy(&s->view, to, t->offset + from, n, why)
             : oct_fault(why, "bytes %" PRIu64 " + %zu are past its end", from, n))
    return true;
  return oct_fault_in(why, "%s: tensor '%s'", oct_quote(&q, s->path), oct_quote(&p, t->name));
}
