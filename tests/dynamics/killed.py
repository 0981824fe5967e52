"""A descent that is killed while it saves.

`python -m tests.dynamics.killed FOLDER SAVE` trains in FOLDER and kills itself when it has written
checkpoint number SAVE and is about to put it in its place. If there are not so many, it prints a
digest of its result, and one of a run that saves nothing.
"""

import os
import signal
import sys

import jax
import numpy as np

import largeprompt as lp


def train(folder: str | None) -> None:
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
        400,
        16,
        optax.sgd(optax.piecewise_constant_schedule(1e-3, {200: 0.5}), momentum=0.9),
        method=lp.Exact(),
        attention=["linear", "softmax"],
        record_every=100,
        folder=folder,
    )
    print(digest([(run.steps, run.params, run.risk, run.status) for run in runs]))


def _killed_at(save: int) -> None:
    """Die instead of renaming file number `save`."""
    replace, seen = os.replace, []

    def counted(*arguments: str) -> None:
        seen.append(arguments)
        if len(seen) == save:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*arguments)

    os.replace = counted


if __name__ == "__main__":
    _killed_at(int(sys.argv[2]))
    train(sys.argv[1])
    train(None)
