// SPDX-License-Identifier: MIT
// Light and dark; colours, and a pattern to each, so that colour is never the only cue.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const themeListeners = [];
let themeChoice = "system";

function theme() {
  return themeChoice === "system" ? (dark.matches ? "dark" : "light") : themeChoice;
}

function applyTheme() {
  document.documentElement.dataset.theme = theme();
  document.getElementById("theme").textContent = "Theme: " + themeChoice;
  themeListeners.forEach((fn) => fn());
}

function startTheme() {
  // A page opened as a file may have no storage.
  try { themeChoice = localStorage.getItem("octool-theme") || "system"; } catch (e) { /* the system's, then */ }
  if (!["system", "light", "dark"].includes(themeChoice)) themeChoice = "system";
  document.getElementById("theme").addEventListener("click", () => {
    themeChoice = { system: "light", light: "dark", dark: "system" }[themeChoice];
    try { localStorage.setItem("octool-theme", themeChoice); } catch (e) { /* until the page is closed */ }
    applyTheme();
  });
  dark.addEventListener("change", applyTheme);
  applyTheme();
}

const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// Okabe and Ito's colours, which the colour-blind can tell apart.
const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const PATTERNS = ["", "/", "-", "o", "\\", "|", "x"];
const INK_ON = ["#ffffff", "#16181d", "#ffffff", "#16181d", "#16181d", "#ffffff", "#16181d"];

// What a group is drawn with: fill, pattern, ink of a name on it.
function groupLook(index, rest) {
  if (index === FREE) return { fill: cssColour("free"), pattern: "", ink: cssColour("soft") };
  if (index === RETIRED) return { fill: cssColour("paper"), pattern: "X", stroke: cssColour("retired"), ink: cssColour("ink") };
  if (index === LOST) return { fill: cssColour("bad"), pattern: "x", ink: cssColour("paper") };
  if (rest) return { fill: theme() === "dark" ? "#8d93a5" : "#9aa0b1", pattern: "o", ink: "#16181d" };
  const i = (index - OWNERS) % PALETTE.length;
  return { fill: PALETTE[i], pattern: PATTERNS[i], ink: INK_ON[i] };
}

// A tile of 8 by 8 pixels of the page.
function patternTile(kind, stroke, ratio) {
  const c = document.createElement("canvas"), g = c.getContext("2d"), s = 8 * ratio;
  c.width = c.height = s;
  g.scale(ratio, ratio);
  g.strokeStyle = g.fillStyle = stroke;
  g.lineWidth = kind === "X" ? 2 : 1;
  const line = (...p) => { g.beginPath(); g.moveTo(p[0], p[1]); g.lineTo(p[2], p[3]); g.stroke(); };
  if ("/xX".includes(kind)) { line(-2, 10, 10, -2); line(-2, 2, 2, -2); line(6, 10, 10, 6); }
  if ("\\x".includes(kind)) { line(-2, -2, 10, 10); line(6, -2, 10, 2); line(-2, 6, 2, 10); }
  if (kind === "-") line(0, 4, 8, 4);
  if (kind === "|") line(4, 0, 4, 8);
  if (kind === "o") { g.beginPath(); g.arc(4, 4, 1.3, 0, 7); g.fill(); }
  return c;
}

function makePattern(g, look, ratio) {
  if (!look.pattern) return null;
  const p = g.createPattern(patternTile(look.pattern, look.stroke || "rgba(0,0,0,.45)", ratio), "repeat");
  p.setTransform(new DOMMatrix().scale(1 / ratio));
  return p;
}
