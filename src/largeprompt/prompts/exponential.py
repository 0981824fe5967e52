"""Finite-prompt moments as sums of exponentials of the score variance: Gaussian averages become closed form.

At one length L the functions h(s) = P_2 and P_2 + 6 P_3 - 6 P_22 of the score variance s = sigma^2 decide the mean and the second
moment of the output. Written as

    h(s) = sum_n W_n e^{-p_n s},         Re p_n > -1/(2 lambda),

their average over a Gaussian vector xi with quadratic form s = xi'M xi, lambda_max(M) <= lambda, is a sum of Gaussian integrals,

    E[h(xi'M xi) xi'Q xi] = sum_n W_n det(I + 2 p_n M)^{-1/2} tr(Q (I + 2 p_n M)^{-1}):

no quadrature over the vector, differentiable, at a cost that does not depend on L.

The exponents: a few real ones that match h to fourth order at s = 0, and the nodes of the inverse Laplace transform of the rest on
the line Re p = -c, c = 1/(4 lambda), halfway between the pole of the transform at 0 (h tends to 1) and the singularity of the
Gaussian integral. Each rung of a ladder of lambda has its own line.
"""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float
from numpy.polynomial import legendre

from ._domain import RESOLVED, SHORT
from .participation import participation

LARGEST = 16.0  # Frobenius norm of M
_RUNGS = (1 / 64, 1 / 16, 0.25, 1.0, 4.0, LARGEST)
_DEGREE = 20  # Legendre modes on a panel of s
_NODES = 64  # on half a line
_REAL = 5  # real exponents 0, 1, .., matching h to this order at 0
_FAST = 1.5  # no line is further left: beyond, e^{-cs} is below 1/L anyway
_REACH = 400.0  # the lines end at this imaginary part, where the transform has fallen like p^-6
_DROP = 45.0


class ExponentialTable(eqx.Module):
    """W_n and p_n for both functions at one length, one row for each rung of the ladder of lambda."""

    rungs: Float[Array, " rungs"]
    exponents: Complex[Array, "rungs nodes"]
    weights: Complex[Array, "rungs 2 nodes"]

    def averages(
        self, M: Float[Array, "d d"], Q: Float[Array, "forms d d"]
    ) -> tuple[Float[Array, " 2"], Float[Array, "2 forms"]]:
        """E[h(S)] and E[h(S) xi'Q xi] for both functions h and every form Q, S = xi'M xi, xi standard normal, M >= 0.

        NaN where the Frobenius norm of M exceeds the ladder; whoever hands numbers to a user checks for it.
        """
        size = jax.lax.stop_gradient(jnp.linalg.norm(M))  # at least lambda_max
        rung = jnp.clip(jnp.sum(size > self.rungs), 0, len(_RUNGS) - 1)
        p, W = self.exponents[rung], self.weights[rung]
        tilts = 2 * p[:, None, None] * M.astype(p.dtype)
        inverse, log_det = _inverse(jnp.eye(len(M), dtype=p.dtype) + tilts)
        mass = jnp.exp(-0.5 * log_det)
        traces = jnp.einsum("fij,nji->fn", Q.astype(inverse.dtype), inverse)
        # a step of a solver that leaves the ladder must be refused by the solver: it sees NaN
        inside = jnp.where(size <= self.rungs[-1], 1.0, jnp.nan)
        ones, forms = W @ mass, jnp.einsum("hn,n,fn->hf", W, mass, traces)
        return inside * jnp.real(ones), inside * jnp.real(forms)


@jax.custom_jvp
def _inverse(K: Complex[Array, "n d d"]) -> tuple[Complex[Array, "n d d"], Complex[Array, " n"]]:
    """Inverses and logarithms of determinants of complex symmetric matrices whose real part is positive definite.

    Sweeping one pivot after the other needs no exchange of rows: every pivot is a Schur complement, so it too has a positive real
    part, and the sum of the principal logarithms is the branch that is real for real matrices. Only elementary operations: library
    factorisations inside the loops of a solver were seen to stall.
    """
    log_det = jnp.zeros(K.shape[0], K.dtype)
    for k in range(K.shape[-1]):
        pivot = K[:, k, k]
        row, column = K[:, k, :] / pivot[:, None], K[:, :, k]
        swept = K - column[:, :, None] * row[:, None, :]
        swept = swept.at[:, k, :].set(row).at[:, :, k].set(-column / pivot[:, None])
        K, log_det = swept.at[:, k, k].set(1 / pivot), log_det + jnp.log(pivot)
    return K, log_det


@_inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple:
    """D K^-1 = -K^-1 dK K^-1 and d ln det K = tr(K^-1 dK): nothing is differentiated through the sweeps."""
    inverse, log_det = _inverse(*primals)
    moved = inverse @ tangents[0]
    return (inverse, log_det), (-moved @ inverse, jnp.trace(moved, axis1=-2, axis2=-1))


@lru_cache(maxsize=128)
def exponential_table(L: float) -> ExponentialTable:
    """The table of one length L >= 1; all weights vanish at infinity."""
    rows = [_line(rung) for rung in _RUNGS]
    exponents = np.stack([np.concatenate([np.arange(_REAL), p]) for p, _ in rows])
    weights = np.zeros((len(_RUNGS), 2, _REAL + _NODES), complex)
    if np.isfinite(L):
        centres, halves, modes, values = _panels(L)
        real = _matched(modes, values, halves[0])
        points = centres[:, None] + halves[:, None] * legendre.leggauss(_DEGREE)[0]
        rest = values - np.einsum(
            "hb,psb->hps", real, np.exp(-points[..., None] * np.arange(_REAL))
        )
        coefficients = np.einsum("mk,hpk->hpm", modes, rest)
        for i, (p, dp) in enumerate(rows):
            transform = _transform(p, centres, halves, coefficients, _DROP + np.log(L))
            weights[i] = np.concatenate([real, transform * dp / (2j * np.pi)], axis=1)
    # known numbers even while JAX traces: the table outlives the trace
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return ExponentialTable(jnp.asarray(_RUNGS), jnp.asarray(exponents), jnp.asarray(weights))


def _line(rung: float) -> tuple[np.ndarray, np.ndarray]:
    """Points on Re p = -c, close together near the real axis, with their weights; the lower half is the complex conjugate."""
    c = min(1 / (4 * rung), _FAST)
    t = np.linspace(0, np.arcsinh(_REACH / c), _NODES)
    dp = 1j * c * np.cosh(t) * t[1] * np.where(t == 0, 1, 2)
    return -c + 1j * c * np.sinh(t), dp


def _panels(L: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Panels of s that grow with s, the projection on Legendre modes, and both functions at the Gauss points of each panel."""
    last = (_DROP + np.log(L)) * 4 * _RUNGS[-1]
    if L < SHORT:
        # the last panel reaches up to 12% further; on the slowest line e^{-cs} has fallen to 6e-10 there
        last = min(last, 0.85 * RESOLVED**2)
    edges = [0.0]
    while edges[-1] < last:
        edges.append(edges[-1] + max(1.0, 0.12 * edges[-1]))
    centres, halves = (np.add(edges[1:], edges[:-1]) / 2, np.diff(edges) / 2)
    x, w = legendre.leggauss(_DEGREE)
    modes = (legendre.legvander(x, _DEGREE - 1) * w[:, None]).T
    modes = modes * (np.arange(_DEGREE) + 0.5)[:, None]
    found = participation(np.sqrt(centres[:, None] + halves[:, None] * x), L)
    p2, p3, p22 = (np.asarray(a) for a in (found.p2, found.p3, found.p22))
    return centres, halves, modes, np.stack([p2, p2 + 6 * p3 - 6 * p22])


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


def _transform(
    p: np.ndarray, centres: np.ndarray, halves: np.ndarray, coefficients: np.ndarray, drop: float
) -> np.ndarray:
    """int e^{ps} f(s) ds panel by panel: Legendre modes times exponentials integrate to spherical Bessel functions."""
    from scipy.special import spherical_in

    near = -p[0].real * (centres - halves) < drop
    z = p[:, None] * halves[near]
    bessel = np.stack([spherical_in(m, z) for m in range(_DEGREE)], axis=-1)
    scale = 2 * halves[near] * np.exp(p[:, None] * centres[near])
    return np.einsum("np,hpm,npm->hn", scale, coefficients[:, near], bessel)
