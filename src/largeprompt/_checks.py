"""Validation of user input.

A message states the rule, what was received, and a fix. Shapes and other static facts raise
`ValueError` at once. Values raise `ValueError` when they are known and go through
`equinox.error_if` while JAX is tracing, so that constructors and calls work under `jit`, `vmap` and
`grad`.
"""

import inspect
import math
import operator
import os
import re
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from ._arrays import Values, in_dtype
from ._message import error as error
from ._message import message as message
from ._typing import Array, ArrayInput

Result = TypeVar("Result")
AnyArray = TypeVar("AnyArray", bound=jax.Array | np.ndarray | np.generic)

# class of an argument: what it must be, and how to make one
_KINDS = {
    "AbstractHead": ("an attention head", "pass Head(U=U, V=V) or MultiHead([head, ...])"),
    "AbstractMeasure": ("a measure", "wrap tokens of shape (L, d) as Empirical(tokens)"),
    "AbstractParams": ("the parameters of a head", "pass for example BlockParams(A, b)"),
    "AbstractTask": ("a task", "pass for example LinearRegression(cov)"),
    "MonteCarlo": ("a MonteCarlo method", "pass lp.MonteCarlo(key)"),
    "Recording": ("a recording", "pass what lp.models.record returned"),
    "Trajectory": ("a trajectory", "pass what gradient_flow returned"),
    "Dataset": ("a dataset", "pass what concentration_curve returned"),
}

_MOST = 2**53  # the largest count
_ON_HOST = 2**20  # entries up to which an array on another device is checked on the host


def _library(array: Array) -> tuple[Any, Any]:
    """The library to check `array` with, and the array in that library.

    NumPy for known arrays on the host, so that checking compiles nothing; JAX for traced or remote
    ones.
    """
    if isinstance(array, Tracer):
        return jnp, jax.lax.stop_gradient(array)
    if isinstance(array, np.ndarray):
        return np, array
    if array.size > _ON_HOST and any(device.platform != "cpu" for device in array.devices()):
        return jnp, array
    return np, np.asarray(array)


def require(value: Any, bad: Any, *, rule: str, received: str, fix: str) -> Any:
    """Return `value`; raise if any entry of `bad` is true, at run time if it is traced."""
    if isinstance(bad, Tracer):
        return eqx.error_if(value, jnp.any(bad), message(rule, received, fix))
    if np.any(bad):
        raise error(rule, received, fix)
    return value


def accepts(**kinds: type) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorator that checks the classes of arguments, for example head=AbstractHead.

    It also checks arguments by their annotations: a class that `_KINDS` explains, `float`, `bool`,
    a path, a choice of texts such as `Literal["U", "V"]`; each also with `| None`. Rules that
    compiled programs find broken raise ValueError, as all others do. The classes are abstract ones,
    so that classes written by users pass.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        parameters = inspect.signature(function).parameters.items()
        checks = [
            (name, place, check)
            for place, (name, parameter) in enumerate(parameters)
            if (check := _check_of(parameter.annotation, kinds.get(name))) is not None
        ]

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Result:
            for name, place, check in checks:
                if place < len(args):
                    check(name, args[place])
                elif name in kwargs:
                    check(name, kwargs[name])
            try:
                return function(*args, **kwargs)
            except eqx.EquinoxRuntimeError as cause:
                found = re.search(
                    r"^(?:\S*Error: )?(.*; received .*\. To fix: .*)$", str(cause), re.MULTILINE
                )
                if found is None:
                    raise
                # the sentence alone, without pages about the compiler
                raise ValueError(found[1]) from None

        return wrapped

    return decorate


def _check_of(annotation: Any, wanted: type | None) -> Callable[[str, Any], Any] | None:
    """The check of an argument by its class, or by its annotation where no class is given."""
    if wanted is not None:
        return partial(kind, wanted=wanted)
    kinds = [each for each in get_args(annotation) if each is not NoneType]
    if NoneType in get_args(annotation):
        check = _check_of(Union[tuple(kinds)], None)  # noqa: UP007
        return check and (lambda name, value: None if value is None else check(name, value))
    if kinds == [str, Path]:
        return path
    if inspect.isclass(annotation) and annotation.__name__ in _KINDS:
        return partial(kind, wanted=annotation)
    if get_origin(annotation) is Literal:
        return partial(choice, choices=get_args(annotation))
    return {bool: flag, float: number}.get(annotation)


def choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise unless `value` is one of the texts in `choices`."""
    if not (isinstance(value, str) and value in choices):
        texts = " or ".join(map(repr, choices)) if len(choices) == 2 else f"one of {choices}"
        raise error(f"{name} must be {texts}", shown(value))


def flag(name: str, value: Any) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise error(f"{name} must be True or False", shown(value))


def path(name: str, value: Any) -> None:
    """Raise unless `value` is a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise error(f"{name} must be a path", shown(value))


def kind(name: str, value: Any, wanted: type) -> Any:
    """`value`, which must be an instance of an abstract class that `_KINDS` explains."""
    if not isinstance(value, wanted):
        what, fix = _KINDS[wanted.__name__]
        raise error(f"{name} must be {what}", type(value).__name__, fix)
    return value


def float_array(name: str, value: ArrayInput) -> Float[Array, "..."]:
    """`value` as a floating-point array: JAX arrays as they are, other numbers in NumPy.

    Integers, booleans and Python numbers become float64, those of JAX its default float.
    """
    array = _array(name, value)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise error(f"{name} must be real", f"dtype {array.dtype}", "pass its real part")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        if array.dtype.kind not in "iub":
            raise ValueError(_not_numbers(name, f"dtype {array.dtype}"))
        array = in_dtype(array, np.float64)
    if isinstance(array, jax.Array):
        return array
    # NumPy's long doubles are no type of JAX
    return _frozen(array if array.dtype.itemsize <= 8 else array.astype(np.float64))


def _frozen(array: Values) -> Values:
    """A read-only copy, which no later change of the caller's array reaches."""
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def tokens(name: str, value: ArrayInput) -> Float[Array, "..."]:
    """`float_array`, on JAX's default device in place of NumPy unless it is in float64.

    Tokens in float32 or less are many, and read by kernels at every call.
    """
    array = float_array(name, value)
    return array if array.dtype == np.float64 else jax.device_put(array)


def _array(name: str, value: Any) -> Any:
    """`value` as an array of JAX or NumPy; entries that are masked must not become numbers."""
    if isinstance(value, jax.Array):
        if jnp.issubdtype(value.dtype, jax.dtypes.extended):
            raise ValueError(_not_numbers(name, f"dtype {value.dtype}"))
        return value
    _require_no_mask(name, value)
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as cause:
        raise ValueError(_not_numbers(name, f"{type(value).__name__} ({cause})")) from cause


def _require_no_mask(name: str, value: Any) -> None:
    if np.ma.is_masked(value):
        count = int(np.sum(np.ma.getmaskarray(value)))
        raise error(
            f"{name} must be an array without masked entries",
            f"a masked array with {count} of them",
            f"drop those entries, or pass {name}.filled(number)",
        )


def known(name: str, value: ArrayInput) -> np.ndarray:
    """Cast a known number or array to float64 (JAX in 32-bit mode would not keep it)."""
    _require_no_mask(name, value)
    try:
        array = np.asarray(value)
        # Python integers of more than 64 bits
        whole = array.dtype == object and all(isinstance(entry, int) for entry in array.flat)
        if not whole and array.dtype.kind not in "biuf":
            raise TypeError(f"dtype {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as cause:
        raise error(
            f"{name} must be a real number or an array of them",
            f"{type(value).__name__} ({cause})",
            "pass a float, or a NumPy or JAX array",
        ) from cause


def _not_numbers(name: str, received: str) -> str:
    rule = f"{name} must be an array of real numbers"
    fix = "pass a JAX or NumPy array, or a nested list of equal-length rows"
    return message(rule, received, "pass tensor.detach()" if "requires grad" in received else fix)


def finite(name: str, value: ArrayInput) -> Float[Array, "..."]:
    """`value` as a floating-point array without NaN or infinity."""
    array = float_array(name, value)
    library, seen = _library(array)
    return _require_finite(name, array, ~library.all(library.isfinite(seen)))


def _require_finite(name: str, value: Any, bad: Any) -> Any:
    return require(
        value,
        bad,
        rule=f"{name} must be finite",
        received="NaN or infinity",
        fix=f"remove or mask the non-finite entries of {name}",
    )


def known_finite(name: str, value: ArrayInput) -> np.ndarray:
    """Known numbers in float64, without NaN or infinity; they stay in NumPy."""
    array = known(name, value)
    return _require_finite(name, array, ~np.isfinite(array))


def shaped(name: str, array: AnyArray, shape: tuple[int | str, ...]) -> AnyArray:
    """Check `array.shape` against a pattern of sizes; a string matches any size >= 1."""
    fits = array.ndim == len(shape) and all(
        size >= 1 if isinstance(want, str) else size == want
        for size, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        wanted = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
        raise error(
            f"{name} must have shape {wanted}",
            f"shape {array.shape}",
            f"reshape {name}, or check which dimension the other arguments imply",
        )
    return array


def same_dtype(*arrays: Array) -> tuple[Array, ...]:
    """The arrays cast to their common floating-point type."""
    dtype = np.result_type(*(array.dtype for array in arrays))
    if any(isinstance(array, jax.Array) for array in arrays):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return tuple(in_dtype(array, dtype) for array in arrays)


def cast(name: str, array: Values, dtype: Any) -> Values:
    """`array` in another floating-point type, in which finite numbers must stay finite."""
    with np.errstate(over="ignore"):
        found = in_dtype(array, dtype)
    if found.dtype.itemsize >= array.dtype.itemsize:
        return found
    library, seen = _library(found)
    return require(
        found,
        library.any(library.isinf(seen)),
        rule=f"{name} must have entries in the range of {found.dtype}",
        received=f"a larger number of type {array.dtype}",
        fix="scale it down, or turn on 64-bit mode",
    )


def count(name: str, value: Any, least: int = 1) -> int:
    """`value` as a Python integer, at least `least`: 1 or 0."""
    try:
        number = -1 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except (TypeError, jax.errors.JAXTypeError):
        number = -1
    if number < least:
        sign = "positive" if least else "non-negative"
        raise error(
            f"{name} must be a {sign} integer known before tracing",
            shown(value),
            f"pass a Python int, {name} >= {least}",
        )
    if number > _MOST:
        raise error(f"{name} must be at most {_MOST}", shown(value))
    return number


def shown(value: Any) -> str:
    """A value in an error message: its repr, the middle left out where that is long."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"an integer of {math.floor(math.log10(abs(value))) + 1} digits"
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:80]} ... {text[-20:]}"


def indices(name: str, value: Any, size: int) -> np.ndarray:
    """`value` as sorted indices from 0 to size - 1, each once; negative ones count from the end."""
    array = np.asarray(_array(name, value))
    whole = array.ndim == 1 and (array.size == 0 or array.dtype.kind in "iu")
    if not whole or np.any(array < -size) or np.any(array >= size):
        raise error(
            f"{name} must have indices of the {size} tokens",
            f"dtype {array.dtype} and shape {array.shape}, {array.ravel()[:5].tolist()}",
            "count from 0, or from -1 backwards; np.flatnonzero turns a mask into indices",
        )
    return np.unique(array.astype(int) % max(size, 1))


def number(
    name: str,
    value: Any,
    fix: str = "",
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    finite: bool = True,
) -> float:
    """`value` as a Python float in the given range."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as cause:
        raise error(f"{name} must be a number", shown(value), fix) from cause
    if not (found >= least and found > above and (math.isfinite(found) or not finite)):
        bounds = [f">= {least:g}"] * (least > -math.inf) + [f"> {above:g}"] * (above > -math.inf)
        rule = f"{name} must be " + " and ".join(["finite"] * finite + bounds)
        raise error(rule, f"{found:g}", fix)
    return found


def positive(name: str, value: ArrayInput) -> Float[Array, "..."]:
    """`value` as a floating-point array with finite entries > 0."""
    array = finite(name, value)
    return require(
        array,
        _library(array)[1] <= 0,
        rule=f"{name} must be > 0",
        received="a value <= 0",
        fix=f"pass a positive {name}; for a point mass use Dirac",
    )


def covariance(name: str, value: ArrayInput) -> Float[Array, "d d"]:
    """`value` as a symmetric positive semi-definite matrix.

    Tolerance: sqrt(machine epsilon), relative to the largest entry (symmetry) and to the largest
    eigenvalue (sign). The matrix returned is the symmetric part of what came.
    """
    matrix = finite(name, value)
    if matrix.dtype.itemsize < 4:  # has no eigenvalues in float16
        matrix = matrix.astype(np.float32)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
        raise error(
            f"{name} must be a square (d, d) matrix",
            f"shape {matrix.shape}",
            "pass a full matrix, for example jnp.diag(variances) or s * jnp.eye(d)",
        )
    library, seen = _library(matrix)
    tolerance = math.sqrt(float(jnp.finfo(matrix.dtype).eps))
    matrix = require(
        matrix,
        library.any(library.abs(seen - seen.T) > tolerance * library.max(library.abs(seen))),
        rule=f"{name} must be symmetric (relative tolerance {tolerance:.1e})",
        received="a matrix that differs from its transpose",
        fix=f"pass ({name} + {name}.T) / 2 if the asymmetry is rounding",
    )
    eigenvalues = library.linalg.eigvalsh((seen + seen.T) / 2)
    matrix = require(
        matrix,
        eigenvalues[0] < -tolerance * library.abs(eigenvalues[-1]),
        rule=f"{name} must be positive semi-definite (relative tolerance {tolerance:.1e})",
        received="a matrix with a negative eigenvalue",
        fix="use Gaussian.from_factor(mean, B) if you have a factor B with B @ B.T",
    )
    found = (seen + seen.T) / 2
    if isinstance(matrix, np.ndarray):
        return found
    return jax.device_put(found) if library is np else (matrix + matrix.T) / 2


def log_weights(name: str, value: ArrayInput, size: int) -> Float[Array, " n"]:
    """Logarithms of non-negative weights, normalised to sum to one."""
    weights = shaped(name, finite(name, value), (size,))
    library, seen = _library(weights)
    weights = require(
        weights,
        library.any(seen < 0),
        rule=f"{name} must be >= 0",
        received="a negative weight",
        fix="drop those points or clip their weights at 0",
    )
    with np.errstate(over="ignore"):
        total = library.sum(seen)
    weights = require(
        weights,
        ~((total > 0) & library.isfinite(total)),
        rule=f"{name} must have a positive finite sum",
        received="weights that sum to 0 or overflow",
        fix="give at least one point a positive weight, and rescale weights near the largest float",
    )
    if isinstance(weights, np.ndarray):
        with np.errstate(divide="ignore"):
            return np.log(weights / total)
    present = weights > 0  # the double `where` keeps gradients finite where a weight is 0
    normalised = jnp.where(present, weights, 1.0) / jnp.sum(weights)
    return jnp.where(present, jnp.log(normalised), -jnp.inf)


def key(value: Any) -> Array:
    """`value` as a JAX random key (new-style or raw uint32)."""
    if isinstance(value, jax.Array):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.ndim == 0:
            return value
        if value.dtype == jnp.uint32 and value.ndim == 1:
            return value
    raise error(
        "key must be one JAX random key",
        f"{type(value).__name__}" + (f" of shape {value.shape}" if hasattr(value, "shape") else ""),
        "pass jax.random.key(seed); split it with jax.random.split for several draws",
    )


def measures(name: str, parts: Any, kind: type | tuple[type, ...]) -> tuple:
    """`parts` as a non-empty tuple of measures on one space."""
    rule = f"{name} must be a non-empty sequence of measures"
    parts = several(parts, kind, rule, "wrap a plain array of points in Empirical")
    if len({part.dim for part in parts}) > 1:
        raise error(
            f"{name} must live in one dimension",
            f"dimensions {[part.dim for part in parts]}",
            "map them to one space first with .affine(A, b)",
        )
    return parts


def instances(values: Any, kind: type, rule: str, fix: str) -> tuple:
    """Validate one object of a class, or a non-empty sequence of them; return a tuple."""
    return (values,) if isinstance(values, kind) else several(values, kind, rule, fix)


def several(values: Any, kind: type | tuple[type, ...], rule: str, fix: str) -> tuple:
    """Validate a non-empty sequence of objects of a class; return a tuple."""
    try:
        found = tuple(values)
    except (TypeError, RuntimeError) as cause:
        raise error(rule, type(values).__name__, fix) from cause
    if not found or not all(isinstance(value, kind) for value in found):
        raise error(rule, f"{[type(value).__name__ for value in found]}", fix)
    return found
