#!/bin/bash
# SPDX-License-Identifier: MIT
# octool run --html, octool inspect --html: the page is one file that asks no network; its data is whole, and sums exactly to
# the figures; hostile names stay data; what cannot be written is said. How it looks and works: test_page_browser.sh.
# shellcheck source=tests/checks.sh
. "${top_srcdir:?}/tests/checks.sh"

octool=$top_builddir/tools/octool
page=$top_srcdir/tests/page.py

# whole PAGE FIGURES
whole() {
  if python3 "$page" "$@" >py 2>&1; then ok; else fail "$1: $(cat py)"; fi
}

# data PAGE EXPRESSION: of d, its document, and names, a list of (name, bytes, pattern)
data() {
  if PYTHONPATH=$top_srcdir/tests PYTHONDONTWRITEBYTECODE=1 python3 -c '
import sys, page
d, names, wrong = page.check(sys.argv[1])
blocks = [page.blocks_of(m, names) for m in d["maps"]]
sys.exit(not eval(sys.argv[2]))' "$1" "$2" >py 2>&1; then ok; else fail "$1: $2: $(cat py)"; fi
}

runs 0 "$octool" sample s.safetensors --params 100000

# --- run ---
runs 0 "$octool" run --seconds 0.3 --swap 1 --json run.json --html run.html s.safetensors
silent
whole run.html run.json
data run.html 'd["clean"] and d["files"] == ["s.safetensors"] and "clean" in d["report"].split("\n")[0]'
data run.html 'len(d["maps"]) == 1 and d["maps"][0]["title"].startswith("Generation 2")'
# each tensor and each derivation is a block by its name, of its owner
data run.html '{b[4]["owner"] for b in blocks[0] if b[5] and " as " in b[5]} == {"derived bf16", "derived rowwise-fp8",
  "derived nvfp4-t", "derived nvfp4-from-fp8"}'
data run.html 'sum(b[4]["owner"] == "weights" for b in blocks[0]) == sum(1 for n in names if n[1] and " as " not in n[0]) - 1'
data run.html 'all(b[5] for b in blocks[0] if b[4]["role"] in ("owner", "derived"))'
data run.html '[m["text"] for m in d["samples"]["marks"]] == ["generation 1 served", "generation 2 served",
  "generation 1 torn down", "generation 2 torn down"]'
# alone on standard output
runs 0 "$octool" run --seconds 0 --swap 0 --html - s.safetensors
whole out
runs 2 "$octool" run --html - --json - s.safetensors
says "--json - and --html -"
# a run that is not clean has its page too, and says why
runs 1 "$octool" run --seconds 0 --swap 0 --inject orphan --html orphan.html s.safetensors
whole orphan.html
data orphan.html 'not d["clean"] and d["figures"]["blocks_swept"] == 1 and any(b[4]["role"] == "caller" for b in blocks[0])'
runs 1 "$octool" run --seconds 0 --html /no/such/folder/x.html s.safetensors
says "/no/such/folder/x.html: cannot be written"
runs 1 "$octool" run --seconds 0 --swap 0 --html /dev/full s.safetensors
says "/dev/full: cannot be written: No space left on device"

# --- inspect ---
runs 0 "$octool" inspect --html insp.html --json insp.json s.safetensors
whole insp.html insp.json
data insp.html 'len(d["maps"]) == 2 and len(names) == d["figures"]["tensors"]'
data insp.html 'all(sorted(b[5] for b in m if b[5]) == sorted(n[0] for n in names if n[1]) for m in blocks)'
data insp.html 'all(b[3] == dict((n[0], n[1]) for n in names)[b[5]] for m in blocks for b in m if b[5])'
runs 0 "$octool" inspect --html - s.safetensors
whole out
runs 2 "$octool" inspect --html - --json - s.safetensors
says "--json - and --html -"
runs 1 "$octool" inspect --html /dev/full s.safetensors
says "/dev/full: cannot be written: No space left on device"
runs 1 "$octool" inspect --html / s.safetensors
says "/: cannot be written"
runs 2 "$octool" inspect --html
# nothing to lay out is a page too
printf 'empty\tF32\t0\t0\n' >zero.tsv
runs 0 "$octool" inspect --shapes zero.tsv --html zero.html
whole zero.html
data zero.html 'names == [("empty", 0, 0)] and blocks == [[], []]'

# --- names of anybody's making: markup, quotes, numbers of every kind, bytes that are no UTF-8, text that turns round ---
python3 - >hostile.tsv <<'END'
import sys
names = [b"</script><script>alert(1)</script>", b"<!--<script>", b"\"'`&lt;&amp;\\u003c\\", b"a\xff\xfeb\xc3(\xed\xa0\x80\xf4\x90\x80\x80",
         b"\xe2\x80\xaereversed", b"w.007.x", b"w.0.x", b"w.18446744073709551616.x", b"w.999999999999999.x", b"w.1000000000000000.x",
         b"1.2.3.4.5.6.7.8.9.10.11.12.13.14.15.16.17.18.19", b"esc\x1b[31m\x01\x7f", b" ", b"]]>", b"\xf0\x9f\x92\xbe \xc3\xa9", b"w.1.x", b"w.2.x"]
for i, n in enumerate(names):
    sys.stdout.buffer.write(n + b"\tF32\t%d\t%d\n" % (i + 1, 4 * (i + 1)))
END
"$octool" inspect --shapes hostile.tsv --html hostile.html >out 2>err
if [ -s hostile.html ]; then
  whole hostile.html
  data hostile.html 'names[0][0] == "</script><script>alert(1)</script>" and names[1][0] == "<!--<script>"'
  data hostile.html '[n[0] for n in names[5:11]] == ["w.007.x", "w.0.x", "w.18446744073709551616.x", "w.999999999999999.x",
    "w.1000000000000000.x", "1.2.3.4.5.6.7.8.9.10.11.12.13.14.15.16.17.18.19"]'
  data hostile.html 'names[3][0] == r"a\xff\xfeb\xc3(\xed\xa0\x80\xf4\x90\x80\x80" and names[11][0] == r"esc\x1b[31m\x01\x7f"'
  data hostile.html 'names[14][0] == "\U0001f4be \u00e9"'
else
  fail "hostile names: no page"
fi

# --- hundreds of thousands of blocks ---
python3 - >many.tsv <<'END'
for layer in range(100):
    for expert in range(1000):
        for part, size in (("down.suh", 4096), ("down.svh", 1024), ("up.trellis", 70000)):
            print(f"model.layers.{layer}.experts.{expert}.{part}\tU8\t{size}\t{size}")
END
runs 0 "$octool" inspect --shapes many.tsv --html many.html --json many.json
whole many.html many.json
if [ "$(stat -c %s many.html)" -lt 5000000 ]; then ok; else fail "300,000 blocks are $(stat -c %s many.html) bytes of page"; fi
finish
