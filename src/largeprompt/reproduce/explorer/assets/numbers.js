// Every number of the page, as functions of its state.

import { participation } from "./participation.js";
import { errorOfRandomQuery, largestDimension, momentsAt, noiseRange } from "./tables.js";
import { linearHead, oneHead, pairOfHeads, ridge } from "./learning.js";

export const LONGEST = 1e15; // of the search for a length
const STEEPEST = 3; // root of kappa, for random queries: rare ones then stay within the range of the library
export const START = { sigma: 1.5, L: 1000, d: 5, noise: 0.1, query: "one", target: 0.01, seed: 1 };

export const limits = () => ({
  sigma: [0.05, 4], L: [2, 1e12], d: [1, largestDimension()], noise: noiseRange(),
  target: [1e-4, 0.5], seed: [1, 1e6],
});

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
  if (state.query === "random") state.sigma = Math.min(state.sigma, STEEPEST * Math.sqrt(state.d));
  return state;
}

let integrals = { sigma: NaN, at: new Map() }; // at the deviation shown last, by length

function moments(sigma, L) {
  if (integrals.sigma !== sigma) integrals = { sigma, at: new Map() };
  if (!integrals.at.has(L)) integrals.at.set(L, participation(sigma, L));
  return integrals.at.get(L);
}

// Squared error of the output for tokens N(0, I_d), V = I: at one query of score deviation sigma,
// or averaged over random ones
export function errorAt({ query, sigma, d }, L) {
  if (query === "random") return errorOfRandomQuery(sigma, d, L);
  const { p2, p3, p22 } = moments(sigma, L);
  return d * p2 + sigma * sigma * (p2 - 6 * p3 + 6 * p22);
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

// the search depends on all but L, which is what is dragged most
function searched(state) {
  const { sigma, d, query, target } = state, key = [sigma, d, query, target].join();
  if (known.key !== key) known = { key, length: lengthFor((L) => errorAt(state, L), target * sigma * sigma, errorCurve(state)) };
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
  const kappa = sigma * sigma / d, x = sigma * sigma / Math.log(L);
  const { one, pair } = bestHeads(d, noise, L), linear = linearHead(d, noise, L);
  return {
    p2, effective: 1 / p2, regime: regimeName(sigma, L), x,
    averagingFrom: Math.exp(1.5 * sigma * sigma), frozenUntil: Math.exp(sigma * sigma / 2),
    error: errorAt(state, L), signal: sigma * sigma, kappa, rate: query === "one" ? 1 : sharpExponent(kappa),
    tolerance: target * sigma * sigma, length: searched(state),
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
  const { sigma, d, query } = state, key = [sigma, d, query].join();
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
