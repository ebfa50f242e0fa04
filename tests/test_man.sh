#!/bin/bash
# SPDX-License-Identifier: MIT
# The man pages: every exported function has one, every command of octool has one, what they say is what oc.h and --help
# say now, and man and mandoc find nothing to warn of.
set -eu
# shellcheck source=tests/installed.sh
. "$(dirname "$0")/installed.sh"
cd "$work"
generate=$top_srcdir/man/generate.py
octool=$top_builddir/tools/octool

must "make install in man" make -C "$top_builddir/man" install DESTDIR="$work/root"
man=$(dirname "$(find root -path '*/man7/oc.7')")/..

# ---- every name has a page ----

sed -n 's/^ *\(oc_[a-z0-9_]*\);.*/\1/p' "$top_srcdir/liboc/liboc.map" >exports
while read -r name; do
  if [ ! -f "$man/man3/$name.3" ]; then
    fail "man 3 $name: no page"
  elif ! grep -q "^.*\b$name(" "$man/man3/$name.3"; then
    fail "man 3 $name is a page that does not show it"
  fi
done <exports
[ -s exports ] || fail "liboc.map lists nothing"

"$generate" commands "$octool" >commands
[ -s commands ] || fail "octool lists no command"
while read -r command; do
  [ -f "$man/man1/octool-$command.1" ] || fail "octool $command has no page: name it in man/Makefile.am"
done <commands

# ---- they say what the sources say ----

plain() {
  man --warnings -E ascii -l "$1" 2>>warnings | col -b | tr -d '-' | tr -cs 'A-Za-z0-9_.,' ' '
}

same_words() {
  local page=$1 words=$2
  plain "$page" >page.txt
  grep -qF -- "$(tr -d '-' <<<"$words" | tr -cs 'A-Za-z0-9_.,' ' ' | sed 's/^ //; s/ $//')" page.txt ||
    fail "$page does not say: $words"
}
: >warnings
same_words "$man/man3/oc_pool_free.3" "Gives a block back; reusable at once"
same_words "$man/man3/oc_model_teardown.3" "One failure does not abandon the rest."
same_words "$man/man3/oc_derived_begin_at.3" "allocate and launch between the lookup and the store."
same_words "$man/man7/oc.7" "An output is written on OC_OK only, unless said otherwise."
same_words "$man/man1/octool-sample.1" "transformer layers; default 2"
# A contract that changes changes its page; a section that no page has is refused.
sed 's/Gives a block back; reusable at once/Gives a block back at noon/' "$top_srcdir/liboc/oc.h" >changed.h
"$generate" section3 changed.h oc_pool | grep -q 'back at noon' || fail "a changed contract does not reach its page"
sed 's/---- The pool ---/---- The lake ---/' "$top_srcdir/liboc/oc.h" >changed.h
if "$generate" section3 changed.h oc_model >out 2>&1 || ! grep -q '"The lake" has no page' out; then
  fail "a section without a page is not refused"
fi
# All that the header says of functions is on some page.
python3 - "$generate" "$top_srcdir/liboc/oc.h" "$man" <<'END' || fail "words of oc.h are on no page"
import glob, importlib.util, re, sys
spec = importlib.util.spec_from_file_location("generate", sys.argv[1])
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)
squeeze = lambda text: re.sub(r"\W+", "", text)
pages = squeeze("".join(re.sub(r"^\.\S+ ?", "", re.sub(r"\\(?:\(..|[&e])|\\(?=-)", "", open(p).read()), flags=re.M)
                        for p in glob.glob(sys.argv[3] + "/man3/*.3")))
lost = 0
for heading, items in generate.sections(sys.argv[2])[1]:
    for item in items:
        for sentence in re.split(r"(?<=[.:;])\s+|\n\s*- ", item.comment):
            # quotes and the like are written in other ways
            if not re.search(r"['`^~\\]", sentence) and squeeze(sentence) not in pages:
                print(f"{heading}: {sentence}")
                lost += 1
sys.exit(lost != 0)
END

# ---- lint ----

for page in "$man"/man1/*.1 "$man"/man3/*.3 "$man"/man7/*.7; do
  [ ! -L "$page" ] || continue
  man --warnings -E UTF-8 -l -Tutf8 -Z "$page" >/dev/null 2>>warnings || fail "man $page"
done
if [ -s warnings ]; then
  fail "man --warnings:"
  sort warnings | uniq -c
fi
if command -v mandoc >/dev/null; then
  # STYLE: hints on taste, most of them about prototypes' long lines.
  find "$man" -type f -name '*.[137]' -exec mandoc -T lint -W warning {} + >lint || true
  if [ -s lint ]; then
    fail "mandoc -T lint:"
    head -n 40 lint
  fi
else
  skipped "mandoc -T lint: it is not there"
fi

exit "$failed"
