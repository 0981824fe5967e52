"""Radial functions of the uniform law on a sphere, accurate at every scale.

For x uniform on the unit sphere of R^d and nu = d/2 - 1,

    E exp(<u, x>) = M_nu(kappa) = Gamma(nu + 1) (2 / kappa)^nu I_nu(kappa)
                  = 0F1(; nu + 1; kappa^2 / 4),    kappa = |u|,

with I_nu the modified Bessel function. The method:

* The ratio t_nu = M_{nu+1} / M_nu satisfies t_nu = 1 / (1 + x t_{nu+1} / ((nu+1)(nu+2))) with
  x = kappa^2 / 4, a recurrence of positive terms that is stable for decreasing orders.
* From order mu = 30 on, Debye's uniform expansion (DLMF 10.41) is exact to rounding for *every*
  kappa. In the normalised form used below it vanishes like kappa^2 at the origin, so that no digit
  is lost there.
* For large kappa the recurrence runs on A_nu = I_{nu+1} / I_nu instead, whose derivative keeps its
  relative accuracy.

All functions take kappa^2, in which they are smooth at the origin.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._typing import Array
from ._scalar_cumulants import sech_squared

_DEBYE_TERMS = 12
_DEBYE_ORDER = 30.0  # the expansion is used from this order upwards
_LARGE = 4.0  # kappa^2 / (4 (nu + 1)) beyond which the recurrence runs on A instead of t


def _debye_polynomials(terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (ascending in p) of u_k and v_k for k < terms, DLMF 10.41.9 and 10.41.11."""
    poly = np.polynomial.Polynomial
    p, u, v = poly([0.0, 1.0]), [poly([1.0])], [poly([1.0])]
    for _ in range(terms - 1):
        last = u[-1]
        u.append(0.5 * p**2 * (1 - p**2) * last.deriv() + ((1 - 5 * p**2) * last).integ() / 8)
        v.append(u[-1] + p * (p**2 - 1) * (0.5 * last + p * last.deriv()))
    width = 3 * terms - 2

    def padded(rows: list) -> np.ndarray:
        return np.array([np.pad(row.coef, (0, width - row.coef.size)) for row in rows])

    return padded(u), padded(v)


_U, _V = _debye_polynomials(_DEBYE_TERMS)


def _debye_sum(table: np.ndarray, order: float) -> np.ndarray:
    """Coefficients in p of sum_k table_k(p) / order^k."""
    return (table / order ** np.arange(len(table))[:, None]).sum(0)


def _raised(dim: int) -> tuple[float, np.ndarray]:
    """An order mu = nu + n large enough for Debye's expansion, and the orders mu - 1, ..., nu."""
    nu = dim / 2 - 1
    steps = max(4, int(np.ceil(_DEBYE_ORDER - nu)))
    return nu + steps, nu + np.arange(steps)[::-1]


def _log_m_debye(order: float, square: Float[Array, ""]) -> Float[Array, ""]:
    """The function log M_mu at a large order mu.

    It is mu (w - log1p(w/2)) - log1p(w)/2 + log(D(p) / D(1)) with w = sqrt(1 + z^2) - 1 and
    z = kappa/mu.
    """
    root = jnp.sqrt(1 + square / order**2)
    w = square / order**2 / (1 + root)
    sums = np.polynomial.Polynomial(_debye_sum(_U, order))
    # D as a polynomial in q = 1 - p: D(p) - D(1) has no constant
    in_q = sums(np.polynomial.Polynomial([1.0, -1.0])).coef
    q = w / root
    gap = jnp.polyval(jnp.asarray(in_q[:0:-1], square.dtype), q) * q
    at_origin = float(in_q[0])
    return order * (w - jnp.log1p(w / 2)) - 0.5 * jnp.log1p(w) + jnp.log1p(gap / at_origin)


def _derivative_ratio(order: float, p: Float[Array, ""]) -> Float[Array, ""]:
    """sum_k v_k(p) / mu^k over sum_k u_k(p) / mu^k."""
    above, below = (jnp.asarray(_debye_sum(table, order)[::-1], p.dtype) for table in (_V, _U))
    return jnp.polyval(above, p) / jnp.polyval(below, p)


def _ratios_small(dim: int, square: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(log(M_nu / M_mu), t_nu) by the recurrence on t; relative accuracy down to kappa = 0."""
    mu, orders = _raised(dim)
    x = square / 4
    root = jnp.sqrt(1 + square / (mu + 1) ** 2)
    start = (mu + 1) * (mu + 2) / 2 * (root * _derivative_ratio(mu + 1, 1 / root) - 1)  # x t_{mu+1}

    def down(xt: Float[Array, ""], order: Float[Array, ""]) -> tuple:
        step = xt / ((order + 1) * (order + 2))
        return x / (1 + step), jnp.log1p(step)

    xt_mu = x / (1 + start / ((mu + 1) * (mu + 2)))
    xt, logs = jax.lax.scan(down, xt_mu, jnp.asarray(orders[:-1], square.dtype))
    nu = float(orders[-1])
    last = xt / ((nu + 1) * (nu + 2))
    return jnp.sum(logs) + jnp.log1p(last), 1 / (1 + last)


def _mean_large(dim: int, kappa: Float[Array, ""]) -> Float[Array, ""]:
    """A_nu(kappa) for kappa away from 0, by the recurrence A_{n-1} = 1 / (A_n + 2n / kappa)."""
    mu, orders = _raised(dim)
    y = mu / kappa
    start = jnp.sqrt(1 + y**2) * _derivative_ratio(mu, y / jnp.sqrt(1 + y**2)) - y

    def down(a: Float[Array, ""], order: Float[Array, ""]) -> tuple:
        return 1 / (a + 2 * (order + 1) / kappa), None

    return jax.lax.scan(down, start, jnp.asarray(orders, kappa.dtype))[0]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)  # without jit every eager call would compile the scans anew
def log_m(dim: int, square: Float[Array, ""]) -> Float[Array, ""]:
    """The function log M_nu of kappa^2."""
    mu, _ = _raised(dim)
    return _log_m_debye(mu, square) + _ratios_small(dim, square)[0]


@log_m.defjvp
def _log_m_jvp(dim: int, primals: tuple, tangents: tuple) -> tuple:
    (square,), (tangent,) = primals, tangents
    return log_m(dim, square), mean_over_kappa(dim, square) / 2 * tangent


@partial(jax.jit, static_argnums=0)
def mean_over_kappa(dim: int, square: Float[Array, ""]) -> Float[Array, ""]:
    """A(kappa) / kappa = t_nu / d as a function of kappa^2; 1/d at the origin."""
    return _ratios_small(dim, square)[1] / dim


@partial(jax.jit, static_argnums=0)
def radial_variance(dim: int, square: Float[Array, ""]) -> Float[Array, ""]:
    """Variance A'(kappa) of the tilted law along the tilt, as a function of kappa^2; 1/d at 0."""
    if dim == 1:  # two points: exponentially small, which no difference of ratios can resolve
        return sech_squared(jnp.sqrt(square))
    large = square > 4 * _LARGE * (dim / 2)
    safe_small = jnp.where(large, 1.0, square)
    t, slope = jax.jvp(lambda q: _ratios_small(dim, q)[1], (safe_small,), (jnp.ones_like(square),))
    small = (t + 2 * safe_small * slope) / dim
    safe_large = jnp.sqrt(jnp.where(large, square, 4 * _LARGE * (dim / 2)))
    slope_large = jax.jvp(lambda k: _mean_large(dim, k), (safe_large,), (jnp.ones_like(square),))[1]
    return jnp.where(large, slope_large, small)
