"""Compressed prompts at equal bytes, on synthetic heads: `python -m benchmarks.compression`.

The keys and values of a head are latent variables with heavy tails seen through random matrices,
plus noise, and a sink that the mean query attends to. Three laws of queries make scores of growing
deviation. Errors are squared, relative to the output's deviation from the mean value, on held-out
queries, averaged over the queries of a head. A last table compares with Gaussian tokens, where the
answer of the infinite prompt is known (Lemma 2.1): a compressed prompt need not be nearer to it
than the prompt is. `python -m benchmarks.compression times` only measures time.
"""

import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple, get_args

import jax
import numpy as np

import largeprompt as lp
from largeprompt.compression.compress import Method

_TOKENS, _DIM, _LATENT, _QUERIES, _HEADS = 1000, 64, 16, 320, 8
_SIZES = (4, 16, 65, 130, 260)  # tokens' worth of bytes


class Family(NamedTuple):
    """Scale of the mean query and of the deviations of queries from it."""

    mean: float
    deviation: float


_FAMILIES = {
    "scores of deviation 2": Family(1.5, 1.0),
    "scores of deviation 3.5": Family(3.0, 1.5),
    "scores of deviation 5": Family(4.0, 3.0),
}


def head(seed: int, family: Family) -> tuple[lp.KeyValues, np.ndarray]:
    """Keys and values of a synthetic head, and its queries."""
    rng = np.random.default_rng(seed)
    frame = np.linalg.qr(rng.normal(size=(_DIM, _LATENT)))[0].T
    scales = np.exp(-np.arange(_LATENT) / 5)
    scales /= np.sqrt(np.mean(scales**2))
    latent = 0.8 * rng.standard_t(5, size=(_TOKENS, _LATENT))
    keys = (latent * scales) @ frame + 0.3 * rng.normal(size=(_TOKENS, _DIM))
    values = latent @ rng.normal(size=(_LATENT, _DIM)) / 4 + rng.normal(size=(_TOKENS, _DIM))
    steps = family.deviation * rng.normal(size=(_QUERIES, _LATENT)) / 4
    centre = family.mean * rng.normal(size=_LATENT) / 4
    queries = (centre + steps) @ frame + 0.1 * rng.normal(size=(_QUERIES, _DIM))
    mean = queries.mean(axis=0)
    keys[0] = mean / np.sum(mean**2) * rng.uniform(5, 9)
    values[0] *= 0.1
    keys, values, queries = (a.astype(np.float32) for a in (keys, values, queries))
    return lp.KeyValues(keys, values), queries


def table(family: Family) -> str:
    """Median, mean, 90th and 99th percentile over heads, for every method and size."""
    heads = [head(seed, family) for seed in range(_HEADS)]
    lines = ["| method | " + " | ".join(f"{size} tokens" for size in _SIZES) + " | seconds |"]
    lines.append("|---" * (len(_SIZES) + 2) + "|")
    for method in get_args(Method):
        cells, start = [], time.perf_counter()
        for size in _SIZES:
            errors = [_error(prompt, queries, size, method) for prompt, queries in heads]
            numbers = [np.median(errors), np.mean(errors), *np.percentile(errors, [90, 99])]
            cells.append(" / ".join(f"{number:.2g}" for number in numbers))
        seconds = (time.perf_counter() - start) / (_HEADS * len(_SIZES))
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {seconds:.3f} |")
    return "\n".join(lines)


def _error(prompt: lp.KeyValues, queries: np.ndarray, size: int, method: Method) -> float:
    budget = size * prompt.dim * prompt.dtype.itemsize
    found = lp.compress(prompt, queries, size=budget, method=method, key=jax.random.key(0))
    assert found.nbytes <= budget
    assert found.error is not None
    return float(found.error.mean)


def gaussian_tokens() -> str:
    """Errors against the infinite prompt, for Gaussian tokens."""
    rng = np.random.default_rng(0)
    d = 8
    factor = rng.normal(size=(2 * d, 2 * d)) / (2 * d) ** 0.5
    law, reader = lp.Gaussian.from_factor(np.zeros(2 * d), factor), lp.Head.key_value(d, d)
    tokens = np.asarray(law.sample(jax.random.key(0), 4000).points)
    prompt = lp.KeyValues(tokens[:, :d], tokens[:, d:])
    queries = 0.7 * rng.normal(size=(200, d)) + 0.3
    limit = np.asarray(lp.attend(reader, law, queries))
    deviation = np.mean(np.sum(limit**2, axis=1))
    lines = ["| measure | bytes | error against the infinite prompt |", "|---|---|---|"]
    rows: dict[str, Any] = {"the prompt": prompt}
    rows["its Gaussian, rank 8"] = lp.compress(prompt, queries, atoms=0, rank=d)
    rows["9 most attended tokens"] = lp.compress(prompt, queries, atoms=9, method="most attended")
    for name, measure in rows.items():
        gap = np.asarray(lp.attend(reader, measure, queries)) - limit
        leaves = jax.tree.leaves((measure.keys, measure.values, getattr(measure, "tail", None)))
        error = np.mean(np.sum(gap**2, axis=1)) / deviation
        lines.append(f"| {name} | {sum(leaf.nbytes for leaf in leaves)} | {error:.2g} |")
    return "\n".join(lines)


def times(queries: int = 64, dim: int = 64) -> str:
    """CPU seconds, of all threads, to compress and to attend, beside one pass of full attention.

    Medians of rounds in which everything takes turns. CPU time, not wall time, because NumPy, XLA
    and PyTorch use different numbers of threads. Set OPENBLAS_NUM_THREADS=1: threads of BLAS that
    wait count too.
    """
    lines = [
        "| L | compress | one pass: plain JAX | torch | `attend` | compress / plain JAX "
        "| `attend` to 128 atoms and rank 8 |",
        "|---" * 7 + "|",
    ]
    for L in (10_000, 100_000, 1_000_000):
        rng = np.random.default_rng(0)
        keys, values = (rng.normal(size=(L, dim)).astype(np.float32) for _ in range(2))
        z = (rng.normal(size=(queries, dim)) / dim**0.5).astype(np.float32)
        prompt, reader = lp.KeyValues(keys, values), lp.Head.key_value(dim, dim)
        small = lp.compress(prompt, z, atoms=128, rank=8)
        plain = jax.jit(lambda k, v, z: jax.nn.softmax(z @ k.T) @ v)
        calls: dict[str, Callable[[], Any]] = {
            "compress": lambda prompt=prompt, z=z: lp.compress(prompt, z, atoms=128, rank=8),
            "plain": lambda plain=plain, prompt=prompt, z=z: plain(prompt.keys, prompt.values, z),
            "full": lambda reader=reader, prompt=prompt, z=z: lp.attend(reader, prompt, z),
            "small": lambda reader=reader, small=small, z=z: lp.attend(reader, small, z),
        }
        if find_spec("torch"):
            import torch  # pyright: ignore[reportMissingImports]  # an optional extra

            q, k, v = (torch.from_numpy(a)[None, None] for a in (z, keys, values))
            sdpa = torch.nn.functional.scaled_dot_product_attention
            calls["torch"] = lambda sdpa=sdpa, q=q, k=k, v=v: sdpa(q, k, v, scale=1.0)
        found: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(8):
            for name, call in calls.items():
                start = time.process_time()
                jax.block_until_ready(call())
                if turn:  # the first compiles
                    found[name].append(time.process_time() - start)
        median = {name: float(np.median(spent)) for name, spent in found.items()}
        cells = [median.get(name, np.nan) for name in ("compress", "plain", "torch", "full")]
        cells += [median["compress"] / median["plain"], median["small"]]
        lines.append(f"| {L:,} | " + " | ".join(f"{cell:.2g}" for cell in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] != ["times"]:
        for name, family in _FAMILIES.items():
            print(f"{name}: median / mean / 90 / 99 percent of {_HEADS} heads\n\n{table(family)}\n")
        print(gaussian_tokens())
    print(f"\nCPU seconds for 64 queries of 64 + 64 coordinates, float32\n\n{times()}")
