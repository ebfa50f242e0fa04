#!/bin/sh
# SPDX-License-Identifier: MIT
# Processes that liboc finds itself in (G29, S6, S23, S24): Python with its static TLS used up, a C host that later
# loads a C++ plugin, one that only loads it, one that exits in the middle of everything.
set -eu

: "${CC:?}" "${CXX:?}" "${top_srcdir:?}" "${top_builddir:?}"   # from make check
lib=$top_builddir/liboc/.libs
so=$lib/liboc.so
case " ${CFLAGS-} " in
*-fsanitize=*)
  echo "a sanitizer build: dlopen in other processes is the sanitizer's affair"
  exit 77
  ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAIL: $*"
  exit 1
}

# ---- S23: Python, static TLS nearly used up, dlopen, use, dlclose, a thread that used it exits ----

cat >"$work/tls.c" <<'EOF'
static __thread char much[1400] __attribute__((tls_model("initial-exec"), used));
char *touch(void) { return much; }
EOF
$CC -shared -fPIC "$work/tls.c" -o "$work/libtls.so"
cat >"$work/host.py" <<'EOF'
import ctypes, sys, threading, _ctypes
tls = ctypes.CDLL(sys.argv[1])
tls.touch()
lib = ctypes.CDLL(sys.argv[2])
backend, model, ptr = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
void = ctypes.c_void_p
for name in "oc_model_opcache", "oc_model_pool":
    getattr(lib, name).restype = void
    getattr(lib, name).argtypes = [void]
lib.oc_opcache_scratch_at.argtypes = [void, ctypes.c_char_p, ctypes.c_size_t, void, void]
lib.oc_pool_alloc_at.argtypes = [void, ctypes.c_size_t, ctypes.c_size_t, void, void]
for name in "oc_model_teardown", "oc_model_enter", "oc_model_leave", "oc_model_destroy", "oc_backend_close":
    getattr(lib, name).argtypes = [void] * (2 if name == "oc_model_teardown" else 1)
assert lib.oc_backend_open_host(None, ctypes.byref(backend)) == 0
assert lib.oc_model_create(backend, None, ctypes.byref(model)) == 0
inside, closed = threading.Event(), threading.Event()

def use():
    assert lib.oc_model_enter(model) == 0
    assert lib.oc_opcache_scratch_at(lib.oc_model_opcache(model), b"act", 4096, None, ctypes.byref(ptr)) == 0
    lib.oc_model_leave(model)
    lib.oc_model_enter(None)        # an error text of this thread's own
    inside.set()
    closed.wait()                   # the library is closed, then this thread exits

thread = threading.Thread(target=use)
thread.start()
inside.wait()
assert lib.oc_pool_alloc_at(lib.oc_model_pool(model), 1000, 0, None, ctypes.byref(ptr)) == 0
assert lib.oc_model_destroy(model) == 0
assert lib.oc_backend_close(backend) == 0
for i in range(3):
    _ctypes.dlclose(lib._handle)
    closed.set()
    thread.join()
    lib = ctypes.CDLL(sys.argv[2])
    assert lib.oc_backend_open_host(None, ctypes.byref(backend)) == 0
    lib.oc_backend_close.argtypes = [void]
    assert lib.oc_backend_close(backend) == 0
EOF
python3 "$work/host.py" "$work/libtls.so" "$so" >"$work/out" 2>&1 || fail "Python: $? $(cat "$work/out")"
[ ! -s "$work/out" ] || fail "Python: it printed: $(cat "$work/out")"

# ---- S24: a C host with liboc loaded, then a C++ plugin that news and deletes ----

cat >"$work/plugin.cc" <<'EOF'
#include <map>
#include <string>
extern "C" int plugin(int n) {
  std::map<std::string, std::string *> m;
  for (int i = 0; i < n; i++) m[std::to_string(i)] = new std::string(static_cast<size_t>(i), 'x');
  size_t sum = 0;
  for (auto &e : m) {
    sum += e.second->size();
    delete e.second;
  }
  char *p = new char[1 << 20];
  delete[] p;
  return static_cast<int>(sum);
}
EOF
# What loading may not do: start a thread, open a file for good, replace malloc, print.
cat >"$work/host.c" <<'EOF'
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static int entries(const char *path) {
  DIR *d = opendir(path);
  int n = 0;
  while (d && readdir(d)) n++;
  if (d) closedir(d);
  return n;
}
static int (*plugin)(int);
static void *in_thread(void *arg) {
  (void)arg;
  return (void *)(long)plugin(500);
}
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, dlerror()); return 1; } } while (0)
int main(int argc, char **argv) {
  const char *names[] = {"malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc"};
  void *before[6], *kept = malloc(100);
  (void)argc;
  for (int i = 0; i < 6; i++) before[i] = dlsym(RTLD_DEFAULT, names[i]);
  int threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
  void *oc = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  CHECK(oc);
  CHECK(entries("/proc/self/task") == threads && entries("/proc/self/fd") == files);
  for (int i = 0; i < 6; i++) CHECK(dlsym(RTLD_DEFAULT, names[i]) == before[i]);
  free(kept);
  int (*open_host)(const void *, void **) = (int (*)(const void *, void **))dlsym(oc, "oc_backend_open_host");
  int (*create)(void *, const void *, void **) = (int (*)(void *, const void *, void **))dlsym(oc, "oc_model_create");
  int (*destroy)(void *) = (int (*)(void *))dlsym(oc, "oc_model_destroy");
  int (*close_backend)(void *) = (int (*)(void *))dlsym(oc, "oc_backend_close");
  void *b, *m;
  CHECK(open_host(NULL, &b) == 0 && create(b, NULL, &m) == 0);
  void *cc = dlopen(argv[2], RTLD_NOW);
  CHECK(cc);
  plugin = (int (*)(int))dlsym(cc, "plugin");
  CHECK(plugin && plugin(1000) == 999 * 1000 / 2);
  pthread_t t;
  CHECK(pthread_create(&t, NULL, in_thread, NULL) == 0 && pthread_join(t, NULL) == 0);
  CHECK(destroy(m) == 0 && close_backend(b) == 0);
  CHECK(plugin(1000) == 999 * 1000 / 2);
  CHECK(dlclose(cc) == 0 && dlclose(oc) == 0);
  return 0;
}
EOF
$CXX -shared -fPIC -std=c++11 "$work/plugin.cc" -o "$work/plugin.so"
$CC "$work/host.c" -o "$work/host" -ldl -pthread
"$work/host" "$so" "$work/plugin.so" >"$work/out" 2>&1 || fail "the C host: $? $(cat "$work/out")"
[ ! -s "$work/out" ] || fail "the C host: it printed: $(cat "$work/out")"

# ---- S6: exit without teardown, from main and from a thread, work queued, a guard open; linked, and quiet ----

cat >"$work/exits.c" <<'EOF'
#include <liboc/oc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
static oc_model *m;
static void *leave(void *arg) {
  if (oc_model_enter(m) != OC_OK) abort();
  exit(strcmp(arg, "thread") ? 3 : 0);
}
int main(int argc, char **argv) {
  oc_backend *b;
  oc_devptr p;
  pthread_t t;
  if (argc < 2 || oc_backend_open_host(NULL, &b) || oc_model_create(b, NULL, &m)) return 1;
  if (oc_opcache_scratch_on(oc_model_opcache(m), "act", NULL, 1 << 26, &p)) return 2;
  for (int i = 0; i < 20; i++)
    if (oc_backend_table(b)->memset(oc_backend_self(b), p, 1, 1 << 26, NULL)) return 3;
  if (strcmp(argv[1], "main") == 0) return oc_model_enter(m) != OC_OK;
  pthread_create(&t, NULL, leave, argv[1]);
  pthread_join(t, NULL);
  return 4;
}
EOF
$CC -I"$top_srcdir" "$work/exits.c" -o "$work/exits" -L"$lib" -Wl,-rpath,"$lib" -loc -pthread
for from in main thread; do
  timeout 60 "$work/exits" $from >"$work/out" 2>&1 || fail "exit from $from: $? $(cat "$work/out")"
  [ ! -s "$work/out" ] || fail "exit from $from: it printed: $(cat "$work/out")"
done
