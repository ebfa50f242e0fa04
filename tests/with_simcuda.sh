#!/bin/sh
# SPDX-License-Identifier: MIT
# with_simcuda.sh PROGRAM [ARGUMENT ...]: runs a test program of the folder it is called in, over the CUDA backend and the
# simulated driver.
set -eu
program=./$1
shift
LIBOC_TEST_BACKEND=cuda
LD_LIBRARY_PATH=$PWD/simcuda/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LIBOC_TEST_BACKEND LD_LIBRARY_PATH
exec "$program" "$@"
