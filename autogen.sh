#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes ./configure out of configure.ac. Run it once in a fresh checkout, and after changes to m4/.
set -eu
cd "$(dirname "$0")"

for tool in autoreconf automake libtoolize pkg-config; do
  command -v "$tool" >/dev/null 2>&1 || {
    echo "autogen.sh: $tool is missing; tools/deps.sh installs what the build needs" >&2
    exit 1
  }
done
mkdir -p build-aux
exec autoreconf --force --install
