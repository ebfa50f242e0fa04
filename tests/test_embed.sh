#!/bin/bash
# SPDX-License-Identifier: MIT
# What a newcomer copies out of examples/, compiled and run against an installed liboc: C, C++, Python, Rust, an
# engine's own table. The C++ header without exceptions and in newer C++, too.
set -eu
# shellcheck source=tests/installed.sh
. "$(dirname "$0")/installed.sh"
stage
examples=$top_srcdir/examples
cd "$work"

# run NAME WORDS COMMAND...: exits with 0 and says the words.
run() {
  local name=$1 words=$2
  shift 2
  if ! timeout 120 "$@" >out 2>&1 </dev/null; then
    fail "$name: exit status $?"
    cat out
  elif [ -n "$words" ] && ! grep -qF -- "$words" out; then
    fail "$name does not say: $words"
    cat out
  fi
}

# ---- C, C++, an engine's own table ----

compile_c derive "$examples/c/derive.c"
run "c/derive.c" "derived 0xf0" ./derive
compile_c dispatch "$examples/dispatch.c" -pthread
run "dispatch.c" "" ./dispatch
compile_c engine "$examples/backend/engine.c"
run "backend/engine.c" "0 bytes left with the engine, which is closed" ./engine
[ "$(wc -l <"$examples/backend/engine.c")" -le 100 ] || fail "backend/engine.c is longer than 100 lines"
compile_cxx scopes "$examples/cpp/scopes.cpp" -std=c++11
run "cpp/scopes.cpp" "scopes.cpp:" ./scopes

cat >codes.cpp <<'END'
#include <liboc/oc.hpp>
#include <utility>

static oc_status told;
static void tell(const char *, oc_status why) { told = why; }

int main() {
  oc::refused() = tell;
  oc::backend b;
  {
    oc::model none;
    if (oc::model::create(none, b) != OC_E_INVALID || none) return 1;
  }
  oc::backend opened;
  if (oc::backend::open_host(opened)) return 2;
  b = std::move(opened);
  oc_model *kept;
  {
    oc::model m;
    if (oc::model::create(m, b)) return 3;
    oc::model moved(std::move(m));
    oc_devptr p = 0;
    if (m || !moved || moved.alloc(100, 0, p) || moved.free(p) || moved.free(p) != OC_E_NOT_OWNED) return 4;
    oc::build build(moved.derived(), OC_ROWWISE_FP8, 4096);
    if (build.found() || build.alloc(512, 0, p) || build.commit(p, p + 256, std::nothrow) != OC_OK) return 5;
    oc::pair v{};
    if (moved.find(OC_ROWWISE_FP8, 4096, v) || v.first != p || build.values().second != p + 256) return 6;
    oc::hold hold(moved.get(), "a request");
    if (!hold) return 7;
    oc::guard guard;
    kept = moved.get();
  }   // the guard goes first, then the hold, then the model: nothing is refused
  if (told != OC_OK || b.close() != OC_OK) return 8;
  if (oc::backend::open_host(b) || oc_model_create(b.get(), nullptr, &kept)) return 9;
  {
    oc::guard guard;
    { oc::model m(kept); }   // refused: it stays alive, and the host is told
    if (told != OC_E_GUARDED || oc_model_generation(kept) == 0) return 10;
  }
  oc::model again(kept);
  return again.destroy() == OC_OK ? 0 : 11;
}
END
for standard in c++11 c++20; do
  compile_cxx "codes-$standard" codes.cpp -std=$standard -fno-exceptions -fno-rtti
  run "oc.hpp without exceptions, $standard" "" "./codes-$standard"
done

# ---- Python ----

# Copied out, as a newcomer does, and by the plain interpreter.
cp "$examples"/python/*.py .
run "python/derive.py" "liboc 0." python3 derive.py

# What installs the allocator into PyTorch, with a PyTorch that only notes what it is given, and calls it once.
cat >torch.py <<'END'
import ctypes
import types

given = {}


class Memory:
    def __init__(self, path, alloc, free):
        self.lib = ctypes.CDLL(path)
        given["alloc"], given["free"] = getattr(self.lib, alloc), getattr(self.lib, free)
        given["alloc"].restype = ctypes.c_void_p

    def allocator(self):
        return self

    def __getattr__(self, name):
        return lambda address: given.__setitem__(name, address)


memory = types.SimpleNamespace(CUDAPluggableAllocator=Memory, change_current_allocator=lambda m: given.__setitem__("is", m))
cuda = types.SimpleNamespace(memory=memory)
END
cat >use_torch.py <<'END'
import ctypes, sys
import oc_torch, torch
m = oc_torch.install(torch, sys.argv[1])
g = torch.given
assert g["is"] is m and all(g[setter] for setter in oc_torch.HOOKS) and len(g) == 8, g
p = g["alloc"](ctypes.c_size_t(1 << 20), 0, None)
assert p
g["free"](ctypes.c_void_p(p), ctypes.c_size_t(1 << 20), 0, None)
assert m.lib.oc_torch_refused_frees() == 0
print("installed")
END
must "make install in torch" make -C "$top_builddir/torch" install DESTDIR="$work/root"
run "python/oc_torch.py" "installed" env LD_LIBRARY_PATH="$top_builddir/tests/simcuda/.libs:$LD_LIBRARY_PATH" \
  python3 use_torch.py "$(pkg-config --variable=torch liboc)"

# ---- Rust ----

if command -v cargo >/dev/null && cargo --version >/dev/null 2>&1; then
  cp -r "$examples/rust" rust
  chmod -R u+w rust
  run "rust" "unowned blocks" env -C rust RUSTFLAGS="-D warnings" CARGO_TARGET_DIR="$work/target" cargo run --offline --quiet
else
  skipped "rust: cargo is not there"
fi

exit "$failed"
