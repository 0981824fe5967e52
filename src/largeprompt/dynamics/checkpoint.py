"""Checkpoints of descent: one file for each group of runs, replaced atomically."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from .. import _checks
from .._files import atomic_write


class Progress(NamedTuple):
    """The state of a group of runs: all that later steps depend on, and the records so far."""

    step: int
    state: Any  # parameters and optimiser state, leading axis runs
    recorded_steps: list[int]
    recorded: list[Any]  # for each of them (parameters, risk, error)
    ended: list[str]  # why a run ended early, empty for the others


class Checkpoint:
    """The file of one group; a run is resumed only with an equal `configuration`.

    A line of JSON, then the arrays as equinox serialises them.
    """

    def __init__(self, folder: Path, name: str, configuration: dict[str, str]):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.eqx"
        self.configuration = configuration

    def save(self, progress: Progress) -> None:
        """Replace the file atomically."""
        about = {
            "configuration": self.configuration,
            "ended": progress.ended,
            "step": progress.step,
            "recorded_steps": progress.recorded_steps,
        }
        with atomic_write(self.path) as name, open(name, "wb") as file:
            file.write(json.dumps(about).encode() + b"\n")
            eqx.tree_serialise_leaves(file, (progress.state, progress.recorded))

    def load(self, state: Any, record: Any) -> Progress | None:
        """The saved progress, in the shapes of `state` and of one `record`; None without a file."""
        if not self.path.exists():
            return None
        with open(self.path, "rb") as file:
            try:
                about = json.loads(file.readline())
                saved, template = about["configuration"], [record] * len(about["recorded_steps"])
            except (ValueError, KeyError, TypeError) as error:
                raise self._damaged(error) from error
            self._check_configuration(saved)
            try:
                state, recorded = eqx.tree_deserialise_leaves(file, (state, template))
                if file.read(1):
                    raise ValueError("bytes after the last array")
            except (OSError, ValueError, EOFError, RuntimeError) as error:
                raise self._damaged(error) from error
        return Progress(about["step"], state, about["recorded_steps"], recorded, about["ended"])

    def _damaged(self, error: Exception) -> ValueError:
        return _checks.error(
            "a folder to resume from must hold a readable checkpoint",
            f"{self.path.name} ({error})",
            "remove that file to start again",
        )

    def _check_configuration(self, saved: dict[str, str]) -> None:
        """Raise if the checkpoint was begun with another configuration."""
        differing = sorted(
            name
            for name in {*saved, *self.configuration}
            if saved.get(name) != self.configuration.get(name)
        )
        if differing:
            received = ", ".join(
                f"{name} {self.configuration.get(name)} where it has {saved.get(name)}"
                for name in differing
            )
            raise _checks.error(
                "a folder is resumed with the configuration it was begun with",
                received,
                "pass the same arguments, or another folder",
            )


def digest(tree: Any) -> str:
    """A digest of the values of a tree."""
    leaves, structure = jax.tree.flatten(tree)
    found = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:16]
