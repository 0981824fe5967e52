"""Attention over given tokens: one query (bandwidth), and many queries (memory)."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  # an optional extra

import largeprompt as lp

from .timing import race, table


def one_query(lengths: tuple[int, ...] = (10_000, 100_000, 1_000_000), d: int = 64) -> str:
    """One query over L tokens, float32; bytes are those of the tokens, read once."""
    rows = [
        ["L", "what", "ms (fastest to slowest)", "GB/s", "ratio to the fastest peer", "compile s"]
    ]
    for length in lengths:
        rng = np.random.default_rng(0)
        tokens = rng.normal(size=(length, d)).astype(np.float32)
        tilt = (rng.normal(size=d) / np.sqrt(d)).astype(np.float32)
        contestants = _contestants(tokens, tilt)
        times = race(contestants)
        peers = [name for name in times if name.startswith(("NumPy", "torch"))]
        fastest = min(times[name].median for name in peers)
        for name, timing in times.items():
            rows.append(
                [
                    f"{length:.0e}".replace("e+0", "e"),
                    name,
                    f"{timing.median * 1e3:.3g} ({timing.fastest * 1e3:.3g} to {timing.slowest * 1e3:.3g})",
                    f"{tokens.nbytes / timing.median / 1e9:.1f}",
                    f"{timing.median / fastest:.2f}",
                    f"{timing.first:.2f}" if name.startswith("largeprompt") else "",
                ]
            )
    return table(rows)


def _contestants(tokens: np.ndarray, tilt: np.ndarray) -> dict:
    d = tokens.shape[1]
    prompt = lp.Empirical(tokens)
    head = lp.Head(U=np.eye(d, dtype=np.float32), V=np.eye(d, dtype=np.float32))
    compiled = jax.jit(lambda prompt, z: lp.attend(head, prompt, z))
    on_device, query = jnp.asarray(tokens), jnp.asarray(tilt)
    tensor, torch_query = torch.from_numpy(tokens), torch.from_numpy(tilt)
    total = jax.jit(jnp.sum)
    batched = tensor[None, None]

    def numpy_softmax() -> np.ndarray:
        scores = tokens @ tilt
        terms = np.exp(scores - scores.max())
        return (terms @ tokens) / terms.sum()

    return {
        "largeprompt, compiled": lambda: compiled(prompt, query).block_until_ready(),
        "largeprompt, called directly": lambda: lp.attend(head, prompt, query).block_until_ready(),
        "NumPy softmax": numpy_softmax,
        "torch softmax": lambda: torch.softmax(tensor @ torch_query, 0) @ tensor,
        "torch SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(
            torch_query[None, None, None], batched, batched, scale=1.0
        ),
        "memory read (JAX sum)": lambda: total(on_device).block_until_ready(),
        "memory read (torch sum)": lambda: tensor.sum(),
    }


def many_queries(queries: int = 1000, length: int = 1_000_000, d: int = 8) -> str:
    """Many queries over many tokens: time beside torch, and the peak memory above the tokens in a process of its own."""
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(length, d)).astype(np.float32)
    z = rng.normal(size=(queries, d)).astype(np.float32)
    prompt = lp.Empirical(tokens)
    identity = np.eye(d, dtype=np.float32)
    head = lp.Head(U=identity, V=identity)
    tensor, torch_z = torch.from_numpy(tokens)[None, None], torch.from_numpy(z)[None, None]
    times = race(
        {
            "largeprompt": lambda: lp.attend(head, prompt, z).block_until_ready(),
            "torch SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(
                torch_z, tensor, tensor, scale=1.0
            ),
        },
        rounds=5,
    )
    command = [sys.executable, "-m", "benchmarks.attention", str(queries), str(length), str(d)]
    peak = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    rows = [["what", "s (fastest to slowest)", "ratio to torch SDPA", "peak MiB above the tokens"]]
    for name, timing in times.items():
        rows.append(
            [
                name,
                f"{timing.median:.2f} ({timing.fastest:.2f} to {timing.slowest:.2f})",
                f"{timing.median / times['torch SDPA'].median:.2f}",
                f"{peak:.0f}" if name == "largeprompt" else "",
            ]
        )
    return table(rows)


def _peak_above_tokens(queries: int, length: int, d: int) -> float:
    """MiB by which the process's largest resident size grows during the call, tokens already held."""
    rng = np.random.default_rng(0)
    prompt = lp.Empirical(rng.standard_normal((length, d), dtype=np.float32))
    head = lp.Head(U=jnp.eye(d), V=jnp.eye(d))
    before = _peak_resident()
    lp.attend(head, prompt, jnp.ones((queries, d))).block_until_ready()
    return _peak_resident() - before


def _peak_resident() -> float:
    """MiB: the process's own high-water mark (`getrusage` would include what the parent held when it forked)."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    print(_peak_above_tokens(*map(int, sys.argv[1:])))
