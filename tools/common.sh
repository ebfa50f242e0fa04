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
  if generated_is_old; then
    step "generating configure" "$dir/autogen.log" "$oc_root/autogen.sh"
  fi
  # Configured before in the same way: make itself notices what changed since.
  if [ ! -e "$dir/configured-with" ] || [ "$(cat "$dir/configured-with")" != "$*" ]; then
    rm -f "$dir/configured-with"
    (cd "$dir" && step "configuring${*:+ with $*}" "$dir/configure.log" "$oc_root/configure" "$@")
    printf '%s' "$*" >"$dir/configured-with"
  fi
  step "building" "$dir/make.log" make -C "$dir" -j "$(nproc)"
}

# Whether autogen.sh must run: make keeps a configured folder up to date, but not before configure.
generated_is_old() {
  local am
  [ -x "$oc_root/configure" ] || return 0
  for am in "$oc_root"/Makefile.am "$oc_root"/*/Makefile.am; do
    [ -e "${am%.am}.in" ] || return 0
  done
  [ -n "$(find "$oc_root/configure.ac" "$oc_root/m4" -name '*.ac' -newer "$oc_root/configure" -o \
    -name 'oc_*.m4' -newer "$oc_root/configure")" ]
}
