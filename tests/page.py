# SPDX-License-Identifier: MIT
"""The data of a page of octool, read as tools/blocknames.h and tools/blockmap.h say it is packed.

tests/page.py PAGE [FIGURES.json]   checks that it asks no network, that its data is whole, and that its sums are the
                                    figures' that octool --json wrote in the same run; a line a failure
"""
import base64
import json
import re
import sys


def data_of(path):
    with open(path, encoding="utf-8", errors="strict") as f:     # valid UTF-8, whatever names hold
        text = f.read()
    begin = text.index('<script type="application/json" id="data">') + len('<script type="application/json" id="data">')
    end = text.index("</script>", begin)
    return text, text[begin:end]


def varints(packed):
    n, shift = 0, 0
    for byte in base64.b64decode(packed, validate=True):
        n |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield n
            n, shift = 0, 0
    assert shift == 0, "packed data ends inside a number"


def names_of(d):
    """[(name, bytes, pattern)]"""
    if not d["names"]:
        return []
    stream, out = varints(d["names"]["data"]), []
    for _ in range(d["names"]["count"]):
        index = next(stream)
        parts = d["names"]["patterns"][index].split("\1")
        name = parts[0] + "".join(str(next(stream)) + p for p in parts[1:])
        out.append((name, next(stream), index))
    assert next(stream, None) is None, "names are left over"
    return out


def blocks_of(m, names):
    """[(arena, offset, bytes, asked, kind, name or None)], arenas tiled without a gap."""
    stream, out, last_kind = varints(m["data"]), [], {}
    last, backward, arena, at = -1, False, 0, 0
    for _ in range(m["count"]):
        expected, head, name = (last - 1 if backward else last + 1), next(stream), None
        if head == 0:
            name, kind = expected, last_kind[names[expected][2]]
            asked = names[name][1]
            size = (asked + 255) // 256 * 256
        else:
            kind, size = head - 1, next(stream) * 256
            asked = 0 if m["kinds"][kind]["state"] == "free" else size - next(stream)
            if m["kinds"][kind]["named"]:
                z = next(stream)
                name = expected + (z >> 1 ^ -(z & 1))
        if name is not None:
            last_kind[names[name][2]] = kind
            if name != expected:
                backward = name == last - 1
            last = name
        out.append((arena, at, size, asked, m["kinds"][kind], None if name is None else names[name][0]))
        at += size
        assert at <= m["arenas"][arena]["bytes"], "a block reaches past its arena"
        if at == m["arenas"][arena]["bytes"]:
            arena, at = arena + 1, 0
    assert next(stream, None) is None, "blocks are left over"
    assert at == 0 and arena == len(m["arenas"]), "blocks do not tile the arenas"
    return out


def sums(m, blocks):
    of = {"free": 0, "live": 0, "retired": 0, "lost": 0}
    for b in blocks:
        of[b[4]["state"]] += b[2]
    return {"arenas": len(m["arenas"]), "arena_bytes": sum(a["bytes"] for a in m["arenas"]),
            "used": sum(a["used"] for a in m["arenas"]), "live_bytes": of["live"], "free_bytes": of["free"],
            "retired_bytes": of["retired"] + of["lost"], "live_blocks": sum(b[4]["state"] == "live" for b in blocks),
            "largest_free": max([b[2] for b in blocks if b[4]["state"] == "free"], default=0)}


def check(path, figures=None):
    wrong = []

    def want(condition, words):
        if not condition:
            wrong.append(words)

    text, raw = data_of(path)
    want(not re.search(r"https?:|//[a-z0-9-]+\.[a-z]|src=|@import|url\(|<link rel=\"style", text.replace(raw, "")), "the page asks the network")
    want("<" not in raw, "the data has a '<'")
    want(text.count("<script") == 2 and text.count("</script>") == 2, "a script element too many or too few")
    want("default-src 'none'" in text, "no content policy")
    d = json.loads(raw)
    names = names_of(d)
    for m in d["maps"]:
        s = sums(m, blocks_of(m, names))
        for key, n in m["figures"].items():
            if key in s:
                want(s[key] == n, f"{m['title']}: {key}: {s[key]} by its blocks, {n} by its figures")
        want(s["used"] == s["live_bytes"] + s["retired_bytes"], f"{m['title']}: in use: {s}")
        want(s["live_bytes"] + s["retired_bytes"] + s["free_bytes"] == s["arena_bytes"], f"{m['title']}: {s}")
    if figures is not None:
        want(d["figures"] == figures, "the figures are not those of --json")
    if d["command"] == "run":
        want(sum(b[2] for b in d["latencies"]) == d["figures"]["lookups"], "the histogram's sum is not the lookups")
        rows = d["samples"]["rows"]
        want(all(a[0] <= b[0] for a, b in zip(rows, rows[1:])), "time goes backwards")
        want(len(rows) <= 2000, "more samples than there may be")
        if d["figures"]["teardown_status"] == "OC_OK" and not d["figures"]["failure"]:
            want(rows[-1][1:] == [0, 0, 0, 0], f"at the end there is {rows[-1]}")
            want(max(r[1] for r in rows) >= d["figures"]["arena_bytes"], "the arenas were never seen")
    else:
        for m, key in zip(d["maps"], ("reserved", "on_demand")):
            for k in ("arenas", "arena_bytes", "live_blocks", "live_bytes"):
                want(m["figures"][k] == d["figures"][key][k], f"{key}: {k}")
    return d, names, wrong


if __name__ == "__main__":
    with open(sys.argv[2], encoding="utf-8") if len(sys.argv) > 2 else open("/dev/null", encoding="utf-8") as f:
        wanted = json.load(f) if len(sys.argv) > 2 else None
    _, _, failures = check(sys.argv[1], wanted)
    print("\n".join(failures) if failures else "whole")
    sys.exit(bool(failures))
