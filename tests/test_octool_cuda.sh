#!/bin/bash
# SPDX-License-Identifier: MIT
# octool run --backend cuda, over the simulated driver: a clean run with many swaps, what each of the driver's failures
# becomes, and what it says where no driver is. Closes on Check's line of counts.
set -u

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
octool=$top_builddir/tools/octool
driver=$top_builddir/tests/simcuda

# run STATUS ARGUMENT...: octool run.
run() {
  local want=$1
  shift
  rm -f d.json
  runs "$want" "$octool" run "$@"
}

# cuda STATUS ARGUMENT...: the same over the simulated driver.
cuda() {
  local status=$1
  shift
  LD_LIBRARY_PATH=$driver/.libs SIMCUDA_KERNELS=$driver/.libs/kernels.so run "$status" --backend cuda --json d.json "$@"
}

"$octool" sample one.safetensors --params 300000 >out 2>err || fail "octool sample"
clean='(d["verify_failures"] == d["product_failures"] == d["stale_launches"] == d["blocks_swept"] == d["bytes_leaked"] ==
  d["device_growth_bytes"] == 0 and d["driver_allocs"] == d["driver_frees"] > 0 and d["teardown_status"] == "OC_OK")'

cuda 0 --seconds 0.5 --swap 20 one.safetensors
json d.json "$clean"
if [ ! -s err ]; then ok; else fail "standard error is not empty"; fi
json d.json 'd["backend"] == "cuda" and d["swaps"] == 20 and d["derived_built"] == d["derived_verified"] > 0'
json d.json 'd["products_checked"] >= d["derived_built"] and not d["device_counts"]'
# With a driver that hands the same addresses and handles out again, charges by chunks, and cannot do managed memory.
SIMCUDA_RECYCLE=1 SIMCUDA_CHUNKS=1 SIMCUDA_POISON=1 SIMCUDA_MANAGED=no cuda 0 --seconds 0.5 --swap 5 --threads 4 one.safetensors
json d.json "$clean"
cuda 0 --seconds 0 --swap 2 --derive nvfp4-from-fp8 one.safetensors
json d.json "$clean"

# Faults put in are seen by the same means.
cuda 1 --seconds 0 --inject bitflip one.safetensors
says "1 verifications failed"
cuda 1 --seconds 0 --inject orphan one.safetensors
says "blocks belonged to nobody at teardown"
cuda 0 --seconds 0.3 --inject miss one.safetensors
json d.json 'd["misses"] >= 1 and d["derived_built"] == d["derived_verified"]'
cuda 2 --inject no-grace one.safetensors
says "--inject no-grace needs the host backend"

# What the driver refuses is told in its words, and torn down cleanly all the same.
SIMCUDA_FAIL=cuModuleLoadDataEx:1:1:218 cuda 1 --seconds 0 one.safetensors
says "loading the kernels: OC_E_INVALID"
says "CUDA_ERROR_INVALID_PTX"
json d.json 'd["failure"] is not None and d["bytes_leaked"] == d["device_growth_bytes"] == 0'
SIMCUDA_MISSING_FUNCTION=null SIMCUDA_FAIL=cuModuleGetFunction:3:1:500 cuda 1 --seconds 0 one.safetensors
says "resolving the kernels: OC_E_NOT_FOUND"
SIMCUDA_FAIL=cuMemcpyHtoDAsync_v2:4:1:1 cuda 1 --seconds 0 one.safetensors
says "copy_h2d"
json d.json 'd["bytes_leaked"] == d["device_growth_bytes"] == 0'
# A copy that says it worked and did nothing is a verification failure.
SIMCUDA_FAIL=cuMemcpyHtoDAsync_v2:4:1:0 cuda 1 --seconds 0 --swap 0 one.safetensors
says "the device has other bytes than the file"
SIMCUDA_FAIL=cuLaunchKernel:9:1:1 cuda 1 --seconds 0 one.safetensors
says "bf16: device: launch: OC_E_INVALID: cuLaunchKernel("
json d.json 'd["bytes_leaked"] == d["device_growth_bytes"] == 0 and d["teardown_status"] == "OC_OK"'
SIMCUDA_DEVICE_BYTES=1048576 SIMCUDA_MANAGED=no cuda 1 --seconds 0 one.safetensors
says "OC_E_DEVICE_NOMEM"
says "CUDA_ERROR_OUT_OF_MEMORY (2)"

# What is no driver, and one that is too old: one line.
one_line() {
  if [ "$(wc -l <err)" -eq 1 ] && [ ! -s out ]; then ok; else fail "that is not one line"; fi
}
echo 'no library' >libcuda.so.1
LD_LIBRARY_PATH=$work run 1 --backend cuda one.safetensors
says "octool run: opening the cuda backend: OC_E_NO_DRIVER: "
one_line
LD_LIBRARY_PATH=$driver/old/.libs run 1 --backend cuda one.safetensors
says "octool run: opening the cuda backend: OC_E_NO_DRIVER: "
one_line

finish
