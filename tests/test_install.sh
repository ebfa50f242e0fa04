#!/bin/bash
# SPDX-License-Identifier: MIT
# The library as distributions take it: `make install` with DESTDIR and what `make uninstall` leaves; a tarball that is the
# same bit for bit whoever makes it, from the tree or from its own contents; a build out of its read-only sources into
# another prefix, static too, under -Wl,--as-needed and -Wl,-z,now; programs linked with either; other allocators
# preloaded.
set -eu
# shellcheck source=tests/installed.sh
. "$(dirname "$0")/installed.sh"
cd "$work"

# ---- make install, make uninstall ----

there() {
  local pattern
  for pattern in "$@"; do
    find root \( -type f -o -type l \) | grep -q "/$pattern\$" || fail "make install brought no $pattern"
  done
}

must "make install" make -C "$top_builddir" install DESTDIR="$work/root"
there bin/octool include/liboc/oc.h include/liboc/oc.hpp liboc.so 'liboc.so.0' 'liboc.so.0.0.[0-9]*' pkgconfig/liboc.pc
# The prefix may lie within them, as in distcheck.
pc=$(find root -name liboc.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc")
find root \( -name '*.pc' -o -name '*.h' -o -name '*.hpp' \) -exec sed "s,$prefix,PREFIX,g" {} + >texts
[ -s texts ] || fail "no text was installed"
if grep -F -e "$work" -e "$(cd "$top_srcdir" && pwd)" -e "$(cd "$top_builddir" && pwd)" texts; then
  fail "installed files name the build's own folders"
fi
must "make uninstall" make -C "$top_builddir" uninstall DESTDIR="$work/root"
left=$(find root ! -type d)
[ -z "$left" ] || fail "make uninstall leaves: $left"

# ---- the tarball ----

# Twice, by different people on different days; what is in it has the release's date.
dist() {
  must "make dist" env -C "$1" TZ="$2" bash -c "umask $3 && make dist"
  cp "$1"/liboc-*.tar.gz "$4"
}
dist "$top_builddir" UTC 022 one.tar.gz
mkdir unpacked
tar xzf one.tar.gz -C unpacked --strip-components=1
chmod -R a-w unpacked

# ---- a build out of it ----

build() {
  mkdir build
  must "configure" env -C build ../unpacked/configure --prefix="$work/prefix" --enable-static --with-jemalloc=host \
    --disable-dependency-tracking CC="$CC" CXX="$CXX" CFLAGS="-O1 -g0" CXXFLAGS="-O1 -g0" \
    LDFLAGS="-Wl,--as-needed -Wl,-z,now"
  [ -e build/config.status ] || exit 1
  for folder in rcu allocator liboc; do
    must "make in $folder" make -C "build/$folder" -j2
  done
  must "make install" make -C build/liboc install
}
build
dist build Asia/Tokyo 077 two.tar.gz
cmp one.tar.gz two.tar.gz || fail "the tarball made out of the tarball differs from it"

use_pc "$work/prefix/lib/pkgconfig"
[ "$(pkg-config --modversion liboc)" = "$(sed -n 's/^AC_INIT(\[liboc\], \[\(.*\)\])$/\1/p' unpacked/configure.ac)" ] ||
  fail "liboc.pc has another version than configure.ac"
readelf -dW "$libdir/liboc.so" >dynamic
grep -q 'BIND_NOW\|FLAGS_1.*NOW' dynamic || fail "-z now is lost"
grep -q 'SONAME.*\[liboc\.so\.0\]' dynamic || fail "the soname is not liboc.so.0"

# ---- programs ----

# It has functions of its own by the names that the library uses inside.
cat >program.c <<'END'
#include <liboc/oc.h>
#include <stdio.h>
int guard, pool, model, derived, thread, mem, map, ledger, device, backend;
int pool_alloc(void);
int pool_alloc(void) { return guard + pool + model + derived + thread + mem + map + ledger + device + backend; }
int main(void) {
  oc_backend *b;
  oc_model *m;
  oc_devptr p;
  if (oc_backend_open_host(NULL, &b) || oc_model_create(b, NULL, &m) || oc_pool_alloc(oc_model_pool(m), 1000, 0, &p) ||
      oc_derived_insert_ptr(oc_model_derived(m), OC_BF16, p, p, NULL) || oc_pool_free(oc_model_pool(m), p) ||
      !oc_derived_is_empty(oc_model_derived(m)) || oc_model_destroy(m) || oc_backend_close(b))
    return fprintf(stderr, "%s\n", oc_last_error()), 1;
  return pool_alloc();
}
END

compile_c shared program.c -Wl,--as-needed -Wl,-z,now -Wl,-z,defs
must "a program with liboc.so" ./shared
readelf -dW shared | grep -q 'NEEDED.*\[liboc\.so\.0\]' || fail "it does not need liboc.so.0"
if readelf -dW shared | grep 'NEEDED.*urcu'; then fail "Libs of liboc.pc has what belongs into Libs.private"; fi

# liboc.a and, by the private parts of liboc.pc, all that it needs: from shared libraries, and with nothing shared at all.
read -ra oc_libs < <(pkg-config --static --libs liboc | sed 's/-loc\b/-l:liboc.a/')
compile_c with_archive program.c
must "a program with liboc.a" env -u LD_LIBRARY_PATH ./with_archive
if readelf -dW with_archive | grep 'NEEDED.*liboc'; then fail "linked with liboc.a, it needs liboc.so"; fi
read -ra oc_libs < <(pkg-config --static --libs liboc)
# dlopen of a driver is what glibc warns of.
compile_c all_static program.c -static -Wno-error
must "a program with nothing shared" ./all_static

# sys/sdt.h, where the build had it, has a weak and hidden name of its own.
strangers=$(nm -g --defined-only "$libdir/liboc.a" | awk 'NF == 3 { print $3 }' | grep -v -e '^oci\?_' -e '^_\.stapsdt\.base$' || true)
[ -z "$strangers" ] || fail "liboc.a defines names that are neither oc_ nor oci_: $strangers"
missing=$(sed -n 's/^ *\(oc_[a-z0-9_]*\);.*/\1/p' "$top_srcdir/liboc/liboc.map" |
  grep -vxF -f <(nm -g --defined-only "$libdir/liboc.a" | awk 'NF == 3 { print $3 }') || true)
[ -z "$missing" ] || fail "liboc.a lacks $missing"

# ---- other allocators: with weak references to a jemalloc, as a distribution builds it, and as it was built here ----

preload() {
  local allocator=$1 file
  shift
  file=$(ldconfig -p | sed -n "s/.* => \(.*\/$allocator\)\$/\1/p" | head -n1)
  if [ -z "$file" ]; then
    skipped "$allocator preloaded: it is not there"
    return 0
  fi
  must "$allocator preloaded" env LD_PRELOAD="$file" LD_LIBRARY_PATH="$libdir" ./shared
  must "$allocator preloaded, the build under test" env LD_PRELOAD="$file" LD_LIBRARY_PATH="$top_builddir/liboc/.libs" ./shared
  must "$allocator preloaded, liboc.a" env LD_PRELOAD="$file" ./with_archive
}
for allocator in libjemalloc.so.2 libtcmalloc_minimal.so.4 libmimalloc.so.2; do
  preload "$allocator"
done

exit "$failed"
