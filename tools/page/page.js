// SPDX-License-Identifier: MIT
// The page: its parts, filled from the data. Names are put in as text, never as markup.

const byId = (id) => document.getElementById(id);

function make(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

// A name may hold characters that turn the text around it: not beyond this.
const isolated = (text) => make("bdi", "", text);

function show(id) { byId(id).hidden = false; }

function table(id, caption, heads, rows) {
  const head = make("tr", "", ...heads.map((h) => {
    const th = make("th", h.text ? "text" : "", h.name);
    th.scope = "col";
    return th;
  }));
  const body = make("tbody", "", ...rows.map((r) => make("tr", r.className || "", ...r.cells.map((c, i) => {
    const td = make("td", heads[i].text ? "text" : "", c);
    if (heads[i].text && typeof c !== "string" && c) td.title = c.textContent;
    return td;
  }))));
  byId(id).replaceChildren(make("caption", "", caption), make("thead", "", head), body);
}

// ---- Head ----

function startHead(data) {
  const files = data.files.join(", ");
  document.title = `octool ${data.command}: ${files}`;
  byId("title").textContent = `octool ${data.command}`;
  byId("subtitle").replaceChildren(isolated(files));
  byId("footer").textContent = `Written by octool ${data.version}. This page is one file; it asks no network.`;
}

function figure(value, label) {
  return make("div", "figure", make("b", "", value), make("span", "", label));
}

function startVerdict(data) {
  if (data.clean === undefined) return;
  const f = data.figures, v = byId("verdict"), why = [];
  if (f.failure) why.push(f.failure);
  if (f.verify_failures) why.push(`${countText(f.verify_failures)} verifications failed`);
  if (f.product_failures) why.push(`${countText(f.product_failures)} products were wrong`);
  if (f.stale_launches) why.push(`${countText(f.stale_launches)} launches were of an unloaded function`);
  if (f.blocks_swept) why.push(`${countText(f.blocks_swept)} blocks belonged to nobody at teardown`);
  if (f.bytes_leaked) why.push(`${countText(f.bytes_leaked)} bytes of device memory were not given back`);
  if (f.teardown_status !== "OC_OK") why.push(`a teardown said ${f.teardown_status}`);
  v.className = data.clean ? "good" : "bad";
  v.replaceChildren(make("span", "mark", data.clean ? "✓ " : "✗ "), data.clean
    ? "Clean: every byte and product was right, no launch was stale, nothing was left behind."
    : "Not clean: " + (why.join("; ") || "see what octool said") + ".");
  show("verdict");
}

function runFigures(f) {
  return [
    [countText(f.tensors), `tensors, ${bytesText(f.bytes_loaded)}`],
    [countText(f.derived_built), `derivations built, ${countText(f.derived_verified)} verified`],
    [countText(f.products_checked), "products checked"],
    [countText(f.lookups), `lookups, ${countText(f.lookups_per_second)} a second`],
    [nsText(f.lookup_ns_p50), `p50; p99 ${nsText(f.lookup_ns_p99)}, p99.9 ${nsText(f.lookup_ns_p999)}`],
    [countText(f.swaps), `swaps in ${f.seconds.toFixed(1)} s, ${countText(f.misses)} misses`],
    [bytesText(f.live_bytes_peak), `live at most, in arenas of ${bytesText(f.arena_bytes)}`],
    [`${countText(f.driver_allocs)} / ${countText(f.driver_frees)}`, "driver allocations / frees"],
  ];
}

function inspectFigures(f) {
  return [
    [countText(f.tensors), `tensors, ${bytesText(f.bytes)}`],
    [countText(f.reserved.live_blocks), "blocks"],
    [f.reserved.ratio.toFixed(4) + "×", `arenas over tensors, reserved: ${bytesText(f.reserved.arena_bytes)}`],
    [f.on_demand.ratio.toFixed(4) + "×", `on demand: ${bytesText(f.on_demand.arena_bytes)}`],
    [f.chunk_rule.ratio.toFixed(4) + "×", `one request a tensor: ${bytesText(f.chunk_rule.bytes)}`],
  ];
}

function startFigures(data) {
  const rows = data.command === "run" ? runFigures(data.figures) : inspectFigures(data.figures);
  byId("figures").replaceChildren(...rows.map((r) => figure(...r)));
}

// ---- The map ----

const page = { data: null, names: null, maps: [], map: null, at: 0 };

function blockParts(i) {
  const map = page.maps[page.at], b = map.decoded, kind = map.kinds[b.kind[i]], arena = map.arenas[b.arena[i]];
  const parts = [];
  const title = b.name[i] >= 0 ? page.names.text(b.name[i]) : ownerText(kind);
  parts.push(`${bytesText(b.bytes[i])} (${countText(b.bytes[i])} B)`);
  if (b.asked[i] && b.asked[i] !== b.bytes[i]) parts.push(`${countText(b.asked[i])} B asked for`);
  if (b.name[i] >= 0) parts.push(`owner: ${ownerText(kind)}`);
  if (kind.state !== "live") parts.push(kind.state);
  if (kind.site) parts.push(`from ${kind.site}${kind.func ? " " + kind.func : ""}`);
  parts.push(arena.external ? map.external[i - arena.from].start
    : `arena ${b.arena[i]}, 0x${b.start[i].toString(16)}: 0x${(BigInt(arena.base) + BigInt(b.start[i])).toString(16)}`);
  return { title, rest: parts.join(" · ") };
}

function blockText(i) {
  const p = blockParts(i);
  return [make("b", "", isolated(p.title)), " · ", isolated(p.rest)];
}

function tellHovered(i, event) {
  const tip = byId("tip");
  tip.hidden = i < 0 || !event;
  if (tip.hidden) return;
  const p = blockParts(i);
  tip.replaceChildren(make("b", "", isolated(p.title)), make("br"), isolated(p.rest));
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8) + "px";
  const below = event.clientY + 18, fits = below + box.height <= window.innerHeight;
  tip.style.top = (fits ? below : event.clientY - box.height - 10) + "px";
}

function tellSelected(i) {
  const none = () => [make("span", "none", "No block is chosen: click one, or use the arrow keys.")];
  byId("map-detail").replaceChildren(...(i < 0 ? none() : blockText(i)));
}

function tellScale(rowBytes) {
  byId("scale").textContent = `${bytesText(rowBytes)} a row`;
}

function swatch(index, rest) {
  const c = document.createElement("canvas"), g = c.getContext("2d");
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  c.className = "swatch";
  c.width = 22 * ratio;
  c.height = 16 * ratio;
  c.setAttribute("aria-hidden", "true");
  const look = groupLook(index, rest);
  g.scale(ratio, ratio);
  for (const style of [look.fill, makePattern(g, look, ratio)]) {
    if (!style) continue;
    g.fillStyle = style;
    g.fillRect(0, 0, 22, 16);
  }
  return c;
}

function drawLegend() {
  const map = page.maps[page.at], total = map.decoded.bytes.reduce((s, b) => s + b, 0);
  const order = map.owners.groups.map((g, i) => i).filter((i) => map.owners.groups[i].bytes > 0)
    .sort((a, b) => (a < OWNERS) - (b < OWNERS) || a - b);
  byId("legend").replaceChildren(...order.map((i) => {
    const group = map.owners.groups[i];
    const button = make("button", "", swatch(i, group.rest), make("span", "name", isolated(group.name)),
      make("span", "share", `${bytesText(group.bytes)}, ${percentText(group.bytes, total)}`));
    button.type = "button";
    button.title = group.name;
    button.setAttribute("aria-pressed", String(page.map.only === i));
    button.addEventListener("click", () => {
      page.map.isolate(i);
      [...byId("legend").children].forEach((b, k) => b.setAttribute("aria-pressed", String(page.map.only === order[k])));
    });
    return button;
  }));
}

const OWNER_ROWS = 20;

function fillOwners() {
  const map = page.maps[page.at], rows = map.owners.owners;
  const total = rows.reduce((s, r) => s + r.bytes + r.retired, 0);
  const sum = (list) => ["blocks", "bytes", "retired"].map((k) => list.reduce((s, r) => s + r[k], 0));
  const cells = (name, role, [blocks, bytes, retired]) =>
    [name, role, countText(blocks), bytesText(bytes), bytesText(retired), percentText(bytes + retired, total)];
  const roles = { caller: "freed by its caller", owner: "engine", scratch: "scratch", build: "build", derived: "derived",
    external: "external" };
  const label = (r) => make("span", "", swatch(r.group, map.owners.groups[r.group].rest), " ", isolated(r.name));
  const shown = rows.slice(0, OWNER_ROWS).map((r) => ({ cells: cells(label(r), roles[r.role] || "", sum([r])) }));
  if (rows.length > OWNER_ROWS)
    shown.push({ className: "rest", cells: cells(`${rows.length - OWNER_ROWS} more`, "", sum(rows.slice(OWNER_ROWS))) });
  shown.push({ className: "sum", cells: cells("all", "", sum(rows)) });
  table("owners", "Who has how much; the largest first.", [{ name: "Owner", text: true }, { name: "Kind", text: true },
    { name: "Blocks" }, { name: "Live" }, { name: "Retired" }, { name: "Share" }], shown);
}

const ARENA_ROWS = 200;

function fillArenas() {
  const map = page.maps[page.at], b = map.decoded, arenas = map.arenas.filter((a) => !a.external);
  const largestFree = (a) => {
    let most = 0;
    for (let i = a.from; i < a.to; i++)
      if (map.kinds[b.kind[i]].state === "free") most = Math.max(most, b.bytes[i]);
    return most;
  };
  const rows = arenas.slice(0, ARENA_ROWS).map((a, i) => ({ cells: [String(i), a.base, bytesText(a.bytes),
    countText(a.to - a.from), percentText(a.used, a.bytes), bytesText(a.bytes - a.used), bytesText(largestFree(a)),
    a.lost ? "lost" : a.managed ? "managed" : "device"] }));
  const rest = arenas.slice(ARENA_ROWS), sum = (key) => rest.reduce((s, a) => s + a[key], 0);
  if (rest.length)
    rows.push({ className: "rest", cells: [`${rest.length} more`, "", bytesText(sum("bytes")),
      countText(sum("to") - sum("from")), percentText(sum("used"), sum("bytes")), bytesText(sum("bytes") - sum("used")), "", ""] });
  table("arenas", `${countText(arenas.length)} arenas, in the order of their addresses.`, [{ name: "Arena", text: true },
    { name: "Address", text: true }, { name: "Bytes" }, { name: "Blocks, free ones too" }, { name: "In use" }, { name: "Free" },
    { name: "Largest free" }, { name: "Memory", text: true }], rows);
}

function showMap(at) {
  page.at = at;
  page.map.show(page.maps[at], page.names);
  tellSelected(-1);
  drawLegend();
  fillOwners();
  fillArenas();
}

// The next block after the chosen one whose name, or owner where it has none, has these letters.
function find(text) {
  const map = page.maps[page.at], b = map.decoded, want = text.toLowerCase();
  if (!want) return -1;
  const titles = map.kinds.map((k) => ownerText(k).toLowerCase());
  for (let k = 1; k <= b.count; k++) {
    const i = (page.map.selected + k + b.count) % b.count;
    const title = b.name[i] >= 0 ? page.names.text(b.name[i]).toLowerCase() : titles[b.kind[i]];
    if (title.includes(want)) return i;
  }
  return -1;
}

function startSearch() {
  byId("search").addEventListener("submit", (e) => {
    e.preventDefault();
    const i = find(byId("query").value);
    if (i >= 0) page.map.select(i);
    else byId("map-detail").replaceChildren("No block has that in its name.");
  });
}

function startMap(data) {
  page.maps = data.maps;
  if (!page.maps.length) return;
  page.names = makeNames(data.names);
  for (const map of page.maps) {
    map.decoded = addExternal(map, makeBlocks(map, page.names));
    map.owners = makeOwners(map, map.decoded);
  }
  show("memory");
  byId("plan").replaceChildren(...page.maps.map((m, i) => {
    const o = make("option", "", m.title);
    o.value = i;
    return o;
  }));
  byId("plan").addEventListener("change", (e) => showMap(+e.target.value));
  byId("plan-label").hidden = page.maps.length < 2;
  page.map = makeMap({ host: byId("map"), space: byId("map-space"), canvas: byId("map-canvas") },
    { hovered: tellHovered, selected: tellSelected, scale: tellScale });
  byId("zoom-in").addEventListener("click", () => page.map.zoom(0.5));
  byId("zoom-out").addEventListener("click", () => page.map.zoom(2));
  byId("zoom-fit").addEventListener("click", () => page.map.fit());
  startSearch();
  showMap(0);
  themeListeners.push(() => { drawLegend(); fillOwners(); });
}

// ---- Plans, charts, report ----

function startPlans(f) {
  const row = (name, arenas, bytes, ratio) => ({
    cells: [name, arenas, bytesText(bytes), ratio.toFixed(4) + "×", bytesText(bytes - f.bytes)] });
  table("plans-table", "What the tensors take, by how they are asked for.", [{ name: "Plan", text: true }, { name: "Arenas" },
    { name: "Bytes" }, { name: "Of the tensors" }, { name: "More than they" }], [
    row("one request a tensor", "–", f.chunk_rule.bytes, f.chunk_rule.ratio),
    row("pool, reserved", countText(f.reserved.arenas), f.reserved.arena_bytes, f.reserved.ratio),
    row("pool, on demand", countText(f.on_demand.arenas), f.on_demand.arena_bytes, f.on_demand.ratio)]);
  show("plans");
}

const TIME_ROWS = 25;

function startTime(samples) {
  const rows = samples.rows, every = Math.max(1, Math.ceil(rows.length / TIME_ROWS));
  show("time");
  timeChart(byId("time-chart"), samples);
  table("time-table", `One sample in ${every}; they are ${samples.interval_ms} ms apart, closer where something happened.`,
    [{ name: "Seconds" }, { name: "Arenas" }, { name: "Live" }, { name: "Retired" }, { name: "Models" }],
    rows.filter((r, i) => i % every === 0 || i === rows.length - 1).map((r) => ({
      cells: [(r[0] / 1000).toFixed(3), bytesText(r[1]), bytesText(r[2]), bytesText(r[3]), String(r[4])] })));
}

function startLatency(data) {
  if (!data.latencies.length) return;
  const f = data.figures;
  const quantiles = [{ name: "p50", ns: f.lookup_ns_p50 }, { name: "p99", ns: f.lookup_ns_p99 },
    { name: "p99.9", ns: f.lookup_ns_p999 }];
  show("latency");
  latencyChart(byId("latency-chart"), data.latencies, quantiles);
  const bars = latencyBars(data.latencies), total = bars.reduce((s, b) => s + b.count, 0);
  table("latency-table", `Single lookups, each timed, less ${f.lookup_clock_ns} ns for the clock.`,
    [{ name: "From" }, { name: "To" }, { name: "Lookups" }, { name: "Share" }],
    bars.map((b) => ({ cells: [nsText(b.least), nsText(b.most), countText(b.count), percentText(b.count, total)] })));
}

function start() {
  const data = page.data = JSON.parse(byId("data").textContent);
  startTheme();
  startHead(data);
  startVerdict(data);
  startFigures(data);
  startMap(data);
  if (data.command === "inspect") startPlans(data.figures);
  if (data.samples) startTime(data.samples);
  if (data.latencies) startLatency(data);
  if (data.report) {
    show("teardown");
    byId("report").textContent = data.report;
  }
  document.documentElement.dataset.ready = "yes";
}

start();
