// Risks of in-context linear regression: w ~ N(0, I/d), x ~ N(0, I), noise of variance tau^2.
// Heads in block form, A = a I. The risk is a quadratic of b: only a is searched for.

import { chiWeights, longestPair, momentsAt, pairAt, pairFunctions, radialRule, ridgeTrace } from "./tables.js";

// b and the risk, where 2 R = 1 + tau^2 - 2 b m_1 + b^2 m_2
const best = (a, m1, m2, noise) => ({ a, b: m1 / m2, risk: 0.5 * (1 + noise - m1 * m1 / m2) });

const FINE = 2e-4; // of ln a: the risk is flat there

// the smallest value of f over ln a, by steps downhill from a start and a golden section search
function minimise(f, start, low, high, precision) {
  let step = 0.2, here = Math.log(start), value = f(here).risk, left, right;
  const towards = f(here + step).risk < value ? 1 : -1;
  let next = here + towards * step, ahead = f(next).risk, behind = here - towards * step;
  while (ahead < value && next > low && next < high) {
    behind = here; here = next; value = ahead;
    step *= 1.6; next += towards * step; ahead = f(next).risk;
  }
  [left, right] = [Math.max(low, Math.min(behind, next)), Math.min(high, Math.max(behind, next))];
  const ratio = (Math.sqrt(5) - 1) / 2;
  let x = right - ratio * (right - left), y = left + ratio * (right - left), fx = f(x), fy = f(y);
  while (right - left > precision) {
    if (fx.risk < fy.risk) { right = y; y = x; fy = fx; x = right - ratio * (right - left); fx = f(x); }
    else { left = x; x = y; fx = fy; y = left + ratio * (right - left); fy = f(y); }
  }
  return fx.risk < fy.risk ? fx : fy;
}

export function oneHead(d, noise, L, start, precision = FINE) {
  const { p2, error } = momentsAt(L);
  return minimise((log) => {
    const a = Math.exp(log), { weight, first, last, S } = chiWeights(a * a, d);
    let e2 = 0, e2S = 0, ehS = 0; // E P_2, E[P_2 S], E[H S], H = P_2 + 6 P_3 - 6 P_22
    for (let j = first; j <= last; j++) {
      const w = weight[j];
      e2 += w * p2[j]; e2S += w * p2[j] * S[j]; ehS += w * (2 * p2[j] * S[j] - (error[j] - p2[j]));
    }
    return best(a, a - e2S / (a * d), a * a + (1 + noise) * e2 - ehS / d, noise);
  }, start || Math.sqrt(3 / d), Math.log(0.05), Math.log(40), precision);
}

const SMALLEST = 0.01; // below this a a pair has the risk of its limit to rounding
const LARGEST_DEVIATION = 8, RARE = 1e-8; // of scores, apart from rare queries

function largestPair(x, w) {
  let i = x.length - 1;
  for (let sum = w[i]; sum < RARE; sum += w[i]) i--;
  return 0.999 * LARGEST_DEVIATION / Math.sqrt(x[i]);
}

// the best pair (a, b), (-a, -b); a = 0 is the limit a -> 0 with a b fixed
export function pairOfHeads(d, noise, L, start, precision = FINE) {
  const limit = { a: 0, b: Infinity, risk: linearHead(d, noise, L - 1).risk };
  if (L > longestPair()) return limit;
  const series = pairAt(L), [x, w] = radialRule(d);
  const found = minimise((log) => {
    const a = Math.exp(log);
    let e2S = 0, e1 = 0, eK = 0;
    for (let i = 0; i < x.length; i++) {
      const S = a * a * x[i], [p2, first, second] = pairFunctions(series, S);
      e2S += w[i] * S * p2 / L;
      e1 += w[i] * S * first * 2 * (L - 1) / (L * L);
      eK -= w[i] * S * second * 2 / L;
    }
    return best(a, 2 * (a - e2S / (a * d)), 4 * a * a + 2 * (1 + noise) * e1 + 2 * eK / d, noise);
  }, start || 0.5 / Math.sqrt(d), Math.log(SMALLEST), Math.log(largestPair(x, w)), precision);
  return found.a > 1.05 * SMALLEST && found.risk < limit.risk ? found : limit;
}

export function linearHead(d, noise, L) {
  const product = 1 / (1 + 1 / L + d * (1 + noise) / L); // b a
  return { product, risk: 0.5 * (1 + noise - product) };
}

export const ridge = (d, noise, L) => 0.5 * noise * (1 + ridgeTrace(d, noise, L) / (d * noise));
