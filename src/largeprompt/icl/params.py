"""Parameters of one attention head with a scalar prediction, in three forms: general, factorised, block."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .._typing import ArrayInput
from ..attention import Head


class HeadParams(eqx.Module):
    """The general form: scores <x, U z>, prediction <v, sum_i p_i x_i>, on tokens of dimension D = d + 1.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> lp.HeadParams(jnp.eye(3), jnp.ones(3)).head.out_dim
    1
    """

    U: Float[Array, "D D"]
    v: Float[Array, " D"]

    def __init__(self, U: ArrayInput, v: ArrayInput):
        U, v = _checks.same_dtype(_checks.finite("U", U), _checks.finite("v", v))
        if U.ndim != 2 or U.shape[0] != U.shape[1]:
            raise ValueError(
                _checks.message("U must be a square matrix", f"shape {U.shape}", "pass (D, D)")
            )
        self.U, self.v = U, _checks.shaped("v", v, (U.shape[0],))

    @property
    def head(self) -> Head:
        """The head with read-out v."""
        return Head(U=self.U, V=self.v[None])

    def matrices(self) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
        """(U, v)."""
        return self.U, self.v

    def general(self) -> "HeadParams":
        """Itself."""
        return self


class BlockParams(eqx.Module):
    """The block form U = [[A, 0], [0, 0]], v = (0, b) of linear regression: preserved by its gradient flow at every L.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> lp.BlockParams(jnp.eye(2), 1.0).general().U.shape
    (3, 3)
    """

    A: Float[Array, "d d"]
    b: Float[Array, ""]

    def __init__(self, A: ArrayInput, b: ArrayInput):
        A, b = _checks.same_dtype(_checks.finite("A", A), _checks.finite("b", b))
        if A.ndim != 2 or A.shape[0] != A.shape[1] or not A.shape[0]:
            raise ValueError(
                _checks.message("A must be a square matrix", f"shape {A.shape}", "pass (d, d)")
            )
        self.A, self.b = A, _checks.shaped("b", b, ())

    def matrices(self) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
        """U = [[A, 0], [0, 0]] and v = (0, b)."""
        d = self.A.shape[0]
        return jnp.pad(self.A, (0, 1)), jnp.pad(self.b[None], (d, 0))

    def general(self) -> HeadParams:
        """The same head in the general form."""
        return HeadParams(*self.matrices())

    @property
    def head(self) -> Head:
        """The head with read-out (0, b)."""
        return self.general().head


class FactoredParams(eqx.Module):
    """The factorised form: scores scale <K x, Q z>, prediction O V sum_i p_i x_i, as transformers are trained.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> eye = jnp.eye(2)
    >>> lp.FactoredParams(eye, eye, eye, jnp.ones((1, 2)), scale=0.5).general().U[0, 0].item()
    0.5
    """

    K: Float[Array, "k D"]
    Q: Float[Array, "k D"]
    V: Float[Array, "m D"]
    O: Float[Array, "1 m"]
    scale: float = eqx.field(static=True)

    def __init__(
        self, K: ArrayInput, Q: ArrayInput, V: ArrayInput, O: ArrayInput, scale: float = 1.0
    ):
        K, Q, V, O = _checks.same_dtype(
            *(_checks.finite(n, a) for n, a in (("K", K), ("Q", Q), ("V", V), ("O", O)))
        )
        self.K = _checks.shaped("K", K, ("k", "D"))
        self.Q = _checks.shaped("Q", Q, self.K.shape)
        self.V = _checks.shaped("V", V, ("m", self.K.shape[1]))
        self.O = _checks.shaped("O", O, (1, self.V.shape[0]))
        self.scale = _checks.number("scale", scale, "pass for example 1 / sqrt(D)")

    def matrices(self) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
        """U = scale K'Q and v = V'O'."""
        return (
            self.scale * jnp.matmul(self.K.T, self.Q, precision="highest"),
            jnp.matmul(self.O, self.V, precision="highest")[0],
        )

    def general(self) -> HeadParams:
        """The same head in the general form."""
        return HeadParams(*self.matrices())

    @property
    def head(self) -> Head:
        """The head with U = scale K'Q and read-out O V."""
        return self.general().head


Params = HeadParams | BlockParams | FactoredParams


def to_factored(params: Params) -> FactoredParams:
    """A factorised head with the same predictions: K = I, Q = U, V = I, O = v'."""
    if isinstance(params, FactoredParams):
        return params
    general = params.general()
    eye = jnp.eye(len(general.v), dtype=general.v.dtype)
    return FactoredParams(eye, general.U, eye, general.v[None])


def to_block(params: Params, tolerance: float = 1e-12) -> BlockParams:
    """The block form of a head that has it: all other entries of U and v vanish to the tolerance, relative to the largest."""
    if isinstance(params, BlockParams):
        return params
    general = params.general()
    d = len(general.v) - 1
    block = BlockParams(general.U[:d, :d], general.v[d])
    rest = jnp.max(jnp.abs(general.U.at[:d, :d].set(0))), jnp.max(jnp.abs(general.v[:d]))
    largest = jnp.maximum(jnp.max(jnp.abs(general.U)), jnp.max(jnp.abs(general.v)))
    if float(max(rest)) > tolerance * float(largest):
        raise ValueError(
            _checks.message(
                "a head in block form has U = [[A, 0], [0, 0]] and v = (0, b)",
                f"other entries up to {float(max(rest)):.3g}",
                "keep the general form, or raise the tolerance to cut them off",
            )
        )
    return block
