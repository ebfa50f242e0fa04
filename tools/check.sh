#!/bin/bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, runs the tests, and closes on `N passed, N failed`.
#   tools/check.sh [--sanitizer address,undefined|thread] [CONFIGURE_ARGUMENT...]
# Builds in build/check, or in build/check-LIST with a sanitizer. Exits 0 only if every test passed.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

main() {
  local dir=$oc_root/build/check rc=0
  local -a args=()
  while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
      sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    --sanitizer)
      [ $# -ge 2 ] || die "--sanitizer needs address,undefined or thread after it"
      args+=("--enable-sanitizer=$2")
      dir=$oc_root/build/check-${2//,/-}
      shift
      ;;
    -*) args+=("$1") ;;
    *) die "unknown argument '$1'; configure's options and --sanitizer are what it takes" ;;
    esac
    shift
  done

  "$oc_root/tools/deps.sh"
  # The tests build all that there is, where its libraries are; a later --with-ck is the one that counts.
  build "$dir" --with-ck=auto "${args[@]}"
  step "building the tests" "$dir/make-tests.log" make -C "$dir" -j "$(nproc)" check TESTS=
  # Old logs of tests that are gone would be counted.
  rm -f "$dir"/tests/*.log "$dir"/tests/*.trs
  say "testing"
  make -C "$dir" -k -j "$(nproc)" check >"$dir/check.log" 2>&1 </dev/null || rc=$?
  summarise "$dir" "$rc"
}

# A test's log has Check's count; one without (a script, a crash) counts as one. A test whose checks all
# passed and that failed all the same (a leak, a race) counts one failure more.
count() {
  local trs log
  for trs in "$1"/tests/*.trs; do
    [ -e "$trs" ] || continue
    log=${trs%.trs}.log
    sed -nE 's/^:test-result: ([A-Z]+).*/result \1/p' "$trs"
    sed -nE 's/^[0-9]+%: Checks: ([0-9]+), Failures: ([0-9]+), Errors: ([0-9]+)$/checks \1 \2 \3/p' "$log"
    echo end
  done | awk '
    $1 == "result" { result = $2; checks = failed = 0 }
    $1 == "checks" { checks += $2; failed += $3 + $4 }
    $1 == "end" {
      ok = result == "PASS"
      if (result == "SKIP") { skipped++; next }
      if (!ok && !failed) { checks++; failed++ }
      if (ok && !checks) checks = 1
      sum += checks; bad += failed
    }
    END { print sum - bad, bad + 0, skipped + 0 }'
}

summarise() {
  local dir=$1 rc=$2 passed failed skipped trs
  read -r passed failed skipped < <(count "$dir")
  for trs in "$dir"/tests/*.trs; do
    [ -e "$trs" ] || continue
    ! grep -qE '^:test-result: (PASS|SKIP)' "$trs" || continue
    printf '\n---- %s\n' "$(basename "${trs%.trs}")"
    tail -n 200 "${trs%.trs}.log"
  done
  if [ "$rc" -ne 0 ] && [ "$failed" -eq 0 ]; then
    tail -n 60 "$dir/check.log"
    say "make check failed before or beside the tests; its whole output is in $dir/check.log"
  fi
  if [ "$rc" -eq 0 ] && [ "$passed" -eq 0 ]; then
    say "no test ran"
    rc=1
  fi
  if [ "$skipped" -eq 0 ]; then
    echo "$passed passed, $failed failed"
  else
    echo "$passed passed, $failed failed, $skipped skipped"
  fi
  [ "$rc" -eq 0 ]
}

main "$@"
