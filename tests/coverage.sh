#!/bin/bash
# SPDX-License-Identifier: MIT
# How much of rcu/, allocator/ and liboc/ the tests run: gcov's lines and branches.
#   tests/coverage.sh [--list]
# Builds in build/coverage, runs the whole suite there, and reads the counts (tests/coverage.py). Each line that did not
# run, and each with a branch that was not taken, has a test to be written or an argument in tests/coverage.txt; the run fails
# for one that has neither, and for an argument whose line is covered or gone. --list prints the bare ones as
# coverage.txt would have them. Healthy output: a row a folder, "0 lines without a test or an argument".
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../tools/common.sh"

main() {
  if [ $# -gt 1 ] || [ "${1:---list}" != --list ]; then die "what is '$*'? --list, or nothing"; fi
  local dir=$oc_root/build/coverage rc=0
  command -v gcov >/dev/null || {
    say "gcov is not installed: nothing was looked at"
    exit 77
  }
  # Threads count too: without atomic updates they lose each other's.
  build "$dir" CFLAGS='-O0 -g --coverage -fprofile-update=atomic -DOC_COVERED' CXXFLAGS='-O0 -g' LDFLAGS=--coverage
  step "building the tests" "$dir/make-tests.log" make -C "$dir" -j "$(nproc)" check TESTS=
  find "$dir" -name '*.gcda' -delete
  say "testing"
  # -O0 and counting make it several times slower. gcov's counts are stores that every thread makes: test_stores.sh finds them.
  CK_TIMEOUT_MULTIPLIER=10 make -C "$dir" -k -j "$(nproc)" check XFAIL_TESTS=test_stores.sh >"$dir/check.log" 2>&1 </dev/null || rc=$?
  if [ "$rc" -ne 0 ]; then
    grep -hE '^(FAIL|ERROR): ' "$dir/check.log" || tail -n 40 "$dir/check.log"
    say "a test failed in this build; what it did not come to counts as not covered"
  fi
  python3 "$oc_root/tests/coverage.py" "$oc_root" "$dir" "$@" || rc=1
  [ "$rc" -eq 0 ]
}

main "$@"
