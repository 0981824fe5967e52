"""Finite-prompt quantities of any measure, by quasi-Monte-Carlo over the law of one token.

Scrambled Sobol points are carried to tokens by the measure's transport map; the tokens, as a discrete law, go through the
Laplace integral of `discrete`. So the prompt length costs nothing here either, and only the one-token law is approximated.
Independent scramblings give the error.

**Tails.** A long prompt sees tokens that a thousand points do not: its error is e^{psi(2u) - 2
psi(u)}/L to first order, an average carried by tokens around the tilt 2u. Where plain points miss
them, half of the points are drawn from the law tilted at u and at 2u, with weights

    d mu / d(mu/2 + mu_u/4 + mu_2u/4) = 1 / (1/2 + e^{s - psi(u)}/4 + e^{2s - psi(2u)}/4),      s = <u, x>,

wherever a tilt can be sampled. Whether the tail is represented is then known for every measure:
the weighted points must reproduce E e^{2s} = e^{psi(2u)}. What they miss of it is part of the
error.
"""

import math
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from .. import _checks
from .._float64 import in_float64
from .._linalg import psd_sqrt
from .._typing import ArrayInput, KeyInput
from ..attention import Head
from ..attention.softmax import inside_domain
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
from .estimate import Estimate
from .moments import finite_mean, finite_second_moment, gradient_error, output_error
from .pairs import pairs

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


@in_float64
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
    `replicates` independent scramblings. The error is the standard error over these, plus what the
    points miss of the tail that carries E e^{2<u,x>} (known exactly from `log_mgf`). A measure
    without a transport map (one of your own, a von Mises-Fisher law) is represented by plain
    random tokens, and the error says what that costs.

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
    z, tilts, lengths = (np.asarray(a) for a in pairs(head, mu, z, L))
    if quantity.endswith("error"):  # the distance to the infinite prompt, which must exist
        inside_domain(head, mu, jnp.asarray(z))
    key, points = _checks.key(key), _checks.count("points", points)
    replicates = _checks.count("replicates", replicates)
    if replicates < 2:
        raise ValueError(
            _checks.message("replicates must be at least 2", "1", "an error needs a spread: pass 8")
        )
    keys, exponent = jax.random.split(key, replicates), math.ceil(math.log2(points))
    function, order = _QUANTITIES[quantity], 2 if quantity == "gradient_U_error" else 1
    queries, which = np.unique(z.reshape(-1, head.dim), axis=0, return_inverse=True)
    parts: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0), np.empty(0))] * lengths.size
    for i, query in enumerate(queries):
        at = np.flatnonzero(which == i)
        tilt, wanted = tilts.reshape(-1, head.dim)[at[0]], lengths.ravel()[at]
        values, missed = [], []
        for k in keys:
            law = representative(k, mu, exponent, tilt)
            *found, one, limit = np.asarray(function(head, law, query, [*wanted, 1.0, math.inf]))
            values.append(np.stack(found))
            tail = tail_of(mu, law, tilt)
            missed.append(tail.missed(values[-1] - limit, np.asarray(one - limit), wanted, order))
        error = np.std(values, axis=0, ddof=1) / math.sqrt(replicates)
        error += np.abs(np.mean(missed, axis=0))
        for j, value, bar in zip(at, np.mean(values, axis=0), error, strict=True):
            parts[j] = value, bar
    value, error = (
        np.stack(part).reshape((*lengths.shape, *part[0].shape))
        for part in zip(*parts, strict=True)
    )
    return Estimate(value, error, replicates)


class Tail(NamedTuple):
    """What points miss of the tail of the measure they represent, seen from a query with tilt u.

    The error of a long prompt is L^-1 E_mu[e^{2s - 2 psi(u)} |x - T|^2] to first order, known for
    every measure. `mass` and `deviation` compare its two factors, E e^{2s - 2 psi(u)} and E_2u |x
    - T|^2, under the measure with those under the points. `reach` is the largest |x - T|^2 of a
    point over the average one.
    """

    mass: float
    deviation: float
    reach: float
    points: int

    @property
    def is_seen(self) -> bool:
        """Whether the points have the tail to a per cent."""
        return abs(self.mass * self.deviation - 1) < 0.01

    def missed(
        self, distance: np.ndarray, one_token: np.ndarray, lengths: np.ndarray, order: int = 1
    ) -> np.ndarray:
        """What is missing from distances to the infinite prompt (lengths first), given the
        distance of one token.

        `order` is the power of |x - T|^2 in them. Missing in proportion to the tail; but tokens
        rarer than one in n points change a prompt of L tokens with probability of about L/n at
        most.
        """
        rare = np.minimum(4 * lengths / self.points, 1.0)
        most = rare.reshape(-1, *[1] * one_token.ndim) * self.reach**order * np.abs(one_token)
        share = min(self.mass * max(self.deviation, 1.0) ** order, 1e300) - 1
        return np.clip(share * distance, -most, most)


def tail_of(mu: AbstractMeasure, law: Empirical, tilt: np.ndarray) -> Tail:
    """Compare the tail of the points of `law` with that of mu."""
    u = jnp.asarray(tilt)
    squares = jnp.sum((law.points - law.tilted_mean(u)) ** 2, axis=-1)
    reach = float(jnp.max(squares) / jnp.maximum(law.weights @ squares, 1e-300))
    if not mu.in_domain(2 * u):  # E e^{2s} is infinite: no points represent the tail
        return Tail(1e150, 1.0, reach, law.n)
    mass, deviation = _tail_of(mu, law, u)
    return Tail(float(mass), float(deviation), reach, law.n)


@eqx.filter_jit
def _tail_of(mu: AbstractMeasure, law: Empirical, u: jax.Array) -> tuple[jax.Array, ...]:
    def tail(measure: AbstractMeasure) -> tuple[jax.Array, jax.Array]:
        mass = measure.log_mgf(2 * u) - 2 * measure.log_mgf(u)
        square = jnp.trace(measure.tilted_cov(2 * u))
        square += jnp.sum((measure.tilted_mean(2 * u) - measure.tilted_mean(u)) ** 2)
        return mass, square

    (mass, square), (points_mass, points_square) = tail(mu), tail(law)
    return (
        jnp.exp(jnp.minimum(mass - points_mass, 345.0)),
        square / jnp.maximum(points_square, 1e-300),
    )


def representative(
    key: KeyInput, mu: AbstractMeasure, exponent: int, tilt: np.ndarray | None = None
) -> Empirical:
    """2^exponent tokens that represent the law of one; with a `tilt`, also where a long prompt
    tilted by it looks.
    """
    coordinates = uniforms_needed(mu)
    if coordinates is None:
        plain = mu.sample(key, 2**exponent)
    else:
        simple = isinstance(
            mu, (Gaussian, Rademacher, Uniform)
        )  # no branch depends on their values
        uniforms = _sobol(key, coordinates, exponent)
        plain = Empirical((_compiled_transport if simple else transport)(mu, uniforms))
    if tilt is None or tail_of(mu, plain, tilt).is_seen:
        return plain
    found = _with_tail(key, mu, exponent, tilt)
    return plain if found is None else found


def _sobol(key: KeyInput, coordinates: int, exponent: int) -> jax.Array:
    from scipy.stats import qmc  # a second of import, only where it is used

    seed = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    uniforms = qmc.Sobol(max(coordinates, 1), rng=seed).random_base2(exponent)
    # Sobol points may touch 0 and 1, where the normal quantile is infinite
    return jnp.asarray(np.clip(uniforms, 2.0**-53, 1 - 2.0**-53))


def _with_tail(
    key: KeyInput, mu: AbstractMeasure, exponent: int, tilt: np.ndarray
) -> Empirical | None:
    """Tokens of mu and of its tilts at u and 2u, weighted to represent mu; None where a tilt
    cannot be sampled or does not exist.
    """
    if exponent < 2 or not mu.in_domain(2 * tilt):
        return None
    u, sizes = jnp.asarray(tilt), (exponent - 1, exponent - 2, exponent - 2)
    keys = jax.random.split(key, 3)
    coordinates = uniforms_needed(mu.tilt(u))
    if coordinates is not None:
        uniforms = [_sobol(k, coordinates, e) for k, e in zip(keys, sizes, strict=True)]
        found = _tokens_and_tail(mu, u, uniforms)
    else:
        try:
            laws = [mu, mu.tilt(u), mu.tilt(2 * u)]
            parts = [
                law.sample(k, 2**e).points for law, k, e in zip(laws, keys, sizes, strict=True)
            ]
        except ValueError:  # a measure that says how it is sampled, not how its tilts are
            return None
        found = _weighted_to(mu, u, parts)
    return found


@eqx.filter_jit
def _tokens_and_tail(mu: AbstractMeasure, u: jax.Array, uniforms: list[jax.Array]) -> Empirical:
    laws = [mu, mu.tilt(u), mu.tilt(2 * u)]
    return _weighted_to(mu, u, [transport(law, x) for law, x in zip(laws, uniforms, strict=True)])


def _weighted_to(mu: AbstractMeasure, u: jax.Array, parts: list[jax.Array]) -> Empirical:
    """Points of mu, mu_u and mu_2u, in the shares 2 : 1 : 1, with the weights of mu."""
    points = jnp.concatenate(parts)
    scores = points @ u
    shares = jnp.stack(
        [
            jnp.full_like(scores, math.log(0.5)),
            scores - mu.log_mgf(u) + math.log(0.25),
            2 * scores - mu.log_mgf(2 * u) + math.log(0.25),
        ]
    )
    log_weights = jax.nn.log_softmax(-jax.nn.logsumexp(shares, axis=0))
    return Empirical(points).with_log_weights(log_weights)


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
