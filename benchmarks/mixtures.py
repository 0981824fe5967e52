"""Tokens of a Gaussian mixture: exact errors against the number of components."""

from collections.abc import Iterator

import jax
import numpy as np

import largeprompt as lp

from .rows import Row
from .timing import race

_DIM, _LENGTH = 8, 1e6


def gaussian_mixture() -> Iterator[Row]:
    """Squared errors of the output and of dT/dU at one query, d = 8, L = 1e6, score deviation 1.

    Also of the output of two heads with different scores.

    The peer, at 4 components, is quasi-Monte-Carlo over the law of one token, with the standard
    error that it reaches.
    """
    rng = np.random.default_rng(0)
    head, z = lp.Head(U=np.eye(_DIM), V=np.eye(_DIM)), rng.normal(size=_DIM) / _DIM**0.5
    pair = lp.MultiHead([head, lp.Head(U=np.roll(np.eye(_DIM), 1, axis=0), V=np.eye(_DIM))])
    points = lp.QuasiMonteCarlo(jax.random.key(0))

    def law(k: int, spread: float = 1.0) -> lp.Mixture:
        parts = [lp.Gaussian(m, spread * np.eye(_DIM)) for m in rng.normal(size=(k, _DIM))]
        return lp.Mixture(np.ones(k), parts)

    for k in (1, 4, 16, 64):
        # a mixture of one component is a Gaussian and has closed forms: it is split into halves
        mu = law(k) if k > 1 else lp.Mixture([1, 1], [*law(1).components] * 2)
        times = race(
            {
                "output": lambda mu=mu: lp.output_error(head, mu, z, _LENGTH),
                "U": lambda mu=mu: lp.expect(lp.GradientError("U"), head, mu, z, _LENGTH).value,
                "pair": lambda mu=mu: lp.output_error(pair, mu, z, _LENGTH),
            },
            rounds=5,
        )
        peers, reached = {}, ""
        if k == 4:
            # a component that is neither Gaussian nor has atoms, of no weight: no exact route
            other = lp.Mixture([*mu.weights, 0.0], [*mu.components, lp.Uniform(_DIM)])
            found = race(
                {"points": lambda mu=other: lp.output_error(head, mu, z, _LENGTH, points)}, rounds=3
            )
            estimate = lp.expect(lp.OutputError(), head, other, z, _LENGTH, points)
            peers = {"quasi-Monte-Carlo": found["points"].median}
            reached = f"relative standard error {float(estimate.error / estimate.value):.0e}"
        case = f"{k} components" if k > 1 else "one component"
        yield Row(f"output, {case}", times["output"], peers, unequal=reached)
        yield Row(f"dT/dU, {case}", times["U"])
        yield Row(f"output of two heads, {case}", times["pair"])
