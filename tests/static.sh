#!/bin/bash
# SPDX-License-Identifier: MIT
# Reads all of the tree's sources with tools that look for faults:
#   tests/static.sh [gcc|clang|analyzer|cppcheck|tidy|shell ...]      all of them, or those
#   gcc, clang   -Wall -Wextra -Wshadow -Wconversion and more, over all C, and torch/
#   analyzer     gcc's -fanalyzer, over rcu/, allocator/, liboc/ and tools/
#   cppcheck     over all C
#   tidy         clang-tidy with the checks of .clang-tidy, over all C
#   shell        shellcheck, over the scripts
# What a tool finds fails the run. Where it is wrong, a comment beside the line says so and why, and one without the why is a
# find too: "NOLINT(check): why", "cppcheck-suppress id ; why", "shellcheck disable=SC1 # why"; "analyzer: why" for the lines
# below it, since gcc has no such comment. A kind of find that is wrong everywhere here is switched off below or in .clang-tidy,
# with the why.
# Healthy output: a line a tool, "0 finds". A tool that is not installed is said to be skipped: exit status 77.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../tools/common.sh"
cd "$oc_root"

warnings=(-Wall -Wextra -Wshadow -Wconversion -Wundef -Wvla)
c_only=(-Wstrict-prototypes -Wmissing-prototypes)

# config.h is there after any build.
configured() {
  local dir
  for dir in build/check build/static; do
    [ ! -e "$dir/config.h" ] || { config=$dir; return; }
  done
  mkdir -p build/static
  if generated_is_old; then step "generating configure" build/static/autogen.log ./autogen.sh; fi
  (cd build/static && step "configuring" configure.log ../../configure)
  config=build/static
}

# files FOLDER...: C that compiles here. cuda.h is NVIDIA's; fuzz targets are clang's.
files() {
  find "$@" -name '*.c' ! -path '*/rust/*' | sort | {
    if [ -e /usr/include/cuda.h ]; then cat; else grep -v cuda_abi_check; fi
  }
}

# each COMMAND...: for each file on standard input, as many at once as there are processors. Prints what they print.
each() { xargs -P "$(nproc)" -n 1 "$@" 2>&1 || true; }

c_flags() {
  flags=(-std=gnu11 -pthread -I. "-I$config" '-DLIBOC_MAP=""' '-DFUZZ_FOLDER=""' '-DFUZZ_TARGET=""')
}

run_gcc() {
  { files rcu allocator liboc tools tests examples | each gcc -O2 "${flags[@]}" "${warnings[@]}" "${c_only[@]}" -c -o /dev/null
    find torch -name '*.cpp' | each g++ -O2 -std=c++17 -I. "-I$config" "${warnings[@]}" -c -o /dev/null; } >"$log"
}

run_clang() {
  { files rcu allocator liboc tools tests examples | each clang "${flags[@]}" "${warnings[@]}" "${c_only[@]}" -fsyntax-only
    find torch -name '*.cpp' | each clang++ -std=c++17 -I. "-I$config" "${warnings[@]}" -fsyntax-only; } >"$log"
}

run_analyzer() {
  files rcu allocator liboc tools |
    each gcc -O1 -fanalyzer -fdiagnostics-plain-output -DOC_READ_BY_TOOLS "${flags[@]}" -c -o /dev/null |
    { grep -E '(warning|error):' || true; } | without_reasons >"$log"
}

# Drops the finds that stand at most eight lines below a comment "analyzer: why".
without_reasons() {
  local file line rest
  while IFS=: read -r file line rest; do
    sed -n "$((line > 8 ? line - 8 : 1)),${line}p" "$file" | grep -q 'analyzer: ' || echo "$file:$line:$rest"
  done
}

# varFuncNullUB: NULL is a pointer in every C library that this is for. dispatch.c, which the README shows, launches only
# with what the lookups found.
run_cppcheck() {
  cppcheck -q -j "$(nproc)" --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=0 \
    -I. "-I$config" -DOC_READ_BY_TOOLS=1 --include=tests/static.h --suppress=varFuncNullUB --suppress=uninitvar:examples/dispatch.c \
    --template='{file}:{line}: {severity}: {message} [{id}]' \
    rcu allocator liboc torch tools tests examples >"$log" 2>&1 || true
}

# What is wrong with a .clang-tidy is said on standard error, and another's checks are taken: it counts as a find.
# One file a run: clang-tidy 14 takes every va_list but the first file's for one that was not started.
run_tidy() {
  printf '%s\n' -DOC_READ_BY_TOOLS "${flags[@]}" >"$work/flags"
  files rcu allocator liboc tools tests examples |
    each sh -c 'clang-tidy --quiet "$2" -- $(cat "$1")' sh "$work/flags" >"$log"
}

run_shell() {
  find tools tests .ci autogen.sh -name '*.sh' -o -path .ci/run | sort | each shellcheck -x -S warning -f gcc >"$log"
}

command_of() {
  case $1 in
  analyzer) echo gcc ;;
  tidy) echo clang-tidy ;;
  shell) echo shellcheck ;;
  *) echo "$1" ;;
  esac
}

# check TOOL
check() {
  local finds
  if ! command -v "$(command_of "$1")" >/dev/null; then
    say "$1: not installed (tools/deps.sh installs it): skipped"
    skipped=$((skipped + 1))
    return
  fi
  log=$work/$1.log
  "run_$1"
  # The notes of a find are no finds.
  finds=$({ grep -E '(warning|error|performance|portability):' "$log" || true; } | sort -u | wc -l)
  [ "$finds" -eq 0 ] || cat "$log"
  say "$1: $finds finds, after $SECONDS seconds"
  sum=$((sum + finds)) ran=$((ran + 1))
}

# The lines that say that a tool is wrong; this script, and its test, only say how.
silenced() {
  grep -rnIE --exclude=static.sh --exclude=test_static.sh '(cppcheck-suppress|NOLINT(NEXTLINE|BEGIN)?([^A-Z]|$)|shellcheck disable|/\* analyzer:)' \
    rcu allocator liboc torch tools tests examples .ci || true
}
has_reason='(cppcheck-suppress [A-Za-z]+ ; |NOLINT[A-Z]*\([^)]*\): |shellcheck disable=[SC0-9,]+ +# |/\* analyzer: )[^ ]'

main() {
  local tool
  [ $# -gt 0 ] || set -- gcc clang analyzer cppcheck tidy shell
  for tool in "$@"; do
    declare -F "run_$tool" >/dev/null || die "unknown tool '$tool'; they are described at the head of $0"
  done
  work=$(mktemp -d "${TMPDIR:-/tmp}/liboc-static.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  sum=0 ran=0 skipped=0
  configured
  c_flags
  for tool in "$@"; do
    check "$tool"
  done
  silenced | { grep -vE "$has_reason" || true; } >"$work/bare"
  [ ! -s "$work/bare" ] || { say "no reason is given:" && cat "$work/bare"; }
  sum=$((sum + $(wc -l <"$work/bare")))
  echo "figure: static analysis | $sum finds by $ran tools in $(files rcu allocator liboc tools tests examples | wc -l) files;" \
    "$(silenced | grep -cE "$has_reason") lines with the reason why one is none"
  [ "$sum" -eq 0 ] || exit 1
  [ "$skipped" -eq 0 ] || exit 77
}

main "$@"
