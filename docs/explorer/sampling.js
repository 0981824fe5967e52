// The weights of one sampled prompt.

import { erfc } from "./participation.js";

const ALL = 4096; // longer prompts are sampled through their largest scores
const TOP = 64;

function generator(seed) { // a 32-bit counter hashed to (0, 1)
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let x = state;
    x = Math.imul(x ^ (x >>> 16), 0x85ebca6b); x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
    return (((x ^ (x >>> 16)) >>> 0) + 0.5) / 4294967296;
  };
}

// x with P(normal > x) = q <= 1/2, by Newton's method for the logarithm of the tail
function upperQuantile(q) {
  let x = Math.sqrt(Math.max(0, -2 * Math.log(2 * q)));
  for (let i = 0; i < 12; i++) {
    const tail = 0.5 * erfc(x * Math.SQRT1_2), density = Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
    x += (Math.log(tail) - Math.log(q)) * tail / density;
  }
  return x;
}

let drawn = {};

// scores in units of their deviation, the largest first; all of them, or the largest TOP
function scoresOf(L, seed) {
  if (drawn.L === L && drawn.seed === seed) return drawn.scores;
  const uniform = generator(Math.imul(seed, 7919) + L);
  let scores = [];
  if (L <= ALL) {
    while (scores.length < L) {
      const radius = Math.sqrt(-2 * Math.log(uniform())), angle = 2 * Math.PI * uniform();
      scores.push(radius * Math.cos(angle), radius * Math.sin(angle));
    }
    scores = Float64Array.from(scores.slice(0, L)).sort().reverse();
  } else {
    let q = 0; // the k-th smallest of L uniform numbers
    for (let k = 0; k < TOP; k++) {
      q += (1 - q) * -Math.expm1(Math.log(uniform()) / (L - k));
      scores.push(upperQuantile(q));
    }
  }
  drawn = { L, seed, scores };
  return scores;
}

// {weights: the largest, first; rest: what the others share; effective: 1 / sum p^2; exact}
export function samplePrompt(sigma, L, seed, shown) {
  const scores = scoresOf(L, seed), top = scores[0];
  let sum = 0, squares = 0;
  for (const s of scores) { const e = Math.exp(sigma * (s - top)); sum += e; squares += e * e; }
  if (L > ALL) { // the sum of the others is replaced by its mean
    const edge = scores[TOP - 1], below = 1 - 0.5 * erfc(edge * Math.SQRT1_2), others = L - TOP;
    const mean = (k) => Math.exp(k * k * sigma * sigma / 2 - k * sigma * top) *
      (0.5 * erfc(-(edge - k * sigma) * Math.SQRT1_2)) / below;
    sum += others * mean(1); squares += others * mean(2);
  }
  const weights = [];
  let rest = 1;
  for (let i = 0; i < Math.min(shown, L); i++) {
    weights.push(Math.exp(sigma * (scores[i] - top)) / sum);
    rest -= weights[i];
  }
  return { weights, rest: Math.max(0, rest), effective: sum * sum / squares, exact: L <= ALL };
}
