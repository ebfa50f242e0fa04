#!/bin/bash
# SPDX-License-Identifier: MIT
# What a release needs, and what takes minutes:
#   tools/release-check.sh [STEP...]     all steps, or those named, in build/release; each is one line, and stops at a failure
# Steps: versions (one version everywhere), distcheck, debian (dpkg-buildpackage, lintian, autopkgtest; as root, which
# installs the packages and removes them), rpm (rpmlint), abi, clang (no warning).
# Debian packages beyond those of tools/deps.sh: debhelper lintian autopkgtest fakeroot rpmlint clang systemtap-sdt-dev.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

dir=$oc_root/build/release
all=(versions distcheck debian rpm abi clang)

main() {
  local step
  case ${1-} in
  -h | --help)
    sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
  esac
  [ $# -gt 0 ] || set -- "${all[@]}"
  for step in "$@"; do
    case " ${all[*]} " in
    *" $step "*) ;;
    *) die "'$step' is no step; they are ${all[*]}" ;;
    esac
  done
  "$oc_root/tools/deps.sh"
  build "$dir"
  version=$(sed -n 's/^AC_INIT(\[liboc\], \[\(.*\)\])$/\1/p' "$oc_root/configure.ac")
  for step in "$@"; do "check_$step"; done
  say "liboc $version: $* passed"
}

need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || die "$tool is missing; --help names the packages"
  done
}

# says FILE WORDS: the file has them, as a fixed string.
says() {
  grep -qF -- "$2" "$oc_root/$1" || die "$1 does not say: $2"
}

check_versions() {
  local major minor patch
  say "comparing versions"
  IFS=. read -r major minor patch <<<"$version"
  says liboc/oc.h "#define OC_VERSION_MAJOR $major"
  says liboc/oc.h "#define OC_VERSION_MINOR $minor"
  says liboc/oc.h "#define OC_VERSION_PATCH $patch"
  grep -qx "## $version ([0-9-]*)" "$oc_root/CHANGELOG.md" || die "CHANGELOG.md has no heading '## $version (DATE)'"
  [ "$(head -n1 "$oc_root/NEWS" | cut -d' ' -f2)" = "$version" ] || die "NEWS does not begin with $version"
  says debian/changelog "liboc ($version-"
  says rpm/liboc.spec "Version:        $version"
  says examples/rust/Cargo.toml "version = \"$version\""
  says examples/rust/oc-sys/Cargo.toml "version = \"$version\""
  says liboc/liboc.map "LIBOC_$major.$minor {"
  says debian/liboc0.symbols "(symver)LIBOC_$major.$minor $version"
  [ "$("$dir/tools/octool" --version)" = "octool, liboc $version" ] || die "octool --version says another version"
}

check_distcheck() {
  step "make distcheck" "$dir/distcheck.log" make -C "$dir" distcheck
}

# The tarball, with debian/ beside it, in a folder of its own.
unpack_for_debian() {
  rm -rf "$dir/debian"
  mkdir -p "$dir/debian"
  step "make dist" "$dir/dist.log" make -C "$dir" dist
  cp "$dir/liboc-$version.tar.gz" "$dir/debian/liboc_$version.orig.tar.gz"
  tar xzf "$dir/liboc-$version.tar.gz" -C "$dir/debian"
  cp -r "$oc_root/debian" "$dir/debian/liboc-$version/"
}

check_debian() {
  local changes
  need dpkg-buildpackage dh lintian autopkgtest
  unpack_for_debian
  (cd "$dir/debian/liboc-$version" && step "dpkg-buildpackage" "$dir/debian.log" dpkg-buildpackage -us -uc)
  changes=$(echo "$dir"/debian/liboc_*.changes)
  step "lintian" "$dir/lintian.log" lintian --allow-root --fail-on error,warning "$changes"
  if [ "$(id -u)" -ne 0 ]; then
    say "SKIPPED: autopkgtest: it installs packages, and only root can"
    return 0
  fi
  local rc=0
  (step "autopkgtest" "$dir/autopkgtest.log" autopkgtest "$changes" -- null) || rc=$?
  # Those of them that the tests wanted.
  dpkg --purge octool liboc-torch liboc-dev liboc0 >"$dir/purge.log" 2>&1 ||
    die "the packages are still installed; see $dir/purge.log"
  [ $rc -eq 0 ] || exit $rc
}

check_rpm() {
  need rpmlint
  step "rpmlint" "$dir/rpmlint.log" rpmlint "$oc_root/rpm/liboc.spec"
  grep -q ' 0 errors' "$dir/rpmlint.log" || die "rpmlint: $(cat "$dir/rpmlint.log")"
}

check_abi() {
  "$oc_root/tools/abi.sh" "$dir/liboc/.libs/liboc.so"
}

check_clang() {
  need clang clang++
  (build "$dir/clang" CC=clang CXX=clang++ --enable-werror)
}

main "$@"
