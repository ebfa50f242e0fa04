#!/bin/bash
# SPDX-License-Identifier: MIT
# Makes derive.ptx of derive.cu, for every GPU since sm_75 and the oldest drivers that can take it; needs a CUDA toolkit.
#   tools/kernels/make-ptx.sh            writes derive.ptx, then checks it
#   tools/kernels/make-ptx.sh --check    checks the one that is there, with ptxas alone
# Finds nvcc and ptxas in PATH, else in $CUDA_HOME/bin, else in /usr/local/cuda*/bin.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
ptx=$here/derive.ptx
# PTX versions that know sm_75, oldest first.
versions="6.3 6.4 6.5 7.0 7.1 7.2 7.3 7.4 7.5 7.6 7.7 7.8 8.0"

die() {
  echo "make-ptx.sh: $*" >&2
  exit 1
}

tool() {
  local dir
  for dir in "" "${CUDA_HOME:+$CUDA_HOME/bin/}" /usr/local/cuda*/bin/; do
    if command -v "$dir$1" >/dev/null; then
      command -v "$dir$1"
      return
    fi
  done
  die "no $1: this needs a CUDA toolkit"
}

# What the PTX was made from, whatever made it.
source_sum() {
  cat "$here/derive.cu" "$here/derive_math.h" | sha256sum | cut -d' ' -f1
}

# accepts TARGET VERSION [FILE]: does ptxas take it, declared as that version?
accepts() {
  sed "s/^\.version .*/.version $2/" "${3:-$ptx}" >"$scratch/try.ptx"
  "$ptxas" -arch="$1" -o "$scratch/try.cubin" "$scratch/try.ptx" >"$scratch/log" 2>&1
}

least_version() {
  local v
  for v in $versions; do
    if accepts sm_75 "$v" "$1"; then
      echo "$v"
      return
    fi
  done
  cat "$scratch/log" >&2
  die "ptxas takes it as none of: $versions"
}

make_ptx() {
  local nvcc least
  nvcc=$(tool nvcc)
  (cd "$root" && "$nvcc" -ptx -arch=compute_75 -I. -fmad=false -ftz=false -prec-div=true -prec-sqrt=true \
    -o "$scratch/raw.ptx" tools/kernels/derive.cu)
  least=$(least_version "$scratch/raw.ptx")
  {
    echo "// SPDX-License-Identifier: MIT"
    echo "// Made by make-ptx.sh of derive.cu and derive_math.h; not to be edited."
    echo "// sources: $(source_sum)"
    sed "/^\/\//d; /^\$/d; s/^\.version .*/.version $least/" "$scratch/raw.ptx"
  } >"$scratch/new.ptx"
  mv "$scratch/new.ptx" "$ptx"
}

newest_target() {
  "$ptxas" --help | grep -oE "'sm_[0-9]+'" | tr -d "'" | sort -t_ -k2 -n -u | tail -n 1
}

check_ptx() {
  local version target
  version=$(sed -n 's/^\.version //p' "$ptx")
  for target in sm_75 sm_90 "$(newest_target)"; do
    accepts "$target" "$version" || {
      cat "$scratch/log" >&2
      die "ptxas refuses derive.ptx (PTX $version) for $target"
    }
    echo "derive.ptx: PTX $version, taken for $target"
  done
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
ptxas=$(tool ptxas)
case ${1:-} in
"") make_ptx ;;
--check) ;;
*) die "unknown argument '$1'" ;;
esac
check_ptx
