"""Quadrature for the finite-prompt moments of Gaussian scores.

With s_i iid N(0, sigma^2), S = sum_i e^{s_i} and p_i = e^{s_i}/S, the Laplace transform
1/S^K = (1/Gamma(K)) int_0^inf t^{K-1} e^{-tS} dt turns a moment of total order K into one integral
over t of products of one-token functions (see docs/finite_prompts.md)

    psi_{j,k}(t) = E[(s-c)^j e^{ks} exp(-t e^s)],        phi_k = psi_{0,k}.

`laplace_rule` places trapezoidal nodes t = e^tau where the integrands live and evaluates on them

    weight = (step in tau) phi_0(t)^L,                   rho_{j,k} = L t^k psi_{j,k}(t) / phi_0(t),

so that E prod_a sum_i (s_i-c)^{j_a} p_i^{k_a} = (1/Gamma(K)) sum over partitions into m blocks of
(1 - 1/L) ... (1 - (m-1)/L) sum_tau weight prod_blocks rho.  Everything is positive (for c = 0 and
even j), so relative accuracy is natural, no power of L overflows, and L >= 1 may be any real.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .partitions import merged_blocks

Scalar = Float[Array, ""]
Probes = tuple[tuple[int, ...], ...]

DROP = 37.0  # integrands are followed until they fall to e^-DROP (1e-16) of their peak
SWITCH = 0.8  # below this sigma the one-token lattice is fixed in s/sigma, above it in y = tau + s
SCORE_NODES = 96
SCAN_NODES = 20
GAMMA, WIDEST = 0.25, 8.0  # of the map of y, see _mapped_lattice
STRETCH, KNEE = 2.0, 5.0  # of the map of tau, see _stretched_lattice
# 1 - exp(-e^y) is written as a normal step Phi((y - STEP_AT)/STEP_WIDTH), whose average is known,
# plus a bump >= 0.
STEP_AT, STEP_WIDTH = 1.5, 0.3


def tau_nodes(least: int) -> int:
    """Nodes in tau for total orders K >= `least`; the left tail e^{K tau} is widest at K = 1."""
    return 112 if least == 1 else 64


def wright_omega(v: Float[Array, "..."], newton: int = 3) -> Float[Array, "..."]:
    """w > 0 with w + ln w = v, that is Lambert's W(e^v), without ever forming e^v for large v.

    Below v = -690, where e^v leaves float64, its value there.
    """
    v = jnp.maximum(v, -690.0)
    z = jnp.maximum(v, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(v)))  # ln(1 + e^v)
    w = z * (1 - jnp.log1p(z) / (2 + z))  # within a few per cent; three Newton steps reach rounding
    for _ in range(newton):
        w = w * (1 + v - jnp.log(w)) / (1 + w)
    return w


def _normal_tail(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """P(standard normal > x), to full relative accuracy."""
    return 0.5 * jax.lax.erfc(x / math.sqrt(2))


class _Peaks(NamedTuple):
    """Peaks in y of e^{ky - e^y} n_sigma(y - tau), all k by all tau, and Laplace's method there."""

    y: Float[Array, "k tau"]
    lam: Float[Array, "k tau"]  # e^y at the peak
    log_phi: Float[Array, "k tau"]  # log t^k phi_k, crudely


def _peaks(sigma: Scalar, tau: Float[Array, " tau"], orders: tuple[int, ...]) -> _Peaks:
    """The peak solves (y - tau)/sigma^2 = k - e^y:  e^y = W(sigma^2 t e^{k sigma^2})/sigma^2."""
    k = jnp.array(orders, float)[:, None]
    w = wright_omega(tau + k * sigma**2 + 2 * jnp.log(sigma), newton=1)
    s = k * sigma**2 - w
    y, lam = tau + s, w / sigma**2
    return _Peaks(y, lam, k * y - lam - s**2 / (2 * sigma**2) - 0.5 * jnp.log1p(w))


def _crude_log_tail(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log P(normal > x) within 13 per cent, from the Mills ratio bound 4/(3x + sqrt(x^2 + 8))."""
    far = jnp.abs(x)
    log_q = jnp.log(4 / (3 * far + jnp.sqrt(far**2 + 8))) - far**2 / 2 - 0.5 * math.log(2 * math.pi)
    return jnp.where(x > 0, log_q, jnp.log1p(-jnp.exp(log_q)))


def _crude_log_phi_0(
    sigma: Scalar, tau: Float[Array, " tau"], laplace: Array
) -> Float[Array, " tau"]:
    """log phi_0 within a factor of about 1.3.

    1 - phi_0 is about E min(1, t e^s) at small t; Laplace's method takes over at large t.
    """
    above = _crude_log_tail(-tau / sigma)
    below = tau + sigma**2 / 2 + _crude_log_tail((tau + sigma**2) / sigma)
    tail = 0.8 * (jnp.exp(above) + jnp.exp(jnp.minimum(below, 0.0)))
    # Laplace's method says phi_0 ~ 1 for t a little below 1: it is at most what is left of 1 there
    most = math.log1p(-0.4)
    return jnp.where(tail < 0.4, jnp.log1p(-jnp.minimum(tail, 0.4)), jnp.minimum(laplace, most))


class _Window(NamedTuple):
    """Where the integrands live: [low, high] in tau = ln t and [y_low, y_high] in y = tau + s."""

    low: Scalar
    high: Scalar
    y_low: Scalar
    y_high: Scalar
    tilt: Scalar  # largest peak of the one-token integrands, in units of sigma


def _window(sigma: Scalar, L: Scalar, probes: Probes) -> _Window:
    """The window of the integrands t^K phi_0^{L-m} phi_{k_1} ... phi_{k_m}, all ks in `probes`."""
    sigma = jnp.maximum(sigma, 1e-3)  # placement only: what is below looks the same
    orders = tuple(sorted({0, 1} | {k for ks in probes for k in ks}))
    rows = [[orders.index(k) for k in ks] for ks in probes]
    least, top = min(map(sum, probes)), orders[-1]
    log_L = jnp.log(L)
    frozen = sigma**2 > 2 * log_L
    typical = jnp.where(frozen, sigma * jnp.sqrt(2 * log_L), log_L + sigma**2 / 2)  # of ln S

    def scan(_: Array, state: tuple) -> tuple:
        low, high = state[:2]
        tau = jnp.linspace(low, high, SCAN_NODES)
        peaks = _peaks(sigma, tau, orders)
        log_phi = _crude_log_phi_0(sigma, tau, peaks.log_phi[0])
        log_rho = log_L + peaks.log_phi - log_phi
        heights = jnp.stack([sum(log_rho[i] for i in row) for row in rows]) + L * log_phi
        drop = jnp.min(jnp.max(heights, axis=1, keepdims=True) - heights, axis=0)
        inside = drop < DROP
        first, last = jnp.argmax(inside), SCAN_NODES - 1 - jnp.argmax(inside[::-1])
        low, high = tau[jnp.maximum(first - 1, 0)], tau[jnp.minimum(last + 1, SCAN_NODES - 1)]
        return low, high, tau, peaks, log_phi, drop

    # The integrands are log-concave in tau. Keep what is within DROP of its peak and one point
    # more on each side, then look closer. A coarse scan underestimates the peaks, so it keeps too
    # much, never too little.
    low = -typical - jnp.minimum(9 * sigma, (top + 0.5) * sigma**2) - DROP / least - 4
    line, table = jnp.zeros(SCAN_NODES), jnp.zeros((len(orders), SCAN_NODES))
    state = (low, 9 * sigma + 6, line, _Peaks(table, table, table), line, line)
    low, high, tau, peaks, log_phi, drop = jax.lax.fori_loop(0, 4, scan, state)

    # In y: where the outer integrand has dropped, the inner one may be cut that much earlier.
    room = jnp.maximum(DROP - drop, 0.0)
    kept = room > 0
    reach = sigma * jnp.sqrt(2 * room)  # what the normal density alone allows
    # Left of the peak by a with lambda a + a^2/(2 sigma^2) = room, right of it by b with
    # lambda (e^b - 1 - b) = room (at most: the closed form overestimates b a little).
    left = peaks.y - 2 * room / (peaks.lam + jnp.sqrt(peaks.lam**2 + 2 * room / sigma**2))
    u = room / peaks.lam
    right = peaks.y + jnp.minimum(jnp.log1p(u + jnp.sqrt(2 * u)), reach)

    def lowest(y: Array, where: Array) -> Array:
        return jnp.min(jnp.where(where, y, jnp.inf))

    # phi_0 is summed as such at large t only; at small t 1 - phi_0 is, which is like k = 1.
    y_low = jnp.minimum(lowest(left[1], kept), lowest(left[0], kept & (log_phi < -0.4)))
    bump_end = jnp.minimum(STEP_AT + 8 * STEP_WIDTH, -lowest(-(tau + sigma**2 + reach), kept))
    y_high = jnp.maximum(-lowest(-right[-1], kept), bump_end)
    tilt = -lowest(-(peaks.y[-1] - tau) / sigma, kept)
    return _Window(low, high, y_low, y_high, tilt)


def _mapped_lattice(sigma: Scalar, window: _Window) -> tuple[Array, Array]:
    """Nodes y and spacings dy, equidistant in x(y) = y/beta + e^{gamma y}/gamma.

    beta = min(sigma, WIDEST). The inner integrand e^{ky - e^y} n_sigma(y - tau) varies on the
    scale sigma far left and e^{-y/2} far right. dy/dx = 1/(1/beta + e^{gamma y}) follows both;
    its nearest singularity in x is at height pi/(gamma beta), so beta is kept from growing with
    sigma. Inverse: q + ln q = gamma beta x + ln beta with q = beta e^{gamma y}.
    """
    beta = jnp.minimum(sigma, WIDEST)

    def forward(y: Array) -> Array:
        return y / beta + jnp.exp(GAMMA * y) / GAMMA

    low, high = forward(window.y_low), forward(window.y_high)
    x = jnp.linspace(low, high, SCORE_NODES)
    q = wright_omega(GAMMA * beta * x + jnp.log(beta))
    y = (jnp.log(q) - jnp.log(beta)) / GAMMA
    return y, (high - low) / (SCORE_NODES - 1) * beta / (1 + q)


def _stretched_lattice(sigma: Scalar, L: Scalar, window: _Window, size: int) -> tuple[Array, Array]:
    """Nodes tau and spacings, equidistant in u with dtau/du = 1 + STRETCH/(1 + e^{a (u - knee)}).

    The right edge of the integrands is a double exponential of slope about
    a = min(1, (1.5 + sqrt(2 ln L))/sigma); the left tail is longer and smoother (exponential, or
    normal in the frozen phase), so the steps grow to the left of the peak.
    """
    a = jnp.minimum(1.0, (1.5 + jnp.sqrt(2 * jnp.log(L))) / jnp.maximum(sigma, 1e-3))
    knee = window.high - KNEE / a
    # tau <= u - STRETCH (knee - u)^+, so this start reaches the window's lower end, or just past.
    start = jnp.maximum(window.low, (window.low + STRETCH * knee) / (1 + STRETCH))
    u = jnp.linspace(start, window.high, size)
    v = a * (knee - u)
    decay = jnp.exp(-jnp.abs(v))
    tau = u - STRETCH / a * (jnp.maximum(v, 0.0) + jnp.log1p(decay))
    slope = 1 + STRETCH * jnp.where(v > 0, 1.0, decay) / (1 + decay)
    return tau, (window.high - start) / (size - 1) * slope


def _fixed_lattice(top: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes x = s/sigma and normal weights for sigma < SWITCH, wide enough for tilts k <= top."""
    x = np.linspace(-12.5, 8.5 + top * SWITCH, SCORE_NODES)
    return x, np.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)


class Rule(NamedTuple):
    """Nodes of the Laplace integral for one (sigma, L); see the module's docstring."""

    weight: Float[Array, " tau"]
    rho: dict[int, Float[Array, "orders tau"]]  # rho[j][k]; row k = 0 is not used
    lost: Scalar  # part of the highest order beyond the range of float64; matters for L > 1e50 only


def laplace_rule(
    sigma: Scalar,
    L: Scalar,
    probes: Probes,
    powers: tuple[int, ...] = (0,),
    centre: Scalar | float = 0.0,
) -> Rule:
    """weight and rho_{j,k} for j in `powers`, k up to the largest order in `probes`; 1 <= L < inf.

    Node placement is under stop_gradient: the integral does not depend on it, and its derivative
    is the same rule applied to the derivative of the integrand.
    """
    top, least = max(map(max, probes)), min(map(sum, probes))
    small = sigma < SWITCH
    # Both lattices run on safe arguments and one is selected, so neither spoils a derivative.
    narrow = jnp.where(small, sigma, 0.5 * SWITCH)
    wide = jnp.where(small, 2.0 * SWITCH, sigma)

    frozen_sigma, frozen_L = jax.lax.stop_gradient((sigma, L))
    window = _window(frozen_sigma, frozen_L, probes)
    tau, step = _stretched_lattice(frozen_sigma, frozen_L, window, tau_nodes(least))
    y, dy = _mapped_lattice(jax.lax.stop_gradient(wide), window)
    x, normal = _fixed_lattice(top)

    # Kernel, scores down and tau across: exp(-t e^s) on the fixed lattice,
    # exp(-(y - tau)^2/(2 sigma^2)) on the mapped one.
    fixed_s = narrow * x
    z = jnp.exp(y)
    exponent = jnp.where(
        small,
        -jnp.exp(fixed_s)[:, None] * jnp.exp(tau),
        -0.5 * ((y[:, None] - tau) / wide) ** 2,
    )
    kernel = jnp.exp(exponent)
    density = dy / (wide * math.sqrt(2 * math.pi))
    y_ref = jnp.minimum(window.y_high, 0.0)  # keeps e^{ky} in range for astronomically large L
    k = np.arange(top + 1.0)[:, None]
    rows = jnp.where(small, normal, density) * jnp.exp(
        jnp.where(small, k * fixed_s, k * (y - y_ref) - z)
    )
    beyond = (y - STEP_AT) / STEP_WIDTH
    outer = _normal_tail(jnp.abs(beyond))
    bump = jnp.where(beyond < 0, -jnp.expm1(-z) - outer, outer - jnp.exp(-z))
    sums = jnp.concatenate([rows, (density * bump)[None]]) @ kernel

    # log phi_0 keeps full relative accuracy at small t, where L log phi_0 needs it.
    tail = jnp.where(
        small,
        -(normal @ jnp.expm1(exponent)),
        sums[-1] + _normal_tail((STEP_AT - tau) / jnp.sqrt(wide**2 + STEP_WIDTH**2)),
    )
    near = tail < 0.5
    log_phi = jnp.where(
        near, jnp.log1p(-jnp.where(near, tail, 0.5)), jnp.log(jnp.where(near, 1.0, sums[0]))
    )
    weight = step * jnp.exp(L * log_phi)

    scale = jnp.exp(k * jnp.where(small, tau, y_ref) + jnp.log(L) - log_phi)
    rho = {}
    for j in powers:
        if j == 0:
            rho[j] = scale * sums[:-1]
        else:
            score = jnp.where(small, fixed_s[:, None], y[:, None] - tau) - centre
            rho[j] = scale * (rows @ (kernel * score**j))
    # The normal density underflows at 38.5 sigma; the integrand of order k peaks at up to k sigma.
    lost = jnp.exp(-0.5 * jnp.maximum(38.5 - window.tilt, 0.0) ** 2)
    return Rule(weight, rho, lost)


def contract(rule: Rule, L: Scalar, factors: tuple[tuple[int, int], ...]) -> Scalar:
    """E prod_a sum_i (s_i - c)^{j_a} p_i^{k_a} from the nodes, by set partitions of the factors."""
    total = 0.0
    for blocks, multiplicity in merged_blocks(factors):
        product = float(multiplicity)
        for used, block in enumerate(blocks):
            product = product * rule.rho[block[0]][block[1]] * (1 - used / L)
        total = total + product
    order = sum(k for _, k in factors)
    return jnp.sum(rule.weight * total) / math.factorial(order - 1)
