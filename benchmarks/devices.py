"""Print the seconds for 64 sampled prompts, sharded over all devices of this process."""

import jax
import numpy as np

import largeprompt as lp

from .timing import race


def main() -> None:
    """Median of a few calls."""
    mesh = jax.make_mesh((jax.device_count(),), ("devices",))
    eye = np.eye(6, dtype=np.float32)
    head, mu = lp.Head(U=eye, V=eye), lp.Gaussian(np.zeros(6, np.float32), eye)
    draw = (jax.random.key(0), head, mu, np.ones(6, np.float32) / 2, 100_000, 64)
    call = lambda: lp.sample_outputs(*draw, mesh=mesh).block_until_ready()  # noqa: E731
    print(race({"sharded": call}, rounds=5)["sharded"].median)


if __name__ == "__main__":
    main()
