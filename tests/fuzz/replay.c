/* SPDX-License-Identifier: MIT */
/* A fuzz target on what is kept: each file of tests/fuzz/{seeds,crashers}/TARGET, or those that are named. */
#include "config.h"

#include <dirent.h>

#include "tests/fuzz/target.h"

static unsigned ran;

static void replay(const char *path) {
  enum { MOST = 1 << 20 };
  uint8_t *data = malloc(MOST);
  FILE *f = fopen(path, "rb");
  FUZZ_CHECK(f && data, "%s: cannot be read", path);
  size_t n = fread(data, 1, MOST, f);
  fclose(f);
  /* As long as the input, so that a sanitizer sees a read past it. */
  uint8_t *exact = malloc(n ? n : 1);
  FUZZ_CHECK(exact, "no memory");
  memcpy(exact, data, n);
  free(data);
  fprintf(stderr, "%s\n", path);
  LLVMFuzzerTestOneInput(exact, n);
  free(exact);
  ran++;
}

static void replay_folder(const char *name) {
  struct dirent *e;
  char path[4096];
  DIR *d = opendir(name);
  while (d && (e = readdir(d)))
    if (e->d_name[0] != '.' && (size_t)snprintf(path, sizeof path, "%s/%s", name, e->d_name) < sizeof path) replay(path);
  if (d) closedir(d);
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) replay(argv[i]);
  if (argc == 1) {
    replay_folder(FUZZ_FOLDER "/seeds/" FUZZ_TARGET);
    FUZZ_CHECK(ran > 0, "no seeds in %s", FUZZ_FOLDER);
    replay_folder(FUZZ_FOLDER "/crashers/" FUZZ_TARGET);
  }
  /* The seeds aside, what is no input at all. */
  LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
  printf("100%%: Checks: %u, Failures: 0, Errors: 0\n", ran + 1);
  return 0;
}
