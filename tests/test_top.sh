#!/bin/bash
# SPDX-License-Identifier: MIT
# octool top: a process at work, its end, one that publishes nothing, pages that are no pages; on a terminal and in a pipe.
# The pages are written here by the layout that oc.h describes, not by the library. Closes on Check's line of counts.
set -u

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
octool=$top_builddir/tools/octool
python=$(command -v python3) || { echo "SKIPPED: no python3 to write pages with"; exit 77; }

run() {
  local want=$1
  shift
  runs "$want" "$octool" "$@"
}

# The top that runs in the background has written a look.
first_look() {
  for _ in $(seq 500); do
    if grep -q '^MODEL' out; then return; fi
    sleep 0.05
  done
  fail "no look came"
}

prints() {
  if grep -qE -- "$1" out; then ok; else fail "the output lacks: $1"; fi
}

# ---- usage ----

run 0 top --help
run 2 top
says "one process is expected, 0 are given"
run 2 top 1 2
says "one process is expected, 2 are given"
run 2 top --demo 1
says "--demo takes the place of a process"
for bad in "PID: '0'" "PID: '-1'" "PID: '1x'" "PID: '4294967296'"; do
  given=${bad#*\'}
  run 2 top -- "${given%\'}"
  says "$bad is not a number"
done
run 2 top --interval 0 --demo
says "--interval: '0' is not a number from 0.1 to 60"
run 2 top --sort size --demo
says "--sort: 'size' is not live"
run 2 top --frob
says "'--frob' is no option here"

# ---- processes without a page ----

sleep 600 &
quiet=$!
run 1 top $quiet
says "process $quiet publishes no figures: it has not called oc_stats_publish"
kill $quiet
wait $quiet 2>/dev/null
run 1 top $quiet
says "process $quiet: there is none"
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
  chmod 755 "$work"
  runs 1 setpriv --reuid 65534 --regid 65534 --clear-groups "$octool" top 1
  if grep -q "cannot\|not found\|error while loading" err; then
    echo "the build's folder is not open to other users: another user's process was not looked at"
  else
    says "process 1 may not be looked into by this user"
  fi
else
  echo "not root: another user's process was not looked at"
fi

# ---- a process at work ----

run 0 top --demo --once
silent
prints "^octool top - process [0-9]+, liboc .* - [12] models?, [0-9]+ threads? that hit$"
prints "^hits/s   kernel [0-9.kM]*[1-9][0-9.kM]*, scratch [0-9.kM]*[1-9]"
prints "^MODEL +GEN +STATE +LIVE +FREE"
prints "^steady +1 +live +[0-9.]+ MiB .* 3\.00 MiB .* host$"
run 0 top --demo --batch --count 3 --interval 0.1 --sort name
if [ "$(grep -c '^octool top - ' out)" -eq 3 ]; then ok; else fail "not three looks"; fi
run 0 top --demo --count 1 --interval 0.1      # no terminal: text, and why
says "standard output is no terminal: a block of text every 0.1 s instead"

runs 0 "$octool" sample model.safetensors --params 30000 --layers 2
ls /dev/shm >shm.before 2>/dev/null
mkdir empty
(cd empty && exec "$octool" run --publish --seconds 300 --swap 0 ../model.safetensors) >run.out 2>run.err &
victim=$!
for _ in $(seq 100); do
  "$octool" top $victim --once --interval 0.1 >out 2>err && grep -q '^octool run' out && break
  sleep 0.1
done
prints "^octool run +1 +live"
: >out
timeout 60 "$octool" top $victim --batch --interval 0.1 >out 2>err &
top=$!
first_look
kill -9 $victim
wait $victim 2>/dev/null
wait $top
if [ $? -eq 0 ]; then ok; else fail "octool top of a process that was killed: exit status not 0"; fi
says "process $victim has ended"
ls /dev/shm >shm.after 2>/dev/null
if cmp -s shm.before shm.after && [ -z "$(ls -A empty)" ]; then ok; else fail "something was left behind"; fi

# ---- pages ----

cat >page.py <<'PY'
"""A process with a memfd that octool top takes for a page. page.py CASE: prints "ready", and waits."""
import os, random, signal, struct, sys, time

MODEL, THREAD, HEAD = 640, 128, 128

def head(magic=b"OCSTATS\0", version=1, page=104, models=2, model=MODEL, threads=2, thread=THREAD, models_at=HEAD,
         threads_at=None, total=None, pid=None):
    threads_at = HEAD + models * model if threads_at is None else threads_at
    total = HEAD + 2 * MODEL + 2 * THREAD if total is None else total
    h = struct.pack("<8sIIIIIIQQQQQQ24s", magic, version, page, models, model, threads, thread, models_at, threads_at,
                    total, os.getpid() if pid is None else pid, 0, 0, b"9.9.9")
    assert len(h) == 104
    return h.ljust(HEAD, b"\0")

def model(name=b"a model", generation=7, seq=2, state=0, fell_back=0, live=5 << 20, arena=8 << 20, retired=1 << 20):
    m = struct.pack("<QQ96s32sQQ", seq, generation, name, b"host", state, fell_back)
    m += struct.pack("<12Q", 1, arena, 0, 3, live, live, retired, 0, 0, 1, 0, 0)
    m += struct.pack("<11Q", *range(11)) + struct.pack("<24Q", *range(24))
    assert len(m) == 536
    return m.ljust(MODEL, b"\0")

def page(h=None, models=None):
    models = [model(), bytes(MODEL)] if models is None else models
    return (h or head()) + b"".join(models) + struct.pack("<16Q", 11, 5, 6, 7, 8, *[0] * 11) * 2

def hostile(name):
    big = 2 ** 64 - 8
    return {
        "empty": b"", "short": page()[:50], "cut": page()[:-1],
        "magic": page(head(magic=b"OCSTATZ\0")), "version": page(head(version=2)),
        "small": page(head(model=528)), "wide": page(head(model=1 << 20)), "many": page(head(models=5000)),
        "most": page(head(models=2 ** 32 - 1, threads=2 ** 32 - 1)), "far": page(head(models_at=big)),
        "wrap": page(head(threads_at=big)), "odd": page(head(models_at=129)), "inside": page(head(models_at=0)),
        "claims": page(head(total=2 ** 63)), "overlong": page(head(threads=4)), "foreign": page(head(pid=1)),
    }[name]

def publish(data, name="liboc-stats"):
    fd = os.memfd_create(name)
    os.write(fd, data)
    return fd

case = sys.argv[1]
if case == "good":
    publish(page(models=[model(), model(b"other", generation=9, fell_back=1, live=1 << 20)]))
elif case == "names":
    evil = b"\x1b[31m\x07\r\n%s%n" + bytes(range(128, 208))
    publish(page(models=[model(evil.ljust(96, b"A")), model(b"\xff" * 96, generation=2 ** 64 - 1, live=2 ** 64 - 1, state=99)]))
elif case == "changing":
    publish(page(models=[model(seq=3), model(b"still", generation=9)]))
elif case == "other":
    publish(page(), "liboc-stats-of-another")
elif case == "both":      # another process's, read by this one, before its own
    publish(page(head(pid=1), [model(b"foreign"), bytes(MODEL)]))
    publish(page())
elif case == "shrinks":
    fd = publish(page())
    signal.signal(signal.SIGUSR1, lambda *a: os.ftruncate(fd, 200))
elif case == "random":
    r = random.Random(int(sys.argv[2]))
    data = bytearray(page())
    for _ in range(r.randrange(1, 12)):
        data[r.randrange(0, 104 if r.random() < 0.7 else len(data))] = r.choice([0, 1, 0x7f, 0x80, 0xff, r.randrange(256)])
    publish(bytes(data))
else:
    publish(hostile(case))
print("ready", flush=True)
while True:
    time.sleep(60)
PY

# hold CASE...: such a process, in $page.
hold() {
  "$python" page.py "$@" >ready &
  page=$!
  until [ -s ready ]; do
    sleep 0.02
    kill -0 "$page" 2>/dev/null || { fail "page.py $*"; return; }
  done
}
let_go() {
  kill "$page" 2>/dev/null
  wait "$page" 2>/dev/null
  : >ready
}

: >ready
hold good
run 0 top --once --interval 0.1 "$page"
silent
prints "^octool top - process $page, liboc 9\.9\.9 - 2 models, 2 threads that hit$"
prints "^arenas   2 of 16\.0 MiB: live 6\.00 MiB, free 8\.00 MiB, retired 2\.00 MiB"
prints "^latch    device memory ran out: 1 model is on managed memory$"
prints "^a model +7 +live +5\.00 MiB +2\.00 MiB +1\.00 MiB +3 +1 +0 B +0 +0 +- +host$"
prints "^other .* MANAGED "
let_go

hold names
run 0 top --once --interval 0.1 "$page"
if ! LC_ALL=C grep -q '[^[:print:]]' out; then ok; else fail "a name's control bytes were printed"; fi
prints '^\?\[31m\?\?\?%s%n\?\?\?'
let_go

hold changing
run 0 top --once --interval 0.1 "$page"
prints "^still "
if ! grep -q "^a model" out; then ok; else fail "a model that changes was shown"; fi
let_go

hold both
run 0 top --once --interval 0.1 "$page"
prints "^a model "
let_go

for case in empty:"is cut off" short:"is cut off" cut:"shorter than it says" magic:"no page of figures" version:"version 2" \
  small:"smaller than those" wide:"beyond all bounds" many:"beyond all bounds" most:"beyond all bounds" far:"do not fit" \
  wrap:"do not fit" odd:"do not fit" inside:"do not fit" claims:"shorter than it says" overlong:"do not fit" \
  other:"publishes no figures"; do
  hold "${case%%:*}"
  run 1 top --once --interval 0.1 "$page"
  says "${case#*:}"
  if [ "$(wc -l <err)" -eq 1 ] && [ ! -s out ]; then ok; else fail "${case%%:*}: not one sentence"; fi
  let_go
done
hold foreign
run 1 top --once --interval 0.1 "$page"
let_go

hold shrinks
: >out
timeout 60 "$octool" top "$page" --batch --interval 0.1 >out 2>err &
top=$!
first_look
kill -USR1 "$page"
wait $top
if [ $? -eq 1 ]; then ok; else fail "a page that shrinks: exit status not 1"; fi
says "its page of figures was cut off"
let_go

for seed in $(seq "${TOP_PAGES:-20}"); do
  hold random "$seed"
  timeout 60 "$octool" top --once --interval 0.1 "$page" >out 2>err </dev/null
  rc=$?
  if { [ $rc -eq 0 ] && [ ! -s err ]; } || { [ $rc -eq 1 ] && [ "$(wc -l <err)" -eq 1 ]; }; then ok; else fail "random page $seed: $rc"; fi
  let_go
done

# ---- a terminal ----

cat >terminal.py <<'PY'
"""octool top on a terminal. terminal.py OCTOOL PAGE_PY: prints what was not right; exits 0 if all was."""
import fcntl, os, pty, re, select, signal, struct, subprocess, sys, termios, time
octool, page_py = sys.argv[1:3]
failures = 0
checks = 0

def check(ok, words, seen=b""):
    global failures, checks
    checks += 1
    if not ok:
        failures += 1
        print("terminal:", words, repr(seen[-600:]))

def page(case):
    p = subprocess.Popen([sys.executable, page_py, case], stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n"
    return p

class Top:
    def __init__(self, *arguments, rows=24, columns=120, term="xterm-256color", **env):
        self.out = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM=term, **env)
            os.execv(octool, [octool, "top", *arguments])
        self.resize(rows, columns)
    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.seen_from = len(self.out)
    def wait(self, words, seconds=20):
        """Until the words come, in what was written since the last key."""
        end = time.time() + seconds
        while words not in self.out[self.seen_from:] and time.time() < end and self.read():
            pass
        return words in self.out[self.seen_from:]
    def read(self):
        try:
            if select.select([self.fd], [], [], 0.1)[0]:
                self.out += os.read(self.fd, 65536)
            return True
        except OSError:
            return False
    def key(self, k):
        self.seen_from = len(self.out)
        os.write(self.fd, k)
    def end(self, seconds=20):
        stop = time.time() + seconds
        while time.time() < stop and self.read():
            pass
        pid, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)

good = page("good")
t = Top(str(good.pid), "--interval", "0.2")
check(t.wait(b"a model"), "the models", t.out)
check(t.wait(b"sort: live"), "the foot", t.out)
check(b"\x1b[31m" in t.out, "an alert in red", t.out)
t.key(b"s")
check(t.wait(b"builds"), "sorted by builds", t.out)
t.key(b"p")
check(t.wait(b"PAUSED"), "paused", t.out)
t.key(b" ")
t.key(b"h")
check(t.wait(b"page up, page down"), "help", t.out)
t.key(b"?")
check(t.wait(b"a model"), "back from help", t.out)
t.key(b"\x1b[B")
t.key(b"\x1b[5~")
t.key(b"x")
for rows, columns in ((3, 12), (1, 1), (24, 40), (60, 300), (24, 120)):
    t.resize(rows, columns)
    os.kill(t.pid, signal.SIGWINCH)
    time.sleep(0.3)
    t.read()
check(t.wait(b"other"), "after resizing", t.out)
t.key(b"q")
check(t.end() == 0, "q: exit status 0", t.out)
check(b"\x1b[?1049l" in t.out, "the terminal is as before", t.out)

t = Top(str(good.pid), NO_COLOR="1")
t.wait(b"other")
check(not re.search(rb"\x1b\[[0-9;]*[34][0-8]m", t.out) and b"latch" in t.out, "NO_COLOR", t.out)
t.key(b"\x03")
check(t.end() == 130, "Ctrl-C: exit status 130", t.out)
check(b"\x1b[?1049l" in t.out, "the terminal is as before, after Ctrl-C", t.out)

t = Top(str(good.pid), "--count", "1", "--interval", "0.1", term="dumb")
check(t.end() == 0, "TERM=dumb: exit status 0", t.out)
check(b"TERM says that the terminal can draw nothing: a block of text" in t.out and b"\x1b" not in t.out, "TERM=dumb", t.out)
t = Top(str(good.pid), term="no-such-terminal")
check(t.end() == 1, "an unknown terminal: exit status 1", t.out)
check(b"cannot be drawn on: TERM is 'no-such-terminal'" in t.out, "an unknown terminal", t.out)

t = Top(str(good.pid))
t.wait(b"other")
good.kill()
good.wait()
check(t.end() == 0, "the process ends: exit status 0", t.out)
check(b"process %d has ended" % good.pid in t.out, "the process ends", t.out)

t = Top("--demo", "--interval", "0.2")
check(t.wait(b"steady"), "the demo", t.out)
children = open(f"/proc/{t.pid}/task/{t.pid}/children").read().split()
t.key(b"q")
check(t.end() == 0, "the demo: exit status 0", t.out)
check(len(children) == 1 and not os.path.exists("/proc/" + children[0]), f"the demo's process {children} is gone")
t = Top("--demo")
t.wait(b"steady")
children = open(f"/proc/{t.pid}/task/{t.pid}/children").read().split()
os.kill(t.pid, signal.SIGKILL)
t.end()
for _ in range(100):
    state = os.path.exists(f"/proc/{children[0]}") and open(f"/proc/{children[0]}/stat").read().split()[2]
    if not state or state == "Z":
        break
    time.sleep(0.05)
check(not state or state == "Z", "octool top is killed: the demo's process ends with it")
print(f"terminal: {checks} checks, {failures} failures")
sys.exit(failures != 0)
PY
run 0 top --demo --once
if grep -q '^#define HAVE_NCURSES 1' "$top_builddir/config.h"; then
  if timeout 300 "$python" terminal.py "$octool" page.py >out 2>err </dev/null; then ok; else fail "on a terminal"; fi
else
  echo "SKIPPED: octool was built without ncurses: no screen was drawn"
fi
finish
