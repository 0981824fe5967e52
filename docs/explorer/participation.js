// Moments of the softmax weights of Gaussian scores: the quadrature of participation/_laplace.py.
// With s_i iid N(0, sigma^2), p = softmax(s) and 1/S^K = int t^{K-1} e^{-tS} dt / Gamma(K), every
// moment is one integral over tau = ln t of products of phi_k(t) = E[e^{ks} exp(-t e^s)].

const DROP = 37, SWITCH = 0.8, SCORES = 96, SCAN = 20, TAUS = 64;
const GAMMA = 0.25, WIDEST = 8, STEEPER = 2, KNEE = 5, STEP_AT = 1.5, STEP_WIDTH = 0.3;
const SQRT_2PI = Math.sqrt(2 * Math.PI);
const ORDERS = [0, 1, 2, 4]; // of the integrands that decide where the nodes lie

export function erfc(x) {
  if (x < 0) return 2 - erfc(-x);
  if (x > 38) return 0;
  const square = x * x;
  if (x < 2.5) { // a series of positive terms
    let term = x, sum = x;
    for (let n = 1; term > 1e-17 * sum; n++) { term *= 2 * square / (2 * n + 1); sum += term; }
    return 1 - 2 / Math.sqrt(Math.PI) * Math.exp(-square) * sum;
  }
  let tail = 0; // a continued fraction
  for (let n = Math.ceil(14 + 200 / square); n > 0; n--) tail = 0.5 * n / (x + tail);
  return Math.exp(-square) / Math.sqrt(Math.PI) / (x + tail);
}

const normalTail = (x) => 0.5 * erfc(x * Math.SQRT1_2);

// w > 0 with w + ln w = v
function wrightOmega(v, newton) {
  v = Math.max(v, -690);
  const z = Math.max(v, 0) + Math.log1p(Math.exp(-Math.abs(v)));
  let w = z * (1 - Math.log1p(z) / (2 + z));
  for (let i = 0; i < newton; i++) w = w * (1 + v - Math.log(w)) / (1 + w);
  return w;
}

function crudeLogTail(x) {
  const far = Math.abs(x);
  const q = Math.log(4 / (3 * far + Math.sqrt(far * far + 8))) - far * far / 2 - Math.log(SQRT_2PI);
  return x > 0 ? q : Math.log1p(-Math.exp(q));
}

function crudeLogPhi(sigma, tau, laplace) {
  const above = crudeLogTail(-tau / sigma);
  const below = tau + sigma * sigma / 2 + crudeLogTail((tau + sigma * sigma) / sigma);
  const tail = 0.8 * (Math.exp(above) + Math.exp(Math.min(below, 0)));
  return tail < 0.4 ? Math.log1p(-tail) : Math.min(laplace, Math.log1p(-0.4));
}

const scanned = { tau: new Float64Array(SCAN), drop: new Float64Array(SCAN), log: new Float64Array(SCAN) };
const peakY = ORDERS.map(() => new Float64Array(SCAN)), peakRate = ORDERS.map(() => new Float64Array(SCAN));
const heights = [0, 1, 2].map(() => new Float64Array(SCAN));

function scan(sigma, L, logL, low, high) {
  const variance = sigma * sigma, tops = [-Infinity, -Infinity, -Infinity], phi = [0, 0, 0, 0];
  for (let i = 0; i < SCAN; i++) {
    const tau = low + (high - low) * i / (SCAN - 1);
    scanned.tau[i] = tau;
    for (let o = 0; o < 4; o++) {
      const k = ORDERS[o], w = wrightOmega(tau + k * variance + 2 * Math.log(sigma), 1);
      const s = k * variance - w, y = tau + s, rate = w / variance;
      peakY[o][i] = y; peakRate[o][i] = rate;
      phi[o] = k * y - rate - s * s / (2 * variance) - 0.5 * Math.log1p(w);
    }
    const log = scanned.log[i] = crudeLogPhi(sigma, tau, phi[0]), base = logL - log;
    heights[0][i] = base + phi[2] + L * log;
    heights[1][i] = base + phi[3] + L * log;
    heights[2][i] = 2 * (base + phi[1]) + L * log;
    for (let h = 0; h < 3; h++) tops[h] = Math.max(tops[h], heights[h][i]);
  }
  let first = -1, last = -1;
  for (let i = 0; i < SCAN; i++) {
    scanned.drop[i] = Math.min(tops[0] - heights[0][i], tops[1] - heights[1][i], tops[2] - heights[2][i]);
    if (scanned.drop[i] < DROP) { if (first < 0) first = i; last = i; }
  }
  return [scanned.tau[Math.max(first - 1, 0)], scanned.tau[Math.min(last + 1, SCAN - 1)]];
}

function laplaceWindow(sigma, L) {
  sigma = Math.max(sigma, 1e-3);
  const logL = Math.log(L), variance = sigma * sigma;
  const typical = variance > 2 * logL ? sigma * Math.sqrt(2 * logL) : logL + variance / 2;
  let low = -typical - Math.min(9 * sigma, 4.5 * variance) - DROP / 2 - 4, high = 9 * sigma + 6;
  for (let i = 0; i < 4; i++) [low, high] = scan(sigma, L, logL, low, high);
  let yLow = Infinity, yHigh = -Infinity, bumpEnd = -Infinity;
  for (let i = 0; i < SCAN; i++) {
    const room = Math.max(DROP - scanned.drop[i], 0);
    if (room === 0) continue;
    const reach = sigma * Math.sqrt(2 * room);
    const left = (o) => peakY[o][i] -
      2 * room / (peakRate[o][i] + Math.sqrt(peakRate[o][i] ** 2 + 2 * room / variance));
    const u = room / peakRate[3][i];
    yHigh = Math.max(yHigh, peakY[3][i] + Math.min(Math.log1p(u + Math.sqrt(2 * u)), reach));
    yLow = Math.min(yLow, left(1));
    if (scanned.log[i] < -0.4) yLow = Math.min(yLow, left(0));
    bumpEnd = Math.max(bumpEnd, scanned.tau[i] + variance + reach);
  }
  yHigh = Math.max(yHigh, Math.min(STEP_AT + 8 * STEP_WIDTH, bumpEnd));
  return { low, high, yLow, yHigh };
}

const tau = new Float64Array(TAUS), step = new Float64Array(TAUS), scores = new Float64Array(SCORES);
const rows = [0, 1, 2, 3].map(() => new Float64Array(SCORES)), extra = new Float64Array(SCORES);

function placeTaus(sigma, L, window) {
  const a = Math.min(1, (1.5 + Math.sqrt(2 * Math.log(L))) / Math.max(sigma, 1e-3));
  const knee = window.high - KNEE / a;
  const start = Math.max(window.low, (window.low + STEEPER * knee) / (1 + STEEPER));
  const du = (window.high - start) / (TAUS - 1);
  for (let i = 0; i < TAUS; i++) {
    const u = start + du * i, v = a * (knee - u), decay = Math.exp(-Math.abs(v));
    tau[i] = u - STEEPER / a * (Math.max(v, 0) + Math.log1p(decay));
    step[i] = du * (1 + STEEPER * (v > 0 ? 1 : decay) / (1 + decay));
  }
}

function placeFixedScores(sigma) { // rows: normal weights times e^{ks}, k = 0, 2, 3, 4
  const dx = (8.5 + 4 * SWITCH + 12.5) / (SCORES - 1);
  for (let i = 0; i < SCORES; i++) {
    const x = -12.5 + dx * i, s = sigma * x, weight = Math.exp(-x * x / 2) * dx / SQRT_2PI, e = Math.exp(s);
    scores[i] = e;
    rows[0][i] = weight;
    rows[1][i] = weight * e * e; rows[2][i] = rows[1][i] * e; rows[3][i] = rows[2][i] * e;
    extra[i] = weight;
  }
}

function placeMappedScores(sigma, window, yRef) {
  const beta = Math.min(sigma, WIDEST), forward = (y) => y / beta + Math.exp(GAMMA * y) / GAMMA;
  const low = forward(window.yLow), dx = (forward(window.yHigh) - low) / (SCORES - 1);
  for (let i = 0; i < SCORES; i++) {
    const q = wrightOmega(GAMMA * beta * (low + dx * i) + Math.log(beta), 3);
    const y = (Math.log(q) - Math.log(beta)) / GAMMA, z = Math.exp(y);
    const density = dx * beta / (1 + q) / (sigma * SQRT_2PI);
    scores[i] = y;
    rows[0][i] = density * Math.exp(-z);
    for (let k = 2; k < 5; k++) rows[k - 1][i] = density * Math.exp(k * (y - yRef) - z);
    const beyond = (y - STEP_AT) / STEP_WIDTH, outer = normalTail(Math.abs(beyond));
    extra[i] = density * (beyond < 0 ? -Math.expm1(-z) - outer : outer - Math.exp(-z));
  }
}

// P_2, P_3 and P_22 for sigma >= 0 and L >= 1, to about 1e-13
export function participation(sigma, L) {
  if (L === Infinity) return { p2: 0, p3: 0, p22: 0 };
  if (L === 1) return { p2: 1, p3: 1, p22: 1 };
  const window = laplaceWindow(sigma, L), small = sigma < SWITCH, yRef = Math.min(window.yHigh, 0);
  placeTaus(sigma, L, window);
  if (small) placeFixedScores(sigma); else placeMappedScores(sigma, window, yRef);
  const logL = Math.log(L), [r0, r2, r3, r4] = rows, width = Math.sqrt(sigma * sigma + STEP_WIDTH ** 2);
  let p2 = 0, p3 = 0, p4 = 0, p22 = 0;
  for (let i = 0; i < TAUS; i++) {
    const t = tau[i];
    let s0 = 0, s2 = 0, s3 = 0, s4 = 0, tail = 0;
    if (small) {
      const e = Math.exp(t);
      for (let j = 0; j < SCORES; j++) {
        const q = -scores[j] * e;
        if (q < -745) { tail += extra[j]; continue; }
        const kernel = Math.exp(q);
        s0 += r0[j] * kernel; s2 += r2[j] * kernel; s3 += r3[j] * kernel; s4 += r4[j] * kernel;
        tail += extra[j] * (q > -0.5 ? -Math.expm1(q) : 1 - kernel);
      }
    } else {
      tail = normalTail((STEP_AT - t) / width);
      for (let j = 0; j < SCORES; j++) {
        const x = (scores[j] - t) / sigma, q = -0.5 * x * x;
        if (q < -745) continue;
        const kernel = Math.exp(q);
        s0 += r0[j] * kernel; s2 += r2[j] * kernel; s3 += r3[j] * kernel; s4 += r4[j] * kernel;
        tail += extra[j] * kernel;
      }
    }
    const logPhi = tail < 0.5 ? Math.log1p(-tail) : Math.log(s0);
    const weight = step[i] * Math.exp(L * logPhi), origin = small ? t : yRef, base = logL - logPhi;
    if (weight === 0) continue;
    const rho2 = s2 * Math.exp(2 * origin + base);
    p2 += weight * rho2;
    p3 += weight * s3 * Math.exp(3 * origin + base);
    p4 += weight * s4 * Math.exp(4 * origin + base);
    p22 += weight * rho2 * rho2;
  }
  return { p2, p3: p3 / 2, p22: (p4 + (1 - 1 / L) * p22) / 6 };
}
