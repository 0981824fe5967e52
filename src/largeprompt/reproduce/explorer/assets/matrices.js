// The score deviation of a head, from its matrices.

// rows of numbers, separated by commas or spaces; brackets are ignored; null if it is not a matrix
export function matrixOf(words) {
  const rows = words.split(/[\n;]|\](?=\s*,?\s*\[)/).map((row) => row.replace(/[[\]]/g, " ").split(/[\s,]+/).filter(Boolean).map(Number))
    .filter((row) => row.length);
  const good = rows.length && rows.every((row) => row.length === rows[0].length && row.every(Number.isFinite));
  return good ? rows : null;
}

// sqrt(tr(U' G U)): the root mean square deviation of the scores of tokens with covariance G, for
// queries N(0, I); an error message if the matrices do not fit
export function scoreDeviation(U, G) {
  const d = U.length;
  if (G && (G.length !== d || G[0].length !== d)) return { problem: `the covariance must be ${d} × ${d}, as U has ${d} rows` };
  let variance = 0;
  for (let k = 0; k < U[0].length; k++) {
    for (let i = 0; i < d; i++) {
      if (!G) { variance += U[i][k] ** 2; continue; }
      for (let j = 0; j < d; j++) variance += U[i][k] * G[i][j] * U[j][k];
    }
  }
  if (!(variance > 0)) return { problem: "tr(U'GU) must be positive: is the covariance positive definite?" };
  return { sigma: Math.sqrt(variance), d };
}
