#!/bin/sh
# SPDX-License-Identifier: MIT
# oc.h alone, as an engine includes it: clean in C11 and C++11 with gcc and clang under strict warnings; every macro works
# from both languages, and passes the caller's own file, line and function.
set -eu

: "${CC:?}" "${CXX:?}" "${top_srcdir:?}" "${top_builddir:?}"   # from make check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
  echo "FAIL: $*"
  failed=1
}

strict='-Wall -Wextra -Wshadow -Wconversion -Wundef -Wmissing-field-initializers -pedantic -Werror'

# One source for both languages. Each macro of the header stands here once at least: see the loop below.
cat >"$work/use.c" <<'END'
#include <liboc/oc.h>
#include <liboc/oc.h>
#include <stdio.h>
#include <string.h>

static oc_status init(oc_backend *b, oc_kernel k, void *arg) {
  (void)b;
  (void)k;
  (void)arg;
  return OC_OK;
}

static oc_kernel_key plain = OC_KERNEL_KEY("gemm", "f");
static oc_kernel_key with_init = OC_KERNEL_KEY_INIT("gemm", "g", init, &plain);
static oc_tag_key tag = OC_TAG_KEY("act");

static oc_status build_one(oc_build *b, void *arg, uint64_t *out) {
  (void)arg;
  return oc_build_alloc(b, 4096, 0, out);
}

static oc_status build_two(oc_build *b, void *arg, uint64_t out[2]) {
  (void)arg;
  oc_status st = oc_build_alloc(b, 4096, 0, &out[0]);
  return st ? st : oc_build_alloc(b, 256, 0, &out[1]);
}

static int bad;

#define OK(call)                                                                  \
  do {                                                                            \
    oc_status st_ = (call);                                                       \
    if (st_ != OC_OK) {                                                           \
      printf("%s: %s: %s\n", #call, oc_status_name(st_), oc_last_error());        \
      bad++;                                                                      \
    }                                                                             \
  } while (0)

static void scratch_user(oc_opcache *c) {
  oc_devptr p;
  if (oc_opcache_scratch(c, "act", 100, &p) != OC_OK) bad++;   /* an expression, in a condition */
  OK(oc_opcache_scratch_on(c, "act", NULL, 100, &p));
  OK(oc_opcache_scratch_k(c, &tag, 100, &p));
  OK(oc_opcache_scratch_on_k(c, &tag, NULL, 100, &p));
}

static void pool_user(oc_pool *pool) {
  oc_devptr p, q;
  OK(oc_pool_alloc(pool, 1000, 0, &p));
  OK(oc_pool_alloc_owned(pool, "weights", 1000, 0, &q));
  OK(oc_pool_note_external(pool, (oc_devptr)1 << 20, 4096, "engine"));
}

static void derived_user(oc_derived *d) {
  uint64_t one, two[2];
  oc_build *b = NULL;
  /* the site of a begin stands in the words of a teardown that it holds up; those of builds' blocks in the ledger */
  OK(oc_derived_get_or_build_ptr(d, OC_BF16, 64, build_one, NULL, &one));
  OK(oc_derived_get_or_build_pair(d, OC_ROWWISE_FP8, 64, build_two, NULL, two));
  if (oc_derived_begin(d, OC_BF16, 128, &b, two) != OC_MISS) bad++;
  else oc_build_abort(b);
}

static void has(const char *text, const char *part) {
  if (strstr(text, part)) return;
  printf("%s is not in: %s\n", part, text);
  bad++;
}

int main(void) {
  oc_backend *b;
  oc_model *m;
  oc_kernel k;
  if (oc_backend_open_host(NULL, &b) != OC_OK || oc_model_create(b, NULL, &m) != OC_OK) return 1;
  scratch_user(oc_model_opcache(m));
  pool_user(oc_model_pool(m));
  derived_user(oc_model_derived(m));
  if (oc_opcache_kernel_k(oc_model_opcache(m), &with_init, &k) != OC_E_NOT_FOUND) bad++;
  char *text = oc_pool_report_json(oc_model_pool(m));
  has(text, "use.c");
  has(text, "scratch_user");
  has(text, "pool_user");
  has(text, "build_one");
  has(text, "build_two");
  oc_string_free(text);
  OK(oc_pool_forget_external(oc_model_pool(m), (oc_devptr)1 << 20));
  OK(oc_model_destroy(m));
  OK(oc_backend_close(b));
  return bad != 0;
}
END
cp "$work/use.c" "$work/use.cc"
# Another file with the header in it: nothing may be defined twice.
printf '#include <liboc/oc.h>\nint other(void);\nint other(void) { return OC_VERSION_MAJOR; }\n' >"$work/other.c"
cp "$work/other.c" "$work/other.cc"

# What only C++ has: templates, lambdas, members, inline functions with the same site in several files.
cat >"$work/more.cc" <<'END'
#include <liboc/oc.h>
template <typename T> oc_status make(oc_pool *p, T n, oc_devptr *out) {
  return oc_pool_alloc(p, static_cast<size_t>(n), 0, out);
}
struct engine {
  oc_kernel_key key = OC_KERNEL_KEY("gemm", "f");
  oc_tag_key tag = OC_TAG_KEY("act");
  oc_status grow(oc_opcache *c, oc_devptr *out) { return oc_opcache_scratch_k(c, &tag, 100, out); }
};
inline oc_status inlined(oc_pool *p, oc_devptr *out) { return oc_pool_alloc(p, 256, 0, out); }
oc_status use(oc_model *m, oc_devptr *out);
oc_status use(oc_model *m, oc_devptr *out) {
  engine e;
  auto f = [&](size_t n) { return oc_pool_alloc(oc_model_pool(m), n, 0, out); };
  oc_status st = make(oc_model_pool(m), 5, out);
  if (st == OC_OK) st = make(oc_model_pool(m), 5L, out);
  if (st == OC_OK) st = e.grow(oc_model_opcache(m), out);
  if (st == OC_OK) st = inlined(oc_model_pool(m), out);
  return st == OC_OK ? f(7) : st;
}
END

for macro in $(sed -n 's/^#define \(\(oc_\|OC_[A-Z_]*KEY\)[A-Za-z_]*\)(.*/\1/p' "$top_srcdir/liboc/oc.h"); do
  grep -q "[^A-Za-z_]$macro(" "$work/use.c" || fail "the macro $macro of oc.h is not used in this test"
done

clean() { # compiler, standard, file
  "$1" -std="$2" $strict -I"$top_srcdir" -c "$3" -o "$work/clean.o" >"$work/said" 2>&1 && return
  fail "$1 -std=$2 does not take oc.h clean"
  head -20 "$work/said"
}

for compiler in gcc clang; do
  command -v "$compiler" >/dev/null || { echo "SKIPPED: there is no $compiler"; continue; }
  for std in c11 gnu11 c17 gnu17; do
    for file in use.c other.c; do clean "$compiler" "$std" "$work/$file"; done
  done
done
for compiler in g++ clang++; do
  command -v "$compiler" >/dev/null || { echo "SKIPPED: there is no $compiler"; continue; }
  for std in c++11 c++14 c++17 gnu++17 c++20; do
    echo 'int main() { return 0; }' >"$work/std.cc"
    "$compiler" -std="$std" -fsyntax-only "$work/std.cc" 2>/dev/null || continue   # an older compiler
    for file in use.cc other.cc more.cc; do clean "$compiler" "$std" "$work/$file"; done
  done
done

# A status that nobody looks at is found.
printf '#include <liboc/oc.h>\nvoid f(oc_model *m);\nvoid f(oc_model *m) { oc_model_destroy(m); }\n' >"$work/unused.c"
if gcc -std=c11 -Werror -I"$top_srcdir" -c "$work/unused.c" -o "$work/unused.o" 2>/dev/null; then
  fail "a status that is thrown away gives no warning"
fi

runs() { # label, link command
  echo "$1"
  shift
  "$@" -I"$top_srcdir" -L"$top_builddir/liboc/.libs" -loc -o "$work/use" || { fail "does not link"; return; }
  LD_LIBRARY_PATH=$top_builddir/liboc/.libs "$work/use" || fail "does not run"
}

runs C $CC -std=c11 ${CFLAGS-} "$work/use.c" "$work/other.c" ${LDFLAGS-}
runs C++ $CXX -std=c++11 ${CXXFLAGS-} "$work/use.cc" "$work/other.cc" "$work/more.cc" ${LDFLAGS-}

exit "$failed"
