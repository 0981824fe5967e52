"""A small TabPFN with random weights, in a checkpoint as PyTorch writes it, and rows for it."""

import numpy as np
import torch

from largeprompt.models import TabPFN

from ..oracles.tabpfn import random_state

HEADS = 2


def save(path, state):
    """Write a checkpoint with the names and settings of the published one."""
    torch.save((state, None, {"nhead": HEADS, "sampler": "<function>"}), path)
    return path


def tiny(tmp_path, seed=0, **sizes):
    """The model, and its tensors."""
    state = random_state(seed, **sizes)
    return TabPFN.load(save(tmp_path / "tiny.cpkt", state)), state


def rows(n, features=5, classes=3, seed=0):
    """Rows with an outlier, a constant feature, and labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, features)) * 3 + 1
    X[0, 0], X[:, 1] = 200.0, 4.0
    y = rng.integers(0, classes, n)
    y[:classes] = np.arange(classes)
    return X, y
