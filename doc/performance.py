#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the tables of doc/performance.md from documents of `octool bench --json`, one a run.

usage: doc/performance.py RUN.json [RUN.json ...]

First the budgets: a row has the medians of the runs, each run's ratio, and how many of its rounds shared their core ("-": it
was not asked). Then all contestants of the last run, median and quartiles. Exits 1 where a budget was missed in any of them.
"""

import json
import pathlib
import statistics
import sys

PAGE = pathlib.Path(__file__).with_name("performance.md")
END = "<!-- end -->\n"


def number(x):
    """Three digits, and commas where there are more."""
    if x >= 1000:
        return f"{x:,.0f}"
    return f"{x:.3g}"


def each(values):
    """One a run; once where it is the same in all."""
    words = ["-" if v is None else str(v) for v in values]
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def row(name, runs):
    """One line of the table: the same row of every run. And whether each run that judged it met its budget."""
    rows = [next(r for r in run["rows"] if r["name"] == name) for run in runs]
    first = rows[0]
    value = statistics.median(r["value"] for r in rows)
    baseline = "-" if first["baseline"] is None else number(statistics.median(r["baseline"] for r in rows))
    ratios = ", ".join(f"{r['ratio']:.4g}" for r in rows)
    budget = "-" if first["budget"] is None else f"{first['sense']} {first['budget']:g}"
    judged = [r["met"] for r in rows if r["met"] is not None]
    met = f"{sum(judged)} of {len(judged)}" if judged else "-"
    return (f"| {name} | {number(value)} {first['unit']} | {baseline} | {ratios} | {budget} | {met} "
            f"| {each(r['rounds'] for r in rows)} | {each(r['rounds_on_a_shared_core'] for r in rows)} "
            f"| {first['against']} |"), all(judged)


def budgets(runs):
    lines = [f"{len(runs)} runs on: {runs[0]['machine']}", "",
             "| what | figure | baseline | ratio, each run | budget | met | rounds | on a shared core | against |",
             "|---|---|---|---|---|---|---|---|---|"]
    met = True
    for r in runs[0]["rows"]:
        line, row_met = row(r["name"], runs)
        lines.append(line)
        met = met and row_met
    return "\n".join(lines) + "\n", met


# ---- all contestants ----

COLUMNS = ["liboc", "baseline", "light lock", "cds_lfht", "ck_ht", "floor"]


def column(nth, name):
    """Of a row's nth contestant. Which of the two locks is the row's baseline, the table of budgets says."""
    if nth == 0:
        return "liboc"
    if name.startswith("light "):
        return "light lock"
    return name if name in COLUMNS else "baseline"


def contestants(run):
    """A line a row; those that set two of these lines against each other have no line of their own."""
    lines = [f"| what | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for r in run["rows"]:
        if not r["contestants"] or r["name"].endswith(" against 1"):
            continue
        cells = dict.fromkeys(COLUMNS, "-")
        for i, c in enumerate(r["contestants"]):
            spread = f"{number(c['lower_quartile'])} to {number(c['upper_quartile'])}"
            cells[column(i, c["name"])] = f"{number(c['median'])} ({spread})"
        lines.append(f"| {r['name']}, {r['unit']} | {' | '.join(cells.values())} |")
    return "\n".join(lines) + "\n"


def put(page, mark, text):
    """Between `<!-- mark -->` and the next end."""
    start = f"<!-- {mark} -->\n"
    before, rest = page.split(start)
    return before + start + text + END + rest.split(END, 1)[1]


def main(paths):
    if not paths:
        sys.exit(__doc__)
    runs = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            runs.append(json.load(f))
        if runs[-1]["quick"]:
            sys.exit(f"{path}: a quick run; its figures mean nothing")
    text, met = budgets(runs)
    page = put(PAGE.read_text(encoding="utf-8"), "table", text)
    PAGE.write_text(put(page, "contestants", contestants(runs[-1])), encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
