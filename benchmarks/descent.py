"""The published experiment, one SGD step and all of it: PyTorch as published, plain JAX, ours."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch  # pyright: ignore[reportMissingImports]  # an optional extra

import largeprompt as lp
from largeprompt.dynamics.experiment import PUBLISHED, published_init, published_task
from largeprompt.dynamics.group import advance
from largeprompt.icl import Attention

from .rows import Row
from .timing import Timing, race

_D = PUBLISHED.inputs + 1
_METHODS: dict[str, lp.AbstractMethod] = {
    "whole tokens": lp.MonteCarlo(whole_tokens=True),
    "scores": lp.MonteCarlo(),
    "exact": lp.Exact(),
}
_TOGETHER = 8


class _Head(torch.nn.Module):
    """One head with full K, Q, V and a read-out, as published: keys and values of every token."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.k, self.q, self.v = (torch.nn.Linear(_D, _D, bias=False) for _ in range(3))
        self.o = torch.nn.Linear(_D, 1, bias=False)
        self.attention = attention

    def forward(self, tokens: Any, query: Any) -> Any:
        """Predictions for queries of shape (batch, 1, D)."""
        scores = self.q(query) @ self.k(tokens).transpose(1, 2) * _D**-0.5
        softmax = self.attention == "softmax"
        weights = torch.softmax(scores, dim=-1) if softmax else scores / tokens.shape[1]
        return self.o(weights @ self.v(tokens))[:, 0, 0]


def _torch_steps(L: int, attention: Attention, threads: int) -> Callable[[int], object]:
    """Steps of the published loop: data made on the CPU, one optimiser step for each batch."""
    torch.manual_seed(PUBLISHED.seed)
    head = _Head(attention)
    optimiser = torch.optim.SGD(head.parameters(), lr=PUBLISHED.rate)
    loss = torch.nn.MSELoss()
    d, n = PUBLISHED.inputs, PUBLISHED.batch
    index = np.arange(d)
    cov = PUBLISHED.correlation ** np.abs(index[:, None] - index)
    root = torch.tensor(np.linalg.cholesky(cov), dtype=torch.float32)
    deviation = PUBLISHED.noise_variance**0.5

    def step() -> None:
        w = torch.randn(n, d, 1) / d**0.5
        x, x_q = torch.randn(n, L, d) @ root.T, torch.randn(n, 1, d) @ root.T
        y = x @ w + deviation * torch.randn(n, L, 1)
        target = (x_q @ w + deviation * torch.randn(n, 1, 1))[:, 0, 0]
        query = torch.cat([x_q, torch.zeros(n, 1, 1)], dim=2)
        optimiser.zero_grad()
        loss(head(torch.cat([x, y], dim=2), query), target).backward()
        optimiser.step()

    def steps(count: int) -> None:
        torch.set_num_threads(threads)
        for _ in range(count):
            step()

    return steps


def _plain_jax_steps(L: int, attention: Attention) -> Callable[[int], object]:
    """The same in plain JAX: a compiled loop over steps, random numbers and autodiff inside."""
    d, n = PUBLISHED.inputs, PUBLISHED.batch
    root = jnp.linalg.cholesky(jnp.asarray(published_task().cov, jnp.float32))
    deviation = PUBLISHED.noise_variance**0.5
    init = published_init(jax.random.key(0))
    weights = tuple(jnp.asarray(leaf, jnp.float32) for leaf in (init.K, init.Q, init.V, init.O))

    def loss(weights: tuple, key: jax.Array) -> jax.Array:
        K, Q, V, O = weights
        keys = jax.random.split(key, 5)
        w = jax.random.normal(keys[0], (n, d)) / d**0.5
        x = jax.random.normal(keys[1], (n, L, d)) @ root.T
        y = jnp.einsum("nld,nd->nl", x, w) + deviation * jax.random.normal(keys[2], (n, L))
        x_q = jax.random.normal(keys[3], (n, d)) @ root.T
        target = jnp.sum(x_q * w, axis=1) + deviation * jax.random.normal(keys[4], (n,))
        tokens = jnp.concatenate([x, y[..., None]], axis=2)
        query = jnp.pad(x_q, ((0, 0), (0, 1)))
        scores = jnp.einsum("nlk,nk->nl", tokens @ K.T, query @ Q.T) * _D**-0.5
        p = jax.nn.softmax(scores) if attention == "softmax" else scores / L
        prediction = jnp.einsum("nl,nlk->nk", p, tokens @ V.T) @ O[0]
        return jnp.mean((prediction - target) ** 2)

    @jax.jit
    def run(weights: tuple, count: jax.Array) -> tuple:
        def step(i: jax.Array, weights: tuple) -> tuple:
            slopes = jax.grad(loss)(weights, jax.random.fold_in(jax.random.key(0), i))
            return tuple(
                a - PUBLISHED.rate * slope for a, slope in zip(weights, slopes, strict=True)
            )

        return jax.lax.fori_loop(0, count, step, weights)

    return lambda count: jax.block_until_ready(run(weights, jnp.asarray(count)))


def _our_steps(name: str, kinds: list[tuple[float, Attention]]) -> Callable[[int], object]:
    """Steps of our descent, one run for each kind, trained together."""
    exact = name == "exact"
    dtype = jnp.float64 if exact else jnp.float32
    with jax.enable_x64(exact):
        task, optimiser = published_task(), optax.sgd(2 * PUBLISHED.rate)
        longest = max(L for L, _ in kinds)
        method, batch = _METHODS[name], PUBLISHED.batch
        losses = [task.batch_loss(*kind, method, batch, dtype, longest) for kind in kinds]
        losses = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *losses)
        init = published_init(jax.random.key(0))
        params = jax.tree.map(lambda a: jnp.stack([a.astype(dtype)] * len(kinds)), init)
        state = (params, jax.vmap(optimiser.init)(params))
        keys = jnp.stack([jax.random.key(1)] * len(kinds))

    def steps(count: int) -> object:
        with jax.enable_x64(exact):
            bounds = np.int32(0), np.int32(count)
            return jax.block_until_ready(advance(losses, optimiser, keys, state, *bounds))

    return steps


def _contestants(L: int, attention: Attention) -> dict[str, Callable[[int], object]]:
    return {
        "PyTorch, 1 thread": _torch_steps(L, attention, 1),
        "PyTorch, all cores": _torch_steps(L, attention, os.cpu_count() or 1),
        "plain JAX": _plain_jax_steps(L, attention),
        **{name: _our_steps(name, [(float(L), attention)]) for name in _METHODS},
    }


def _per_step(contestants: dict[str, Callable[[int], object]]) -> dict[str, Timing]:
    """Seconds per step; the contestants take turns of about a third of a second."""
    counts = {}
    for name, go in contestants.items():
        go(2)  # compiles
        start = time.perf_counter()
        go(4)
        counts[name] = max(1, int(4 * 0.3 / (time.perf_counter() - start)))
    calls = {name: lambda n=name, go=go: go(counts[n]) for name, go in contestants.items()}
    times = race(calls, rounds=5, seconds=0.01)
    return {name: times[name].scaled(1 / counts[name]) for name in contestants}


def sgd_step(lengths: tuple[int, ...] = (10, 100, 1000, 10_000)) -> Iterator[Row]:
    """One SGD step (batch 128, d = 5, softmax).

    Peers: PyTorch as the published loop is written (data made on the CPU, keys and values of every
    token, one optimiser step for each batch), and the same in plain JAX in a compiled loop. Ours:
    `whole tokens` draws whole prompts, `scores` draws gradients of the same law from two normals
    for each token, `exact` takes the conditional expectation given task and query. Runs of an
    experiment are trained together: the table also has the time of one of eight.
    """
    for L in lengths:
        together = _our_steps("scores", [(float(L), "softmax")] * _TOGETHER)
        found = _per_step(_contestants(L, "softmax") | {"together": together})
        found["together"] = found["together"].scaled(1 / _TOGETHER)
        ours = dict.fromkeys(_METHODS, "") | {"together": f", one of {_TOGETHER} runs together"}
        peers = {name: t.median for name, t in found.items() if name not in ours}
        for name, more in ours.items():
            method = "scores" if name == "together" else name
            yield Row(f"{method}, L = {L:,}{more}", found[name], peers)
    far = _per_step({"exact": _our_steps("exact", [(1e9, "softmax")])})["exact"]
    yield Row("exact, L = 1e9", far)


def whole_experiment(lengths: tuple[int, ...] = (10, 100, 1000)) -> Iterator[Row]:
    """All 38 runs of 300,000 steps, projected, without compilation.

    Projected linearly from slices at L = 10, 100, 1000 with both attentions; the last rows from
    slices of all runs trained together, as in `published_experiment`.
    """
    spent: dict[str, float] = {}
    for attention in PUBLISHED.attentions:
        measured = [_per_step(_contestants(L, attention)) for L in lengths]
        for name in measured[0]:
            medians = [row[name].median for row in measured]
            seconds = np.interp(PUBLISHED.lengths, lengths, medians).sum() * PUBLISHED.steps
            spent[name] = spent.get(name, 0.0) + float(seconds)
    kinds: dict[Attention, list[tuple[float, Attention]]] = {
        a: [(float(L), a) for L in PUBLISHED.lengths] for a in PUBLISHED.attentions
    }
    # scores of each attention are one computation
    batches = {
        "exact": [[kind for batch in kinds.values() for kind in batch]],
        "scores": list(kinds.values()),
    }
    peers = {name: t for name, t in spent.items() if name not in _METHODS}
    for name in ("scores", "exact"):
        total = spent[name]
        yield Row(name, Timing(total, total, total, 0.0), peers)
    for name in ("scores", "exact"):
        parts = _per_step({str(i): _our_steps(name, k) for i, k in enumerate(batches[name])})
        total = PUBLISHED.steps * sum(part.median for part in parts.values())
        together = Timing(total, total, total, 0.0)
        yield Row(f"{name}, all runs together", together, peers)


def flow() -> Iterator[Row]:
    """Exact gradient flow to stationarity, d = 5, covariance 0.5^|i-j|, no noise."""
    task = published_task("theory")
    start = lp.balanced_init(task, PUBLISHED.alpha)
    times = race(
        {f"L = {L:g}": lambda L=L: lp.gradient_flow(task, start, L) for L in (1e2, 1e4, 1e9)},
        rounds=3,
    )
    for name, timing in times.items():
        yield Row(name, timing)
