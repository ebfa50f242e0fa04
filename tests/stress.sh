#!/bin/bash
# SPDX-License-Identifier: MIT
# Torture (tests/torture.c says what its output means), over the host device and over the simulated CUDA driver.
#   tests/stress.sh none|address,undefined|thread [SECONDS [THREADS]]
# SECONDS (60) for each of the two; THREADS (4) that read, besides nine others. The build folders are tools/check.sh's.
# Exits 0 only if both passed, and writes a figure for tests/figures.sh. LIBOC_TEST_SEED=n repeats a run's choices.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../tools/common.sh"

# figure SANITIZER LOG...: what the logs say, as one row. Passed is what make says: a sanitizer's report is a failure.
figure() {
  local sanitizer=$1 wrong
  shift
  wrong=$(sed -n 's/^torture: wrong: //p' "$@" | grep -oE '[0-9]+' | awk '{ sum += $1 } END { print sum + 0 }')
  printf 'figure: torture, %s, %s seconds a backend | ' "${sanitizer/,/ and }" "$LIBOC_TORTURE_SECONDS"
  printf '%s of %s backends passed, %s wrong; ' "$(cat "${@/%.log/.trs}" | grep -cx ':test-result: PASS')" $# "$wrong"
  sed -nE 's/^torture: did ([0-9]+) reads.*, ([0-9]+) swaps.*/\1 reads, \2 swaps/p' "$@" | paste -sd\; | sed 's/;/; /g'
}

main() {
  if [ $# -lt 1 ] || [ $# -gt 3 ]; then die "which sanitizer? none, address,undefined or thread; then seconds and threads"; fi
  local sanitizer=$1 dir=$oc_root/build/check run rc=0
  local -a args=()
  case $sanitizer in
  none) ;;
  address,undefined | thread)
    args=("--enable-sanitizer=$sanitizer")
    dir=$dir-${sanitizer//,/-}
    ;;
  *) die "unknown sanitizer '$sanitizer': none, address,undefined or thread" ;;
  esac
  [[ ${2:-60} =~ ^[1-9][0-9]{0,5}$ ]] || die "how many seconds? '$2' is no count from 1 to 999999"
  [[ ${3:-4} =~ ^[1-9][0-9]?$ ]] || die "how many readers? '$3' is no count from 1 to 99"
  export LIBOC_TORTURE_SECONDS=${2:-60} LIBOC_TORTURE_THREADS=${3:-4}

  build "$dir" "${args[@]}"
  step "building the tests" "$dir/make-tests.log" make -C "$dir" -j "$(nproc)" check TESTS=
  for run in torture torture.cuda; do
    say "$run, $sanitizer, $LIBOC_TORTURE_SECONDS seconds, $LIBOC_TORTURE_THREADS readers"
    rm -f "$dir/tests/$run.log" "$dir/tests/$run.trs"
    make -C "$dir/tests" check-TESTS TESTS="$run" >"$dir/stress.log" 2>&1 </dev/null || rc=1
    if [ "$rc" -eq 0 ]; then grep -E '^(torture: |LIBOC_TEST_SEED=)' "$dir/tests/$run.log"; else tail -n 200 "$dir/tests/$run.log"; fi
  done
  figure "$sanitizer" "$dir"/tests/torture.log "$dir"/tests/torture.cuda.log
  [ "$rc" -eq 0 ]
}

main "$@"
