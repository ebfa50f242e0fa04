#!/bin/bash
# SPDX-License-Identifier: MIT
# octool bench works: every row is there with its budget, baseline and verdict, the pictures are drawn, wrong usage is said.
# Not its times: make bench measures those. Closes on Check's line of counts.
set -u

# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
octool=$top_builddir/tools/octool

# run STATUS ARGUMENT...: octool bench.
run() {
  local want=$1
  shift
  runs "$want" "$octool" bench "$@"
}

run 0 --help
run 2 nothing
says "'nothing' is no part of the bench"
run 2 --rounds 4
says "--rounds"
run 2 --frob
run 1 --quick guard --json /nonexistent/out
says "/nonexistent/out"
# Said before anything is measured: a file, and a folder in none.
run 1 layout --svg err
says "err: no folder that can be written: Not a directory"
run 1 layout --svg /nonexistent/pictures
says "/nonexistent/pictures"

run 0 --quick --json all.json --svg pictures
silent
if grep -q "budgets met (quick" out; then ok; else fail "no summary: $(tail -n 1 out)"; fi
if python3 - all.json pictures >py 2>&1 <<'PY'
import json, os, sys, xml.dom.minidom
d = json.load(open(sys.argv[1]))
assert d["machine"] and d["quick"] is True
names = [r["name"] for r in d["rows"]]
assert len(set(names)) == len(names), names
hits = ["kernel_k", "kernel by strings", "scratch_k", "once_k", "get_ptr of 20,000 keys", "get_ptr of 300,000 keys",
        "guard enter + leave"]
want = [h + t for h in hits for t in (", 1 thread", ", 2 threads", ", 2 threads against 1")]
want += [h + t for h in ("scratch by string", "scratch_on_k", "scratch_on by string", "once by string", "first_shape_k",
                         "first_shape by string", "get_pair of 20,000 keys", "get_ptr_on of 20,000 keys",
                         "get_pair_on of 20,000 keys") for t in (", 1 thread", ", 2 threads against 1")]
want += ["p99.9 of 64 hits in a guard, models swapped", "slowest 64 hits from swap to swap",
         "pool free + alloc, 2,000 live blocks",
         "arena bytes, exl3-moe-512e, reserved", "arena bytes, exl3-moe-512e, on demand",
         "host metadata a live block, exl3-moe-512e"]
missing = [w for w in want if w not in names]
assert not missing, missing
assert any(n.startswith("driver frees, teardown of") for n in names) and any(n.startswith("teardown of") for n in names)
# What is counted, or timed otherwise than in turn by laps, says nothing of cores; and no row has verdicts without a budget.
elsewhere = ("p99.9", "slowest", "arena bytes", "host metadata", "driver frees", "teardown of")
for r in d["rows"]:
    assert set(r) >= {"name", "value", "unit", "baseline", "ratio", "budget", "met", "rounds", "contestants"}, r
    assert r["value"] > 0 and r["ratio"] > 0 and r["rounds"] == 1, r
    assert (r["rounds_on_a_shared_core"] is None) == r["name"].startswith(elsewhere), r
    for c in r["contestants"]:
        assert c["name"] and 0 < c["lower_quartile"] <= c["median"] <= c["upper_quartile"], r
    if r["budget"] is None or "not_judged" in r:
        assert r["met"] is None, r
        continue
    assert r["budget"] > 0 and isinstance(r["met"], bool), r
    within = r["ratio"] >= r["budget"] if r["sense"] == "at least" else r["ratio"] <= r["budget"]
    fair = r.get("baseline_in_floors", 0) <= r.get("fair_up_to", 1e9)
    assert r["met"] == (within and fair), r
frees = next(r for r in d["rows"] if r["name"].startswith("driver frees"))
assert frees["met"], frees
assert "pool free + alloc by loader threads" in [c["title"] for c in d["curves"]]
assert len(d["curves"]) >= 8 and all(c["points"] for c in d["curves"])
pictures = os.listdir(sys.argv[2])
assert len(pictures) == len(d["curves"]), pictures
for p in pictures:
    xml.dom.minidom.parse(os.path.join(sys.argv[2], p))
PY
then ok; else fail "the document or the pictures: $(cat py)"; fi

# make bench, as doc/performance.md says: the files are where make was called, not in tools/.
runs 0 env -u MAKEFLAGS -u MAKELEVEL make -C "$top_builddir" -o all bench BENCH_FLAGS='--quick guard layout --json tests/repeat.json --svg tests/repeat'
json "$top_builddir/tests/repeat.json" 'len(d["rows"]) == 6'
if [ -s "$top_builddir/tests/repeat/device-bytes-by-allocator-exl3-moe-512e.svg" ]; then ok; else fail "make bench drew nothing"; fi
rm -rf "$top_builddir/tests/repeat.json" "$top_builddir/tests/repeat"

# interrupted SIGNAL STATUS: inside of a part that takes minutes. Nothing of it is printed or written.
interrupted() {
  local got bench
  "$octool" bench growth --json partial.json >out 2>err </dev/null &
  bench=$!
  # It makes the document once it listens, and then begins.
  for _ in {1..600}; do
    [ ! -e partial.json ] || break
    sleep 0.1
  done
  sleep 1
  kill -s "$1" "$bench"
  wait "$bench"
  got=$?
  if [ "$got" -eq "$2" ]; then ok; else fail "SIG$1: exit status $got, not $2"; fi
  says "interrupted"
  if [ ! -s out ] && [ ! -e partial.json ]; then ok; else fail "SIG$1: a part was reported that did not end"; fi
}
interrupted TERM 143
# A shell's job in the background is born deaf to Ctrl-C; octool listens all the same.
interrupted INT 130

# On one core two threads say nothing, and the rows say that.
one=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
runs 0 taskset -c "$one" "$octool" bench --quick guard swap --json one.json
json one.json '[r["met"] is None and "share a core" in r["not_judged"] for r in d["rows"][1:]] == [True] * 4'
json one.json 'isinstance(d["rows"][0]["met"], bool)'

run 0 --sight --quick guard tags --json -    # with figures published, a trace and a reader of metrics
if python3 -c 'import json; d = json.load(open("out")); assert len(d["rows"]) == 3 + 18' 2>py; then
  ok
else
  fail "--sight: $(tail -n 1 py)"
fi
run 0 --quick guard --json -
if python3 -c 'import json; d = json.load(open("out")); assert len(d["rows"]) == 3' 2>py; then
  ok
else
  fail "--json - is no document: $(tail -n 1 py)"
fi

finish
