"""Finite prompts: the exact error curve against plain Monte Carlo, and sampling exact in law."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  # an optional extra

import largeprompt as lp

from .rows import Growth, Row
from .timing import race

_TOKENS = 2_000_000  # tokens per timed call


def _problem(d: int, dtype: type = np.float32) -> tuple[lp.Head, lp.Gaussian, np.ndarray]:
    rng = np.random.default_rng(0)
    head = lp.Head(U=np.eye(d, dtype=dtype), V=np.eye(d, dtype=dtype)[:1])
    z = rng.normal(size=d).astype(dtype)
    return head, lp.Gaussian(np.zeros(d, dtype), np.eye(d, dtype=dtype)), z / np.linalg.norm(z)


def _full_sampling(d: int, L: int, prompts: int) -> dict[str, Callable[[int], np.ndarray]]:
    """Outputs of `prompts` prompts of L whole tokens for a seed, as a user would write it."""
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


def exact_curve(seconds: float = 60.0, d: int = 6, L: int = 1000) -> Iterator[Row]:
    """The exact output error at 60 lengths from 1 to 1e12.

    Its error is its own estimate (from E (sum p)^4 = 1). Monte Carlo cannot reach it: the table has
    the relative error that it reaches at one length, L = 1000, in 60 s.
    """
    head, mu, z = _problem(d)
    lengths = np.logspace(0, 12, 60)
    timing = race({"exact": lambda: jax.block_until_ready(lp.output_error(head, mu, z, lengths))})
    reached = float(np.max(np.asarray(lp.participation(np.linalg.norm(z), lengths).error)))
    value, limit = float(lp.output_error(head, mu, z, float(L))), float(z[0])
    errors = {}
    for name, draw in _full_sampling(d, L, prompts=_TOKENS // L // 4).items():
        draw(0)
        squares, seed, start = [], 1, time.perf_counter()
        while time.perf_counter() - start < seconds:
            squares.append((draw(seed) - limit) ** 2)
            seed += 1
        samples = np.concatenate(squares).astype(np.float64)
        errors[name] = samples.std() / np.sqrt(len(samples)) / value
    peers = ", ".join(f"{name} {error:.0e}" for name, error in errors.items())
    yield Row(
        f"60 lengths to 1e12, relative error {reached:.0e}",
        timing["exact"],
        unequal=f"Monte Carlo in {seconds:.0f} s, relative error at L = {L:,}: {peers}",
    )


def sampling() -> Iterator[Row]:
    """Seconds for 1e6 Gaussian tokens, one query: from scores alone and from whole tokens."""
    for d in (6, 32):
        for L in (1_000, 100_000, 1_000_000):
            head, mu, z = _problem(d)
            prompts = max(1, _TOKENS // L)
            few = max(1, prompts // (d // 3))  # whole tokens are slower: fewer of them a call
            key = jax.random.key(0)
            contestants: dict[str, Callable[[], object]] = {
                "ours": lambda h=head, m=mu, q=z, n=L, p=prompts, k=key: lp.sample_outputs(
                    k, h, m, q, n, p
                ).block_until_ready()
            }
            for name, draw in _full_sampling(d, L, few).items():
                contestants[name] = lambda draw=draw: draw(1)
            times = race(contestants, rounds=5)
            million = {name: L * (prompts if name == "ours" else few) / 1e6 for name in times}
            ours = times["ours"].scaled(1 / million.pop("ours"))
            peers = {
                f"{name}, whole tokens": times[name].median / million[name] for name in million
            }
            yield Row(f"d = {d}, L = {L:,}", ours, peers)


def participation() -> Iterator[Row]:
    """1,000 values of sigma at one L."""
    sigma = np.linspace(0, 6, 1000)
    times = race(
        {
            f"L = {L:.0e}": lambda L=L: lp.participation(sigma, L).p2.block_until_ready()
            for L in (10.0, 1e12)
        }
    )
    for name, timing in times.items():
        yield Row(f"1,000 sigma, {name}", timing)


def growth() -> Iterator[Growth]:
    """How the cost of what we compute grows."""
    head, mu, z = _problem(6)

    def timed(what: str, over: str, calls: dict[float, Callable[[], object]]) -> Growth:
        times = race({str(size): call for size, call in calls.items()}, rounds=3, seconds=0.1)
        return Growth(what, over, list(calls), [t.median for t in times.values()])

    yield timed(
        "exact output_error",
        "L",
        {
            L: lambda L=L: jax.block_until_ready(lp.output_error(head, mu, z, L))
            for L in (1e2, 1e6, 1e12)
        },
    )
    key = jax.random.key(0)
    yield timed(
        "one sampled prompt",
        "L",
        {
            10.0**k: lambda L=10**k: lp.sample_outputs(key, head, mu, z, L, 1).block_until_ready()
            for k in (5, 6, 7)
        },
    )
    rng = np.random.default_rng(0)

    def attended(L: int, d: int, queries: int) -> Callable[[], object]:
        prompt = lp.Empirical(rng.normal(size=(L, d)).astype(np.float32))
        eye = np.eye(d, dtype=np.float32)
        z = (rng.normal(size=(queries, d)) / np.sqrt(d)).astype(np.float32)
        return lambda: lp.attend(lp.Head(U=eye, V=eye), prompt, z).block_until_ready()

    yield timed(
        "attention, d = 16, one query",
        "L",
        {1.0 * L: attended(L, 16, 1) for L in (10**5, 10**6, 4 * 10**6)},
    )
    yield timed(
        "attention, L = 1e5, one query", "d", {1.0 * d: attended(10**5, d, 1) for d in (8, 32, 128)}
    )
    yield timed(
        "attention, L = 1e5, d = 16",
        "queries",
        {1.0 * q: attended(10**5, 16, q) for q in (8, 32, 128)},
    )
    yield _over_devices()


def _over_devices() -> Growth:
    """One sampled prompt each for 64 replicates, on 1 and on 2 virtual CPU devices."""
    seconds = []
    for devices in (1, 2):
        command = [sys.executable, "-m", "benchmarks.devices"]
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        done = subprocess.run(
            command, env=os.environ | flags, capture_output=True, text=True, check=True
        )
        seconds.append(float(done.stdout))
    return Growth(
        "64 sampled prompts, L = 1e5", "devices (virtual, on these cores)", [1.0, 2.0], seconds
    )
