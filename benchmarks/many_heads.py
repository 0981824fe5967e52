"""Moments of two softmaxes, and the risk of two heads in context."""

import time
from collections.abc import Iterator

import jax
import numpy as np

import largeprompt as lp
from largeprompt.icl.flat_gradients import flat_value_and_gradient
from largeprompt.participation import pair_table

from .rows import Row
from .timing import race

SECONDS = 60.0  # for Monte Carlo


def two_heads(seconds: float = SECONDS) -> Iterator[Row]:
    """Pair moments, and the exact risk of two heads with its gradient (d = 5, L = 100).

    Beside the risk: the relative standard error that Monte Carlo reaches in a minute.
    """
    rng = np.random.default_rng(0)
    sigma_a, sigma_b = rng.uniform(0, 1, (2, 10))
    rho = rng.uniform(-1, 1, 10)
    many = [np.resize(part, 1000) for part in (sigma_a, sigma_b, rho)]
    task = lp.LinearRegression(np.eye(5), task_cov=np.eye(5) / 5, noise_variance=0.1)
    pair = [(s * 0.04 * np.eye(5), s * 11.4) for s in (1, -1)]
    params = lp.MultiHeadParams([lp.BlockParams(A, b) for A, b in pair])
    with jax.enable_x64(True):
        evaluate = flat_value_and_gradient(task.objective(100, like=params), params)
    flat = np.concatenate([np.append(A, b) for A, b in pair])
    table = pair_table(100.0, 1.0, False)
    times = race(
        {
            "pairs": lambda: lp.pair_moments(sigma_a, sigma_b, rho, 100),
            "table": lambda: table.values(*many),
            "risk": lambda: evaluate(flat),
        },
        rounds=3,
    )
    start, value, error, replicates = time.perf_counter(), 0.0, np.inf, 1024
    while time.perf_counter() - start < seconds:
        method = lp.MonteCarlo(jax.random.key(0), max_replicates=replicates, relative_error=1e-9)
        found = task.risk(params, 100, method=method)
        value, error, replicates = float(found.value), float(found.error), 2 * replicates
    yield Row("10 pairs of deviations and correlations, L = 100", times["pairs"])
    yield Row("1000 pairs from a table", times["table"])
    exact = task.risk(params, 100)
    relative = float(exact.error) / float(exact.value)
    yield Row(
        f"risk of two heads and its gradient, relative error {relative:.0e}",
        times["risk"],
        unequal=f"Monte Carlo in {seconds:.0f} s: relative error {error / value:.0e}",
    )
