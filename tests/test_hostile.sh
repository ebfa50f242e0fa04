#!/bin/bash
# SPDX-License-Identifier: MIT
# All of octool on files that lie, end early, change, grow without end, or cannot be read or written: exit status 1, one
# line that names the file and the reason, no crash, and no half of an output left. What the readers' fuzz targets and unit
# tests see of single bytes is not repeated here; these are whole processes.
set -u
# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
octool=$top_builddir/tools/octool
"$octool" sample sound.safetensors --params 30000 --layers 2 >/dev/null || exit 1

# refuses WORDS ARGUMENT...: status 1, and one line with those words; the documents asked for are not there.
refuses() {
  local words=$1
  shift
  runs 1 timeout 60 "$octool" "$@"
  says "octool $1: "
  says "$words"
  if [ "$(wc -l <err)" -eq 1 ]; then ok; else fail "$*: not one line"; fi
  if [ ! -e out.json ] && [ ! -e trace.json ]; then ok; else fail "$*: an output was left"; fi
  rm -f out.json trace.json
}

# ---- headers, by both commands that read files ----

python3 - <<'END'
import struct
def file(name, header, data=b"", length=None):
    header = header.encode() if isinstance(header, str) else header
    open(name, "wb").write(struct.pack("<Q", len(header) if length is None else length) + header + data)
def one(dtype, shape, begin, end):
    return '{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}' % (dtype, shape, begin, end)
open("empty", "wb")
open("seven", "wb").write(b"\2\0\0\0\0\0\0")
file("beyond", "{}", length=3)
file("2^63", "{}", length=1 << 63)
file("2^64-1", "{}", length=(1 << 64) - 1)
file("limit", "{}", length=100000001)
file("overlap", '{"a":%s,"b":%s}' % (one("U8", "[4]", 0, 4), one("U8", "[4]", 2, 6)), bytes(6))
file("hole", '{"a":%s}' % one("U8", "[4]", 4, 8), bytes(8))
file("rest", '{"a":%s}' % one("U8", "[4]", 0, 4), bytes(8))
file("short", '{"a":%s}' % one("U8", "[8]", 0, 8), bytes(4))
file("shape", '{"a":%s}' % one("F32", "[3]", 0, 8), bytes(8))
file("product", '{"a":%s}' % one("F64", "[4294967296,4294967296,2]", 0, 8), bytes(8))
file("bits", '{"a":%s}' % one("F4", "[3]", 0, 2), bytes(2))
file("dtype", '{"a":%s}' % one("F128", "[1]", 0, 16), bytes(16))
file("duplicate", '{"a":%s,"a":%s}' % (one("U8", "[4]", 0, 4), one("U8", "[4]", 0, 4)), bytes(4))
file("negative", '{"a":%s}' % one("U8", "[-4]", 0, 4), bytes(4))
file("real", '{"a":%s}' % one("U8", "[4.0]", 0, 4), bytes(4))
file("backward", '{"a":%s}' % one("U8", "[4]", 4, 0), bytes(4))
file("utf8", b'{"a\xff":1}')
file("nul", b'{"a\\u0000b":1}')
file("raw nul", b'{"a\0":1}')
file("deep", '{"a":' + "[" * 100000 + "]" * 100000 + "}")
file("array", "[]")
file("cut json", '{"a":{"dtype":"U8"')
file("control", '{"\\u001b[2J\\n":1}')
file("huge number", '{"a":{"dtype":"U8","shape":[99999999999999999999999999],"data_offsets":[0,1]}}', b"x")
file("many", "{%s}" % ",".join('"%d":%s' % (i, one("U8", "[0]", 1, 0)) for i in range(2000)))
END
while IFS='|' read -r file words; do
  refuses "$file: $words" inspect --json out.json "$file"
  refuses "$file: $words" run --seconds 0 --json out.json --trace trace.json sound.safetensors "$file"
done <<'END'
empty|is empty
seven|has 7 bytes, too few for the header's length (truncated?)
beyond|header: of 3 bytes, in a file of 10 (truncated?)
2^63|header: its length, 9223372036854775808 bytes, is over the format's limit
2^64-1|header: its length, 18446744073709551615 bytes, is over the format's limit
limit|header: its length, 100000001 bytes, is over the format's limit
overlap|tensor 'b': overlaps tensor 'a'
hole|tensor 'a': a hole of 4 bytes before it
rest|4 bytes after the last tensor belong to none
short|tensor 'a': ends at byte 8 of the data, which has 4 (truncated?)
shape|tensor 'a': F32[3] takes 12 bytes, data_offsets give it 8
product|tensor 'a': its shape overflows
bits|tensor 'a': its shape overflows, or ends inside a byte
dtype|tensor 'a': unknown dtype 'F128'
duplicate|header: no valid JSON at byte
negative|tensor 'a': shape has a dimension that is not a count
real|tensor 'a': shape has a dimension that is not a count
backward|tensor 'a': data_offsets end at 0, before their begin 4
utf8|header: no valid JSON at byte
nul|header: no valid JSON at byte
raw nul|header: no valid JSON at byte
deep|header: no valid JSON at byte
array|header: does not begin with '{'
cut json|header: no valid JSON at byte
control|tensor '\x1b[2J\x0a': its entry is not an object
huge number|header: no valid JSON at byte
many|tensor '
END

# ---- what is no file, or none that can be read ----

mkfifo pipe
mkdir folder
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
ln -s nowhere dangling
ln -s loop loop
truncate -s 1T sparse
printf '{}' | python3 -c 'import sys, struct; open("sparse", "r+b").write(struct.pack("<Q", 2) + sys.stdin.buffer.read())'
# A header of 90 MB that is all hole, in a file of 1 TiB.
truncate -s 1T sparse2
python3 -c 'import struct; open("sparse2", "r+b").write(struct.pack("<Q", 90000000))'
while IFS='|' read -r file words; do
  refuses "$file: $words" inspect --json out.json "$file"
  refuses "$file: $words" run --seconds 0 --json out.json --trace trace.json "$file"
done <<'END'
pipe|is a pipe, not a regular file
folder|is a directory, not a regular file
socket|cannot be opened: No such device or address
/dev/zero|is a device, not a regular file
/dev/null|is a device, not a regular file
dangling|cannot be opened: No such file or directory
loop|cannot be opened: Too many levels of symbolic links
sound.safetensors/x|cannot be opened: Not a directory
sparse|1099511627766 bytes after the last tensor belong to none
sparse2|header: does not begin with '{'
END
cp sound.safetensors unreadable
chmod 0 unreadable
if [ -r unreadable ]; then
  echo "root reads everything: an unreadable file was not tried"
else
  refuses "unreadable: cannot be opened: Permission denied" inspect unreadable
fi
# Reads that fail: the process's own memory at address 0.
refuses "/proc/self/mem: line 1: cannot be read: Input/output error" inspect --json out.json --shapes /proc/self/mem

# ---- lists of shapes ----

printf 'a\tU8\t4\t4\n' >sound.tsv
printf 'a\tU8\t4\t4\nb\tU8\t4' >cut.tsv
printf 'a\tU8\t4294967296x4294967296x4294967296\t0\n' >product.tsv
printf 'a\tF32\t3\t8\n' >bytes.tsv
printf 'a\tF4\t3\t2\n' >bits.tsv
printf 'a\0\tU8\t4\t4\n' >nul.tsv
printf 'a\tU8\t18446744073709551616\t4\n' >number.tsv
printf '\x1b[2J\tX\x1b\t4\t4\n' >control.tsv
: >empty.tsv
head -c 70000 /dev/zero | tr '\0' 'n' >long.tsv
while IFS='|' read -r file words; do refuses "$file: $words" inspect --json out.json --shapes "$file"; done <<'END'
cut.tsv|line 2: 3 fields; name, dtype, shape and bytes are expected
product.tsv|line 1: the shape overflows, or ends inside a byte
bytes.tsv|line 1: 8 bytes, where dtype and shape make 12
bits.tsv|line 1: the shape overflows, or ends inside a byte
nul.tsv|line 1: has a NUL byte in it
number.tsv|line 1: dimension 1 of the shape, '18446744073709551616', is not a count
control.tsv|line 1: unknown dtype 'X\x1b'
empty.tsv|has no tensor
long.tsv|line 1: is over 65535 bytes long
folder|line 1: cannot be read: Is a directory
/dev/zero|line 1: has a NUL byte in it
sparse|line 1: has a NUL byte in it
nowhere.tsv|cannot be opened: No such file or directory
END
runs 0 timeout 60 bash -c "cat sound.tsv >pipe & '$octool' inspect --shapes pipe"

# ---- files that go, shrink or change while they are read ----

# A writer that never rests. Whatever octool sees is a sound file or a refusal: no crash, no hang.
python3 - "$octool" >out 2>err <<'END'
import os, subprocess, sys, threading, time
octool, sound = sys.argv[1], open("sound.safetensors", "rb").read()
stop = threading.Event()
def meddle():
    n = 0
    while not stop.is_set():
        n += 1
        with open("m", "r+b" if os.path.exists("m") else "wb") as f:
            f.write(sound)
            f.truncate(len(sound) if n % 2 else n * 977 % len(sound))
        if n % 7 == 0:
            os.unlink("m")
open("m", "wb").write(sound)
thread = threading.Thread(target=meddle)
thread.start()
seen = {0: 0, 1: 0}
try:
    end = time.time() + 6
    while time.time() < end:
        command = ["inspect", "m"] if sum(seen.values()) % 2 else ["run", "--seconds", "0", "--derive", "bf16", "m"]
        p = subprocess.run([octool] + command, capture_output=True, timeout=60)
        assert p.returncode in (0, 1), (command, p.returncode, p.stderr)
        # A run may also see other bytes than it had loaded: it says so of the file, or of what it compared.
        assert p.returncode == 0 or p.stderr.startswith(b"octool "), (command, p.stderr)
        seen[p.returncode] += 1
finally:
    stop.set()
    thread.join()
assert seen[1] > 0, seen
END
# shellcheck disable=SC2181
if [ $? -eq 0 ]; then ok; else fail "a file that changes all the time"; fi

# ---- outputs that cannot be written ----

# A file may have 8 KiB at most, which is a disk that fills up: said, and nothing half is left.
limited() {
  local words=$1
  shift
  runs 1 bash -c 'ulimit -f 8; exec timeout 60 "$@"' bash "$octool" "$@"
  says "$words: cannot be written: File too large"
  if [ ! -e out.json ] && [ ! -e trace.json ] && [ ! -e big.safetensors ]; then ok; else fail "$*: an output was left"; fi
  rm -f out.json trace.json big.safetensors
}
limited big.safetensors sample big.safetensors --params 3000000
limited trace.json run --seconds 0 --swap 4 --trace trace.json sound.safetensors
runs 1 timeout 60 "$octool" inspect --json folder sound.safetensors
says "folder: cannot be written: Is a directory"
if [ -w /dev/full ]; then
  for output in "sample /dev/full" "inspect --json /dev/full sound.safetensors" \
    "run --seconds 0 --swap 0 --json /dev/full sound.safetensors" \
    "run --seconds 0 --swap 0 --trace /dev/full sound.safetensors"; do
    # shellcheck disable=SC2086
    runs 1 timeout 60 "$octool" $output
    says "/dev/full: cannot be written: No space left on device"
  done
  if [ -c /dev/full ]; then ok; else fail "/dev/full is gone"; fi
  for output in "inspect sound.safetensors" "inspect --list sound.safetensors" "run --seconds 0 --swap 0 sound.safetensors" \
    "--help" "--version"; do
    # shellcheck disable=SC2086
    timeout 60 "$octool" $output >/dev/full 2>err
    if [ $? -eq 1 ]; then ok; else fail "octool $output to a full disk: exit status not 1"; fi
    : >out
    says "standard output: cannot be written: No space left on device"
  done
fi
# An output that cannot be opened stops the work before it begins, and takes nothing with it.
echo precious >kept
chmod a-w kept
if [ ! -w kept ]; then
  refuses "kept: cannot be written: Permission denied" inspect --json kept sound.safetensors
fi
if grep -q precious kept; then ok; else fail "a file that was not ours was touched"; fi

finish
