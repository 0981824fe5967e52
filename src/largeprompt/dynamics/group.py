"""Runs trained in one vmapped loop, in chunks of steps, so progress can be shown and saved."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Key

from .. import _checks, _devices
from .._arrays import cast
from .._compiler_options import quick_to_compile
from .._progress import progress_bar
from .._typing import Array
from ..icl import AbstractParams, AbstractTask, BatchLoss, FreshRisk
from ..prompts.normals import threefry, words
from .checkpoint import Checkpoint, Progress, digest

_SECONDS = 2.0  # for a chunk of steps: how often progress is shown and saved
_FINISHED = "finished: all steps were taken"


class Descent(eqx.Module):
    """One run: parameters and test risk at the steps recorded.

    `params` has a leading axis of records. `risk` is the exact risk for heads in block form of
    linear regression, otherwise a mean over a fixed test sample with standard error `risk_error`.
    `status` begins with "finished" or says what went wrong.
    """

    steps: np.ndarray
    params: Any  # of the kind that was trained
    risk: np.ndarray
    risk_error: np.ndarray
    status: str = eqx.field(static=True)

    @property
    def final(self) -> Any:
        """The parameters last recorded."""
        return jax.tree.map(lambda leaf: leaf[-1], self.params)

    @property
    def finished(self) -> bool:
        """Whether all steps were taken and all numbers are finite."""
        return self.status == _FINISHED


class Group:
    """Runs trained in one vmapped loop."""

    def __init__(
        self,
        task: AbstractTask,
        losses: list[BatchLoss],
        optimiser: optax.GradientTransformation,
        keys: Key[Array, " runs"],
        params: Any,
        test_risk: FreshRisk,
        mesh: Mesh | None,
    ):
        self.task, self.optimiser, self.keys = task, optimiser, keys
        self.test_risk, self.mesh = test_risk, mesh
        # stacked by NumPy: JAX would compile a concatenation of as many operands as runs
        self.losses = jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *losses)
        self.state: Any = (params, jax.vmap(optimiser.init)(params))

    def checkpoint(self, folder: Path, number: int, about: dict[str, str]) -> Checkpoint:
        """The checkpoint; its configuration has all that decides the result and can be compared."""
        data = jax.random.key_data(self.keys)
        whole = {"task": digest(self.task), "params": digest(self.state[0]), "keys": digest(data)}
        whole["initial optimizer state"] = digest(self.state[1])
        return Checkpoint(folder, f"runs-{number}", {**about, **whole})

    def train(
        self, steps: int, every: int, checkpoint: Checkpoint | None, label: str
    ) -> list[Descent]:
        """Advance to `steps`, recording and saving on the way."""
        done = self._begun(steps, every, checkpoint)
        pace = 1
        with progress_bar(label, steps, done=done.step, unit="steps") as advance:
            while done.step < steps and not all(done.ended):
                until = min(done.step + pace, steps, (done.step // every + 1) * every)
                taken, begun = until - done.step, time.monotonic()
                done = self._advanced(done, until, record=until % every == 0 or until == steps)
                seconds = time.monotonic() - begun
                # the first chunk compiles: short at first, at most tenfold longer each time
                pace = max(1, min(10 * pace, int(taken * _SECONDS / seconds)))
                if checkpoint:
                    checkpoint.save(done)
                advance(taken)
        return self._results(done)

    def _begun(self, steps: int, every: int, checkpoint: Checkpoint | None) -> Progress:
        params = self.state[0]
        risks = np.zeros(len(self.keys))
        saved = checkpoint and checkpoint.load(self.state, record=(params, risks, risks))
        if not saved:
            return Progress(0, self.state, [0], [self._record(params)], [""] * len(self.keys))
        if saved.step > steps:
            raise _checks.error(
                "a run is resumed to at least the steps it has taken",
                f"steps = {steps} where the folder has {saved.step}",
                f"pass steps >= {saved.step}, or another folder",
            )
        if saved.step < steps and saved.recorded_steps[-1] % every:
            # the end of a shorter run: a longer one does not record there
            return saved._replace(
                recorded_steps=saved.recorded_steps[:-1], recorded=saved.recorded[:-1]
            )
        return saved

    def _advanced(self, done: Progress, until: int, record: bool) -> Progress:
        bounds = (np.int32(step) for step in (done.step, until))
        runs = (self.losses, self.keys, done.state)
        if self.mesh is None:
            state = advance(runs[0], self.optimiser, *runs[1:], *bounds)
        else:
            parts = _devices.padded(runs, self.mesh)
            state = _devices.run_sharded(
                _advance,
                self.mesh,
                tuple(bounds),
                parts,
                compiler_options=_compiler_options(),
                optimiser=self.optimiser,
            )
            state = jax.tree.map(lambda leaf: leaf[: len(self.keys)], state)
        ended = [
            why or ("" if good else _diverged(until))
            for why, good in zip(done.ended, _all_finite(state[0]), strict=True)
        ]
        steps, recorded = done.recorded_steps, done.recorded
        if record or all(ended):
            steps, recorded = [*steps, until], [*recorded, self._record(state[0])]
        return Progress(until, state, steps, recorded, ended)

    def _record(self, params: AbstractParams) -> tuple[AbstractParams, np.ndarray, np.ndarray]:
        with jax.enable_x64(True):
            found = self.test_risk(cast(params, jnp.float64))
        return params, found.value, found.error

    def _results(self, done: Progress) -> list[Descent]:
        params, risk, error = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *done.recorded)
        results = []
        for i, ended in enumerate(done.ended):
            status = ended or _FINISHED
            if not ended and not np.all(np.isfinite([risk[i], error[i]])):
                status = (
                    "no test risk: it is NaN at a recorded step, because scores became too large "
                    "for its formula. To fix: take a smaller rate, or start from smaller "
                    "parameters."
                )
            one = jax.tree.map(lambda leaf, i=i: leaf[i], params)
            results.append(Descent(np.array(done.recorded_steps), one, risk[i], error[i], status))
        return results


def _diverged(step: int) -> str:
    return (
        f"diverged: parameters are not finite at step {step}; the steps were too large, or scores "
        "left the range of the exact formula (deviation 1,000; 5.6 of several heads). To fix: take "
        "a smaller rate, or start from smaller parameters."
    )


def _all_finite(tree: Any) -> np.ndarray:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return np.all([np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in leaves], axis=0)


def advance(
    losses: Any,
    optimiser: optax.GradientTransformation,
    keys: Key[Array, " runs"],
    state: Any,
    start: Array | np.int32,
    stop: Array | np.int32,
) -> Any:
    """Take steps start, .., stop - 1 of every run.

    The key of step k depends on the run's key and k only, so chunks may end anywhere.
    """
    return _program()((start, stop), (losses, keys, state), optimiser=optimiser)


@cache
def _program() -> Callable[..., Any]:
    """`_advance`, compiled."""
    options = dict(_compiler_options())
    # equinox passes options that it does not document on to `jax.jit`
    return eqx.filter_jit(_advance, compiler_options=options)  # pyright: ignore[reportCallIssue]


def _compiler_options() -> tuple[tuple[str, bool | int], ...]:
    """Quick to compile on a CPU, where kernels of the package do most of the work."""
    return tuple(quick_to_compile().items()) if jax.default_backend() == "cpu" else ()


def _advance(bounds: tuple, runs: tuple, *, optimiser: optax.GradientTransformation) -> Any:
    (start, stop), (losses, keys, states) = bounds, runs
    runs_words = jax.vmap(words)(keys)

    def step(k: Array, states: Any) -> Any:
        def one(loss: Any, run: Any, state: Any) -> Any:
            params, moments = state
            own = jnp.stack(threefry(run, 0, k.astype(jnp.uint32)))
            own = jax.random.wrap_key_data(own, impl="threefry2x32")
            gradient = jax.grad(lambda p: loss(own, p))(params)
            updates, moments = optimiser.update(gradient, moments, params)
            return optax.apply_updates(params, updates), moments

        if len(runs_words) == 1:  # without a batch, a third less is traced
            runs = jax.tree.map(lambda leaf: leaf[0], (losses, runs_words, states))
            return jax.tree.map(lambda leaf: leaf[None], one(*runs))
        # inside of the loop, which would be traced a second time otherwise
        return jax.vmap(one)(losses, runs_words, states)

    return jax.lax.fori_loop(start, stop, step, states)
