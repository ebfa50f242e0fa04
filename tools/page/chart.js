// SPDX-License-Identifier: MIT
// Charts of lines and of bars, in SVG, read by pointer or by arrow keys.

const MARGIN = { left: 78, right: 16, top: 50, bottom: 40 };

function svg(name, attributes, text) {
  const e = document.createElementNS(document.getElementById("svg-of").namespaceURI, name);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  if (text !== undefined) e.textContent = text;
  return e;
}

// 1, 2, 5 times a power of ten; for bytes 1, 2, 4, 8, ... of a unit.
function niceStep(most, count, bytes) {
  const rough = most / count || 1;
  if (bytes) return Math.pow(2, Math.max(0, Math.ceil(Math.log2(rough))));
  const ten = Math.pow(10, Math.floor(Math.log10(rough)));
  return [1, 2, 5, 10].map((m) => m * ten).find((s) => s >= rough);
}

function frame(host, height, label) {
  const width = Math.max(320, host.clientWidth - 18);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": label });
  return { root, width, height, x0: MARGIN.left, x1: width - MARGIN.right, y0: height - MARGIN.bottom, y1: MARGIN.top };
}

function axisX(f, ticks, at, text, label) {
  f.root.append(svg("line", { class: "axis", x1: f.x0, x2: f.x1, y1: f.y0, y2: f.y0 }));
  for (const t of ticks) {
    f.root.append(svg("line", { class: "axis", x1: at(t), x2: at(t), y1: f.y0, y2: f.y0 + 4 }));
    f.root.append(svg("text", { x: at(t), y: f.y0 + 17, "text-anchor": "middle" }, text(t)));
  }
  f.root.append(svg("text", { class: "soft", x: (f.x0 + f.x1) / 2, y: f.height - 6, "text-anchor": "middle" }, label));
}

function axisY(f, ticks, at, text, label) {
  for (const t of ticks) {
    f.root.append(svg("line", { class: "grid", x1: f.x0, x2: f.x1, y1: at(t), y2: at(t) }));
    f.root.append(svg("text", { x: f.x0 - 8, y: at(t) + 4, "text-anchor": "end" }, text(t)));
  }
  f.root.append(svg("text", { class: "soft", x: 4, y: 14 }, label));
}

// Marks above the chart, each a line with words, in two rows; those that would overlap go without words.
function marks(f, list) {
  const free = [f.x0 - 12, f.x0 + 130];
  for (const m of list) {
    const width = m.text.length * 6.5, left = Math.min(Math.max(m.x - width / 2, f.x0), f.x1 - width);
    const row = free.findIndex((end) => left >= end + 10);
    f.root.append(svg("line", { class: "mark", x1: m.x, x2: m.x, y1: row === 1 ? f.y1 - 22 : f.y1 - 6, y2: f.y0 }));
    if (row < 0) continue;
    f.root.append(svg("text", { class: "soft", x: left, y: f.y1 - (row === 1 ? 26 : 10) }, m.text));
    free[row] = left + width;
  }
}

// One point at a time under the pointer, or by arrow keys: xs are where points are, tell says what the i-th is.
function reader(f, xs, readout, tell, start) {
  const cursor = svg("line", { class: "cursor", x1: 0, x2: 0, y1: f.y1, y2: f.y0, visibility: "hidden" });
  let at = -1;
  f.root.append(cursor);
  const show = (i) => {
    at = Math.min(Math.max(i, 0), xs.length - 1);
    cursor.setAttribute("x1", xs[at]);
    cursor.setAttribute("x2", xs[at]);
    cursor.setAttribute("visibility", "visible");
    readout.textContent = tell(at);
  };
  const nearest = (x) => {
    let lo = 0, hi = xs.length - 1;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (xs[mid] < x) lo = mid + 1;
      else hi = mid;
    }
    return lo > 0 && x - xs[lo - 1] < xs[lo] - x ? lo - 1 : lo;
  };
  if (!xs.length) return;
  f.root.addEventListener("pointermove", (e) => {
    const box = f.root.getBoundingClientRect();
    show(nearest((e.clientX - box.left) * f.width / box.width));
  });
  f.root.addEventListener("keydown", (e) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[e.key];
    if (step === undefined) return;
    e.preventDefault();
    show(at < 0 ? start : at + step);
  });
}

function keyOf(style, text) {
  const span = document.createElement("span"), s = svg("svg", { viewBox: "0 0 34 10", "aria-hidden": "true" });
  s.append(svg("line", { x1: 0, x2: 34, y1: 5, y2: 5, ...style }));
  span.append(s, text);
  return span;
}

// A chart is made anew when its width changes.
function chart(host, draw) {
  const readout = document.createElement("div");
  readout.className = "readout";
  readout.setAttribute("aria-live", "polite");
  let width = 0;
  const redraw = () => {
    width = host.clientWidth;
    readout.textContent = "Point at the chart, or move along it with the arrow keys.";
    host.replaceChildren(...draw(readout), readout);
  };
  redraw();
  new ResizeObserver(() => { if (host.clientWidth !== width) redraw(); }).observe(host);
  themeListeners.push(redraw);
}

// ---- Bytes over time ----

function timeChart(host, samples) {
  const rows = samples.rows, last = rows.length ? Math.max(rows[rows.length - 1][0], 1) : 1;
  const most = Math.max(1, ...rows.map((r) => r[1]));
  const line = (column, name, light, dark, dashes) => ({ column, name,
    style: { stroke: theme() === "dark" ? dark : light, "stroke-width": 2.2, "stroke-dasharray": dashes, fill: "none" } });
  const lines = () => [line(1, "arenas", "#0072b2", "#56b4e9", "none"), line(2, "live", "#b36b00", "#e69f00", "7 3"),
    line(3, "retired", "#b34700", "#ff8f4d", "2 3")];
  chart(host, (readout) => {
    const f = frame(host, 310, "Bytes over time: arenas, live and retired. Arrow keys read it.");
    const step = niceStep(most, 5, true), top = Math.ceil(most / step) * step;
    const x = (ms) => f.x0 + (f.x1 - f.x0) * ms / last;
    const y = (b) => f.y0 - (f.y0 - f.y1) * b / top;
    const ticks = [], stepMs = niceStep(last, Math.max(2, f.width / 130), false), seconds = last >= 2000;
    for (let b = 0; b <= top; b += step) ticks.push(b);
    axisY(f, ticks, y, (b) => (b ? bytesText(b) : "0"), "bytes of all models");
    const xs = [];
    for (let t = 0; t <= last; t += stepMs) xs.push(t);
    axisX(f, xs, x, (t) => String(+(seconds ? t / 1000 : t).toFixed(3)), `${seconds ? "" : "milli"}seconds since the start`);
    marks(f, samples.marks.map((m) => ({ x: x(m.ms), text: m.text })));
    const keys = document.createElement("div");
    keys.className = "keys";
    for (const l of lines()) {
      const to = (r, across, up) => across + x(r[0]).toFixed(1) + up + y(r[l.column]).toFixed(1);
      const d = rows.map((r, i) => (i ? to(r, "H", "V") : to(r, "M", " "))).join("");
      if (d) f.root.append(svg("path", { d, ...l.style }));
      keys.append(keyOf(l.style, `${l.name}, at most ${bytesText(Math.max(0, ...rows.map((r) => r[l.column])))}`));
    }
    const tell = (i) => {
      const [ms, arena, live, retired, models] = rows[i], mark = samples.marks.filter((m) => m.ms <= ms).pop();
      const bytes = `arenas ${bytesText(arena)}, live ${bytesText(live)}, retired ${bytesText(retired)}`;
      return `${(ms / 1000).toFixed(3)} s: ${bytes}, ${models} model${models === 1 ? "" : "s"}${mark ? "; last: " + mark.text : ""}`;
    };
    reader(f, rows.map((r) => x(r[0])), readout, tell, 0);
    return [keys, f.root];
  });
}

// ---- Latencies ----

const BARS_AN_OCTAVE = 4;

// Buckets as bars of a quarter of an octave; what is under 1 ns is one bar.
function latencyBars(buckets) {
  const bars = new Map();
  for (const [least, most, count] of buckets) {
    const k = most < 1 ? -1 : Math.floor(Math.log2((least + most) / 2) * BARS_AN_OCTAVE + 1e-9);
    bars.set(k, (bars.get(k) || 0) + count);
  }
  return [...bars].sort((a, b) => a[0] - b[0]).map(([k, count]) => ({ k, count,
    least: k < 0 ? 0 : Math.pow(2, k / BARS_AN_OCTAVE), most: Math.pow(2, (k + 1) / BARS_AN_OCTAVE) }));
}

function latencyChart(host, buckets, quantiles) {
  const bars = latencyBars(buckets), total = bars.reduce((s, b) => s + b.count, 0);
  chart(host, (readout) => {
    const f = frame(host, 310, `Histogram of ${countText(total)} lookups. Arrow keys read it.`);
    const first = bars[0].k, last = bars[bars.length - 1].k + 1;
    const x = (k) => f.x0 + (f.x1 - f.x0) * (k - first) / (last - first);
    const tens = Math.max(1, Math.ceil(Math.log10(Math.max(...bars.map((b) => b.count)))));
    const y = (n) => f.y0 - (f.y0 - f.y1) * (n < 1 ? 0 : (Math.log10(n) + 0.3) / (tens + 0.3));
    const ticks = [];
    for (let e = 0; e <= tens; e++) ticks.push(Math.pow(10, e));
    const power = (n) => "10" + String(Math.log10(n)).replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
    axisY(f, ticks, y, (n) => (n < 1e4 ? String(n) : power(n)), "lookups, logarithmic");
    const at = (ns) => x(Math.log2(ns) * BARS_AN_OCTAVE), xs = [];
    for (let e = 0; e < 12; e++)
      for (const m of [1, 2, 5]) xs.push(m * Math.pow(10, e));
    const inside = xs.filter((t) => at(t) >= f.x0 && at(t) <= f.x1);
    axisX(f, inside.length > f.width / 60 ? inside.filter((t) => /^10*$/.test(String(t))) : inside, at, nsText, "time of a lookup, logarithmic");
    const fill = theme() === "dark" ? "#56b4e9" : "#0072b2";
    for (const b of bars) {
      const width = Math.max(1, x(b.k + 1) - x(b.k) - 2);
      f.root.append(svg("rect", { x: x(b.k) + 1, width, y: y(b.count), height: f.y0 - y(b.count), fill }));
    }
    marks(f, quantiles.filter((q) => q.ns > 0).map((q) => ({ x: at(q.ns), text: `${q.name} ${nsText(q.ns)}` })));
    const tell = (i) => `${nsText(bars[i].least)} to ${nsText(bars[i].most)}: ${countText(bars[i].count)} lookups, ` +
      percentText(bars[i].count, total);
    reader(f, bars.map((b) => (x(b.k) + x(b.k + 1)) / 2), readout, tell, 0);
    return [f.root];
  });
}
