"""Scrambled points that represent the law of one token, and whether they represent its tail.

Scrambled Sobol points are carried to tokens by the measure's map from uniform numbers; the tokens,
as a discrete law, then go through `laplace_integral`. So the prompt length
costs nothing here either, and only the law of one token is approximated. Independent scramblings
give the error.

**Tails.** A long prompt contains tokens that a thousand points do not: its error is
e^{psi(2u) - 2 psi(u)}/L to first order, an average carried by tokens around the tilt 2u. Where
plain points miss them, half of the points are drawn from the law tilted at u and at 2u, with
weights

    d mu / d(mu/2 + mu_u/4 + mu_2u/4) = 1 / (1/2 + e^{s - psi(u)}/4 + e^{2s - psi(2u)}/4),

s = <u, x>, wherever a tilt can be sampled. The weighted points must reproduce E e^{2s} =
e^{psi(2u)}, which every measure knows; what they miss of it is part of the error.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Key

from .. import _checks
from .._typing import Array, KeyInput
from ..measures import AbstractMeasure, Empirical


class Scrambling(NamedTuple):
    """Random numbers of a quasi-Monte-Carlo average."""

    key: KeyInput
    replicates: int
    points: int | None  # tokens that represent a law; None: a default

    def keys(self) -> Key[Array, " replicates"]:
        """One key for each replicate."""
        return jax.random.split(self.key, self.replicates)

    def two(self) -> "tuple[Scrambling, Scrambling]":
        """One for the tokens and one for the queries: with a common key their points would
        coincide.
        """
        first, second = jax.random.split(self.key)
        return self._replace(key=first), self._replace(key=second)

    def exponent(self, default: int) -> int:
        """Logarithm to base 2 of the number of points, rounded up."""
        return math.ceil(math.log2(default if self.points is None else self.points))


def scrambled(
    law: AbstractMeasure, scrambling: Scrambling | None, points: int, role: str
) -> list[Empirical]:
    """Independent quasi-random representatives of the law of the tokens or of the queries."""
    keys = needed(scrambling, law, role).keys()
    return [representative(k, law, math.ceil(math.log2(points))) for k in keys]


def needed(scrambling: Scrambling | None, law: AbstractMeasure, role: str) -> Scrambling:
    """The random numbers, or an error where there are none: the law has no exact average."""
    if scrambling is None:
        raise _checks.error(
            f"Exact() does not average over {role} of law {type(law).__name__} in dimension "
            f"{law.dim}",
            "method=Exact() (the default)",
            "pass method=lp.QuasiMonteCarlo(key), or lp.MonteCarlo(key)",
        )
    return scrambling


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

    def rare(self, lengths: np.ndarray) -> np.ndarray:
        """Bound of the probability that a prompt has a token that the points lack."""
        return np.minimum(4 * lengths / self.points, 1.0)

    def missed(
        self, distance: np.ndarray, one_token: np.ndarray, lengths: np.ndarray, order: int = 1
    ) -> np.ndarray:
        """What is missing from distances to the infinite prompt (lengths first), given the
        distance of one token.

        `order` is the power of |x - T|^2 in them. Missing in proportion to the tail, and to the gap
        of the limits; but tokens rarer than one in n points change a prompt of L tokens with
        probability of about L/n at most.
        """
        rare = self.rare(lengths)
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
    coordinates = mu.uniforms_needed
    if coordinates is None:
        plain = mu.sample(key, 2**exponent)
    else:
        plain = Empirical(_from_uniforms(mu, _sobol(key, coordinates, exponent)))
    if tilt is None or tail_of(mu, plain, tilt).is_seen:
        return plain
    found = _with_tail(key, mu, exponent, tilt)
    return plain if found is None else found


@eqx.filter_jit
def _from_uniforms(mu: AbstractMeasure, uniforms: jax.Array) -> jax.Array:
    return mu.from_uniforms(uniforms)


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
    coordinates = mu.tilt(u).uniforms_needed
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
    return _weighted_to(
        mu, u, [law.from_uniforms(x) for law, x in zip(laws, uniforms, strict=True)]
    )


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
