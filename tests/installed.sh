# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034
# What the tests of an installed liboc share. Sourced, with `set -eu` on, by scripts that make check runs.
# Leaves a work folder in $work, and $failed at 0.

: "${CC:?}" "${CXX:?}" "${top_srcdir:?}" "${top_builddir:?}"   # from make check
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
failed=0
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
# What make tells its children is not for other makes.
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR

fail() {
  echo "FAIL: $*"
  failed=1
}

# quietly COMMAND...: its output only if it fails.
quietly() {
  "$@" >"$work/output" 2>&1 </dev/null && return 0
  cat "$work/output"
  return 1
}

# must WHAT COMMAND...: counts as a failure of WHAT if the command fails.
must() {
  local what=$1
  shift
  quietly "$@" || fail "$what: $*"
}

skipped() {
  echo "SKIPPED: $*"
}

# The library as it was built, installed into $work/root; pkg-config, the compiler, the loader and Python find it there.
stage() {
  local pc
  must "make install" make -C "$top_builddir/liboc" install DESTDIR="$work/root"
  pc=$(find "$work/root" -name liboc.pc)
  [ -f "$pc" ] || { fail "no liboc.pc was installed"; exit 1; }
  mkdir -p "$work/pc"
  # As though the root were /: absolute paths get it in front.
  sed -E "s,^([a-z_]+)=/,\\1=$work/root/," "$pc" >"$work/pc/liboc.pc"
  use_pc "$work/pc"
}

# use_pc FOLDER: what the liboc.pc in there describes is what is compiled against and run.
use_pc() {
  export PKG_CONFIG_PATH=$1${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  read -ra oc_cflags < <(pkg-config --cflags liboc)
  read -ra oc_libs < <(pkg-config --libs liboc)
  libdir=$(pkg-config --variable=libdir liboc)
  export LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# The words of CC, CXX and their flags, as make passes them.
read -ra cc <<<"$CC ${CFLAGS-} ${LDFLAGS-}"
read -ra cxx <<<"$CXX ${CXXFLAGS-} ${LDFLAGS-}"
warnings=(-Wall -Wextra -Wshadow -Wconversion -Werror)

# compile_c OUTPUT SOURCE ARGUMENT...; compile_cxx likewise.
compile_c() {
  local out=$1 source=$2
  shift 2
  must "compiling $source" "${cc[@]}" -std=c11 "${warnings[@]}" "${oc_cflags[@]}" "$source" -o "$out" "$@" "${oc_libs[@]}"
}
compile_cxx() {
  local out=$1 source=$2
  shift 2
  must "compiling $source" "${cxx[@]}" "${warnings[@]}" "${oc_cflags[@]}" "$source" -o "$out" "$@" "${oc_libs[@]}"
}
