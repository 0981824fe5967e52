"""Section 2: on a prompt the operator is softmax attention, however it is computed."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ..attention import Head, attend
from ..measures import Empirical
from .base import Check, at_most, normals


def run(key: Key[Array, ""]) -> list[Check]:
    """Attention on an Empirical measure against softmax written out in NumPy, for both engines."""
    d, length, queries = 6, 5000, 7
    tokens, U, V, z = normals(key, (length, d), (d, d), (3, d), (queries, d))
    head = Head(U=U, V=V)

    scores = np.asarray(z) @ np.asarray(head.U).T @ np.asarray(tokens).T
    terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
    softmax = terms / terms.sum(axis=-1, keepdims=True)
    expected = softmax @ np.asarray(tokens) @ np.asarray(head.V).T

    prompt = Empirical(tokens)
    dense = attend(head, prompt, z, engine="dense")
    streamed = attend(head, prompt, z, engine="streamed", block_size=700)
    shuffled = attend(head, Empirical(tokens[::-1]), z, engine="streamed", block_size=333)
    return [
        at_most("T[prompt] is softmax attention", np.max(np.abs(dense - expected)), 1e-12),
        at_most("streamed over blocks: the same", jnp.max(jnp.abs(streamed - dense)), 1e-12),
        at_most("tokens in another order: the same", jnp.max(jnp.abs(shuffled - dense)), 1e-12),
    ]
