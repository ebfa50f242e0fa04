#!/bin/bash
# SPDX-License-Identifier: MIT
# The PTX of octool's kernels: nothing in it may make other bits than the host makes (contraction, flushed denormals,
# approximate division, unrounded arithmetic that a later compiler may contract); it is made from the sources that are
# here; ptxas takes it, where there is one. Each rule is shown to bite. Closes on Check's line of counts.
set -u

: "${top_srcdir:?}"   # from make check
kernels=$top_srcdir/tools/kernels
ptx=$kernels/derive.ptx
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checks=0
failures=0

check() {
  checks=$((checks + 1))
  "${@:2}" && return
  failures=$((failures + 1))
  echo "FAIL: $1"
}

# inexact FILE: the instructions that could make other bits. A line's first word is its opcode, after a predicate.
inexact() {
  awk '
    /^[ \t]*(\/\/|$)/ { next }
    { op = $1 ~ /^@/ ? $2 : $1; sub(/;$/, "", op) }
    op ~ /^(fma|mad24|rcp|sqrt|rsqrt|sin|cos|lg2|ex2|tanh|testp|copysign)\./ { print FNR ": " op; next }
    op ~ /^mad\..*f(16|32|64)/ { print FNR ": " op; next }
    op ~ /\.(ftz|approx|full|sat|rz|rm|rp|rni|rzi)(\.|$)/ { print FNR ": " op; next }
    op ~ /\.(f64|f16|f16x2|bf16|bf16x2|tf32|e4m3x2|e2m1x2)(\.|$)/ { print FNR ": " op; next }
    # without .rn it may be contracted by the compiler that the driver has
    op ~ /^(add|sub|mul|div)\.([a-z]+\.)*f32$/ && op !~ /^(add|sub|mul|div)\.rn\.f32$/ { print FNR ": " op; next }
    op ~ /^cvt\..*f32/ && op !~ /^cvt\.rn\.f32\.[us](8|16|32)$/ { print FNR ": " op }
  ' "$1"
}

exact() {
  inexact "$1" >"$work/found"
  [ ! -s "$work/found" ] || { sed 's/^/  line /' "$work/found"; false; }
}

# bites SED: the PTX changed so is found.
bites() {
  sed "$1" "$ptx" >"$work/bad.ptx"
  ! cmp -s "$ptx" "$work/bad.ptx" && ! exact "$work/bad.ptx" >/dev/null
}

has() {
  grep -qE -- "$1" "$ptx"
}

lacks() {
  ! has "$1"
}

check "something in derive.ptx is not exact" exact "$ptx"
check "a fused multiply-add is not seen" bites '0,/mul\.rn\.f32/s//fma.rn.f32/'
check "flushing is not seen" bites '0,/add\.rn\.f32/s//add.rn.ftz.f32/'
check "an approximate division is not seen" bites '0,/div\.rn\.f32/s//div.approx.f32/'
check "a full-range division is not seen" bites '0,/div\.rn\.f32/s//div.full.f32/'
check "an unrounded product is not seen" bites '0,/mul\.rn\.f32/s//mul.f32/'
check "an unrounded sum under a predicate is not seen" bites '0,/add\.rn\.f32/s//@%p1 add.f32/'
check "binary64 is not seen" bites '0,/mul\.rn\.f32/s//mul.rn.f64/'

check "true division is not there" has '^\s*div\.rn\.f32'
check "the version is not the least for sm_75" has '^\.version 6\.3$'
check "the target is not sm_75" has '^\.target sm_75$'
check "debug information is there" lacks '^\s*\.(file|loc)\s'

# Changed sources need new PTX: make-ptx.sh.
sum=$(cat "$kernels/derive.cu" "$kernels/derive_math.h" | sha256sum | cut -d' ' -f1)
check "derive.ptx was made from other sources: run tools/kernels/make-ptx.sh" has "^// sources: $sum\$"

if "$kernels/make-ptx.sh" --check >"$work/ptxas" 2>&1; then
  cat "$work/ptxas"
  check "ptxas was not asked about three targets" test "$(grep -c ' taken for sm_' "$work/ptxas")" -eq 3
elif grep -q 'no ptxas' "$work/ptxas"; then
  echo "SKIPPED: whether ptxas takes derive.ptx: there is none here"
else
  cat "$work/ptxas"
  check "ptxas refuses derive.ptx" false
fi

echo "$((100 * (checks - failures) / checks))%: Checks: $checks, Failures: $failures, Errors: 0"
[ "$failures" -eq 0 ]
