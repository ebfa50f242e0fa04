#!/bin/bash
# SPDX-License-Identifier: MIT
# octool over the CUDA backend: on the simulated driver, with octool's own PTX, whose entries run the C kernels; on one
# that runs out of memory; and with no driver at all. Closes on Check's line of counts.
set -u

: "${top_builddir:?}"   # from make check
octool=$top_builddir/tools/octool
sim=$top_builddir/tests/simcuda
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
checks=0
failures=0

# check WORDS COMMAND...: one check, true if the command is.
check() {
  local words=$1
  shift
  checks=$((checks + 1))
  "$@" && return
  failures=$((failures + 1))
  echo "FAIL: $words"
  sed 's/^/  stdout: /' out
  sed 's/^/  stderr: /' err
}

# run STATUS FOLDER ARGUMENT...: octool with that folder's libcuda.so.1; outputs in out and err.
run() {
  local want=$1 folder=$2 got
  shift 2
  LD_LIBRARY_PATH=$folder SIMCUDA_KERNELS=$sim/.libs/kernels.so timeout 300 "$octool" run --backend cuda "$@" >out 2>err </dev/null
  got=$?
  check "octool run --backend cuda $*: exit status $got, not $want" test "$got" -eq "$want"
}

lines() {
  test "$(wc -l <"$1")" -eq "$2"
}

"$octool" sample model.safetensors --params 100000 >out 2>err
check 'a sample can be written' test -s model.safetensors

run 0 "$sim/.libs" --seconds 1 --swap 20 model.safetensors
check 'the teardown was clean' grep -q 'clean' out
check 'no stale launch' grep -q '0 stale launches, 0 blocks swept, 0 bytes leaked' out
check 'no words of failure' test ! -s err

export SIMCUDA_DEVICE_BYTES=1048576 SIMCUDA_MANAGED=no
run 1 "$sim/.libs" --seconds 1 model.safetensors
check 'one line says what ran out' lines err 1
check "in the driver's words" grep -q 'CUDA_ERROR_OUT_OF_MEMORY (2)' err
unset SIMCUDA_DEVICE_BYTES SIMCUDA_MANAGED

echo 'no library' >libcuda.so.1
run 1 "$work" model.safetensors
check 'one line says that there is no driver' lines err 1
check 'by its status' grep -q OC_E_NO_DRIVER err
run 1 "$sim/old/.libs" model.safetensors
check 'one line says what the driver lacks' lines err 1
check 'by its status' grep -q OC_E_NO_DRIVER err

echo "$((100 * (checks - failures) / checks))%: Checks: $checks, Failures: $failures, Errors: 0"
[ "$failures" -eq 0 ]
