// The page: controls, drawing once a frame, the link, and exports.

import { loadTables } from "./tables.js";
import { errorCurve, headIn, limits, LONGEST, numbers, riskCurves, START, validState } from "./numbers.js";
import { samplePrompt } from "./sampling.js";
import { pythonLines } from "./python.js";
import {
  BARS, DARK, errorChart, LIGHT, mapScales, MAP_TOP, PREDICTORS, regimeChart, riskChart, shown, weightChart, wholeFigure,
} from "./charts.js";

const find = (name) => document.getElementById(name);
loadTables(JSON.parse(find("tables").textContent));

// positions of the sliders: values of their own, not always equidistant
const round2 = (x) => Number(x.toPrecision(2));
const spread = (low, high, count) => [...new Set(Array.from({ length: count }, (_, i) => round2(low * (high / low) ** (i / (count - 1)))))];
const lengths = [];
for (let L = 2; L < 40; L++) lengths.push(L);
for (let k = 0; lengths[lengths.length - 1] < 1e12; k++) lengths.push(Math.min(1e12, Number((40 * 10 ** (k / 24)).toPrecision(3))));
const range = limits();
const positions = {
  sigma: Array.from({ length: 396 }, (_, i) => Number((0.05 + 0.01 * i).toFixed(2))),
  L: lengths,
  d: Array.from({ length: range.d[1] }, (_, i) => i + 1),
  noise: spread(...range.noise, 120),
  target: spread(...range.target, 120),
};
const spoken = {
  sigma: (v) => `score deviation ${v}`, L: (v) => `${shown(v)} tokens`, d: (v) => `${v} dimensions`,
  noise: (v) => `noise variance ${v}`, target: (v) => `${shown(100 * v)} percent`,
};

const linked = () => ({ U: "", ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) });
let state = validState(linked());
let found = numbers(state), waiting = false, timer = 0;

function nearest(values, value) {
  let low = 0, high = values.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (values[middle] <= value) low = middle; else high = middle; }
  return value - values[low] <= values[high] - value ? low : high;
}

const written = (name, value) => name === "L" && value >= 1e7 ? value.toExponential().replace("e+", "e") : String(value);

function showControls() {
  for (const [name, values] of Object.entries(positions)) {
    const slider = find(name), typed = find(`${name}-value`), at = nearest(values, state[name]);
    if (Number(slider.value) !== at) slider.value = at;
    slider.setAttribute("aria-valuetext", spoken[name](state[name]));
    if (document.activeElement !== typed) typed.value = written(name, state[name]);
  }
  for (const button of document.querySelectorAll("[data-query]")) button.setAttribute("aria-pressed", String(button.dataset.query === state.query));
}

const matrixFields = ["U", "G", "z"].map((name) => find(`matrix-${name}`)), explained = find("head-read").innerHTML;
let shownHead = "";

function showHead() { // fields are written only when the head has changed
  const key = ["U", "G", "z"].map((name) => state[name]).join("|"), head = headIn(state);
  find("drop-head").hidden = !head;
  if (key !== shownHead) {
    const [U, G, z] = matrixFields;
    for (const field of [U, G]) field.value = state[field.id.slice(7)].replaceAll(";", "\n").replaceAll(",", " ");
    z.value = state.z.replaceAll(/[;,]/g, " ");
    if (head) find("head-read").closest("details").open = true;
    if (!head) find("head-read").innerHTML = explained;
    shownHead = key;
  }
  if (!head) return;
  const scale = state.sigma / head.sigma;
  find("head-read").textContent = `Your head: σ = ${shown(head.sigma, 4)}, d = ${head.d}` +
    (Math.abs(scale - 1) < 1e-9 ? "." : `; shown with U times ${shown(scale, 3)}, so that σ = ${shown(state.sigma, 4)}.`);
}

function sentence() {
  const to = `the squared error down to ${shown(found.tolerance)}, ${shown(100 * state.target)}% of the signal`;
  if (found.length === Infinity) return `No prompt of up to ${shown(LONGEST, 1)} tokens brings ${to}.`;
  return `${shown(found.length, 4)} ${found.length === 1 ? "token brings" : "tokens bring"} ${to}.`;
}

function showNumbers() {
  const enough = state.L >= found.length, random = state.query === "random";
  find("sentence").textContent = sentence();
  find("verdict").textContent = enough ? "Your prompt is long enough." :
    `Your ${shown(state.L, 4)} tokens leave ${shown(found.error)}, ${shown(100 * found.error / found.signal)}% of the signal.`;
  const say = (name, words) => { find(name).textContent = words; };
  say("n-error", shown(found.error, 4));
  say("n-share", `${shown(100 * found.error / found.signal)}% of the signal, ${shown(found.signal)}`);
  say("n-effective", shown(found.effective, 4));
  say("n-of", `of ${shown(state.L, 4)}; 1/P₂${random ? " at a typical query" : ""}`);
  say("n-regime", found.regime);
  say("n-lengths", `averaging from ${shown(found.averagingFrom, 2)}, frozen up to ${shown(found.frozenUntil, 2)} tokens`);
  find("n-rate").innerHTML = found.rate === 1 ? "1/L" : `L<sup>−${shown(found.rate)}</sup>`;
  say("n-kappa", random ? `κ = ${shown(found.kappa)}; up to powers of ln L` : "at one query, for large L");
  const risks = { one: found.oneHead.risk, pair: found.pair.risk, linear: found.linear, bayes: found.ridge };
  for (const [name] of PREDICTORS) say(`r-${name}`, shown(risks[name], 6));
  say("r-floor", shown(found.floor, 6));
}

const dark = matchMedia("(prefers-color-scheme: dark)");

const drawings = (palette) => ({
  error: (w, h) => errorChart({ w, h, palette, state, found, points: errorCurve(state) }),
  regimes: (w, h) => regimeChart({ w, h, palette, state, found }),
  weights: (w, h) => weightChart({ w, h, palette, state, prompt: samplePrompt(state.sigma, state.L, state.seed, BARS) }),
  risks: (w, h) => riskChart({ w, h, palette, state, found, risks: riskCurves(state) }),
});

const sizes = {};
const needs = { // what a chart depends on: others are left as they are
  error: ["sigma", "L", "d", "query", "target", "U", "G", "z"], regimes: ["sigma", "L", "d", "query", "U", "G"],
  weights: ["sigma", "L", "seed"], risks: ["L", "d", "noise"],
};
const drawn = {};

function draw() {
  waiting = false;
  found = numbers(state);
  showControls();
  showHead();
  showNumbers();
  const draws = drawings(dark.matches ? DARK : LIGHT);
  for (const [name, make] of Object.entries(draws)) {
    const [w, h] = sizes[name] || [0, 0], key = [w, h, dark.matches, ...needs[name].map((n) => state[n])].join();
    if (!w || drawn[name] === key) continue;
    drawn[name] = key;
    const svg = find(`chart-${name}`);
    svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
    svg.innerHTML = make(w, h);
  }
  clearTimeout(timer);
  timer = setTimeout(settle, 150);
}

function settle() { // what need not follow every frame
  find("python").textContent = pythonLines(state, found);
  const link = linkOf(state);
  if (location.hash !== link) history.replaceState(null, "", link);
}

const linkOf = (s) => "#" + Object.keys(START).map((name) => [name, s[name]]).filter(([, value]) => value !== "").map((pair) => pair.join("=")).join("&");

function change(changes) {
  state = validState(changes, state);
  if (!waiting) { waiting = true; requestAnimationFrame(draw); }
}

function measure() {
  for (const name of Object.keys(needs)) {
    const w = Math.round(find(`chart-${name}`).parentElement.clientWidth);
    sizes[name] = [w, Math.round(Math.min(360, Math.max(260, 0.62 * w)))];
    find(`chart-${name}`).setAttribute("height", sizes[name][1]);
  }
}

function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function figure() {
  const words = `${sentence()} σ = ${state.sigma}, L = ${shown(state.L, 4)}, d = ${state.d}${state.U ? " (own U)" : ""}, noise ${state.noise}`;
  return wholeFigure(Object.values(drawings(LIGHT)), words);
}

async function picture() {
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(figure());
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * image.width; canvas.height = 2 * image.height;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

async function copied(button, words) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(words);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying is not allowed here";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

for (const [name, values] of Object.entries(positions)) {
  const slider = find(name), typed = find(`${name}-value`);
  slider.min = 0; slider.max = values.length - 1; slider.step = 1;
  slider.addEventListener("input", () => change({ [name]: values[Number(slider.value)] }));
  typed.addEventListener("change", () => {
    change({ [name]: typed.value.replaceAll(",", "").trim() });
    typed.value = written(name, state[name]);
  });
}
for (const button of document.querySelectorAll("[data-query]")) button.addEventListener("click", () => change({ query: button.dataset.query }));
for (const button of document.querySelectorAll("[data-preset]")) button.addEventListener("click", () => change({ U: "", ...JSON.parse(button.dataset.preset) }));
find("again").addEventListener("click", () => change({ seed: state.seed + 1 }));
find("save-svg").addEventListener("click", () => download("largeprompt.svg", new Blob([figure()], { type: "image/svg+xml" })));
find("save-png").addEventListener("click", async () => download("largeprompt.png", await picture()));
find("save-python").addEventListener("click", () => { settle(); download("largeprompt_explorer.py", new Blob([find("python").textContent], { type: "text/x-python" })); });
find("copy-python").addEventListener("click", (event) => { settle(); copied(event.target, find("python").textContent); });
find("copy-link").addEventListener("click", (event) => { settle(); copied(event.target, location.href); });

// matrices typed by the reader
function useHead() {
  const given = Object.fromEntries(["U", "G", "z"].map((name) => [name, find(`matrix-${name}`).value]));
  const head = headIn(given), problem = head ? head.problem : "U must be rows of numbers";
  if (problem) { find("head-read").textContent = problem; return; }
  change({ ...given, sigma: head.sigma });
}
find("use-head").addEventListener("click", useHead);
find("drop-head").addEventListener("click", () => change({ U: "" }));

// the map is a control too: drag the point
const map = find("chart-regimes");
function follow(event) {
  const box = map.getBoundingClientRect(), [w, h] = sizes.regimes, scales = mapScales(w, h);
  const L = scales.L((event.clientX - box.left) * w / box.width), sigma = scales.sigma((event.clientY - box.top) * h / box.height);
  change({ L: lengths[nearest(lengths, L)], sigma: Math.round(100 * Math.min(MAP_TOP, sigma)) / 100 });
}
map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); follow(event); event.preventDefault(); });
map.addEventListener("pointermove", (event) => { if (map.hasPointerCapture(event.pointerId)) follow(event); });

addEventListener("hashchange", () => change(linked()));
addEventListener("resize", () => { measure(); change({}); });
dark.addEventListener("change", () => change({}));

window.largeprompt = {
  // set a state and return its numbers at once
  state(changes = {}) { change(changes); found = numbers(state); return { ...state, ...found }; },
  python() { return pythonLines(state, numbers(state)); },
  figure,
  picture,
  link: () => linkOf(state),
};

measure();
draw();
settle();
