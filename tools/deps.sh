#!/bin/bash
# SPDX-License-Identifier: MIT
# Installs what the build and the tests need and the machine lacks (Debian packages), and builds the
# private jemalloc once into a cache folder outside the tree:
#   ${XDG_CACHE_HOME:-~/.cache}/liboc/jemalloc-MACHINE -> jemalloc-VERSION-MACHINE-RECIPE
# Nothing to do is the common case; then it asks no network and prints nothing.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

packages=(gcc g++ libc6-dev make autoconf automake libtool pkg-config
  liburcu-dev libjansson-dev check python3 dpkg-dev)
# Tests use these and say aloud what they skip without them: a release that lacks one is no reason to stop.
tests_use=(libck-dev valgrind spin man-db mandoc abigail-tools libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0
  libncurses-dev systemtap-sdt-dev prometheus
  clang libclang-rt-dev clang-tidy cppcheck shellcheck chromium)

# The private jemalloc has names of its own, exports nothing, and has no thread-local storage: liboc keeps a
# few bytes in initial-exec TLS, which puts all of the library's TLS into the process's small static reserve.
# With jemalloc's 2.6 KiB among it, dlopen of liboc fails in Python.
jemalloc_flags=(force_tls=0 --disable-initial-exec-tls
  --with-jemalloc-prefix=oc_je_ --with-private-namespace=oc_jei_ --without-export
  --disable-cxx --disable-shared)

# After a failed step the work folder stays: its log was named to the reader.
work=
clean_up() {
  local rc=$?
  if [ "$rc" -eq 0 ] || [ ! -e "$work/log" ]; then rm -rf "$work"; fi
}
trap clean_up EXIT

main() {
  [ $# -eq 0 ] || die "takes no arguments; it is described at its head"
  work=$(mktemp -d "${TMPDIR:-/tmp}/liboc-deps.XXXXXX")
  install_packages
  private_jemalloc
}

# --- Debian packages ---

missing_packages() {
  local p
  for p in "$@"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null | grep -q '^.i' || echo "$p"
  done
}

install_packages() {
  local missing useful needed
  if ! command -v dpkg-query apt-get >/dev/null; then
    die "this is no Debian: install by your own means what these packages hold: ${packages[*]}"
  fi
  mapfile -t missing < <(missing_packages "${packages[@]}")
  mapfile -t useful < <(missing_packages "${tests_use[@]}" | had_here)
  [ ${#missing[@]} -gt 0 ] || [ ${#useful[@]} -gt 0 ] || return 0
  if [ ${#missing[@]} -eq 0 ] && [ "$(id -u)" -ne 0 ]; then
    say "only root can install what some tests use: ${useful[*]}; they are skipped"
    return 0
  fi
  needed=${#missing[@]}
  become_root
  if lists_lack gcc "${missing[@]}"; then update_lists "updating the package lists" || return 0; fi
  mapfile -t useful < <(missing_packages "${tests_use[@]}" | had_here)
  missing+=("${useful[@]}")
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  apt_install "${missing[@]}" && return 0
  # Lists that are old name files that the archive no longer has.
  update_lists "installing failed; updating the package lists" || return 0
  apt_install "${missing[@]}" && return 0
  tail -n 20 "$work/log" >&2
  if [ "$needed" -eq 0 ]; then
    say "installing ${missing[*]} failed, for the reasons above; the tests that use them are skipped"
    return 0
  fi
  die "installing ${missing[*]} failed: apt-get's reasons are above"
}

# update_lists WHAT: what only some tests use is no reason to stop a build where there is no network.
update_lists() {
  if [ "$needed" -gt 0 ]; then step "$1" "$work/log" "${as_root[@]}" apt-get update; return; fi
  say "$1"
  "${as_root[@]}" apt-get update >"$work/log" 2>&1 </dev/null && return 0
  say "apt-get update failed ($(grep -m1 -E '^[EW]:' "$work/log" || true)): what some tests use is not installed: ${useful[*]}"
  return 1
}

apt_install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends "$@" >"$work/log" 2>&1 </dev/null
}

become_root() {
  as_root=()
  [ "$(id -u)" -eq 0 ] && return 0
  command -v sudo >/dev/null || die "these packages are missing and only root can install them: ${missing[*]}"
  as_root=(sudo)
}

has_candidate() {
  apt-cache policy "$1" 2>/dev/null | grep -q '^  Candidate: [^(]'
}

lists_lack() {
  local p
  for p in "$@"; do
    has_candidate "$p" || return 0
  done
  return 1
}

# Of the packages on standard input, those that this release has, as far as its lists tell. Lists that do not have even
# a compiler are empty, and tell nothing.
had_here() {
  local p
  while read -r p; do
    if has_candidate "$p" || lists_lack gcc; then echo "$p"; fi
  done
}

# --- the private jemalloc ---

private_jemalloc() {
  local cache machine recipe link
  cache=${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/liboc
  machine=$(uname -m)
  recipe=$({ printf '%s\n' "${jemalloc_flags[@]}"; declare -f build_jemalloc finish_archive finish_steps; } |
    sha256sum | cut -c1-8)
  link=$cache/jemalloc-$machine

  case $(readlink "$link" 2>/dev/null) in
  *-"$recipe") [ ! -f "$link/lib/liboc_jemalloc.a" ] || return 0 ;;
  esac
  if ! mkdir -p "$cache" 2>/dev/null || [ ! -w "$cache" ]; then
    die "$cache can't be written, and the private jemalloc goes there; XDG_CACHE_HOME names another place"
  fi
  fetch_jemalloc || {
    say "no private jemalloc: $why; host metadata will use the process's allocator (--with-jemalloc=host)"
    return 0
  }
  build_jemalloc "$cache/jemalloc-$version-$machine-$recipe"
  ln -sfn "jemalloc-$version-$machine-$recipe" "$link"
}

# Leaves the source in $work/source and its Debian version in $version; or says why not in $why. The
# machine's own sources are asked for source packages, in lists of our own: apt's stay as they are.
fetch_jemalloc() {
  local apt
  mkdir -p "$work/parts" "$work/lists/partial" "$work/cache/archives/partial" "$work/get"
  source_lists
  apt=(apt-get -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/parts"
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=)
  say "fetching the source of jemalloc"
  # One source without source packages makes update fail: whether jemalloc's is there counts.
  "${apt[@]}" update >"$work/log" 2>&1 </dev/null || true
  (cd "$work/get" && "${apt[@]}" source jemalloc) >>"$work/log" 2>&1 </dev/null || {
    why="its Debian source package is not to be had ($(grep -m1 '^E:' "$work/log" || tail -n1 "$work/log"))"
    return 1
  }
  mv "$work"/get/jemalloc-*/ "$work/source"
  version=$(dpkg-parsechangelog -l "$work/source/debian/changelog" -S Version | tr -c 'A-Za-z0-9.+~\n' -)
}

# The machine's package sources, with deb-src in place of deb.
source_lists() {
  local LIST PARTS f n=0
  eval "$(apt-config shell LIST Dir::Etc::sourcelist/f PARTS Dir::Etc::sourceparts/d)"
  for f in "$LIST" "$PARTS"/*.list "$PARTS"/*.sources; do
    [ -r "$f" ] || continue
    n=$((n + 1))
    case $f in
    *.sources) sed -E 's/^Types:.*/Types: deb-src/' "$f" >"$work/parts/$n.sources" ;;
    *) sed -nE 's/^[[:space:]]*deb[[:space:]]/deb-src /p' "$f" >"$work/parts/$n.list" ;;
    esac
  done
}

# Builds $work/source into folder $1, which appears whole or not at all.
build_jemalloc() {
  local dir=$1 made=$work/made
  (
    cd "$work/source"
    step "configuring the private jemalloc $version" "$work/log" \
      ./configure "${jemalloc_flags[@]}"
    step "building the private jemalloc $version" "$work/log" make -j "$(nproc)" lib/libjemalloc_pic.a
  )
  mkdir -p "$made/lib" "$made/include/jemalloc"
  finish_archive "$made/lib/liboc_jemalloc.a"
  cp "$work/source/include/jemalloc/jemalloc.h" "$made/include/jemalloc/"
  cp "$work/source/COPYING" "$made/"
  # Next to its place first: a move within one folder is whole or not at all.
  mkdir -p "$(dirname "$dir")"
  rm -rf "$dir" "$dir.$$"
  cp -r "$made" "$dir.$$"
  # Another run may have put the same there meanwhile.
  mv -T "$dir.$$" "$dir" 2>/dev/null || rm -rf "$dir.$$"
}

# jemalloc takes options from the environment and from a link in /etc. A library does neither: its calls
# are led to two functions that find nothing. The debug information goes: 40 MB, of use to nobody here.
finish_archive() {
  local archive=$1
  cat >"$work/nothing.c" <<'EOF'
#include <stddef.h>
#include <sys/types.h>
char *oc_jei_no_env(const char *name);
ssize_t oc_jei_no_link(const char *path, char *buf, size_t bytes);
char *oc_jei_no_env(const char *name) { (void)name; return NULL; }
ssize_t oc_jei_no_link(const char *path, char *buf, size_t bytes) { (void)path; (void)buf; (void)bytes; return -1; }
EOF
  step "finishing the private jemalloc $version" "$work/log" finish_steps "$archive"
}

finish_steps() {
  gcc -O2 -fPIC -fvisibility=hidden -c "$work/nothing.c" -o "$work/nothing.o" &&
    objcopy --strip-debug --redefine-sym secure_getenv=oc_jei_no_env \
      --redefine-sym readlink=oc_jei_no_link "$work/source/lib/libjemalloc_pic.a" "$1" &&
    ar rs "$1" "$work/nothing.o" &&
    readelf -sW "$1" >"$work/symbols" &&
    ! grep -wE 'TLS|secure_getenv|getenv|readlink' "$work/symbols"
}

main "$@"
