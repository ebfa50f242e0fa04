#!/bin/bash
# SPDX-License-Identifier: MIT
# G1: a hit writes nothing that another thread's hit reads, and nothing at all but its caller's stack. By a trace of every
# load and store, where valgrind is there, and by making all other memory read-only.
set -u

: "${top_builddir:?}"   # from make check
stores=$PWD/stores
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
  echo "FAIL: $*"
  failed=1
}

case " ${CFLAGS-} " in
*-fsanitize=*)
  echo "a sanitizer build: its own stores are in between; nothing is counted"
  exit 0
  ;;
esac

# ---- read-only memory ----

# The loader writes when a function is called for the first time, the kernel into a thread's rseq area at any time.
export LD_BIND_NOW=1 GLIBC_TUNABLES=glibc.pthread.rseq=0

"$stores" protect >"$work/out" 2>&1 || fail "stores in read-only memory: $(cat "$work/out")"
# Gates that still count must be caught: else nothing above was shown.
if "$stores" protect-early >"$work/out" 2>&1; then fail "a counting gate's store was not seen"; fi
for kind in first_n first_n_k; do
  grep -q "^$kind: a store outside the stack$" "$work/out" || fail "$kind: its store was not seen"
done
if [ "$(wc -l <"$work/out")" -ne 2 ]; then fail "others store too: $(cat "$work/out")"; fi

# ---- a trace ----

if ! command -v valgrind >/dev/null; then
  echo "valgrind is not there: loads and stores were not counted one by one"
  exit "$failed"
fi
"$stores" list >"$work/kinds" || fail "stores list"
cat >"$work/check.py" <<'PY'
import collections, sys
kinds = open(sys.argv[1]).read().split()
where, times = open(sys.argv[2]).readline().split()
mark, times = int(where, 16), int(times)
# A section is opened and closed by a store to mark: A's kinds, then B's.
sections, current = [], None
for line in open(sys.argv[3], errors="replace"):
    if line[:1] not in "I " or "," not in line:
        continue
    op, rest = line[:2].strip(), line[2:].strip()
    if op not in ("I", "L", "S", "M"):
        continue
    address, size = rest.split(",")
    address, size = int(address, 16), int(size)
    if op != "I" and address == mark:
        if current is None:
            current = collections.defaultdict(list)
        else:
            sections.append(current)
            current = None
        continue
    if current is not None:
        current[op].append((address, size))
bad = 0
if len(sections) != 2 * len(kinds):
    sys.exit(f"FAIL: {len(sections)} sections in the trace, not {2 * len(kinds)}")
def lines(accesses):
    return {a // 64 for address, size in accesses for a in (address, address + size - 1)}
first, second = sections[:len(kinds)], sections[len(kinds):]
read_by_b = set().union(*(lines(s["L"] + s["M"]) for s in second))
read_by_a = set().union(*(lines(s["L"] + s["M"]) for s in first))
print(f"{'a hit of':15} {'instructions':>12} {'loads':>7} {'stores':>7}   (each with its caller's loop)")
for kind, a, b in zip(kinds, first, second):
    n = lambda s, *ops: sum(len(s[op]) for op in ops) / times
    print(f"{kind:15} {n(a, 'I'):12.1f} {n(a, 'L', 'M'):7.1f} {n(a, 'S', 'M'):7.1f}")
    if n(a, "I") < 5 or not a["L"]:
        print(f"FAIL: {kind}: nothing was traced")
        bad = 1
    for wrote, reads in ((a, read_by_b), (b, read_by_a)):
        shared = lines(wrote["S"] + wrote["M"]) & reads
        # Gates that still count do store to what others read. That must be seen: else nothing is shown of the others.
        if kind.startswith("first_n"):
            if not shared:
                print(f"FAIL: {kind} still counts, and its store was not seen")
                bad = 1
        elif shared:
            print(f"FAIL: {kind} stores to lines that another thread's hits read: {sorted(map(hex, (l * 64 for l in shared)))}")
            bad = 1
sys.exit(bad)
PY

# traced [published]: with the figures published, too, each thread's hits store where no other thread's hit reads.
traced() {
  valgrind --tool=lackey --trace-mem=yes --log-fd=9 "$stores" trace "$@" >"$work/mark" 9>"$work/trace" 2>"$work/err" ||
    fail "valgrind: $(tail -n 3 "$work/err")"
  python3 "$work/check.py" "$work/kinds" "$work/mark" "$work/trace" || failed=1
}

traced
echo "the same, with the figures published:"
traced published
exit "$failed"
