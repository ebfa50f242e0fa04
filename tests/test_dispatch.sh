#!/bin/sh
# SPDX-License-Identifier: MIT
# The dispatch path that the README prints is examples/dispatch.c, compiles without a warning, and runs.
set -eu

: "${CC:?}" "${top_srcdir:?}" "${top_builddir:?}"   # from make check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The first block of C after the mark.
awk '/^<!-- dispatch -->$/ { marked = 1 }
     inside && /^```$/ { exit }
     inside { print }
     marked && /^```c$/ { inside = 1 }' "$top_srcdir/README.md" >"$work/printed.c"
cmp "$work/printed.c" "$top_srcdir/examples/dispatch.c" || {
  echo "FAIL: the README does not print examples/dispatch.c"
  exit 1
}

# shellcheck disable=SC2086 # flags are words
$CC -std=c11 -Wall -Wextra -Werror ${CFLAGS-} -I"$top_srcdir" "$work/printed.c" -o "$work/dispatch" ${LDFLAGS-} \
  -L"$top_builddir/liboc/.libs" -Wl,-rpath,"$top_builddir/liboc/.libs" -loc -pthread
timeout 120 "$work/dispatch" >"$work/out"
cat "$work/out"
grep -q '^teardown of demo .*: clean; 1 arenas' "$work/out"
grep -q 'over 21 models$' "$work/out"
