"""The interface of a measure, and a base class that derives most of it by autodiff."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Float

from .. import _checks
from .._arrays import Values, in_dtype
from .._float64 import in_numpy
from .._static_fields import make_static
from .._typing import Array, ArrayInput, KeyInput, Vector
from . import _domain_of_psi
from ._domain_of_psi import guard, require_finite
from .scaled import Scaled

if TYPE_CHECKING:
    from .empirical import Empirical
    from .gaussian import Gaussian
    from .key_values import KeyValues


# methods whose vector u is validated before they are called
_OF_A_VECTOR = {"log_mgf", "tilted_mean", "tilted_cov", "tilt", "in_domain"}

# methods that return NumPy arrays where neither the measure nor their arguments are JAX arrays
_IN_NUMPY = {
    *("log_mgf", "tilted_mean", "tilted_cov", "tilt", "in_domain", "mean", "cov"),
    *("subgaussian_proxy", "as_gaussian", "atoms", "quadrature", "mixture"),
}


class AbstractMeasure(eqx.Module):
    """A probability measure on $R^d$, known by its cumulant function $psi(u) = log E exp(<u, x>)$.

    Attention acts on a measure only through psi: $T[mu](z) = V grad psi(U z)$ (Boursier & Boyer,
    Sec. 2). The measure tilted by u has density proportional to $exp(<u, x>)$ with respect to mu;
    its mean is $grad psi(u)$, its covariance $hess psi(u)$.

    All methods take one vector u of shape (d,); use `jax.vmap` for many. Every measure is an
    equinox module: `jit`, `vmap` and `grad` go through its methods and its constructor. Fields
    annotated as int, bool or str are static. A measure made from Python or NumPy numbers keeps them
    in NumPy, and its methods return NumPy arrays: in float64 unless they were float32. One made
    from JAX arrays returns JAX arrays of their type.

    A measure whose psi is infinite somewhere overrides `in_domain`. Outside the domain `log_mgf` is
    +inf, and tilting, hence attention, raises.

    The methods below declare what else is known about the law. The defaults claim nothing. Override
    those that apply: the library then uses exact sums, faster kernels or quasi-random points.

    | method | what it declares |
    |---|---|
    | `as_gaussian()` | the law is this `Gaussian` |
    | `as_prompt()` | the law is given by these tokens, over which attention streams |
    | `as_key_values()` | the law is given by these keys and values, two arrays |
    | `atoms()` | the law is carried by these weighted points, exactly |
    | `quadrature(level)` | these points integrate smooth functions, better with every level |
    | `mixture()` | the law is a mixture of these measures |
    | `is_bounded` | the support is bounded |
    | `uniforms_needed`, `from_uniforms(uniforms)` | tokens are a function of this many uniforms |
    """

    dim: eqx.AbstractVar[int]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        make_static(cls)
        if cls.in_domain is not AbstractMeasure.in_domain:
            guard(cls, "in_domain", _domain_of_psi.as_array)
            guard(cls, "log_mgf", _domain_of_psi.infinite_outside)
            for name in ("tilted_mean", "tilted_cov", "tilt"):
                guard(cls, name, _domain_of_psi.raises_outside)
        for name in _OF_A_VECTOR & vars(cls).keys():
            guard(cls, name, _domain_of_psi.on_vectors)
        for name in _IN_NUMPY & vars(cls).keys():
            setattr(cls, name, in_numpy(vars(cls)[name]))

    @abstractmethod
    def log_mgf(self, u: Vector) -> Float[Array, ""]:
        """$psi(u) = log E exp(<u, x>)$."""

    @abstractmethod
    def tilted_mean(self, u: Vector) -> Float[Array, " d"]:
        """Mean of the measure tilted by u: $grad psi(u)$."""

    @abstractmethod
    def tilted_cov(self, u: Vector) -> Float[Array, "d d"]:
        """Covariance of the measure tilted by u: $hess psi(u)$."""

    @abstractmethod
    def tilt(self, u: Vector) -> "AbstractMeasure":
        """The measure with density proportional to $exp(<u, x>)$ with respect to this one."""

    @abstractmethod
    def sample(self, key: KeyInput, n: int) -> "Empirical":
        """`n` independent draws, as an `Empirical` measure: a prompt of n tokens."""

    @abstractmethod
    def subgaussian_proxy(self) -> Float[Array, ""]:
        """A number s with $psi(u) - <mean, u> <= s |u|^2 / 2$ for every u."""

    def in_domain(self, u: Vector) -> Bool[Array, ""]:
        """Whether psi(u) is finite. Override it if psi is infinite for some u."""
        return jnp.asarray(True)

    @property
    def finite_everywhere(self) -> bool:
        """Whether psi is known to be finite at every u, as for every built-in measure."""
        return type(self).in_domain is AbstractMeasure.in_domain

    @in_numpy
    def mean(self) -> Float[Array, " d"]:
        """E x."""
        return self.tilted_mean(jnp.zeros(self.dim, self.dtype))

    @in_numpy
    def cov(self) -> Float[Array, "d d"]:
        """$E (x - E x)(x - E x)'$."""
        return self.tilted_cov(jnp.zeros(self.dim, self.dtype))

    def as_gaussian(self) -> "Gaussian | None":
        """The law as a `Gaussian` if it is known to be one, point masses included."""
        return None

    def as_prompt(self) -> "Empirical | None":
        """The law as a finite prompt if it is given by its tokens.

        Attention streams over these tokens instead of calling `tilted_mean`.
        """
        return None

    def as_key_values(self) -> "KeyValues | None":
        """The law as keys and values in two arrays, if it is given so.

        Attention streams over them in place if scores need the keys only and outputs the values.
        """
        return None

    def atoms(self) -> "Empirical | None":
        """The law as finitely many weighted points, exactly; None if it has too many or none."""
        return None

    def quadrature(self, level: int = 0) -> "Empirical | None":
        """Weighted points whose sums converge geometrically to averages of smooth functions.

        Each level has twice the points of the one before along every axis, so the difference of
        two levels estimates the error of the lower one. None if no such rule is known.
        """
        return None

    def mixture(self) -> tuple[Float[Values, " k"], tuple["AbstractMeasure", ...]]:
        """Weights and components of the law; by default weight 1 and the law itself."""
        return np.ones(1, self.stored_dtype), (self,)

    @property
    def is_bounded(self) -> bool:
        """Whether the support is known to be bounded."""
        return False

    @property
    def uniforms_needed(self) -> int | None:
        """Number of uniforms that `from_uniforms` turns into one token; None if there is no map."""
        return None

    def from_uniforms(self, uniforms: Float[Array, "n k"]) -> Float[Array, "n d"]:
        """Tokens as a function of independent uniforms on (0, 1), `uniforms_needed` for each."""
        raise _checks.error(
            "from_uniforms needs a measure with a map from uniforms",
            f"a {type(self).__name__}, whose uniforms_needed is None",
            "use sample(key, n), or define uniforms_needed and from_uniforms",
        )

    @in_numpy
    def gaussian_at(self, u: Vector) -> Scaled:
        """The scaled Gaussian whose cumulant function agrees with psi to second order at u:

        covariance $S = hess psi(u)$, mean $grad psi(u) - S u$,
        log mass $psi(u) - <u, grad psi(u)> + u'Su/2$.

        At u = 0 it is the Gaussian of the same mean and covariance, with mass 1.

        >>> import largeprompt as lp
        >>> found = lp.Rademacher(1).gaussian_at([0.0])
        >>> print(found.measure.cov(), found.log_mass)
        [[1.]] 0.0
        """
        from .gaussian import Gaussian

        u = self._vector(u)
        mean, cov = self.tilted_mean(u), self.tilted_cov(u)
        pull = jnp.matmul(cov, u, precision="highest")
        log_mass = self.log_mgf(u) - u @ mean + u @ pull / 2
        return Scaled(log_mass, Gaussian(mean - pull, cov, check=False))

    @in_numpy
    def affine(self, A: ArrayInput, b: ArrayInput | None = None) -> "AbstractMeasure":
        """The law of A x + b; A has shape (k, d), b shape (k,), zero if left out."""
        A = _checks.shaped("A", _checks.finite("A", A), ("k", self.dim))
        b = _checks.finite("b", np.zeros(A.shape[0]) if b is None else b)
        b = _checks.shaped("b", b, (A.shape[0],))
        return self._affine(in_dtype(A, self.stored_dtype), in_dtype(b, self.stored_dtype))

    def push_forward(self, function: Callable[[Array], Array]) -> "AbstractMeasure | None":
        """The law of function(x), for a function of points (n, d); None without `atoms`."""
        atoms = self.atoms()
        return None if atoms is None else atoms.push_forward(function)

    def __add__(self, other: "AbstractMeasure") -> "AbstractMeasure":
        """The law of x + y with x ~ self and y ~ other independent."""
        from .transforms import sum_of

        first, second = _checks.measures("the terms of a sum", (self, other), AbstractMeasure)
        if (shift := first._point()) is not None:
            return second.affine(np.eye(second.dim), shift)
        if (shift := second._point()) is not None:
            return first.affine(np.eye(first.dim), shift)
        return sum_of((*first._terms(), *second._terms()))

    def _affine(self, A: Float[Array, "k d"], b: Float[Array, " k"]) -> "AbstractMeasure":
        """`affine` with validated arguments; override it in a family closed under affine maps."""
        from .transforms import AffineImage

        return AffineImage(self, A, b)

    def _point(self) -> Float[Array, " d"] | None:
        """The point of a point mass, None for other measures."""
        return None

    def _terms(self) -> tuple["AbstractMeasure", ...]:
        """Independent measures whose sum has this law."""
        return (self,)

    @property
    def dtype(self) -> np.dtype:
        """Floating-point type in which JAX computes with the measure: `stored_dtype`, but float32
        in place of float64 where JAX is in 32-bit mode.
        """
        return jax.dtypes.canonicalize_dtype(self.stored_dtype)

    @property
    def stored_dtype(self) -> np.dtype:
        """Floating-point type of the measure's arrays; float64 if it has none."""
        leaves = jax.tree.leaves(eqx.filter(self, eqx.is_inexact_array))
        return np.result_type(*(leaf.dtype for leaf in leaves)) if leaves else np.dtype(np.float64)

    def _vector(self, u: Vector) -> Float[Array, " d"]:
        """Validate `u`: shape (d,), finite if known, cast to the measure's dtype."""
        check = _checks.float_array if isinstance(u, Tracer) else _checks.finite
        u = _checks.shaped("u", check("u", u), (self.dim,))
        return in_dtype(u, self.stored_dtype)


class AbstractAutodiffMeasure(AbstractMeasure):
    """Base class of custom measures: define `dim`, `log_mgf` and `sample`; autodiff does the rest.

    Write `log_mgf` with `jax.numpy`, twice differentiable. Add `in_domain` if it is infinite for
    some u, `subgaussian_proxy` if you know one, and the declarations of `AbstractMeasure` that
    hold.

    ```python
    class Triangular(lp.AbstractAutodiffMeasure):
        dim: int = 1

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

    def tilted_mean(self, u: Vector) -> Float[Array, " d"]:
        return require_finite(self, *_with_gradient(self, u))

    def tilted_cov(self, u: Vector) -> Float[Array, "d d"]:
        return require_finite(self, *_with_hessian(self, u))

    def tilt(self, u: Vector) -> "AbstractMeasure":
        from .transforms import Tilted

        return Tilted(self, u)

    def subgaussian_proxy(self) -> Float[Array, ""]:
        raise _checks.error(
            f"{type(self).__name__} must define subgaussian_proxy to use a variance proxy",
            "a measure without that method",
            "add a method subgaussian_proxy(self) that returns s with "
            "log_mgf(u) - <mean, u> <= s |u|^2 / 2",
        )


@eqx.filter_jit
def _with_gradient(measure: AbstractMeasure, u: Float[Array, " d"]) -> tuple[Array, Array]:
    """psi(u) and its gradient."""
    return jax.value_and_grad(measure.log_mgf)(u)


@eqx.filter_jit
def _with_hessian(measure: AbstractMeasure, u: Float[Array, " d"]) -> tuple[Array, Array]:
    """psi(u) and its Hessian."""
    return measure.log_mgf(u), jax.hessian(measure.log_mgf)(u)
