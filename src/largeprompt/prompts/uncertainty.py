"""Error bar of attention to one given prompt, from its own tokens.

The output T_L = sum_i p_i v_i, v_i = V x_i, is self-normalised importance sampling: tokens drawn
from mu estimate a mean under the tilt of mu. So for iid tokens of any law,

    Cov T_L ~ sum_i p_i^2 (v_i - T_L)(v_i - T_L)'

estimates the covariance around the infinite prompt, if the terms of the two sums behind T_L have a
finite variance. Their Pareto tail indices say whether that can be believed. Several heads read the
same tokens: token i moves the sum of their outputs by r_i = sum_h p_i^h (V_h x_i - T_h), and the
covariance is sum_i r_i r_i'.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Bool, Float

from .. import _checks
from .._arrays import Values, library, to_numpy
from .._float64 import in_float64, is_traced
from .._typing import Array, ArrayInput
from ..attention import AbstractHead, Head
from ..attention.softmax import checked_queries
from ..measures import AbstractMeasure, Empirical
from .pareto import pareto_index

_NUMBERS = 2**20  # residuals in memory at once
_EPSILON = 2.0**-52
_SINGULAR = 1e-12  # variance along an axis that counts as 0, in coordinates of variance 1
_DOUBTFUL, _UNKNOWN = 0.5, 0.7  # tail indices from which the reading changes


class PromptUncertainty(eqx.Module):
    """Output T_L of one prompt, and what its tokens tell about the error of it.

    The confidence region is {t : $(t - T_L)' C^-1 (t - T_L) <= radius^2$}, C the `covariance`
    (pseudo-inverse if it is singular).
    """

    output: Float[Array | np.ndarray, "*batch m"]
    covariance: Float[Array | np.ndarray, "*batch m m"]
    half_difference: Float[
        Array | np.ndarray, "*batch m"
    ]  # output of the first half of the tokens minus T_L
    # of several heads the smallest number of tokens, and the largest indices
    effective_tokens: Float[Array | np.ndarray, "*batch"]  # 1 / sum_i p_i^2
    weight_tail_index: Float[Array | np.ndarray, "*batch"]  # of p_i
    # of p_i (1 + |v_i - T_L|^2 / s^2)^(1/2), and of p_i (v_i - T_L) by coordinate and sign
    term_tail_index: Float[Array | np.ndarray, "*batch"]
    radius: Float[Array | np.ndarray, ""]  # root of the chi-square quantile at `level`
    level: float = eqx.field(static=True)

    @property
    def standard_error(self) -> Float[Array | np.ndarray, "*batch m"]:
        """Standard error of every coordinate of the output."""
        xp = library(self.covariance)
        return xp.sqrt(xp.diagonal(self.covariance, axis1=-2, axis2=-1))

    @property
    def squared_error(self) -> Float[Array | np.ndarray, "*batch"]:
        """Estimate of $|T_L - T|^2$, the trace of the covariance; compare `lp.output_error`."""
        xp = library(self.covariance)
        return xp.asarray(xp.trace(self.covariance, axis1=-2, axis2=-1))

    @property
    def shape_matrix(self) -> Float[Array | np.ndarray, "*batch m m"]:
        """S = radius^2 C of the confidence region {t : $(t - T_L)' S^-1 (t - T_L) <= 1$}."""
        return library(self.covariance).asarray(self.radius**2 * self.covariance)

    @property
    def tail_index(self) -> Float[Array | np.ndarray, "*batch"]:
        """The larger of the two tail indices; it decides the reading."""
        xp = library(self.weight_tail_index)
        return xp.asarray(xp.maximum(self.weight_tail_index, self.term_tail_index))

    @property
    def reading(self) -> np.ndarray:
        """The tail index in words, an array of texts of the shape of the batch.

        Below 0.5 the error bar holds, up to 0.7 it is doubtful, above the prompt is too short.
        """
        index = np.asarray(self.tail_index)
        texts = ["the error bar holds", "the error bar is doubtful"]
        found = np.select(
            [index < _DOUBTFUL, index <= _UNKNOWN], texts, "the prompt is too short to know"
        )
        return np.asarray(found)

    def contains(self, point: ArrayInput) -> Bool[Array, "*batch"]:
        """Whether the confidence region contains `point`, of shape (m,) or (..., m)."""
        point = _checks.finite("point", point)
        if point.ndim == 0 or point.shape[-1] != self.output.shape[-1]:
            raise _checks.error(
                f"point must have shape (..., {self.output.shape[-1]}), as the output",
                f"shape {point.shape}",
                "pass an output, for example lp.attend(head, mu, z)",
            )
        return _inside(self.output, self.covariance, self.radius, point)


@in_float64
@jax.jit
def _inside(output: Array, covariance: Array, radius: Array, point: Array) -> Array:
    """Whether (t - T)' C^+ (t - T) <= radius^2, and t - T is in the range of C."""
    scales = _deviations(covariance)  # so that coordinates of different units count alike
    variances, axes = jnp.linalg.eigh(covariance / (scales[..., :, None] * scales[..., None, :]))
    along = jnp.einsum("...ij,...i->...j", axes, (point - output) / scales, precision="highest")
    present = variances > _SINGULAR
    squares = jnp.where(present, along**2 / jnp.where(present, variances, 1.0), 0.0)
    rounding = 1e-10 * jnp.max((jnp.abs(point) + jnp.abs(output)) / scales, axis=-1, keepdims=True)
    in_range = jnp.all(present | (jnp.abs(along) <= rounding), axis=-1)
    return in_range & (jnp.sum(squares, axis=-1) <= radius**2)


def _deviations(covariance: Values) -> Values:
    """Roots of the diagonal, 1 where it is 0."""
    xp = library(covariance)
    variances = xp.diagonal(covariance, axis1=-2, axis2=-1)
    return xp.sqrt(xp.where(variances > 0, variances, 1.0))


@_checks.accepts(head=AbstractHead, prompt=AbstractMeasure)
@in_float64
def prompt_uncertainty(
    head: AbstractHead, prompt: AbstractMeasure, z: ArrayInput, *, level: float = 0.95
) -> PromptUncertainty:
    """How far the output of one given prompt may be from that of the infinite prompt.

    No law is assumed: the tokens are independent draws from some law, and their softmax-weighted
    residuals estimate the covariance of the output,

    $$sum_i p_i^2 (v_i - T_L)(v_i - T_L)',    p = softmax(<x_i, U z>),    v_i = V x_i$$

    Pareto tail indices say whether to trust it (`reading`): of the weights p_i; of the terms
    p_i (1 + |v_i - T_L|^2 / s^2)^(1/2), $s^2 = sum_i p_i |v_i - T_L|^2$, as for scores along the
    value that is read the weights alone look harmless too long; and of the positive and of the
    negative terms p_i (v_i - T_L) of every coordinate, unless most of them repeat, as values may be
    heavy where weights are not. The largest counts. What the prompt does not show at all, such as
    a rare token that would take all the weight, no diagnostic can find.

    Of a `MultiHead` the residuals of all heads are added token by token before they are squared:
    heads that oppose each other have the small error of their sum. Effective tokens and tail
    indices are those of its worst head.

    **Arguments:** `prompt` is an `Empirical` of at least 2 tokens; weights are importance weights
    of its tokens, not numbers of copies. `z` of shape (d,) or (..., d). The confidence region has
    the asymptotic probability `level`.

    **Returns:** `largeprompt.prompts.PromptUncertainty`. The tail indices have no derivatives.

    >>> import jax
    >>> import largeprompt as lp
    >>> head, z = lp.Head(U=[[0.5]], V=[[1.0]]), [1.0]
    >>> mu = lp.Gaussian([0.0], [[1.0]])
    >>> found = lp.prompt_uncertainty(head, mu.sample(jax.random.key(0), 1000), z)
    >>> print(found.reading, found.contains(lp.attend(head, mu, z)))
    the error bar holds True
    """
    level = _checks.number("level", level, "pass for example 0.95", above=0.0)
    if level >= 1:
        raise _checks.error("level must be < 1", f"{level:g}", "pass 0.95")
    z = checked_queries(head, prompt, z)
    tokens = _checked_tokens(prompt)
    if is_traced(head, tokens, z):
        with jax.default_matmul_precision("highest"):
            return PromptUncertainty(*_fields(head, tokens, z, level), level=level)
    head, tokens, z = to_numpy((head, tokens, z))
    return PromptUncertainty(*map(np.asarray, _fields(head, tokens, z, level)), level=level)


def _checked_tokens(prompt: AbstractMeasure) -> Empirical:
    """The tokens of the prompt: two or more, with weight in both halves."""
    tokens = prompt.as_prompt()
    if tokens is None:
        raise _checks.error(
            "prompt must be given by its tokens",
            f"a {type(prompt).__name__}",
            "pass Empirical(tokens); the exact error of a law is lp.output_error",
        )
    if tokens.n < 2:
        raise _checks.error(
            "prompt must have at least 2 tokens: their differences make the error bar",
            "1 token",
            "pass a longer prompt",
        )
    if tokens.log_weights is None:
        return tokens
    present = tokens.log_weights > -jnp.inf
    half = tokens.n // 2
    missing = ~(jnp.any(present[:half]) & jnp.any(present[half:]))
    return _checks.require(
        tokens,
        missing,
        rule="both halves of the prompt must have a token of positive weight",
        received="a half whose weights are all 0",
        fix="drop tokens of weight 0, and pass at least 2 others",
    )


def _fields(head: AbstractHead, tokens: Empirical, z: Values, level: float) -> tuple[Values, ...]:
    """The arrays of the result, from known or traced numbers."""
    xp, batch = library(head, tokens, z), z.shape[:-1]
    first = tokens.points[0]
    differences = tokens.points - first  # a common offset of the tokens costs no digits
    values = [differences @ one.V.T for one in head.heads]
    log_weights = xp.zeros(tokens.n) if tokens.log_weights is None else tokens.log_weights
    queries = z.reshape(-1, head.query_dim)
    tilts = xp.stack([queries @ one.U.T for one in head.heads], axis=1)
    at_once = max(1, _NUMBERS // (3 * len(values) * values[0].size))
    one_block = partial(_statistics, differences, values, log_weights)
    if xp is np:
        starts = range(0, max(1, len(tilts)), at_once)
        blocks = [one_block(tilts[start : start + at_once]) for start in starts]
        found = [np.concatenate(part) for part in zip(*blocks, strict=True)]
    else:

        def one(tilt: Array) -> list[Array]:
            return [part[0] for part in one_block(tilt[None])]

        found = jax.lax.map(one, tilts, batch_size=at_once)
    shift, *others = (part.reshape((*batch, *part.shape[1:])) for part in found)
    origin = sum(one.V @ first for one in head.heads)
    return shift + origin, *others, _radius(head.heads, differences, values, level)


def _statistics(
    differences: Values, values: list[Values], log_weights: Values, tilts: Values
) -> tuple[Values, ...]:
    """The fields of the result at each row of tilts, one for every head; the output relative to
    the first token.
    """
    each = [
        _of_one_head(differences, own, log_weights, tilts[:, h]) for h, own in enumerate(values)
    ]
    output, terms, half_output, effective, *indices = zip(*each, strict=True)
    xp, moved = library(each), sum(terms)
    return (
        sum(output),
        xp.swapaxes(moved, -1, -2) @ moved,
        sum(half_output) - sum(output),
        xp.stack(effective).min(0),
        *(xp.stack(index).max(0) for index in indices),
    )


def _of_one_head(
    differences: Values, values: Values, log_weights: Values, tilts: Values
) -> tuple[Values, ...]:
    """Output of one head at each tilt, what every token adds to it, output of the first half,
    effective tokens, and the two tail indices.
    """
    xp, half = library(values, tilts, log_weights), len(values) // 2
    scores = tilts @ differences.T
    weights = _softmax(scores + log_weights)
    output = weights @ values
    residuals = values - output[:, None]
    half_output = _softmax(scores[:, :half] + log_weights[:half]) @ values[:half]
    terms = weights[..., None] * residuals
    squares = (residuals**2).sum(-1)
    variance = (weights * squares).sum(-1, keepdims=True)
    influence = weights * xp.sqrt(1 + squares / xp.where(variance > 0, variance, 1.0))
    score_sizes = _largest_norm(differences) * xp.linalg.norm(tilts, axis=-1)
    rounding = 16 * _EPSILON * (1 + score_sizes)
    signed = xp.swapaxes(xp.concatenate([terms, -terms], axis=-1), -1, -2)
    sizes = xp.concatenate([weights[:, None], influence[:, None], xp.maximum(signed, 0.0)], axis=1)
    if xp is jnp:
        sizes, rounding = jax.lax.stop_gradient((sizes, rounding))
    indices = pareto_index(sizes, xp.broadcast_to(rounding[:, None], sizes.shape[:-1]))
    # words that come again and again are no tail: the weights and their influence read them
    of_terms = xp.where(_mostly_distinct(sizes[:, 2:], rounding), indices[:, 2:], -xp.inf)
    return (
        output,
        terms,
        half_output,
        1 / (weights**2).sum(-1),
        indices[:, 0],
        xp.maximum(indices[:, 1], of_terms.max(-1)),
    )


def _mostly_distinct(sizes: Values, rounding: Values) -> Values:
    """Whether more than half of the positive sizes along the last axis differ from all others."""
    xp = library(sizes)
    ordered = xp.sort(sizes, axis=-1)
    differs = ordered[..., 1:] > ordered[..., :-1] * (1 + rounding[:, None, None])
    return 2 * differs.sum(-1) > (sizes > 0).sum(-1)


def _largest_norm(rows: Values) -> Values:
    return library(rows).linalg.norm(rows, axis=-1).max()


def _softmax(logits: Values) -> Values:
    return (jax.nn if library(logits) is jnp else scipy.special).softmax(logits, axis=-1)


def _radius(
    heads: tuple[Head, ...], differences: Values, values: list[Values], level: float
) -> Values:
    """Root of the chi-square quantile, with as many degrees of freedom as the values have."""
    xp = library(heads, differences)
    if xp is jnp:
        heads, differences, values = jax.lax.stop_gradient((heads, differences, values))
    # a coordinate that differs between tokens by rounding alone does not count
    size = 16 * _EPSILON * _largest_norm(differences)
    rounding = [size * xp.linalg.norm(one.V, axis=-1) for one in heads]
    values = [
        xp.where(abs(own).max(0) > least, own, 0.0)
        for own, least in zip(values, rounding, strict=True)
    ]
    squares = sum(own.T @ own for own in values)
    scales = _deviations(squares)
    rank = (xp.linalg.eigvalsh(squares / (scales[:, None] * scales)) > _SINGULAR).sum()
    quantiles = scipy.special.chdtri(
        np.arange(1, heads[0].out_dim + 1), 1 - level
    )  # of chi squared
    return xp.asarray(np.sqrt([0.0, *quantiles]))[rank]
