#!/bin/bash
# SPDX-License-Identifier: MIT
# The USDT probes, by readelf: each that doc/probes.md lists is in liboc.so, with as many arguments, and no other; none is
# in a function that serves hits (G1).
set -eu

: "${top_srcdir:?}" "${top_builddir:?}"   # from make check
so=$top_builddir/liboc/.libs/liboc.so
doc=$top_srcdir/doc/probes.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
  echo "FAIL: $*"
  failed=1
}

if ! grep -q '^#define HAVE_SDT 1' "$top_builddir/config.h"; then
  readelf -nW "$so" 2>/dev/null | grep -q stapsdt && fail "probes in a build without sys/sdt.h"
  [ "$failed" -eq 1 ] || echo "SKIPPED: built without sys/sdt.h (Debian: systemtap-sdt-dev)"
  exit $((failed ? 1 : 77))
fi

# "name arguments" a probe. A function that was inlined twice has its probe twice.
readelf -nW "$so" | awk '
  /Provider:/ { provider = $NF }
  /Name:/ { name = $2 }
  /Arguments:/ { if (provider == "liboc") print name, NF - 1 }' | sort -u >"$work/built"
# | `name` | when | a, b (x, y), c | : commas outside parentheses separate arguments.
# shellcheck disable=SC2016 # the page's own quotes
sed -n 's/^| `\([a-z_]*\)` | .* | \(.*\) |$/\1|\2/p' "$doc" | sed 's/([^)]*)//g' |
  awk -F'|' '{ print $1, split($2, unused, ",") }' | sort -u >"$work/documented"
[ "$(wc -l <"$work/documented")" -ge 10 ] || fail "doc/probes.md lists $(wc -l <"$work/documented") probes"
diff "$work/built" "$work/documented" || fail "liboc.so (<) and doc/probes.md (>) differ"

# An enabled probe traps; a hit must not. Probes' places are compared with the bounds of the hits' functions.
readelf -nW "$so" | sed -n 's/.*Location: 0x0*\([0-9a-f]*\),.*/\1/p' >"$work/places"
readelf -sW "$so" | awk '$4 == "FUNC" && $8 ~ /^oc_(opcache_(kernel|scratch|once|first)|derived_get_(ptr|pair)|guard_|model_(enter|leave)|pool_(alloc|free)_?)/ { print $2, $3, $8 }' |
  sed 's/@.*//' >"$work/hits"
[ "$(wc -l <"$work/hits")" -ge 15 ] || fail "only $(wc -l <"$work/hits") functions of hits found"
while read -r at size name; do
  from=$((16#$at))
  while read -r place; do
    [ $((16#$place)) -lt $from ] || [ $((16#$place)) -ge $((from + size)) ] || fail "a probe inside $name"
  done <"$work/places"
done < <(grep -v 'get_or_build' "$work/hits")

exit "$failed"
