"""One of two processes of a distributed computation: `-m tests.in_two_processes ADDRESS RANK`.

Run twice by tests/test_devices.py. Each process has two virtual CPU devices; the mesh has all four.
Prints as JSON what the process received, and what it computes alone.
"""

import json
import sys

import jax
import numpy as np

import largeprompt as lp


def main(address: str, rank: int) -> dict[str, list]:
    """The same calls with the mesh of all processes and without."""
    jax.distributed.initialize(address, num_processes=2, process_id=rank)
    mesh = jax.make_mesh((jax.device_count(),), ("devices",))
    assert (jax.device_count(), jax.local_device_count()) == (4, 2)
    rng = np.random.default_rng(0)  # the same numbers in every process
    head = lp.Head(U=np.eye(3), V=np.eye(3))
    prompt, z = lp.Empirical(rng.normal(size=(101, 3))), rng.normal(size=3)
    mu = lp.Gaussian(np.zeros(3), np.eye(3))
    draw = (jax.random.key(1), head, mu, z, 50, 6)
    return {
        "attend": [np.asarray(lp.attend(head, prompt, z, mesh=m)).tolist() for m in (mesh, None)],
        "outputs": [np.asarray(lp.sample_outputs(*draw, mesh=m)).tolist() for m in (mesh, None)],
    }


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
