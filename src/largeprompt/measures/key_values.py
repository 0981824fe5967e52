"""Prompts of keys and values in two arrays, as transformers store them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from .. import _checks
from .._arrays import in_dtype, library, log_softmax
from .._typing import Array, ArrayInput, KeyInput, Vector
from .abstract import AbstractMeasure
from .empirical import Empirical


class KeyValues(AbstractMeasure):
    """The prompt of tokens $x_i = (k_i, v_i)$ with weights e^{log_weights}; nothing is copied.

    With `Head.key_value(d_k, d_v)` attention is that of a transformer's head: scores $<k_i, z>$,
    output the softmax average of the v_i. It is computed from the two arrays in place. Everything
    else goes through `as_prompt()`, which copies them into one.

    **Arguments:** `keys` of shape (n, d_k), `values` of shape (n, d_v), and `log_weights` of shape
    (n,), real or -inf, normalised by the constructor; weights are uniform if left out.

    >>> import numpy as np
    >>> import largeprompt as lp
    >>> prompt = lp.KeyValues(np.array([[0.0], [1.0]]), np.array([[2.0], [6.0]]))
    >>> print(lp.attend(lp.Head.key_value(1, 1), prompt, np.zeros(1)))
    [4.]
    """

    keys: Float[Array, "n k"]
    values: Float[Array, "n v"]
    log_weights: Float[Array, " n"] | None

    def __init__(
        self, keys: ArrayInput, values: ArrayInput, log_weights: ArrayInput | None = None
    ) -> None:
        keys = _checks.finite("keys", _checks.tokens("keys", keys))
        keys = _checks.shaped("keys", keys, ("n", "k"))
        values = _checks.finite("values", _checks.tokens("values", values))
        values = _checks.shaped("values", values, (len(keys), "v"))
        self.keys, self.values = _checks.same_dtype(keys, values)
        self.log_weights = None
        if log_weights is not None:
            self.log_weights = in_dtype(normalised_logs(log_weights, len(keys)), self.keys.dtype)

    @property
    def key_dim(self) -> int:
        """Dimension d_k of the keys."""
        return self.keys.shape[-1]

    @property
    def dim(self) -> int:
        return self.key_dim + self.values.shape[-1]

    @property
    def n(self) -> int:
        """The number of tokens, L."""
        return self.keys.shape[-2]

    def as_key_values(self) -> "KeyValues":
        return self

    def as_prompt(self) -> Empirical:
        """The same tokens in one array (a copy)."""
        points = library(self.keys, self.values).concatenate([self.keys, self.values], axis=-1)
        return Empirical(points, check=False).with_log_weights(self.log_weights)

    def atoms(self) -> Empirical:
        return self.as_prompt()

    def log_mgf(self, u: Vector) -> Float[Array, ""]:
        return self.as_prompt().log_mgf(u)

    def tilted_mean(self, u: Vector) -> Float[Array, " d"]:
        return self.as_prompt().tilted_mean(u)

    def tilted_cov(self, u: Vector) -> Float[Array, "d d"]:
        return self.as_prompt().tilted_cov(u)

    def tilt(self, u: Vector) -> "KeyValues":
        return KeyValues(self.keys, self.values, self.as_prompt().tilt(u).log_weights)

    def sample(self, key: KeyInput, n: int) -> Empirical:
        return self.as_prompt().sample(key, n)

    def subgaussian_proxy(self) -> Float[Array, ""]:
        return self.as_prompt().subgaussian_proxy()

    @property
    def is_bounded(self) -> bool:
        return True

    @property
    def uniforms_needed(self) -> int:
        return 1

    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        return self.as_prompt().from_uniforms(uniforms)

    def _affine(self, A: Float[Array, "j d"], b: Float[Array, " j"]) -> Empirical:
        return self.as_prompt()._affine(A, b)


def normalised_logs(value: ArrayInput, size: int) -> Float[Array, " n"]:
    """Log weights, real or -inf but not all -inf, shifted so that the weights sum to one."""
    logs = _checks.shaped("log_weights", _checks.float_array("log_weights", value), (size,))
    xp = jnp if isinstance(logs, Tracer) else np
    seen = jax.lax.stop_gradient(logs) if xp is jnp else np.asarray(logs)
    logs = _checks.require(
        logs,
        ~(xp.all(seen < xp.inf) & xp.any(seen > -xp.inf)),
        rule="log_weights must be real or -inf, and not all -inf",
        received="NaN, +inf, or no weight at all",
        fix="give at least one token a finite log weight",
    )
    return log_softmax(logs)
