"""Gradient estimators of linear regression: losses of a fresh batch with unbiased gradients.

Given w and the query x_q a token is C zeta, zeta standard normal in R^{d+1},
C = [[B, 0], [w'B, tau]] with B B' = Sig. So a head acts on standard normal vectors, with the score
direction a = C'u, u = U (x_q, 0), and the read-out c = C'v:

    prediction f = sum_i p_i <c, zeta_i>,   p = softmax(<a, zeta_i>),
    df/dc = sum_i p_i zeta_i,               df/da = sum_i p_i (<c, zeta_i> - f) zeta_i.

`WholePromptLoss` draws all tokens. `ScoreLoss` draws (f, df/da, df/dc) from their exact law at a
fraction of the cost (score_sampling.py). `ConditionalLoss` takes the expectation of the loss given
(w, x_q), which depends on <a, a>, <a, c> and <c, c> only. All three see the same w and x_q for the
same key.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Key, Shaped

from .._arrays import cast
from .._float64 import is_traced
from .._linalg import psd_sqrt
from .._message import error
from .._typing import Array
from ..prompts.normals import counters, normal_pairs, words
from ..prompts.sampling import SCORES_AND_VALUES, polar
from ..prompts.weighted_sums import weighted_sums
from .many_head_risk import softmax_excess
from .output_moments import OutputMoments
from .params import AbstractParams, BlockParams, blocks_of
from .risks import Attention
from .score_sampling import Response, frame, linear_response, softmax_response

if TYPE_CHECKING:
    from .linear_regression import LinearRegression

_NUMBERS = 2**22  # random numbers in memory at once
# streams of random numbers: 0 is that of new keys, prompt i has _PROMPTS + i
_QUERIES, _NOISE, _REST, _PROMPTS = 1, 2, 3, 4


class Queries(NamedTuple):
    """Draws of w, queries x_q, and the noise of their targets."""

    w: Float[Array, "n d"]
    x: Float[Array, "n d"]
    noise: Float[Array, " n"]


class Regression(eqx.Module):
    """Roots of the covariances of a linear regression, in the precision of the descent."""

    root: Float[Array, "d d"]
    query_root: Float[Array, "d d"]
    w_root: Float[Array, "d d"]
    noise: Float[Array, ""]

    def __init__(self, task: "LinearRegression", dtype: Any):
        with jax.enable_x64(True):
            covariances = (task.cov, task.query_cov, task.task_cov)
            roots = [psd_sqrt(cov) for cov in cast(covariances, jnp.float64)]
            self.root, self.query_root, self.w_root = cast(roots, dtype)
            xp = jnp if is_traced(task.noise_variance) else np  # NumPy compiles nothing
            self.noise = cast(xp.sqrt(xp.asarray(task.noise_variance, xp.float64)), dtype)

    def queries(self, key: Key[Array, ""], n: int) -> Queries:
        """Draw w and one query, n times; the same numbers in float32 and float64."""
        shape, size = (n, len(self.root)), n * len(self.root)
        # both streams at once: the generator is most of what a descent traces
        stream = np.repeat(np.array([_QUERIES, _NOISE], np.uint32), [size, n])
        counter = np.concatenate([np.arange(size), np.arange(n)]).astype(np.uint32)
        first, second = normal_pairs(words(key), *map(jnp.asarray, (stream, counter)))
        normals = first[:size].reshape(shape), second[:size].reshape(shape), first[size:]
        return self.queries_from(*(a.astype(self.root.dtype) for a in normals))

    def queries_from(
        self,
        for_w: Float[Array, "n d"],
        for_queries: Float[Array, "n d"],
        for_noise: Float[Array, " n"],
    ) -> Queries:
        """Draws of w, queries and noise made of standard normals."""
        w, x = _product(for_w, self.w_root), _product(for_queries, self.query_root)
        return Queries(w, x, self.noise * for_noise)

    def directions(
        self, params: AbstractParams, queries: Queries
    ) -> tuple[Float[Array, "n D"], Float[Array, "n D"]]:
        """(a, c) of every query: scores and values of a token are <a, zeta> and <c, zeta>."""
        U, v = (m.astype(self.root.dtype) for m in params.matrices())
        u = _product(queries.x, U[:, :-1].T)
        return self._whitened(u, queries), self._whitened(jnp.broadcast_to(v, u.shape), queries)

    def _whitened(self, u: Float[Array, "n D"], queries: Queries) -> Float[Array, "n D"]:
        inputs = _product(u[:, :-1] + queries.w * u[:, -1:], self.root)
        return jnp.concatenate([inputs, self.noise * u[:, -1:]], axis=1)


def conditional_loss(
    regression: Regression, moments: OutputMoments, params: AbstractParams, queries: Queries
) -> Float[Array, ""]:
    """The mean over (w, x_q) of E[1/2 (f - y)^2 | w, x_q]: exact at every length."""
    a, c = regression.directions(params, queries)
    target = jnp.sum(queries.w * queries.x, axis=1)
    s, mean, size = (jnp.sum(left * right, axis=1) for left, right in ((a, a), (a, c), (c, c)))
    errors = jax.vmap(moments.squared_error)(s, mean, size, target)
    return 0.5 * (jnp.mean(errors) + regression.noise**2)


class ConditionalLoss(eqx.Module):
    """`lp.Exact()`: the expectation given w and queries, at a cost that does not depend on L.

    Several heads must be in block form: the joint moments of their softmaxes come from tables.
    """

    regression: Regression
    moments: OutputMoments
    length: Float[Array, "*runs"]  # of softmax attention; infinity for linear attention
    batch: int = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""], params: AbstractParams) -> Float[Array, ""]:
        queries = self.regression.queries(key, self.batch)
        if len(params.parts()) == 1:
            return conditional_loss(self.regression, self.moments, params, queries)
        blocks = blocks_of(params)
        if blocks is None:
            raise error(
                "several heads have an exact loss given w and query in block form only",
                f"{len(params.parts())} heads of other forms",
                "pass method=lp.MonteCarlo(), or heads of lp.BlockParams",
            )
        return self._of_several(blocks, queries)

    def _of_several(self, blocks: tuple[BlockParams, ...], queries: Queries) -> Float[Array, ""]:
        """Linear attention sees sum_h b_h A_h; softmax adds what prompts do to pairs of heads."""
        cov = _product(self.regression.root, self.regression.root)
        b = jnp.stack([block.b for block in blocks])
        u = jnp.stack([_product(queries.x, block.A.T) for block in blocks])
        pull = _product(queries.w, cov)
        target = jnp.sum(queries.w * queries.x, axis=1)
        label = jnp.sum(queries.w * pull, axis=1) + self.regression.noise**2
        whole = jnp.tensordot(b, u, 1)
        mean, variance = (jnp.sum(whole * other, axis=1) for other in (pull, _product(whole, cov)))
        linear = (mean**2 + label * variance) * self.moments.inverse_length
        excess = softmax_excess(u, b, (self.length, cov, pull, target, label))
        errors = jnp.mean((mean - target) ** 2 + linear) + excess
        return 0.5 * (errors + self.regression.noise**2)


class AbstractPromptLoss(eqx.Module):
    """The loss of one prompt for each (w, query) of a batch."""

    regression: Regression
    batch: int = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""], params: AbstractParams) -> Float[Array, ""]:
        queries = self.regression.queries(key, self.batch)
        target = jnp.sum(queries.w * queries.x, axis=1) + queries.noise
        parts, errors = params.parts(), -target
        responses = self.responses if len(parts) == 1 else self.responses_on_same_tokens
        for part in parts:
            a, c = self.regression.directions(part, queries)
            fixed_a, fixed_c = jax.lax.stop_gradient((a, c))
            f, by_a, by_c = responses(key, fixed_a, fixed_c)
            # f with its derivatives as drawn: nothing is differentiated through the sampling
            moved = jnp.sum(by_a * (a - fixed_a) + by_c * (c - fixed_c), axis=1)
            errors = errors + f + moved
        return 0.5 * jnp.mean(errors**2)

    @abstractmethod
    def responses(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        """(f, df/da, df/dc) of one prompt for each row of a and c."""

    def responses_on_same_tokens(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        """The same from prompts that depend on the key alone, so that several heads share them."""
        return self.responses(key, a, c)


class WholePromptLoss(AbstractPromptLoss):
    """`lp.MonteCarlo(whole_tokens=True)`: all tokens are drawn."""

    L: int = eqx.field(static=True)
    attention: Attention = eqx.field(static=True)

    def responses(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(self.batch))
        one, at_once = _whole_prompt(self.attention), _NUMBERS // (self.L * a.shape[1])
        if len(a) <= at_once:
            return jax.vmap(lambda *row: one(*row, self.L))(keys, a, c)
        return jax.lax.map(lambda row: one(*row, self.L), (keys, a, c), batch_size=max(1, at_once))


class InfinitePromptLoss(AbstractPromptLoss):
    """The infinite prompt: f = <a, c> for both attentions (Lemma 2.1)."""

    def responses(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        return jnp.sum(a * c, axis=1), c, a


class ScoreLoss(AbstractPromptLoss):
    """`lp.MonteCarlo()`: predictions and their derivatives drawn from their exact law.

    The length is data, and `capacity` counters hold the longest of several: runs of different
    lengths stack.
    """

    L: Shaped[Array, "*runs"]  # a 32-bit integer where tokens are drawn
    attention: Attention = eqx.field(static=True)
    capacity: int = eqx.field(static=True)

    def responses(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        if self.attention == "linear":
            return linear_response(key, a, c, self.L)
        prompts = _PROMPTS + jnp.arange(self.batch, dtype=jnp.uint32)
        plane = jax.vmap(frame)(a, c)
        _, cosine, sine = value = polar(plane.alpha, plane.beta)
        scales = (plane.sigma, cosine, sine)
        sums = weighted_sums(
            words(key), prompts, scales, self.L[None], self.capacity, SCORES_AND_VALUES
        )
        rest = normal_pairs(words(key), _REST, counters(a.shape), a.dtype)
        return jax.vmap(softmax_response)(*sums, *rest, plane, value)

    def responses_on_same_tokens(
        self, key: Key[Array, ""], a: Float[Array, "n D"], c: Float[Array, "n D"]
    ) -> Response:
        """Whole prompts, of as many tokens as the capacity, those beyond the length without weight.

        Under linear attention several heads would be one.
        """
        if self.attention == "linear":
            raise error(
                "several heads of linear attention are trained on whole prompts",
                "method=lp.MonteCarlo()",
                "pass method=lp.MonteCarlo(whole_tokens=True), or one head",
            )
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(self.batch))
        present = jax.lax.iota(jnp.uint32, self.capacity) < self.L

        def one(row: tuple[Array, Array, Array]) -> Response:
            own, a, c = row
            tokens = jax.random.normal(own, (self.capacity, len(a)), a.dtype)
            p = jax.nn.softmax(jnp.where(present, _product(tokens, a), -jnp.inf))
            values = _product(tokens, c)
            f = p @ values
            return f, _product(p * (values - f), tokens), _product(p, tokens)

        at_once = max(1, _NUMBERS // (self.capacity * a.shape[1]))
        return jax.lax.map(one, (keys, a, c), batch_size=min(at_once, len(a)))


class LossOfOne(eqx.Module):
    """The loss of given parameters on a batch of one prompt, a function of the key."""

    loss: AbstractPromptLoss
    params: AbstractParams

    def __call__(self, key: Key[Array, ""]) -> Float[Array, ""]:
        return self.loss(key, self.params)


def _whole_prompt(attention: Attention) -> Callable:
    """(f, df/da, df/dc) of one prompt of L standard normal tokens."""

    def softmax(key: Key[Array, ""], a: Array, c: Array, L: int) -> tuple[Array, Array, Array]:
        tokens = jax.random.normal(key, (L, len(a)), a.dtype)
        p = jax.nn.softmax(_product(tokens, a))
        values = _product(tokens, c)
        f = p @ values
        return f, _product(p * (values - f), tokens), _product(p, tokens)

    def linear(key: Key[Array, ""], a: Array, c: Array, L: int) -> tuple[Array, Array, Array]:
        tokens = jax.random.normal(key, (L, len(a)), a.dtype)
        scores, values = _product(tokens, a) / L, _product(tokens, c)
        return scores @ values, _product(values, tokens) / L, _product(scores, tokens)

    return softmax if attention == "softmax" else linear


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")
