"""Error curves averaged over a Gaussian query."""

import time

import jax
import numpy as np

import largeprompt as lp

from .timing import table


def average_curve() -> str:
    """A full curve, 60 lengths, d = 5, Gaussian tokens and query, kappa = 1: first call (compilation included) and later ones.

    The exact one reaches L = 1e12. Monte Carlo samples prompts exactly in law, at 5 lengths up to 1e4 and 2% relative error only;
    its time is scaled to 60 lengths.
    """
    head = lp.Head(U=np.eye(5), V=np.eye(5))
    mu = lp.Gaussian(np.zeros(5), np.eye(5))
    lengths = np.geomspace(2, 1e12, 60)
    rows = [["curve", "first call, s", "later calls, s", "largest relative error"]]
    for quantity in ("output", "gradient_V", "gradient_U"):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            curve = lp.concentration_curve(head, mu, mu, lengths, quantity)
            times.append(time.perf_counter() - start)
        worst = float(np.max(curve.error / curve.value))
        rows.append(
            [f"exact, {quantity}", f"{times[0]:.1f}", f"{np.median(times[1:]):.2f}", f"{worst:.0e}"]
        )
    times = []
    short = np.round(np.geomspace(10, 1e4, 5))
    for seed in range(2):
        start = time.perf_counter()
        curve = lp.concentration_curve(
            head,
            mu,
            mu,
            short,
            method="montecarlo",
            key=jax.random.key(seed),
            relative_error=0.02,
            max_replicates=20_000,
        )
        times.append((time.perf_counter() - start) * 60 / len(short))
    worst = float(np.max(curve.error / curve.value))
    rows.append(
        ["Monte Carlo, output (scaled)", f"{times[0]:.1f}", f"{times[1]:.1f}", f"{worst:.0e}"]
    )
    return table(rows)
