# SPDX-License-Identifier: MIT
# Sourced by the script tests that count their checks: a work folder, which is left with it, and
#   ok, fail WORDS          count a check; fail prints out and err, what the command under test said
#   runs STATUS COMMAND...  in out and err what it said; a check of its exit status
#   says WORDS, silent      standard error has them, is empty
#   json FILE EXPRESSION    holds of the document d
#   finish                  Check's line of counts, and the exit status
# shellcheck shell=bash

: "${top_builddir:?}"   # from make check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
checks=0
failures=0
: >out
: >err

ok() {
  checks=$((checks + 1))
}

fail() {
  checks=$((checks + 1))
  failures=$((failures + 1))
  echo "FAIL: $*"
  sed 's/^/  stdout: /' out
  sed 's/^/  stderr: /' err
}

runs() {
  local want=$1 got
  shift
  timeout 900 "$@" >out 2>err </dev/null
  got=$?
  if [ "$got" -eq "$want" ]; then ok; else fail "$*: exit status $got, not $want"; fi
}

says() {
  if grep -qF -- "$1" err; then ok; else fail "standard error lacks: $1"; fi
}

silent() {
  if [ ! -s err ]; then ok; else fail "standard error is not empty"; fi
}

json() {
  if python3 -c '
import json, sys
d = json.load(open(sys.argv[1]))
if not eval(sys.argv[2]):
    print({k: v for k, v in d.items() if k != "teardown_report"})
    sys.exit(1)' "$1" "$2" >py 2>&1; then ok; else fail "$2: $(cat py)"; fi
}

finish() {
  echo "$((checks > 0 ? 100 * (checks - failures) / checks : 0))%: Checks: $checks, Failures: $failures, Errors: 0"
  [ "$failures" -eq 0 ] && [ "$checks" -gt 0 ]
  exit
}
