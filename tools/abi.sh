#!/bin/bash
# SPDX-License-Identifier: MIT
# Compares the binary interface of a liboc.so with the committed one, liboc/liboc-MACHINE.abi, by libabigail:
#   tools/abi.sh LIBOC.so            exits 0 if programs built against the committed one run with it; says what was added
#   tools/abi.sh --update LIBOC.so   writes the committed one anew: with each release, and when exports are added
# The library needs debug information. Exit status 1: a break, or no comparison; 77: nothing to compare with or by.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

headers=$oc_root/liboc
baseline=$headers/liboc-$(uname -m).abi
update=no
case ${1-} in
--update)
  update=yes
  shift
  ;;
-h | --help | '')
  sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
  exit 0
  ;;
esac
library=${1:?a liboc.so is missing}
[ $# -eq 1 ] || die "one library, not $#"
[ -r "$library" ] || die "$library: no such file, or not readable"

nothing() {
  say "SKIPPED: $*"
  exit 77
}

for tool in abidw abidiff; do
  command -v $tool >/dev/null || nothing "$tool is not there; the package abigail-tools has it"
done
readelf -SW "$library" | grep -q '\.debug_info' || nothing "$library has no debug information"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What a build may choose stays out: folders, lines, and what the header does not show.
describe() {
  mkdir -p "$work/shown"
  cp "$headers/oc.h" "$work/shown"
  abidw --headers-dir "$work/shown" --drop-private-types --exported-interfaces-only --no-show-locs --no-corpus-path \
    --no-comp-dir-path --type-id-style hash --out-file "$1" "$library"
}

if [ $update = yes ]; then
  describe "$baseline"
  say "wrote $baseline"
  exit 0
fi
[ -r "$baseline" ] || nothing "no interface of $(uname -m) is committed"
describe "$work/now.abi"

compare() {
  abidiff --suppressions "$headers/liboc.abignore" "$@" "$baseline" "$work/now.abi"
}

rc=0
compare --no-added-syms || rc=$?
[ $rc -eq 0 ] || die "$library breaks programs that were built against the committed interface (abidiff says $rc)"
rc=0
added=$(compare) || rc=$?
case $rc in
0) say "no change" ;;
4) printf '%s\n' "$added"; say "additions only; --update writes them down" ;;
*) die "abidiff says $rc: $added" ;;
esac
