#!/bin/bash
# SPDX-License-Identifier: MIT
# Do the tests bite? Plants each fault of tests/bite/*.patch in a copy of the tree, builds what it touches, runs the
# test that the patch names, and expects that test to fail.
#   tests/bite.sh [NAME...]          all faults, or those: tests/bite/NAME.patch
# Healthy output: a line a fault, and at the end "87 caught of 87 planted". Exits 0 only then.
#   caught        the named test failed, crashed or hung
#   MISSED        it passed with the fault in
#   no bite       it fails without the fault too, or is not there
#   does not apply, does not build   the code has moved on: make the patch anew
# A patch begins with "Fault: ...", "Test: PROGRAM NAME", and "Tries: N" where the fault is a race: N runs to be caught in.
# BITE_DIR=folder keeps the copy and its build for the next run.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${BITE_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/liboc-bite.XXXXXX")}
[ -n "${BITE_DIR:-}" ] || trap 'rm -rf "$dir"' EXIT
# A hang is a failure; 60 seconds are for slow machines. The named tests take milliseconds.
export CK_TIMEOUT_MULTIPLIER=${CK_TIMEOUT_MULTIPLIER:-0.2}

say() { printf 'bite: %s\n' "$*"; }

# Only what differs is copied, so that a kept build stays good.
copy() {
  mkdir -p "$dir/tree" "$dir/new"
  (cd "$root" && tar cf - --exclude=./build --exclude=./.git --exclude='*.o' .) | tar xf - -C "$dir/new" || return 1
  (cd "$dir/new" && find . -type f -print0) | while IFS= read -r -d '' f; do
    cmp -s "$dir/new/$f" "$dir/tree/$f" && continue
    mkdir -p "$(dirname "$dir/tree/$f")" && cp -p "$dir/new/$f" "$dir/tree/$f" && touch "$dir/tree/$f"
  done
  rm -rf "$dir/new"
}

configure() {
  [ -x "$dir/tree/configure" ] || (cd "$dir/tree" && ./autogen.sh) || return 1
  [ ! -e "$dir/build/config.status" ] || return 0
  mkdir -p "$dir/build"
  cd "$dir/build" && ../tree/configure --disable-static --with-jemalloc=no CFLAGS='-O1 -g'
}

# compile PROGRAM...: the libraries, and those test programs.
compile() {
  local folder
  for folder in rcu allocator liboc; do make -C "$dir/build/$folder" -j "$(nproc)" || return 1; done
  make -C "$dir/build/tools" -j "$(nproc)" libockernels.la liboctool.la || return 1
  make -C "$dir/build/tests" -j "$(nproc)" "$@"
}

tries_of() { local n; n=$(field Tries "$1"); echo "${n:-1}"; }

field() { sed -nE "s/^$1: //p;/^$/q" "$2"; }

# run PROGRAM TEST: that test alone, where the program can. 0: it ran and passed; 1: it failed; 2: there was no such test.
run() {
  local program=$1 test=$2 out rc=0
  out=$(cd "$dir/build/tests" && LIBOC_TEST_ONLY=$test timeout 120 "./$program" </dev/null 2>&1) || rc=$?
  if [ "$rc" -eq 124 ]; then return 1; fi
  grep -qE "^[0-9]+%: Checks: [1-9]" <<<"$out" || return 2
  [ "$rc" -ne 0 ] || return 0
  printf '%s\n' "$out" >"$dir/failed.log"
  grep -qE ":[FE]:[^:]*:$test:" <<<"$out" || return 2
  return 1
}

# passes PROGRAM TEST TRIES: in each of them, as many as the fault has to be caught in: a test that fails now and then is no proof.
passes() {
  local try
  for ((try = 0; try < $3; try++)); do run "$1" "$2" || return 1; done
}

# bites PROGRAM TEST TRIES
bites() {
  local rc try
  for ((try = 0; try < $3; try++)); do
    run "$1" "$2"
    rc=$?
    [ "$rc" -ne 1 ] || return 0
  done
  return 1
}

# try PATCH: prints the outcome; the tree is whole again afterwards.
try() {
  local patch=$1 program name tries outcome
  read -r program name < <(field Test "$patch")
  tries=$(tries_of "$patch")
  if ! patch -d "$dir/tree" -p1 -s -f --no-backup-if-mismatch -r "$dir/rejects" --dry-run <"$patch" >"$dir/patch.log" 2>&1; then
    echo "does not apply"
    return
  fi
  patch -d "$dir/tree" -p1 -s -f --no-backup-if-mismatch <"$patch"
  if ! compile "${programs[$program]}" >"$dir/make.log" 2>&1; then
    outcome="does not build"
  elif bites "$program" "$name" "$tries"; then
    outcome=caught
  else
    outcome=MISSED
  fi
  patch -d "$dir/tree" -p1 -s -f -R --no-backup-if-mismatch <"$patch"
  echo "$outcome"
}

main() {
  local patches=() name p program test outcome most caught=0
  declare -gA programs=()
  local -A sound=() tries=()
  if [ $# -gt 0 ]; then
    for name in "$@"; do
      [ -e "$root/tests/bite/$name.patch" ] || { say "'$name' is no fault: there is no tests/bite/$name.patch" >&2; exit 2; }
      patches+=("$root/tests/bite/$name.patch")
    done
  else
    patches=("$root"/tests/bite/*.patch)
  fi
  for p in "${patches[@]}"; do
    read -r program test < <(field Test "$p")
    # A run over the simulated driver is a script that make writes, beside the program.
    programs[$program]=$program
  done
  say "building a copy"
  if ! { copy && configure >"$dir/configure.log" 2>&1 && compile "${!programs[@]}" >"$dir/make.log" 2>&1; }; then
    tail -n 30 "$dir/configure.log" "$dir/make.log" >&2
    say "the copy could not be built"
    exit 1
  fi
  # All of them before the first fault: what is linked into a program stays in it until it is built anew.
  for p in "${patches[@]}"; do
    read -r program test < <(field Test "$p")
    most=$(tries_of "$p")
    [ "$most" -le "${tries[$program $test]:-0}" ] || tries[$program $test]=$most
  done
  for name in "${!tries[@]}"; do
    read -r program test <<<"$name"
    ! passes "$program" "$test" "${tries[$name]}" || sound[$name]=yes
  done
  for p in "${patches[@]}"; do
    read -r program test < <(field Test "$p")
    if [ -n "${sound[$program $test]:-}" ]; then outcome=$(try "$p"); else outcome="no bite"; fi
    [ "$outcome" != caught ] || caught=$((caught + 1))
    printf '%-14s %-32s %s: %s\n' "$outcome" "$(basename "$p" .patch)" "$program" "$test"
  done
  echo "figure: deliberate faults | $caught caught of ${#patches[@]} planted"
  [ "$caught" -eq ${#patches[@]} ]
}

main "$@"
