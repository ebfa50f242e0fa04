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
# line in the logs stays in the doc; one that .ci/run makes must be there to be compared. What must not fall or rise is listed
# in compare() below.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
doc=$root/doc/reliability.md

die() {
  echo "figures: $*" >&2
  exit 2
}

# The rows of the logs, as the doc has them.
rows() { { cat "$1"/*.log 2>/dev/null || true; } | sed -nE 's/^figure: (.*[^ ]) +\| +(.*)$/| \1 | \2 |/p'; }

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

# The rows of both, by name: new_row, old_row.
declare -A new_row=() old_row=()
read_rows() {
  local -n rows_read=$2
  local line
  # shellcheck disable=SC2034 # it is the caller's, by another name
  while IFS= read -r line; do
    line=${line#| }
    rows_read[${line%% | *}]=${line#* | }
  done <"$1"
}

# number ROW WORDS least|most: sets found to what stands before WORDS, an expression, in tenths; empty where nothing does.
number() {
  local rest=" $1" n
  found=
  while [[ $rest =~ [^0-9.]([0-9]+)(\.([0-9]))?\ $2(.*)$ ]]; do
    n=$((10#${BASH_REMATCH[1]}${BASH_REMATCH[3]:-0}))
    rest=${BASH_REMATCH[4]}
    if [ -z "$found" ] || { [ "$3" = least ] && [ "$n" -lt "$found" ]; } || { [ "$3" = most ] && [ "$n" -gt "$found" ]; }; then
      found=$n
    fi
  done
}

worse() {
  echo "figures: $*"
  worse=$((worse + 1))
}

# both WHAT WORDS least|most: sets now and was. False where there is nothing to compare: no such row in the logs, or none in
# the doc. A row without the figure is worse than any.
both() {
  [ -n "${new_row[$1]:-}" ] || return 1
  compared=$((compared + 1))
  number "${old_row[$1]:-}" "$2" "$3" && was=$found
  number "${new_row[$1]}" "$2" "$3" && now=$found
  [ -n "$now" ] || worse "$1: no number before '$2'"
  [ -n "$now" ] && [ -n "$was" ]
}

tenths() { if (($1 % 10)); then echo "$(($1 / 10)).$(($1 % 10))"; else echo "$(($1 / 10))"; fi; }

# unless WHAT WORDS COMPARISON: it is worse.
unless() { (($3)) || worse "$1: $(tenths "$now") $2, and the doc has $(tenths "$was")"; }

# not_less WHAT WORDS [PERCENT]: of the doc's figure, at least. Of several in a row, the least is meant.
not_less() { ! both "$1" "$2" least || unless "$1" "$2" "now * 100 >= was * ${3:-100}"; }

# not_lower WHAT WORDS: a percentage. Half a point is which way races went.
not_lower() { ! both "$1" "$2" least || unless "$1" "$2" "now + 5 >= was"; }

# not_more WHAT WORDS [PERCENT]
not_more() { ! both "$1" "$2" most || unless "$1" "$2" "now * 100 <= was * ${3:-100}"; }

# none WHAT WORDS: whatever the doc says.
none() {
  [ -n "${new_row[$1]:-}" ] || return 0
  compared=$((compared + 1))
  number "${new_row[$1]}" "$2" most
  [ "$found" = 0 ] || worse "$1: it must be 0 $2: ${new_row[$1]% |}"
}

# each NAME_EXPRESSION: the names of such rows.
each() { sed -E 's/^\| (.*) \| .*/\1/' "$work/new" | grep -E "^$1" || true; }

# LOG|ROW for each row that .ci/run makes.
rows_of_ci() {
  local name
  printf 'test_faults%s.log|every fault of every function, %s\n' '' 'host device' .cuda 'simulated CUDA'
  for name in none address,undefined thread; do
    echo "torture-${name/,/-}.log|torture, ${name/,/ and }, 30 seconds a backend"
  done
  for name in "$root"/tests/spin/*.pml; do echo "spin.log|$(basename "$name"), 3 threads"; done
  echo "spin.log|models, and faults planted in them"
  for name in api safetensors shapes; do echo "fuzz.log|fuzz, $name, 60 seconds"; done
  echo "static.log|static analysis"
}

# A row that is not there is no figure that got no worse. Only a tool that is not installed excuses it; the log says so.
all_rows_of_ci() {
  local log what
  while IFS='|' read -r log what; do
    if [ -z "${new_row[$what]:-}" ]; then
      grep -qE 'SKIPPED|not installed' "$logs/$log" 2>/dev/null || worse "$what: no such row in $log"
    elif [ -z "${old_row[$what]:-}" ]; then
      worse "$what: the doc has no such row; $0 $logs --write"
    fi
  done < <(rows_of_ci)
}

# Counts, never rates: a slow or busy machine is no worse figure. What a run does in its time is a count of that machine too, and
# a tenth of it is still a run. Where branches of races and allocators differ from run to run, 90 % are asked for.
compare() {
  local what words
  compared=0 worse=0
  read_rows "$work/new" new_row
  read_rows "$work/old" old_row
  all_rows_of_ci
  while read -r what; do
    not_less "$what" functions
    for words in points "host allocations" "and all after" "calls of the driver" "that lost the device"; do not_less "$what" "$words" 90; done
  done < <(each "every fault of every function")
  while read -r what; do
    not_less "$what" "of 2 backends passed"
    none "$what" wrong
    not_less "$what" reads 10
    not_less "$what" swaps 10
  done < <(each "torture")
  while read -r what; do
    none "$what" errors
    not_less "$what" states
  done < <(each ".*\.pml, ")
  not_less "models, and faults planted in them" "models of"
  not_less "models, and faults planted in them" "faults of"
  not_less "deliberate faults" planted
  not_less "deliberate faults" "caught of"
  while read -r what; do
    none "$what" crashes
    not_less "$what" executions 10
    not_less "$what" edges 90
  done < <(each "fuzz")
  while read -r what; do
    none "$what" "of 4 grew"
    not_less "$what" swaps 10
    not_less "$what" samples 10
  done < <(each "octool run --swap")
  none "static analysis" "finds by"
  not_less "static analysis" tools
  not_less "static analysis" files 90
  not_more "static analysis" "lines with the reason" 120
  while read -r what; do
    not_more "$what" "lines without a test or an argument"
    not_lower "$what" "% of [0-9]+ lines"
    not_lower "$what" "% of [0-9]+ branches"
  done < <(each "coverage")
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
