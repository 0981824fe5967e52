"""In-context learning tasks: a law of w, tokens given w, a query with its target, and a loss."""

import abc
import math
from collections.abc import Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Key

from .. import _checks
from .._float64 import is_traced
from .._lengths import length_array, length_vector, one_length, token_count
from .._static_fields import make_static
from .._typing import Array, ArrayInput
from ..measures import AbstractMeasure
from ..prompts.methods import AbstractMethod, Estimate, Exact, MonteCarlo
from .params import AbstractParams
from .risks import (
    AbstractRisk,
    Attention,
    BatchLoss,
    FreshRisk,
    LossOfKey,
    RiskFunction,
    checked_attention,
    unsupported,
)


class AbstractTask(eqx.Module):
    """An in-context learning task.

    **To write your own** define `dim` (of a token), `sample_w(key)`, `tokens(w)` -> a measure, and
    `sample_query(key, w)` -> (query token, target). Risk, flows and descent then work by sampling.
    Fields annotated int, bool or str are settings; arrays and floats are data. A task with a risk
    in closed form overrides `exact_risk` too. See docs/learning.md for an example.
    """

    dim: eqx.AbstractVar[int]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        make_static(cls)

    @abc.abstractmethod
    def sample_w(self, key: Key[Array, ""]) -> Any:
        """Draw w, which the tokens of one prompt share."""

    @abc.abstractmethod
    def tokens(self, w: Any) -> AbstractMeasure:
        """The law of a token given w."""

    @abc.abstractmethod
    def sample_query(
        self, key: Key[Array, ""], w: Any
    ) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """Draw a query token and its target."""

    def loss(self, prediction: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
        """Half the squared error: 1-smooth, as Theorem 4.3 assumes."""
        return 0.5 * (prediction - target) ** 2

    def draw(self, key: Key[Array, ""], length: float) -> tuple[AbstractMeasure, Array, Array]:
        """Draw a prompt of `length` tokens (at infinity their law), a query and its target."""
        for_w, for_prompt, for_query = jax.random.split(key, 3)
        w = self.sample_w(for_w)
        law = self.tokens(w)
        if math.isfinite(length):
            law = law.sample(for_prompt, token_count(length))
        return law, *self.sample_query(for_query, w)

    def risk(
        self,
        params: AbstractParams,
        L: ArrayInput,
        attention: Attention = "softmax",
        method: AbstractMethod | None = None,
    ) -> Estimate:
        """E loss over w, prompts of L tokens and queries, as `Estimate(value, error, method)`.

        **Arguments:** `method=None` means `lp.Exact()`, where the task knows its risk;
        `lp.MonteCarlo(key)` samples prompts. L = infinity attends to the law of the tokens itself;
        for an array of lengths value and error are arrays of its shape.
        """
        if is_traced(L) or (lengths := length_array(L)).ndim == 0:
            return self.risk_by(L, attention, params, method).of(params)
        each = length_vector(lengths.ravel())
        found = [self.risk_by(one, attention, params, method).of(params) for one in each]
        value, error = (
            np.reshape([np.asarray(one[i]) for one in found], lengths.shape) for i in (0, 1)
        )
        return Estimate(value, error, found[0].method)

    def objective(
        self,
        L: ArrayInput,
        attention: Attention = "softmax",
        *,
        like: AbstractParams,
        method: AbstractMethod | None = None,
    ) -> RiskFunction:
        """The training objective: a function of parameters of the form of `like`, to differentiate.

        By exact methods the risk; by sampling a mean over one fixed sample, which is lower than the
        risk at parameters fitted to it: `batch` prompts of `lp.MonteCarlo(key, batch=...)` (256 if
        None), or `points` values of w of `lp.QuasiMonteCarlo(key, points=...)` (64 if None).
        """
        return self.risk_by(L, attention, like, method).objective()

    def fresh_risk(
        self,
        L: ArrayInput,
        attention: Attention = "softmax",
        *,
        like: AbstractParams,
        method: AbstractMethod | None = None,
    ) -> FreshRisk | None:
        """The risk of heads on a leading axis over a sample that `objective` does not use.

        None where the objective is the risk. All heads see the same eight replicates of the size of
        the objective's sample; `error` is the standard error over replicates.
        """
        return self.risk_by(L, attention, like, method).fresh()

    def risk_by(
        self,
        L: ArrayInput,
        attention: Attention,
        like: AbstractParams,
        method: AbstractMethod | None,
    ) -> AbstractRisk:
        """The risk at length L of parameters of the form of `like`, by a method."""
        checked_attention(attention)
        self.check_params(like)
        length = one_length(L)
        if method is None or isinstance(method, Exact):
            exact = self.exact_risk(length, attention, like)
            if exact is None:
                raise unsupported(self, "no risk in closed form", method, "lp.MonteCarlo(key)")
            return exact
        if isinstance(method, MonteCarlo):
            from .prompt_losses import PromptRisk

            return PromptRisk(self, length, attention, method)
        raise unsupported(self, "no such method", method, "lp.MonteCarlo(key)")

    def exact_risk(
        self, length: float, attention: Attention, like: AbstractParams
    ) -> AbstractRisk | None:
        """The risk of parameters of this form where it is known exactly, otherwise None.

        For example `lp.icl.ExactRisk(function, relative_error)`.
        """
        return None

    def minimiser(self, L: ArrayInput, attention: Attention = "softmax", heads: int = 1) -> Any:
        """The best head and its risk, for tasks that know it."""
        raise self._lacks("best head (`minimiser`)", "descend with lp.gradient_flow or lp.descend")

    def exact_bayes_risk(self, length: float) -> Estimate | None:
        """The risk of the best predictor where it is known exactly, otherwise None."""
        return None

    def bayes_risk(self, L: ArrayInput, method: AbstractMethod | None = None) -> Estimate:
        """The risk of the best predictor, for tasks that know it."""
        raise self._lacks("Bayes risk (`bayes_risk`)", "override this method, or do without it")

    def _lacks(self, what: str, fix: str) -> ValueError:
        name = type(self).__name__
        return _checks.error(f"the task must know its {what}", f"{name}, which does not", fix)

    def loss_of_prompt(
        self, params: AbstractParams, length: float, attention: Attention, method: MonteCarlo
    ) -> LossOfKey:
        """The loss of one prompt, its query and its target, as a module called with a key."""
        from .prompt_losses import PromptLoss

        return PromptLoss(self, params, length, attention)

    def batch_loss(
        self,
        length: float,
        attention: Attention,
        method: AbstractMethod,
        batch: int,
        dtype: Any,
        longest: float | None = None,
    ) -> BatchLoss:
        """The mean loss of a fresh batch of prompts, a function of (key, params) to descend.

        A pytree. Losses with the same `batching_key` must stack: `longest` is the longest length
        that shares it. `dtype` is that of the parameters.
        """
        from .prompt_losses import BatchOfPrompts, check_tokens

        if not isinstance(method, MonteCarlo):
            raise unsupported(self, "only gradients of sampled prompts", method, "lp.MonteCarlo()")
        check_tokens(length, batch, "pass a shorter L or a smaller batch")
        return BatchOfPrompts(self, length, attention, batch)

    def batching_key(self, length: float, attention: Attention, method: AbstractMethod) -> Hashable:
        """Runs of descent with the same key are trained in one vmapped loop."""
        return (length, attention)

    def test_risk(
        self,
        key: Key[Array, ""],
        runs: Sequence[tuple[float, Attention]],
        like: AbstractParams,
    ) -> FreshRisk:
        """The risk of several runs, a function of their parameters on a leading axis.

        Each run has its length and attention. The test sample is fixed by `key`: the same for every
        call and every run. Called in 64-bit mode.
        """
        from .prompt_losses import risk_on_test_prompts

        return risk_on_test_prompts(self, key, runs)

    def check_params(self, params: AbstractParams) -> None:
        """Raise if these are no parameters, or act on tokens of another dimension."""
        if not isinstance(params, AbstractParams):
            raise _checks.error(
                "params must be parameters of a head, such as lp.BlockParams or lp.HeadParams",
                type(params).__name__,
                "for a head with a scalar output pass lp.HeadParams(head.U, head.V[0])",
            )
        if params.dim != self.dim:
            raise _checks.error(
                f"params must act on tokens of dimension {self.dim}",
                f"a head for dimension {params.dim}",
                f"pass BlockParams with A of shape ({self.dim - 1}, {self.dim - 1}), or "
                f"HeadParams with U of shape ({self.dim}, {self.dim})",
            )

    def is_stiff(self, length: float) -> bool:
        """Whether the gradient flow becomes stiff: an implicit solver then takes over."""
        return True
