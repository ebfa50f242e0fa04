/* SPDX-License-Identifier: MIT */
/* The reader of tensor lists on any file: it refuses with a sentence that has the line, or a list is what it says. */
#include "config.h"

#include <inttypes.h>

#include "tests/fuzz/target.h"
#include "tools/shapes.h"

/* The list written again, in the reader's format. */
static void put(FILE *out, const struct tensor_list *list) {
  for (size_t i = 0; i < list->count; i++) {
    const struct tensor *t = &list->at[i];
    fprintf(out, "%s\t%s\t", t->name, t->type->name);
    for (size_t k = 0; k < t->rank; k++) fprintf(out, "%s%" PRIu64, k ? "x" : "", t->shape[k]);
    fprintf(out, "\t%" PRIu64 "\n", t->bytes);
  }
}

static void check_same(const struct tensor_list *a, const struct tensor_list *b) {
  FUZZ_CHECK(a->count == b->count, "%zu and %zu tensors", a->count, b->count);
  for (size_t i = 0; i < a->count; i++) {
    const struct tensor *s = &a->at[i], *t = &b->at[i];
    FUZZ_CHECK(strcmp(s->name, t->name) == 0 && s->type == t->type && s->bytes == t->bytes && s->rank == t->rank &&
               memcmp(s->shape, t->shape, s->rank * sizeof *s->shape) == 0, "tensor %zu", i);
  }
}

static size_t lines(const uint8_t *data, size_t size) {
  size_t n = size && data[size - 1] != '\n';
  for (size_t i = 0; i < size; i++) n += data[i] == '\n';
  return n;
}

/* What was read, written and read again is the same; a line each. */
static void check_list(const struct tensor_list *list, const uint8_t *data, size_t size) {
  struct tensor_list again;
  struct fault why = {""};
  char *text = NULL;
  size_t n = 0;
  FUZZ_CHECK(list->count == lines(data, size), "%zu tensors", list->count);
  FILE *out = open_memstream(&text, &n);
  put(out, list);
  fclose(out);
  FUZZ_CHECK(oct_shapes_read(fuzz_file((const uint8_t *)text, n), &again, &why), "%s", why.text);
  check_same(list, &again);
  oct_tensors_free(&again);
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *path = fuzz_file(data, size);
  struct tensor_list list;
  struct fault why = {""};
  if (!oct_shapes_read(path, &list, &why)) {
    fuzz_refusal(why.text, path);
    return 0;
  }
  check_list(&list, data, size);
  oct_tensors_free(&list);
  return 0;
}
