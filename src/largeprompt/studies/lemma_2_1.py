"""Lemma 2.1: on Gaussian tokens attention is affine in the query; on Rademacher tokens it is not."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..attention import Head, attend, attend_linear
from ..measures import Empirical, Gaussian, Rademacher
from .base import Check, at_least, at_most, normals

_DIMENSIONS = (1, 2, 5, 20)


def quadrature_prompt(
    mean: Float[Array, " d"], factor: Float[Array, "d k"], tilt: Float[Array, " d"]
) -> Empirical:
    """A weighted prompt whose softmax attention at `tilt` equals that of N(m, B B') to rounding.

    With x = m + B g only the direction a = B'u of g is tilted; the others keep mean zero. So 64 Gauss-Hermite nodes along a
    integrate numerator and denominator of the attention operator exactly, without using the lemma.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    along = tilt @ factor
    length = jnp.linalg.norm(along)
    direction = jnp.where(length > 0, along / jnp.where(length > 0, length, 1.0), 0.0)
    return Empirical(mean + nodes[:, None] * (factor @ direction), weights)


def _configuration(key: Key[Array, ""], d: int, centred: bool, rank: int) -> tuple:
    """Random mean, factor of the covariance, head and query; scores of standard deviation about one."""
    mean, factor, U, V, z = normals(key, (d,), (d, d), (d, d), (d + 1, d), (d,))
    kept = jnp.where(jnp.arange(d) < rank, 1.0, 0.0)
    scale = d**-0.5
    return (0.0 if centred else 1.0) * mean, factor * kept * scale, Head(U=U * scale, V=V), z


def run(key: Key[Array, ""]) -> list[Check]:
    """T[N(m, G)](z) = V m + V G U z, against the integral itself, and its failure for Rademacher tokens."""
    checks = []
    for d in _DIMENSIONS:
        worst = 0.0
        for centred in (True, False):
            for rank in (d, (d + 1) // 2, 0):  # regular, singular, no spread at all
                key, here = jax.random.split(key)
                mean, factor, head, z = _configuration(here, d, centred, rank)
                by_lemma = attend(head, Gaussian.from_factor(mean, factor), z)
                by_integral = attend(head, quadrature_prompt(mean, factor, head.U @ z), z)
                scale = jnp.maximum(jnp.max(jnp.abs(by_integral)), 1.0)
                worst = max(worst, float(jnp.max(jnp.abs(by_lemma - by_integral)) / scale))
        checks.append(at_most(f"Lemma 2.1, d = {d}: T = Vm + VGUz", worst, 1e-12))

    head, z = Head(U=jnp.eye(3), V=jnp.eye(3)), jnp.array([0.5, -1.0, 2.0])
    gap = attend(head, Rademacher(3), z) - attend_linear(head, Rademacher(3), z)
    predicted = np.tanh(np.asarray(z)) - np.asarray(z)
    checks.append(at_least("control: Rademacher tokens are not linear", jnp.max(jnp.abs(gap)), 0.1))
    checks.append(
        at_most("control: they miss by tanh(u) - u", np.max(np.abs(gap - predicted)), 1e-12)
    )
    return checks
