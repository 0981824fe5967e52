"""Runs that survive being killed: one file a group of runs, replaced whole after every stretch of steps."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _checks
from .._files import whole


class Progress(NamedTuple):
    """How far a group of runs has come: everything the rest of it depends on, and what it has recorded."""

    step: int
    state: Any  # parameters and optimiser state, leading axis runs
    recorded_steps: list[int]
    recorded: list[Any]  # for each of them (parameters, risk, error)
    ended: list[str]  # why a run ended early, empty for the others


class Checkpoint:
    """The file of one group; `configuration` names what must be the same for a run to be resumed."""

    def __init__(self, folder: Path, name: str, configuration: dict[str, str]):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}.npz"
        self.configuration = configuration

    def save(self, progress: Progress) -> None:
        """Replace the file; a reader sees the old one or the new one, never a part."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((progress.state, progress.recorded))]
        words = {"configuration": self.configuration, "ended": progress.ended}
        numbers = {"step": progress.step, "recorded_steps": progress.recorded_steps}
        arrays = {f"leaf_{i}": leaf for i, leaf in enumerate(leaves)}
        with whole(self.path) as name:
            np.savez(name, about=np.array(json.dumps({**words, **numbers})), **arrays)  # pyright: ignore[reportArgumentType]

    def load(self, state: Any, record: Any) -> Progress | None:
        """What was saved, in the shapes of `state` and of one `record`; None where nothing was."""
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                leaves = [jnp.asarray(file[f"leaf_{i}"]) for i in range(len(file.files) - 1)]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(
                _checks.message(
                    "a folder to resume from must hold a readable checkpoint",
                    f"{self.path.name} ({error})",
                    "remove that file to start again",
                )
            ) from error
        self._refuse_another(about["configuration"])
        template = (state, [record] * len(about["recorded_steps"]))
        state, recorded = jax.tree.unflatten(jax.tree.structure(template), leaves)
        return Progress(about["step"], state, about["recorded_steps"], recorded, about["ended"])

    def _refuse_another(self, saved: dict[str, str]) -> None:
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
            raise ValueError(
                _checks.message(
                    "a folder is resumed with the configuration it was begun with",
                    received,
                    "pass the same arguments, or another folder",
                )
            )


def digest(tree: Any) -> str:
    """A short name for the values of a tree: equal trees, and only those, have the same."""
    leaves, structure = jax.tree.flatten(tree)
    found = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:16]
