#!/bin/sh
# SPDX-License-Identifier: MIT
# What liboc.so looks like from outside: only what liboc.map lists leaves it, and oc.h declares just that; it
# drags in neither libjemalloc nor libstdc++; it stays mapped after dlclose; its thread-local storage fits the
# static reserve of a process that opens it late (G29).
set -eu

: "${CC:?}" "${top_srcdir:?}" "${top_builddir:?}"   # from make check
so=$top_builddir/liboc/.libs/liboc.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
  echo "FAIL: $*"
  failed=1
}

# Name by name: what is only in $1, only in $2.
same() {
  comm -3 "$1" "$2" >"$work/difference"
  [ ! -s "$work/difference" ] || {
    fail "$3"
    cat "$work/difference"
  }
}

nm -D --defined-only "$so" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' | sort -u >"$work/exported"
sed -n 's/^ *\(oc_[a-z0-9_]*\);.*/\1/p' "$top_srcdir/liboc/liboc.map" | sort -u >"$work/listed"
[ -s "$work/listed" ] || fail "liboc.map lists nothing"
same "$work/exported" "$work/listed" "liboc.so exports (left) what liboc.map does not list, or lacks (right) what it lists"

# The compiler's own view of the header: declarations, without macros and comments. "oc_status (*" opens a
# pointer in a table.
printf '#include "liboc/oc.h"\n' >"$work/h.c"
$CC -E -P -I"$top_srcdir" "$work/h.c" | tr '\n' ' ' | grep -oE '\boc_[a-z0-9_]+ ?\([^*]' | sed 's/ *(.*//' |
  sort -u >"$work/declared"
same "$work/listed" "$work/declared" "liboc.map lists (left) what oc.h does not declare, or lacks (right) what it declares"

readelf -dW "$so" >"$work/dynamic"
grep -q 'NODELETE' "$work/dynamic" || fail "not linked with -z nodelete"
if grep -E 'NEEDED.*\[lib(jemalloc|stdc\+\+)' "$work/dynamic"; then
  fail "drags that in"
fi

case " ${CFLAGS-} " in
*-fsanitize=*)
  echo "a sanitizer build: its thread-local storage and dlopen are the sanitizer's affair"
  exit "$failed"
  ;;
esac

# PT_TLS: type offset vaddr paddr filesz memsz ...
tls=$(readelf -lW "$so" | awk '$1 == "TLS" { print $6 }')
[ $((${tls:-0})) -le 64 ] || fail "$((tls)) bytes of thread-local storage; 64 always fit the static reserve"

python3 - "$so" <<'EOF' || fail "dlopen in Python"
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.oc_version.restype = ctypes.c_char_p
assert lib.oc_version()
backend, model = ctypes.c_void_p(), ctypes.c_void_p()
assert lib.oc_backend_open_host(None, ctypes.byref(backend)) == 0
assert lib.oc_model_create(backend, None, ctypes.byref(model)) == 0
assert lib.oc_model_destroy(model) == 0
assert lib.oc_backend_close(backend) == 0
EOF

exit "$failed"
