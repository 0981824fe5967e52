"""Peers of the GPU benchmark, on the CPU with small shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import gpu


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_parts_peers_merge_to_attention_on_the_whole_prompt(dtype, monkeypatch):
    """Keys of growing size, so that the parts of the prompt carry unequal weight."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(gpu, "torch", torch)
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(640, 16)) * np.linspace(0.5, 4, 640)[:, None]
    arrays = keys, rng.normal(size=(640, 16)), rng.normal(size=(20, 16)) / 4
    keys, values, tilts = (jnp.asarray(a, jnp.float32).astype(dtype) for a in arrays)
    tilts = tilts.astype(jnp.float32)
    peers = gpu.parts_peers(keys, values, tilts, parts=4)
    assert len(peers) == 2
    exact = gpu._exact(keys, values, tilts)
    for call, _ in peers.values():
        with jax.numpy_dtype_promotion("standard"):  # within JAX's own attention
            found = call()
        assert tuple(found.shape) == (20, 16)
        assert gpu._error(found, exact) < (3e-2 if dtype == jnp.bfloat16 else 1e-5)
    first = gpu._exact(keys[:160], values[:160], tilts)  # one part alone would not do
    assert gpu._error(np.asarray(first), exact) > 0.1


def test_table_shows_each_error_beside_its_rate():
    timing = (1.0, 0.9, 1.2, 3.0)
    peers, errors = {"flash": 2.0, "plain": 1.0}, {"ours": 1e-5, "flash": 2e-3}
    text = gpu.table([gpu.row("many", "TFLOP/s", 1.0, timing, peers, None, errors)])
    assert "1 (0.833 to 1.11) (error 1e-05)" in text
    assert "flash 2 (error 2e-03), plain 1 |" in text
    old = gpu.row("many", "TFLOP/s", 1.0, timing, peers, None)
    del old["errors"]  # of runs stored before
    assert "flash 2, plain 1" in gpu.table([old])
