"""A descent that kills its process, or ends.

`python -m tests.dynamics.killed FOLDER...` prints a digest of its result for each folder. With
FOLDER `-` nothing is saved. `--kill FOLDER` is killed instead of saving a second time, so the steps
since the first time are lost.
"""

import os
import signal
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


def _kill_at_the_second_save() -> None:
    from largeprompt.dynamics.checkpoint import Checkpoint

    save, saved = Checkpoint.save, []

    def save_once(*args) -> None:
        if saved:
            os.kill(os.getpid(), signal.SIGKILL)
        save(*args)
        saved.append(args)

    Checkpoint.save = save_once


if __name__ == "__main__":
    names = sys.argv[1:]
    if names[0] == "--kill":
        _kill_at_the_second_save()
    for name in names[names[0] == "--kill" :]:
        main(None if name == "-" else name)
