#!/bin/bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, and runs the main job:
#   tools/demo.sh [FILE.safetensors ...]      with no file, on one that `octool sample` writes
# Nothing of liboc is installed; the program that runs is build/demo/tools/octool.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

dir=$oc_root/build/demo
case ${1-} in
-h | --help)
  sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
  exit 0
  ;;
-*) die "unknown option '$1'; only files are taken" ;;
esac
for file in "$@"; do
  [ -r "$file" ] || die "$file: no such file, or not readable"
done

"$oc_root/tools/deps.sh"
build "$dir"
octool=$dir/tools/octool
if [ $# -eq 0 ]; then
  set -- "$dir/sample.safetensors"
  "$octool" sample "$1"
fi
say "octool run --threads 4 --swap 5 --seconds 5 $*"
exec "$octool" run --threads 4 --swap 5 --seconds 5 "$@"
