"""Averages over a Gaussian score of small variance v, smooth in v down to v = 0.

The score sits on the nodes y_m of Gauss and Hermite for the deviation `scale` > sqrt(v). What is
averaged is interpolated on them and the interpolant averaged exactly, so that v enters through the
weights alone. With e = (v/scale^2 - 1)/2 they are polynomials of it,

    w_l(m) = gauss_m sum_p He_{l+2p}(y_m) e^p / p!,

which makes every derivative in v right, also at v = 0. For two scores, x and y in units of their
scales and of covariance k, Mehler's expansion gives the weights of pairs of nodes,

    w(m, n) = sum_l k^l / l! w_l(m) w_l(n).

All terms are at most of order e^{-y^2/4} (Cramer's inequality), so no digits are lost.
"""

import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from .._arrays import Values, library
from .._typing import Array

NODES = 33
SCALE = 0.2  # functions analytic to the height pi/2 leave exp(-pi/2 sqrt(NODES)/SCALE), 1e-19

ROUNDING = 1e-22  # what is smaller, of functions with values up to 1, may be rounding


def scale_for(top: int) -> float:
    """Deviation up to which averages of e^{ks}, k <= top, are smooth in the variance."""
    return min(SCALE, 8 * SCALE / top)


@lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(nodes, table[p, l, m] = gauss_m He_{l+2p}(y_m) / p!, 1 / l!)."""
    nodes, gauss = np.polynomial.hermite_e.hermegauss(NODES)
    hermite = np.polynomial.hermite_e.hermevander(nodes, NODES - 1).T * gauss / gauss.sum()
    half = (NODES + 1) // 2
    table = np.zeros((half, NODES, NODES))
    for p in range(half):
        table[p, : NODES - 2 * p] = hermite[2 * p :] / math.factorial(p)
    return nodes, table, np.array([1 / math.factorial(l) for l in range(NODES)])


def nodes() -> np.ndarray:
    """The nodes y_m, in units of the scale."""
    return _tables()[0]


def weights(share: Values, orders: int = 1) -> Values:
    """w_l at the nodes for l < orders and variances share * scale^2: shape (..., orders, nodes)."""
    table = _tables()[1][:, :orders]
    e = _powers((share - 1) / 2, len(table))
    return library(share).tensordot(e, table, axes=1)


def of_normal(x: Array, density: Array) -> Array:
    """The same for a score of any variance on a fine lattice x, in units of its deviation: He_l
    times the density.
    """

    def step(rows: tuple[Array, Array], l: Array) -> tuple[tuple[Array, Array], Array]:
        return (rows[1], x * rows[1] - (l + 1) * rows[0]), rows[0]

    # one small loop: unrolled, it takes minutes to compile where it is differentiated twice
    return jax.lax.scan(step, (density, x * density), jnp.arange(float(NODES)))[1]


def powers_over_factorials(k: Values) -> Values:
    """k^l / l!, l < NODES, with derivatives at k = 0."""
    return _powers(k, NODES) * _tables()[2]


def _powers(x: Values, count: int) -> Values:
    """x^p, p < count, on a last axis, with derivatives at x = 0."""
    if library(x) is np:
        return x[..., None] ** np.arange(count)
    # not `pow`, whose second derivative at 0 is NaN
    found = jax.lax.scan(lambda p, _: (p * x, p), jnp.ones_like(x), length=count)[1]
    return jnp.moveaxis(found, 0, -1)
