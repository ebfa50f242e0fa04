# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# What deps.sh, check.sh and demo.sh share. Sourced by them, with `set -euo pipefail` on.

oc_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
oc_me=$(basename "$0")

say() { printf '%s: %s\n' "$oc_me" "$*"; }

die() {
  printf '%s: %s\n' "$oc_me" "$*" >&2
  exit 1
}

# step WHAT LOG COMMAND...: runs COMMAND with its output in LOG. On failure: says what failed, shows the
# log's end, and stops.
step() {
  local what=$1 log=$2 rc=0
  shift 2
  say "$what"
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  [ "$rc" -eq 0 ] && return 0
  tail -n 40 "$log" >&2
  die "$what failed with exit status $rc; the whole output is in $log"
}

# build DIR CONFIGURE_ARGUMENT...: builds the tree in DIR, out of tree.
build() {
  local dir=$1
  shift
  [ ! -e "$oc_root/config.status" ] ||
    die "the source folder itself is configured, which forbids other build folders; run 'make distclean' there first"
  mkdir -p "$dir"
  if [ ! -x "$oc_root/configure" ] || [ -n "$(newer_than "$oc_root/configure")" ]; then
    step "generating configure" "$dir/autogen.log" "$oc_root/autogen.sh"
  fi
  # Configured before in the same way: make itself notices what changed since.
  if [ ! -e "$dir/config.status" ] || [ "$(cat "$dir/configured-with" 2>/dev/null)" != "$*" ]; then
    (cd "$dir" && step "configuring${*:+ with $*}" "$dir/configure.log" "$oc_root/configure" "$@")
    printf '%s' "$*" >"$dir/configured-with"
  fi
  step "building" "$dir/make.log" make -C "$dir" -j "$(nproc)"
}

newer_than() {
  find "$oc_root/configure.ac" "$oc_root/m4" -name '*.ac' -newer "$1" -o -name 'oc_*.m4' -newer "$1"
}
