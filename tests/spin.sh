#!/bin/bash
# SPDX-License-Identifier: MIT
# Checks the models in tests/spin/ with spin: every order of the steps of THREADS threads (3); and that each fault
# a model knows of (its FAULT_ switches) is found, with 2 threads.
#   tests/spin.sh [THREADS]
# Healthy output: a line a model, "0 errors"; a line a fault, "found"; "3 models of 3 hold, 12 faults of 12 found".
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/liboc-spin.XXXXXX")
trap 'rm -rf "$work"' EXIT

# check MODEL DEFINE...: spin's verdict in $errors, the number of states in $states.
check() {
  local model=$1
  shift
  (
    cd "$work"
    rm -f pan*
    spin "$@" -a "$model"
    # Safety: assertions and invalid ends. Collapsed states are exact, not hashed.
    gcc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=4000 -o pan pan.c
    ./pan -n -m1000000
  ) </dev/null >"$work/log" 2>&1 || true
  errors=$(sed -nE 's/.*errors: ([0-9]+)$/\1/p' "$work/log")
  states=$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' "$work/log")
  if [ -z "$errors" ] || grep -qE 'max search depth too small|out of memory|memory limit' "$work/log"; then
    tail -n 20 "$work/log" >&2
    errors=unfinished
  fi
}

[[ $# -le 1 && ${1:-3} =~ ^[1-9]$ ]] || {
  echo "spin: how many threads? 1 to 9; 3 without a number" >&2
  exit 2
}
command -v spin >/dev/null || {
  echo "spin: not installed (tools/deps.sh installs it): nothing checked"
  exit 77
}

main() {
  local threads=${1:-3} model fault held=0 models=0 found=0 faults=0
  for model in "$here"/spin/*.pml; do
    models=$((models + 1))
    check "$model" "-DTHREADS=$threads"
    echo "figure: $(basename "$model"), $threads threads | $states states, $errors errors"
    if [ "$errors" = 0 ]; then held=$((held + 1)); else tail -n 30 "$work/log"; fi
    while read -r fault; do
      faults=$((faults + 1))
      check "$model" -DTHREADS=2 "-D$fault"
      if [ "$errors" != 0 ] && [ "$errors" != unfinished ]; then
        found=$((found + 1))
        echo "spin: $(basename "$model"), $fault: found"
      else
        echo "spin: $(basename "$model"), $fault: NOT FOUND"
      fi
    done < <(grep -oE '#if(n)?def FAULT_[A-Z_]+' "$model" | sed 's/.* //' | sort -u)
  done
  echo "figure: models, and faults planted in them | $held models of $models hold, $found faults of $faults found"
  [ "$held" -eq "$models" ] && [ "$found" -eq "$faults" ]
}

main "$@"
