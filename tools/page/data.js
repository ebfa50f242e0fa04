// SPDX-License-Identifier: MIT
// The page's data, decoded: see tools/blocknames.h and tools/blockmap.h for what is packed and how.

const UNIT = 256;

function unpack(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  let at = 0;
  return {
    varint() {                       // up to 2^53, so no shifts
      let n = 0, scale = 1, byte;
      do {
        byte = bytes[at++];
        n += (byte & 127) * scale;
        scale *= 128;
      } while (byte > 127);
      return n;
    },
    done: () => at === bytes.length,
  };
}

const unzigzag = (n) => (n % 2 ? -(n + 1) / 2 : n / 2);

// Names stay packed until one is asked for.
function makeNames(json) {
  const none = { count: 0, bytes: [], pattern: [], text: () => "" };
  if (!json) return none;
  const from = unpack(json.data), parts = json.patterns.map((p) => p.split("\u0001"));
  const pattern = new Uint32Array(json.count), first = new Uint32Array(json.count + 1);
  const bytes = new Float64Array(json.count);
  const numbers = [];
  for (let i = 0; i < json.count; i++) {
    pattern[i] = from.varint();
    first[i] = numbers.length;
    for (let k = parts[pattern[i]].length - 1; k > 0; k--) numbers.push(from.varint());
    bytes[i] = from.varint();
  }
  first[json.count] = numbers.length;
  if (!from.done()) throw new Error("the names do not end where they should");
  const text = (i) => {
    const p = parts[pattern[i]];
    let s = p[0];
    for (let k = 1; k < p.length; k++) s += numbers[first[i] + k - 1] + p[k];
    return s;
  };
  return { count: json.count, bytes, pattern, text };
}

// A map's blocks as columns: start (in its arena), bytes, asked for, kind, name (-1: none); each arena has [from, to).
function makeBlocks(json, names) {
  const n = json.count, from = unpack(json.data);
  const b = { count: n, start: new Float64Array(n), bytes: new Float64Array(n), asked: new Float64Array(n),
    kind: new Uint32Array(n), name: new Int32Array(n).fill(-1), arena: new Uint32Array(n) };
  const lastKind = [];
  let last = -1, backward = false, arena = 0, at = 0;
  const named = (i, name, expected) => {
    b.name[i] = name;
    lastKind[names.pattern[name]] = b.kind[i];
    if (name !== expected) backward = name === last - 1;
    last = name;
  };
  for (let i = 0; i < n; i++) {
    const head = from.varint(), expected = backward ? last - 1 : last + 1;
    let bytes, asked;
    if (head === 0) {
      asked = names.bytes[expected];
      bytes = Math.ceil(asked / UNIT) * UNIT;
      b.kind[i] = lastKind[names.pattern[expected]];
      named(i, expected, expected);
    } else {
      const kind = json.kinds[b.kind[i] = head - 1];
      bytes = from.varint() * UNIT;
      asked = kind.state === "free" ? 0 : bytes - from.varint();
      if (kind.named) named(i, expected + unzigzag(from.varint()), expected);
    }
    if (at === 0) json.arenas[arena].from = i;
    b.start[i] = at;
    b.bytes[i] = bytes;
    b.asked[i] = asked;
    b.arena[i] = arena;
    at += bytes;
    if (at === json.arenas[arena].bytes) {
      json.arenas[arena++].to = i + 1;
      at = 0;
    }
  }
  if (!from.done() || at !== 0 || arena !== json.arenas.length) throw new Error("the blocks do not tile the arenas");
  return b;
}

// External ranges are one more strip, one behind the other: they lie anywhere.
function addExternal(json, b) {
  const more = json.external.length;
  if (!more) return b;
  const grow = (old, Type) => { const a = new Type(b.count + more); a.set(old); return a; };
  const out = { count: b.count + more, start: grow(b.start, Float64Array), bytes: grow(b.bytes, Float64Array),
    asked: grow(b.asked, Float64Array), kind: grow(b.kind, Uint32Array), name: grow(b.name, Int32Array),
    arena: grow(b.arena, Uint32Array) };
  let at = 0;
  json.external.forEach((e, k) => {
    const i = b.count + k;
    out.start[i] = at;
    out.bytes[i] = out.asked[i] = e.bytes;
    out.kind[i] = e.kind;
    out.name[i] = -1;
    out.arena[i] = json.arenas.length;
    at += e.bytes;
  });
  json.arenas.push({ external: true, bytes: at, used: at, from: b.count, to: out.count });
  return out;
}

// ---- Owners ----

function ownerText(kind) {
  if (kind.state === "free") return "free";
  if (kind.state === "lost") return "lost: the driver did not take it back";
  const name = kind.owner || "(no owner)";
  if (kind.role === "external") return name + " [external]";
  if (kind.role === "build") return name + " (being built)";
  return name;
}

// Owners by bytes; group 0 is free space, 1 what is retired, 2 what is lost; then owners, the last few as one.
const FREE = 0, RETIRED = 1, LOST = 2, OWNERS = 3, COLOURS = 7;

function makeOwners(json, b) {
  const rows = new Map();
  for (let i = 0; i < b.count; i++) {
    const kind = json.kinds[b.kind[i]], retired = kind.state === "retired";
    const key = ownerText(kind);
    let row = rows.get(key);
    if (!row) rows.set(key, row = { name: key, role: kind.role, state: kind.state, blocks: 0, bytes: 0, retired: 0 });
    row.blocks++;
    if (retired) row.retired += b.bytes[i];
    else row.bytes += b.bytes[i];
  }
  const all = [...rows.values()], special = (s) => all.filter((r) => r.state === s);
  const owners = all.filter((r) => r.state !== "free" && r.state !== "lost")
    .sort((x, y) => y.bytes + y.retired - x.bytes - x.retired || (x.name < y.name ? -1 : 1));
  const alone = owners.length <= COLOURS ? owners.length : COLOURS - 1;
  owners.forEach((r, i) => { r.group = OWNERS + Math.min(i, alone); });
  special("free").forEach((r) => { r.group = FREE; });
  special("lost").forEach((r) => { r.group = LOST; });
  const groups = [{ name: "free", bytes: 0 }, { name: "retired", bytes: 0 }, { name: "lost", bytes: 0 }];
  owners.slice(0, alone).forEach((r) => groups.push({ name: r.name, bytes: 0 }));
  if (alone < owners.length) groups.push({ name: `${owners.length - alone} other owners`, bytes: 0, rest: true });
  const groupOf = json.kinds.map((k) => (k.state === "retired" ? RETIRED : rows.get(ownerText(k)).group));
  for (let i = 0; i < b.count; i++) groups[groupOf[b.kind[i]]].bytes += b.bytes[i];
  return { owners, groups, groupOf };
}

// ---- Numbers in words ----

function bytesText(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (n >= 1024 && u < units.length - 1) {
    n /= 1024;
    u++;
  }
  const digits = n < 9.995 ? 2 : n < 99.95 ? 1 : 0;
  return (u === 0 ? String(n) : n.toFixed(digits)) + "\u00a0" + units[u];
}

const countText = (n) => Math.round(n).toLocaleString("en-US").replace(/,/g, "\u202f");
function percentText(part, whole) {
  const percent = whole ? 100 * part / whole : 0;
  return percent.toFixed(percent > 0 && percent < 0.1 ? 3 : 1) + "\u00a0%";
}

function nsText(ns) {
  if (ns < 1000) return `${+ns.toPrecision(3)}\u00a0ns`;
  if (ns < 1e6) return `${+(ns / 1e3).toPrecision(3)}\u00a0µs`;
  if (ns < 1e9) return `${+(ns / 1e6).toPrecision(3)}\u00a0ms`;
  return `${+(ns / 1e9).toPrecision(3)}\u00a0s`;
}
