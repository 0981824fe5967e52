"""Section 2: on a prompt, the operator on measures is softmax attention."""

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

import largeprompt as lp
from reproduction.mutants import plus
from reproduction.panels import LENGTH, NO_DIFFERENCE, Panel, Series
from reproduction.studies._draws import normals
from reproduction.study import Check, Config, Patch, Study, at_most

_NAMES = ("dense_against_numpy", "streamed_against_dense", "shuffled_against_dense")


def _by_hand(head: lp.Head, tokens: Array, z: Array) -> np.ndarray:
    """Softmax attention in NumPy."""
    scores = np.asarray(z) @ np.asarray(head.U).T @ np.asarray(tokens).T
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
    softmax = terms / terms.sum(axis=-1, keepdims=True)
    return softmax @ np.asarray(tokens) @ np.asarray(head.V).T


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Differences between attention on an empirical measure and softmax attention in NumPy."""
    d, longest, queries = 6, max(config["lengths"]), 7
    everything, U, V, z = normals(key, (longest, d), (d, d), (3, d), (queries, d))
    head = lp.Head(U=U, V=V)
    gaps = []
    for length in config["lengths"]:
        tokens = everything[:length]
        prompt = lp.Empirical(tokens)
        dense = lp.attend(head, prompt, z, engine="dense")
        streamed = lp.attend(head, prompt, z, engine="streamed", block_size=700)
        shuffled = lp.attend(head, lp.Empirical(tokens[::-1]), z, engine="streamed", block_size=333)
        gaps.append(
            [
                np.max(np.abs(dense - _by_hand(head, tokens, z))),
                float(jnp.max(jnp.abs(streamed - dense))),
                float(jnp.max(jnp.abs(shuffled - dense))),
            ]
        )
    columns = np.array(gaps).T
    return xr.Dataset(
        {name: ("length", column) for name, column in zip(_NAMES, columns, strict=True)},
        {"length": np.array(config["lengths"], np.float64)},
    )


def examine(data: xr.Dataset) -> list[Check]:
    """All differences are rounding errors."""
    texts = (
        "T[prompt] against softmax attention in NumPy",
        "streamed in blocks against dense",
        "tokens in reverse order against dense",
    )
    return [
        at_most(text, data[name].max(), 1e-12) for text, name in zip(texts, _NAMES, strict=True)
    ]


def panels(data: xr.Dataset) -> list[Panel]:
    """Differences against length."""
    names = {
        "dense_against_numpy": "dense - NumPy",
        "streamed_against_dense": "streamed - dense",
        "shuffled_against_dense": "shuffled - dense",
    }
    series = [
        Series(text, data["length"].values, data[name].values, i, "points")
        for i, (name, text) in enumerate(names.items())
    ]
    return [Panel(series, LENGTH, "largest absolute difference", floor=NO_DIFFERENCE)]


def broken(patch: Patch) -> None:
    """A prompt whose first token counts twice."""
    exact = lp.Empirical
    patch(lp, "Empirical", lambda tokens: exact(tokens, [2.0] + [1.0] * (len(tokens) - 1)))


STUDY = Study(
    name="softmax-operator",
    title="On a prompt, attention on measures is softmax attention",
    source="Section 2",
    place=2.0,
    of_paper=True,
    statement="On the empirical measure of L tokens, the operator T is the softmax attention of "
    "transformers. The order of the tokens and the size of the blocks they are streamed in do not "
    "matter.",
    formula=r"T[\hat\mu_L](z) = V \sum_{i=1}^{L} \frac{e^{\langle x_i, U z\rangle}}{\sum_{j} "
    r"e^{\langle x_j, U z\rangle}}\, x_i",
    method="Random prompts in six dimensions against softmax attention in NumPy: largest absolute "
    "difference over seven queries. Exact up to rounding.",
    quick={"lengths": [20, 300, 5000]},
    full={"lengths": [1, 2, 20, 300, 1000, 5000]},
    measure=measure,
    examine=examine,
    panels=panels,
    caption="Rounding error of attention on measures against softmax attention, for prompts of "
    "three lengths: all differences are below one part in ten trillion.",
    notices={name: plus(1e-9, each="length") for name in _NAMES},
    broken=broken,
)
