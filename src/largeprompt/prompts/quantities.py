"""What is averaged over prompts: the output, its second moment, squared errors, or any function of
it.

T_L is the output of a random prompt of L tokens at a query z, T the output of the infinite prompt.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._lengths import length_array
from .._typing import Array, ArrayInput
from ..attention import AbstractHead, attend, attend_jacobians, attend_linear
from ..measures import AbstractMeasure, Empirical, Gaussian
from . import gaussian_averages, gaussian_tokens, many_heads, mixture_tokens
from .error_table import error_table
from .gaussian_tokens import Bounded


class MeanOutput(NamedTuple):
    """E T_L as T and E T_L - T, of shape (..., m)."""

    limit: np.ndarray
    shift: np.ndarray

    @property
    def output(self) -> np.ndarray:
        return self.limit + self.shift


class AbstractQuantity(eqx.Module):
    """A quantity of one prompt at one query, which `expect` averages over prompts."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Formula of the average, for figures and datasets."""

    @property
    def label(self) -> str:
        """Short name in the attributes of datasets."""
        return type(self).__name__

    @abstractmethod
    def limit(self, head: AbstractHead, mu: AbstractMeasure, z: Float[Array, "*batch d"]) -> Array:
        """Value for the infinite prompt."""

    def of_prompt(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        prompt: AbstractMeasure,
        z: Float[Array, " d"],
    ) -> Array:
        """Value for one prompt, whose tokens were drawn from mu, at one query."""
        return self.of_output(head, mu, attend(self.reader(head), prompt, z), z)

    def of_output(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        output: Float[Array, " m"],
        z: Float[Array, " d"],
    ) -> Array:
        """Value from the output of `reader(head)` on one prompt; defined where `from_output`."""
        raise NotImplementedError

    @property
    def refers_to_limit(self) -> bool:
        """Whether the value compares a prompt with the infinite one, whose output must exist."""
        return True

    def summary(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What `MonteCarlo` makes of the values of n sampled prompts, of shape (n, ...), and its
        standard error: their mean, unless a quantity is another functional of their law.
        """
        return mean_and_error(values)

    # Exact averages. A quantity without a formula keeps these defaults and is sampled.

    def gaussian(
        self, head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput
    ) -> Bounded | None:
        """Average at given queries for Gaussian tokens, or None where no formula is known."""
        return None

    def mixture(
        self, head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
    ) -> Bounded | None:
        """Average at given queries for tokens of a mixture of Gaussians and atoms, or None."""
        return None

    def discrete(
        self, head: AbstractHead, mu: Empirical, z: ArrayInput, L: ArrayInput
    ) -> Bounded | None:
        """Average at given queries for tokens drawn from atoms, or None."""
        return self.mixture(head, mu, z, L)

    def decomposition(
        self, head: AbstractHead, mu: Gaussian
    ) -> gaussian_averages.Decomposition | None:
        """Average for Gaussian tokens as features of the query, or None."""
        return None

    def along_length(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        laws: Sequence[AbstractMeasure],
        z: np.ndarray,
        longest: float,
    ) -> Callable[[np.ndarray], Bounded]:
        """Averages at queries z of shape (q, d) as a function of lengths up to `longest`, with
        values of shape (q, lengths, ...).

        `laws` holds mixtures of Gaussians and atoms for the tokens of law mu: one law, or one for
        each query.
        """

        def average(
            head: AbstractHead, law: AbstractMeasure, z: ArrayInput, L: ArrayInput
        ) -> Bounded:
            atoms = law.atoms()
            found = (
                self.mixture(head, law, z, L) if atoms is None else self.discrete(head, atoms, z, L)
            )
            if found is None:
                raise sampled_only(self)
            return found

        return lambda lengths: at_each_query(average, head, laws, z, lengths)

    # What is known of the average for any law of tokens: see `represented`.

    def of_one_token(
        self, head: AbstractHead, mu: AbstractMeasure, z: np.ndarray
    ) -> np.ndarray | None:
        """Average over prompts of one token at queries of shape (q, d), or None."""
        return None

    def with_mean(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        z: np.ndarray,
        value: np.ndarray,
        before: MeanOutput,
        after: MeanOutput,
    ) -> np.ndarray:
        """`value` of shape (q, lengths, ...) after the outputs of `reader(head)` have moved by a
        constant, from one mean to another.
        """
        return value

    @property
    def additive(self) -> bool:
        """Whether the average for several heads is the sum of the averages for each."""
        return False

    @property
    def tail_order(self) -> int:
        """Power of |x - T|^2 in the value, which decides how much a missing tail matters."""
        return 1

    @property
    def from_output(self) -> bool:
        """Whether the value depends on the prompt through the output of `reader(head)` alone."""
        return False

    def reader(self, head: AbstractHead) -> AbstractHead:
        """AbstractHead whose output `of_output` takes."""
        return head


class _AbstractOfOutput(AbstractQuantity):
    """A quantity that depends on a prompt through the output alone."""

    @property
    def from_output(self) -> bool:
        return True


class Output(_AbstractOfOutput):
    """The output T_L itself; its average is the mean output, a vector of shape (m,)."""

    @property
    def name(self) -> str:
        return "E T_L"

    @property
    def additive(self) -> bool:
        return True

    @property
    def refers_to_limit(self) -> bool:
        return False

    def limit(self, head: AbstractHead, mu: AbstractMeasure, z: Array) -> Array:
        return attend(head, mu, z)

    def of_output(self, head: AbstractHead, mu: AbstractMeasure, output: Array, z: Array) -> Array:
        return output

    def gaussian(self, head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
        return gaussian_tokens.mean(head, mu, z, L)

    def mixture(
        self, head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
    ) -> Bounded:
        return mixture_tokens.mean(head, mu, z, L)

    def decomposition(self, head: AbstractHead, mu: Gaussian) -> gaussian_averages.Decomposition:
        return gaussian_averages.output(head, mu)

    def of_one_token(self, head: AbstractHead, mu: AbstractMeasure, z: np.ndarray) -> np.ndarray:
        mean = np.asarray(head.V) @ np.asarray(mu.mean())
        return np.broadcast_to(mean, (len(z), head.out_dim))

    def with_mean(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        z: np.ndarray,
        value: np.ndarray,
        before: MeanOutput,
        after: MeanOutput,
    ) -> np.ndarray:
        return value + (after.output - before.output)


class SecondMoment(_AbstractOfOutput):
    """$T_L T_L'$, a matrix of shape (m, m)."""

    @property
    def name(self) -> str:
        return "E T_L T_L'"

    @property
    def refers_to_limit(self) -> bool:
        return False

    def limit(self, head: AbstractHead, mu: AbstractMeasure, z: Array) -> Array:
        output = attend(head, mu, z)
        return output[..., :, None] * output[..., None, :]

    def of_output(self, head: AbstractHead, mu: AbstractMeasure, output: Array, z: Array) -> Array:
        return jnp.outer(output, output)

    def gaussian(self, head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
        if len(head.heads) > 1:
            return many_heads.second_moment(head, mu, z, L)
        return gaussian_tokens.second_moment(head, mu, z, L)

    def mixture(
        self, head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
    ) -> Bounded:
        return mixture_tokens.second_moment(head, mu, z, L)

    def decomposition(self, head: AbstractHead, mu: Gaussian) -> gaussian_averages.Decomposition:
        return gaussian_averages.second_moment(head, mu)

    def of_one_token(self, head: AbstractHead, mu: AbstractMeasure, z: np.ndarray) -> np.ndarray:
        V, mean, cov = (np.asarray(a) for a in (head.V, mu.mean(), mu.cov()))
        moment = V @ (cov + np.outer(mean, mean)) @ V.T
        return np.broadcast_to(moment, (len(z), *moment.shape))

    def with_mean(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        z: np.ndarray,
        value: np.ndarray,
        before: MeanOutput,
        after: MeanOutput,
    ) -> np.ndarray:
        old, new = (
            mean.output[..., :, None] * mean.output[..., None, :] for mean in (before, after)
        )
        return value + (new - old)


class OutputError(_AbstractOfOutput):
    """Squared distance $|T_L - T|^2$ of the output to that of the infinite prompt.

    With `to="linear"` the distance to linear attention on the infinite prompt, $|T_L - T_lin|^2$;
    for centred Gaussian tokens the two agree (Lemma 2.1 of Boursier & Boyer).
    """

    to: Literal["limit", "linear"] = eqx.field(static=True, default="limit")

    def __check_init__(self) -> None:
        _checks.choice("to", self.to, ("limit", "linear"))

    @property
    def name(self) -> str:
        return "E |T_L - T|^2" if self.to == "limit" else "E |T_L - T_lin|^2"

    @property
    def label(self) -> str:
        return "output" if self.to == "limit" else "output to linear"

    def reference(self, head: AbstractHead, mu: AbstractMeasure, z: Array) -> Array:
        """The output that T_L is compared with."""
        return attend(head, mu, z) if self.to == "limit" else attend_linear(head, mu, z)

    def limit(self, head: AbstractHead, mu: AbstractMeasure, z: Array) -> Array:
        if self.to == "limit":
            return jnp.zeros(z.shape[:-1], z.dtype)
        return jnp.sum((attend(head, mu, z) - self.reference(head, mu, z)) ** 2, axis=-1)

    def of_output(self, head: AbstractHead, mu: AbstractMeasure, output: Array, z: Array) -> Array:
        return jnp.sum((output - self.reference(head, mu, z)) ** 2)

    def gaussian(self, head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
        one = len(head.heads) == 1
        own = (gaussian_tokens if one else many_heads).output_error(head, mu, z, L)
        if self.to == "limit":
            return own
        shift = many_heads.mean_shift(head, mu, z, L)
        return _to_linear(own, shift, _gap(head, mu, z, L))

    def mixture(
        self, head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
    ) -> Bounded:
        own = mixture_tokens.output_error(head, mu, z, L)
        if self.to == "limit":
            return own
        shift = mixture_tokens.mean_shift(head, mu, z, L)
        return _to_linear(own, shift, _gap(head, mu, z, L))

    def decomposition(self, head: AbstractHead, mu: Gaussian) -> gaussian_averages.Decomposition:
        if self.to == "limit":
            return gaussian_averages.output_error(head, mu)
        return gaussian_averages.linear_error(head, mu)

    def of_one_token(self, head: AbstractHead, mu: AbstractMeasure, z: np.ndarray) -> np.ndarray:
        return _squared_distance_of_tokens(
            head.V, mu, np.asarray(self.reference(head, mu, jnp.asarray(z)))
        )

    def with_mean(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        z: np.ndarray,
        value: np.ndarray,
        before: MeanOutput,
        after: MeanOutput,
    ) -> np.ndarray:
        change = (after.shift**2).sum(-1) - (before.shift**2).sum(-1)
        if self.to == "linear":
            gap = after.limit - np.asarray(self.reference(head, mu, jnp.asarray(z)))[:, None]
            change += 2 * ((after.shift - before.shift) * gap).sum(-1)
        return value + change

    def along_length(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        laws: Sequence[AbstractMeasure],
        z: np.ndarray,
        longest: float,
    ) -> Callable[[np.ndarray], Bounded]:
        own = error_table(head, laws, z, "output", longest=longest).bounded
        if self.to == "limit":
            return own
        gap = np.asarray(_gap(head, mu, z, 1.0))[:, None]

        def to_linear(lengths: np.ndarray) -> Bounded:
            shift = at_each_query(mixture_tokens.mean_shift, head, laws, z, lengths)
            return _to_linear(own(lengths), shift, gap)

        return to_linear


class GradientError(AbstractQuantity):
    """Squared Frobenius distance of dT_L/dU, or dT_L/dV, to that of the infinite prompt.

    **Arguments:** `matrix` is "U" or "V".
    """

    matrix: Literal["U", "V"] = eqx.field(static=True)

    def __check_init__(self) -> None:
        _checks.choice("matrix", self.matrix, ("U", "V"))

    @property
    def name(self) -> str:
        return f"E |dT_L/d{self.matrix} - dT/d{self.matrix}|^2"

    @property
    def label(self) -> str:
        return f"gradient_{self.matrix}"

    @property
    def additive(self) -> bool:
        return True

    @property
    def from_output(self) -> bool:
        return self.matrix == "V"

    def reader(self, head: AbstractHead) -> AbstractHead:
        """For V the head that reads the whole token: dT/dV is its output, in each row of V."""
        return head if self.matrix == "U" else head.reading_tokens()

    def limit(self, head: AbstractHead, mu: AbstractMeasure, z: Array) -> Array:
        return jnp.zeros(z.shape[:-1], z.dtype)

    def of_output(self, head: AbstractHead, mu: AbstractMeasure, output: Array, z: Array) -> Array:
        return head.out_dim * jnp.sum((output - attend(self.reader(head), mu, z)) ** 2)

    def of_prompt(
        self, head: AbstractHead, mu: AbstractMeasure, prompt: AbstractMeasure, z: Array
    ) -> Array:
        if self.matrix == "V":
            return super().of_prompt(head, mu, prompt, z)
        found, limit = (attend_jacobians(head, law, z).U for law in (prompt, mu))
        return jnp.sum((found - limit) ** 2)

    def gaussian(self, head: AbstractHead, mu: Gaussian, z: ArrayInput, L: ArrayInput) -> Bounded:
        if self.matrix == "U":
            return gaussian_tokens.gradient_error_U(head, mu, z, L)
        return gaussian_tokens.gradient_error_V(head, mu, z, L)

    def mixture(
        self, head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput
    ) -> Bounded:
        if self.matrix == "U":
            return mixture_tokens.gradient_error_U(head, mu, z, L)
        return mixture_tokens.gradient_error_V(head, mu, z, L)

    def decomposition(self, head: AbstractHead, mu: Gaussian) -> gaussian_averages.Decomposition:
        if self.matrix == "U":
            return gaussian_averages.gradient_error_U(head, mu)
        return gaussian_averages.gradient_error_V(head, mu)

    def along_length(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        laws: Sequence[AbstractMeasure],
        z: np.ndarray,
        longest: float,
    ) -> Callable[[np.ndarray], Bounded]:
        of = f"gradient_{self.matrix}"
        return error_table(head, laws, z, of, longest=longest).bounded

    def of_one_token(self, head: AbstractHead, mu: AbstractMeasure, z: np.ndarray) -> np.ndarray:
        if self.matrix == "V":
            limit = np.asarray(attend(self.reader(head), mu, z))
            return head.out_dim * _squared_distance_of_tokens(np.eye(head.dim), mu, limit)
        limits = jax.vmap(mu.tilted_cov)(z @ np.asarray(head.U).T)  # the covariance of one is 0
        return (z**2).sum(-1) * ((np.asarray(head.V) @ np.asarray(limits)) ** 2).sum((-2, -1))

    def with_mean(
        self,
        head: AbstractHead,
        mu: AbstractMeasure,
        z: np.ndarray,
        value: np.ndarray,
        before: MeanOutput,
        after: MeanOutput,
    ) -> np.ndarray:
        if self.matrix == "U":
            return value
        change = (after.shift**2).sum(-1) - (before.shift**2).sum(-1)
        return value + head.out_dim * change

    @property
    def tail_order(self) -> int:
        return 2 if self.matrix == "U" else 1


class FunctionOfOutput(_AbstractOfOutput):
    """A user's own function of the output, of shape (m,) -> any shape."""

    function: Callable[[Array], Any]

    @property
    def name(self) -> str:
        return f"E {getattr(self.function, '__name__', 'f')}(T_L)"

    @property
    def refers_to_limit(self) -> bool:
        return False

    def limit(self, head: AbstractHead, mu: AbstractMeasure, z: Array) -> Array:
        outputs = attend(head, mu, z)
        flat = jax.vmap(lambda output: self.of_output(head, mu, output, z))(
            outputs.reshape(-1, head.out_dim)
        )
        return flat.reshape((*z.shape[:-1], *flat.shape[1:]))

    def of_output(self, head: AbstractHead, mu: AbstractMeasure, output: Array, z: Array) -> Array:
        return jnp.asarray(self.function(output))


def at_each_query(
    average: Callable[[AbstractHead, AbstractMeasure, ArrayInput, ArrayInput], Bounded],
    head: AbstractHead,
    laws: Sequence[AbstractMeasure],
    z: np.ndarray,
    lengths: np.ndarray,
) -> Bounded:
    """An average at queries z of shape (q, d), for one law of tokens or one for each query."""
    if len(laws) == 1:
        found = average(head, laws[0], z[:, None, :], lengths[None, :])
        return Bounded(*map(np.asarray, found))
    each = [
        average(head, law, z[i : i + 1, None, :], lengths[None, :]) for i, law in enumerate(laws)
    ]
    return Bounded(*(np.concatenate(part) for part in zip(*each, strict=True)))


def _gap(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Array:
    """T - T_lin, with axes for the shape of L."""
    z = jnp.asarray(z)
    gap = attend(head, mu, z) - attend_linear(head, mu, z)
    return jnp.broadcast_to(
        gap, (*jnp.broadcast_shapes(z.shape[:-1], np.shape(length_array(L))), head.out_dim)
    )


def _to_linear(own: Bounded, shift: Bounded, gap: Any) -> Bounded:
    """E |T_L - T_lin|^2 = E |T_L - T|^2 + 2 <E T_L - T, gap> + |gap|^2."""
    square = (gap**2).sum(-1)
    value = own.value + 2 * (shift.value * gap).sum(-1) + square
    error = own.error + 2 * (shift.error * abs(gap)).sum(-1) + 4e-16 * square
    return Bounded(value, error)


def _squared_distance_of_tokens(
    V: ArrayInput, mu: AbstractMeasure, points: np.ndarray
) -> np.ndarray:
    """E |V x - y|^2 for the tokens x and every row y."""
    V, mean, cov = (np.asarray(a, np.float64) for a in (V, mu.mean(), mu.cov()))
    return np.trace(V @ cov @ V.T) + ((V @ mean - points) ** 2).sum(-1)


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over replicates, and its standard error."""
    n = len(values)
    if n == 1:
        return np.asarray(values[0]), np.full(values.shape[1:], np.inf)
    return np.asarray(values.mean(axis=0)), np.asarray(values.std(axis=0, ddof=1) / math.sqrt(n))


def sampled_only(quantity: AbstractQuantity) -> ValueError:
    """Error for a quantity without a formula."""
    return _checks.error(
        "only MonteCarlo averages this quantity at finite L",
        quantity.name,
        "pass method=lp.MonteCarlo(key)",
    )


def _closest(quantity: Any) -> str:
    """The quantity a mistaken argument probably stands for."""
    said = str(getattr(quantity, "__name__", quantity)).lower()
    for hint, meant in (
        (
            "grad",
            "lp.GradientError('V')" if said.endswith(("v", "v_error")) else "lp.GradientError('U')",
        ),
        ("second", "lp.SecondMoment()"),
        ("mean", "lp.Output()"),
        ("quantile", "lp.ErrorQuantiles([0.5, 0.95])"),
    ):
        if hint in said:
            return meant
    return "lp.OutputError()"


def as_quantity(quantity: Any) -> AbstractQuantity:
    """Validate a quantity; wrap a function of the output."""
    if isinstance(quantity, AbstractQuantity):
        return quantity
    if callable(quantity) and not isinstance(quantity, type):
        return FunctionOfOutput(quantity)
    raise _checks.error(
        "quantity must be Output(), SecondMoment(), OutputError(), GradientError('U' or 'V'), "
        "ErrorQuantiles(levels) or a function of the output",
        f"the class {quantity.__name__}" if isinstance(quantity, type) else repr(quantity),
        f"did you mean {_closest(quantity)}?",
    )
