#!/bin/bash
# SPDX-License-Identifier: MIT
# The tables of doc/reliability.md, from the logs of the runs themselves.
#   tests/figures.sh LOGS            compares: fails where a figure got worse than the doc's
#   tests/figures.sh LOGS --write    writes the doc's tables anew
#   tests/figures.sh --long [RUN...] runs what takes hours, or only those runs of spin, bite, static, coverage, torture,
#                                    longrun and fuzz; logs in build/figures-long, and writes the doc's tables
# LOGS is a folder of *.log, as .ci/run leaves it in build/figures. A run's figures are lines in its log:
#   figure: WHAT | FIGURES
# One such line is one row. WHAT is the row's name, so a run of another length has another name ("fuzz, shapes, 60
# seconds"). FIGURES are numbers, each before the words that say of what: "53 caught of 53 planted". A row without a
# line in the logs stays in the doc, and is not compared. What must not fall or rise is listed in compare() below.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
doc=$root/doc/reliability.md

die() {
  echo "figures: $*" >&2
  exit 2
}

# The rows of the logs, as the doc has them.
rows() { cat "$1"/*.log | sed -nE 's/^figure: (.*[^ ]) +\| +(.*)$/| \1 | \2 |/p'; }

# The doc's rows.
old_rows() { sed -n '/^<!-- figures -->$/,/^<!-- end -->$/{/^| [^-]/p}' "$doc" | grep -v '^| what | '; }

# A new row takes the place of the old one of its name; the others follow.
merged() {
  awk -F ' \\| ' '
    FNR == NR { new[$1] = $0; order[++n] = $1; next }
    $1 in new { print new[$1]; delete new[$1]; next }
    { print }
    END { for (i = 1; i <= n; i++) if (order[i] in new) { print new[order[i]]; delete new[order[i]] } }
  ' "$work/new" "$work/old"
}

write() {
  { printf '| what | figure |\n| --- | --- |\n' && merged; } >"$work/table"
  awk -v table="$work/table" '
    /^<!-- figures -->$/ { print; while ((getline line < table) > 0) print line; skip = 1; next }
    /^<!-- end -->$/ { skip = 0 }
    !skip' "$doc" >"$doc.new"
  mv "$doc.new" "$doc"
}

# figure ROWS WHAT WORDS: the number that stands before WORDS.
figure() {
  awk -F ' \\| ' -v what="| $2" '$1 == what' "$1" | sed -nE "s/.*[^0-9.]([0-9]+(\.[0-9]+)?) $3.*/\1/p" | head -n 1
}

# both WHAT WORDS: sets now and was. False where one of the two has no such figure: then there is nothing to compare.
both() {
  now=$(figure "$work/new" "$1" "$2")
  was=$(figure "$work/old" "$1" "$2")
  [ -n "$now" ] && [ -n "$was" ] && compared=$((compared + 1))
}

worse() {
  echo "figures: $1: $now $2, and the doc has $was"
  worse=$((worse + 1))
}

# not_less WHAT WORDS [PERCENT]: of the doc's figure, at least.
not_less() {
  ! both "$1" "$2" || awk "BEGIN { exit !($now * 100 >= $was * ${3:-100}) }" || worse "$1" "$2"
}

# not_more WHAT WORDS
not_more() {
  ! both "$1" "$2" || awk "BEGIN { exit !($now <= $was) }" || worse "$1" "$2"
}

# none WHAT WORDS: whatever the doc says.
none() {
  now=$(figure "$work/new" "$1" "$2")
  [ -n "$now" ] || return 0
  was=0 compared=$((compared + 1))
  [ "$now" = 0 ] || worse "$1" "$2"
}

# each NAME_EXPRESSION: the names of such rows.
each() { sed -E 's/^\| (.*) \| .*/\1/' "$work/new" | grep -E "^$1" || true; }

# Counts, never rates: a slow or busy machine is no worse figure.
compare() {
  local what
  compared=0 worse=0
  # Host allocations differ a little between allocators; the rest does not.
  not_less "every fault of every function, host device" functions
  not_less "every fault of every function, host device" points 90
  not_less "every fault of every function, simulated CUDA" points 90
  while read -r what; do
    not_less "$what" "of 2 backends passed"
    none "$what" wrong
  done < <(each "torture")
  not_less "models, and faults planted in them" "models of"
  not_less "models, and faults planted in them" "faults of"
  not_less "deliberate faults" planted
  not_less "deliberate faults" "caught of"
  while read -r what; do none "$what" crashes; done < <(each "fuzz")
  while read -r what; do none "$what" "of 4 grew"; done < <(each "octool run --swap")
  none "static analysis" "finds by"
  not_less "static analysis" tools
  while read -r what; do not_more "$what" "lines without a test or an argument"; done < <(each "coverage")
  echo "figures: $compared compared with doc/reliability.md, $worse worse"
  [ "$worse" -eq 0 ]
}

# long NAME COMMAND...: its log, and how long it took. One that fails does not stop the others; its figures say so.
long() {
  local name=$1 start=$SECONDS
  shift
  echo "figures: $name: $*"
  "$@" >"$logs/$name.log" 2>&1 </dev/null || {
    tail -n 20 "$logs/$name.log"
    echo "figures: $name FAILED"
    failed=$((failed + 1))
  }
  echo "figures: $name took $((SECONDS - start)) seconds"
}

run_torture() {
  local sanitizer
  for sanitizer in none address,undefined thread; do
    long "torture-${sanitizer/,/-}" "$root/tests/stress.sh" "$sanitizer" 1800
  done
}

# From a checkout's folder, on a machine that does nothing else.
run_long() {
  local run
  failed=0
  mkdir -p "$logs"
  if [ $# -eq 0 ]; then
    rm -f "$logs"/*.log
    set -- spin bite static coverage torture longrun fuzz
  fi
  for run in "$@"; do
    case $run in
    spin | static | coverage) long "$run" "$root/tests/$run.sh" ;;
    bite) long bite env "BITE_DIR=$root/build/bite" "$root/tests/bite.sh" ;;
    torture) run_torture ;;
    longrun | fuzz) long "$run" "$root/tests/$run.sh" 3600 ;;
    *) die "which run is '$run'? spin, bite, static, coverage, torture, longrun or fuzz" ;;
    esac
  done
}

main() {
  local logs=${1:-} to=${2:-compare}
  if [ "$logs" = --long ]; then
    logs=$root/build/figures-long to=--long
    shift
    run_long "$@"
  fi
  [ -d "$logs" ] || die "which folder has the logs?"
  work=$(mktemp -d "${TMPDIR:-/tmp}/liboc-figures.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  rows "$logs" >"$work/new"
  [ -s "$work/new" ] || die "no figure in the logs in $logs"
  old_rows >"$work/old"
  cat "$work/new"
  case $to in
  compare) compare ;;
  --long)
    write
    echo "figures: $failed runs failed"
    [ "$failed" -eq 0 ]
    ;;
  --write) write ;;
  *) die "what is '$to'? --write, or nothing to compare" ;;
  esac
}

main "$@"
