"""Moments of two softmaxes of jointly Gaussian scores: two heads, or two queries, on one prompt.

The tokens i = 1..L have iid centred Gaussian pairs of scores (s_i, r_i) with deviations sigma_a and
sigma_b and correlation rho; p = softmax(s), q = softmax(r). With S = sum e^{s_i}, R = sum e^{r_i},

    1/(S^K R^M) = int int t^{K-1} w^{M-1} e^{-tS - wR} dt dw / (Gamma(K) Gamma(M))

turns a moment E prod_a sum_i p_i^{k_a} q_i^{l_a} into a sum over set partitions of the factors of
integrals over (t, w) of products of the one-token functions

    phi_kl(t, w) = E[e^{ks + lr} exp(-t e^s - w e^r)].

Both integrals, over (ln t, ln w) and over the scores, are trapezoidal sums on uniform lattices, so
phi_kl on all pairs of nodes is a product of matrices: t by s, the normal density of (s, r), r by w.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import _checks
from .._arrays import Values, library
from .._lengths import length_array
from .._linalg import safe_sqrt
from .._typing import Array, ArrayInput
from . import _small_variance
from ._domain import apply, apply_at, checked_deviation, checked_range
from ._laplace import DROP, Probes, frozen, laplace_window
from .partitions import Block, merged_blocks
from .weight_moments import finite_length

LARGEST = 12.0  # beyond this deviation the lattice of scores is too coarse
SCORE_NODES = 480
FINE = 0.27  # step of the scores in NumPy; the shapes of JAX do not depend on values
# of ln t and of ln w: different, for on equal lattices the errors of parallel scores add up
LAPLACE_NODES = (154, 192)
# The density of (s, r) is resolved if sqrt(1 - rho^2) is at least this many steps of the lattice.
RESOLVED_STEPS = 1.25
DISPLACEMENTS = 17  # of r from rho s, for correlations closer to 1 or -1
TOP = 3  # largest order of p or q in a block
PROBES: Probes = ((1,), (4,), (1, 1))
# The second orders l that occur with each first order k in the moments below.
_ORDERS = {0: (0, 1, 2), 1: (0, 1, 2, 3), 2: (0, 1, 2), 3: (1,)}
_ROUNDING, _SAFETY = 1e-12, 4.0
_UNDERFLOW = 1e-250


class PairMoments(eqx.Module):
    """Moments of two softmaxes p and q on one prompt, float64, and an estimate of the relative
    error.

    With $A_2 = sum p_i^2, B_2 = sum q_i^2$ and $C_kl = sum p_i^k q_i^l$.
    """

    c11: Float[Array, "..."]  # E C_11
    c21: Float[Array, "..."]  # E C_21
    c12: Float[Array, "..."]  # E C_12
    c22: Float[Array, "..."]  # E C_22
    a2c11: Float[Array, "..."]  # E A_2 C_11
    b2c11: Float[Array, "..."]  # E B_2 C_11
    a2b2: Float[Array, "..."]  # E A_2 B_2
    c11_squared: Float[Array, "..."]  # E C_11^2
    error: Float[Array, "..."]

    def functions(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The functions c, alpha, beta, delta and both of `pair_table`, and the same with all terms
        positive.
        """
        terms = (
            (self.c11, 0.0),
            (2 * self.a2c11, 2 * self.c21),
            (2 * self.b2c11, 2 * self.c12),
            (self.c11 + self.c11_squared, self.c21 + self.c12),
            (self.a2b2, 0.0),
        )
        return tuple(more - less for more, less in terms), tuple(map(sum, terms))


def reach_of(sigma: Values, L: Values) -> Values:
    """Largest |score|/sigma that matters: a normal tail around the largest tilt k sigma, or around
    the score of a token that alone outweighs all others.
    """
    xp = library(sigma, L)
    log_L, wide = xp.log(L), xp.maximum(sigma, 1e-3)
    is_frozen = wide**2 > 2 * log_L
    dominant = xp.where(is_frozen, xp.sqrt(2 * log_L), log_L / wide + wide / 2)
    return xp.minimum((TOP + 1) * sigma + math.sqrt(2 * DROP), xp.sqrt(2 * DROP + dominant**2))


def score_nodes(sigma_a: Values, sigma_b: Values, reach: Values) -> int:
    """Nodes for all scores up to the reach: for JAX always the largest number.

    With z = t e^s, e^{-z} changes on the scale 1 of s, and its product with the normal density has
    a width of at least 1/sqrt(1 + sigma reach) in s/sigma.
    """
    if library(sigma_a, sigma_b, reach) is jnp:
        return SCORE_NODES
    sigma = max(np.real(sigma_a), np.real(sigma_b), 1e-3)
    step = min(FINE / sigma, 0.75 / math.sqrt(1 + sigma * reach))
    return min(SCORE_NODES, math.ceil(2 * reach / step) + 1)


def _displacements(share: Values) -> tuple[np.ndarray, Values]:
    """Nodes y, and weights with sum_m weight_m f(y_m) = E f(sqrt(share) g), 0 <= share <= 1.

    The nodes are those of Gauss and Hermite for share = 1. f is interpolated on them and averaged
    exactly, so the weights are polynomials in `share`, with every derivative at share = 0.
    """
    nodes, gauss = np.polynomial.hermite_e.hermegauss(DISPLACEMENTS)
    weights = 0.0
    for j in range(DISPLACEMENTS // 2 + 1):
        unit = np.eye(2 * j + 1)[-1]
        hermite = np.polynomial.hermite_e.hermeval(nodes, unit) * gauss / gauss.sum()
        weights = weights + hermite * (share - 1) ** j / (2**j * math.factorial(j))
    return nodes, weights


def powers(y: Values) -> Values:
    """1 - e^{-z} and z^l e^{-z}, l = 0..TOP, on a leading axis; z = e^y."""
    xp = library(y)
    z = xp.exp(xp.minimum(y, 7.0))  # beyond, e^{-z} is 0
    decay = xp.exp(-z)
    rows = [-xp.expm1(-z), decay]
    for _ in range(TOP):
        rows.append(rows[-1] * z)
    return xp.stack(rows)


def _second_functions(x: Values, omega: Values, sigma: Values, rho: Values) -> Values:
    """`powers` of ln w + r averaged over r given s = sigma_a x, times the weight of x.

    Shape (2 + TOP, w, x).
    """
    xp = library(x, omega, sigma, rho)
    step = x[1] - x[0]
    square = 1 - rho**2
    nearest = (RESOLVED_STEPS * step) ** 2
    normal = xp.exp(-(x**2) / 2) * step / math.sqrt(2 * math.pi)

    def by_density(_: Any) -> Values:
        distance = (x[:, None] - rho * x) ** 2 / square
        scale = step / xp.sqrt(2 * math.pi * square)
        density = scale * xp.exp(-0.5 * distance) * normal
        return powers(omega[:, None] + sigma * x) @ density

    def by_displacement(_: Any) -> Values:
        nodes, weights = _displacements(square / nearest)
        nodes = nodes * xp.sqrt(nearest)
        y = omega[:, None] + sigma * rho * x
        if xp is np:  # where scores are parallel only one displacement has a weight
            seen = np.flatnonzero(np.abs(weights) > 1e-15)
            total = sum(weights[i] * powers(y + sigma * nodes[i]) for i in seen)
        else:
            total = jax.lax.fori_loop(
                0,
                DISPLACEMENTS,
                lambda i, sum_: sum_ + weights[i] * powers(y + sigma * nodes[i]),
                jnp.zeros((2 + TOP, *y.shape)),
            )
        return total * normal

    resolved = frozen(square) >= nearest
    if xp is np:
        return by_density(None) if resolved else by_displacement(None)
    return jax.lax.cond(resolved, by_density, by_displacement, None)


def log_of_phi(tail: Values, phi: Values, least: Values = _UNDERFLOW) -> tuple[Values, Values]:
    """log phi_00 from 1 - phi_00 where that is small, and where phi_00 is above the `least`.

    Far out in a corner of the lattice it has, and nothing is left to integrate.
    """
    xp = library(tail, phi)
    good, near = phi > least, tail < 0.5
    small = xp.log1p(-xp.where(near, tail, 0.5))
    return xp.where(near, small, xp.log(xp.where(near | ~good, 1.0, phi))), good


def aliasing(step: Values) -> Values:
    """Relative error of sums over a lattice of scores with this step.

    At the frequency f = 2 pi/step, z^4 e^{-z} as a function of ln z has |Gamma(4 + if)| left of its
    integral Gamma(4).
    """
    frequency = 2 * math.pi / (step + 1e-3)
    decay = library(step).exp(-math.pi / 2 * frequency)
    return math.sqrt(2 * math.pi) * frequency ** (TOP + 0.5) * decay / math.factorial(TOP)


def collected(moment: Callable[..., Values], lattice_error: Values) -> tuple[Values, ...]:
    """The fields of `PairMoments`, where moment((k, l), ...) is E prod of sum_i p_i^k q_i^l.

    Sums of p and of q are 1: factors (1, 0) and (0, 1) test the integrals over t and w. They do not
    see the lattice of scores, for scores on a lattice have softmaxes too.
    """
    c11, c21, c12, c22 = moment((1, 1)), moment((2, 1)), moment((1, 2)), moment((2, 2))
    a2c11, b2c11 = moment((2, 0), (1, 1)), moment((0, 2), (1, 1))
    a2b2, c11_squared = moment((2, 0), (0, 2)), moment((1, 1), (1, 1))
    p, q = (1, 0), (0, 1)
    gaps = [
        moment(p, q) - 1,
        moment((1, 1), p, q) / c11 - 1,
        moment((2, 1), p) / c21 - 1,
        moment((1, 2), q) / c12 - 1,
        moment((2, 0), q, q) / moment((2, 0), q) - 1,
        moment((0, 2), p, p) / moment((0, 2), p) - 1,
    ]
    xp = library(gaps)
    error = _ROUNDING + lattice_error + _SAFETY * xp.max(xp.abs(xp.stack(gaps)))
    return c11, c21, c12, c22, a2c11, b2c11, a2b2, c11_squared, frozen(error)


class OneToken(NamedTuple):
    """Functions of one token at all pairs of nodes (t, w), and the lattices behind them."""

    phi: dict[Block, Values]  # t^k w^l phi_kl
    log_phi: Values  # ln phi_00
    good: Values  # whether it has not underflowed
    omega: Values  # ln w
    step: Values  # of ln t times that of ln w
    x: Values  # scores in units of their deviations
    spacing: Values  # of the wider scores


def correlation(variance_a: Values, variance_b: Values, covariance: Values) -> Values:
    """Correlation of two scores; 0 where one of them is constant.

    Rounding is clipped from the value, not from the derivatives.
    """
    xp = library(variance_a, variance_b, covariance)
    product = safe_sqrt(variance_a) * safe_sqrt(variance_b)
    positive = product > 0
    ratio = xp.where(positive, covariance / xp.where(positive, product, 1.0), 0.0)
    return ratio + frozen(xp.clip(ratio, -1.0, 1.0) - ratio)


def one_score(variance: Values, x: Values) -> tuple[Values, Values, Values]:
    """(scores, weights w_l of each, unit) of `_small_variance`, on its nodes where the variance is
    small and on the lattice x otherwise.
    """
    xp, scale = library(variance, x), _small_variance.SCALE
    normal = xp.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    if xp is np:
        sigma = np.sqrt(variance)
        return sigma * x, normal[None], sigma
    tiny = variance < scale**2
    sigma = jnp.sqrt(jnp.where(tiny, 1.0, variance))
    missing = x.size - _small_variance.NODES
    nodes = np.pad(scale * _small_variance.nodes(), (0, missing))
    share = jnp.where(tiny, variance, 0.0) / scale**2
    weights = _small_variance.weights(share, _small_variance.NODES)
    return (
        jnp.where(tiny, nodes, sigma * x),
        jnp.where(
            tiny,
            jnp.pad(weights, ((0, 0), (0, missing))),
            _small_variance.of_normal(x, normal),
        ),
        jnp.where(tiny, scale, sigma),
    )


def _averages(
    variance_a: Values, variance_b: Values, covariance: Values, x: Values, lattices: tuple
) -> tuple[Values, dict[Block, Values]]:
    """1 - phi_00, and t^k w^l phi_kl, where both deviations are resolved by x."""
    xp = library(variance_a, variance_b, covariance, x, lattices)
    tau, omega = lattices
    sigma_a, sigma_b = safe_sqrt(variance_a), safe_sqrt(variance_b)
    rho = correlation(variance_a, variance_b, covariance)
    first = powers(tau[:, None] + sigma_a * x)
    second = _second_functions(x, omega, sigma_b, rho)
    normal = xp.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    return _products(first, second.mT, first[0] @ normal)


def _smooth_averages(
    variance_a: Values, variance_b: Values, covariance: Values, x: Values, lattices: tuple
) -> tuple[Values, dict[Block, Values]]:
    """The same where one of the deviations is small: smooth in the variances and covariance."""
    sides = one_score(variance_a, x), one_score(variance_b, x)
    first, second = (
        powers(lattice[:, None] + scores) @ weights.T
        for lattice, (scores, weights, _) in zip(lattices, sides, strict=True)
    )
    mixed = _small_variance.powers_over_factorials(covariance / (sides[0][2] * sides[1][2]))
    return _products(first, (second * mixed).mT, first[0, :, 0])


def _products(first: Values, second: Values, tail: Values) -> tuple[Values, dict[Block, Values]]:
    # 1 - e^{-z-z'} = (1 - e^{-z}) + e^{-z} (1 - e^{-z'}): no digits are lost at small t and w
    found: dict[Block, Values] = {
        (k, l): first[k + 1] @ second[l + 1] for k, ls in _ORDERS.items() for l in ls
    }
    return tail[:, None] + first[1] @ second[0], found


def one_token(
    variance_a: Values, variance_b: Values, covariance: Values, placement: Sequence
) -> OneToken:
    """The functions of one token on lattices placed at (low_a, low_b, high_a, high_b, reach)."""
    xp = library(variance_a, variance_b, covariance, placement)
    sigma_a, sigma_b = safe_sqrt(variance_a), safe_sqrt(variance_b)
    low_a, low_b, high_a, high_b, reach = placement
    x = reach * np.linspace(-1.0, 1.0, score_nodes(sigma_a, sigma_b, reach))
    unit_a, unit_b = (np.linspace(0.0, 1.0, nodes) for nodes in LAPLACE_NODES)
    tau, omega = low_a + (high_a - low_a) * unit_a, low_b + (high_b - low_b) * unit_b
    step = (tau[1] - tau[0]) * (omega[1] - omega[0])

    args = (variance_a, variance_b, covariance, x, (tau, omega))
    if xp is np:
        least, (tail, phi) = _UNDERFLOW, _averages(*args)
    else:
        tiny = frozen(xp.minimum(variance_a, variance_b)) < _small_variance.SCALE**2
        least = jnp.where(tiny, _small_variance.ROUNDING, _UNDERFLOW)
        tail, phi = jax.lax.cond(tiny, _smooth_averages, _averages, *args)
    log_phi, good = log_of_phi(tail, phi[0, 0], least)
    spacing = xp.maximum(sigma_a, sigma_b) * (x[1] - x[0])
    return OneToken(phi, log_phi, good, omega, step, x, spacing)


def _one_pair(
    variance_a: Values, variance_b: Values, covariance: Values, L: Values, *placement: Values
) -> tuple[Values, ...]:
    """The fields of `PairMoments` for one pair: scalars."""
    xp = library(variance_a, variance_b, covariance, L)
    token = one_token(variance_a, variance_b, covariance, placement)
    phi, log_phi, good, _, step, *_ = token
    weight = xp.where(good, step * xp.exp(L * log_phi), 0.0)
    scale = xp.exp(xp.log(L) - log_phi)
    ratio = {kl: xp.where(good, scale * phi[kl], 0.0) for kl in phi if kl != (0, 0)}

    def moment(*factors: Block) -> Values:
        """E prod_a sum_i p_i^{k_a} q_i^{l_a} for factors (k_a, l_a)."""
        total = 0.0
        for blocks, multiplicity in merged_blocks(factors):
            product, ways = weight, float(multiplicity)
            for used, block in enumerate(blocks):
                product, ways = product * ratio[block], ways * (1 - used / L)
            # in a compiled program one sum at the end is shorter
            total = total + ways * (product.sum() if xp is np else product)
        orders = map(sum, zip(*factors, strict=True))
        return xp.sum(total) / math.prod(math.factorial(order - 1) for order in orders)

    return collected(moment, aliasing(token.spacing))


def _kernel(
    variance_a: Values, L: Values, variance_b: Values, covariance: Values
) -> tuple[Values, ...]:
    """The fields of `PairMoments` for vectors of arguments."""
    xp = library(variance_a, L, variance_b, covariance)
    finite, L = finite_length(L)
    if xp is np and not np.any(finite):  # an infinite prompt has no moments: nothing to integrate
        return (np.zeros_like(L),) * len(dataclasses.fields(PairMoments))
    deviations = xp.sqrt(frozen(xp.stack([variance_a, variance_b])))
    lengths = frozen(xp.stack([L, L]))
    window = laplace_window(deviations, lengths, PROBES)
    reach = xp.max(reach_of(deviations, lengths), axis=0)
    args = (variance_a, variance_b, covariance, L, *window.low, *window.high, reach)
    return tuple(xp.where(finite, value, 0.0) for value in for_each_row(_one_pair, args))


def for_each_row(function: Callable[..., tuple], columns: tuple[Values, ...]) -> Any:
    """The columns of the results of a function, called with one entry of every given column."""
    if library(*columns) is jnp:
        return jax.lax.map(lambda row: function(*row), columns)
    rows = [function(*row) for row in zip(*columns, strict=True)]
    return map(np.array, zip(*rows, strict=True))


def resolved_deviation(name: str, sigma: ArrayInput, power: int = 1) -> Array | np.ndarray:
    """Validate score deviations, from 0 to LARGEST, or their powers, and cast them to float64."""
    array = checked_deviation(name, sigma, power)
    return _checks.require(
        array,
        array > LARGEST**power,
        rule=f"the deviations of pair moments must be at most {LARGEST:g}",
        received="a larger one",
        fix="scale the heads down, or sample the prompts",
    )


def checked_correlation(name: str, rho: ArrayInput) -> Array | np.ndarray:
    """Validate correlations, from -1 to 1, and cast them to float64."""
    rule = "rho must be a correlation, from -1 to 1"
    fix = "pass u_a' G u_b / (sigma_a sigma_b), clipped if rounding took it out of the range"
    return checked_range(name, "rho", rho, -1.0, 1.0, rule, fix)


def pair_moments(
    sigma_a: ArrayInput, sigma_b: ArrayInput, rho: ArrayInput, L: ArrayInput
) -> PairMoments:
    r"""Moments of two softmaxes of L jointly Gaussian scores: deviations `sigma_a` and `sigma_b`
    from 0 to 12, correlation `rho` from -1 to 1.

    `L` is real, from 1 to 1e100, or infinity. Arguments broadcast. Works under jit, vmap and grad
    in 64-bit mode; concrete arguments give float64 in any mode. The cost does not depend on L. The
    relative error is below 1e-9 for deviations up to 6 and L up to 1e9, and is estimated in
    `error`.

    >>> import largeprompt as lp
    >>> found = lp.pair_moments(1.0, 1.0, -1.0, 10)  # opposite scores
    >>> print(f"{found.c11:.10f} {found.a2b2:.10f}")
    0.0455528362 0.0382168100
    """
    name = "pair_moments"
    sigma_a, sigma_b = (resolved_deviation(name, sigma) for sigma in (sigma_a, sigma_b))
    rho, L = checked_correlation(name, rho), length_array(L, name)
    shapes = [np.shape(array) for array in (sigma_a, sigma_b, rho, L)]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise _checks.error(
            "sigma_a, sigma_b, rho and L must broadcast",
            f"shapes {', '.join(map(str, shapes))}",
            "add axes, for example sigma_a[:, None] against L[None, :]",
        ) from error
    return PairMoments(*apply(name, _kernel, sigma_a, L, sigma_b**2, rho * sigma_a * sigma_b))


def pair_moments_at(
    variance_a: ArrayInput, variance_b: ArrayInput, covariance: ArrayInput, L: ArrayInput
) -> PairMoments:
    """`pair_moments` for scores of these variances and covariance, smooth in them, also at 0."""
    name = "pair_moments"
    variance_a, variance_b = (resolved_deviation(name, v, 2) for v in (variance_a, variance_b))
    return PairMoments(*apply_at(name, _kernel, variance_a, L, variance_b, covariance))
