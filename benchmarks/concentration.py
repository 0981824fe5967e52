"""Error curves averaged over a Gaussian query."""

from collections.abc import Iterator

import jax
import numpy as np

import largeprompt as lp

from .rows import Row
from .timing import race


def average_curve() -> Iterator[Row]:
    """60 lengths to 1e12, d = 5, Gaussian tokens and query, kappa = 1.

    At the lengths 10, 100 and 1000 also Monte Carlo, which samples prompts (exactly in law) until
    the relative error is 5%: less work than the exact curve, whose error the table states.
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
            "3 lengths": lambda: lp.concentration_curve(head, mu, mu, short),
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
    exact = lp.concentration_curve(head, mu, mu, short)
    reached = float((exact.error / exact.value).max())
    yield Row(
        f"output, 3 lengths to 1e3, relative error {reached:.0e}",
        times["3 lengths"],
        unequal=f"Monte Carlo, relative error 5%: {times['sampled'].median:.3g}",
    )
    for name in ("output", "gradient_V", "gradient_U"):
        yield Row(f"{name}, 60 lengths to 1e12", times[name])
