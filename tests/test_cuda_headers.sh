#!/bin/bash
# SPDX-License-Identifier: MIT
# The conversions against those of CUDA's cuda_fp8.hpp, cuda_fp4.hpp, cuda_bf16.hpp and cuda_fp16.hpp, on the host. Skipped,
# aloud, where those are not; CUDA_HOME says where they are, else /usr/local/cuda* is looked into.
set -u

: "${top_srcdir:?}" "${CXX:?}"   # from make check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for include in ${CUDA_HOME:+"$CUDA_HOME/include"} /usr/local/cuda/include /usr/local/cuda-*/include /usr/include; do
  [ ! -e "$include/cuda_fp4.hpp" ] || [ ! -e "$include/cuda_fp8.hpp" ] || break
  include=
done
if [ -z "$include" ]; then
  echo "SKIPPED: there are no cuda_fp8.hpp and cuda_fp4.hpp to compare with (CUDA_HOME is ${CUDA_HOME:-not set})"
  exit 77
fi

# shellcheck disable=SC2086 # CXX may be a compiler with flags
if ! $CXX -std=gnu++17 -O2 -ffp-contract=off -w -I"$top_srcdir" -isystem "$include" \
  -o "$work/compare" "$top_srcdir/tests/cuda_headers.cpp" >"$work/log" 2>&1; then
  cat "$work/log"
  echo "FAIL: tests/cuda_headers.cpp does not compile with the headers in $include"
  exit 1
fi
"$work/compare"
