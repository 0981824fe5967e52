"""Rates and regimes: the sharp exponent, the three phases of softmax weights, and a related rate.

Let x = sigma^2 / ln L. As L grows with x fixed, P_2 = E sum_i p_i^2 = L^{-f(x) + o(1)} with
f(x) = 1 - x up to x = 2/3 (the weights average), (1 - x/2)^2 / (2x) up to x = 2 (a few rare tokens
carry them), 0 beyond (frozen: softmax is a maximum). For a random query the average over sigma
gives the exponent `sharp_exponent`.
"""

import math
from typing import Literal, NamedTuple

import numpy as np
import xarray as xr

from .. import _checks
from .._float64 import not_traced
from .._lengths import one_length
from .._linalg import covariance_root
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure, Gaussian
from ..participation import moment_functions

_AVERAGING, _FROZEN = 2 / 3, 2.0  # thresholds in sigma^2 / ln L


def sharp_exponent(kappa: ArrayInput) -> float:
    """Exponent theta of $E_z E |T_L - T|^2 = L^{-theta + o(1)}$ for Gaussian tokens and queries.

    theta = 1 for kappa <= 1/2 and $sqrt(1/4 + 1/kappa) - 1/2$ above, where kappa is lambda_max of
    the covariance of the query seen through U'GU (`steepness`). Above 1/2 the average is carried by
    rare large queries.

    >>> import largeprompt as lp
    >>> print([round(lp.sharp_exponent(kappa), 3) for kappa in (0.25, 0.5, 1, 4)])
    [1.0, 1.0, 0.618, 0.207]
    """
    kappa = _checks.number("kappa", kappa, "pass lambda_max(U'GU)", least=0.0)
    if kappa <= 0.5:
        return 1.0
    # the same number without cancellation at large kappa
    return 1 / kappa / (math.sqrt(0.25 + 1 / kappa) + 0.5)


def steepness(head: AbstractHead, mu: Gaussian, nu: Gaussian) -> float:
    """kappa = lambda_max(C^{1/2} U'GU C^{1/2}) of tokens N(., G) and queries N(., C), the argument
    of `sharp_exponent`.
    """
    U, G, C = (np.asarray(a, np.float64) for a in (head.U, mu.covariance, nu.covariance))
    return float(np.linalg.norm(covariance_root(G).T @ U @ covariance_root(C), 2) ** 2)


class Regime(NamedTuple):
    """Regime of a score deviation and a length.

    Exact, for this sigma and L: `p2` = E sum_i p_i^2 (1/p2 is the effective number of tokens) and
    `relative_error`, the squared error of a scalar output divided by that of one token; NaN where
    `participation` does not resolve them. Asymptotic, as L grows at fixed `x` = sigma^2/ln L: the
    regime's `name`, the exponent f(x), and the lengths of the transitions.
    """

    name: Literal["self-averaging", "rare tokens", "frozen"]
    x: float
    exponent: float
    averaging_from: float
    frozen_until: float
    p2: float
    relative_error: float
    sentence: str


def regime_exponent(x: float) -> float:
    """f(x): P_2 = L^{-f(x) + o(1)} at sigma^2 = x ln L."""
    if x <= _AVERAGING:
        return 1 - x
    return (1 - x / 2) ** 2 / (2 * x) if x < _FROZEN else 0.0


def regime(sigma: ArrayInput, L: ArrayInput) -> Regime:
    """Regime of a prompt of L tokens with scores of deviation sigma: is it long enough?

    P_2 and the squared error are exact. At one query the error of tokens N(0, 1) and a scalar
    output is $P_2 + sigma^2 (P_2 - 6 P_3 + 6 P_22)$, which is $1 + sigma^2$ for one token. The
    regime is asymptotic: weights average themselves for $L >= e^{1.5 sigma^2}$, are carried by a
    few rare tokens below, and by the largest score alone for $L <= e^{sigma^2/2}$. These
    thresholds are sharp as L grows; at moderate L they are cross-overs, and P_2 tells how
    far along.

    >>> import largeprompt as lp
    >>> here = lp.regime(sigma=3.0, L=1000)
    >>> (here.name, round(1 / here.p2, 1), round(here.relative_error, 3))
    ('rare tokens', 7.3, 0.035)
    >>> (round(here.exponent, 3), f"{here.averaging_from:.1e}")
    (0.047, '7.3e+05')
    """
    sigma = _checks.number(
        "sigma", sigma, "pass the standard deviation sqrt(u'Gu) of the scores", least=0.0
    )
    L = one_length(L)
    variance = sigma * sigma  # a product overflows to infinity, a power raises
    x = variance / math.log(L) if L > 1 else (math.inf if variance > 0 else 0.0)
    averaging_from, frozen_until = (
        _exponential(c * variance) for c in (1 / _AVERAGING, 1 / _FROZEN)
    )
    exponent = regime_exponent(x)
    p2, relative_error = _exact(sigma, L)
    if x <= _AVERAGING:
        name = "self-averaging"
        asymptotic = (
            f"the weights are self-averaging, P_2 ~ L^-{exponent:.2f}; "
            f"the error falls like 1/L well beyond {_tokens(averaging_from)}."
        )
    elif x < _FROZEN:
        name = "rare tokens"
        asymptotic = (
            f"a few rare tokens carry the weights, P_2 ~ L^-{exponent:.2f}; "
            f"averaging sets in at {_tokens(averaging_from)}."
        )
    else:
        name = "frozen"
        asymptotic = f"softmax is frozen to a hard maximum, up to {_tokens(frozen_until)}."
    asymptotic = f"Asymptotically (sigma^2/ln L = {x:.2g}) {asymptotic}"
    sentence = f"{_in_words(p2, relative_error)} {asymptotic}"
    return Regime(name, x, exponent, averaging_from, frozen_until, p2, relative_error, sentence)


def _exact(sigma: float, L: float) -> tuple[float, float]:
    """P_2, and the squared error relative to one token, for tokens N(0, 1)."""
    if L == 1:
        return 1.0, 1.0
    if math.isinf(L):
        return 0.0, 0.0
    p2, other = moment_functions(np.array([sigma]), L)[:, 0].tolist()
    inverse = 1 / sigma if sigma > 0 else math.inf
    share = 1 / (1 + inverse * inverse)
    return p2, (1 - share) * p2 + share * (2 * p2 - other)


def _in_words(p2: float, relative_error: float) -> str:
    if p2 == 0:
        return "The infinite prompt has no error."
    count = 1 / p2
    number = f"{count:.1f}" if count < 1e4 else f"{count:.1e}"
    tokens = "1 token" if p2 == 1 else f"{number} equal tokens"
    return (
        f"The weights are worth {tokens} (the expected sum of their squares is P_2 = {p2:.2g}), "
        f"and the squared error is {relative_error:.2g} of that of one token."
    )


def regime_map(sigma_max: float = 8.0, longest: float = 1e12, resolution: int = 200) -> xr.Dataset:
    """Data of `lp.plots.regimes`: `exponent` f(sigma^2 / ln L) over ("sigma", "length"), and
    the transitions over "sigma".

    >>> import largeprompt as lp
    >>> lp.regime_map(resolution=50).exponent.shape
    (50, 50)
    """
    top = _checks.number("sigma_max", sigma_max, "pass for example 8", above=0.0)
    end = _checks.number("longest", longest, "pass for example 1e12", above=2.0)
    count = _checks.count("resolution", resolution)
    sigma, L = np.linspace(0, top, count), np.geomspace(2, end, count)
    exponents = [[regime_exponent(s**2 / math.log(length)) for length in L] for s in sigma]
    transitions = {
        name: ("sigma", [_exponential(c * s**2) for s in sigma])
        for name, c in (("averaging_from", 1 / _AVERAGING), ("frozen_until", 1 / _FROZEN))
    }
    return xr.Dataset(
        {"exponent": (("sigma", "length"), exponents), **transitions}, {"sigma": sigma, "length": L}
    )


def _exponential(x: float) -> float:
    return math.exp(x) if x < 709 else math.inf


def _tokens(count: float) -> str:
    if math.isinf(count):
        return "more than 1e308 tokens"
    number = f"{count:.0f}" if count < 1e4 else f"{count:.1e}"
    return f"about {number} token{'' if number == '1' else 's'}"


class Horizon(NamedTuple):
    """$H = |Sig^{1/2} U Sig^{1/2}|_2$, the rate $1/(2(1+H^2))$ of Bohbot et al. for the law of the
    output, and the pointwise rate.
    """

    H: float
    output_law_rate: float
    pointwise_rate: float


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
@not_traced
def horizon(head: AbstractHead, mu: AbstractMeasure) -> Horizon:
    """Two rates of self-attention, where queries are drawn like the tokens (nu = mu Gaussian).

    Bohbot et al. (Token Sample Complexity, 2026) bound moments of the law of the output by
    n^-beta, beta = 1/(2(1+H^2)). The root-mean-square error of T_L(z) itself decays like
    $L^{-theta/2}$, theta = `sharp_exponent(H^2)`. These are different quantities; H slows both. The
    rates of a `MultiHead` are those of its steepest head, the largest H: the error of a sum falls
    at least as fast as the slowest of its terms.

    >>> import jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head = lp.Head(U=jnp.eye(2), V=jnp.eye(2))
    >>> print(lp.horizon(head, lp.Gaussian(jnp.zeros(2), jnp.eye(2))))
    Horizon(H=1.0, output_law_rate=0.25, pointwise_rate=0.309...)
    """
    normal = mu.as_gaussian()
    if normal is None:
        raise _checks.error(
            "the horizon is defined for Gaussian tokens",
            f"a {type(mu).__name__}",
            "pass Gaussian(mu.mean(), mu.cov()) for the Gaussian of the same moments",
        )
    kappa = max(steepness(one, normal, normal) for one in head.heads)
    return Horizon(math.sqrt(kappa), 1 / (2 * (1 + kappa)), sharp_exponent(kappa) / 2)
