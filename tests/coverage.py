#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Line and branch coverage of rcu/, allocator/ and liboc/, against the arguments in tests/coverage.txt.

  coverage.py SOURCES BUILD [--list]

BUILD is a folder with gcov's counts, as tests/coverage.sh leaves it. Each line that did not run, and each branch that was
not taken, must have its argument; and each argument must have such a line. Both are told by file, function and the text of
the line, not by its number; but what is below a reason that begins with "A race" may have run or not. --list prints what
has no argument, as coverage.txt would have it.
"""
import collections
import json
import os
import re
import subprocess
import sys

FOLDERS = ("rcu", "allocator", "liboc")


class Line:
    def __init__(self):
        self.count, self.branches, self.function = 0, [], ""

    def add(self, count, branches, function):
        """The same line in another object: a header's, or a source that two libraries have."""
        self.count += count
        self.function = self.function or function
        if len(branches) != len(self.branches):
            # Compiled in more than one way: the one with more branches is the whole.
            if len(branches) > len(self.branches):
                self.branches = branches
            return
        self.branches = [a + b for a, b in zip(self.branches, branches)]


def counts_of(notes):
    """What gcov says of one object."""
    out = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities", notes], check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    for text in out.splitlines():
        if text.startswith(b"{"):
            yield json.loads(text)


def ours(root, cwd, name):
    path = os.path.relpath(os.path.realpath(os.path.join(cwd, name)), root)
    return path if path.split(os.sep)[0] in FOLDERS and path.count(os.sep) == 1 else None


def read_counts(root, build):
    """{(file, line number): Line}"""
    lines = collections.defaultdict(Line)
    for folder in FOLDERS:
        for where, _, names in os.walk(os.path.join(build, folder)):
            for name in sorted(names):
                if not name.endswith(".gcno"):
                    continue
                for unit in counts_of(os.path.join(where, name)):
                    for part in unit["files"]:
                        path = ours(root, unit["current_working_directory"], part["file"])
                        if path is None:
                            continue
                        for one in part["lines"]:
                            lines[path, one["line_number"]].add(one["count"], [b["count"] for b in one["branches"]],
                                                                one.get("function_name", ""))
    return lines


def uncovered(root, lines):
    """[(file, function, text, what)]: a line that did not run, or one of whose branches some were not taken."""
    text = {}
    found = []
    for (path, number), line in sorted(lines.items()):
        if path not in text:
            with open(os.path.join(root, path), encoding="utf-8") as f:
                text[path] = f.read().split("\n")
        missed = sum(1 for b in line.branches if b == 0)
        if line.count == 0 or missed:
            found.append((path, line.function, text[path][number - 1].strip(), number,
                          "did not run" if line.count == 0 else "%d of %d branches" % (missed, len(line.branches))))
    return found


class Argument:
    """One line of coverage.txt below its reason: `FILE: FUNCTION: TEXT`; or `any: REGULAR EXPRESSION` for a kind of line."""

    def __init__(self, text, number, reason):
        self.text, self.number, self.used = text, number, 0
        self.sometimes = reason.startswith("A race")
        self.path, _, rest = text.partition(": ")
        self.kind = re.compile(rest) if self.path == "any" else None
        self.function, _, self.line = rest.partition(": ")

    def covers(self, path, function, line):
        if self.kind:
            return self.kind.search(line) is not None
        if (self.path, self.function) != (path, function):
            return False
        # One line: another of the same text has a reason of its own.
        return self.line == "*" or (self.line == line and not self.used)

    def is_there(self, root):
        """Whether its file still has such a line."""
        if self.kind:
            return True
        with open(os.path.join(root, self.path), encoding="utf-8") as f:
            return any((self.function if self.line == "*" else self.line) in line for line in f)


def read_arguments(path):
    arguments, reason = [], None
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if line.startswith("#") or not line.strip():
                continue
            if not line.startswith(" "):
                reason = line.strip()
                continue
            if reason is None:
                sys.exit("coverage: %s:%d: an argument before its reason" % (path, number))
            arguments.append(Argument(line.strip(), number, reason))
    return arguments


def share(part, whole):
    return "%.1f %%" % (100.0 * part / whole) if whole else "none"


def table(lines, found, argued):
    for folder in FOLDERS:
        mine = [v for (path, _), v in lines.items() if path.startswith(folder + "/")]
        branches = [b for v in mine for b in v.branches]
        ran, taken = sum(1 for v in mine if v.count), sum(1 for b in branches if b)
        open_lines = sum(1 for f in found if f[0].startswith(folder + "/") and f not in argued)
        print("figure: coverage of %s/ | %s of %d lines, %s of %d branches; %d lines without a test or an argument" % (
            folder, share(ran, len(mine)), len(mine), share(taken, len(branches)), len(branches), open_lines))


def main():
    root, build = os.path.realpath(sys.argv[1]), sys.argv[2]
    arguments_path = os.path.join(root, "tests", "coverage.txt")
    lines = read_counts(root, build)
    if not lines:
        sys.exit("coverage: no counts in %s" % build)
    found = uncovered(root, lines)
    arguments = read_arguments(arguments_path)
    argued = set()
    for f in found:
        for a in arguments:
            if f not in argued and a.covers(*f[:3]):
                a.used += 1
                argued.add(f)
    bare = [f for f in found if f not in argued]
    for path, function, line, number, what in bare:
        if "--list" in sys.argv:
            print("  %s: %s: %s" % (path, function, line))
        else:
            print("%s:%d: %s: %s: %s" % (path, number, function, what, line))
    idle = [a for a in arguments if not a.used and not (a.sometimes and a.is_there(root))]
    for a in idle:
        print("%s:%d: nothing is uncovered there any more, or the line has changed: %s" % (arguments_path, a.number, a.text))
    table(lines, found, argued)
    sys.exit(1 if bare or idle else 0)


main()
