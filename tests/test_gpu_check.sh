#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/gpu/check.sh, over the simulated driver without its controls: what it prints, its JSON, and that it fails when a
# byte is wrong, a launch fails, or a driver has no memory. Closes on Check's line of counts.
set -u

: "${top_srcdir:?}"   # from make check
# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
# The other tests in it are slow under a sanitizer, and have run under it before.
parts=tests,bytes,octool,measure
case ${CFLAGS:-} in *-fsanitize*) parts=bytes,octool,measure ;; esac

# run STATUS ARGUMENT...: check.sh.
run() {
  local want=$1
  shift
  rm -f out.json
  runs "$want" "$top_srcdir/tests/gpu/check.sh" --build "$top_builddir" --json out.json "$@"
  cat err >>out
}

says() {
  if grep -qE -- "$1" out; then ok; else fail "it does not say: $1"; fi
}

"$top_builddir/tools/octool" sample --params 100000 file.safetensors >out 2>&1 || fail "octool sample"
run 0 --simulated --only "$parts" file.safetensors
says ' [0-9]+ derived bytes compared with the host.s, 0 differ'
says '^cuMemAlloc of each '
says '^A is torn down '
json out.json 'd["simulated"] and d["failed"] == 0 and d["derived_bytes"]["compared"] > 10**7 and d["derived_bytes"]["differ"] == 0'
json out.json 'd["run_sample"]["swaps"] == d["run_files"]["swaps"] == 20 and d["run_files"]["backend"] == "cuda"'
json out.json 'all(d[r][k] == 0 for r in ("run_sample", "run_files") for k in ("verify_failures", "bytes_leaked", "device_growth_bytes"))'
# The simulated driver's cost of chunks, as measured: 2 MiB / floor(2 MiB / 800 KiB) for 800 KiB.
json out.json '[round(g["driver_bytes"] / g["asked"], 2) for g in d["measured"]["granularity"] if g["request_bytes"] == 819200] == [1.28]'
json out.json 'len(d["measured"]["granularity"]) == 7 and len(d["measured"]["calls"]) == 7'
json out.json '[l["driver_frees"] for l in d["measured"]["exl3_moe_512e"]][0] == d["measured"]["exl3_moe_512e"][0]["tensors"] > 6000'
json out.json 'd["measured"]["exl3_moe_512e"][2]["driver_frees"] <= 4 and len(d["measured"]["launch_to_done"]) == 3'
json out.json 'all(l["launches"] > 0 and l["p50_us"] <= l["p99_us"] for l in d["measured"]["launch_to_done"])'
if [[ $parts = tests* ]]; then
  says '^tests: [0-9]+ passed, 0 failed, [0-9]+ left out$'
  says '^  test_scenarios_cuda: s5_success_and_a_null_handle$'
  json out.json 'd["tests"]["passed"] > 300 and d["tests"]["left_out"] > 30'
fi

# A copy that brings nothing, once: bytes differ.
export SIMCUDA_FAIL=cuMemcpyDtoHAsync_v2:3:1:0
run 1 --simulated --only bytes
says ' [1-9][0-9]* differ$'
says '^check.sh: failed: bytes'
json out.json 'd["failed"] == 1 and d["derived_bytes"]["differ"] > 0 and d["tests"] is None'
export SIMCUDA_FAIL=cuLaunchKernel:50:1:719
run 1 --simulated --only octool
says 'CUDA_ERROR_LAUNCH_FAILED'
says '^check.sh: failed: octool run, sample'
export SIMCUDA_FAIL=cuMemAlloc_v2:1:0:2
run 1 --simulated --only measure
says 'measure: .*CUDA_ERROR_OUT_OF_MEMORY'
unset SIMCUDA_FAIL

# Usage, and no GPU.
run 1 --only frob
says '^check.sh: --only frob is no list of'
run 1 --frob
run 1 no-such.safetensors
says '^check.sh: no-such.safetensors cannot be read'
echo 'no library' >libcuda.so.1
LD_LIBRARY_PATH=$work run 1
says '^check.sh: no GPU to check on: OC_E_NO_DRIVER'

finish
