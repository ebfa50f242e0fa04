#!/bin/bash
# SPDX-License-Identifier: MIT
# octool from outside: each command's figures, errors and exit status; that verification and the device's count of
# stale launches bite when a fault is put in; that Ctrl-C ends with a clean teardown. Closes on Check's line of counts.
set -u

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
octool=$top_builddir/tools/octool

# run STATUS ARGUMENT...: octool.
run() {
  local want=$1
  shift
  runs "$want" "$octool" "$@"
}

# ---- help and usage ----

run 0 --help
run 0 --version
for command in sample inspect run; do
  run 0 "$command" --help
  silent
  if grep -q "^usage: octool $command" out; then ok; else fail "no usage of $command"; fi
done
run 2
says "a command is missing"
run 2 frobnicate
says "'frobnicate' is no command"
run 2 run
says "no file is given"
run 2 run --frob
says "'--frob' is no option here"
run 2 run --json
says "option '--json' needs an argument"
for bad in "--threads 0" "--threads x" "--swap -1" "--seconds inf" "--seconds -1" "--derive bf16,fp9" "--derive ," \
  "--inject frost"; do
  # shellcheck disable=SC2086 # an option and its value
  run 2 run $bad f
  says "${bad% *}: '${bad#* }'"
done
run 2 run --inject no-grace --swap 0 f
says "needs a teardown meanwhile"
run 2 sample
says "one output file is expected, 0 are given"
run 2 sample --params 0 x
says "--params: '0' is not a number from 1"
run 2 inspect
says "no file is given"
run 2 inspect --shapes a b
says "--shapes takes the place of files"

# ---- sample ----

run 0 sample one.safetensors --params 30000 --layers 2
silent
run 0 sample two.safetensors --params 30000 --layers 2
if cmp -s one.safetensors two.safetensors; then ok; else fail "two samples differ"; fi
run 0 sample large.safetensors --params 60000 --layers 3
if python3 - one.safetensors >py 2>&1 <<'EOF'; then ok; else fail "the sample lacks something: $(cat py)"; fi
import json, math, struct, sys
f = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", f[:8])[0]
assert n % 8 == 0
header = json.loads(f[8:8 + n])
header.pop("__metadata__")
data = f[8 + n:]
def values(t):
    raw = data[slice(*t["data_offsets"])]
    if t["dtype"] == "BF16":
        return [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]
    return [v[0] for v in struct.iter_unpack("<f" if t["dtype"] == "F32" else "<e", raw)]
smallest = {"F32": 2.0 ** -126, "BF16": 2.0 ** -126, "F16": 2.0 ** -14}
for dtype in smallest:
    those = [t for t in header.values() if t["dtype"] == dtype and len(t["shape"]) == 2]
    assert any(t["shape"][1] % 2 for t in those), "odd widths"
    assert sum(len(values(t)) for t in those) > 1000, "weights"
    all_values = [v for t in those for v in values(t)]
    assert any(math.isnan(v) for v in all_values), "NaN"
    assert any(v == math.inf for v in all_values) and any(v == -math.inf for v in all_values), "infinities"
    assert any(0 < abs(v) < smallest[dtype] for v in all_values), "denormals"
    rows = [values(t)[i:i + t["shape"][1]] for t in those for i in range(0, len(values(t)), t["shape"][1] or 1)]
    assert any(not any(row) for row in rows), "zero rows"
assert sum(math.prod(t["shape"]) for t in header.values()) in range(28000, 34000)
EOF
run 1 sample no/such/folder
says "no/such/folder: cannot be written: No such file or directory"
if [ -w /dev/full ]; then
  run 1 sample /dev/full
  says "/dev/full: cannot be written: No space left on device"
fi

# ---- inspect ----

run 0 inspect one.safetensors
silent
run 0 inspect --list one.safetensors large.safetensors
if [ "$(grep -c 'model.embed_tokens.weight' out)" -eq 2 ]; then ok; else fail "--list lacks tensors"; fi
run 0 inspect --json - one.safetensors
json out 'd["tensors"] > 30 and d["reserved"]["live_blocks"] == d["on_demand"]["live_blocks"] == d["tensors"] - 1'
json out 'd["reserved"]["arenas"] == d["reserved"]["driver_allocs"] == 1'
run 1 inspect no-such-file
says "octool inspect: no-such-file: cannot be opened: No such file or directory"
run 1 inspect --shapes .
says "octool inspect: .: line 1: cannot be read: Is a directory"
run 1 inspect --json no/such/folder one.safetensors
says "no/such/folder: cannot be written"

# The shape of a mixture of experts whose small tensors lose most to chunks; DESIGN: 1.26, 1.005 and 1.03.
awk 'BEGIN {
  print "embed\tBF16\t151936x2560\t777912320"; print "norm\tBF16\t2560\t5120"; print "head\tBF16\t151936x2560\t777912320"
  for (i = 0; i < 295248 / 4; i++) {
    print "t" i "\tI16\t160x40x64\t819200"; print "u" i "\tF16\t2560\t5120"
    print "v" i "\tF16\t640\t1280"; print "m" i "\tI32\t1\t4"
  }
}' >moe.tsv
run 0 inspect --shapes moe.tsv --json moe.json
silent
json moe.json 'd["tensors"] == 295251 and 1.25 < d["chunk_rule"]["ratio"] < 1.28'
json moe.json 'd["reserved"]["ratio"] <= 1.005 and d["on_demand"]["ratio"] <= 1.03'
json moe.json 'd["reserved"]["live_blocks"] == 295251 and d["bytes"] <= d["reserved"]["live_bytes"] <= d["reserved"]["arena_bytes"]'
if head -n 50 moe.tsv | timeout 60 "$octool" inspect --shapes - >out 2>err; then ok; else fail "--shapes -"; fi

printf 'a\tU8\t1152921504606846976\t1152921504606846976\n' >huge.tsv
run 1 inspect --shapes huge.tsv
says "over 16 TiB, for which no plan is made"

# ---- run ----

keys='["tensors", "bytes_loaded", "derived_built", "derived_verified", "verify_failures", "products_checked",
  "product_failures", "passes", "lookups", "lookups_per_second", "lookup_ns_p50", "lookup_ns_p99", "lookup_ns_p999", "swaps",
  "stale_launches", "blocks_swept", "bytes_leaked", "arena_bytes", "live_bytes_peak", "driver_allocs", "driver_frees",
  "teardown_status"]'
clean='(d["verify_failures"] == d["product_failures"] == d["stale_launches"] == d["blocks_swept"] == d["bytes_leaked"] == 0 and
  d["driver_allocs"] == d["driver_frees"] > 0 and d["teardown_status"] == "OC_OK")'

# Every derivation of every generation is verified, every product of every generation compared.
run 0 run --threads 3 --swap 4 --seconds 0.5 --json run.json one.safetensors
silent
json run.json "set($keys) <= set(d)"
json run.json "$clean"
json run.json 'd["derived_built"] == d["derived_verified"] and d["derived_built"] % (5 * 4) == 0'
json run.json 'd["products_checked"] >= d["derived_built"] and d["passes"] >= 5 and d["swaps"] == 4'
json run.json 'd["lookups"] >= d["passes"] * 3 and 0 < d["lookup_ns_p50"] <= d["lookup_ns_p99"] <= d["lookup_ns_p999"]'
json run.json 'd["bytes_loaded"] <= d["live_bytes_peak"] <= d["arena_bytes"] and d["seconds"] >= 0.5'
if grep -q '^teardown of ' out; then ok; else fail "no teardown report"; fi
if [ "$(sed -n '/^teardown of /,$p' out | wc -l)" -eq 1 ]; then ok; else fail "a clean teardown's report is more than a line"; fi

run 0 run --seconds 0 --derive bf16 --trace trace.json one.safetensors
json trace.json 'all(e["ph"] in "MXiCbe" and "pid" in e and "tid" in e for e in d["traceEvents"])'
json trace.json 'len([e for e in d["traceEvents"] if e["ph"] == "X" and e["name"] == "bf16"]) > 10'
json trace.json '{"live", "retired", "arenas"} == set([e for e in d["traceEvents"] if e["ph"] == "C"][-1]["args"])'
json trace.json 'd["otherData"]["dropped"] == "0"'
json trace.json 'all(isinstance(e["ts"], (int, float)) and e["ts"] >= 0 for e in d["traceEvents"] if e["ph"] != "M")'
json trace.json 'all(e["dur"] >= 0 and e["cat"] for e in d["traceEvents"] if e["ph"] == "X")'
json trace.json 'all(a["tid"] != b["tid"] or a["ts"] <= b["ts"] for v in [[e for e in d["traceEvents"] if e["ph"] in "XiCb"]] for a, b in zip(v, v[1:]))'
json trace.json '{e["tid"] for e in d["traceEvents"] if e["ph"] in "Xi"} <= {e["tid"] for e in d["traceEvents"] if e["name"] == "thread_name"}'
json trace.json 'sorted((e["cat"], e["id"], e["name"]) for e in d["traceEvents"] if e["ph"] == "b") == sorted((e["cat"], e["id"], e["name"]) for e in d["traceEvents"] if e["ph"] == "e")'
run 1 run --seconds 0 --trace no/such/folder/t.json one.safetensors
says "no/such/folder/t.json: cannot be written: No such file or directory"
run 1 run --seconds 0 --trace /dev/full one.safetensors
says "/dev/full: cannot be written: No space left on device"

run 0 run --seconds 0 --swap 0 --json - one.safetensors two.safetensors
json out 'd["tensors"] % 2 == 0 and d["swaps"] == 0'
json out "$clean"
# A derivation of a derivation brings what it needs.
run 0 run --seconds 0 --derive nvfp4-from-fp8 --threads 1 --json d.json one.safetensors
json d.json 'd["derived_built"] % (2 * 2) == 0 and d["products_checked"] >= d["derived_built"] // 2'
json d.json "$clean"
run 0 run --seconds 0 --derive bf16,nvfp4-t --swap 0 --json d.json one.safetensors
json d.json "$clean"
# Nothing to derive, nothing at all.
printf '\102\0\0\0\0\0\0\0{"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}            12345678' >vector.safetensors
run 0 run --seconds 0 --json d.json vector.safetensors
json d.json 'd["tensors"] == 1 and d["derived_built"] == d["passes"] == 0 and d["swaps"] == 1'
printf '\2\0\0\0\0\0\0\0{}' >nothing.safetensors
run 0 run --seconds 0 nothing.safetensors
run 1 run --inject bitflip nothing.safetensors
says "there is nothing to derive from"

# ---- run, in the face of damage ----

run 1 run no-such-file
says "octool run: no-such-file: cannot be opened: No such file or directory"
head -c 20000 one.safetensors >cut.safetensors
run 1 run one.safetensors cut.safetensors
says "octool run: cut.safetensors: tensor '"
says "(truncated?)"
run 1 run --json no/such/folder one.safetensors
says "no/such/folder: cannot be written"
# With a GPU it works; without one it says what is missing.
timeout 300 "$octool" run --backend cuda --seconds 0 one.safetensors >out 2>err </dev/null
case $? in
0) ok ;;
1) says "octool run: opening the cuda backend: OC_E_" ;;
*) fail "--backend cuda" ;;
esac
run 1 run --backend frob one.safetensors
says "--backend: 'frob' is none"
if [ -w /dev/full ]; then
  run 1 run --seconds 0 --swap 0 --json /dev/full one.safetensors
  says "/dev/full: cannot be written: No space left on device"
fi

# Starts octool, waits until it has read its file's header, or until it serves (16 servers have a thread each, and
# the loader's streams), and lets the caller act on it.
cat >started.py <<'EOF'
import os, re, signal, subprocess, sys, time
def start(octool, out, *arguments):
    return subprocess.Popen([octool, "run", "--threads", "16", "--json", out, *arguments])
def wait_for(p, what):
    while p.poll() is None and not what():
        time.sleep(0.01)
# Then its output is open, which has no name yet, or a temporary one.
def has_output(p):
    folder = "/proc/%d/fd" % p.pid
    for fd in os.listdir(folder):
        try:
            if re.search(r"/(#\d+ \(deleted\)|\.octool-\d+-\d+)$", os.readlink(folder + "/" + fd)):
                return True
        except FileNotFoundError:
            pass
    return False
def wait_read(p):
    wait_for(p, lambda: has_output(p))
def wait_serving(p):
    wait_read(p)
    wait_for(p, lambda: len(os.listdir("/proc/%d/task" % p.pid)) > 24)
EOF

# A file that shrinks, or changes, under a run that will load it again: said, and torn down cleanly all the same.
meddled() {
  cp one.safetensors m.safetensors
  PYTHONPATH=. python3 - "$octool" "$1" >out 2>err <<'EOF'
from started import *
p = start(sys.argv[1], "m.json", "--seconds", "3", "--swap", "1", "m.safetensors")
wait_serving(p)
with open("m.safetensors", "r+b") as f:
    size = f.seek(0, 2)
    if sys.argv[2] == "shrink":
        f.truncate(size // 2)
    else:
        f.seek(size * 3 // 4)
        f.write(b"\x3c" * 64)
sys.exit(p.wait(100))
EOF
  if [ $? -eq 1 ]; then ok; else fail "$1: exit status is not 1"; fi
  says "octool run: m.safetensors: tensor '"
  says "$2"
  json m.json "'$2' in d['failure']"
  json m.json 'd["stale_launches"] == d["blocks_swept"] == d["bytes_leaked"] == 0 and d["teardown_status"] == "OC_OK"'
}
meddled shrink "was truncated, or its device failed, while it was read"
meddled change "has changed since it was loaded first"

# ---- faults put in ----

run 1 run --seconds 0 --inject bitflip --json d.json one.safetensors
says "1 verifications failed"
says "wrong bytes; the first, byte 0 of the data"
json d.json 'd["verify_failures"] == 1 and d["derived_verified"] == d["derived_built"] - 1'
run 1 run --seconds 0 --inject no-grace --swap 2 --json d.json one.safetensors
says "launches were of an unloaded function"
json d.json 'd["stale_launches"] == 1 and d["swaps"] == 2 and d["verify_failures"] == d["bytes_leaked"] == 0'
run 1 run --seconds 0 --inject no-grace --threads 1 --json d.json one.safetensors
json d.json 'd["stale_launches"] == 1'
run 1 run --seconds 0 --inject orphan --json d.json one.safetensors
says "blocks belonged to nobody at teardown"
if grep -q '^teardown of .*: leaked; .* 1 blocks swept$' out && grep -qE '^  unowned blocks .* [0-9.]+ [KMG]?B in 1 blocks, largest site .*\.c:[0-9]+' out; then
  ok
else
  fail "the report does not say who leaked what from where"
fi
json d.json 'd["blocks_swept"] == 1 and d["bytes_leaked"] == 0'
# A miss is filled in by the server that met it, and what it built is verified too.
run 0 run --seconds 0.3 --inject miss --threads 4 --json d.json one.safetensors
json d.json 'd["misses"] >= 4 and d["derived_built"] == d["derived_verified"]'
json d.json "$clean"

# ---- Ctrl-C ----

interrupted() {
  PYTHONPATH=. python3 - "$octool" "$1" "$3" >out 2>err <<'EOF'
from started import *
p = start(sys.argv[1], "i.json", "--seconds", "100", "--swap", "100", "large.safetensors")
{"reading": wait_read, "serving": wait_serving}[sys.argv[3]](p)
p.send_signal(getattr(signal, sys.argv[2]))
sys.exit(p.wait(60))
EOF
  local got=$?
  if [ "$got" -eq "$2" ]; then ok; else fail "$1 while $3: exit status $got, not $2"; fi
  says "octool run: interrupted"
  json i.json "d['interrupted'] and d['failure'] is None"
  json i.json 'd["stale_launches"] == d["blocks_swept"] == d["bytes_leaked"] == 0 and d["teardown_status"] == "OC_OK"'
}
interrupted SIGINT 130 serving
interrupted SIGINT 130 reading
interrupted SIGTERM 143 serving

# ---- a terminal ----

python3 - "$octool" >out 2>err <<'EOF'
import os, pty, subprocess, sys
main, side = pty.openpty()
p = subprocess.Popen([sys.argv[1], "run", "--seconds", "0.2", "one.safetensors"], stderr=side, stdout=subprocess.DEVNULL)
os.close(side)
seen = b""
while True:
    try:
        part = os.read(main, 4096)
    except OSError:
        break
    if not part:
        break
    seen += part
for word in (b"loading", b"deriving", b"verifying", b"serving", b"[", b"%"):
    assert word in seen, (word, seen)
assert p.wait() == 0
EOF
# shellcheck disable=SC2181 # the command ends far above
if [ $? -eq 0 ]; then ok; else fail "no progress bar on a terminal"; fi

finish
