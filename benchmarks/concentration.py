"""Error curves averaged over a Gaussian query."""

from collections.abc import Iterator

import jax
import numpy as np

import largeprompt as lp

from .rows import Row
from .timing import race


def average_curve() -> Iterator[Row]:
    """60 lengths to 1e12, d = 5, Gaussian tokens and query, kappa = 1.

    The peer samples prompts (exactly in law) at 3 lengths up to 1e3 to 5% relative error; its time
    is scaled to 60 lengths.
    """
    head = lp.Head(U=np.eye(5), V=np.eye(5))
    mu = lp.Gaussian(np.zeros(5), np.eye(5))
    lengths, short = np.geomspace(2, 1e12, 60), [10, 100, 1000]
    seeds = iter(range(10**6))

    def sampled() -> object:
        key = jax.random.key(next(seeds))
        method = lp.MonteCarlo(key, relative_error=0.05, max_replicates=5_000)
        return lp.concentration_curve(head, mu, mu, short, method=method)

    times = race(
        {
            "output": lambda: lp.concentration_curve(head, mu, mu, lengths),
            "gradient_V": lambda: lp.concentration_curve(
                head, mu, mu, lengths, lp.GradientError("V")
            ),
            "gradient_U": lambda: lp.concentration_curve(
                head, mu, mu, lengths, lp.GradientError("U")
            ),
            "sampled": sampled,
        },
        rounds=3,
    )
    scaled = {"Monte Carlo at 5%": times["sampled"].median * len(lengths) / len(short)}
    for name in ("output", "gradient_V", "gradient_U"):
        peers = scaled if name == "output" else {}
        yield Row("error curve, 60 lengths", f"exact, {name}", times[name], peers)
