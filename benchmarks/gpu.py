"""Correctness and speed of the kernels on one GPU: `python benchmarks/gpu.py`.

Needs this repository and jax. A failed check stops the run before anything is timed. Peers in
PyTorch are timed if torch with CUDA is installed. For many queries the peers are flash attention
and cuDNN on parts of the prompt, which fill the device, merged by the log-sum-exp; the error of
each, against float64, stands beside its rate. Tables are printed and, with `--record`, written
to benchmarks/results/gpu.md and gpu.json. With `--key-values` only keys and values in two arrays
are timed, and nothing is written.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import largeprompt as lp
from largeprompt.attention.engines import empirical_moments, key_value_moments
from largeprompt.dynamics import published_experiment
from largeprompt.dynamics.experiment import PUBLISHED
from largeprompt.prompts.normals import words
from largeprompt.prompts.sampling import _SCORES, SCORES_AND_VALUES
from largeprompt.prompts.weighted_sums import capacity_for, weighted_sums

torch: Any = None  # an optional peer
if find_spec("torch"):
    import torch  # pyright: ignore[reportMissingImports]

    torch = torch if torch.cuda.is_available() else None

Row = dict[str, Any]
_KEY = words(jax.random.key(0))


_TURN = 0.02  # seconds of work queued on the device for each timing, to hide delays of the host

Queue = Callable[[int], None]  # does its work that many times and waits for the last


def seconds(queue: Queue, rounds: int = 15) -> tuple[float, float, float, float]:
    """(median, fastest, slowest, first) time of one piece of work."""
    first, once = _timed(queue, 1), min(_timed(queue, 1), _timed(queue, 1))
    repeats = max(1, min(20, round(_TURN / once)))
    times = [_timed(queue, repeats) / repeats for _ in range(rounds)]
    return statistics.median(times), min(times), max(times), first


def _timed(queue: Queue, repeats: int) -> float:
    start = time.perf_counter()
    queue(repeats)
    return time.perf_counter() - start


def _wait(call: Callable[[], Any]) -> Queue:
    def queue(repeats: int) -> None:
        for _ in range(repeats - 1):
            call()
        jax.block_until_ready(call())

    return queue


def _in_torch(call: Callable[[], Any]) -> Queue:
    assert torch is not None

    def queue(repeats: int) -> None:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()

    return queue


def _prompt(L: int, d: int, dtype: Any) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (L, d), jnp.float32).astype(dtype)


def _tilts(q: int, d: int) -> jax.Array:
    return jax.random.normal(jax.random.key(2), (q, d), jnp.float32) / np.sqrt(d)


# --- correctness ---


def check() -> list[str]:
    """Compare every kernel with float64; a failed assertion stops the run."""
    lines = []

    def found(what: str, error: Any, bound: float) -> None:
        error = float(error)
        assert error <= bound, f"{what}: {error:.2e} > {bound:.0e}"
        lines.append(f"- {what}: {error:.1e} (at most {bound:.0e})")

    for q, dtype, with_cov, bound in (
        (1, jnp.float32, True, 1e-5),
        (3, jnp.float32, False, 1e-5),
        (1000, jnp.float32, False, 1e-5),
        (1, jnp.bfloat16, True, 1e-5),
        (1000, jnp.bfloat16, False, 2e-4),
    ):
        L = 100_003 if q == 1 else 20_001
        points, tilts = _prompt(L, 48, dtype), 3 * _tilts(q, 48)
        ours = empirical_moments(lp.Empirical(points), tilts, with_cov=with_cov, engine="fused")
        x, u = (np.asarray(a.astype(jnp.float32), np.float64) for a in (points, tilts))
        scores = u @ x.T
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        mean = p @ x
        error = np.abs(np.asarray(ours.mean) - mean).max()
        name = f"attention, {q} queries, {jnp.dtype(dtype).name} tokens, L = {L}"
        found(f"{name}: mean, beside NumPy float64", error, bound)
        if with_cov:
            assert ours.cov is not None
            cov = np.einsum("n,ni,nj->ij", p[0], x, x, optimize=True) - np.outer(mean[0], mean[0])
            found(f"{name}: covariance", np.abs(np.asarray(ours.cov[0]) - cov).max(), 5 * bound)
    for q, d_k, d_v, dtype, bound in (
        (1, 48, 80, jnp.float32, 1e-5),
        (3, 128, 1, jnp.float32, 1e-5),
        (1, 256, 256, jnp.float32, 1e-5),
        (2, 64, 64, jnp.bfloat16, 1e-5),
        (1000, 48, 80, jnp.bfloat16, 2e-4),
        (100, 128, 128, jnp.bfloat16, 2e-4),
    ):
        L = 20_001
        pair, tilts = _pair(L, d_k, d_v, dtype, weighted=True), 3 * _tilts(q, d_k)
        assert pair.log_weights is not None
        k, v, logs, u = (
            np.asarray(a.astype(jnp.float32), np.float64)
            for a in (pair.keys, pair.values, pair.log_weights, tilts)
        )
        scores = u @ k.T + logs
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        mean = p / p.sum(axis=1, keepdims=True) @ v
        error = np.abs(np.asarray(key_value_moments(pair, tilts, engine="fused").mean) - mean)
        name = f"{q} queries, keys and values {d_k} + {d_v} {jnp.dtype(dtype).name}, L = {L}"
        found(f"attention, {name}: mean, beside NumPy float64", error.max(), bound)
    # scores of size 50: TensorFloat-32 products would be wrong by 0.02
    head = lp.Head(U=8 * np.eye(64, dtype=np.float32), V=np.eye(64, dtype=np.float32))
    points, z = _prompt(5000, 64, jnp.float32), _tilts(9, 64)
    single = lp.attend(head, lp.Empirical(points), z)
    x, u = np.asarray(points, np.float64), 8 * np.asarray(z, np.float64)
    p = np.exp(u @ x.T - (u @ x.T).max(axis=1, keepdims=True))
    double = p @ x / p.sum(axis=1, keepdims=True)
    found(
        "no TensorFloat-32 in scores: attend in float32 beside float64",
        np.abs(single - double).max(),
        1e-5,
    )
    for layout, name, scales in (
        (_SCORES, "scores", (1.5,)),
        (SCORES_AND_VALUES, "scores and values", (1.5, 0.6, -0.8)),
    ):
        for L, n in ((1, 9), (1000, 64), (3_000_001, 3)):
            with jax.enable_x64(True):
                prompts = jnp.arange(n, dtype=jnp.uint32)
                length = jnp.full(n, L, jnp.uint32)
                room = capacity_for(L, layout)
                both = [
                    jax.jit(weighted_sums, static_argnames=("capacity", "layout"))(
                        _KEY,
                        prompts,
                        tuple(jnp.full(n, scale, dtype) for scale in scales),
                        length,
                        capacity=room,
                        layout=layout,
                    )
                    for dtype in (jnp.float32, jnp.float64)
                ]
            ratios = [np.asarray(f[:, 1:] / f[:, :1], np.float64) for f, _ in both]
            found(
                f"sampler, {name}, L = {L}: the same prompts as in float64",
                np.abs(ratios[0] - ratios[1]).max(),
                1e-4,
            )
    mu, z = lp.Gaussian(np.zeros(6, np.float32), np.eye(6, dtype=np.float32)), np.ones(6) / 2
    head = lp.Head(U=np.eye(6, dtype=np.float32), V=np.eye(6, dtype=np.float32))
    for L, n in ((10, 200_000), (1000, 200_000)):
        outputs = np.asarray(lp.sample_outputs(jax.random.key(5), head, mu, z, L, n), np.float64)
        squares = np.sum((outputs - z) ** 2, axis=1)
        exact = float(lp.output_error(head, mu, z, float(L)))
        score = abs(squares.mean() - exact) / squares.std() * np.sqrt(n)
        found(f"sampled output error, L = {L}: standard errors from the exact one", score, 5.0)
    return lines


# --- speed ---


def row(
    what: str,
    unit: str,
    rate: float,
    timing: tuple,
    peers: dict[str, float],
    limit: float | None,
    errors: dict[str, float] | None = None,
) -> Row:
    """A row of the table: our rate, those of the peers and the limit, in one unit; `errors` are
    those of outputs, of the peers by their names and ours as "ours".
    """
    median, fastest, slowest, first = timing
    return {
        "what": what,
        "unit": unit,
        "ours": rate,
        "spread": (rate * median / slowest, rate * median / fastest),
        "first call, s": first,
        "peers": peers,
        "ratio": rate / max(peers.values()) if peers else None,
        "limit": limit,
        "fraction": rate / limit if limit else None,
        "errors": errors or {},
    }


def read_bandwidth(x: jax.Array) -> float:
    """TB/s at which this device reads the bytes of an array: the fastest round of several sums.

    They sum 32-bit words, so that the limit does not depend on the dtype. A copy would be no limit
    for a kernel that only reads, because it also writes.
    """
    words = jax.lax.bitcast_convert_type(x.reshape(-1, 4 // x.dtype.itemsize), jnp.float32).ravel()
    rows = words.reshape(-1, _WORDS_IN_ROW)
    sums = [
        _wait(partial(jax.jit(jnp.sum), words)),
        _wait(partial(jax.jit(partial(jnp.sum, axis=1)), rows)),
    ]
    if torch is not None:
        tensor = torch.from_dlpack(words)
        sums.append(_in_torch(lambda: torch.sum(tensor)))
    return x.nbytes / min(seconds(sum_)[1] for sum_ in sums) / 1e12


_WORDS_IN_ROW = 2048


def attention_rows() -> list[Row]:
    """One query over 1e7 tokens; 1,024 queries over 2^20 tokens."""
    rows = []
    for dtype in (jnp.float32, jnp.bfloat16):
        L, d = 10**7, 64
        points, tilts = _prompt(L, d, dtype), _tilts(1, d)
        prompt = lp.Empirical(points)
        call = jax.jit(lambda p, t: empirical_moments(p, t).mean)
        timing = seconds(_wait(partial(call, prompt, tilts)))
        gigabytes = points.nbytes / 1e12
        plain = jax.jit(lambda x, u: jax.nn.softmax(jnp.matmul(x, u, precision="highest")) @ x)
        u = tilts[0].astype(dtype)
        peers = {"plain JAX": gigabytes / seconds(_wait(partial(plain, points, u)))[0]}
        for name, peer in _torch_attention(points, tilts).items():
            peers[name] = gigabytes / seconds(peer, rounds=5)[0]
        name = f"one query, L = 1e7, d = 64, {jnp.dtype(dtype).name}"
        rows.append(row(name, "TB/s", gigabytes / timing[0], timing, peers, read_bandwidth(points)))
        del points, prompt
        L, q = 2**20, 1024
        points, tilts = _prompt(L, d, dtype), _tilts(q, d)
        name = f"1,024 queries, L = 2^20, d = 64, {jnp.dtype(dtype).name}"
        ours = partial(call, lp.Empirical(points), tilts)
        rows.append(_many_queries(name, ours, points, points, tilts, {}))
    return rows


def _many_queries(
    name: str,
    ours: Callable[[], jax.Array],
    keys: jax.Array,
    values: jax.Array,
    tilts: jax.Array,
    peers: dict[str, float],
) -> Row:
    """The row of attention of many queries beside parts of the prompt, with errors."""
    work = 2 * len(tilts) * len(keys) * (keys.shape[1] + values.shape[1]) / 1e12
    timing = seconds(_wait(ours), rounds=7)
    exact = _exact(keys, values, tilts)
    errors = {"ours": _error(ours(), exact)}
    for peer, (call, in_torch) in parts_peers(keys, values, tilts).items():
        errors[peer] = _error(call(), exact)
        peers[peer] = work / seconds((_in_torch if in_torch else _wait)(call), rounds=5)[0]
    return row(name, "TFLOP/s", work / timing[0], timing, peers, None, errors)


_PARTS = 32  # of a prompt, which fill the device: one call has one block of threads for 64 queries
_JUDGED = 16  # queries whose outputs are compared with float64


def parts_peers(
    keys: jax.Array, values: jax.Array, tilts: jax.Array, parts: int = _PARTS
) -> dict[str, tuple[Callable[[], Any], bool]]:
    """Calls that attend to every part of a prompt and merge, and whether they are PyTorch's.

    cuDNN serves half precision on a GPU; elsewhere JAX's own attention takes its place.
    """
    shape = parts, len(keys) // parts
    queries = jnp.broadcast_to(tilts.astype(keys.dtype), (parts, *tilts.shape))
    gpu = jax.devices()[0].platform == "gpu"
    found: dict[str, tuple[Callable[[], Any], bool]] = {}
    if not gpu or keys.dtype == jnp.bfloat16:
        split = queries[:, :, None], *(a.reshape(*shape, 1, -1) for a in (keys, values))
        kind = "cudnn" if gpu else "xla"
        name = f"{'cuDNN' if gpu else 'JAX'} in {parts} parts"
        found[name] = partial(jax.jit(_in_parts, static_argnums=3), *split, kind), False
    if torch is not None:
        split = (a.reshape(parts, 1, -1, a.shape[-1]) for a in (queries, keys, values))
        arrays = [torch.from_dlpack(a) for a in split]
        kind = "flash" if keys.dtype == jnp.bfloat16 else "efficient"
        found[f"torch {kind} in {parts} parts"] = partial(_torch_in_parts, *arrays), True
    return found


def _in_parts(queries: jax.Array, keys: jax.Array, values: jax.Array, kind: Any) -> jax.Array:
    """Attention of queries (parts, q, 1, k) to each part (parts, n, 1, d), merged to (q, v)."""
    outputs, logs = jax.nn.dot_product_attention(
        queries, keys, values, scale=1.0, implementation=kind, return_residual=True
    )  # the logarithms come in the dtype of the outputs
    weights = jax.nn.softmax(logs[..., 0].astype(jnp.float32), axis=0)
    return jnp.einsum("pq,pqv->qv", weights, outputs[:, :, 0].astype(jnp.float32))


def _torch_in_parts(queries: Any, keys: Any, values: Any) -> Any:
    """Attention of queries (parts, 1, q, k) to each part (parts, 1, n, d), merged to (q, v)."""
    aten = torch.ops.aten
    if queries.device.type == "cpu":
        attend = partial(aten._scaled_dot_product_flash_attention_for_cpu, scale=1.0)
    elif queries.dtype == torch.float32:
        attend = partial(
            aten._scaled_dot_product_efficient_attention,
            attn_bias=None,
            compute_log_sumexp=True,
            scale=1.0,
        )
    else:
        attend = partial(aten._scaled_dot_product_flash_attention, scale=1.0)
    outputs, logs, *_ = attend(queries, keys, values)
    weights = torch.softmax(logs[:, 0, : queries.shape[2]].float(), 0)  # some are padded
    return torch.einsum("pq,pqv->qv", weights, outputs[:, 0].float())


def _exact(keys: jax.Array, values: jax.Array, tilts: jax.Array) -> np.ndarray:
    """Outputs of the first queries in NumPy float64."""
    k, v, u = (np.asarray(a.astype(jnp.float32), np.float64) for a in (keys, values, tilts))
    scores = u[:_JUDGED] @ k.T
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True) @ v


def _error(found: Any, exact: np.ndarray) -> float:
    """Largest error relative to the largest output."""
    outputs = np.asarray(found.cpu() if hasattr(found, "cpu") else found, np.float64)
    return float(np.abs(outputs[:_JUDGED] - exact).max() / np.abs(exact).max())


def _pair(L: int, d_k: int, d_v: int, dtype: Any, weighted: bool = False) -> lp.KeyValues:
    """Keys and values; weights of some tokens are 0."""
    key, value, log = jax.random.split(jax.random.key(3), 3)
    keys, values = (
        jax.random.normal(seed, (L, d), jnp.float32).astype(dtype)
        for seed, d in ((key, d_k), (value, d_v))
    )
    logs = jax.random.normal(log, (L,))
    return lp.KeyValues(keys, values, jnp.where(logs > -1, logs, -jnp.inf) if weighted else None)


def key_value_rows() -> list[Row]:
    """Keys and values in two arrays, beside one array of the same bytes and PyTorch.

    One query over 5e6 tokens of 64 + 64 coordinates; 1,024 queries over 2^20 tokens.
    """
    rows = []
    two = jax.jit(lambda pair, t: key_value_moments(pair, t).mean)
    one = jax.jit(lambda prompt, t: empirical_moments(prompt, t).mean)
    for dtype in (jnp.float32, jnp.bfloat16):
        for L, q, d_k, d_v in (
            (5 * 10**6, 1, 64, 64),
            (5 * 10**6, 1, 128, 64),
            (5 * 10**6, 8, 64, 64),
            (2**20, 1024, 64, 64),
        ):
            pair, tilts = _pair(L, d_k, d_v, dtype), _tilts(q, d_k)
            size = pair.keys.nbytes + pair.values.nbytes
            few = q <= 8
            work = size / 1e12 if few else 2 * q * L * (d_k + d_v) / 1e12
            # for few queries as many bytes, for many as many scores
            tokens = L * (d_k + d_v) // d_k if few else L
            prompt = lp.Empirical(_prompt(tokens, d_k, dtype))
            same = seconds(_wait(partial(one, prompt, tilts)), rounds=9)[0]
            peers = {"our kernel on one array": work / same}
            del prompt
            name = f"{q:,} queries, L = {L:.0e}, two arrays {d_k} + {d_v}, {jnp.dtype(dtype).name}"
            if not few:
                ours = partial(two, pair, tilts)
                rows.append(_many_queries(name, ours, pair.keys, pair.values, tilts, peers))
                continue
            timing = seconds(_wait(partial(two, pair, tilts)), rounds=9)
            for peer, queue in _torch_key_values(pair, tilts).items():
                peers[peer] = work / seconds(queue, rounds=5)[0]
            limit = read_bandwidth(pair.keys)
            rows.append(row(name, "TB/s", work / timing[0], timing, peers, limit))
    return rows


def _torch_key_values(pair: lp.KeyValues, tilts: jax.Array) -> dict:
    if torch is None:
        return {}
    k, v, u = (torch.from_dlpack(a)[None, None] for a in (pair.keys, pair.values, tilts))
    u = u.to(k.dtype)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {"torch SDPA": _in_torch(lambda: sdpa(u, k, v, scale=1.0))}


def _torch_attention(points: jax.Array, tilts: jax.Array) -> dict:
    if torch is None:
        return {}
    kind = torch.float32 if points.dtype == jnp.float32 else torch.bfloat16
    x = torch.from_numpy(np.array(points.astype(jnp.float32))).cuda().to(kind)
    u = torch.from_numpy(np.array(tilts)).cuda().to(kind)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {
        "torch SDPA": _in_torch(
            lambda: sdpa(u[None, None], x[None, None], x[None, None], scale=1.0)
        ),
        "torch softmax": _in_torch(lambda: torch.softmax(x @ u[0], 0) @ x),
    }


def sampling_rows() -> list[Row]:
    """Scores a second of `sample_outputs` at d = 6, beside sampling whole tokens."""
    d, rows = 6, []
    mu = lp.Gaussian(np.zeros(d, np.float32), np.eye(d, dtype=np.float32))
    head = lp.Head(U=np.eye(d, dtype=np.float32), V=np.eye(d, dtype=np.float32)[:1])
    z = np.ones(d, np.float32) / np.float32(np.sqrt(d))
    for L, n in ((1000, 10**6), (10**6, 4000)):
        ours = _wait(lambda L=L, n=n: lp.sample_outputs(jax.random.key(0), head, mu, z, L, n))
        timing = seconds(ours, rounds=7)
        few = max(1, 2 * 10**8 // L)

        @jax.jit
        def whole(key: jax.Array, L: int = L, few: int = few) -> jax.Array:
            tokens = jax.random.normal(key, (few, L, d))
            return jnp.einsum("nl,nl->n", jax.nn.softmax(tokens @ z, axis=1), tokens[..., 0])

        peers = {
            "JAX, whole tokens": few
            * L
            / seconds(_wait(partial(whole, jax.random.key(0))), 5)[0]
            / 1e9
        }
        if torch is not None:
            direction = torch.from_numpy(z).cuda()

            def in_torch(L: int = L, few: int = few, direction: Any = direction) -> Any:
                tokens = torch.randn(few, L, d, device="cuda")
                return (torch.softmax(tokens @ direction, 1) * tokens[..., 0]).sum(1)

            peers["torch, whole tokens"] = few * L / seconds(_in_torch(in_torch), 5)[0] / 1e9
        name = f"sampled outputs, d = 6, L = {L:,}, {n:,} prompts"
        rows.append(row(name, "1e9 tokens/s", n * L / timing[0] / 1e9, timing, peers, None))
    return rows


def experiment_rows(steps: dict[str, int]) -> list[Row]:
    """The published experiment, all 38 runs: steps a second, 300,000 of them asked for."""
    rows = []
    loop = _torch_loop()
    methods = {"exact": lp.Exact(), "scores": lp.MonteCarlo()}
    for name, count in steps.items():
        method = methods[name]
        start = time.perf_counter()
        published_experiment(steps=1000, method=method, references=False)
        first = time.perf_counter() - start
        start = time.perf_counter()
        found = published_experiment(steps=count, method=method, references=False)
        spent = time.perf_counter() - start
        assert np.all(np.isfinite(found.final_risk))
        rate = count / spent
        peers = {"torch loop, projected": 1 / loop} if loop else {}
        name = f"38 runs x {count:,} steps, {name}: {spent:.1f} s"
        rows.append(row(name, "steps/s", rate, (spent, spent, spent, first), peers, None))
    return rows


def _torch_loop() -> float | None:
    """Seconds for one step of all 38 runs of the published loop: data on the CPU, training here."""
    if torch is None:
        return None
    D, n, d = PUBLISHED.inputs + 1, PUBLISHED.batch, PUBLISHED.inputs
    measured = []
    for L in (10, 100, 1000):
        layers = [torch.nn.Linear(D, k, bias=False).cuda() for k in (D, D, D, 1)]
        optimiser = torch.optim.SGD([w for m in layers for w in m.parameters()], lr=1e-3)

        def step(L: int = L, layers: list = layers, optimiser: Any = optimiser) -> None:
            x, w = torch.randn(n, L, d), torch.randn(n, d, 1)
            tokens = torch.cat([x, x @ w], dim=2).cuda()
            query, target = torch.randn(n, 1, D).cuda(), torch.randn(n).cuda()
            k, q, v, o = layers
            weights = torch.softmax(q(query) @ k(tokens).transpose(1, 2) * D**-0.5, dim=-1)
            optimiser.zero_grad()
            torch.mean((o(weights @ v(tokens))[:, 0, 0] - target) ** 2).backward()
            optimiser.step()

        measured.append(seconds(_in_torch(step), rounds=30)[0])
    return 2 * float(np.interp(PUBLISHED.lengths, (10, 100, 1000), measured).sum())


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| what | unit | ours (slowest to fastest) | peers | ours / best peer | limit | fraction "
        "| first call, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        errors = {name: f" (error {error:.0e})" for name, error in r.get("errors", {}).items()}
        peers = ", ".join(
            f"{name} {rate:.3g}{errors.get(name, '')}" for name, rate in r["peers"].items()
        )
        ratio = f"{r['ratio']:.3g}" if r["ratio"] else ""
        limit = f"{r['limit']:.3g}" if r["limit"] else ""
        fraction = f"{r['fraction']:.0%}" if r["fraction"] else ""
        spread = f"{r['ours']:.3g} ({r['spread'][0]:.3g} to {r['spread'][1]:.3g})"
        spread += errors.get("ours", "")
        cells = (
            r["what"],
            r["unit"],
            spread,
            peers or "none here",
            ratio,
            limit,
            fraction,
            f"{r['first call, s']:.2g}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    if any(r["limit"] for r in rows):
        lines.append(
            "\nThe limit is the bandwidth of reading the same bytes: the fastest round of several "
            "sums over them, in the same run."
        )
    return "\n".join(lines)


def main(record: bool, steps: int = PUBLISHED.steps) -> None:
    """Check, time, print, and store the results if asked."""
    device = jax.devices()[0]
    if device.platform != "gpu":
        raise SystemExit(f"this benchmark needs a GPU that JAX can see; it sees {device}")
    versions = (
        f"jax {jax.__version__}, Python {sys.version.split()[0]}, largeprompt {lp.__version__}"
    )
    if torch is not None:
        versions += f", torch {torch.__version__}"
    where = f"{device.device_kind}; {versions}; {date.today()}"
    checks = check()
    print("\n".join(checks), flush=True)
    rows = attention_rows() + key_value_rows() + sampling_rows()
    rows += experiment_rows({"exact": steps, "scores": steps})
    found = {"where": where, "rows": rows, "checks": checks}
    print(as_text(found))
    if record:
        out = Path(__file__).parent / "results"
        (out / "gpu.md").write_text(as_text(found))
        (out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")


def as_text(found: dict) -> str:
    """Markdown of a stored run."""
    checks = "\n".join(found["checks"])
    return (
        f"{table(found['rows'])}\n\n### Checked before\n\n{checks}\n\n"
        f"Made by `python benchmarks/gpu.py --record` on {found['where']}.\n"
    )


if __name__ == "__main__":
    if "--key-values" in sys.argv[1:]:
        print("\n".join(check()), flush=True)
        print(table(key_value_rows()))
    else:
        main("--record" in sys.argv[1:])
