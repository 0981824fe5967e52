"""A small TabPFN with random weights, in a file as it is kept after fetching, and rows for it."""

import numpy as np
from safetensors.torch import save_file

from largeprompt.models import TabPFN

from ..oracles.tabpfn import random_state

HEADS = 2


def save(path, state):
    """Write tensors with the names of the published ones."""
    save_file(state, path, metadata={"nhead": str(HEADS)})
    return path


def tiny(tmp_path, seed=0, **sizes):
    """The model, and its tensors."""
    state = random_state(seed, **sizes)
    return TabPFN.load(save(tmp_path / "tiny.safetensors", state)), state


def rows(n, features=5, classes=3, seed=0):
    """Rows with an outlier, a constant feature, and labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, features)) * 3 + 1
    X[0, 0], X[:, 1] = 200.0, 4.0
    y = rng.integers(0, classes, n)
    y[:classes] = np.arange(classes)
    return X, y
