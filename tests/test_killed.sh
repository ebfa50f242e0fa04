#!/bin/bash
# SPDX-License-Identifier: MIT
# A process that is killed in the middle of it all (SIGKILL: nothing of its own runs any more) leaves nothing behind: no shared
# memory of either kind, no semaphore or queue, no file where it ran or for temporary ones, no process, no socket. Tried on
# octool run --swap --publish, on octool sample, and on a user of the library with queued work, open guards, captures, builds
# and published figures (the library's only shared memory), by liboc.so alone.
set -u
# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
octool=$top_builddir/tools/octool
"$octool" sample model.safetensors --params 30000 --layers 2 >/dev/null || exit 1
mkdir ran temporary home

# What a process can leave that is not in its folders. Other processes come and go: only what a name or an owner ties to $1
# counts, and shared memory of our names.
traces() {
  local stat line
  find /dev/shm /dev/mqueue -maxdepth 1 \( -name '*liboc*' -o -name '*octool*' \) -newer before 2>/dev/null
  find /dev/shm /dev/mqueue /tmp /var/tmp /run -maxdepth 1 -regex ".*[^0-9]$1\([^0-9].*\)?" -newer before 2>/dev/null
  awk -v pid="$1" 'FNR > 1 && ($5 == pid || $6 == pid) { print FILENAME ": " $0 }' /proc/sysvipc/shm /proc/sysvipc/msg 2>/dev/null
  # Its children and their children were in its session: the fourth word behind the name.
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    [[ $line =~ ^([0-9]+)\ \((.*)\)\ [^\ ]+\ [0-9]+\ [0-9]+\ $1\  ]] || continue
    [ "${BASH_REMATCH[1]}" = "$1" ] || echo "process ${BASH_REMATCH[1]}: ${BASH_REMATCH[2]}"
  done
  grep -E '@?.*(liboc|octool)' /proc/net/unix
}

# killed WORD COMMAND...: started in folders of its own and a session of its own, killed once it has printed WORD.
killed() {
  local word=$1 pid n
  shift
  touch -d '-1 second' before
  : >out   # the last one's word is not this one's
  : >err
  (cd ran && TMPDIR=$work/temporary HOME=$work/home exec setsid "$@") >"$work/out" 2>"$work/err" &
  pid=$!
  for ((n = 0; n < 600; n++)); do
    grep -q "$word" out err && break
    sleep 0.1
  done
  if [ "$n" -lt 600 ]; then ok; else fail "$* did not come as far as '$word'"; fi
  kill -KILL "$pid"
  wait "$pid" 2>/dev/null
  if [ $? -eq 137 ]; then ok; else fail "$* was not killed"; fi
  traces "$pid" >left
  find ran temporary home -mindepth 1 >>left
  if [ ! -s left ]; then ok; else fail "$*: left behind: $(cat left)"; fi
}

# In the middle of swaps: standard error has its progress on a terminal only, so its threads tell. It is killed by its parent,
# which goes next.
cat >serve.py <<'END'
import os, sys, time
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
while len(os.listdir("/proc/%d/task" % pid)) < 9:
    time.sleep(0.01)
time.sleep(float(os.environ["AFTER"]))
os.kill(pid, 9)
os.waitpid(pid, 0)
print("killed", flush=True)
time.sleep(100)
END
for after in 0 0.05 0.3; do
  AFTER=$after killed killed python3 "$work/serve.py" "$octool" run --publish --threads 4 --swap 100000 --seconds 1000 \
    "$work/model.safetensors"
done

# In the middle of a file that it writes: neither half of one nor another name is left, and one of its name stays as it was.
cat >write.py <<'END'
import os, sys, time
if sys.argv[2] == "old":
    open("weights", "w").write("precious")
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[3], sys.argv[3:] + ["sample", "weights", "--params", "1000000000"])
def written():
    return int(open("/proc/%d/io" % pid).read().split("wchar:")[1].split()[0])
while written() < 1 << 22:
    time.sleep(0.01)
os.kill(pid, int(sys.argv[1]))
os.waitpid(pid, 0)
if sys.argv[2] == "old":
    assert open("weights").read() == "precious"
    os.unlink("weights")
print("killed", flush=True)
time.sleep(100)
END
for how in "9 new" "15 new" "9 old"; do
  # shellcheck disable=SC2086 # two words
  killed killed python3 "$work/write.py" $how "$octool"
done

cat >user.c <<'END'
#include <liboc/oc.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static oc_model *m;
static oc_status stuck(oc_build *b, void *arg, uint64_t *out) {
  oc_devptr p;
  (void)arg;
  (void)out;
  if (oc_build_alloc(b, 1 << 20, 0, &p)) return OC_E_IO;
  for (;;) pause();
}
static void *build(void *arg) {
  uint64_t v;
  (void)!oc_derived_get_or_build_ptr(oc_model_derived(m), OC_BF16, 7, stuck, NULL, &v);
  return arg;
}
static void *guard(void *arg) {
  oc_devptr p;
  if (oc_model_enter(m)) return arg;
  (void)!oc_opcache_scratch_on(oc_model_opcache(m), "act", NULL, 1 << 26, &p);
  for (;;) pause();
}
int main(void) {
  oc_backend *b;
  oc_devptr p;
  oc_stream s;
  pthread_t t;
  const oc_backend_ops *o;
  if (oc_backend_open_host(NULL, &b) || oc_model_create(b, NULL, &m)) return 1;
  o = oc_backend_table(b);
  if (oc_trace_start(NULL) || oc_stats_publish(NULL) || o->stream_create(oc_backend_self(b), &s)) return 2;
  oc_opcache_note_alloc_fallback(oc_model_opcache(m));   /* managed memory too */
  if (oc_pool_alloc(oc_model_pool(m), 1 << 28, 0, &p) || oc_model_retain(m, "nobody")) return 3;
  pthread_create(&t, NULL, build, NULL);
  pthread_create(&t, NULL, guard, NULL);
  for (int i = 0; i < 50; i++)
    if (o->memset(oc_backend_self(b), p, i & 255, 1 << 28, s)) return 4;
  if (oc_capture_enter(m, s)) return 5;
  puts("working");
  fflush(stdout);
  for (;;) pause();
}
END
read -ra cc <<<"${CC:?} ${CFLAGS-} ${LDFLAGS-}"
runs 0 "${cc[@]}" -std=gnu11 -I"${top_srcdir:?}" user.c -o user \
  -L"$top_builddir/liboc/.libs" -Wl,-rpath,"$top_builddir/liboc/.libs" -loc -pthread
killed working "$work/user"

# The looks can see.
cat >messy.py <<'END'
import os, subprocess, sys
what = sys.argv[1]
if what == "file": open("left", "w")
if what == "temporary": open(os.environ["TMPDIR"] + "/left", "w")
if what == "shm": open("/dev/shm/liboc-left-%d" % os.getpid(), "w")
if what == "process": subprocess.Popen(["sleep", "60"])
print("working", flush=True)
__import__("time").sleep(60)
END
for what in file temporary shm process; do
  [ "$what" != shm ] || [ -w /dev/shm ] || continue
  failures_before=$failures
  killed working python3 "$work/messy.py" "$what" >said
  if [ "$failures" -eq $((failures_before + 1)) ] && grep -q "left behind" said; then
    failures=$failures_before
  else
    fail "what a process left is not seen: $what: $(cat said)"
  fi
  sed -nE 's/^process ([0-9]+): sleep$/\1/p' left | xargs -r kill
  rm -rf /dev/shm/liboc-left-* ran temporary home
  mkdir ran temporary home
done

finish
