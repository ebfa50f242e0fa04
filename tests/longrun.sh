#!/bin/bash
# SPDX-License-Identifier: MIT
# Is a process that swaps models for hours as large at the end as at the start? Runs `octool run --swap` on a small
# model and looks into /proc meanwhile: resident memory, mappings, threads, descriptors.
#   tests/longrun.sh [SECONDS [SWAPS]]
# SECONDS (3600), SWAPS (ten a second). The second quarter's median of each is held against the last quarter's:
#   resident      may be a tenth larger: allocators give memory back when they like
#   mappings      may be two more, likewise
#   threads, descriptors   may not
# so that SWAPS / 2 swaps must leak less than a tenth of the process: with the 36,000 of an hour, 50 bytes a swap.
# Exits 0 if none grew, octool was content, and every swap was done; writes a figure for tests/figures.sh.
# OCTOOL=program takes one that is built, else build/check is.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../tools/common.sh"

quantities=(resident mappings threads descriptors)

# One line of all four. False once the process is gone. Nothing is started for it: the machine is the run's.
sample() {
  local key value rest resident='' threads=''
  local -a maps=() files=()
  while read -r key value rest; do
    case $key in
    VmRSS:) resident=$value ;;
    Threads:) threads=$value ;;
    esac
  done <"/proc/$1/status"
  mapfile -t maps <"/proc/$1/maps"
  files=("/proc/$1/fd/"*)
  [ -n "$resident" ] && echo "$resident ${#maps[@]} $threads ${#files[@]}"
}

# Until it ends.
watch() {
  while sample "$1" 2>/dev/null; do sleep "$2"; done
}

# median COLUMN FROM TO: of the samples between these parts of a hundred.
median() {
  awk -v from="$2" -v to="$3" -v column="$1" '
    { all[NR] = $column }
    END { for (i = 1; i <= NR; i++) if (i > NR * from / 100 && i <= NR * to / 100) print all[i] }' "$work/samples" |
    sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] + 0 }'
}

# grew WHAT BEFORE AFTER
grew() {
  case $1 in
  resident) [ "$3" -gt $(($2 + $2 / 10)) ] ;;
  mappings) [ "$3" -gt $(($2 + 2)) ] ;;
  *) [ "$3" -gt "$2" ] ;;
  esac
}

# judge SECONDS: one figure; false if something grew.
judge() {
  local i before after text='' bad=0
  for i in "${!quantities[@]}"; do
    before=$(median $((i + 1)) 25 50)
    after=$(median $((i + 1)) 75 100)
    text+="; ${quantities[i]}${text:+}: $before, then $after"
    if grew "${quantities[i]}" "$before" "$after"; then
      say "${quantities[i]} grew: $before in the second quarter, $after in the last"
      bad=$((bad + 1))
    fi
  done
  echo "figure: octool run --swap, $1 seconds | $swaps swaps, $(wc -l <"$work/samples") samples, $bad of 4 grew$text"
  [ "$bad" -eq 0 ]
}

main() {
  local seconds=${1:-3600} octool=${OCTOOL:-} every rc=0
  pid=
  [[ $seconds =~ ^[1-9][0-9]*$ ]] || die "SECONDS: '$seconds' is no count"
  swaps=${2:-$((seconds * 10))}
  if [ -z "$octool" ]; then
    build "$oc_root/build/check"
    octool=$oc_root/build/check/tools/octool
  fi
  work=$(mktemp -d "${TMPDIR:-/tmp}/liboc-longrun.XXXXXX")
  trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$work"' EXIT
  "$octool" sample "$work/model.safetensors" --params 30000 --layers 2 >/dev/null
  "$octool" run --threads 2 --seconds "$seconds" --swap "$swaps" --json "$work/run.json" "$work/model.safetensors" \
    >"$work/log" 2>&1 </dev/null &
  pid=$!
  # Four hundred samples, one in five seconds at least, fifty a second at most.
  every=$(awk -v s="$seconds" 'BEGIN { t = s / 400; if (t < 0.02) t = 0.02; if (t > 5) t = 5; print t }')
  watch "$pid" "$every" >"$work/samples"
  wait "$pid" || rc=$?
  pid=
  if [ "$rc" -ne 0 ] || ! grep -q "\"swaps\": $swaps\b" "$work/run.json"; then
    tail -n 40 "$work/log" >&2
    die "octool run ended with status $rc, $swaps swaps being asked for"
  fi
  judge "$seconds"
}

main "$@"
