// SPDX-License-Identifier: MIT
// The map of the arenas. Each arena is a strip that is cut into rows of rowBytes; only the rows in view are drawn, on one
// canvas. A block that is wide enough is a rectangle; finer ones share a column of pixels, split by their bytes.

const ROW = 20, BAR = 17, HEAD = 24, VIEW_MOST = 520, HEIGHT_MOST = 8e6, ROW_LEAST = 1 << 14, WIDE = 3;

function makeMap(parts, tell) {
  const m = { json: null, blocks: null, owners: null, rowBytes: 1, only: -1, selected: -1, hovered: -1,
    width: 0, ratio: 1,
    facts: { frames: 0, rectangles: 0, columns: 0, ms: 0 } };
  const { host, space, canvas } = parts, g = canvas.getContext("2d");
  const family = getComputedStyle(document.body).fontFamily;
  const names = [];
  let tops = [], looks = [], patterns = [], queue = [], inks = {}, height = 0, waiting = false;

  // ---- Layout ----

  const rowsAt = (arena, rowBytes) => Math.max(1, Math.ceil(arena.bytes / rowBytes));
  const rowsOf = (arena) => rowsAt(arena, m.rowBytes);

  function layOut() {
    let y = 0;
    tops = m.json.arenas.map((a) => { const top = y; y += HEAD + rowsOf(a) * ROW + 6; return top; });
    height = y;
    space.style.height = Math.max(height, 1) + "px";
  }

  const heightAt = (rowBytes) => m.json.arenas.reduce((h, a) => h + HEAD + 6 + ROW * rowsAt(a, rowBytes), 0);
  const largest = () => m.json.arenas.reduce((most, a) => Math.max(most, a.bytes), 1);
  const coarsest = () => Math.max(ROW_LEAST, Math.pow(2, Math.ceil(Math.log2(largest()))));

  // As fine as fits into the view; where not even one row an arena does, that.
  function fit() {
    let bytes = coarsest();
    while (bytes > ROW_LEAST && heightAt(bytes / 2) <= VIEW_MOST - 4) bytes /= 2;
    return bytes;
  }

  function arenaAt(y) {
    let lo = 0, hi = tops.length - 1;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (tops[mid] <= y) lo = mid;
      else hi = mid - 1;
    }
    return lo;
  }

  // The block of an arena that this offset is in.
  function blockAt(arena, offset) {
    let lo = arena.from, hi = arena.to - 1;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (m.blocks.start[mid] <= offset) lo = mid;
      else hi = mid - 1;
    }
    return lo;
  }

  function place(i) {
    const a = m.blocks.arena[i], row = Math.floor(m.blocks.start[i] / m.rowBytes);
    const x = (m.blocks.start[i] - row * m.rowBytes) * m.width / m.rowBytes;
    const rows = Math.ceil((m.blocks.start[i] % m.rowBytes + m.blocks.bytes[i]) / m.rowBytes);
    return { x, y: tops[a] + HEAD + row * ROW, rows };
  }

  // ---- Drawing ----

  function prepare() {
    inks = { ink: cssColour("ink"), soft: cssColour("soft") };
    looks = m.owners.groups.map((group, i) => groupLook(i, group.rest));
    queue = looks.map(() => []);
    patterns = looks.map((l) => makePattern(g, l, m.ratio));
  }

  // Rectangles wait, by group, and are drawn with one change of style a group; names after all of them.
  function fill(group, x, y, w, h) {
    queue[group].push(x, y, w, h);
  }

  function flushWith(style, rectangles) {
    g.fillStyle = style;
    for (let i = 0; i < rectangles.length; i += 4)
      g.fillRect(rectangles[i], rectangles[i + 1], rectangles[i + 2], rectangles[i + 3]);
  }

  function flush() {
    queue.forEach((rectangles, group) => {
      g.globalAlpha = m.only < 0 || m.only === group ? 1 : 0.13;
      flushWith(looks[group].fill, rectangles);
      if (patterns[group]) flushWith(patterns[group], rectangles);
      rectangles.length = 0;
    });
    g.globalAlpha = 1;
    names.forEach((n) => name(...n));
    names.length = 0;
  }

  function name(i, group, x, y, w) {
    if (m.blocks.name[i] < 0 || (m.only >= 0 && m.only !== group)) return;
    const text = m.names.text(m.blocks.name[i]);
    let shown = text;
    if (g.measureText(shown).width > w - 12) {
      // Names of one owner begin alike: what tells them apart is at the end.
      let keep = Math.floor((w - 22) / 6.2);
      if (keep < 9) return;
      while (keep > 8 && g.measureText("…" + text.slice(-keep)).width > w - 12) keep--;
      shown = "…" + text.slice(-keep);
    }
    const width = g.measureText(shown).width;
    g.fillStyle = looks[group].fill;
    g.fillRect(x + 3, y + 2, width + 6, BAR - 4);
    g.fillStyle = looks[group].ink;
    g.fillText(shown, x + 6, y + BAR / 2 + 0.5);
  }

  // One row: [from, to) of an arena. Returns what was drawn.
  function drawRow(arena, from, to, y) {
    const b = m.blocks, scale = m.width / m.rowBytes, columns = Math.ceil((to - from) * scale);
    const groups = looks.length, share = drawRow.share;
    let fine = false;
    for (let i = blockAt(arena, from); i < arena.to && b.start[i] < to; i++) {
      const s = Math.max(b.start[i], from), e = Math.min(b.start[i] + b.bytes[i], to);
      const group = m.owners.groupOf[b.kind[i]];
      const x0 = (s - from) * scale, x1 = (e - from) * scale;
      if (x1 - x0 >= WIDE) {
        const ends = e === b.start[i] + b.bytes[i];      // then a gap parts it from the next
        const l = Math.round(x0), r = Math.max(Math.round(x1) - (ends ? 1 : 0), l + 1);
        fill(group, l, y, r - l, BAR);
        if (r - l >= 46) names.push([i, group, l, y, r - l]);
        m.facts.rectangles++;
        continue;
      }
      fine = true;
      for (let c = Math.floor(x0); c < x1 && c < columns; c++)
        share[c * groups + group] += Math.min(x1, c + 1) - Math.max(x0, c);
    }
    if (fine) drawColumns(columns, groups, share, y);
  }

  // Columns with one owner alone, next to each other, are one rectangle.
  function drawColumns(columns, groups, share, y) {
    let run = -1, since = 0;
    const end = (c) => { if (run >= 0) fill(run, since, y, c - since, BAR); run = -1; };
    for (let c = 0; c < columns; c++) {
      let sum = 0, alone = -1, count = 0;
      for (let k = 0; k < groups; k++)
        if (share[c * groups + k] > 0) { sum += share[c * groups + k]; alone = k; count++; }
      if (count === 1 && sum > 0.5) {
        if (run !== alone) { end(c); run = alone; since = c; }
        m.facts.columns++;
      } else {
        end(c);
        if (count) mixed(c, groups, share, sum, y);
      }
      for (let k = 0; k < groups; k++) share[c * groups + k] = 0;
    }
    end(columns);
  }

  function mixed(c, groups, share, sum, y) {
    let top = y;
    for (let k = groups - 1; k >= 0; k--) {
      const h = BAR * share[c * groups + k] / sum;
      if (h > 0) fill(k, c, top, 1, h);
      top += h;
    }
    m.facts.columns++;
  }

  function drawHead(arena, index, y) {
    g.fillStyle = inks.ink;
    g.font = "600 12px " + family;
    const title = arena.external ? "External memory, of other allocators" : `Arena ${index}`;
    g.fillText(title, 2, y + HEAD / 2 + 2);
    const at = g.measureText(title).width + 14;
    g.font = "12px " + family;
    g.fillStyle = inks.soft;
    g.fillText(arenaText(arena), at, y + HEAD / 2 + 2);
  }

  function outline(i, strong) {
    if (i < 0) return;
    const p = place(i), b = m.blocks, arena = m.json.arenas[b.arena[i]], scroll = host.scrollTop;
    const first = Math.max(0, Math.floor((scroll - p.y) / ROW)), seen = Math.ceil(host.clientHeight / ROW) + 2;
    for (let r = first; r < Math.min(p.rows, first + seen); r++) {
      const row = Math.floor(b.start[i] / m.rowBytes) + r, from = row * m.rowBytes;
      const x0 = Math.max(b.start[i] - from, 0) * m.width / m.rowBytes;
      const x1 = Math.min(b.start[i] + b.bytes[i] - from, m.rowBytes) * m.width / m.rowBytes;
      const y = tops[b.arena[i]] + HEAD + row * ROW - scroll, x = Math.floor(x0), w = Math.max(Math.ceil(x1) - x, 3);
      g.lineWidth = strong ? 3 : 2;
      g.strokeStyle = cssColour("paper");
      g.strokeRect(x - 0.5, y - 1, w, BAR + 2);
      g.lineWidth = strong ? 2 : 1;
      g.strokeStyle = cssColour("ink");
      g.strokeRect(x - 0.5, y - 1, w, BAR + 2);
    }
    return arena;
  }

  function draw() {
    const begun = performance.now(), view = host.clientHeight, scroll = host.scrollTop;
    waiting = false;
    m.facts.rectangles = m.facts.columns = 0;
    g.setTransform(m.ratio, 0, 0, m.ratio, 0, 0);
    g.clearRect(0, 0, m.width, view);
    g.textBaseline = "middle";
    for (let a = tops.length ? arenaAt(scroll) : 0; a < tops.length && tops[a] < scroll + view; a++) {
      const arena = m.json.arenas[a], rows = rowsOf(arena), top = tops[a] + HEAD;
      drawHead(arena, a, tops[a] - scroll);
      const first = Math.max(0, Math.floor((scroll - top) / ROW));
      for (let r = first; r < rows && top + r * ROW < scroll + view; r++)
        drawRow(arena, r * m.rowBytes, Math.min((r + 1) * m.rowBytes, arena.bytes), top + r * ROW - scroll);
    }
    g.font = "11px " + family;
    flush();
    outline(m.hovered, false);
    outline(m.selected, true);
    m.facts.frames++;
    m.facts.ms = performance.now() - begun;
  }

  function redraw() {
    if (!waiting && m.json) {
      waiting = true;
      requestAnimationFrame(draw);
    }
  }

  // ---- Size and zoom ----

  function resize() {
    if (!m.json) return;
    host.style.height = Math.min(height + 2, VIEW_MOST) + "px";
    m.width = Math.max(200, host.clientWidth);
    m.ratio = Math.min(window.devicePixelRatio || 1, 3);
    canvas.width = Math.round(m.width * m.ratio);
    canvas.height = Math.round(host.clientHeight * m.ratio);
    canvas.style.height = host.clientHeight + "px";
    drawRow.share = new Float32Array((m.width + 2) * m.owners.groups.length);
    prepare();
    redraw();
  }

  // What is at `at` (a block, or nothing) keeps its place in the view.
  function zoomTo(rowBytes, at) {
    const least = Math.max(ROW_LEAST, m.finest);
    const before = at >= 0 ? place(at).y - host.scrollTop : 0;
    m.rowBytes = Math.min(Math.max(rowBytes, least), coarsest());
    layOut();
    resize();
    if (at >= 0) host.scrollTop = Math.max(0, place(at).y - Math.min(Math.max(before, HEAD), host.clientHeight - ROW));
    tell.scale(m.rowBytes);
    redraw();
  }

  // Without a block to hold on to: the first in view.
  const anchor = () => (m.selected >= 0 ? m.selected : m.blocks.count ? hit(1, host.scrollTop + HEAD + 1) : -1);
  m.zoom = (factor) => zoomTo(m.rowBytes * factor, anchor());
  m.fit = () => { zoomTo(fit(), -1); if (m.selected >= 0) reveal(m.selected); };

  // ---- What is where ----

  // x, y: of the whole map. -1: no block.
  function hit(x, y) {
    if (!tops.length || x < 0 || x >= m.width) return -1;
    const a = arenaAt(y), arena = m.json.arenas[a], row = Math.floor((y - tops[a] - HEAD) / ROW);
    const offset = row * m.rowBytes + x * m.rowBytes / m.width;
    return row < 0 || row >= rowsOf(arena) || offset >= arena.bytes ? -1 : blockAt(arena, offset);
  }

  function reveal(i) {
    const p = place(i), end = p.y + Math.min(p.rows * ROW, host.clientHeight - HEAD);
    if (p.y - HEAD < host.scrollTop) host.scrollTop = Math.max(0, p.y - HEAD);
    else if (end > host.scrollTop + host.clientHeight) host.scrollTop = end - host.clientHeight;
  }

  m.select = (i) => {
    m.selected = i;
    if (i >= 0) reveal(i);
    tell.selected(i);
    redraw();
  };
  m.isolate = (group) => {
    m.only = m.only === group ? -1 : group;
    redraw();
  };

  // ---- Pointer and keys ----

  function pointed(e) {
    const box = host.getBoundingClientRect();
    return hit(e.clientX - box.left - host.clientLeft, e.clientY - box.top - host.clientTop + host.scrollTop);
  }

  host.addEventListener("pointermove", (e) => {
    const i = pointed(e);
    tell.hovered(i, e);
    if (i === m.hovered) return;
    m.hovered = i;
    redraw();
  });
  host.addEventListener("pointerleave", () => {
    m.hovered = -1;
    tell.hovered(-1, null);
    redraw();
  });
  host.addEventListener("click", (e) => m.select(pointed(e)));
  host.addEventListener("scroll", () => { tell.hovered(-1, null); redraw(); });
  host.addEventListener("wheel", (e) => {
    if (!e.ctrlKey) return;
    e.preventDefault();
    zoomTo(m.rowBytes * (e.deltaY > 0 ? 2 : 0.5), pointed(e));
  }, { passive: false });

  // A row's step, or to the arena before or after where there is none.
  function step(rows) {
    const i = m.selected, b = m.blocks, arena = m.json.arenas[b.arena[i]];
    const middle = b.start[i] % m.rowBytes + Math.min(b.bytes[i], m.rowBytes - b.start[i] % m.rowBytes) / 2;
    const row = Math.floor((rows < 0 ? b.start[i] : b.start[i] + b.bytes[i] - 1) / m.rowBytes);
    const to = (row + rows) * m.rowBytes + middle;
    if (to < 0) return arena.from > 0 ? arena.from - 1 : i;
    return to >= arena.bytes ? Math.min(arena.to, b.count - 1) : blockAt(arena, to);
  }

  function moved(key) {
    const i = m.selected, arena = m.json.arenas[m.blocks.arena[i]], next = m.json.arenas[m.blocks.arena[i] + 1];
    switch (key) {
    case "ArrowLeft": return Math.max(0, i - 1);
    case "ArrowRight": return Math.min(m.blocks.count - 1, i + 1);
    case "ArrowUp": return step(-1);
    case "ArrowDown": return step(1);
    case "Home": return arena.from;
    case "End": return arena.to - 1;
    case "PageDown": return next ? next.from : i;
    case "PageUp": return i > arena.from || !arena.from ? arena.from : m.json.arenas[m.blocks.arena[i] - 1].from;
    default: return -1;
    }
  }

  const others = { "+": () => m.zoom(0.5), "=": () => m.zoom(0.5), "-": () => m.zoom(2), 0: () => m.fit(),
    Escape: () => m.select(-1) };
  host.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.altKey || e.metaKey || !m.blocks.count) return;
    if (others[e.key]) {
      others[e.key]();
    } else {
      const to = m.selected < 0 && /^(Arrow|Page|Home|End)/.test(e.key) ? 0 : m.selected < 0 ? -1 : moved(e.key);
      if (to < 0) return;
      m.select(to);
    }
    e.preventDefault();
  });

  new ResizeObserver(() => { if (m.json && host.clientWidth !== m.width) resize(); }).observe(host);
  themeListeners.push(() => { if (m.json) { prepare(); redraw(); } });

  m.show = (json, names) => {
    m.json = json;
    m.names = names;
    m.blocks = json.decoded;
    m.owners = json.owners;
    m.only = m.selected = m.hovered = -1;
    m.finest = 1;
    while (heightAt(m.finest) > HEIGHT_MOST) m.finest *= 2;
    host.scrollTop = 0;
    zoomTo(fit(), -1);
  };
  m.hit = hit;
  m.place = place;
  m.drawNow = draw;
  return m;
}

function arenaText(arena) {
  const parts = [bytesText(arena.bytes)];
  if (arena.external) return `${parts[0]}, drawn without what lies between`;
  parts.push(`${percentText(arena.used, arena.bytes)} in use`, arena.base);
  if (arena.managed) parts.push("managed memory");
  if (arena.lost) parts.push("lost: the driver did not take it back");
  return parts.join(" · ");
}
