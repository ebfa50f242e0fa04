/* SPDX-License-Identifier: MIT */
/* The safetensors reader on any file: it refuses with a sentence, or its tensors tile the data and can all be read. */
#include "config.h"

#include "tests/fuzz/target.h"
#include "tools/safetensors.h"

enum { LENGTH_BYTES = 8 };

/* Of our own making, not the reader's: bits by the digits in the type's name. */
static unsigned bits_of(const char *type) {
  if (strcmp(type, "BOOL") == 0) return 8;
  while (*type && (*type < '0' || *type > '9')) type++;
  return (unsigned)strtoul(type, NULL, 10);
}

static void check_size(const struct tensor *t) {
  unsigned __int128 bits = bits_of(t->type->name);
  bool empty = false;
  for (size_t i = 0; i < t->rank; i++) empty |= t->shape[i] == 0;
  for (size_t i = 0; i < t->rank && !empty; i++) {
    bits *= t->shape[i];
    FUZZ_CHECK(bits >> 64 == 0, "tensor of over 2^64 bits");
  }
  FUZZ_CHECK((empty ? 0 : bits) == (unsigned __int128)t->bytes * 8, "%llu bytes", (unsigned long long)t->bytes);
}

static void check_bytes(const struct safetensors *s, const struct tensor *t, const uint8_t *data) {
  struct fault why;
  uint8_t got[16];
  size_t n = t->bytes < sizeof got ? (size_t)t->bytes : sizeof got;
  FUZZ_CHECK(oct_safetensors_read(s, t, t->bytes - n, got, n, &why), "%s", why.text);
  FUZZ_CHECK(memcmp(got, data + t->offset + t->bytes - n, n) == 0, "other bytes than the file's");
  FUZZ_CHECK(!oct_safetensors_read(s, t, t->bytes, got, 1, &why), "a byte past the end was read");
  fuzz_refusal(why.text, s->path);
}

static void check_file(const struct safetensors *s, const uint8_t *data, size_t size) {
  uint64_t at = s->data, sum;
  for (size_t i = 0; i < s->tensors.count; i++) {
    const struct tensor *t = &s->tensors.at[i];
    FUZZ_CHECK(t->offset == at, "hole or overlap at %llu", (unsigned long long)at);
    check_size(t);
    check_bytes(s, t, data);
    at += t->bytes;
  }
  FUZZ_CHECK(at == size, "%llu of %zu bytes", (unsigned long long)at, size);
  FUZZ_CHECK(oct_tensors_bytes(&s->tensors, &sum) && sum == size - s->data, "the sum is wrong");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *path = fuzz_file(data, size);
  struct safetensors s;
  struct fault why = {""};
  if (!oct_safetensors_open(path, &s, &why)) {
    fuzz_refusal(why.text, path);
    return 0;
  }
  check_file(&s, data, size);
  oct_safetensors_close(&s);
  return 0;
}

/* libFuzzer's alone: three in four files say the right length of their header, or none would ever be past it. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
#pragma weak LLVMFuzzerMutate

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, most);
  if (size <= LENGTH_BYTES || seed % 4 == 0) return size;
  size_t end = size;
  while (end > LENGTH_BYTES && data[end - 1] != '}') end--;
  if (end == LENGTH_BYTES) end = size;
  for (unsigned i = 0; i < LENGTH_BYTES; i++) data[i] = (uint8_t)((uint64_t)(end - LENGTH_BYTES) >> 8 * i);
  return size;
}
