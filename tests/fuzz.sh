#!/bin/bash
# SPDX-License-Identifier: MIT
# Hostile input by libFuzzer: the targets of tests/fuzz (each says at its head what must hold), with clang's address and
# undefined-behaviour sanitizers.
#   tests/fuzz.sh SECONDS [TARGET...]     TARGET: api, safetensors, shapes; all three otherwise, SECONDS each, one after another
# Begins with tests/fuzz/{seeds,crashers}/TARGET and what earlier runs found (build/fuzz/found/TARGET). A line a target at the
# end, for tests/figures.sh. FUZZ_SEED=n repeats a run's choices, where the sources are the same. A crasher is left in
# build/fuzz/crash/TARGET, and the run fails: fix the fault, and keep the crasher in tests/fuzz/crashers/TARGET, where make
# check replays it.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../tools/common.sh"

targets=(api safetensors shapes)
dir=$oc_root/build/fuzz

build_targets() {
  local -a args=('--enable-sanitizer=address,undefined' --with-jemalloc=no --disable-shared --enable-static
    CC=clang CXX=clang++ 'CFLAGS=-O1 -g -fsanitize=fuzzer-no-link')
  command -v clang >/dev/null || { echo "SKIPPED: no clang; tools/deps.sh installs it"; exit 77; }
  if generated_is_old; then step "generating configure" "$dir/autogen.log" "$oc_root/autogen.sh"; fi
  if [ ! -e "$dir/config.status" ]; then
    (cd "$dir" && step "configuring for libFuzzer" "$dir/configure.log" "$oc_root/configure" "${args[@]}")
  fi
  for folder in rcu allocator liboc; do
    step "building $folder" "$dir/make.log" make -C "$dir/$folder" -j "$(nproc)"
  done
  step "building tools" "$dir/make.log" make -C "$dir/tools" -j "$(nproc)" liboctool.la
  step "building the targets" "$dir/make.log" make -C "$dir/tests" -j "$(nproc)" "${@/%/.libfuzzer}"
}

# fuzz SECONDS TARGET: false after a crash.
fuzz() {
  local seconds=$1 target=$2 log=$dir/$2.log runs edges crashes=0 rc=0
  local -a from=("$oc_root/tests/fuzz/seeds/$target")
  [ ! -d "$oc_root/tests/fuzz/crashers/$target" ] || from+=("$oc_root/tests/fuzz/crashers/$target")
  mkdir -p "$dir/found/$target" "$dir/crash/$target"
  say "$target, $seconds seconds"
  # Without the entropic schedule, which would take most of the time of a small target. A run that takes 20 seconds hangs.
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:suppressions=$oc_root/tests/ubsan.supp ASAN_OPTIONS=detect_leaks=1 \
    "$dir/tests/fuzz/$target.libfuzzer" -max_total_time="$seconds" -timeout=20 -max_len=4096 -len_control=10 -entropic=0 \
    -seed="${FUZZ_SEED:-0}" -print_final_stats=1 -artifact_prefix="$dir/crash/$target/" "$dir/found/$target" "${from[@]}" >"$log" 2>&1 </dev/null || rc=$?
  runs=$(sed -nE 's/^stat::number_of_executed_units: ([0-9]+)/\1/p' "$log")
  edges=$(sed -nE 's/^#[0-9]+.* cov: ([0-9]+) .*/\1/p' "$log" | tail -n 1)
  [ "$rc" -eq 0 ] || crashes=1
  echo "figure: fuzz, $target, $seconds seconds | ${runs:-0} executions, ${edges:-0} edges, $crashes crashes"
  [ "$rc" -ne 0 ] || return 0
  grep -vE '^(#|[[:space:]]*NEW_FUNC|INFO)' "$log" | head -n 40 >&2
  say "$target: $(sed -nE 's/.*Test unit written to (.*)/the crasher is \1/p' "$log"); the whole output is in $log"
  return 1
}

main() {
  local target rc=0
  [[ ${1:-} =~ ^[1-9][0-9]*$ ]] || die "how many seconds for each target?"
  local seconds=$1
  shift
  for target; do
    [ -d "$oc_root/tests/fuzz/seeds/$target" ] || die "'$target' is no target: ${targets[*]}"
  done
  [ $# -eq 0 ] || targets=("$@")
  mkdir -p "$dir"
  build_targets "${targets[@]/#/fuzz/}"
  for target in "${targets[@]}"; do fuzz "$seconds" "$target" || rc=1; done
  exit "$rc"
}

main "$@"
