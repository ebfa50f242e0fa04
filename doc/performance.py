#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the table of doc/performance.md from documents of `octool bench --json`, one a run.

usage: doc/performance.py RUN.json [RUN.json ...]

A row has the medians of the runs, each run's ratio, and how many of its rounds shared their core. Exits 1 where a budget was missed in any of them.
"""

import json
import pathlib
import statistics
import sys

PAGE = pathlib.Path(__file__).with_name("performance.md")
MARKS = "<!-- table -->\n", "<!-- end -->\n"


def number(x):
    """Three digits, and commas where there are more."""
    if x >= 1000:
        return f"{x:,.0f}"
    return f"{x:.3g}"


def row(name, runs):
    """One line of the table: the same row of every run."""
    rows = [next(r for r in run["rows"] if r["name"] == name) for run in runs]
    first = rows[0]
    value = statistics.median(r["value"] for r in rows)
    baseline = "" if first["baseline"] is None else number(statistics.median(r["baseline"] for r in rows))
    ratios = ", ".join(f"{r['ratio']:.4g}" for r in rows)
    met = sum(r["met"] for r in rows)
    shared = ", ".join(str(r["rounds_on_a_shared_core"]) for r in rows)
    return (f"| {name} | {number(value)} {first['unit']} | {baseline} | {ratios} | {first['sense']} {first['budget']:g} "
            f"| {met} of {len(rows)} | {shared} | {first['against']} |"), met == len(rows)


def table(runs):
    lines = [f"{len(runs)} runs on: {runs[0]['machine']}", "",
             "| what | figure | baseline | ratio, each run | budget | met | rounds on a shared core | against |",
             "|---|---|---|---|---|---|---|---|"]
    met = True
    for r in runs[0]["rows"]:
        line, row_met = row(r["name"], runs)
        lines.append(line)
        met = met and row_met
    return "\n".join(lines) + "\n", met


def main(paths):
    if not paths:
        sys.exit(__doc__)
    runs = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            runs.append(json.load(f))
        if runs[-1]["quick"]:
            sys.exit(f"{path}: a quick run; its figures mean nothing")
    text, met = table(runs)
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(before + MARKS[0] + text + MARKS[1] + after, encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
