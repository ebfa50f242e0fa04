#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/static.sh on a small tree: a tool that is silenced without a reason is a find, and so is a .clang-tidy that clang-tidy
# cannot read, for which it takes checks of its own.
set -u
# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
mkdir -p tree/{rcu,allocator,liboc,torch,tools,tests,examples,.ci,build/check}
cp "${top_srcdir:?}/tests/static.sh" tree/tests/
cp "$top_srcdir/tools/common.sh" tree/tools/
: >tree/build/check/config.h
echo 'int plus(int a, int b) { return a + b; }' >tree/torch/plus.cpp

# source_with COMMENT: the tree's one line of C, with that comment.
source_with() { printf 'int oci_plus(int a, int b);\nint oci_plus(int a, int b) { return a + b; }   %s\n' "$1" >tree/liboc/plus.c; }

# finds STATUS FIGURE TOOL
finds() {
  runs "$1" tree/tests/static.sh "$3"
  if grep -qF "figure: static analysis | $2" out; then ok; else fail "no such figure: $2"; fi
}

source_with ''
finds 0 "0 finds by 1 tools in 1 files; 0 lines" gcc
for why in '// NOLINT(bugprone-*): a reason' '// NOLINTNEXTLINE(cert-a,cert-b): a reason' '/* analyzer: a reason */' \
  '// cppcheck-suppress nullPointer ; a reason' '// # shellcheck disable=SC1,SC2 # a reason'; do
  source_with "$why"
  finds 0 "0 finds by 1 tools in 1 files; 1 lines" gcc
done
for bare in '// NOLINT' '// NOLINT(bugprone-*)' '// NOLINTBEGIN(bugprone-*):' '// cppcheck-suppress nullPointer' \
  '/* shellcheck disable=SC1 */' '// shellcheck disable=SC1,SC2 #'; do
  source_with "$bare"
  finds 1 "1 finds by 1 tools in 1 files; 0 lines" gcc
  if grep -q '^liboc/plus.c:2:' out; then ok; else fail "the line is not told: $bare"; fi
done

if ! command -v clang-tidy >/dev/null; then
  echo "clang-tidy is not there: its configuration was not tried"
  finish
fi
source_with ''
echo 'Checks: "-*,bugprone-*"' >tree/.clang-tidy
finds 0 "0 finds by 1 tools in 1 files; 0 lines" tidy
echo 'Cheks: "-*,bugprone-*"' >tree/.clang-tidy
finds 1 "1 finds by 1 tools in 1 files; 0 lines" tidy

finish
