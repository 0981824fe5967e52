"""Error curves averaged over a Gaussian query."""

import time
from collections.abc import Callable

import jax
import numpy as np
import xarray as xr

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
        timed = [
            _timed(lambda q=quantity: lp.concentration_curve(head, mu, mu, lengths, q))
            for _ in range(5)
        ]
        rows.append(_row(f"exact, {quantity}", timed, 1.0))
    short = np.round(np.geomspace(10, 1e4, 5))

    def sampled(seed: int) -> xr.Dataset:
        return lp.concentration_curve(
            head,
            mu,
            mu,
            short,
            method="montecarlo",
            key=jax.random.key(seed),
            relative_error=0.02,
            max_replicates=20_000,
        )

    timed = [_timed(lambda s=seed: sampled(s)) for seed in range(2)]
    rows.append(_row("Monte Carlo, output (scaled)", timed, 60 / len(short)))
    return table(rows)


def _timed(call: Callable[[], xr.Dataset]) -> tuple[float, xr.Dataset]:
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def _row(name: str, timed: list[tuple[float, xr.Dataset]], scale: float) -> list[str]:
    seconds = [scale * t for t, _ in timed]
    last = timed[-1][1]
    worst = float(np.max(last.error / last.value))
    return [name, f"{seconds[0]:.1f}", f"{np.median(seconds[1:]):.2f}", f"{worst:.0e}"]
