/* SPDX-License-Identifier: MIT */
/*
 * What the fuzz targets share. A target is one function over any bytes: libFuzzer calls it (tests/fuzz.sh), and so does
 * replay.c, in make check, with what is kept in seeds/ and crashers/. What it finds wrong is said, and is an abort.
 */
#ifndef TESTS_FUZZ_TARGET_H
#define TESTS_FUZZ_TARGET_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition, ...)                                          \
  do {                                                                      \
    if (condition) break;                                                   \
    fprintf(stderr, "fuzz: line %d: %s does not hold: ", __LINE__, #condition); \
    fprintf(stderr, __VA_ARGS__);                                           \
    fputc('\n', stderr);                                                    \
    abort();                                                                \
  } while (0)

/* A file with these bytes, in memory; its path is good until the next call. */
static inline const char *fuzz_file(const uint8_t *data, size_t size) {
  static char path[32];
  static int fd = -1;
  if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size, "no file in memory");
  return path;
}

/* A refusal is one line fit for a terminal, of that file, with a reason behind its name. */
static inline void fuzz_refusal(const char *text, const char *path) {
  size_t n = strlen(path);
  FUZZ_CHECK(strncmp(text, path, n) == 0 && strncmp(text + n, ": ", 2) == 0 && text[n + 2], "%s", text);
  for (; *text; text++) FUZZ_CHECK((unsigned char)*text >= 0x20 && *text != 0x7f, "byte %u", (unsigned char)*text);
}

#endif
