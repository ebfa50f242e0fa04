#!/bin/bash
# SPDX-License-Identifier: MIT
# A short tests/longrun.sh; and that it sees what it looks for: the same with a program under octool that leaks memory,
# mappings, threads or descriptors whenever device memory is unmapped.
set -u
case ${CFLAGS-} in
*-fsanitize=*)
  echo "SKIPPED: a sanitizer keeps what was freed, and is no measure"
  exit 77
  ;;
esac
# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
longrun=${top_srcdir:?}/tests/longrun.sh
export OCTOOL=$top_builddir/tools/octool

runs 0 "$longrun" 6
if grep -q '^figure: octool run --swap, 6 seconds | 60 swaps, .* 0 of 4 grew; resident: ' out; then ok; else fail "no figure"; fi
runs 1 "$longrun" 0
says "SECONDS: '0' is no count"

cat >leak.c <<'END'
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *idle(void *arg) { pause(); return arg; }
static void leak(char what) {
  static unsigned calls;   /* two kinds of mapping in turn: else they become one */
  pthread_t t;
  if (what == 'r') memset(malloc(1000000), 1, 1000000);
  if (what == 'm') mmap(NULL, 4096, ++calls % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (what == 't') pthread_create(&t, NULL, idle, NULL);
  if (what == 'd') (void)!dup(2);
}
int munmap(void *at, size_t bytes) {
  static __thread int inside;
  const char *what = getenv("LEAK");
  if (what && !inside) {
    inside = 1;
    leak(*what);
    inside = 0;
  }
  return (int)syscall(SYS_munmap, at, bytes);
}
END
# shellcheck disable=SC2086 # may be a compiler with flags
runs 0 ${CC:?} -fPIC -shared leak.c -o leak.so -pthread
for leak in resident mappings threads descriptors; do
  runs 1 env LD_PRELOAD="$PWD/leak.so" LEAK="$leak" "$longrun" 2 60
  if grep -q "^longrun.sh: $leak grew: " out; then ok; else fail "the leak of $leak is not seen"; fi
done

finish
