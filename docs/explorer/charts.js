// Charts as SVG markup: strings of the state, so that the page and an exported file show the same.

export const LIGHT = {
  ink: "#1b1f24", soft: "#57606a", line: "#d8dee4", paper: "#ffffff", here: "#b3261e",
  blue: "#0072b2", orange: "#c04f00", green: "#007a5a", pink: "#a8487e",
  averaging: "#e3f1ea", rare: "#fdf3d6", frozen: "#e6e9f5",
};
export const DARK = {
  ink: "#e6e8eb", soft: "#a0a8b2", line: "#3a414a", paper: "#16191d", here: "#ff8a80",
  blue: "#5ab4f0", orange: "#ff9d57", green: "#4cc9a0", pink: "#e59bc4",
  averaging: "#1c322a", rare: "#3a3218", frozen: "#262b45",
};

const FONT = "system-ui, sans-serif";
const SUPER = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const MINUS = "−";

export const powerOfTen = (k) => k === 0 ? "1" : k === 1 ? "10" : "10" + [...String(k)].map((c) => SUPER[c]).join("");

// a number in a few characters: 0.0123, 1,312, 2.4 × 10⁸
export function shown(value, digits = 3) {
  if (value === Infinity) return "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-3) {
    const [m, e] = value.toExponential(digits - 1).split("e");
    return `${m} × ${powerOfTen(Number(e))}`.replace("-", MINUS);
  }
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

const fixed = (x) => Math.round(x * 10) / 10;

function text(x, y, words, { size = 12, fill, anchor = "start", weight = "", turn = "" }) {
  const rotate = turn ? ` transform="rotate(${turn} ${fixed(x)} ${fixed(y)})"` : "";
  const bold = weight ? ` font-weight="${weight}"` : "";
  return `<text x="${fixed(x)}" y="${fixed(y)}" font-family="${FONT}" font-size="${size}" fill="${fill}"` +
    ` text-anchor="${anchor}"${bold}${rotate}>${words}</text>`;
}

const line = (x1, y1, x2, y2, colour, width = 1, dash = "") =>
  `<line x1="${fixed(x1)}" y1="${fixed(y1)}" x2="${fixed(x2)}" y2="${fixed(y2)}" stroke="${colour}"` +
  ` stroke-width="${width}"${dash ? ` stroke-dasharray="${dash}"` : ""}/>`;

// a smooth curve through points that are close together: cubic segments with shared slopes
function path(points, colour, width = 2.2, dash = "") {
  let d = "";
  for (let i = 0; i < points.length; i++) {
    const [x, y] = points[i];
    if (i === 0) { d = `M${fixed(x)} ${fixed(y)}`; continue; }
    const [px, py] = points[i - 1], before = points[i - 2] || points[i - 1], after = points[i + 1] || points[i];
    const first = (y - before[1]) / (x - before[0] || 1), second = (after[1] - py) / (after[0] - px || 1);
    const third = (x - px) / 3;
    d += `C${fixed(px + third)} ${fixed(py + third * first)} ${fixed(x - third)} ${fixed(y - third * second)} ${fixed(x)} ${fixed(y)}`;
  }
  return `<path d="${d}" fill="none" stroke="${colour}" stroke-width="${width}"${dash ? ` stroke-dasharray="${dash}"` : ""}/>`;
}

const EDGE = { left: 56, right: 14, top: 30, bottom: 42 };

// scales, and the axes with decades of L across
function frame({ w, h, title, palette, xTop, yLow, yHigh, yLabel, yTicks, yLog, xLabel = "tokens in the prompt, L" }) {
  const right = w - EDGE.right, bottom = h - EDGE.bottom, decades = Math.log10(xTop);
  const X = (L) => EDGE.left + (right - EDGE.left) * Math.min(1, Math.max(0, Math.log10(L) / decades));
  const scale = yLog ? Math.log10 : (y) => y, low = scale(yLow), high = scale(yHigh);
  const Y = (y) => bottom - (bottom - EDGE.top) * (scale(y) - low) / (high - low);
  let svg = text(EDGE.left, 17, title, { size: 13, fill: palette.ink, weight: 600 });
  const every = Math.ceil(decades / 6);
  for (let k = 0; k <= decades; k += every) {
    const x = X(10 ** k);
    svg += line(x, EDGE.top, x, bottom, palette.line, 0.6) + text(x, bottom + 16, powerOfTen(k), { fill: palette.soft, anchor: "middle" });
  }
  for (const [y, words] of yTicks) {
    svg += line(EDGE.left, Y(y), right, Y(y), palette.line, 0.6) + text(EDGE.left - 6, Y(y) + 4, words, { fill: palette.soft, anchor: "end" });
  }
  svg += text((EDGE.left + right) / 2, h - 8, xLabel, { fill: palette.soft, anchor: "middle" });
  svg += text(13, (EDGE.top + bottom) / 2, yLabel, { fill: palette.soft, anchor: "middle", turn: "-90" });
  return { svg, X, Y, right, bottom };
}

function decadeTicks(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first) / 6)), ticks = [];
  for (let k = first; k <= last; k += every) ticks.push([10 ** k, powerOfTen(k)]);
  return ticks;
}

const halo = (palette) => `<g paint-order="stroke" stroke="${palette.paper}" stroke-width="3" stroke-linejoin="round">`;

const dot = (x, y, colour, paper, r = 5.5) =>
  `<circle cx="${fixed(x)}" cy="${fixed(y)}" r="${r}" fill="${colour}" stroke="${paper}" stroke-width="2"/>`;

export function errorChart({ w, h, palette, state, found, points }) {
  const high = 10 ** Math.ceil(Math.log10(points[0][1] * 1.2)), last = points[points.length - 1];
  const low = 10 ** Math.floor(Math.log10(Math.min(last[1], found.tolerance) * 0.8));
  const f = frame({
    w, h, palette, xTop: 1e12, yLow: low, yHigh: high, yLog: true, yTicks: decadeTicks(low, high),
    title: "Squared error against length", yLabel: "squared error",
  });
  const { X, Y, right, bottom } = f, random = state.query === "random", clip = `clip-${w}-${h}`;
  // the proved bound at one query; the exponent of random ones through the end of the curve
  const bound = random ? (L) => last[1] * (L / last[0]) ** -found.rate
    : (L) => found.bound / L;
  let svg = f.svg + `<clipPath id="${clip}"><rect x="${EDGE.left}" y="${EDGE.top}" width="${right - EDGE.left}" height="${bottom - EDGE.top}"/></clipPath>`;
  svg += `<g clip-path="url(#${clip})">` + line(X(1), Y(bound(1)), X(1e12), Y(bound(1e12)), palette.orange, 1.8, "6 4");
  svg += line(EDGE.left, Y(found.tolerance), right, Y(found.tolerance), palette.green, 1.4, "2 4");
  svg += path(points.map(([L, e]) => [X(L), Y(e)]), palette.blue, 2.6) + "</g>";
  if (found.length <= 1e12) {
    const x = X(found.length);
    svg += line(x, Y(found.tolerance), x, bottom, palette.green, 1.4, "2 4") + dot(x, Y(found.tolerance), palette.green, palette.paper, 4.5);
  }
  svg += line(X(state.L), EDGE.top, X(state.L), bottom, palette.here, 1) + dot(X(state.L), Y(found.error), palette.here, palette.paper);
  const rate = random && found.rate < 1 ? `sharp rate L<tspan dy="-4" font-size="9">${MINUS}${shown(found.rate)}</tspan>`
    : random ? "sharp rate 1/L" : "sharp bound, ∝ 1/L";
  const at = { size: 12, anchor: "end" };
  svg += halo(palette) + text(right - 4, EDGE.top + 15, "exact", { ...at, fill: palette.blue, weight: 600 });
  svg += text(right - 4, EDGE.top + 31, rate, { ...at, fill: palette.orange, weight: 600 });
  svg += text(right - 4, EDGE.top + 47, "tolerance", { ...at, fill: palette.green, weight: 600 }) + "</g>";
  return svg;
}

export const MAP_TOP = 4;

export function mapScales(w, h) { // and back, for the pointer
  const width = w - EDGE.left - EDGE.right, height = h - EDGE.top - EDGE.bottom;
  return {
    L: (x) => 10 ** (12 * Math.min(1, Math.max(0, (x - EDGE.left) / width))),
    sigma: (y) => MAP_TOP * Math.min(1, Math.max(0, (h - EDGE.bottom - y) / height)),
  };
}

export function regimeChart({ w, h, palette, state, found }) {
  const f = frame({
    w, h, palette, xTop: 1e12, yLow: 0, yHigh: MAP_TOP, yTicks: [0, 1, 2, 3, 4].map((s) => [s, String(s)]),
    title: "Regimes of the weights", yLabel: "score deviation, σ",
  });
  const { X, Y, right, bottom } = f;
  const edge = (c) => {
    let d = "";
    for (let i = 0; i <= 60; i++) {
      const x = EDGE.left + (right - EDGE.left) * i / 60, sigma = Math.min(MAP_TOP, Math.sqrt(c * 12 * Math.LN10 * i / 60));
      d += `${i ? "L" : "M"}${fixed(x)} ${fixed(Y(sigma))}`;
    }
    return d;
  };
  const area = (d, fill) => `<path d="${d}L${right} ${bottom}L${EDGE.left} ${bottom}Z" fill="${fill}"/>`;
  let svg = `<rect x="${EDGE.left}" y="${EDGE.top}" width="${right - EDGE.left}" height="${bottom - EDGE.top}" fill="${palette.frozen}"/>`;
  svg += area(edge(2), palette.rare) + area(edge(2 / 3), palette.averaging);
  svg += `<path d="${edge(2)}" fill="none" stroke="${palette.soft}"/><path d="${edge(2 / 3)}" fill="none" stroke="${palette.soft}"/>`;
  svg += f.svg;
  const label = (L, sigma, words, note, anchor = "middle") =>
    text(X(L), Y(sigma), words, { size: 12.5, fill: palette.ink, weight: 600, anchor }) +
    text(X(L), Y(sigma) + 14, note, { size: 11, fill: palette.soft, anchor });
  // names of regions stay clear of the point
  const x = X(state.L), y = Y(state.sigma), clear = (L, sigma) => Math.abs(X(L) - x) > 120 || Math.abs(Y(sigma) - y) > 45;
  svg += label(1.5, 3.68, "frozen", "one wins", "start");
  svg += clear(7e4, 3.55) ? label(7e4, 3.55, "rare tokens", "a few carry the weights") : label(400, 2.45, "rare tokens", "");
  svg += label(...(clear(3e8, 1.3) ? [3e8, 1.3] : [3e8, 2.6]), "self-averaging", found.rate < 1 ? "at a typical query" : "error falls like 1/L");
  svg += line(X(state.L), EDGE.top, X(state.L), bottom, palette.here, 0.8, "3 3") + line(EDGE.left, Y(state.sigma), right, Y(state.sigma), palette.here, 0.8, "3 3");
  svg += dot(X(state.L), Y(state.sigma), palette.here, palette.paper, 7);
  const left = X(state.L) > (EDGE.left + right) / 2;
  svg += halo(palette) + text(X(state.L) + (left ? -12 : 12), Y(state.sigma) - 9, "you are here", { fill: palette.here, weight: 600, anchor: left ? "end" : "start" }) + "</g>";
  return svg;
}

export const BARS = 40;

export function weightChart({ w, h, palette, state, prompt }) {
  const right = w - EDGE.right, bottom = h - EDGE.bottom, { weights, rest } = prompt;
  const decade = 10 ** Math.floor(Math.log10(weights[0])), height = bottom - EDGE.top;
  const lead = [1, 2, 5, 10].find((m) => m * decade >= weights[0]), scale = lead * decade, parts = lead === 2 ? 4 : 5;
  let svg = text(EDGE.left, 17, "Weights of one sampled prompt", { size: 13, fill: palette.ink, weight: 600 });
  for (let i = 0; i <= parts; i++) {
    const y = bottom - height * i / parts;
    svg += line(EDGE.left, y, right, y, palette.line, 0.6) + text(EDGE.left - 6, y + 4, shown(scale * i / parts, 2), { size: 11, fill: palette.soft, anchor: "end" });
  }
  const pitch = (right - EDGE.left) / Math.max(weights.length, 12), wide = Math.max(1, pitch * 0.72);
  weights.forEach((p, i) => {
    const tall = Math.max(0.5, height * Math.min(1, p / scale));
    svg += `<rect x="${fixed(EDGE.left + pitch * i + (pitch - wide) / 2)}" y="${fixed(bottom - tall)}" width="${fixed(wide)}" height="${fixed(tall)}" fill="${palette.blue}"/>`;
  });
  svg += text((EDGE.left + right) / 2, h - 8, "tokens, the heaviest first", { fill: palette.soft, anchor: "middle" });
  const say = (i, words, bold) => text(right - 4, EDGE.top + 15 + 16 * i, words, { fill: bold ? palette.ink : palette.soft, anchor: "end", weight: bold ? 600 : "" });
  svg += say(0, `this prompt is worth ${shown(prompt.effective)} equal tokens`, true);
  if (state.L > weights.length) svg += say(1, `the other ${shown(state.L - weights.length)} share ${shown(100 * rest, 2)}%`);
  if (!prompt.exact) svg += say(2, "(their sum replaced by its mean)");
  return svg;
}

export const PREDICTORS = [
  ["one", "one softmax head", "blue"], ["pair", "pair of softmax heads", "green"],
  ["linear", "linear head", "orange"], ["bayes", "ridge regression", "pink"],
];

export function riskChart({ w, h, palette, state, found, risks }) {
  const high = 0.5 * (1 + state.noise) * 1.08, low = found.floor * 0.88, ticks = [];
  for (let k = -3; k < 2; k++) for (const m of high < 5 * low ? [1, 2, 3, 4, 5, 6, 7, 8] : [1, 2, 5]) if (m * 10 ** k >= low && m * 10 ** k <= high) ticks.push([m * 10 ** k, shown(m * 10 ** k)]);
  const f = frame({
    w, h, palette, xTop: 1e6, yLow: low, yHigh: high, yLog: true, yTicks: ticks,
    title: "In-context regression: the best risks", yLabel: "risk",
  });
  const { X, Y, right, bottom } = f;
  let svg = f.svg + line(EDGE.left, Y(found.floor), right, Y(found.floor), palette.soft, 1.2, "2 4");
  svg += text(EDGE.left + 6, Y(found.floor) - 5, "noise", { size: 11, fill: palette.soft });
  for (const [name, , colour] of PREDICTORS) {
    svg += path(risks[name].map(([L, r]) => [X(L), Y(r)]), palette[colour], name === "pair" ? 2 : 2.4, name === "pair" ? "7 4" : "");
  }
  svg += line(X(state.L), EDGE.top, X(state.L), bottom, palette.here, 1);
  const values = { one: found.oneHead.risk, pair: found.pair.risk, linear: found.linear, bayes: found.ridge };
  PREDICTORS.forEach(([name, words, colour], i) => {
    if (state.L <= 1e6) svg += dot(X(state.L), Y(values[name]), palette[colour], palette.paper, 4.5);
    svg += text(right - 4, EDGE.top + 15 + 16 * i, words, { fill: palette[colour], anchor: "end", weight: 600 });
  });
  return svg;
}

// all charts in one file
export function wholeFigure(parts, sentence, w = 520, h = 340) {
  const inside = (draw, i) => `<svg x="${(i % 2) * w}" y="${40 + Math.floor(i / 2) * h}" width="${w}" height="${h}">${draw(w, h)}</svg>`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${2 * w}" height="${2 * h + 40}" viewBox="0 0 ${2 * w} ${2 * h + 40}">` +
    `<rect width="100%" height="100%" fill="${LIGHT.paper}"/>` +
    text(w, 26, sentence, { size: 15, fill: LIGHT.ink, anchor: "middle" }) + parts.map(inside).join("") + "</svg>";
}
