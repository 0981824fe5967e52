// Tables made by the library (tables.py): Chebyshev series and the averages over queries they serve.

import { quadraticForms } from "./matrices.js";

let table;

export function loadTables(given) {
  table = {};
  for (const [name, value] of Object.entries(given)) {
    if (!value.data) { table[name] = value; continue; }
    const bytes = Uint8Array.from(atob(value.data), (c) => c.charCodeAt(0));
    table[name] = { shape: value.shape, data: new Float64Array(bytes.buffer) };
  }
  table.logVariance = table.variance.data.map(Math.log);
}

export const largestDimension = () => table.ridge.shape[0];
export const noiseRange = () => table.noise;

function chebyshev(x, count) {
  const T = new Float64Array(count);
  T[0] = 1; if (count > 1) T[1] = x;
  for (let k = 2; k < count; k++) T[k] = 2 * x * T[k - 1] - T[k - 2];
  return T;
}

// the panel of ln L and the position in it, from -1 to 1
function place(logL, low, high, panels) {
  const at = (logL - low) / (high - low) * panels, panel = Math.max(0, Math.min(panels - 1, Math.floor(at)));
  return [panel, 2 * (at - panel) - 1];
}

// sum over powers of T_k(x) coefficients[panel, k, ...]
function along(series, panel, x) {
  const [, count, ...rest] = series.shape, size = rest.reduce((a, b) => a * b, 1);
  const T = chebyshev(x, count), found = new Float64Array(size);
  for (let k = 0; k < count; k++) {
    const c = T[k], start = (panel * count + k) * size;
    for (let i = 0; i < size; i++) found[i] += c * series.data[start + i];
  }
  return found;
}

const lengths = new Map(); // of `momentsAt`, for the lengths of the curves

// P_2 and (1 + S) E_1 = P_2 + S (P_2 - 6 P_3 + 6 P_22) at the score variances S_j
export function momentsAt(L, keep = false) {
  if (lengths.has(L)) return lengths.get(L);
  const [panel, x] = place(Math.log(L), 0, table.weights_end, table.weights.shape[0]);
  const log = along(table.weights, panel, x), n = log.length / 2, S = table.variance.data;
  const p2 = new Float64Array(n), error = new Float64Array(n);
  for (let j = 0; j < n; j++) { p2[j] = Math.exp(log[j]); error[j] = (1 + S[j]) * Math.exp(log[n + j]); }
  const found = { p2, error };
  if (keep) lengths.set(L, found);
  return found;
}

function logGammaHalf(d) { // ln Gamma(d/2)
  let log = d % 2 ? 0.5 * Math.log(Math.PI) : 0;
  for (let x = d % 2 ? 0.5 : 1; x < d / 2 - 0.25; x++) log += Math.log(x);
  return log;
}

let lastWeights = {};

// weights of the S_j for S = kappa chi^2_d, and the range of those that are not negligible
export function chiWeights(kappa, d) {
  if (lastWeights.kappa === kappa && lastWeights.d === d) return lastWeights;
  const S = table.variance.data, steps = table.step.data, logS = table.logVariance;
  const weight = new Float64Array(S.length);
  const constant = -logGammaHalf(d) - d / 2 * Math.log(2 * kappa);
  let first = S.length, last = 0;
  for (let j = 0; j < S.length; j++) {
    const log = d / 2 * logS[j] - S[j] / (2 * kappa) + constant;
    // rare queries count: the error of others may be as small as 1e-15
    if (log < -80) { if (last) break; continue; }
    weight[j] = steps[j] * Math.exp(log);
    first = Math.min(first, j); last = j;
  }
  return lastWeights = { kappa, d, weight, first, last, S };
}

// Squared error averaged over queries N(0, I_d): U = sigma / sqrt(d) I, tokens N(0, I_d), V = I
export function errorOfRandomQuery(sigma, d, L) {
  const { weight, first, last } = chiWeights(sigma * sigma / d, d), { p2, error } = momentsAt(L);
  let sum = 0;
  for (let j = first; j <= last; j++) sum += weight[j] * ((d - 1) * p2[j] + error[j]);
  return sum;
}

let lastForms = {};

// the same for a head with matrices (`headOf`), scaled to the deviation sigma
export function errorOfRandomQueryFor(head, sigma, L) {
  const variance = sigma * sigma, S = table.variance.data, steps = table.step.data;
  if (lastForms.head !== head || lastForms.sigma !== sigma) {
    const [l, o] = [head.variances, head.outputs].map((part) => part.map((x) => x * variance));
    lastForms = { head, sigma, ...quadraticForms(l, o, table.logVariance) };
  }
  const { density, weighted } = lastForms, { p2, error } = momentsAt(L);
  let sum = 0;
  for (let j = 0; j < S.length; j++) {
    if (density[j]) sum += steps[j] * (head.token * density[j] * p2[j] + weighted[j] * (error[j] - p2[j]) / S[j]);
  }
  return sum;
}

// L P_2 and the two other functions of an opposite pair: series in ln(1 + S), at one length
export function pairAt(L) {
  const [panel, x] = place(Math.log(L), table.pair_start, table.pair_end, table.pair.shape[0]);
  return { data: along(table.pair, panel, x), count: table.pair.shape[3] };
}

export const longestPair = () => Math.exp(table.pair_end) * (1 + 1e-12);

export function pairFunctions(series, S) {
  const { data, count } = series, x = Math.min(1, 2 * Math.log1p(S) / table.pair_top - 1);
  let before = 1, here = x, a = data[0] + data[1] * x, b = data[count] + data[count + 1] * x;
  let c = data[2 * count] + data[2 * count + 1] * x;
  for (let k = 2; k < count; k++) {
    const ahead = 2 * x * here - before;
    before = here; here = ahead;
    a += ahead * data[k]; b += ahead * data[count + k]; c += ahead * data[2 * count + k];
  }
  return [a, b, c];
}

export function radialRule(d) {
  const n = table.radii.shape[1], at = (d - 1) * n;
  return [table.radii.data.subarray(at, at + n), table.radial.data.subarray(at, at + n)];
}

// E sum_i 1 / (1 + l_i / (d tau^2)) over eigenvalues of sum_i x_i x_i'
export function ridgeTrace(d, noise, L) {
  const c = d * noise;
  if (L > table.ridge_end) { // inverse moments of Wishart matrices
    return c * d / (L - d - 1) - c * c * d * (L - 1) / ((L - d) * (L - d - 1) * (L - d - 3));
  }
  const [low, high] = table.noise.map(Math.log);
  const T = chebyshev(2 * (Math.log(noise) - low) / (high - low) - 1, table.ridge.shape[2]);
  const short = table.ridge_short.shape[1];
  let row, start = 0;
  if (L <= short) {
    row = table.ridge_short.data; start = ((d - 1) * short + L - 1) * T.length;
  } else {
    const x = 2 * Math.log((L - d) / (short - d)) / Math.log((table.ridge_end - d) / (short - d)) - 1;
    row = along(table.ridge, d - 1, x);
  }
  let log = 0;
  for (let k = 0; k < T.length; k++) log += T[k] * row[start + k];
  return Math.exp(log);
}
