"""How tilted moments of given tokens are computed: all at once, or streamed over blocks of tokens.

Both engines return the same `TiltedMoments`. *dense* holds every score, queries x tokens. *streamed* holds the scores of
one block of tokens at a time and merges the blocks' summaries, so that its memory does not grow with the number of tokens.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from ..measures import Empirical, TiltedMoments, tilted_moments

Engine = Literal["auto", "dense", "streamed"]

_DENSE_SCORES = 2**22  # the largest number of scores `auto` holds at once
_BLOCK_SCORES = 2**22  # scores per block of the streamed engine


def empirical_moments(
    prompt: Empirical,
    tilts: Float[Array, "q d"],
    *,
    with_cov: bool = False,
    engine: Engine = "auto",
    block_size: int | None = None,
) -> TiltedMoments:
    """Tilted moments of a prompt at q tilts, by the engine named (or chosen by size)."""
    if engine not in ("auto", "dense", "streamed"):
        raise ValueError(
            _checks.message(
                "engine must be 'auto', 'dense' or 'streamed'",
                repr(engine),
                "pass one of the three",
            )
        )
    if block_size is not None:
        block_size = _checks.count("block_size", block_size)
    if engine == "auto":
        fits = prompt.n * tilts.shape[0] <= _DENSE_SCORES and block_size is None
        engine = "dense" if fits else "streamed"
    if engine == "dense":
        return tilted_moments(prompt.points, prompt.log_weights, tilts, with_cov=with_cov)
    if block_size is None:
        block_size = max(1024, _BLOCK_SCORES // tilts.shape[0])
    return _streamed(prompt, tilts, with_cov=with_cov, block_size=min(block_size, prompt.n))


@partial(jax.jit, static_argnames=("with_cov", "block_size"))
def _streamed(
    prompt: Empirical, tilts: Float[Array, "q d"], *, with_cov: bool, block_size: int
) -> TiltedMoments:
    """A scan over whole blocks, then the remainder, merged one after the other."""
    points, log_weights = prompt.points, prompt.log_weights

    def block(start: Array | int, size: int) -> TiltedMoments:
        rows = jax.lax.dynamic_slice_in_dim(points, start, size)
        logs = None
        if log_weights is not None:
            logs = jax.lax.dynamic_slice_in_dim(log_weights, start, size)
        return tilted_moments(rows, logs, tilts, with_cov=with_cov)

    whole, remainder = divmod(prompt.n, block_size)

    def step(summary: TiltedMoments, index: Array) -> tuple[TiltedMoments, None]:
        return summary.merge(block(index * block_size, block_size)), None

    summary = block(0, block_size)
    if whole > 1:
        summary, _ = jax.lax.scan(step, summary, jnp.arange(1, whole))
    if remainder:
        summary = summary.merge(block(whole * block_size, remainder))
    return summary
