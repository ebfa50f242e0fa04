#!/bin/bash
# SPDX-License-Identifier: MIT
# All of octool on files that lie, end early, change, grow without end, or cannot be read or written: exit status 1, one
# line that names the file and the reason, no crash, and no half of an output left. What the readers' fuzz targets and unit
# tests see of single bytes is not repeated here, nor pages of figures that lie (test_top.sh); these are whole processes.
set -u
# shellcheck source=tests/checks.sh
. "$(dirname "$0")/checks.sh"
octool=$top_builddir/tools/octool
"$octool" sample sound.safetensors --params 30000 --layers 2 >/dev/null || exit 1

# Root reads and writes everything, unless it is asked to do without.
plain=()
[ "$(id -u)" -ne 0 ] || plain=(setpriv "--bounding-set=-dac_override,-dac_read_search")
# denied FILE TEST: is it not for plain users? Says so where this machine has none.
denied() {
  if ! "${plain[@]}" test "$2" "$1"; then return 0; fi
  echo "root cannot do without its rights here: $1 was not tried"
  return 1
}

# refuses WORDS ARGUMENT...: status 1, and one line with those words; the documents asked for are not there.
refuses() {
  local words=$1
  shift
  runs 1 "${plain[@]}" timeout 60 "$octool" "$@"
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
if denied unreadable -r; then
  refuses "unreadable: cannot be opened: Permission denied" inspect unreadable
  refuses "unreadable: cannot be opened: Permission denied" run --seconds 0 --json out.json unreadable
  refuses "unreadable: cannot be opened: Permission denied" inspect --json out.json --shapes unreadable
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
# shellcheck disable=SC2181 # the command ends far above
if [ $? -eq 0 ]; then ok; else fail "a file that changes all the time"; fi

# ---- outputs that cannot be written ----

# A file may have 8 KiB at most, which is a disk that fills up: said, nothing half is left, and what was there stays.
limited() {
  local name=$1
  shift
  runs 1 bash -c 'ulimit -f 8; exec timeout 60 "$@"' bash "$octool" "$@"
  says "outputs/$name: cannot be written: File too large"
  if [ -z "$(ls -A outputs)" ]; then ok; else fail "$*: left: $(ls -A outputs)"; fi
  echo precious >"outputs/$name"
  runs 1 bash -c 'ulimit -f 8; exec timeout 60 "$@"' bash "$octool" "$@"
  if [ "$(ls -A outputs)" = "$name" ] && grep -qx precious "outputs/$name"; then ok; else fail "$*: what was there is gone"; fi
  rm -f outputs/*
}
mkdir outputs
limited big.safetensors sample outputs/big.safetensors --params 3000000
limited trace.json run --seconds 0 --swap 4 --trace outputs/trace.json sound.safetensors
limited page.html inspect --html outputs/page.html sound.safetensors

# replaces NAME ARGUMENT...: what was there gives way to the whole of the new one, whose readers are the same.
replaces() {
  local name=$1
  shift
  echo old >"outputs/$name"
  chmod 640 "outputs/$name"
  runs 0 timeout 60 "$@"
  if [ "$(ls -A outputs)" = "$name" ] && ! grep -qx old "outputs/$name" && [ "$(stat -c %a "outputs/$name")" = 640 ]; then
    ok
  else
    fail "$*: left: $(ls -lA outputs)"
  fi
  rm -f outputs/*
}
replaces sample "$octool" sample outputs/sample --params 30000
replaces json "$octool" inspect --json outputs/json sound.safetensors
ln -s outputs/behind link
replaces behind "$octool" inspect --json link sound.safetensors
if [ -L link ]; then ok; else fail "a link was replaced"; fi

# Some file systems have no files without a name.
case ${CFLAGS-} in
*-fsanitize=*) echo "a sanitizer must be loaded first: a file system without O_TMPFILE was not tried" ;;
*)
  cat >named.c <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>
int open(const char *path, int flags, ...) {
  va_list ap;
  unsigned mode;
  va_start(ap, flags);
  mode = flags & O_CREAT ? va_arg(ap, unsigned) : 0;
  va_end(ap);
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
END
  # shellcheck disable=SC2086 # several words
  runs 0 ${CC:?} -fPIC -shared named.c -o named.so
  export LD_PRELOAD=$PWD/named.so
  limited big.safetensors sample outputs/big.safetensors --params 3000000
  replaces json "$octool" inspect --json outputs/json sound.safetensors
  runs 0 timeout 60 "$octool" sample outputs/new --params 30000
  if [ "$(ls -A outputs)" = new ]; then ok; else fail "left: $(ls -A outputs)"; fi
  unset LD_PRELOAD
  rm outputs/*
  ;;
esac

# An output that is also read would take the weights with it.
cp sound.safetensors copy
ln -s sound.safetensors alias
ln sound.safetensors second
for output in "inspect --json sound.safetensors" "inspect --html alias" "inspect --json second" \
  "run --seconds 0 --json sound.safetensors" "run --seconds 0 --trace alias" "run --seconds 0 --html second"; do
  # shellcheck disable=SC2086 # several words
  refuses "${output##* }: cannot be written: it is one of the files that are read" $output copy sound.safetensors
done
refuses "sound.tsv: cannot be written: it is one of the files that are read" inspect --json sound.tsv --shapes sound.tsv
if cmp -s copy sound.safetensors && [ -L alias ] && [ -s sound.tsv ]; then ok; else fail "a file that was read is another now"; fi

runs 1 timeout 60 "$octool" inspect --json folder sound.safetensors
says "folder: cannot be written: Is a directory"
if [ -w /dev/full ]; then
  for output in "sample /dev/full" "bench --quick guard --json /dev/full" "inspect --json /dev/full sound.safetensors" \
    "run --seconds 0 --swap 0 --json /dev/full sound.safetensors" \
    "run --seconds 0 --swap 0 --trace /dev/full sound.safetensors"; do
    # shellcheck disable=SC2086 # several words
    runs 1 timeout 60 "$octool" $output
    says "/dev/full: cannot be written: No space left on device"
  done
  if [ -c /dev/full ]; then ok; else fail "/dev/full is gone"; fi
  for output in "inspect sound.safetensors" "inspect --list sound.safetensors" "run --seconds 0 --swap 0 sound.safetensors" \
    "bench --quick guard" "top --demo --once" "--help" "--version"; do
    # shellcheck disable=SC2086 # several words
    timeout 60 "$octool" $output >/dev/full 2>err
    if [ $? -eq 1 ]; then ok; else fail "octool $output to a full disk: exit status not 1"; fi
    : >out
    says "standard output: cannot be written: No space left on device"
  done
fi
# An output that cannot be opened stops the work before it begins, and takes nothing with it.
echo precious >kept
chmod a-w kept
chmod a-w outputs
if denied kept -w; then
  for output in "inspect --json kept" "inspect --html kept" "run --seconds 0 --json kept" "run --seconds 0 --trace kept"; do
    # shellcheck disable=SC2086 # several words
    refuses "kept: cannot be written: Permission denied" $output sound.safetensors
  done
  refuses "kept: cannot be written: Permission denied" sample kept
  refuses "kept: cannot be written: Permission denied" bench --quick guard --json kept
  refuses "outputs/new: cannot be written: Permission denied" sample outputs/new
  refuses "outputs: no folder that can be written: Permission denied" bench --quick guard --svg outputs
fi
if grep -q precious kept; then ok; else fail "a file that was not ours was touched"; fi

finish
