"""Finite prompts: the exact error curve beside the Monte Carlo a user would write, and sampling exact in law."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  # an optional extra

import largeprompt as lp

from .timing import race, table

_TOKENS = 2_000_000  # tokens per timed call


def _problem(d: int, dtype: type = np.float32) -> tuple[lp.Head, lp.Gaussian, np.ndarray]:
    rng = np.random.default_rng(0)
    head = lp.Head(U=np.eye(d, dtype=dtype), V=np.eye(d, dtype=dtype)[:1])
    z = rng.normal(size=d).astype(dtype)
    return head, lp.Gaussian(np.zeros(d, dtype), np.eye(d, dtype=dtype)), z / np.linalg.norm(z)


def _full_sampling(d: int, L: int, prompts: int) -> dict[str, Callable[[int], np.ndarray]]:
    """Outputs of `prompts` prompts of L full tokens, for a seed: what a user would write in each library."""
    _, _, z = _problem(d)

    def in_numpy(seed: int) -> np.ndarray:
        tokens = np.random.default_rng(seed).standard_normal((prompts, L, d), dtype=np.float32)
        scores = tokens @ z
        terms = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.sum(terms * tokens[..., 0], axis=1) / terms.sum(axis=1)

    def in_torch(seed: int) -> np.ndarray:
        torch.manual_seed(seed)
        tokens = torch.randn(prompts, L, d)
        weights = torch.softmax(tokens @ torch.from_numpy(z), dim=1)
        return torch.sum(weights * tokens[..., 0], dim=1).numpy()

    @jax.jit
    def jax_outputs(key: jax.Array) -> jax.Array:
        tokens = jax.random.normal(key, (prompts, L, d))
        weights = jax.nn.softmax(tokens @ z, axis=1)
        return jnp.sum(weights * tokens[..., 0], axis=1)

    return {
        "NumPy": in_numpy,
        "torch": in_torch,
        "JAX": lambda seed: np.asarray(jax_outputs(jax.random.key(seed))),
    }


def exact_curve(seconds: float = 60.0, d: int = 6, L: int = 1000) -> str:
    """The exact output error at 60 lengths from 1 to 1e12, beside Monte Carlo of one of them (L = 1000) in 60 s each.

    The exact route's error is its own estimate (from E (sum p)^4 = 1). The last column extrapolates the others to it, their error
    falling like the square root of time.
    """
    head, mu, z = _problem(d)
    lengths = np.logspace(0, 12, 60)
    start = time.perf_counter()
    exact = np.asarray(lp.output_error(head, mu, z, lengths))
    first = time.perf_counter() - start
    timing = race({"exact": lambda: lp.output_error(head, mu, z, lengths).block_until_ready()})[
        "exact"
    ]
    rows = [
        ["what", "lengths", "seconds", "relative error", "years to reach the exact route's error"]
    ]
    reached = float(np.max(np.asarray(lp.participation(np.linalg.norm(z), lengths).error)))
    rows.append(["largeprompt, exact (first call)", "60", f"{first:.2f}", f"{reached:.0e}", ""])
    rows.append(["largeprompt, exact", "60", f"{timing.median:.4f}", f"{reached:.0e}", ""])
    value = float(lp.output_error(head, mu, z, float(L)))
    limit = float(z[0])
    assert np.all(np.diff(exact) < 0)
    for name, draw in _full_sampling(d, L, prompts=_TOKENS // L // 4).items():
        draw(0)
        squares, seed, start = [], 1, time.perf_counter()
        while time.perf_counter() - start < seconds:
            squares.append((draw(seed) - limit) ** 2)
            seed += 1
        spent = time.perf_counter() - start
        samples = np.concatenate(squares).astype(np.float64)
        error = samples.std() / np.sqrt(len(samples)) / value
        years = spent * (error / reached) ** 2 / (365.25 * 86400)
        rows.append([f"{name}, Monte Carlo", "1", f"{spent:.0f}", f"{error:.1e}", f"{years:.0e}"])
    return table(rows)


def sampling(lengths: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)) -> str:
    """Prompt tokens per second (millions), Gaussian tokens, one query: exact in law from scores beside full-dimensional."""
    rows = [["d", "L", "largeprompt", "NumPy", "torch", "JAX", "ratio to the fastest"]]
    for d in (6, 32):
        for L in lengths:
            head, mu, z = _problem(d)
            prompts = max(1, _TOKENS // L)
            few = max(1, prompts // (d // 3))  # full tokens are slower: fewer of them a call
            key = jax.random.key(0)
            contestants: dict[str, Callable[[], object]] = {
                "largeprompt": lambda h=head, m=mu, q=z, n=L, p=prompts, k=key: lp.sample_outputs(
                    k, h, m, q, n, p
                ).block_until_ready()
            }
            for name, draw in _full_sampling(d, L, few).items():
                contestants[name] = lambda draw=draw: draw(1)
            times = race(contestants, rounds=5)
            rates = {
                name: L * (prompts if name == "largeprompt" else few) / timing.median / 1e6
                for name, timing in times.items()
            }
            best = max(rates[name] for name in rates if name != "largeprompt")
            rows.append(
                [
                    str(d),
                    f"{L:,}",
                    *(f"{rate:.1f}" for rate in rates.values()),
                    f"{rates['largeprompt'] / best:.1f}",
                ]
            )
    return table(rows)


def cost_against_length() -> str:
    """Seconds a call against L: flat for the exact error, linear (with constant memory) for one sampled prompt."""
    head, mu, z = _problem(6)
    rows = [["L", "exact output_error", "one sampled prompt"]]
    for exponent in (2, 4, 6, 8):
        L = 10**exponent
        times = race(
            {
                "exact": lambda L=L: lp.output_error(head, mu, z, float(L)).block_until_ready(),
                "sampled": lambda L=L: lp.sample_outputs(
                    jax.random.key(0), head, mu, z, L, 1
                ).block_until_ready(),
            },
            rounds=3,
        )
        rows.append(
            [f"1e{exponent}", *(f"{times[name].median:.2e}" for name in ("exact", "sampled"))]
        )
    times = race(
        {"exact": lambda: lp.output_error(head, mu, z, 1e12).block_until_ready()}, rounds=3
    )
    rows.append(["1e12", f"{times['exact'].median:.2e}", "not sampled"])
    return table(rows)


def participation_speed() -> str:
    """1,000 values of sigma at one L, after compilation."""
    sigma = np.linspace(0, 6, 1000)
    times = race(
        {
            f"L = {L:.0e}": lambda L=L: lp.participation(sigma, L).p2.block_until_ready()
            for L in (10.0, 1e6, 1e12)
        }
    )
    rows = [["what", "seconds (fastest to slowest)", "first call, compilation included"]]
    for name, t in times.items():
        rows.append(
            [name, f"{t.median:.3f} ({t.fastest:.3f} to {t.slowest:.3f})", f"{t.first:.1f}"]
        )
    return table(rows)
