#!/bin/bash
# SPDX-License-Identifier: MIT
# The table of doc/reliability.md, from the logs of the runs themselves.
#   tests/figures.sh LOGS           compares: fails where a figure got worse than the doc's
#   tests/figures.sh LOGS --write   writes the doc's table anew
# LOGS is a folder, as .ci/run leaves it in build/figures: test_faults.log, test_faults.cuda.log, torture-*.log, spin.log,
# bite.log; of what is missing the doc's rows stay, and nothing is compared.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
doc=$root/doc/reliability.md

row() { printf '| %s | %s |\n' "$1" "$2"; }

faults() {
  local log=$logs/$1
  [ -e "$log" ] || return 0
  row "every fault of every function, $2" "$(sed -n 's/^faults: //p' "$log")"
}

# wrong LOG: the sum of all counters of what went wrong.
wrong() { sed -n 's/^torture: wrong: //p' "$1" | grep -oE '[0-9]+' | paste -sd+ | bc; }

torture() {
  local log run
  for log in "$logs"/torture-*.log; do
    [ -e "$log" ] || continue
    run=$(basename "$log" .log)
    row "${run/-/, }" "$(grep -cx 'torture: passed' "$log") of 2 backends passed, $(wrong "$log") wrong; $(sed -n 's/^torture: \([0-9]* seconds.*\)/\1/p' "$log" | head -n 1) each; $(sed -nE 's/^torture: did ([0-9]+) reads.*, ([0-9]+) swaps.*/\1 reads, \2 swaps/p' "$log" | paste -sd\; | sed 's/;/; /')"
  done
}

spin_rows() {
  [ -e "$logs/spin.log" ] || return 0
  sed -nE 's/^spin: (.*\.pml), (.*): ([0-9]+ states, .*)/| \1, \2 | \3 |/p' "$logs/spin.log"
  row "models, and faults planted in them" "$(tail -n 1 "$logs/spin.log" | sed 's/^spin: //')"
}

table() {
  row what figure
  row --- ---
  faults test_faults.log "host device"
  faults test_faults.cuda.log "simulated CUDA"
  torture
  spin_rows
  [ ! -e "$logs/bite.log" ] || row "deliberate faults" "$(tail -n 1 "$logs/bite.log" | sed 's/^bite: //')"
}

# The doc's table: between two marks.
old_table() { sed -n '/^<!-- figures -->$/,/^<!-- end -->$/{/^|/p}' "$doc"; }

write() {
  local new=$1
  awk -v new="$new" '
    /^<!-- figures -->$/ { print; while ((getline line < new) > 0) print line; skip = 1; next }
    /^<!-- end -->$/ { skip = 0 }
    !skip' "$doc" >"$doc.new"
  mv "$doc.new" "$doc"
}

# first_number TABLE ROW EXPRESSION
figure() { { grep -F "| $2" "$1" || true; } | sed -nE "s/.*[^0-9]([0-9]+) $3.*/\1/p" | head -n 1; }

# not_less ROW EXPRESSION PERCENT: of the doc's figure, at least
not_less() {
  local was now
  was=$(figure "$work/old" "$1" "$2")
  now=$(figure "$work/new" "$1" "$2")
  [ -n "$was" ] && [ -n "$now" ] || return 0
  [ "$((now * 100))" -lt "$((was * $3))" ] || return 0
  echo "figures: $1: $now $2, and the doc has $was"
  worse=1
}

main() {
  logs=${1:-}
  [ -d "$logs" ] || {
    echo "figures: which folder has the logs?" >&2
    exit 2
  }
  work=$(mktemp -d "${TMPDIR:-/tmp}/liboc-figures.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  worse=0
  table >"$work/new"
  cat "$work/new"
  if [ "${2:-}" = --write ]; then
    write "$work/new"
    return
  fi
  old_table >"$work/old"
  # Host allocations differ a little between allocators; the rest does not.
  not_less "every fault of every function, host device" functions 100
  not_less "every fault of every function, host device" points 90
  not_less "every fault of every function, simulated CUDA" points 90
  not_less "deliberate faults" planted 100
  not_less "deliberate faults" "caught of" 100
  not_less "models, and faults planted in them" "models of" 100
  if grep -E '^\| torture' "$work/new" | grep -vq '2 of 2 backends passed, 0 wrong'; then
    echo "figures: torture went wrong"
    worse=1
  fi
  [ "$worse" -eq 0 ]
}

main "$@"
