#!/bin/bash
# SPDX-License-Identifier: MIT
# Nothing surprising in a host process (G29, G30, S24): tests/guest/guest.c looks at itself before and after, alone, with
# a C++ plugin opened last, with another allocator preloaded, and over the simulated driver. That the looks can see is
# shown by a guest that misbehaves.
set -eu
# shellcheck source=tests/installed.sh
. "$(dirname "$0")/installed.sh"
stage
cd "$work"

guest=$top_srcdir/tests/guest
must "compiling the host" "${cc[@]}" -std=gnu11 -Wall -Wextra -Werror "${oc_cflags[@]}" "$guest/guest.c" -o guest -rdynamic -ldl
must "compiling the plugin" "${cxx[@]}" -std=gnu++17 -Wall -Wextra -Werror -fPIC -shared "$guest/plugin.cpp" -o plugin.so
so=$libdir/liboc.so.0

must "a C host" ./guest "$so"
must "a C host with a C++ plugin" ./guest "$so" ./plugin.so
must "over the simulated driver" env LD_LIBRARY_PATH="$top_builddir/tests/simcuda/.libs:$LD_LIBRARY_PATH" ./guest "$so" ./plugin.so

preload() {
  local file
  file=$(ldconfig -p | sed -n "s/.* => \(.*\/$1\)\$/\1/p" | head -n1)
  if [ -z "$file" ]; then
    skipped "$1 preloaded: it is not there"
    return 0
  fi
  must "$1 preloaded" env LD_PRELOAD="$file" ./guest "$so" ./plugin.so
  # Opened before liboc, by a program that knows nothing of either.
  must "$1 preloaded in Python" env LD_PRELOAD="$file" python3 -c "
import ctypes
lib = ctypes.CDLL('$so')
b, m = ctypes.c_void_p(), ctypes.c_void_p()
assert lib.oc_backend_open_host(None, ctypes.byref(b)) == 0
assert lib.oc_model_create(b, None, ctypes.byref(m)) == 0
assert lib.oc_model_destroy(m) == 0 and lib.oc_backend_close(b) == 0"
}
for allocator in libjemalloc.so.2 libtcmalloc_minimal.so.4 libmimalloc.so.2; do
  preload "$allocator"
done

# ---- the looks can see ----

cat >bad.c <<'END'
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <fcntl.h>
static void handler(int s) { (void)s; }
static void bye(void) {}
static void *idle(void *arg) { pause(); return arg; }
__attribute__((constructor)) static void begin(void) {
  pthread_t t;
  const char *what = getenv("BAD");
  switch (what ? what[0] : 0) {
  case 'h': signal(SIGUSR1, handler); break;
  case 'e': atexit(bye); break;
  case 't': pthread_create(&t, NULL, idle, NULL); break;
  case 'o': puts("hello"); fflush(stdout); break;
  case 'f': (void)!open("/dev/null", O_RDONLY); break;
  }
}
END
# It stands beside the real one, which the host's calls still reach.
must "compiling a bad guest" "${cc[@]}" -fPIC -shared bad.c -o bad.so -Wl,--no-as-needed "${oc_libs[@]}" -pthread
for bad in "handler:a signal's handler changed" "exit:something was registered" "thread:a thread came" \
  "output:something was written" "file:a file was opened" "env:the environment was read"; do
  if BAD=${bad%%:*} timeout 60 ./guest ./bad.so >out 2>&1; then
    fail "a bad guest passes: ${bad%%:*}"
  else
    grep -q "surprise: .*${bad#*:}" out || { fail "not seen: $bad"; cat out; }
  fi
done

exit "$failed"
