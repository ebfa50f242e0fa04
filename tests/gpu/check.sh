#!/bin/bash
# SPDX-License-Identifier: MIT
# liboc on a GPU, in under four minutes: builds, runs the tests that need no simulated driver, compares derived bytes with
# the host's, runs `octool run --backend cuda`, and measures. A table on standard output; figures as JSON.
#   tests/gpu/check.sh [--build DIR] [--json FILE] [--only LIST] [--simulated] [FILE.safetensors...]
#   --build DIR   of `make check` of this tree; else it builds in build/gpu (tools/deps.sh installs what that needs)
#   --json FILE   default: gpu-check.json in the build folder
#   --only LIST   of tests,bytes,octool,measure
#   --simulated   over the simulated driver, without the controls that would give it away, with a twentieth of the measuring:
#                 to try this script where no GPU is
# Exits 0 only if all that ran passed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tools/common.sh
. "$root/tools/common.sh"

build_dir=
json=
only=tests,bytes,octool,measure
simulated=no
files=()
failed=()

options() {
  while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
      sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
      exit 0
      ;;
    --build | --json | --only)
      [ $# -ge 2 ] || die "$1 needs an argument"
      case $1 in
      --build) build_dir=$2 ;;
      --json) json=$2 ;;
      *) only=$2 ;;
      esac
      shift
      ;;
    --simulated) simulated=yes ;;
    -*) die "unknown option '$1'" ;;
    *) # by its full name, for what runs it does so from elsewhere
      [ -r "$1" ] || die "$1 cannot be read"
      files+=("$(cd "$(dirname "$1")" && pwd)/$(basename "$1")")
      ;;
    esac
    shift
  done
  [[ $only =~ ^(tests|bytes|octool|measure)(,(tests|bytes|octool|measure))*$ ]] ||
    die "--only $only is no list of tests,bytes,octool,measure"
}

prepare_build() {
  if [ -n "$build_dir" ]; then
    build_dir=$(cd "$build_dir" && pwd)
  else
    build_dir=$root/build/gpu
    build "$build_dir"
    step "building the tests" "$build_dir/make-tests.log" make -C "$build_dir" -j "$(nproc)" check TESTS=
  fi
  json=${json:-$build_dir/gpu-check.json}
  case $json in /*) ;; *) json=$PWD/$json ;; esac
}

prepare_driver() {
  local words
  if [ "$simulated" = yes ]; then
    export LD_LIBRARY_PATH=$build_dir/tests/simcuda/plain/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export SIMCUDA_KERNELS=$build_dir/tests/simcuda/.libs/kernels.so SIMCUDA_CHUNKS=1
  fi
  words=$("$build_dir/tests/cuda_probe") || die "no GPU to check on: $words"
}

# ---- tests ----

# programs LIST...: what those lists of tests/Makefile.am name.
programs() {
  # shellcheck disable=SC2016 # for make to expand
  env -u MAKEFLAGS -u MFLAGS make -s --no-print-directory -C "$build_dir/tests" --eval="print-programs: ; @echo $(printf '$(%s) ' "$@")" print-programs
}

# Of these, all tests need the simulated driver, and not all say so.
simulated_only="test_simcuda test_torch"

# How a test says that it cannot run on a real driver (tests/fixture_cuda.c, and the tests of the simulated driver).
needs='(this needs|runs over) the simulated driver'

# run_program BACKEND NAME: its output in $logs/NAME, its exit status in $logs/NAME.rc.
run_program() {
  local rc=0 limit
  limit=$(awk -v times="${CK_TIMEOUT_MULTIPLIER:-1}" 'BEGIN { print int(100 * times) }')
  (cd "$build_dir/tests" && LIBOC_TEST_BACKEND=$1 timeout "$limit" "./$2") >"$logs/$2" 2>&1 </dev/null || rc=$?
  echo "$rc" >"$logs/$2.rc"
}

# judge NAME: adds to checks, passed and left; prints what failed.
judge() {
  local name=$1 rc ran bad out
  rc=$(cat "$logs/$name.rc")
  ran=$(sed -nE 's/^[0-9]+%: Checks: ([0-9]+),.*/\1/p' "$logs/$name" | tail -n 1)
  out=$(grep -cE ":[FE]:.*$needs" "$logs/$name" || true)
  bad=$(grep -E ':[FE]:' "$logs/$name" | grep -vE "$needs" || true)
  sed -nE "s/.*:[FE]:[^:]*:([^:]*):([0-9]+): .*$needs.*/$name: \1/p" "$logs/$name" | sort -u >>"$work/left"
  checks=$((checks + ${ran:-0}))
  left=$((left + out))
  # A test that does not count its checks is one.
  [ -n "$ran" ] || checks=$((checks + 1))
  if [ -n "$bad" ] || { [ "$rc" -ne 0 ] && { [ -z "$ran" ] || [ "$out" -eq 0 ]; }; }; then
    failed+=("$name")
    printf -- '---- %s: exit status %s\n%s\n' "$name" "$rc" "${bad:-$(tail -n 20 "$logs/$name")}"
    failures=$((failures + $(grep -c . <<<"${bad:-one}")))
  fi
}

run_tests() {
  local name lists others
  checks=0 left=0 failures=0
  logs=$work/logs
  mkdir -p "$logs"
  : >"$work/left"
  lists=$(programs api_tests simcuda_tests | tr ' ' '\n' | grep -vxE "${simulated_only// /|}" | grep .)
  export -f run_program
  export build_dir logs
  others=$(programs core_tests tool_tests)
  say "testing: $(wc -w <<<"$lists") programs over the CUDA backend, $(wc -w <<<"$others") that need none"
  {
    tr ' ' '\n' <<<"$lists" | sed 's/^/cuda /'
    tr ' ' '\n' <<<"$others" | sed 's/^/host /'
  } | xargs -P "$(($(nproc) < 8 ? $(nproc) : 8))" -L 1 bash -c 'run_program "$@"' run_program
  for name in $lists $others; do judge "$name"; done
  echo
  echo "left out, for they need the simulated driver: all of ${simulated_only// /, }; and"
  sed 's/^/  /' "$work/left"
  echo "tests: $((checks - left - failures)) passed, $failures failed, $left left out"
  printf '{"passed": %d, "failed": %d, "left_out": %d}' $((checks - left - failures)) "$failures" "$left" >"$work/tests.json"
}

# ---- octool ----

run_bytes() {
  say "comparing derived bytes with the host's"
  "$build_dir/tests/gpu/bytes" "$([ "$simulated" = yes ] && echo 1 || echo 8)" | tee "$work/bytes" || failed+=("bytes")
}

run_octools() {
  "$build_dir/tools/octool" sample "$work/sample.safetensors" >"$work/sample.log" 2>&1 || die "$(cat "$work/sample.log")"
  run_octool sample "$work/sample.safetensors"
  [ ${#files[@]} -eq 0 ] || run_octool files "${files[@]}"
}

# run_octool NAME FILE...
run_octool() {
  local name=$1
  shift
  say "octool run --backend cuda --swap 20, $name"
  if "$build_dir/tools/octool" run --backend cuda --seconds 2 --swap 20 --json "$work/run-$name.json" "$@" >"$work/run-$name" \
    2>&1 </dev/null; then
    sed '/^teardown /,$d; s/^/  /' "$work/run-$name"
  else
    cat "$work/run-$name"
    failed+=("octool run, $name")
  fi
}

measure() {
  local args=()
  [ "$simulated" = no ] || args=(--quick)
  say "measuring"
  timeout 150 "$build_dir/tests/gpu/measure" "${args[@]}" --json "$work/measure.json" || failed+=("measure")
}

# member NAME FILE: of the document; null where there is no such file.
member() {
  printf ',\n"%s": ' "$1"
  if [ -s "$2" ]; then cat "$2"; else echo null; fi
}

write_json() {
  sed -nE 's/.* ([0-9]+) derived bytes compared.*, ([0-9]+) differ$/{"compared": \1, "differ": \2}/p' "$work/bytes" \
    >"$work/bytes.json" 2>/dev/null || true
  {
    printf '{"simulated": %s, "failed": %d' "$([ "$simulated" = yes ] && echo true || echo false)" ${#failed[@]}
    member tests "$work/tests.json"
    member derived_bytes "$work/bytes.json"
    member run_sample "$work/run-sample.json"
    member run_files "$work/run-files.json"
    member measured "$work/measure.json"
    echo '}'
  } >"$json"
}

main() {
  local start=$SECONDS
  options "$@"
  prepare_build
  prepare_driver
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  [[ $only != *tests* ]] || run_tests
  [[ $only != *bytes* ]] || run_bytes
  [[ $only != *octool* ]] || run_octools
  [[ $only != *measure* ]] || measure
  write_json
  echo
  say "$((SECONDS - start)) seconds; figures in $json"
  [ ${#failed[@]} -eq 0 ] || die "failed: $(printf '%s; ' "${failed[@]}")"
}

main "$@"
