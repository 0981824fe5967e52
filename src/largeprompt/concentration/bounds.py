"""Propositions 3.1 and 3.4 of Boursier & Boyer as functions, and their constants for a given curve.

The propositions assert that constants c_1, c_2 exist. For an exact curve this module computes them:
the smallest c_1 for which a given c_2 dominates the curve, the largest c_2 that a given c_1 allows,
and how loose the bound then is. The bounds contain ln L, which is 0 at L = 1, where the error is
not: the statements are for L >= 2.

For Gaussian tokens and queries the error is of the order L^{-theta} (ln L)^beta e^{c sqrt(ln L)},
theta the `sharp_exponent`. With k the multiplicity of kappa,

    beta = k/2 - 1 + r  for kappa > 1/2,      k/2 + r  at kappa = 1/2,      0  below,

where r is the power of the score variance in the error at one query: 1 for the output and dT/dV,
3 for dT/dU, one less for the output and dT/dU if V does not read the steepest directions. The
constant c is 0 unless kappa >= 1/2 and the mean query has a part along these directions. So
c_2 = sigma^2 theta is attained (some c_1 serves all L) exactly if c = 0 and beta is at most the
bound's own power of ln L.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Float

from .. import _checks
from .._float64 import not_traced
from .._linalg import covariance_root
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import Gaussian
from ._columns import columns

_SAME = 1e-9  # relative distance below which two eigenvalues, or kappa and 1/2, are taken as equal

_STATEMENTS = {  # statement: (power of sigma, power of ln L)
    "output": ("Proposition 3.1", 6, 1),
    "gradient_V": ("Proposition 3.4, V", 6, 1),
    "gradient_U": ("Proposition 3.4, U", 12, 2),
}


@not_traced
def proposition_3_1(
    c1: ArrayInput, c2: ArrayInput, sigma: ArrayInput, L: ArrayInput
) -> Float[np.ndarray, "..."]:
    """Bound $c_1 sigma^6 ln L / L^{c_2/sigma^2}$ of $E |T_L - T|^2$ for sigma-sub-Gaussian tokens,
    sigma >= 1, L >= 2.

    >>> import largeprompt as lp
    >>> print(lp.proposition_3_1(c1=2.0, c2=1.0, sigma=1.0, L=[10, 100]).round(4))
    [0.4605 0.0921]
    """
    return _bound("output", c1, c2, sigma, L)


@_checks.accepts()
def proposition_3_4(
    c1: ArrayInput, c2: ArrayInput, sigma: ArrayInput, L: ArrayInput, parameter: Literal["U", "V"]
) -> Float[np.ndarray, "..."]:
    """Bound of the gradient error: $c_1 sigma^6 ln L / L^{c_2/sigma^2}$ in V,
    $c_1 sigma^12 (ln L)^2 / L^{c_2/sigma^2}$ in U.

    >>> import largeprompt as lp
    >>> print(lp.proposition_3_4(2.0, 1.0, 1.0, [10, 100], parameter="U").round(4))
    [1.0604 0.4242]
    """
    return _bound(f"gradient_{parameter}", c1, c2, sigma, L)


def _bound(
    quantity: str, c1: ArrayInput, c2: ArrayInput, sigma: ArrayInput, L: ArrayInput
) -> np.ndarray:
    lengths = _checks.known("L", L)
    constants = [
        _checks.number(name, c, "pass a constant > 0", above=0.0)
        for name, c in (("c1", c1), ("c2", c2))
    ]
    parameter = _checks.number(
        "sigma",
        sigma,
        "the propositions take the larger of 1 and the sub-Gaussian parameter",
        least=1.0,
    )
    if not np.all(lengths >= 2):
        raise _checks.error(
            "L must be >= 2, where ln L > 0",
            f"{lengths[~(lengths >= 2)][0]:g}" if lengths.ndim else f"{lengths:g}",
            "leave out L = 1: the bound is 0 there and the error is not",
        )
    with np.errstate(over="ignore"):
        found = constants[0] * np.exp(_log_shape(quantity, constants[1], parameter, lengths))
    if np.any(np.isinf(found)):
        raise _checks.error("the bound must be below 1e308", f"c1={c1}, sigma={sigma}")
    return np.asarray(found)


def _log_shape(quantity: str, c2: float, sigma: float, L: np.ndarray) -> np.ndarray:
    """Logarithm of the bound with c_1 = 1; -inf at L = infinity."""
    _, power, logs = _STATEMENTS[quantity]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = power * math.log(sigma) + logs * np.log(np.log(L)) - c2 / sigma**2 * np.log(L)
    return np.where(np.isinf(L), -np.inf, found)


def steepest_directions(head: AbstractHead, mu: Gaussian, nu: Gaussian) -> dict[str, Any]:
    """What decides the powers of ln L beside L^-theta, as attributes of a curve.

    The multiplicity of kappa, the length of the mean query along its directions in the metric of
    the scores, and whether V reads one of these directions.
    """
    U, V, G, C = (np.asarray(a, np.float64) for a in (head.U, head.V, mu.covariance, nu.covariance))
    root = covariance_root(G)
    axes, values, _ = np.linalg.svd(root.T @ U @ covariance_root(C))
    top = axes[:, : len(values)][:, values >= values[0] * (1 - _SAME)]
    shift = np.linalg.norm(top.T @ root.T @ U @ np.asarray(nu.centre, np.float64))
    read = np.linalg.norm(V @ root @ top) > _SAME * np.linalg.norm(V) * np.linalg.norm(root)
    return {
        "kappa_multiplicity": np.int32(top.shape[1]),
        "kappa_shift": float(shift),
        "kappa_read": np.int32(read),
    }


class BoundReport(NamedTuple):
    """Constants of a proposition for one exact curve, on its lengths L >= 2.

    `c1` is the smallest constant for which `c2` dominates the curve, attained at `tight_at`;
    `looseness` the median and the largest ratio bound/error with these constants. `admissible_c2`
    is the supremum of the c_2 that can hold for all L: sigma^2 times the sharp exponent (None where
    that is not known); `attained` says whether the supremum itself holds for all L.
    `not_applicable` maps lengths to the reason.
    """

    statement: str
    sigma: float
    c2: float
    c1: float
    tight_at: float
    looseness: tuple[float, float]
    admissible_c2: float | None
    attained: bool | None
    not_applicable: dict[float, str]
    notes: tuple[str, ...]


@_checks.accepts(curve=xr.Dataset)
def bound_report(curve: xr.Dataset, c2: ArrayInput | None = None) -> BoundReport:
    """Compare a curve of `concentration_curve` with Proposition 3.1 (output) or 3.4 (gradients).

    **Arguments:** `c2`, by default the largest that holds for all L. Where the error carries more
    of ln L than the bound, the supremum is not attained. The default is then the c_2 below it for
    which error/bound, to leading order, stops growing at the longest length of the curve, so that
    `c1` serves all L; it is at least half the supremum.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> curve = lp.concentration_curve(head, mu, mu, [1.0, 2.0, 100.0, 1e6])
    >>> report = lp.bound_report(curve, c2=0.5)
    >>> print(f"{report.c1:.3f} at L = {report.tight_at:g}, c_2 < {report.admissible_c2:.3f}")
    2.273 at L = 2, c_2 < 0.618
    >>> report.not_applicable
    {1.0: 'ln L = 0 makes the bound 0, and the error at L = 1 is not'}
    """
    L, value, quantity = _of_a_proposition(curve)
    sigma = _sigma(curve)
    exponent = curve.attrs.get("sharp_exponent")
    admissible = None if exponent is None else float(exponent) * sigma**2
    if c2 is None and admissible is None:
        raise _checks.error(
            "c2 must be given where the sharp exponent is not known",
            f"{curve.attrs['tokens']} tokens and {curve.attrs['queries']} queries",
            "pass c2",
        )
    usable = (L >= 2) & np.isfinite(L)
    if not usable.any():
        raise _checks.error("the curve needs lengths L >= 2", str(L.tolist()), "add some")
    growth = None if admissible is None else _growth(curve)
    if c2 is None:
        assert admissible is not None  # for the type checker: checked above
        assert growth is not None
        below = sigma**2 * growth.slope(math.log(L[usable].max()))
        c2 = max(admissible - below, admissible / 2)
    chosen = _checks.number("c2", c2, "pass for example 0.5", above=0.0)
    logs = np.log(value[usable]) - _log_shape(quantity, chosen, sigma, L[usable])
    worst = int(np.argmax(logs))
    if logs[worst] - min(0.0, logs.min()) > 700:  # beyond the largest float
        raise _checks.error("c2 must be such that c1 stays below 1e300", f"c2={chosen:g}")
    ratios = np.exp(logs[worst] - logs)
    reasons = {
        float(length): "ln L = 0 makes the bound 0, and the error at L = 1 is not"
        if length == 1
        else "the statement is for whole L >= 2"
        if length < 2
        else "error and bound are both 0 at infinity"
        for length in L[~usable]
    }
    return BoundReport(
        _STATEMENTS[quantity][0],
        sigma,
        chosen,
        float(np.exp(logs[worst])),
        float(L[usable][worst]),
        (float(np.median(ratios)), float(np.max(ratios))),
        admissible,
        None if growth is None else growth == _NONE,
        reasons,
        _notes(curve, chosen, admissible, growth),
    )


class _Growth(NamedTuple):
    """Error/bound grows like (ln L)^power e^{c sqrt(ln L)} if c_2 is the supremum."""

    power: float
    c: float

    def slope(self, log_length: float) -> float:
        """d/d ln L of the logarithm of that order."""
        return self.power / log_length + self.c / (2 * math.sqrt(log_length))


_NONE = _Growth(0.0, 0.0)


def _growth(curve: xr.Dataset) -> _Growth:
    """By the exponents at the top of this file."""
    quantity, kappa = curve.attrs["quantity"], float(curve.attrs["kappa"])
    if kappa < 0.5 * (1 - _SAME):
        return _NONE
    beta = log_exponent(curve.attrs)
    assert beta is not None  # for the type checker: the quantity has a statement
    # the average is carried by the score variance ln L / sqrt(1/4 + 1/kappa)
    c = float(curve.attrs["kappa_shift"]) / kappa / (0.25 + 1 / kappa) ** 0.25
    return _Growth(max(beta - _STATEMENTS[quantity][2], 0.0), c if c > _SAME else 0.0)


def log_exponent(attrs: Mapping[str, Any]) -> float | None:
    """beta of L^-theta (ln L)^beta, by the rule at the top of this file; None for quantities that
    have none.
    """
    kappa, read = float(attrs["kappa"]), int(attrs["kappa_read"])
    powers = {"output": read, "gradient_V": 1, "gradient_U": 2 + read}
    power = powers.get(attrs.get("quantity", ""))
    if power is None:
        return None
    if kappa < 0.5 * (1 - _SAME):
        return 0.0
    critical = kappa <= 0.5 * (1 + _SAME)
    return int(attrs["kappa_multiplicity"]) / 2 + power - (0 if critical else 1)


@_checks.accepts(curve=xr.Dataset)
def largest_c2(curve: xr.Dataset, c1: ArrayInput) -> float:
    """Largest c_2 for which the bound with `c1` dominates the curve at all its lengths L >= 2.

    If it is <= 0, no c_2 > 0 serves.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> mu = lp.Gaussian(jnp.zeros(1), jnp.eye(1))
    >>> head = lp.Head(U=jnp.eye(1), V=jnp.eye(1))
    >>> curve = lp.concentration_curve(head, mu, mu, [2.0, 100.0, 1e6])
    >>> print(f"{lp.largest_c2(curve, c1=5.0):.3f}")
    0.915
    """
    constant = _checks.number("c1", c1, "pass a constant > 0", above=0.0)
    L, value, quantity = _of_a_proposition(curve)
    sigma = _sigma(curve)
    usable = (L >= 2) & np.isfinite(L)
    if not usable.any():
        raise _checks.error("the curve needs lengths L >= 2", str(L.tolist()), "add some")
    room = math.log(constant) + _log_shape(quantity, 0.0, sigma, L[usable]) - np.log(value[usable])
    return float(np.min(sigma**2 * room / np.log(L[usable])))


def _of_a_proposition(curve: xr.Dataset) -> tuple[np.ndarray, np.ndarray, str]:
    """Lengths, values and quantity of a curve that one of the propositions bounds."""
    L, value, _ = columns(curve, "quantity", "tokens", "queries", "centred")
    quantity = curve.attrs["quantity"]
    if quantity not in _STATEMENTS:
        raise _checks.error(
            "the propositions bound the squared errors of the output and of its gradients",
            f"a curve of {quantity!r}",
            "pass a curve of lp.OutputError() or lp.GradientError('U' or 'V')",
        )
    return L, value, quantity


def _sigma(curve: xr.Dataset) -> float:
    if "sigma" not in curve.attrs:
        raise _checks.error(
            "the bounds need the sub-Gaussian parameter of the tokens",
            f"{curve.attrs['tokens']} tokens, which know none",
            "add a method subgaussian_proxy to the measure",
        )
    return float(curve.attrs["sigma"])


def _notes(
    curve: xr.Dataset, c2: float, admissible: float | None, growth: _Growth | None
) -> tuple[str, ...]:
    found = []
    if not curve.attrs["centred"]:
        found.append("the propositions are for centred tokens and queries; these are not centred")
    proxy = curve.attrs.get("query_proxy", math.inf)
    if proxy > 1 + 1e-12:
        found.append(
            f"the propositions are for 1-sub-Gaussian queries; these have variance proxy "
            f"{proxy:.3g}"
        )
    if growth is not None and growth != _NONE:
        found.append(
            f"the supremum {admissible:.3g} of c_2 is not attained: with it no c_1 serves all L"
        )
    if admissible is not None and c2 > admissible:
        found.append(
            f"c_2 = {c2:.3g} exceeds {admissible:.3g}: it dominates on these lengths, and on no "
            "infinite range"
        )
    return tuple(found)
