"""Parameters of heads with a scalar prediction: general, factorised, block, several, custom."""

import abc
from collections.abc import Sequence
from typing import Any, final

import equinox as eqx
from jaxtyping import Float

from .. import _checks
from .._arrays import library, matmul
from .._static_fields import make_static
from .._typing import Array, ArrayInput
from ..attention import AbstractHead, Head, MultiHead
from .coordinates import PRODUCT, Coordinates

_STRAIGHT = 1e-3  # smallest |b| that coordinates (bA, b) divide by


class AbstractParams(eqx.Module):
    """Trainable parameters of a head: scores $<x, U z>$, prediction $<v, sum_i p_i x_i>$.

    **To write your own** define `matrices() -> (U, v)` with `jax.numpy`, U of shape (D, D) and v of
    shape (D,). Risk, flows and descent differentiate through it. Fields that are arrays or floats
    are trained; those annotated int, bool or str are settings. The other methods are optional:
    they tell what else is known about the parametrisation.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        make_static(cls)

    @abc.abstractmethod
    def matrices(self) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
        """(U, v)."""

    def parts(self) -> "tuple[AbstractParams, ...]":
        """The parameters of single heads whose predictions are added: by default these alone."""
        return (self,)

    @property
    def dim(self) -> int:
        """The dimension D of a token."""
        return len(self.matrices()[1])

    @property
    def head(self) -> AbstractHead:
        """The head with read-out v."""
        U, v = self.matrices()
        return Head(U=U, V=v[None])

    def general(self) -> "HeadParams":
        """The same head in the general form."""
        return HeadParams(*self.matrices())

    def as_block(self) -> "BlockParams | None":
        """The same head as `BlockParams` if this form always has one, otherwise None.

        The risk of linear regression is then in closed form for softmax attention too.
        """
        return None

    def rescaled(self) -> "AbstractParams | None":
        """The change of parameters along (U, v) -> (U/c, cv), None if not known.

        That leaves predictions from an infinite prompt of Gaussian tokens unchanged: a flow that
        moves along it is in the valley of the minimisers.
        """
        return None

    def straight_coordinates(self) -> Coordinates | None:
        """Coordinates near these parameters in which the valley is straight, None if not known."""
        return None

    def to_factored(self) -> "FactoredParams":
        """A factorised head with the same predictions: K = I, Q = U, V = I, O = v'."""
        U, v = self.matrices()
        eye = library(v).eye(len(v), dtype=v.dtype)
        return FactoredParams(eye, U, eye, v[None])

    def to_block(self, tolerance: float = 1e-12) -> "BlockParams":
        """The block form of a head that has it.

        All other entries of U and v must vanish to the tolerance, relative to the largest entry.
        """
        U, v = self.matrices()
        d = len(v) - 1
        others = [U[d], U[:d, d], v[:d]]
        rest, largest = (max(float(abs(a).max()) for a in part) for part in (others, [U, v]))
        if rest > tolerance * largest:
            raise _checks.error(
                "a head in block form has U = [[A, 0], [0, 0]] and v = (0, b)",
                f"other entries up to {rest:.3g}",
                "keep the general form, or raise the tolerance to drop them",
            )
        return BlockParams(U[:d, :d], v[d])


@final
class HeadParams(AbstractParams):
    """The general form: U and v themselves, on tokens of dimension D = d + 1.

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
            raise _checks.error("U must be a square matrix", f"shape {U.shape}", "pass (D, D)")
        self.U, self.v = U, _checks.shaped("v", v, (U.shape[0],))

    def matrices(self) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
        return self.U, self.v

    def general(self) -> "HeadParams":
        return self

    def rescaled(self) -> "HeadParams":
        return HeadParams(-self.U, self.v)


@final
class BlockParams(AbstractParams):
    """The block form $U = [[A, 0], [0, 0]], v = (0, b)$.

    The gradient flow of linear regression preserves it at every L.

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
            raise _checks.error("A must be a square matrix", f"shape {A.shape}", "pass (d, d)")
        self.A, self.b = A, _checks.shaped("b", b, ())

    def matrices(self) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
        d = self.A.shape[0]
        xp = library(self)
        return xp.pad(self.A, (0, 1)), xp.pad(self.b[None], (d, 0))

    @property
    def dim(self) -> int:
        return self.A.shape[0] + 1

    def as_block(self) -> "BlockParams":
        return self

    def rescaled(self) -> "BlockParams":
        return BlockParams(-self.A, self.b)

    def straight_coordinates(self) -> Coordinates | None:
        """(bA, b), where the valley b Sig A = I is a straight line."""
        return PRODUCT if bool(abs(self.b) > _STRAIGHT) else None

    def to_block(self, tolerance: float = 1e-12) -> "BlockParams":
        return self


@final
class FactoredParams(AbstractParams):
    """The factorised form that transformers train: scores scale <K x, Q z>, read-out O V.

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
        return self.scale * matmul(self.K.T, self.Q), matmul(self.O, self.V)[0]

    def to_factored(self) -> "FactoredParams":
        return self

    def rescaled(self) -> "FactoredParams":
        return FactoredParams(-self.K, -self.Q, self.V, self.O, self.scale)


@final
class MultiHeadParams(AbstractParams):
    """Several heads whose predictions are added, trained together.

    The risk of linear regression is exact where all heads are in block form; otherwise it is
    sampled.

    **Arguments:** `heads`, a non-empty sequence of parameters of heads on tokens of one dimension.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> task = lp.LinearRegression(jnp.eye(5), task_cov=jnp.eye(5) / 5, noise_variance=0.1)
    >>> pair = [lp.BlockParams(s * 0.36 * jnp.eye(5), s * 0.99) for s in (1, -1)]
    >>> print(f"{task.risk(lp.MultiHeadParams(pair), 10).value:.4f}")
    0.2574
    """

    heads: tuple[AbstractParams, ...]

    def __init__(self, heads: Sequence[AbstractParams]):
        rule = "heads must be a non-empty sequence of parameters"
        fix = "pass for example [lp.BlockParams(A, b), lp.BlockParams(-A, -b)]"
        heads = _checks.instances(heads, AbstractParams, rule, fix)
        flat = tuple(part for head in heads for part in head.parts())
        if len({part.dim for part in flat}) > 1:
            raise _checks.error(
                "heads must act on tokens of one dimension",
                f"dimensions {[part.dim for part in flat]}",
                "give every head matrices of the same shapes",
            )
        self.heads = flat

    def parts(self) -> tuple[AbstractParams, ...]:
        return self.heads

    def matrices(self) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
        if len(self.heads) == 1:
            return self.heads[0].matrices()
        raise _checks.error(
            "one matrix U and one read-out v belong to one head",
            f"MultiHeadParams of {len(self.heads)} heads",
            "use one of its .heads; to train, pass method=lp.MonteCarlo()",
        )

    @property
    def dim(self) -> int:
        return self.heads[0].dim

    @property
    def head(self) -> AbstractHead:
        return MultiHead([part.head for part in self.heads])

    def as_block(self) -> BlockParams | None:
        return self.heads[0].as_block() if len(self.heads) == 1 else None

    def rescaled(self) -> "MultiHeadParams | None":
        changes = [change for part in self.heads if (change := part.rescaled()) is not None]
        return MultiHeadParams(changes) if len(changes) == len(self.heads) else None


def blocks_of(params: AbstractParams) -> tuple[BlockParams, ...] | None:
    """The heads of parameters in block form; None if one of them has none."""
    blocks = [block for part in params.parts() if (block := part.as_block()) is not None]
    return tuple(blocks) if len(blocks) == len(params.parts()) else None
