"""Compressed prompts at equal bytes, on synthetic heads: `python -m benchmarks.compression`.

The keys and values of a head are latent variables with heavy tails seen through random matrices,
plus noise, and a sink that the mean query attends to. Three laws of queries make scores of growing
deviation. Errors are squared, relative to the output's deviation from the mean value, on held-out
queries, averaged over the queries of a head. A last table compares with Gaussian tokens, where the
answer of the infinite prompt is known (Lemma 2.1): a compressed prompt need not be nearer to it
than the prompt is.
"""

import time
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


if __name__ == "__main__":
    for name, family in _FAMILIES.items():
        print(f"{name}: median / mean / 90 / 99 percent of {_HEADS} heads\n\n{table(family)}\n")
    print(gaussian_tokens())
