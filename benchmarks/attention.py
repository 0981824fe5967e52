"""Attention over given tokens: one query (bandwidth), and many queries (arithmetic)."""

import importlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  # an optional extra

import largeprompt as lp

from .rows import Row
from .timing import race

_SDPA = torch.nn.functional.scaled_dot_product_attention


def one_query(
    lengths: tuple[int, ...] = (10_000, 100_000, 1_000_000), d: int = 64
) -> Iterator[Row]:
    """One query over L tokens, d = 64, float32. The limit is reading the tokens once (the faster of two sums)."""
    for L in lengths:
        rng = np.random.default_rng(0)
        tokens = rng.normal(size=(L, d)).astype(np.float32)
        tilt = (rng.normal(size=d) / np.sqrt(d)).astype(np.float32)
        times = race(_contestants(tokens, tilt))
        peers = {
            name: t.median for name, t in times.items() if name not in ("ours", "directly", *_READS)
        }
        limit = min(times[name].median for name in _READS)
        yield Row("one query", f"L = {L:,}, compiled by the caller", times["ours"], peers, limit)
        yield Row("one query", f"L = {L:,}, called directly", times["directly"], peers, limit)


_READS = ("read by JAX", "read by torch")


def _contestants(tokens: np.ndarray, tilt: np.ndarray) -> dict:
    d = tokens.shape[1]
    prompt = lp.Empirical(tokens)
    head = lp.Head(U=np.eye(d, dtype=np.float32), V=np.eye(d, dtype=np.float32))
    compiled = jax.jit(lambda prompt, z: lp.attend(head, prompt, z))
    plain = jax.jit(lambda x, u: jax.nn.softmax(x @ u) @ x)
    total = jax.jit(jnp.sum)
    on_device, query = jnp.asarray(tokens), jnp.asarray(tilt)
    tensor, torch_query = torch.from_numpy(tokens), torch.from_numpy(tilt)
    batched = tensor[None, None]

    def in_numpy() -> np.ndarray:
        scores = tokens @ tilt
        terms = np.exp(scores - scores.max())
        return (terms @ tokens) / terms.sum()

    contestants = {
        "ours": lambda: compiled(prompt, query).block_until_ready(),
        "directly": lambda: lp.attend(head, prompt, query).block_until_ready(),
        "NumPy": in_numpy,
        "plain JAX": lambda: plain(on_device, query).block_until_ready(),
        "torch softmax": lambda: torch.softmax(tensor @ torch_query, 0) @ tensor,
        "torch SDPA": lambda: _SDPA(torch_query[None, None, None], batched, batched, scale=1.0),
        "read by JAX": lambda: total(on_device).block_until_ready(),
        "read by torch": lambda: tensor.sum(),
    }
    keops = _keops(tensor, torch_query)
    return contestants | ({"KeOps": keops} if keops else {})


def _keops(tokens: Any, query: Any) -> Any:
    """The same in KeOps, where it is installed and can compile."""
    try:
        LazyTensor = importlib.import_module("pykeops.torch").LazyTensor
        x = LazyTensor(tokens[None])
        scores = (LazyTensor(query[None, None]) * x).sum(-1)
        call = lambda: scores.sumsoftmaxweight(x, axis=1)  # noqa: E731
        call()
    except Exception:  # not installed, or no compiler: a peer less
        return None
    return call


def one_query_in_parts(L: int = 1_000_000, d: int = 64) -> Iterator[Row]:
    """Why one query reads the tokens at a third of the limit: XLA joins no two products into one pass, and its loops run on one core."""
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.normal(size=(L, d)), jnp.float32)
    tilt = jnp.asarray(rng.normal(size=d) / np.sqrt(d), jnp.float32)
    weights = jnp.ones(L, jnp.float32)
    head = lp.Head(U=jnp.eye(d), V=jnp.eye(d))
    chunks = tokens.reshape(-1, 1000, d)
    programs = {
        "the scores alone, one product": (lambda x, u: x @ u, tokens, tilt),
        "the weighted sum alone, products of chunks": (
            lambda p, x: jnp.sum(jnp.einsum("cb,cbd->cd", p.reshape(-1, 1000), x), axis=0),
            weights,
            chunks,
        ),
        "both, as attend does": (lambda x, u: lp.attend(head, x, u), lp.Empirical(tokens), tilt),
    }
    for block in (1000, 10_000):
        for loops in (1, 2):
            name = f"one pass: blocks of {block:,} tokens in cache, {loops} loop{'s' * (loops > 1)}"
            programs[name] = (_one_pass(block, loops), tokens, tilt)
    calls = {"read": _call(jnp.sum, tokens)}
    calls |= {name: _call(*parts) for name, parts in programs.items()}
    times = race(calls)
    for name in programs:
        yield Row("one query in parts", name, times[name], limit=times["read"].median)


def _call(function: Any, *arguments: Any) -> Any:
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*arguments))


def _one_pass(block: int, loops: int) -> Any:
    """Every block is read from memory once: its scores, then its part of the weighted sum, from the cache; loops side by side."""

    def part(x: jax.Array, u: jax.Array, first: int) -> tuple[jax.Array, ...]:
        def step(i: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            top, total, mean = sums
            rows = jax.lax.dynamic_slice_in_dim(x, first + i * block, block)
            scores = rows @ u
            higher = jnp.maximum(top, jnp.max(scores))
            p, before = jnp.exp(scores - higher), jnp.exp(top - higher)
            return higher, before * total + jnp.sum(p), before * mean + p @ rows

        start = jnp.float32(-1e30), jnp.float32(0), jnp.zeros(x.shape[1], jnp.float32)
        return jax.lax.fori_loop(0, len(x) // loops // block, step, start)

    def attend(x: jax.Array, u: jax.Array) -> jax.Array:
        parts = [part(x, u, k * (len(x) // loops)) for k in range(loops)]
        top, total, mean = (jnp.stack(column) for column in zip(*parts, strict=True))
        weights = jnp.exp(top - jnp.max(top))
        return weights @ mean / jnp.sum(weights * total)

    return attend


def many_queries(queries: int = 1000, L: int = 1_000_000, d: int = 8) -> Iterator[Row]:
    """1,000 queries over 1e6 tokens, d = 8, float32."""
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(L, d)).astype(np.float32)
    z = rng.normal(size=(queries, d)).astype(np.float32)
    prompt, identity = lp.Empirical(tokens), np.eye(d, dtype=np.float32)
    head = lp.Head(U=identity, V=identity)
    tensor, torch_z = torch.from_numpy(tokens)[None, None], torch.from_numpy(z)[None, None]
    times = race(
        {
            "ours": lambda: lp.attend(head, prompt, z).block_until_ready(),
            "torch SDPA": lambda: _SDPA(torch_z, tensor, tensor, scale=1.0),
        },
        rounds=3,
    )
    peers = {"torch SDPA": times["torch SDPA"].median}
    yield Row("many queries", f"{queries:,} queries, L = {L:,}", times["ours"], peers)
