#!/bin/bash
# SPDX-License-Identifier: MIT
# The library has the binary interface that is committed (tools/abi.sh); and what would break programs is seen: an export
# that is gone, a parameter of another type, an enumerator of another value, a struct whose middle changed.
set -eu
# shellcheck source=tests/installed.sh
. "$(dirname "$0")/installed.sh"
so=$top_builddir/liboc/.libs/liboc.so.0
abi=$top_srcdir/liboc/liboc-$(uname -m).abi

rc=0
"$top_srcdir/tools/abi.sh" "$so" || rc=$?
[ $rc -ne 77 ] || exit 77
[ $rc -eq 0 ] || fail "tools/abi.sh: exit status $rc"

# A copy of the scripts with an older interface, which this library breaks.
mkdir -p "$work/tree/liboc" "$work/tree/tools"
cp "$top_srcdir"/tools/{abi,common}.sh "$work/tree/tools"
cp "$top_srcdir"/liboc/{oc.h,liboc.abignore} "$work/tree/liboc"

breaks() {
  local what=$1 edit=$2
  sed -E "$edit" "$abi" >"$work/tree/liboc/$(basename "$abi")"
  if cmp -s "$abi" "$work/tree/liboc/$(basename "$abi")"; then
    fail "$what: the edit changed nothing"
  elif "$work/tree/tools/abi.sh" "$so" >"$work/out" 2>&1; then
    fail "not seen: $what"
    cat "$work/out"
  fi
}
breaks "an export that is gone" "s/'oc_pool_free'/'oc_pool_let_go'/"
breaks "an enumerator of another value" "s/(enumerator name='OC_E_BUSY' value=)'-21'/\\1'-99'/"
breaks "a struct whose middle changed" "s/(data-member access='public' layout-offset-in-bits=')192('.*)/\\1200\\2/"

exit "$failed"
