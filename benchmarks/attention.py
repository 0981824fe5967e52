"""Attention over given tokens: one query (bandwidth), and many queries (arithmetic)."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
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
    """One query over L tokens, d = 64, float32.

    The limit is reading the tokens once: the fastest round of two sums over them, on all cores.
    "Ours without the kernel" is what runs if no compiler was found on installation.
    """
    for L in lengths:
        rng = np.random.default_rng(0)
        tokens = rng.normal(size=(L, d)).astype(np.float32)
        tilt = (rng.normal(size=d) / np.sqrt(d)).astype(np.float32)
        times = race(_contestants(tokens, tilt))
        peers = {
            name: t.median for name, t in times.items() if name not in ("ours", "directly", *_READS)
        }
        limit = min(times[name].fastest for name in _READS)
        yield Row(f"L = {L:,}, compiled by the caller", times["ours"], peers, limit)
        yield Row(f"L = {L:,}, called directly", times["directly"], peers, limit)


_READS = ("read by JAX", "read by torch")


def _contestants(tokens: np.ndarray, tilt: np.ndarray) -> dict:
    d = tokens.shape[1]
    prompt = lp.Empirical(tokens)
    head = lp.Head(U=np.eye(d, dtype=np.float32), V=np.eye(d, dtype=np.float32))
    compiled = jax.jit(lambda prompt, z: lp.attend(head, prompt, z))
    in_xla = jax.jit(lambda prompt, z: lp.attend(head, prompt, z, engine="dense"))
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
        "ours without the kernel": lambda: in_xla(prompt, query).block_until_ready(),
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
    """The same in KeOps, if it is installed and can compile."""
    try:
        LazyTensor = importlib.import_module("pykeops.torch").LazyTensor
        x = LazyTensor(tokens[None])
        scores = (LazyTensor(query[None, None]) * x).sum(-1)
        call = lambda: scores.sumsoftmaxweight(x, axis=1)  # noqa: E731
        call()
    except Exception:  # not installed, or no compiler
        return None
    return call


def many_queries(queries: int = 1000, L: int = 1_000_000, d: int = 8) -> Iterator[Row]:
    """1,000 queries over 1e6 tokens, d = 8, float32, and the memory needed above the tokens."""
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(L, d)).astype(np.float32)
    z = rng.normal(size=(queries, d)).astype(np.float32)
    prompt, identity = lp.Empirical(tokens), np.eye(d, dtype=np.float32)
    head = lp.Head(U=identity, V=identity)
    tensor, torch_z = torch.from_numpy(tokens)[None, None], torch.from_numpy(z)[None, None]
    times = race(
        {
            "ours": lambda: lp.attend(head, prompt, z).block_until_ready(),
            "ours without the kernel": lambda: lp.attend(
                head, prompt, z, engine="streamed"
            ).block_until_ready(),
            "torch SDPA": lambda: _SDPA(torch_z, tensor, tensor, scale=1.0),
        },
        rounds=3,
    )
    peers = {name: t.median for name, t in times.items() if name != "ours"}
    case = f"{queries:,} queries, L = {L:,}, {_peak(queries, L, d):.0f} MiB above the tokens"
    yield Row(case, times["ours"], peers)


def keys_and_values(
    cases: tuple[tuple[int, int, int, int], ...] = (
        (100_000, 1, 64, 64),
        (1_000_000, 1, 64, 64),
        (1_000_000, 1, 128, 64),
        (100_000, 4, 64, 64),
        (100_000, 1000, 8, 8),
    ),
) -> Iterator[Row]:
    """Keys and values in two arrays, float32, beside one array of the same bytes.

    Cases are L tokens, q queries, and the coordinates of keys and values. "Ours on one array" has
    tokens of d_k coordinates and as many bytes; where q is large, as many tokens.
    """
    for L, q, d_k, d_v in cases:
        rng = np.random.default_rng(0)
        keys, values, z = (
            rng.normal(size=shape).astype(np.float32) / np.float32(np.sqrt(shape[1]))
            for shape in ((L, d_k), (L, d_v), (q, d_k))
        )
        pair, head = lp.KeyValues(keys, values), lp.Head.key_value(d_k, d_v)
        tokens = L * (d_k + d_v) // d_k if q <= 8 else L
        points = rng.normal(size=(tokens, d_k)).astype(np.float32)
        prompt, identity = lp.Empirical(points), np.eye(d_k, dtype=np.float32)
        same = lp.Head(U=identity, V=identity)
        two = jax.jit(lambda pair, z, head=head: lp.attend(head, pair, z))
        one = jax.jit(lambda prompt, z, same=same: lp.attend(same, prompt, z))
        in_xla = jax.jit(lambda k, v, z: jax.nn.softmax(z @ k.T) @ v)
        k, v, u = (torch.from_numpy(a)[None, None] for a in (keys, values, z))
        query = jnp.asarray(z)
        times = race(
            {
                "ours": partial(_ready, two, pair, query),
                "ours on one array": partial(_ready, one, prompt, query),
                "plain JAX": partial(_ready, in_xla, pair.keys, pair.values, query),
                "torch SDPA": partial(_SDPA, u, k, v, scale=1.0),
            },
            rounds=5,
        )
        peers = {name: t.median for name, t in times.items() if name != "ours"}
        yield Row(f"L = {L:,}, {q:,} queries, {d_k} + {d_v}", times["ours"], peers)


def _ready(call: Any, *arguments: Any) -> Any:
    return call(*arguments).block_until_ready()


_PEAK = """
import sys, threading
import numpy as np
import psutil
import largeprompt as lp

queries, L, d = map(int, sys.argv[1:])
tokens, z = np.ones((L, d), np.float32), np.ones((queries, d), np.float32)
head, prompt = lp.Head(U=np.eye(d), V=np.eye(d)), lp.Empirical(tokens)
used = [psutil.Process().memory_info().rss]
ended = threading.Event()

def watch():
    while not ended.wait(0.001):
        used.append(psutil.Process().memory_info().rss)

watcher = threading.Thread(target=watch)
watcher.start()
lp.attend(head, prompt, z).block_until_ready()
ended.set()
watcher.join()
print((max(used) - used[0]) / 2**20)
"""


def _peak(queries: int, L: int, d: int) -> float:
    """MiB that attention and its compilation need in a new process, sampled every millisecond."""
    sizes = (str(number) for number in (queries, L, d))
    ran = subprocess.run(
        [sys.executable, "-c", _PEAK, *sizes], capture_output=True, text=True, check=True
    )
    return float(ran.stdout)
