"""Finite-prompt quantities of any measure, by quasi-Monte-Carlo over the law of one token.

Scrambled Sobol points are carried to tokens by the measure's transport map; the tokens, as a discrete law, go through the
Laplace integral of `discrete`. So the prompt length costs nothing here either, and only the one-token law is approximated.
Independent scramblings give the error.
"""

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from .. import _checks
from .._typing import ArrayInput, KeyInput
from ..attention import Head
from ..attention.softmax import queries_of
from ..measures import (
    AbstractMeasure,
    AffineImage,
    Dirac,
    Empirical,
    Gaussian,
    IndependentSum,
    Mixture,
    Rademacher,
    Sphere,
    Uniform,
)
from ..measures.gaussian import psd_sqrt
from ._exact import exact
from .estimate import Estimate
from .moments import finite_mean, finite_second_moment, gradient_error, output_error

_QUANTITIES = {
    "finite_mean": finite_mean,
    "finite_second_moment": finite_second_moment,
    "output_error": output_error,
    "gradient_U_error": lambda *args: gradient_error(*args).U,
    "gradient_V_error": lambda *args: gradient_error(*args).V,
}
QuasiQuantity = Literal[
    "finite_mean", "finite_second_moment", "output_error", "gradient_U_error", "gradient_V_error"
]


@exact
def quasi_estimate(
    key: KeyInput,
    quantity: QuasiQuantity,
    head: Head,
    mu: AbstractMeasure,
    z: ArrayInput,
    L: ArrayInput,
    *,
    points: int = 2**12,
    replicates: int = 8,
) -> Estimate:
    """A finite-prompt quantity for tokens of any measure with a sampler, at every L, with its standard error.

    **Arguments:** as in `output_error`; `points` tokens (rounded up to a power of two) represent the law of one token, in
    `replicates` independent scramblings, whose spread is the error. A measure without a transport map (one of your own,
    a von Mises-Fisher law) is represented by plain random tokens, and the error says what that costs.

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> found = lp.quasi_estimate(jax.random.key(0), "output_error", head, lp.Uniform(2, 1.0), jnp.ones(2), 1e6)
    >>> bool(found.standard_error < 1e-3 * found.value)
    True
    """
    if quantity not in _QUANTITIES:
        raise ValueError(
            _checks.message(
                f"quantity must be one of {tuple(_QUANTITIES)}", repr(quantity), "name one"
            )
        )
    queries_of(head, mu, z)
    key, points = _checks.key(key), _checks.count("points", points)
    replicates = _checks.count("replicates", replicates)
    if replicates < 2:
        raise ValueError(
            _checks.message("replicates must be at least 2", "1", "an error needs a spread: pass 8")
        )
    function = _QUANTITIES[quantity]
    exponent = math.ceil(math.log2(points))
    values = np.stack(
        [
            np.asarray(function(head, representative(k, mu, exponent), z, L))
            for k in jax.random.split(key, replicates)
        ]
    )
    error = values.std(axis=0, ddof=1) / math.sqrt(replicates)
    return Estimate(values.mean(axis=0), error, replicates)


def representative(key: KeyInput, mu: AbstractMeasure, exponent: int) -> Empirical:
    """2^exponent tokens that represent the law of one."""
    coordinates = uniforms_needed(mu)
    if coordinates is None:
        return mu.sample(key, 2**exponent)
    from scipy.stats import qmc  # a second of import, only where it is used

    seed = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    uniforms = qmc.Sobol(max(coordinates, 1), rng=seed).random_base2(exponent)
    # Sobol points may touch 0 and 1, where the normal quantile is infinite
    uniforms = np.clip(uniforms, 2.0**-53, 1 - 2.0**-53)
    simple = isinstance(mu, (Gaussian, Rademacher, Uniform))  # nothing in them is looked at
    return Empirical((_compiled_transport if simple else transport)(mu, jnp.asarray(uniforms)))


def uniforms_needed(mu: AbstractMeasure) -> int | None:
    """How many uniform numbers make one token, or None where no map is known."""
    match mu:
        case Dirac():
            return 0
        case Gaussian() | Rademacher() | Uniform():
            return mu.dim
        case Sphere():
            return mu.dim if not np.any(np.asarray(mu.natural)) else None
        case Empirical():
            return 1
        case AffineImage():
            return uniforms_needed(mu.measure)
        case Mixture():
            needed = [uniforms_needed(part) for part in mu.components]
            return None if None in needed else 1 + max(n for n in needed if n is not None)
        case IndependentSum():
            needed = [uniforms_needed(part) for part in mu.parts]
            return None if None in needed else sum(n for n in needed if n is not None)
    return None


def transport(mu: AbstractMeasure, uniforms: jax.Array) -> jax.Array:
    """Tokens of the law mu from uniform numbers of shape (n, uniforms_needed(mu))."""
    n = uniforms.shape[0]
    match mu:
        case Dirac():
            return jnp.broadcast_to(mu.point, (n, mu.dim))
        case Gaussian():
            return mu.centre + jnp.matmul(
                ndtri(uniforms), psd_sqrt(mu.covariance), precision="highest"
            )
        case Rademacher():
            return jnp.where(uniforms < jax.nn.sigmoid(2 * mu.natural), 1.0, -1.0)
        case Uniform():
            return mu.quantile(uniforms)
        case Sphere():
            normal = ndtri(uniforms)
            return mu.radius * normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)
        case Empirical():
            return mu.points[
                jnp.searchsorted(jnp.cumsum(mu.weights), uniforms[:, 0]).clip(0, mu.n - 1)
            ]
        case AffineImage():
            return jnp.matmul(transport(mu.measure, uniforms), mu.A.T, precision="highest") + mu.b
        case Mixture():
            chosen = jnp.searchsorted(jnp.cumsum(mu.weights), uniforms[:, 0]).clip(
                0, len(mu.components) - 1
            )
            parts = [
                transport(part, uniforms[:, 1 : 1 + (uniforms_needed(part) or 0)])
                for part in mu.components
            ]
            return jnp.stack(parts)[chosen, jnp.arange(n)]
        case IndependentSum():
            total, start = jnp.zeros((n, mu.dim)), 0
            for part in mu.parts:
                width = uniforms_needed(part) or 0
                total = total + transport(part, uniforms[:, start : start + width])
                start += width
            return total
    raise AssertionError("uniforms_needed says which measures have a map")


_compiled_transport = eqx.filter_jit(transport)
