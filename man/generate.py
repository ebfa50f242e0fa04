#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the man pages out of what has the words already: liboc/oc.h has the contracts, octool --help the options.

  generate.py [--date D] [--version V] section3 OC_H PAGE     one group of functions: oc_pool, ...
  generate.py ... overview OC_H OC_7_IN                       oc.7
  generate.py ... tool OCTOOL [COMMAND]                       octool.1, octool-COMMAND.1
  generate.py aliases OC_H                                    "oc_pool_free oc_pool" a line: whose page has it
  generate.py commands OCTOOL                                 octool's commands

Each writes to standard output.
"""
import argparse
import re
import subprocess
import sys
import textwrap

# A section of oc.h, the page that has it, and its NAME line. A page may have several.
PAGES = {
    "Handles": ("oc_status", "handles, statuses, errors in words, the log"),
    "Status": ("oc_status", ""),
    "Backends": ("oc_backend", "a device's driver: CUDA, the embedded device, or a table of your own"),
    "The embedded device: kernels and controls": ("oc_host", "kernels and controls of the embedded device"),
    "The model": ("oc_model", "a loaded checkpoint, its modules, holders, streams and resources"),
    "Guards and captures": ("oc_guard", "read-side sections, and stream captures"),
    "Teardown": ("oc_teardown", "the end of a model, and the report of it"),
    "The op cache": ("oc_opcache", "memoized kernel handles, scratch buffers, first-time gates"),
    "Derived weights": ("oc_derived", "values derived from weights, and their builds"),
    "Sight": ("oc_sight", "what models have done: figures, metrics, traces"),
    "The pool": ("oc_pool", "device memory out of arenas, and the ledger of it"),
}
LABEL = re.compile(r"(?<=[.;)\w])\s+(?=(?:Outcomes|Ownership(?: on [A-Z_]+)?|Threads|Guard|Capture|Guard, capture|Units): )")


def fail(words):
    sys.exit(f"generate.py: {words}")


# ---- the header ----

class Item:
    """One comment and the declarations that follow it."""

    def __init__(self, comment):
        self.comment, self.code = comment, []


def strip_comment(text):
    body = re.sub(r"^/\*|\*/$", "", text.strip())
    lines = [re.sub(r"^ \* ?|^ \*$", "", line) for line in body.split("\n")]
    return textwrap.dedent("\n".join(line.strip() if i == 0 else line for i, line in enumerate(lines))).strip()


def sections(path):
    """The header as [(heading, [Item])], and the comment at its head."""
    lines = open(path, encoding="utf-8").read().split("\n")
    head, found, items, i = "", [], None, 0
    while i < len(lines):
        line = lines[i]
        heading = re.match(r"/\* ---- (.*?) -+ \*/$", line)
        if heading:
            items = []
            found.append((heading.group(1), items))
        elif line.startswith("/*") and not line.startswith("/* SPDX"):
            text = line
            while "*/" not in lines[i]:
                i += 1
                text += "\n" + lines[i]
            if items is None:
                head = head or strip_comment(text)
            elif text.split("*/", 1)[1].strip():
                fail(f"{path}:{i + 1}: a comment that stands alone must end its line")
            else:
                items.append(Item(strip_comment(text)))
        elif items is not None and line.startswith(("#ifdef __cplusplus", "}", "#endif  /*")) and not items_open(items):
            i = skip_conditional(lines, i)
        elif items is not None and line.strip():
            if not items or (items[-1].code and not lines[i - 1].strip() and not items_open(items)):
                items.append(Item(""))   # nothing stands above it
            items[-1].code.append(line)
        i += 1
    return head, found


def items_open(items):
    """Inside braces: a line that begins with } belongs to a declaration."""
    text = "\n".join(items[-1].code) if items else ""
    return text.count("{") > text.count("}")


def skip_conditional(lines, i):
    """From #ifdef __cplusplus to its #endif: macros that no caller names."""
    if not lines[i].startswith("#if"):
        return i
    while not lines[i].startswith("#endif"):
        i += 1
    return i


def clean(code):
    text = "\n".join(code)
    text = re.sub(r"\bOC_API ", "", re.sub(r" OC_MUST_USE\b", "", text))
    return text


def names(code):
    """What an item declares: functions, macros, types."""
    text = re.sub(r"/\*.*?\*/", "", clean(code), flags=re.S)
    out = re.findall(r"^#define (\w+)\(", text, flags=re.M)
    bare = re.sub(r"^#define (?:.*\\\n)*.*$", "", text, flags=re.M)
    flat = re.sub(r"\{[^{}]*\}", "{}", bare)
    out += re.findall(r"^[^#\n(]*?\b(oc_[a-z0-9_]+)\s*\([^*]", flat, flags=re.M)
    out += re.findall(r"typedef [^;(]*?\(\*(\w+)\)\s*\(", flat)
    out += re.findall(r"typedef (?:struct|enum) \w+\s*\{\}\s*(\w+);", flat)
    out += re.findall(r"typedef [^;{}(]*?\*?\s*\b(oc_\w+);", flat)
    return list(dict.fromkeys(out))


def functions(items):
    """Prototypes and macros, for the synopsis."""
    for item in items:
        text = re.sub(r"/\*.*?\*/", "", clean(item.code), flags=re.S)
        for m in re.finditer(r"^(?!typedef|#|enum|struct| )[^;{}#]*?\boc_[a-z0-9_]+\s*\([^;{}]*\);", text, flags=re.M):
            yield re.sub(r"\s*\n\s*", " ", m.group(0)).strip()
        for m in re.finditer(r"^#define (oc_\w+\([^)]*\))", text, flags=re.M):
            yield m.group(1) + ";"


def wrapped(prototype):
    return "\n".join(textwrap.wrap(prototype, 74, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))


# ---- roff ----

def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("^", "\\(ha").replace("~", "\\(ti")
    return "\n".join("\\&" + line if line.startswith(".") else line for line in text.split("\n"))


def verbatim(text):
    return ".RS 4\n.nf\n" + escape(text) + "\n.fi\n.RE\n"


def fill(words):
    """One paragraph's lines, as roff wants them: a sentence a line does no harm, a leading dot does."""
    return escape(textwrap.fill(" ".join(words.split()), 100, break_long_words=False, break_on_hyphens=False)) + "\n"


def labelled(paragraph):
    for part in LABEL.split(paragraph):
        label = re.match(r"((?:Outcomes|Ownership[^:]*|Threads|Guard, capture|Guard|Capture|Units):) ", part)
        if label:
            yield f".TP\n.B {escape(label.group(1))}\n" + fill(part[label.end():])
        else:
            yield ".PP\n" + fill(part)


def prose(comment):
    """Paragraphs; lists by a dash; and what is indented by four stays as it is."""
    out = []
    for block in re.split(r"\n\s*\n", comment):
        lines = block.split("\n")
        bullets = [i for i, line in enumerate(lines) if re.match(r"\s*- ", line)]
        if bullets:
            if bullets[0]:
                out.extend(labelled(" ".join(lines[:bullets[0]])))
            for a, b in zip(bullets, bullets[1:] + [len(lines)]):
                out.append(".IP \\(bu 2\n" + fill(re.sub(r"^\s*- ", "", " ".join(lines[a:b]))))
        else:
            out.extend(labelled(" ".join(lines)))
    # The first paragraph follows a heading: nothing to part it from.
    return re.sub(r"\A\.PP\n", "", "".join(out))


def title(name, number, options):
    return (f'.\\" SPDX-License-Identifier: MIT\n.\\" Written by man/generate.py.\n'
            f'.TH {name} {number} "{options.date}" "liboc {options.version}" "liboc"\n')


def cross(pages):
    return ".SH SEE ALSO\n" + ",\n".join(f".BR {escape(name)} ({section})" for name, section in pages) + "\n"


# ---- pages ----

def pages_of(path):
    head, found = sections(path)
    for heading, _ in found:
        if heading not in PAGES:
            fail(f'{path}: the section "{heading}" has no page; name one in PAGES, and in man/Makefile.am')
    return head, found


def heading_of(item):
    n = names(item.code)
    return ", ".join(n) if n else ""


def section3(options):
    _, found = pages_of(options.header)
    mine = [(h, items) for h, items in found if PAGES[h][0] == options.page]
    if not mine:
        fail(f"no section of {options.header} is on the page {options.page}")
    items = [item for _, part in mine for item in part]
    out = title(options.page, 3, options)
    out += f".SH NAME\n{escape(options.page)} \\- {escape(PAGES[mine[0][0]][1])}\n"
    out += ".SH SYNOPSIS\n.nf\n.B #include <liboc/oc.h>\n.PP\n"
    out += "".join(f"{escape(wrapped(f))}\n" for f in functions(items)) + ".fi\n.PP\nLink with\n.I \\-loc\nas\n.B pkg\\-config liboc\nsays.\n"
    out += ".SH DESCRIPTION\nWhat every contract leaves unsaid is in\n.BR oc (7).\n"
    for item in items:
        heading, code = heading_of(item), clean(item.code)
        if heading:
            out += f'.SS "{escape(heading)}"\n'
        out += prose(item.comment) if item.comment else ""
        if re.search(r"^(typedef|enum|struct)|/\*", code, flags=re.M) or not item.comment:
            out += (".PP\n" if item.comment else "") + verbatim(code)
    out += ".SH RETURN VALUE\nOf functions that return\n.IR oc_status ,\nsee\n.BR oc_status (3).\n"
    others = sorted({p for p, _ in PAGES.values()} - {options.page})
    return out + cross([("oc", 7)] + [(p, 3) for p in others])


def overview(options):
    head, _ = pages_of(options.header)
    rules = head.split("What goes without saying:", 1)
    if len(rules) != 2:
        fail(f"{options.header}: its head does not say what goes without saying")
    text = open(options.template, encoding="utf-8").read()
    text = text.replace("@TITLE@\n", title("oc", 7, options))
    text = text.replace("@GOES_WITHOUT_SAYING@\n", prose("- " + rules[1].strip().removeprefix("- ")))
    text = text.replace("@PAGES@\n", "".join(f".TP\n.BR {escape(p)} (3)\n{escape(w)}\n" for p, w in PAGES.values() if w))
    return text


def run(*command):
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as e:
        fail(f"{' '.join(command)}: {e}")


def commands(octool):
    """(command, what it does) out of octool --help."""
    found = re.findall(r"^  ([a-z]+) {2,}(\S.*)$", run(octool, "--help"), flags=re.M)
    return found or fail(f"{octool} --help lists no command")


def options_and_prose(text):
    out, tagged = "", False
    for block in re.split(r"\n\s*\n", text):
        rows = re.split(r"\n(?=  \S)", "\n" + block)[1:] if block.startswith("  ") else []
        for row in rows:
            parts = re.match(r"\s*(\S.*?)(?: {2,}(\S.*))?\Z", " ".join(row.split("\n")[0:1]) + "".join(
                " " + more.strip() for more in row.split("\n")[1:]), flags=re.S)
            out += f".TP\n.B {escape(parts.group(1))}\n{fill(parts.group(2) or '')}"
        if not rows and block.strip():
            out += (".PP\n" if out else "") + fill(block)
    return out


def tool(options):
    name = "octool" + (f"-{options.command}" if options.command else "")
    words = [options.octool] + ([options.command] if options.command else []) + ["--help"]
    text = run(*words)
    usage, _, body = text.partition("\n\n")
    listed = commands(options.octool)
    what = dict(listed).get(options.command, "load, derive, serve and swap models with liboc")
    out = title(name, 1, options) + f".SH NAME\n{escape(name)} \\- {escape(what)}\n"
    usage = re.sub(r"^usage: ", "", usage)
    out += ".SH SYNOPSIS\n.nf\n" + "".join(f".B {escape(u.strip())}\n" for u in usage.split("\n")) + ".fi\n"
    out += ".SH DESCRIPTION\n" + options_and_prose(body.rstrip())
    if options.command:
        return out + cross([("octool", 1), ("oc", 7)])
    return out + cross([(f"octool-{c}", 1) for c, _ in listed] + [("oc", 7)])


def aliases(options):
    _, found = pages_of(options.header)
    for heading, items in found:
        page = PAGES[heading][0]
        for item in items:
            for f in functions([item]):
                name = re.match(r"(?:.*?[\s*])?(oc_\w+)\s*\(", f).group(1)
                if name != page:
                    print(name, page)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--date", default="")
    p.add_argument("--version", default="")
    sub = p.add_subparsers(dest="what", required=True)
    for name, *arguments in (("section3", "header", "page"), ("overview", "header", "template"), ("aliases", "header"),
                             ("commands", "octool")):
        s = sub.add_parser(name)
        for a in arguments:
            s.add_argument(a)
    s = sub.add_parser("tool")
    s.add_argument("octool")
    s.add_argument("command", nargs="?")
    o = p.parse_args()
    if o.what == "aliases":
        aliases(o)
    elif o.what == "commands":
        print("\n".join(c for c, _ in commands(o.octool)))
    else:
        sys.stdout.write({"section3": section3, "overview": overview, "tool": tool}[o.what](o))


if __name__ == "__main__":
    main()
