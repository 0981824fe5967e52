"""Many devices: eight virtual ones in one process, and four in two processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import largeprompt as lp

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def _started(script: str, devices: int, *arguments: str) -> subprocess.Popen:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.{script}", *arguments],
        cwd=HERE.parent,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(process: subprocess.Popen) -> dict:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def eight() -> dict[str, float]:
    """Largest differences between eight devices and one."""
    return _answer(_started("on_eight_devices", 8))


def test_attend_with_a_prompt_sharded_over_devices(eight):
    """Summaries are merged in another order: 1e-12."""
    assert eight["devices"] == 8
    spread = [
        value for name, value in eight.items() if name.startswith(("attend", "jacob", "grad"))
    ]
    assert len(spread) == 7
    assert max(spread) < 1e-12


def test_sample_outputs_sharded_over_devices_has_the_same_draws(eight):
    assert eight["outputs"] < 1e-13
    assert eight["gradients"] < 1e-12
    assert eight["MonteCarlo"] < 1e-12
    assert eight["MonteCarlo of a function"] < 1e-12


def test_descend_many_sharded_over_devices_gives_the_same_runs(eight):
    assert eight["descent, Exact"] < 1e-12
    assert eight["descent, MonteCarlo"] < 1e-6


def test_attend_and_sample_outputs_in_two_processes():
    """`jax.distributed`: both processes get the whole result, equal to that of one device."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    both = [_started("in_two_processes", 2, address, str(rank)) for rank in range(2)]
    for answer in map(_answer, both):
        for name in ("attend", "outputs"):
            together, alone = map(np.asarray, answer[name])
            assert together.shape == alone.shape
            assert np.allclose(together, alone, rtol=1e-12, atol=1e-13), name


def test_attend_rejects_other_meshes_and_measures_without_tokens():
    head, mu = lp.Head(U=np.eye(1), V=np.eye(1)), lp.Gaussian(np.zeros(1), np.eye(1))
    mesh = jax.make_mesh((1,), ("devices",))
    with pytest.raises(ValueError, match="Empirical"):
        lp.attend(head, mu, np.ones(1), mesh=mesh)
    wrong: Any = mesh.devices  # an array of devices is no mesh
    for call in (
        lambda: lp.sample_outputs(jax.random.key(0), head, mu, np.ones(1), 5, 3, mesh=wrong),
        lambda: lp.attend(head, lp.Empirical(np.ones((2, 1))), np.ones(1), mesh=wrong),
    ):
        with pytest.raises((ValueError, TypeError), match="mesh"):
            call()
