"""What a token measure is: the interface every measure implements, and the short way to write your own."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _checks
from .._typing import ArrayInput, KeyInput
from . import _domain_of_psi
from ._domain_of_psi import guard, require_finite

if TYPE_CHECKING:
    from .empirical import Empirical


class AbstractMeasure(eqx.Module):
    """A probability measure mu on R^d, known by its cumulant function psi(u) = log E exp(<u, x>).

    Attention acts on a measure only through psi: T[mu](z) = V grad psi(U z) (Boursier & Boyer, Sec. 2). The tilted
    measure at u has density proportional to exp(<u, x>) with respect to mu; its mean is grad psi(u), its covariance
    hess psi(u).

    All methods take one vector u of shape (d,); use `jax.vmap` for many. Every measure is an equinox module: `jit`,
    `vmap` and `grad` go through its methods and its constructor.

    A measure whose psi is infinite somewhere overrides `in_domain`. Outside the domain `log_mgf` is
    +inf, and tilting, hence attention, raises.
    """

    dim: eqx.AbstractVar[int]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.in_domain is not AbstractMeasure.in_domain:
            guard(cls, "in_domain", _domain_of_psi.on_vectors)
            guard(cls, "log_mgf", _domain_of_psi.infinite_outside)
            for name in ("tilted_mean", "tilted_cov", "tilt"):
                guard(cls, name, _domain_of_psi.raises_outside)

    @abstractmethod
    def log_mgf(self, u: ArrayInput) -> Float[Array, ""]:
        """psi(u) = log E exp(<u, x>)."""

    @abstractmethod
    def tilted_mean(self, u: ArrayInput) -> Float[Array, " d"]:
        """Grad psi(u), the mean of the measure tilted by u."""

    @abstractmethod
    def tilted_cov(self, u: ArrayInput) -> Float[Array, "d d"]:
        """Hess psi(u), the covariance of the measure tilted by u."""

    @abstractmethod
    def tilt(self, u: ArrayInput) -> "AbstractMeasure":
        """The measure with density proportional to exp(<u, x>) with respect to this one."""

    @abstractmethod
    def sample(self, key: KeyInput, n: int) -> "Empirical":
        """N independent draws, as an `Empirical` measure: a prompt of n tokens."""

    @abstractmethod
    def subgaussian_proxy(self) -> Float[Array, ""]:
        """A number s with psi(u) - <mean, u> <= s |u|^2 / 2 for every u."""

    def in_domain(self, u: ArrayInput) -> Bool[Array, ""]:
        """Whether psi(u) is finite; override it if psi is not finite for every u."""
        self._vector(u)
        return jnp.asarray(True)

    @property
    def finite_everywhere(self) -> bool:
        """Whether psi is known to be finite at every u: true of every built-in measure."""
        return type(self).in_domain is AbstractMeasure.in_domain

    def mean(self) -> Float[Array, " d"]:
        """E x."""
        return self.tilted_mean(jnp.zeros(self.dim, self.dtype))

    def cov(self) -> Float[Array, "d d"]:
        """E (x - E x)(x - E x)'."""
        return self.tilted_cov(jnp.zeros(self.dim, self.dtype))

    def affine(self, A: ArrayInput, b: ArrayInput | None = None) -> "AbstractMeasure":
        """The law of A x + b; A has shape (k, d), b shape (k,), zero if left out."""
        from .transforms import affine_image

        return affine_image(self, A, b)

    def __add__(self, other: "AbstractMeasure") -> "AbstractMeasure":
        """The law of x + y with x ~ self and y ~ other independent."""
        from .transforms import independent_sum

        return independent_sum(self, other)

    @property
    def dtype(self) -> np.dtype:
        """The floating-point type of the measure's numbers (JAX's default if it holds none)."""
        leaves = jax.tree.leaves(eqx.filter(self, eqx.is_inexact_array))
        return np.result_type(*(leaf.dtype for leaf in leaves)) if leaves else jnp.zeros(()).dtype

    def _vector(self, u: ArrayInput) -> Float[Array, " d"]:
        """U checked: shape (d,), the measure's own type."""
        return _checks.shaped("u", _checks.float_array("u", u), (self.dim,)).astype(self.dtype)


class AbstractAutodiffMeasure(AbstractMeasure):
    """The short way to a measure of your own: give `dim`, `log_mgf` and `sample`; the rest follows by autodiff.

    `log_mgf` must be written with `jax.numpy` and be twice differentiable. Add `in_domain` if it is
    not finite for every u, and `subgaussian_proxy` if you know one.

    ```python
    class Triangular(lp.AbstractAutodiffMeasure):
        dim: int = eqx.field(static=True, default=1)

        def log_mgf(self, u):
            return 2 * lp.Uniform(self.dim, 0.5).log_mgf(u)

        def sample(self, key, n):
            first, second = jax.random.uniform(key, (2, n, self.dim)) - 0.5
            return lp.Empirical(first + second)
    ```
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        guard(cls, "log_mgf", _domain_of_psi.never_nan)
        super().__init_subclass__(**kwargs)

    def tilted_mean(self, u: ArrayInput) -> Float[Array, " d"]:
        return require_finite(self, *_with_gradient(self, self._vector(u)))

    def tilted_cov(self, u: ArrayInput) -> Float[Array, "d d"]:
        return require_finite(self, *_with_hessian(self, self._vector(u)))

    def tilt(self, u: ArrayInput) -> "AbstractMeasure":
        from .transforms import Tilted

        return Tilted(self, u)

    def subgaussian_proxy(self) -> Float[Array, ""]:
        raise ValueError(
            _checks.message(
                f"{type(self).__name__} must state its variance proxy before it can be used",
                "a measure that defines no subgaussian_proxy",
                "add a method subgaussian_proxy(self) that returns s with log_mgf(u) - <mean, u> <= s |u|^2 / 2",
            )
        )


@eqx.filter_jit
def _with_gradient(measure: AbstractMeasure, u: Float[Array, " d"]) -> tuple[Array, Array]:
    """psi(u) and its gradient."""
    return jax.value_and_grad(measure.log_mgf)(u)


@eqx.filter_jit
def _with_hessian(measure: AbstractMeasure, u: Float[Array, " d"]) -> tuple[Array, Array]:
    """psi(u) and its Hessian."""
    return measure.log_mgf(u), jax.hessian(measure.log_mgf)(u)
