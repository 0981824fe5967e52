// Every number of the page, as functions of its state.

import { participation } from "./participation.js";
import { headOf, matrixOf, matrixText } from "./matrices.js";
import { errorOfRandomQuery, errorOfRandomQueryFor, largestDimension, momentsAt, noiseRange } from "./tables.js";
import { linearHead, oneHead, pairOfHeads, ridge } from "./learning.js";

export const LONGEST = 1e15; // of the search for a length
const STEEPEST = 3; // root of kappa = max eigenvalue of U'GU, for random queries: rare ones then stay within the range of the library
export const START = { sigma: 1.5, L: 1000, d: 5, noise: 0.1, query: "one", target: 0.01, seed: 1, U: "", G: "", z: "" };

export const limits = () => ({
  sigma: [0.05, 4], L: [2, 1e12], d: [1, largestDimension()], noise: noiseRange(),
  target: [1e-4, 0.5], seed: [1, 1e6],
});

let readings = { key: "", head: null };

// the head of the matrices of a state: {problem} if they do not fit, null if there are none
export function headIn({ U, G, z }) {
  const key = [U, G, z].join("|");
  if (readings.key !== key) readings = { key, head: U ? readHead(U, G, z) : null };
  return readings.head;
}

function readHead(U, G, z) {
  const read = [U, G, z].map(matrixOf), names = ["U", "the covariance", "the query"];
  const unread = [U, G, z].findIndex((words, i) => words.trim() && !read[i]);
  if (unread >= 0) return { problem: `${names[unread]} must be rows of numbers` };
  if (read[0].length > largestDimension()) return { problem: `U must have at most ${largestDimension()} rows` };
  return headOf(...read);
}

// a valid state from anything: missing or unreadable entries keep their value in `before`
export function validState(given, before = START) {
  const state = { ...before };
  for (const [name, [low, high]] of Object.entries(limits())) {
    const text = given[name];
    const value = text === undefined || text === "" ? NaN : Number(text);
    if (Number.isFinite(value)) state[name] = Math.min(high, Math.max(low, value));
  }
  for (const name of ["L", "d", "seed"]) state[name] = Math.round(state[name]);
  if (given.query === "one" || given.query === "random") state.query = given.query;
  for (const name of ["U", "G", "z"]) if (typeof given[name] === "string") state[name] = matrixText(matrixOf(given[name]) || []);
  const head = headIn(state);
  // a dimension given alone is that of an isotropic head
  if (!head || head.problem || (given.U === undefined && state.d !== head.d)) state.U = state.G = state.z = "";
  else state.d = head.d;
  if (state.query === "random") {
    const steepest = Math.max(...(state.U ? headIn(state).variances : [1 / state.d]));
    state.sigma = Math.min(state.sigma, STEEPEST / Math.sqrt(steepest));
  }
  return state;
}

let integrals = { sigma: NaN, at: new Map() }; // at the deviation shown last, by length

function moments(sigma, L) {
  if (integrals.sigma !== sigma) integrals = { sigma, at: new Map() };
  if (!integrals.at.has(L)) integrals.at.set(L, participation(sigma, L));
  return integrals.at.get(L);
}

// what errors depend on: of the head in the state, or of the isotropic one
function headTraits(state) {
  const head = headIn(state), { d, query } = state;
  if (!head) return { token: d, along: 1, steepest: 1 / d };
  const mean = head.outputs.reduce((sum, x) => sum + x, 0);
  return { token: head.token, along: query === "random" ? mean : head.along, steepest: Math.max(...head.variances) };
}

// Squared error of the output for V = I: at one query of score deviation sigma, or averaged over
// random ones
export function errorAt(state, L) {
  const { query, sigma, d } = state, head = headIn(state);
  if (query === "random") return head ? errorOfRandomQueryFor(head, sigma, L) : errorOfRandomQuery(sigma, d, L);
  const { p2, p3, p22 } = moments(sigma, L), { token, along } = headTraits(state);
  return token * p2 + along * sigma * sigma * (p2 - 6 * p3 + 6 * p22);
}

export function sharpExponent(kappa) {
  return kappa <= 0.5 ? 1 : 1 / kappa / (Math.sqrt(0.25 + 1 / kappa) + 0.5);
}

// the smallest L with error(L) <= target, in whole tokens (nine digits above 1e9)
export function lengthFor(error, target, points) {
  const known = [...points, [LONGEST, error(LONGEST)]], first = known.findIndex(([, value]) => value <= target);
  if (first < 0) return Infinity;
  if (first === 0) return 1;
  let [low, above] = known[first - 1].map(Math.log), [high, below] = known[first].map(Math.log);
  above -= Math.log(target); below -= Math.log(target);
  for (let i = 0; i < 80 && high - low > 1e-10 && Math.ceil(Math.exp(low) + 1e-9) < Math.exp(high) - 1e-9; i++) {
    let middle = low + (high - low) * above / (above - below);
    // a plain bisection now and then, and never too close to an end
    const least = 0.02 * (high - low);
    middle = i % 4 === 3 ? (low + high) / 2 : Math.min(high - least, Math.max(low + least, middle));
    const value = Math.log(error(Math.exp(middle)) / target);
    if (value > 0) { low = middle; above = value; } else { high = middle; below = value; }
  }
  const near = Math.exp(high);
  if (near > 1e9) return Math.ceil(near);
  let found = Math.max(1, Math.floor(Math.exp(low)));
  while (error(found) > target) found++;
  return found;
}

export function regimeName(sigma, L) {
  const x = sigma * sigma / Math.log(L);
  return x <= 2 / 3 ? "self-averaging" : x < 2 ? "rare tokens" : "frozen";
}

let known = {};

// mean square of the output on an infinite prompt
const signalOf = (state) => headTraits(state).along * state.sigma ** 2;

// the search depends on all but L, which is what is dragged most
function searched(state) {
  const { sigma, d, query, target, U, G, z } = state, key = [sigma, d, query, target, U, G, z].join("|");
  if (known.key !== key) known = { key, length: lengthFor((L) => errorAt(state, L), target * signalOf(state), errorCurve(state)) };
  return known.length;
}

let heads = {};

function bestHeads(d, noise, L) {
  const key = [d, noise, L].join();
  if (heads.key !== key) heads = { key, one: oneHead(d, noise, L), pair: pairOfHeads(d, noise, L) };
  return heads;
}

export function numbers(state) {
  const { sigma, L, d, noise, query, target } = state, { p2 } = moments(sigma, L);
  const { token, steepest } = headTraits(state), signal = signalOf(state), kappa = steepest * sigma * sigma, x = sigma * sigma / Math.log(L);
  const { one, pair } = bestHeads(d, noise, L), linear = linearHead(d, noise, L);
  return {
    p2, effective: 1 / p2, regime: regimeName(sigma, L), x,
    averagingFrom: Math.exp(1.5 * sigma * sigma), frozenUntil: Math.exp(sigma * sigma / 2),
    error: errorAt(state, L), signal, bound: Math.exp(sigma * sigma) * (token + signal), kappa, rate: query === "one" ? 1 : sharpExponent(kappa),
    tolerance: target * signal, length: searched(state),
    oneHead: one, pair, linear: linear.risk, linearProduct: linear.product,
    ridge: ridge(d, noise, L), floor: noise / 2,
  };
}

const spaced = (low, high, count) =>
  Array.from({ length: count }, (_, i) => low * (high / low) ** (i / (count - 1)));
const COARSE = 0.02; // of ln a, for curves: a thousandth of a pixel
const ERROR_LENGTHS = spaced(1, 1e12, 31);
const RISK_LENGTHS = [...new Set(spaced(2, 1e6, 31).map(Math.round))];

let errors = {}, risks = {};

export function errorCurve(state) {
  const { sigma, d, query, U, G, z } = state, key = [sigma, d, query, U, G, z].join("|");
  if (errors.key !== key) {
    if (query === "random") ERROR_LENGTHS.forEach((L) => momentsAt(L, true));
    errors = { key, points: ERROR_LENGTHS.map((L) => [L, errorAt(state, L)]) };
  }
  return errors.points;
}

export function riskCurves({ d, noise }) {
  const key = [d, noise].join();
  if (risks.key !== key) {
    const one = [], pair = [], linear = [], bayes = [];
    let a = 0, small = 0;
    for (const L of RISK_LENGTHS) {
      momentsAt(L, true);
      const first = oneHead(d, noise, L, a, COARSE), second = pairOfHeads(d, noise, L, small, COARSE);
      a = first.a; small = second.a;
      one.push([L, first.risk]); pair.push([L, second.risk]);
      linear.push([L, linearHead(d, noise, L).risk]); bayes.push([L, ridge(d, noise, L)]);
    }
    risks = { key, one, pair, linear, bayes };
  }
  return risks;
}
