"""One step of SGD of the published experiment, and all of it: PyTorch as published, plain JAX, and our three oracles."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch  # pyright: ignore[reportMissingImports]  # an optional extra

from largeprompt.dynamics.descent import advance
from largeprompt.dynamics.experiment import PUBLISHED, published_init, published_task
from largeprompt.dynamics.oracles import OracleName, make_oracle
from largeprompt.icl.task import Attention

from .timing import race, table

_D = PUBLISHED.inputs + 1
_ORACLES: tuple[OracleName, ...] = ("prompts", "reduced", "exact")


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
    """Steps of the published loop: data made on the CPU, one optimiser step a batch; the script runs on one thread."""
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
    """The same written plainly in JAX: a compiled loop over steps, normals drawn inside, autodiff through everything."""
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


def _our_steps(name: OracleName, kinds: list[tuple[float, Attention]]) -> Callable[[int], object]:
    """Steps of our descent, one run for each kind, all advancing together."""
    exact = name == "exact"
    dtype = jnp.float64 if exact else jnp.float32
    with jax.enable_x64(exact):
        task, optimiser = published_task(), optax.sgd(2 * PUBLISHED.rate)
        oracles = [make_oracle(task, *kind, name, PUBLISHED.batch, dtype) for kind in kinds]
        oracles = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *oracles)
        init = published_init(jax.random.key(0))
        params = jax.tree.map(lambda a: jnp.stack([a.astype(dtype)] * len(kinds)), init)
        state = (params, jax.vmap(optimiser.init)(params))
        keys = jnp.stack([jax.random.key(1)] * len(kinds))

    def steps(count: int) -> object:
        with jax.enable_x64(exact):
            bounds = jnp.asarray(0, jnp.int32), jnp.asarray(count, jnp.int32)
            return jax.block_until_ready(advance(oracles, optimiser, keys, state, *bounds))

    return steps


def _contestants(L: int, attention: Attention) -> dict[str, Callable[[int], object]]:
    return {
        "PyTorch, 1 thread": _torch_steps(L, attention, 1),
        "PyTorch, all cores": _torch_steps(L, attention, os.cpu_count() or 1),
        "plain JAX": _plain_jax_steps(L, attention),
        **{name: _our_steps(name, [(float(L), attention)]) for name in _ORACLES},
    }


def _per_step(contestants: dict[str, Callable[[int], object]]) -> dict[str, float]:
    """Median seconds a step, the contestants taking turns of about a third of a second."""
    counts = {}
    for name, go in contestants.items():
        go(2)  # compiles
        start = time.perf_counter()
        go(4)
        counts[name] = max(1, int(4 * 0.3 / (time.perf_counter() - start)))
    calls = {name: lambda n=name, go=go: go(counts[n]) for name, go in contestants.items()}
    times = race(calls, rounds=5, seconds=0.01)
    return {name: times[name].median / counts[name] for name in contestants}


def sgd_step(lengths: tuple[int, ...] = (10, 100, 1000, 10_000)) -> str:
    """One SGD step (batch 128, d = 5, softmax): milliseconds, and in brackets how many times faster than the faster PyTorch.

    PyTorch as the published loop is written: data made on the CPU, keys and values of every token, one optimiser step a batch; plain
    JAX the same in a compiled loop. Ours: `prompts` draws whole prompts, `reduced` the same law of gradients from two normals a token,
    `exact` the conditional expectation given task and query.
    """
    rows = []
    for L in lengths:
        found = _per_step(_contestants(L, "softmax"))
        if not rows:
            rows.append(["L", *found])
        peer = _faster_torch(found)
        rows.append([f"{L:,}", *(f"{t * 1e3:.3g} ({peer / t:.3g})" for t in found.values())])
    far = _per_step({"exact": _our_steps("exact", [(1e9, "softmax")])})["exact"]
    rows.append(["1e9", *[""] * (len(rows[0]) - 2), f"{far * 1e3:.3g}"])
    return table(rows)


def _faster_torch(found: dict[str, float]) -> float:
    return min(value for name, value in found.items() if name.startswith("PyTorch"))


def whole_experiment(lengths: tuple[int, ...] = (10, 100, 1000)) -> str:
    """All 38 runs of 300,000 steps, in hours: projected from slices at L = 10, 100, 1000, both attentions, linearly between them.

    The last row is measured with all 38 runs advancing together. Compilation (seconds a length) is left out.
    """
    hours: dict[str, float] = {}
    for attention in PUBLISHED.attentions:
        measured = [_per_step(_contestants(L, attention)) for L in lengths]
        for name in measured[0]:
            seconds = np.interp(PUBLISHED.lengths, lengths, [row[name] for row in measured])
            hours[name] = hours.get(name, 0.0) + seconds.sum() * PUBLISHED.steps / 3600
    kinds: list[tuple[float, Attention]] = [
        (float(L), a) for a in PUBLISHED.attentions for L in PUBLISHED.lengths
    ]
    together = _per_step({"all": _our_steps("exact", kinds)})["all"]
    hours["exact, 38 runs together"] = together * PUBLISHED.steps / 3600
    rows = [["what", "hours for all 38 runs", "times faster than the faster PyTorch"]]
    for name, spent in hours.items():
        rows.append([name, f"{spent:.3g}", f"{_faster_torch(hours) / spent:.3g}"])
    return table(rows)
