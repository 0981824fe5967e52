// A head with matrices typed by the reader: what the errors at its queries depend on.

// rows of numbers, separated by commas or spaces; brackets are ignored; null if it is not a matrix
export function matrixOf(words) {
  const rows = words.split(/[\n;]|\](?=\s*,?\s*\[)/).map((row) => row.replace(/[[\]]/g, " ").split(/[\s,]+/).filter(Boolean).map(Number))
    .filter((row) => row.length);
  const good = rows.length && rows.every((row) => row.length === rows[0].length && row.every(Number.isFinite));
  return good ? rows : null;
}

export const matrixText = (rows) => rows.map((row) => row.join(",")).join(";").replaceAll("+", "");

const transposed = (A) => A[0].map((_, j) => A.map((row) => row[j]));
const product = (A, B) => A.map((row) => B[0].map((_, j) => row.reduce((sum, a, k) => sum + a * B[k][j], 0)));
const norm2 = (v) => v.reduce((sum, a) => sum + a * a, 0);
const trace = (A) => A.reduce((sum, row, i) => sum + row[i], 0);

// eigenvalues of a symmetric matrix, and eigenvectors as columns, by Jacobi's rotations
export function eigen(symmetric) {
  const n = symmetric.length, A = symmetric.map((row) => [...row]);
  const Q = A.map((_, i) => A.map((_, j) => Number(i === j)));
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let p = 0; p < n; p++) for (let q = 0; q < p; q++) off += A[p][q] ** 2;
    if (off <= 1e-32 * A.reduce((sum, row, i) => sum + row[i] ** 2, 0)) break;
    for (let p = 0; p < n; p++) for (let q = 0; q < p; q++) {
      if (A[p][q] === 0) continue;
      const theta = (A[q][q] - A[p][p]) / (2 * A[p][q]);
      const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1)), c = 1 / Math.hypot(t, 1), s = c * t;
      for (let k = 0; k < n; k++) { const [x, y] = [A[k][p], A[k][q]]; A[k][p] = c * x - s * y; A[k][q] = s * x + c * y; }
      for (let k = 0; k < n; k++) { const [x, y] = [A[p][k], A[q][k]]; A[p][k] = c * x - s * y; A[q][k] = s * x + c * y; }
      for (let k = 0; k < n; k++) { const [x, y] = [Q[k][p], Q[k][q]]; Q[k][p] = c * x - s * y; Q[k][q] = s * x + c * y; }
    }
  }
  return { values: A.map((row, i) => row[i]), vectors: Q };
}

// The head with score matrix U, tokens N(0, G) and V = I, or {problem}. Queries are N(0, I), or one in
// the direction z. Their scores have variance S = z'Mz, M = U'GU, and the infinite prompt gives GUz.
// U is divided by sigma = sqrt(tr M), the deviation of a typical query, which the slider puts back:
//   token     tr G
//   along     |GUz|^2 / S in the direction z
//   variances eigenvalues of M / tr M that are not zero
//   outputs   the mean of |GUz|^2 in the direction of each eigenvector, over tr M
export function headOf(U, G, z) {
  const d = U.length, square = (A) => A.length === d && A.every((row) => row.length === d);
  if (!square(U)) return { problem: `U must be square; it is ${d} × ${U[0].length}` };
  if (G && !square(G)) return { problem: `the covariance must be ${d} × ${d}, as U has ${d} rows` };
  const direction = z ? z.flat() : U.map(() => 1), I = U.map((_, i) => U.map((_, j) => Number(i === j)));
  if (direction.length !== d) return { problem: `the query must have ${d} numbers, as U has ${d} rows` };
  const cov = G || I;
  if (G) {
    const largest = Math.max(...G.flat().map(Math.abs));
    if (G.some((row, i) => row.some((g, j) => Math.abs(g - G[j][i]) > 1e-9 * largest))) return { problem: "the covariance must be symmetric" };
    if (!(Math.min(...eigen(G).values) >= -1e-9 * largest)) return { problem: "the covariance must be positive semidefinite" };
  }
  const GU = product(cov, U), M = product(transposed(U), GU), variance = trace(M);
  if (!(variance > 0)) return { problem: "tr(UᵀGU) must be positive" };
  const column = direction.map((x) => [x]), scores = product(transposed(column), product(M, column))[0][0];
  if (!(scores > 1e-12 * variance * norm2(direction))) return { problem: "the scores of the query must not be constant: U z = 0" };
  const { values, vectors } = eigen(M), kept = values.map((_, i) => i).filter((i) => values[i] > 1e-13 * variance);
  const turned = transposed(product(GU, vectors));
  return {
    d, sigma: Math.sqrt(variance), token: trace(cov),
    along: norm2(product(GU, column).flat()) / scores,
    variances: kept.map((i) => values[i] / variance), outputs: kept.map((i) => norm2(turned[i]) / variance),
    U, G, query: direction.map((x) => x * Math.sqrt(variance / scores)), // typical: its deviation is sigma
  };
}

// Averages over z ~ N(0, I_r) of a function of S = sum_k l_k z_k^2 and q = sum_k o_k z_k^2, as sums over
// nodes in ln S: `density` S p(S) and `weighted` S p(S) E[q | S] at each node.
// Both are Laplace integrals over parabolas through the saddle point s, along which
//   s + c = D (1 + iu)^2,   c = 1 / (2 max l):
// the integrand decays like a Gaussian, and the nearest singularity is u = i.
export function quadraticForms(l, o, logS) {
  const density = new Float64Array(logS.length), weighted = new Float64Array(logS.length);
  const r = l.length, top = Math.max(...l), c = 1 / (2 * top), far = l.map((x) => 1 / (2 * x) - c);
  // 1 + 2 l s = 2 l (s + c + far)
  const constant = -0.5 * l.reduce((sum, x) => sum + Math.log(2 * x), 0);
  let D = 1;
  for (let j = 0; j < logS.length; j++) {
    const S = Math.exp(logS[j]);
    for (let i = 0; i < 60; i++) { // Newton for ln D: sum_k 1 / (2 (D + far_k)) = S
      let g = 0, slope = 0;
      for (const f of far) { g += 0.5 / (D + f); slope += 0.5 * D / (D + f) ** 2; }
      const step = Math.max(-3, Math.min(3, Math.log(g / S) * g / slope));
      D *= Math.exp(step);
      if (Math.abs(step) < 1e-6) break;
    }
    let width = 2 * D * S - 1, level = (D - c) * S + constant; // half the curvature, and ln of the integrand at u = 0
    for (const f of far) { const x = D / (D + f); width += x * (2 * x - 1); level -= 0.5 * Math.log(D + f); }
    if (level + Math.log(S * D) < -80) continue; // as in chiWeights
    const h = Math.min(0.2, 0.6 / Math.sqrt(Math.max(width / 2, 1)));
    let p = 0, pq = 0;
    for (let n = 0; n < 200; n++) {
      const u = n * h, re = D * (1 - u * u), im = 2 * D * u; // of s + c
      let log = -D * S * u * u, angle = im * S, a = 0, b = 0; // a + ib: sum_k o_k / (1 + 2 l_k s)
      for (let k = 0; k < r; k++) {
        const x = re + far[k], size = x * x + im * im;
        log -= 0.25 * Math.log(size / (D + far[k]) ** 2);
        angle -= 0.5 * Math.atan2(im, x);
        a += o[k] * x / (2 * l[k] * size); b -= o[k] * im / (2 * l[k] * size);
      }
      const weight = n ? Math.exp(log) : 0.5, cos = Math.cos(angle), sin = Math.sin(angle);
      const first = cos - u * sin, second = sin + u * cos; // of (1 + iu) e^{i angle}
      p += weight * first; pq += weight * (a * first - b * second);
      if (weight * (1 + u) < 1e-17) break;
    }
    const scale = S * 2 * D / Math.PI * h * Math.exp(level);
    density[j] = scale * p; weighted[j] = scale * pq;
  }
  return { density, weighted };
}
