"""Finite prompts: the exact errors against an independent integral, against simulation, and at the ends of the range of L."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ..attention import Head
from ..measures import Empirical, Gaussian
from ..prompts import estimate, gradient_error, output_error, participation
from .base import Check, at_most, between

_LENGTHS = np.array([1.0, 2.0, 10.0, 1e3, 1e6, 1e9, 1e12])


def run(key: Key[Array, ""]) -> list[Check]:
    """The closed forms from participation moments, for Gaussian tokens in one dimension and in three."""
    variance, mean, z = 0.8, 0.3, jnp.array([1.2])
    head = Head(U=[[0.9]], V=[[1.3], [0.4]])
    mu = Gaussian([mean], [[variance]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    discretised = Empirical((mean + np.sqrt(variance) * nodes)[:, None], weights)
    closed = output_error(head, mu, z, _LENGTHS)
    gap = jnp.max(jnp.abs(output_error(head, discretised, z, _LENGTHS) / closed - 1))
    slopes = gradient_error(head, mu, z, _LENGTHS).U
    slope_gap = jnp.max(jnp.abs(gradient_error(head, discretised, z, _LENGTHS).U / slopes - 1))

    wide = Head(U=jnp.eye(3), V=jnp.eye(3)[:2])
    query = jnp.array([0.6, -0.8, 0.5])
    cov = jnp.diag(jnp.array([1.0, 0.5, 0.0]))
    tokens = Gaussian(jnp.array([0.1, 0.0, -0.2]), cov)
    found = estimate(key, "output_error", wide, tokens, query, 50, max_replicates=2048)
    distance = (
        found.value - np.asarray(output_error(wide, tokens, query, 50.0))
    ) / found.standard_error

    one_token = jnp.trace(cov[:2, :2]) + jnp.sum((cov @ query)[:2] ** 2)
    at_one = jnp.abs(output_error(wide, tokens, query, 1.0) / one_token - 1)
    last = output_error(wide, tokens, query, np.array([1e11, 1e12]))
    sigma = np.linspace(0, 6, 13)[:, None]
    return [
        at_most(
            "participation: own error estimate, sigma to 6, L to 1e12",
            jnp.max(participation(sigma, _LENGTHS).error),
            1e-11,
        ),
        at_most("output error: closed form = Laplace integral, L to 1e12", gap, 1e-10),
        at_most("U-gradient error: closed form = Laplace integral", slope_gap, 1e-8),
        between("output error at L = 50: simulation, in standard errors", distance, -5.0, 5.0),
        at_most("output error at L = 1 = tr(VGV') + |VGUz|^2", at_one, 1e-12),
        between("output error ~ L^slope at L = 1e12", jnp.log10(last[1] / last[0]), -1.001, -0.999),
    ]
