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

The functions take arrays of any shape, the same code for NumPy and for JAX: known numbers are
evaluated by NumPy, which has nothing to compile, traced ones by JAX. Only the largest matrices have
code of their own in NumPy, which reuses their memory. Nodes are on the last axis.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from .._arrays import Values, library
from .._linalg import safe_sqrt
from . import _small_variance
from .partitions import merged_blocks

Probes = tuple[tuple[int, ...], ...]

DROP = 37.0  # integrands are followed until they fall to e^-DROP (1e-16) of their peak
SWITCH = 0.8  # below this sigma the one-token lattice is fixed in s/sigma, above it in y = tau + s
SCORE_NODES = 96
SCAN_NODES = 20
GAMMA, WIDEST = 0.25, 8.0  # of the map of y, see _mapped_lattice
STRETCH, KNEE = 2.0, 5.0  # of the map of tau, see stretched_lattice
# 1 - exp(-e^y) is written as a normal step Phi((y - STEP_AT)/STEP_WIDTH), whose average is known,
# plus a bump >= 0.
STEP_AT, STEP_WIDTH = 1.5, 0.3
_PIECE = 4  # of (sigma, L) whose matrices NumPy holds at once: they stay in cache
_LOWEST = -700.0  # exponents in NumPy: below -708, where float64 underflows, exp is slow


def frozen(value: Values) -> Values:
    """The value without its derivative: that of JAX, or the imaginary part of a complex step."""
    return jax.lax.stop_gradient(value) if library(value) is jnp else np.real(value)


def tau_nodes(least: int) -> int:
    """Nodes in tau for total orders K >= `least`; the left tail e^{K tau} is widest at K = 1."""
    return 112 if least == 1 else 64


def wright_omega(v: Values, newton: int = 3) -> Values:
    """w > 0 with w + ln w = v, that is Lambert's W(e^v), without ever forming e^v for large v.

    Below v = -690, where e^v leaves float64, its value there.
    """
    xp = library(v)
    v = xp.maximum(v, -690.0)
    z = xp.maximum(v, 0.0) + xp.log1p(xp.exp(-xp.abs(v)))  # ln(1 + e^v)
    w = z * (1 - xp.log1p(z) / (2 + z))  # within a few per cent; three Newton steps reach rounding
    for _ in range(newton):
        w = w * (1 + v - xp.log(w)) / (1 + w)
    return w


def _normal_tail(x: Values) -> Values:
    """P(standard normal > x), to full relative accuracy."""
    erfc = jax.lax.erfc if library(x) is jnp else scipy.special.erfc
    return 0.5 * erfc(x / math.sqrt(2))


def _exp_in_place(x: np.ndarray) -> np.ndarray:
    """e^x, at least e^-700; the lowest x must be at a corner of the last two axes."""
    steps = x.shape[-2] - 1, x.shape[-1] - 1
    if np.min(x[..., :: steps[0], :: steps[1]]) < _LOWEST:
        np.maximum(x, _LOWEST, out=x)
    return np.exp(x, out=x)


class _Peaks(NamedTuple):
    """Peaks in y of e^{ky - e^y} n_sigma(y - tau), all k by all tau, and Laplace's method there."""

    y: Values
    lam: Values  # e^y at the peak
    log_phi: Values  # log t^k phi_k, crudely


def _peaks(sigma: Values, tau: Values, orders: tuple[int, ...]) -> _Peaks:
    """The peak solves (y - tau)/sigma^2 = k - e^y:  e^y = W(sigma^2 t e^{k sigma^2})/sigma^2."""
    xp = library(sigma)
    k = np.array(orders, float)[:, None]
    sigma, tau = sigma[..., None, None], tau[..., None, :]
    w = wright_omega(tau + k * sigma**2 + 2 * xp.log(sigma), newton=1)
    s = k * sigma**2 - w
    y, lam = tau + s, w / sigma**2
    return _Peaks(y, lam, k * y - lam - s**2 / (2 * sigma**2) - 0.5 * xp.log1p(w))


def _crude_log_tail(x: Values) -> Values:
    """log P(normal > x) within 13 per cent, from the Mills ratio bound 4/(3x + sqrt(x^2 + 8))."""
    xp = library(x)
    far = xp.abs(x)
    log_q = xp.log(4 / (3 * far + xp.sqrt(far**2 + 8))) - far**2 / 2 - 0.5 * math.log(2 * math.pi)
    return xp.where(x > 0, log_q, xp.log1p(-xp.exp(log_q)))


def _crude_log_phi_0(sigma: Values, tau: Values, laplace: Values) -> Values:
    """log phi_0 within a factor of about 1.3.

    1 - phi_0 is about E min(1, t e^s) at small t; Laplace's method takes over at large t.
    """
    xp, sigma = library(sigma), sigma[..., None]
    above = _crude_log_tail(-tau / sigma)
    below = tau + sigma**2 / 2 + _crude_log_tail((tau + sigma**2) / sigma)
    tail = 0.8 * (xp.exp(above) + xp.exp(xp.minimum(below, 0.0)))
    # Laplace's method says phi_0 ~ 1 for t a little below 1: it is at most what is left of 1 there
    most = math.log1p(-0.4)
    return xp.where(tail < 0.4, xp.log1p(-xp.minimum(tail, 0.4)), xp.minimum(laplace, most))


class _Window(NamedTuple):
    """Where the integrands live: [low, high] in tau = ln t and [y_low, y_high] in y = tau + s."""

    low: Values
    high: Values
    y_low: Values
    y_high: Values
    tilt: Values  # largest peak of the one-token integrands, in units of sigma


def laplace_window(sigma: Values, L: Values, probes: Probes) -> _Window:
    """The window of the integrands t^K phi_0^{L-m} phi_{k_1} ... phi_{k_m}, all ks in `probes`."""
    xp = library(sigma)
    sigma = xp.maximum(sigma, 1e-3)  # placement only: what is below looks the same
    orders = tuple(sorted({0, 1} | {k for ks in probes for k in ks}))
    rows = [[orders.index(k) for k in ks] for ks in probes]
    least, top = min(map(sum, probes)), orders[-1]
    log_L = xp.log(L)
    is_frozen = sigma**2 > 2 * log_L
    typical = xp.where(is_frozen, sigma * xp.sqrt(2 * log_L), log_L + sigma**2 / 2)  # of ln S

    def scan(_: Any, state: tuple) -> tuple:
        low, high = state[:2]
        tau = xp.linspace(low, high, SCAN_NODES, axis=-1)
        peaks = _peaks(sigma, tau, orders)
        log_phi = _crude_log_phi_0(sigma, tau, peaks.log_phi[..., 0, :])
        log_rho = log_L[..., None, None] + peaks.log_phi - log_phi[..., None, :]
        products = [sum(log_rho[..., i, :] for i in row) for row in rows]
        heights = xp.stack(products, axis=-2) + (L[..., None] * log_phi)[..., None, :]
        drop = xp.min(xp.max(heights, axis=-1, keepdims=True) - heights, axis=-2)
        inside = drop < DROP
        first = xp.argmax(inside, axis=-1, keepdims=True)
        last = SCAN_NODES - 1 - xp.argmax(inside[..., ::-1], axis=-1, keepdims=True)
        low = xp.take_along_axis(tau, xp.maximum(first - 1, 0), -1)[..., 0]
        high = xp.take_along_axis(tau, xp.minimum(last + 1, SCAN_NODES - 1), -1)[..., 0]
        return low, high, tau, peaks, log_phi, drop

    # The integrands are log-concave in tau. Keep what is within DROP of its peak and one point
    # more on each side, then look closer. A coarse scan underestimates the peaks, so it keeps too
    # much, never too little.
    low = -typical - xp.minimum(9 * sigma, (top + 0.5) * sigma**2) - DROP / least - 4
    state = scan(0, (low, 9 * sigma + 6))
    if xp is jnp:
        state = jax.lax.fori_loop(1, 4, scan, state)
    else:
        for i in range(1, 4):
            state = scan(i, state)
    low, high, tau, peaks, log_phi, drop = state

    # In y: where the outer integrand has dropped, the inner one may be cut that much earlier.
    room = xp.maximum(DROP - drop, 0.0)
    kept = room > 0
    column = sigma[..., None]
    reach = column * xp.sqrt(2 * room)  # what the normal density alone allows

    # Left of the peak by a with lambda a + a^2/(2 sigma^2) = room, right of it by b with
    # lambda (e^b - 1 - b) = room (at most: the closed form overestimates b a little).
    def left(k: int) -> Values:
        lam = peaks.lam[..., k, :]
        return peaks.y[..., k, :] - 2 * room / (lam + xp.sqrt(lam**2 + 2 * room / column**2))

    def lowest(y: Values, where: Values) -> Values:
        return xp.min(xp.where(where, y, xp.inf), axis=-1)

    u = room / peaks.lam[..., -1, :]
    right = peaks.y[..., -1, :] + xp.minimum(xp.log1p(u + xp.sqrt(2 * u)), reach)
    # phi_0 is summed as such at large t only; at small t 1 - phi_0 is, which is like k = 1.
    y_low = xp.minimum(lowest(left(1), kept), lowest(left(0), kept & (log_phi < -0.4)))
    bump_end = xp.minimum(STEP_AT + 8 * STEP_WIDTH, -lowest(-(tau + column**2 + reach), kept))
    y_high = xp.maximum(-lowest(-right, kept), bump_end)
    tilt = -lowest(-(peaks.y[..., -1, :] - tau) / column, kept)
    return _Window(low, high, y_low, y_high, tilt)


def _mapped_lattice(sigma: Values, window: _Window) -> tuple[Values, Values]:
    """Nodes y and spacings dy, equidistant in x(y) = y/beta + e^{gamma y}/gamma.

    beta = min(sigma, WIDEST). The inner integrand e^{ky - e^y} n_sigma(y - tau) varies on the
    scale sigma far left and e^{-y/2} far right. dy/dx = 1/(1/beta + e^{gamma y}) follows both;
    its nearest singularity in x is at height pi/(gamma beta), so beta is kept from growing with
    sigma. Inverse: q + ln q = gamma beta x + ln beta with q = beta e^{gamma y}.
    """
    xp = library(sigma)
    beta = xp.minimum(sigma, WIDEST)

    def forward(y: Values) -> Values:
        return y / beta + xp.exp(GAMMA * y) / GAMMA

    low, high = forward(window.y_low), forward(window.y_high)
    x = xp.linspace(low, high, SCORE_NODES, axis=-1)
    step, beta = ((high - low) / (SCORE_NODES - 1))[..., None], beta[..., None]
    q = wright_omega(GAMMA * beta * x + xp.log(beta))
    return (xp.log(q) - xp.log(beta)) / GAMMA, step * beta / (1 + q)


def stretched_lattice(
    sigma: Values, L: Values, window: _Window, size: int
) -> tuple[Values, Values]:
    """Nodes tau and spacings, equidistant in u with dtau/du = 1 + STRETCH/(1 + e^{a (u - knee)}).

    The right edge of the integrands is a double exponential of slope about
    a = min(1, (1.5 + sqrt(2 ln L))/sigma); the left tail is longer and smoother (exponential, or
    normal in the frozen phase), so the steps grow to the left of the peak.
    """
    xp = library(sigma)
    a = xp.minimum(1.0, (1.5 + xp.sqrt(2 * xp.log(L))) / xp.maximum(sigma, 1e-3))
    knee = window.high - KNEE / a
    # tau <= u - STRETCH (knee - u)^+, so this start reaches the window's lower end, or just past.
    start = xp.maximum(window.low, (window.low + STRETCH * knee) / (1 + STRETCH))
    u = xp.linspace(start, window.high, size, axis=-1)
    v = a[..., None] * (knee[..., None] - u)
    decay = xp.exp(-xp.abs(v))
    tau = u - STRETCH / a[..., None] * (xp.maximum(v, 0.0) + xp.log1p(decay))
    slope = 1 + STRETCH * xp.where(v > 0, 1.0, decay) / (1 + decay)
    return tau, ((window.high - start) / (size - 1))[..., None] * slope


def _fixed_lattice(top: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes x = s/sigma and normal weights for sigma < SWITCH, wide enough for tilts k <= top."""
    x = np.linspace(-12.5, 8.5 + top * SWITCH, SCORE_NODES)
    return x, np.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)


def _narrow_lattice(
    variance: Values, narrow: Values, tiny: Values, top: int
) -> tuple[Values, Values]:
    """Scores and weights for sigma < SWITCH: the fixed lattice, or nodes that do not move."""
    xp, scale = library(variance), _small_variance.scale_for(top)
    x, normal = _fixed_lattice(top)
    s, normal = narrow * x, xp.zeros_like(narrow) + normal
    if xp is np and not np.any(tiny):
        return s, normal
    missing = SCORE_NODES - _small_variance.NODES
    nodes = np.pad(scale * _small_variance.nodes(), (0, missing))
    weights = _small_variance.weights(xp.where(tiny, variance, 0.0) / scale**2)[..., 0, :]
    weights = xp.concatenate([weights, xp.zeros((*weights.shape[:-1], missing))], axis=-1)
    tiny = tiny[..., None]
    return xp.where(tiny, nodes, s), xp.where(tiny, weights, normal)


class Rule(NamedTuple):
    """Nodes of the Laplace integral for each (sigma, L); see the module's docstring."""

    weight: Values  # (..., tau)
    rho: dict[int, Values]  # rho[j][..., k, tau]; row k = 0 is not used
    lost: Values  # part of the highest order beyond the range of float64; matters for L > 1e50 only


def laplace_rule(
    variance: Values,
    L: Values,
    probes: Probes,
    power: int = 0,
    centre: Values | None = None,
) -> Rule:
    """weight and rho_{j,k}, j up to `power`, k up to the largest order in `probes`; 1 <= L < inf.

    Scores have the given variance, and the rule is smooth in it, also at 0. Node placement has no
    derivative: the integral does not depend on it, and its derivative is the same rule applied to
    the derivative of the integrand.
    """
    xp = library(variance, L)
    top, least = max(map(max, probes)), min(map(sum, probes))
    tiny = variance < _small_variance.scale_for(top) ** 2
    if xp is np and power:  # no derivatives to get right, and powers of scores keep all digits
        tiny = np.zeros_like(tiny)
    sigma = safe_sqrt(variance)
    small = sigma < SWITCH

    def either(
        fixed: Callable[[], Values], mapped: Callable[[], Values], where: Values = small
    ) -> Values:
        """What one of the two lattices gives: NumPy computes the other only if it is needed."""
        if xp is np and np.all(where):
            return fixed()
        if xp is np and not np.any(where):
            return mapped()
        first, second = fixed(), mapped()
        axes = max(np.ndim(first), np.ndim(second)) - np.ndim(where)
        return xp.where(where.reshape(where.shape + (1,) * axes), first, second)

    # Arguments are safe for both lattices, so neither spoils a derivative where it is not used.
    narrow = xp.where(small & ~tiny, sigma, 0.5 * SWITCH)[..., None]
    wide = xp.where(small, 2.0 * SWITCH, sigma)[..., None]

    place_sigma, place_L = frozen(sigma), frozen(L)
    window = laplace_window(place_sigma, place_L, probes)
    tau, step = stretched_lattice(place_sigma, place_L, window, tau_nodes(least))
    y, dy = _mapped_lattice(frozen(wide[..., 0]), window)
    fixed_s, normal = _narrow_lattice(variance, narrow, tiny, top)
    z = xp.exp(y)
    density = dy / (wide * math.sqrt(2 * math.pi))
    # the reference keeps e^{ky} in range for astronomically large L
    y_ref = xp.minimum(window.y_high, 0.0)[..., None]
    k = np.arange(top + 1.0)[:, None]
    rows = either(
        lambda: normal[..., None, :] * xp.exp(k * fixed_s[..., None, :]),
        lambda: density[..., None, :] * xp.exp(k * (y - y_ref)[..., None, :] - z[..., None, :]),
    )

    def bump() -> Values:
        beyond = (y - STEP_AT) / STEP_WIDTH
        outer = _normal_tail(xp.abs(beyond))
        return density * xp.where(beyond < 0, -xp.expm1(-z) - outer, outer - xp.exp(-z))

    # 1 - phi_0 is the sum of `normal` times 1 - kernel, or that of the bump plus a normal step
    extra = either(lambda: normal, bump)

    def one_token(part: Any) -> tuple[Values, ...]:
        """Sums over the scores: of the rows times each power of the score, and of `extra`.

        The kernel, scores down and tau across, is exp(-t e^s) on the fixed lattice and
        exp(-(y - tau)^2/(2 sigma^2)) on the mapped one.
        """
        s, t, distance = fixed_s[part], tau[part], y[part][..., :, None] - tau[part][..., None, :]
        exponent = either(
            lambda: -xp.exp(s)[..., :, None] * xp.exp(t)[..., None, :],
            lambda: -0.5 * (distance / wide[part][..., None]) ** 2,
            small[part],
        )
        weighted = kernel = xp.exp(exponent)
        found = [rows[part] @ kernel]
        score = 0.0 if centre is None else -centre[part][..., None, None]
        if power:
            own = either(lambda: s[..., :, None] + 0 * kernel, lambda: distance, small[part])
            score = own + score
        for _ in range(power):
            weighted = weighted * score
            found.append(rows[part] @ weighted)
        tail = either(lambda: -xp.expm1(exponent), lambda: kernel, small[part])
        return (extra[part][..., None, :] @ tail, *found)

    quick = xp is np and not power and not np.iscomplexobj(wide)
    space = np.empty((_PIECE, SCORE_NODES, tau.shape[-1])) if quick else None

    def by_numpy(part: slice) -> tuple[Values, ...]:
        """`one_token` without new matrices, whose allocation takes longer than filling them.

        Only where all scores are on the same lattice.
        """
        if space is None or np.any(small[part] != small[part][0]):
            return one_token(part)
        exponent, t = space[: len(tau[part])], tau[part][..., None, :]
        own, own_extra = rows[part], extra[part][..., None, :]
        if small[part][0]:
            np.multiply(-np.exp(fixed_s[part])[..., :, None], np.exp(t), out=exponent)
            extra_sum = own_extra @ -np.expm1(exponent)
            return extra_sum, own @ _exp_in_place(exponent)
        np.subtract(y[part][..., :, None], t, out=exponent)
        exponent *= exponent
        exponent *= -0.5 / wide[part][..., None] ** 2
        found = np.concatenate([own_extra, own], axis=-2) @ _exp_in_place(exponent)
        return found[..., :1, :], found[..., 1:, :]

    if xp is np:
        pieces = [slice(i, i + _PIECE) for i in range(0, len(sigma), _PIECE)]
        extra_sum, sums, *higher = map(np.concatenate, zip(*map(by_numpy, pieces), strict=True))
    else:
        extra_sum, sums, *higher = one_token(...)

    # log phi_0 keeps full relative accuracy at small t, where L log phi_0 needs it.
    step_sum = either(
        lambda: xp.zeros_like(tau),
        lambda: _normal_tail((STEP_AT - tau) / xp.sqrt(wide**2 + STEP_WIDTH**2)),
    )
    tail = extra_sum[..., 0, :] + step_sum
    near = tail < 0.5
    # weights of both signs leave rounding where e^{-t} is far below 1: nothing to integrate there
    good = ~tiny[..., None] | (sums[..., 0, :] > _small_variance.ROUNDING)
    log_phi = xp.where(
        near,
        xp.log1p(-xp.where(near, tail, 0.5)),
        xp.log(xp.where(near | ~good, 1.0, sums[..., 0, :])),
    )
    weight = xp.where(good, step * xp.exp(L[..., None] * log_phi), 0.0)

    origin = either(lambda: tau, lambda: y_ref + xp.zeros_like(tau))
    scale = xp.exp(k * origin[..., None, :] + (xp.log(L)[..., None] - log_phi)[..., None, :])
    rho = {j: scale * each for j, each in enumerate((sums, *higher))}
    # The normal density underflows at 38.5 sigma; the integrand of order k peaks at up to k sigma.
    lost = xp.exp(-0.5 * xp.maximum(38.5 - window.tilt, 0.0) ** 2)
    return Rule(weight, rho, lost)


def contract(rule: Rule, L: Values, factors: tuple[tuple[int, int], ...]) -> Values:
    """E prod_a sum_i (s_i - c)^{j_a} p_i^{k_a} from the nodes, by set partitions of the factors."""
    total: Any = 0.0
    for blocks, multiplicity in merged_blocks(factors):
        ways: Any = float(multiplicity)
        product = rule.weight
        for used, (j, k) in enumerate(blocks):
            product = product * rule.rho[j][..., k, :]
            ways = ways * (1 - used / L)
        total = total + ways[..., None] * product
    order = sum(k for _, k in factors)
    return total.sum(-1) / math.factorial(order - 1)  # one sum compiles faster than many
