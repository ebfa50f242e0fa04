#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/figures.sh fails where a figure got worse: logs that say what the doc says pass; with one row changed, or gone, they do
# not, and the row is named. Wrong words to the runs are refused. --write puts new rows into a copy of the tree's doc.
set -u
# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
mkdir -p tree/tests tree/doc logs
cp "${top_srcdir:?}/tests/figures.sh" tree/tests/
cp -r "$top_srcdir/tests/spin" tree/tests/
cp "$top_srcdir/doc/reliability.md" tree/doc/

# The doc's rows as a log; the one whose hour found a fault is of its own time.
sed -nE '/^<!-- figures -->$/,/^<!-- end -->$/s/^\| (.*) \| (.*) \|$/figure: \1 | \2/p' tree/doc/reliability.md |
  grep -vE '^figure: (what|---) \||[1-9] crashes$' >doc.log

cp doc.log logs/all.log
runs 0 tree/tests/figures.sh logs
if grep -q ', 0 worse$' out; then ok; else fail "no closing line"; fi

# worse ROW SED: with that change of that row.
worse() {
  sed -E "/^figure: $1 \|/$2" doc.log >logs/all.log
  if ! cmp -s doc.log logs/all.log; then ok; else fail "$1: the doc has no such row for: $2"; fi
  runs 1 tree/tests/figures.sh logs
  if grep -qE "^figures: $1: " out; then ok; else fail "$1: not named, with $2"; fi
}
while IFS='|' read -r row change; do worse "$row" "$change"; done <<'END'
every fault of every function, host device|d
every fault of every function, host device|s/[0-9]+ functions/2 functions/
every fault of every function, simulated CUDA|s/[0-9]+ functions/2 functions/
every fault of every function, simulated CUDA|s/[0-9]+ host allocations/0 host allocations/
every fault of every function, simulated CUDA|s/[0-9]+ and all after/0 and all after/
every fault of every function, simulated CUDA|s/[0-9]+ calls of/1 calls of/
every fault of every function, host device|s/[0-9]+ that lost/2 that lost/
torture, thread, 30 seconds a backend|d
torture, none, 30 seconds a backend|s/2 of 2/1 of 2/
torture, none, 30 seconds a backend|s/0 wrong/1 wrong/
torture, none, 30 seconds a backend|s/[0-9]+ reads/3 reads/
torture, address and undefined, 30 seconds a backend|s/[0-9]+ swaps$/1 swaps/
torture, none, 30 seconds a backend|s/passed.*/passed, 0 wrong; /
build.pml, 3 threads|d
build.pml, 3 threads|s/[0-9]+ states/5 states/
lock.pml, 3 threads|s/[0-9]+ states/&x/;s/[0-9]+ statesx/215235 states/
teardown.pml, 3 threads|s/0 errors/7 errors/
teardown.pml, 3 threads|s/0 errors/unfinished errors/
models, and faults planted in them|s/[0-9]+ faults of/1 faults of/
fuzz, api, 60 seconds|d
fuzz, shapes, 60 seconds|s/[0-9]+ executions/30 executions/
fuzz, safetensors, 60 seconds|s/[0-9]+ edges/10 edges/
fuzz, api, 60 seconds|s/0 crashes/1 crashes/
static analysis|d
static analysis|s/0 finds/1 finds/
static analysis|s/[0-9]+ tools/1 tools/
static analysis|s/in [0-9]+ files/in 3 files/
static analysis|s/[0-9]+ lines/4800 lines/
deliberate faults|s/[0-9]+ planted/50 planted/
octool run --swap, 3600 seconds|s/[0-9]+ swaps, [0-9]+ samples/3 swaps, 2 samples/
octool run --swap, 3600 seconds|s/0 of 4/1 of 4/
coverage of liboc\/|s/[0-9.]+ % of ([0-9]+) branches/50.0 % of \1 branches/
coverage of rcu\/|s/[0-9.]+ % of ([0-9]+) lines/97.0 % of \1 lines/
coverage of rcu\/|s/0 lines without/1 lines without/
END

# A slow machine is no worse figure; a tool that is not there is an excuse where the log says so.
sed -E '/^figure: (fuzz|torture)/s/([0-9]+)[0-9] (executions|reads|swaps)/\19 \2/g' doc.log >logs/all.log
runs 0 tree/tests/figures.sh logs
grep -v '^figure: fuzz' doc.log >logs/all.log
runs 1 tree/tests/figures.sh logs
echo "SKIPPED: no clang; tools/deps.sh installs it" >logs/fuzz.log
runs 0 tree/tests/figures.sh logs
rm logs/fuzz.log

# Rows of runs that the doc has not: they follow. The others stay.
echo "figure: fuzz, shapes, 61 seconds | 7 executions, 8 edges, 0 crashes" >logs/all.log
cp tree/doc/reliability.md before.md
runs 0 tree/tests/figures.sh logs --write
diff before.md tree/doc/reliability.md >changed
if [ "$(grep -c '^[<>]' changed)" -eq 1 ] &&
  grep -qx '> | fuzz, shapes, 61 seconds | 7 executions, 8 edges, 0 crashes |' changed; then
  ok
else
  fail "--write: $(cat changed)"
fi

rm logs/*
runs 2 tree/tests/figures.sh logs
says "no figure in the logs in logs"
runs 2 tree/tests/figures.sh nowhere
says "which folder has the logs?"

# The runs themselves say at once what they do not know, before they build anything or never end.
# refused STATUS WORDS SCRIPT ARGUMENT...
refused() {
  local status=$1 words=$2 script=$3
  shift 3
  runs "$status" timeout 20 "$top_srcdir/tests/$script" "$@"
  says "$words"
}
refused 2 "how many threads? 1 to 9" spin.sh abc
refused 2 "how many threads? 1 to 9" spin.sh 0
refused 1 "'abc' is no count from 1 to 999999" stress.sh none abc
refused 1 "'0' is no count from 1 to 999999" stress.sh none 0
refused 1 "'x' is no count from 1 to 99" stress.sh none 5 x
refused 1 "what is '--help'? --list, or nothing" coverage.sh --help
refused 1 "how many seconds for each target?" fuzz.sh x
refused 2 "'nosuch' is no fault" bite.sh nosuch
refused 1 "unknown tool 'nosuch'" static.sh nosuch
finish
