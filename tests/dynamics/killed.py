"""A descent for another process to kill.

`python -m tests.dynamics.killed FOLDER...` prints a digest of its result for each folder.

With FOLDER `-` nothing is saved.
"""

import sys

import jax
import numpy as np

import largeprompt as lp


def main(folder: str | None) -> None:
    """Train two runs with momentum and a schedule, so that the optimiser has a state to lose."""
    import optax

    from largeprompt.dynamics.checkpoint import digest

    task = lp.LinearRegression(np.eye(2), noise_variance=0.1)
    starts = jax.tree.map(
        lambda leaf: np.stack([leaf, leaf]), lp.HeadParams(0.5 * np.eye(3), np.full(3, 0.4))
    )
    runs = lp.descend_many(
        jax.random.split(jax.random.key(3), 2),
        task,
        starts,
        [8, float("inf")],
        10_000,
        16,
        optax.sgd(optax.piecewise_constant_schedule(1e-3, {5_000: 0.5}), momentum=0.9),
        method=lp.Exact(),
        attention=["linear", "softmax"],
        record_every=3_000,
        folder=folder,
    )
    print(digest([(run.steps, run.params, run.risk, run.status) for run in runs]))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        main(None if name == "-" else name)
