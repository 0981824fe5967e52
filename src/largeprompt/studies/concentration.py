"""Propositions 3.1 and 3.4: exact curves averaged over queries, their exponents, the bounds, and the boundary L = 1."""

import numpy as np
from jaxtyping import Array, Key

from ..attention import Head
from ..concentration import (
    assumption_3_3,
    bound_report,
    concentration_curve,
    growing_prompt,
    limit_comparison,
    prompt_length_for,
)
from ..measures import Dirac, Gaussian, Rademacher
from .base import Check, at_least, at_most, between

_LENGTHS = np.array([2.0, 10.0, 1e2, 1e3, 1e4, 1e6, 1e9, 1e12])


def run(key: Key[Array, ""]) -> list[Check]:
    """One scalar head at kappa = 1/4 and 1, and a Rademacher prompt as the counter-example."""
    mu = Gaussian(np.zeros(1), np.eye(1))
    gentle, steep = (Head(U=[[u]], V=[[1.0]]) for u in (0.5, 1.0))
    slow = concentration_curve(steep, mu, mu, _LENGTHS)
    fast = concentration_curve(gentle, mu, mu, _LENGTHS)
    sampled = concentration_curve(
        steep, mu, mu, [100], method="montecarlo", key=key, relative_error=0.02
    )
    distance = float((sampled.value[0] - slow.value[2]) / sampled.error[0])
    gradient = concentration_curve(steep, mu, mu, _LENGTHS, "gradient_U")
    one = concentration_curve(Head(U=[[0.0]], V=[[1.0]]), mu, mu, [1.0])
    length = prompt_length_for(steep, mu, mu, 0.01)
    path = growing_prompt(key, steep, mu, [1.0], [100, 30_000])
    signs = limit_comparison(
        Head(U=np.eye(2), V=np.eye(2)), Rademacher(2), Dirac(np.ones(2)), [1e9]
    )
    moments = assumption_3_3(gentle, mu, mu)
    return [
        at_most(
            "curve: own relative error, L to 1e12, kappa = 1",
            np.max(slow.error / slow.value),
            1e-6,
        ),
        between("curve at L = 100: simulation, in standard errors", distance, -5.0, 5.0),
        between("slope at kappa = 1/4, L = 1e12 (sharp: -1)", fast.local_slope[-1], -1.01, -0.99),
        between("slope at kappa = 1, L = 1e12 (sharp: -0.618)", slow.local_slope[-1], -0.72, -0.55),
        at_most(
            "Prop. 3.1: smallest c_1 with c_2 = 1/2, L = 2 to 1e12",
            bound_report(slow, 0.5).c1,
            10.0,
        ),
        at_most(
            "Prop. 3.4 (U): smallest c_1 with c_2 = 1/2, L = 2 to 1e12",
            bound_report(gradient, 0.5).c1,
            1e3,
        ),
        between("Prop. 3.1 at L = 1: error where the bound is 0", one.value[0], 0.999, 1.001),
        between(
            "Assumption 3.3: tilted E|x|^4 / 3(1 + kappa)^2 at kappa = 1/4",
            moments.tilted[1, 0] / (3 * 1.25**2),
            1 - 1e-12,
            1 + 1e-12,
        ),
        at_most(
            "Assumption 3.3: infinite ones of the nine joint moments, |U| = 1/2",
            np.sum(np.isinf(moments.joint)),
            0.0,
        ),
        between("tokens for a squared error of 0.01, kappa = 1", length.length, 100.0, 1e5),
        at_most(
            "one growing prompt, L = 3e4: distance over iterated-logarithm envelope",
            path.distance[0, -1] / path.envelope[-1],
            1.5,
        ),
        at_least("Rademacher tokens, L = 1e9: distance to linear attention", signs.linear[0], 0.1),
    ]
