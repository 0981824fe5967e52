"""Finite-prompt moments as sums of exponentials of the score variance.

Gaussian averages of such sums have a closed form. At one length L the functions h(s) = P_2 and
P_2 + 6 P_3 - 6 P_22 of the score variance s = sigma^2 decide the mean and the second moment of the
output. Written as

    h(s) = sum_n W_n e^{-p_n s},         Re p_n > -1/(2 lambda),

their average over a Gaussian vector xi with quadratic form s = xi'M xi, lambda_max(M) <= lambda,
is a sum of Gaussian integrals,

    E[h(xi'M xi) xi'Q xi] = sum_n W_n det(I + 2 p_n M)^{-1/2} tr(Q (I + 2 p_n M)^{-1}):

differentiable, without quadrature over the vector, at a cost that does not depend on L.

The exponents: a few real ones that match h to fourth order at s = 0, and the nodes of the inverse
Laplace transform of the rest on a line Re p = -c, between the pole of the transform at 0 (h tends
to 1) and the singularity of the Gaussian integral at -1/(2 lambda). Every line gives the same
average, with different cancellation: at L = 1e15 the terms may exceed their sum 1e9 times. So there
are several lines, and each M takes the one with the smallest terms, the nearest to the saddle
point of the integrand. Relative errors are below 1e-9 for L up to 1e20 and below 1e-6 up to
1e30 (`LONGEST`).
"""

from functools import cache, lru_cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Complex, Float, Inexact, Int
from numpy.polynomial import chebyshev, legendre

from .._typing import Array
from .weight_moments import moment_functions

LARGEST = 1e6  # Frobenius norm of M
LONGEST = 1e30  # finite length
_NEAREST = 0.75  # a line goes at most this part of the way to the singularity at -1/(2 lambda)
# the cancellation grows with L where 1/4 < lambda < 2: lines lie close together there
_LINES = np.concatenate(
    [np.geomspace(1.5, 0.125, 15), np.geomspace(0.125, _NEAREST / (2 * LARGEST), 13)[1:]]
)
_DEGREE = 20  # Legendre modes on a panel of s
_NODES = 96  # on half a line
_REAL = 5  # real exponents 0, 1, .., matching h to this order at 0
_REACH = 400.0  # the lines end at this imaginary part, where the transform has fallen like p^-6
_FAR = 1000.0  # variance beyond which the functions are smooth in 1/sigma
_FAR_NODES = 32
_DROP = 45.0 + np.log(LONGEST)  # exponent below which terms are rounding, for all lengths


class ExponentialTable(eqx.Module):
    """W_n and p_n for both functions at one length, a row for each line Re p = -c."""

    lines: Float[Array, " rungs"]
    log_sizes: Float[Array, " rungs"]  # of the sum of |W_n|
    exponents: Complex[Array, "rungs nodes"]
    weights: Complex[Array, "rungs 2 nodes"]

    def averages(
        self, M: Float[Array, "d d"], Q: Float[Array, "forms d d"]
    ) -> tuple[Float[Array, " 2"], Float[Array, "2 forms"]]:
        """E[h(S)] and E[h(S) xi'Q xi] for both functions h and every form Q.

        S = xi'M xi with xi standard normal and M >= 0. NaN if the Frobenius norm of M exceeds
        `LARGEST`: callers check for it before they return numbers to a user.
        """
        rung, known = self._best_line(jax.lax.stop_gradient(M))
        p, W = self.exponents[rung], self.weights[rung]
        tilts = 2 * p[:, None, None] * M.astype(p.dtype)
        inverse, log_det = _inverse(jnp.eye(len(M), dtype=p.dtype) + tilts)
        mass = jnp.exp(-0.5 * log_det)
        traces = jnp.einsum("fij,nji->fn", Q.astype(inverse.dtype), inverse)
        # NaN makes a solver reject a step that leaves the range
        inside = jnp.where(known, 1.0, jnp.nan)
        ones, forms = W @ mass, jnp.einsum("hn,n,fn->hf", W, mass, traces)
        return inside * jnp.real(ones), inside * jnp.real(forms)

    def for_numpy(self) -> "NumpyTable":
        """The same numbers, known, as NumPy arrays."""
        arrays = (self.lines, self.log_sizes, self.exponents, self.weights)
        return NumpyTable(*map(np.asarray, arrays))

    def _best_line(self, M: Float[Array, "d d"]) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        """Line with the smallest sum |W_n| det(I - 2cM)^{-1/2}, and whether M is in range."""
        c = jnp.concatenate([self.lines, self.lines / _NEAREST])
        _, log_det = _inverse(jnp.eye(len(M)) - 2 * c[:, None, None] * M)
        here, further = jnp.split(log_det, 2)
        served = jnp.isfinite(further)  # NaN where I - 2cM is not positive definite
        sizes = jnp.where(served, self.log_sizes - 0.5 * here, jnp.inf)
        return jnp.argmin(sizes), jnp.linalg.norm(M) <= LARGEST


class Terms(NamedTuple):
    """Terms of E[h(S)] = sum_n mass_n and E[h(S) xi'Q xi] = sum_n mass_n sum_i factors_ni Q_ii.

    S = xi'M xi, xi standard normal, Q in the basis of the eigenvectors of M; the real part counts.
    """

    exponents: Complex[np.ndarray, " nodes"]
    mass: Complex[np.ndarray, "2 nodes"]  # for both functions h
    factors: Complex[np.ndarray, "nodes d"]  # 1/(1 + 2 p_n lambda_i)


class NumpyTable(NamedTuple):
    """An `ExponentialTable` of NumPy arrays."""

    lines: np.ndarray
    log_sizes: np.ndarray
    exponents: np.ndarray
    weights: np.ndarray

    def terms(self, variances: np.ndarray) -> Terms:
        """Terms of the averages for the eigenvalues of a form M."""
        # the same choice of a line as that of `ExponentialTable._best_line`
        positive, twice = np.maximum(variances, 0.0), 2 * self.lines
        served = (twice * positive.max() < _NEAREST).nonzero()[0]
        tilts = twice[served, None] * positive
        sizes = self.log_sizes[served] - 0.5 * np.log1p(-tilts).sum(-1)
        rung = served[sizes.argmin()] if sizes.size else -1
        p = self.exponents[rung]
        factors = 1 / (1 + (2 * p)[:, None] * variances)
        # the square root of each factor, not of their product, is on the branch real at p = 0
        mass = self.weights[rung] * np.sqrt(factors).prod(-1)
        if not np.dot(variances, variances) <= LARGEST**2:
            mass = mass * np.nan
        return Terms(p, mass, factors)


@jax.custom_jvp
def _inverse(K: Inexact[Array, "n d d"]) -> tuple[Inexact[Array, "n d d"], Inexact[Array, " n"]]:
    """Inverses and log-determinants of symmetric matrices with positive definite real part.

    NaN for real matrices that are not positive definite. Gauss-Jordan elimination needs no exchange
    of rows: every pivot is a Schur complement, so it has a positive real part too, and the sum of
    the principal logarithms is the branch that is real for real matrices. Written with elementary
    operations, because library factorisations stalled inside the loops of a solver.
    """
    rows = jnp.arange(K.shape[-1])

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        K, log_det = state
        pivot, column, here = K[:, k, k], K[:, :, k], rows == k
        row = jnp.where(here, 1.0, K[:, k, :]) / pivot[:, None]
        swept = jnp.where(here, 0.0, K) - column[:, :, None] * row[:, None, :]
        return jnp.where(here[:, None], row[:, None, :], swept), log_det + jnp.log(pivot)

    start = (K, jnp.zeros(K.shape[0], K.dtype))
    return jax.lax.fori_loop(0, K.shape[-1], step, start)


@_inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple:
    """Use `d K^-1 = -K^-1 dK K^-1` and `d ln det K = tr(K^-1 dK)`, not the elimination."""
    inverse, log_det = _inverse(*primals)
    moved = inverse @ tangents[0]
    return (inverse, log_det), (-moved @ inverse, jnp.trace(moved, axis1=-2, axis2=-1))


@lru_cache(maxsize=128)
def exponential_table(L: float) -> ExponentialTable:
    """Table for one length 1 <= L <= LONGEST; all weights vanish at infinity."""
    rows = [_line(c) for c in _LINES]
    exponents = np.stack([np.concatenate([np.arange(_REAL), p]) for p, _ in rows])
    weights = np.zeros((len(_LINES), 2, _REAL + _NODES), complex)
    sizes = np.ones(len(_LINES))
    if np.isfinite(L):
        centres, halves = _panels()
        points = centres[:, None] + halves[:, None] * legendre.leggauss(_DEGREE)[0]
        values, modes = _functions(points, L), _projection()
        real = _matched(modes, values, halves[0])
        rest = values - np.einsum(
            "hb,psb->hps", real, np.exp(-points[..., None] * np.arange(_REAL))
        )
        coefficients = np.einsum("mk,hpk->hpm", modes, rest).reshape(2, -1)
        for i, (_, dp) in enumerate(rows):
            integrals = _integrals_of_modes(i)
            # not a matrix product: the threads of the library cost more than they gain
            used = coefficients[:, : integrals.shape[1]]
            transform = np.einsum("hm,nm->hn", used, integrals)
            weights[i] = np.concatenate([real, transform * dp / (2j * np.pi)], axis=1)
            sizes[i] = np.sum(np.abs(weights[i, :, _REAL:])) + np.finfo(float).tiny
    # concrete arrays even while JAX traces: a cached table outlives the trace
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        arrays = (_LINES, np.log(sizes), exponents, weights)
        return ExponentialTable(*(jax.device_put(array) for array in arrays))


def _functions(variances: np.ndarray, L: float) -> np.ndarray:
    """Both functions at increasing variances; where s is large, a polynomial in 1/sigma.

    Half of the points are there, and 32 suffice: below 1e-14 for L up to 1e6, and within the
    rounding of the integrals, 1e-11, up to 1e30.
    """
    far = variances >= _FAR
    nodes = (chebyshev.chebpts1(_FAR_NODES) + 1) / 2 / np.sqrt(_FAR)
    inside = np.append(np.sqrt(variances[~far]), 1 / nodes)
    near, series = np.split(moment_functions(inside, L), [-_FAR_NODES], axis=-1)
    fitted = chebyshev.chebfit(2 * np.sqrt(_FAR) * nodes - 1, series.T, _FAR_NODES - 1)
    values = np.empty((2, *variances.shape))
    values[:, ~far] = near
    values[:, far] = chebyshev.chebval(2 * np.sqrt(_FAR / variances[far]) - 1, fitted)
    return values


def _line(c: float) -> tuple[np.ndarray, np.ndarray]:
    """Points on the upper half of Re p = -c, dense near the real axis, and their weights."""
    near = c * (1 / _NEAREST - 1)  # at least this far from both singularities
    t = np.linspace(0, np.arcsinh(_REACH / near), _NODES)
    dp = 1j * near * np.cosh(t) * t[1] * np.where(t == 0, 1, 2)
    return -c + 1j * near * np.sinh(t), dp


@cache
def _panels() -> tuple[np.ndarray, np.ndarray]:
    """Panels of s that grow with s, for all lengths: centres and half-widths."""
    edges = [0.0]
    while edges[-1] < _DROP / _LINES[-1]:
        # beyond 4000 even the longest prompt has little weight outside one token: h is a series in
        # 1/sigma
        edges.append(edges[-1] + max(1.0, (0.12 if edges[-1] < 4000 else 0.3) * edges[-1]))
    return np.add(edges[1:], edges[:-1]) / 2, np.diff(edges) / 2


@cache
def _projection() -> np.ndarray:
    """Coefficients of the Legendre modes of a panel, from the values at its Gauss points."""
    x, w = legendre.leggauss(_DEGREE)
    modes = (legendre.legvander(x, _DEGREE - 1) * w[:, None]).T
    return modes * (np.arange(_DEGREE) + 0.5)[:, None]


def _matched(modes: np.ndarray, values: np.ndarray, half: float) -> np.ndarray:
    """The combination of e^{-bs}, b = 0, 1, .., with the derivatives of each function at s = 0."""
    system = np.vander(-np.arange(float(_REAL)), _REAL, increasing=True).T
    found = []
    for function in values[:, 0]:
        series, derivatives = modes @ function, []
        for order in range(_REAL):
            derivatives.append(legendre.legval(-1.0, series) / half**order)
            series = legendre.legder(series)
        found.append(np.linalg.solve(system, derivatives))
    return np.stack(found)


@cache
def _integrals_of_modes(line: int) -> np.ndarray:
    """Integrals of e^{ps} times every mode of every panel, for the points p of a line.

    Legendre modes times exponentials integrate to spherical Bessel functions. Later panels, where
    e^{ps} has fallen below the rounding of the longest prompt's function, are left out. The same
    for all lengths, these 50 MB are computed once.
    """
    p, (centres, halves) = _line(_LINES[line])[0], _panels()
    near = -p[0].real * (centres - halves) < _DROP
    scale = 2 * halves[near] * np.exp(p[:, None] * centres[near])
    modes = scale[..., None] * _spherical_bessel(p[:, None] * halves[near])
    return modes.reshape(len(p), -1)


def _spherical_bessel(z: np.ndarray) -> np.ndarray:
    """Modified spherical Bessel functions i_0, .., i_{_DEGREE - 1} on a last axis.

    Accurate to about 1e-13. Uses the recurrence i_{n-1} - i_{n+1} = (2n + 1)/z i_n: upwards where
    |z| is larger than the order, otherwise downwards, scaled so that the sum of (2n + 1) i_n is e^z
    [DLMF 10.60]. That sum cancels where Re z < 0; i_n(-z) = (-1)^n i_n(z) leads there. SciPy's
    functions need a second for the values used here.
    """
    left = np.real(z.ravel()) < 0
    flat = np.where(left, -z.ravel(), z.ravel())
    large = np.abs(flat) > _DEGREE
    found = np.empty((_DEGREE, flat.size), complex)
    x = flat[large]
    terms, inverse = np.empty((_DEGREE, x.size), complex), 1 / x
    terms[0] = np.sinh(x) * inverse
    terms[1] = (np.cosh(x) - terms[0]) * inverse
    for n in range(1, _DEGREE - 1):
        terms[n + 1] = terms[n - 1] - (2 * n + 1) * inverse * terms[n]
    found[:, large] = terms
    x = flat[~large]
    terms, inverse = np.empty((_DEGREE, x.size), complex), 1 / x
    above, here, total = np.zeros_like(x), np.full_like(x, 1e-280), np.zeros_like(x)
    for n in range(5 * _DEGREE // 2, -1, -1):
        total += (2 * n + 1) * here
        if n < _DEGREE:
            terms[n] = here
        above, here = here, above + (2 * n + 1) * inverse * here
    found[:, ~large] = terms * (np.exp(x) / total)
    found[1::2, left] *= -1
    return np.moveaxis(found.reshape(_DEGREE, *z.shape), 0, -1)
