"""Averages over a Gaussian query of functions of its score variance, by one-dimensional quadrature.

Let z ~ N(a, C) and S = z'Mz, M positive semi-definite: the variance of the scores a query sees. For a polynomial q, if need be
divided by a power of S, and any smooth h,

    E[q(z) h(S)] = int h(s) f_q(s) ds,      f_q(s) = 1/(2 pi i) int e^{ps} E[q(z) e^{-pS}] dp,

and E[q e^{-pS}] is closed form: under the (complex) tilt z is again Gaussian. The contour is a parabola through the saddle point
that opens around the singularities at p <= -1/(2 lambda_max), so every f_q(s) has full relative accuracy, in the far
tail too, where averages live when lambda_max > 1/2: e^S then outgrows the density of the query.

Nodes are equidistant in ln s. What lies left of the first node is put at s = 0, from the exact total E q.
"""

import math
from typing import NamedTuple

import numpy as np

_CONTOUR = 96  # nodes on half the contour
_NODES = 193  # in s
_SCAN = 512  # values of the density that find where the nodes belong
_FIRST = 1e-8  # first node at the earliest, in units of min(1, E S): h varies over s of order 1
_DROP = 42.0  # contours and nodes end where e^-DROP of the peak is left
_CHUNK = 256  # points of the contour worked on at once where d x d matrices are needed


class Feature(NamedTuple):
    """The function prod_j z'Q_j z / S^power of the query, for symmetric matrices Q_j; 0 where S = 0 and power > 0."""

    factors: tuple[np.ndarray, ...] = ()
    power: int = 0


class Average(NamedTuple):
    """E[q(z) h(S)] ~ sum_j weights[q, j] h(variances[j]); `coarse` are the weights of the rule with every other node."""

    variances: np.ndarray
    weights: np.ndarray
    coarse: np.ndarray


class _Form(NamedTuple):
    """S = offset + sum_i lam_i (xi_i + shift_i)^2 and z = centre + basis xi, for independent standard normals xi_i."""

    centre: np.ndarray
    basis: np.ndarray
    lam: np.ndarray
    shift: np.ndarray
    offset: float


def gaussian_average(
    mean: np.ndarray, cov: np.ndarray, M: np.ndarray, features: list[Feature], log_length: float
) -> Average:
    """The rule for z ~ N(mean, cov), S = z'Mz, good for h between 1/L and 1 up to the given ln L."""
    form = _diagonal(mean, cov, M)
    total = np.real(_polynomials(form, np.zeros((1, 1), complex), features))[:, 0, 0]
    top = form.lam.max(initial=0.0)
    average_s = float(np.sum(form.lam * (1 + form.shift**2)))
    if top <= 0 or average_s < 1e-300:
        at_once = total[:, None] * inverse_powers(np.array([form.offset]), features)
        return Average(np.array([form.offset]), at_once, at_once)
    s = _nodes(form, average_s, log_length)
    weights = math.log(s[1] / s[0]) * s * _densities(form, s, features)
    variances = form.offset + np.concatenate([[0.0], s])
    fine = _complete(total, weights, variances, features)
    every_other = _complete(
        total, 2 * weights[:, ::2], variances[[0, *range(1, len(s) + 1, 2)]], features
    )
    coarse = np.zeros_like(fine)
    coarse[:, 0], coarse[:, 1::2] = every_other[:, 0], every_other[:, 1:]
    return Average(variances, fine, coarse)


def inverse_powers(variances: np.ndarray, features: list[Feature]) -> np.ndarray:
    """S^-power for every feature, shape (features, variances); 0 where S = 0 and power > 0."""
    safe = np.where(variances > 0, variances, np.inf)
    return np.stack(
        [np.ones_like(safe) if not f.power else safe ** -float(f.power) for f in features]
    )


def _nodes(form: _Form, average_s: float, log_length: float) -> np.ndarray:
    """Values of s, equidistant in ln s, over all that matters to h between 1/L and 1.

    h increases with s, so left of the bulk nothing is gained, and right of it h may grow by a factor L.
    """
    far = 2 * form.lam.max() * (log_length + _DROP + len(form.lam))
    away = float(np.sum(form.lam * form.shift**2))
    scan = np.geomspace(
        _FIRST * min(1.0, average_s), (math.sqrt(far) + math.sqrt(away)) ** 2, _SCAN
    )
    with np.errstate(divide="ignore"):
        height = np.log(np.maximum(scan * _densities(form, scan, [Feature()])[0], 0.0))
    peak = int(np.argmax(height))
    kept = np.where(
        np.arange(_SCAN) < peak,
        height > height[peak] - _DROP,
        height > height[peak] - _DROP - log_length,
    )
    first, last = np.flatnonzero(kept)[[0, -1]]
    return np.geomspace(scan[first], scan[last], _NODES)


def _complete(
    total: np.ndarray, weights: np.ndarray, variances: np.ndarray, features: list[Feature]
) -> np.ndarray:
    """The weights divided by S^power, preceded by what lies left of the first node.

    That is the exact total less the rest; after a division by S = s the total is not known, and the weights, a power of s there,
    are continued to the left as a geometric series.
    """
    lost = total - weights.sum(axis=1)
    divided = weights * inverse_powers(variances[1:], features)
    for i, feature in enumerate(features):
        if not feature.power:
            continue
        first, second = divided[i, :2]
        if variances[0] > 0:
            lost[i] /= variances[0] ** feature.power
        else:
            lost[i] = first / (second / first - 1) if second > first > 0 else 0.0
    return np.concatenate([lost[:, None], divided], axis=1)


def _diagonal(mean: np.ndarray, cov: np.ndarray, M: np.ndarray) -> _Form:
    variances, axes = np.linalg.eigh(cov)
    kept = variances > 1e-14 * max(variances.max(), 0.0)
    root = axes[:, kept] * np.sqrt(variances[kept])
    lam, rotation = np.linalg.eigh(root.T @ M @ root)
    lam = np.where(lam > 1e-14 * lam.max(initial=0.0), lam, 0.0)
    basis = root @ rotation
    linear = basis.T @ (M @ mean)
    shift = np.where(lam > 0, linear / np.where(lam > 0, lam, 1.0), 0.0)
    offset = float(mean @ M @ mean - np.sum(lam * shift**2))
    # rounding of a difference of equal terms must not pass for a part of the mean that the query cannot move
    return _Form(
        mean, basis, lam, shift, offset if offset > 1e-13 * float(mean @ M @ mean) else 0.0
    )


def _densities(form: _Form, s: np.ndarray, features: list[Feature]) -> np.ndarray:
    """f_q(s) for every feature q, shape (features, s)."""
    lam = form.lam[form.lam > 0]
    shift = form.shift[form.lam > 0]
    pole = -0.5 / lam.max()
    gaps = 0.5 / lam + pole  # distances of the other singularities from the nearest one
    noncentral = shift**2 / (4 * lam)
    saddle = _saddle(s, gaps, noncentral)

    reach = np.sqrt(_DROP / (s * saddle))
    theta = reach[:, None] * (np.arange(_CONTOUR) / (_CONTOUR - 1))
    step = reach / (_CONTOUR - 1)
    away = saddle[:, None] * (1 + 1j * theta) ** 2  # p - pole
    p = pole + away
    distances = away[..., None] + gaps
    # -p lam b^2 / (1 + 2 p lam) = -p (b^2/2) / (p - pole_i)
    exponent = (
        s[:, None] * p
        - 0.5 * np.sum(np.log(2 * lam * distances), axis=-1)
        - p * np.sum(2 * lam * noncentral / distances, axis=-1)
    )
    speed = 2 * saddle[:, None] * (1 + 1j * theta)
    ends = np.where(np.arange(_CONTOUR) == 0, 0.5, 1.0)  # the contour is symmetric about theta = 0
    along = np.exp(exponent) * speed * (step[:, None] * ends) / math.pi
    return np.sum((along * _polynomials(form, p, features)).real, axis=-1)


def _saddle(s: np.ndarray, gaps: np.ndarray, noncentral: np.ndarray) -> np.ndarray:
    """The positive root D of sum_i (1/2)/(D + gap_i) + noncentral_i/(D + gap_i)^2 = s, by bisection in ln D."""
    low = 0.5 / s
    high = (len(gaps) / 2 + np.sqrt(len(gaps) ** 2 / 4 + 4 * s * noncentral.sum())) / (2 * s)
    for _ in range(50):
        middle = np.sqrt(low * high)
        away = middle[:, None] + gaps
        above = np.sum(0.5 / away + noncentral / away**2, axis=1) > s
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.sqrt(low * high)


def _trace(A: np.ndarray, B: np.ndarray, C: np.ndarray, v: np.ndarray) -> np.ndarray:
    """tr(A D B D C D) for D = diag of every row of v."""
    d = v.shape[-1]
    left = ((A * v[:, None, :]).reshape(-1, d) @ B.astype(complex)).reshape(-1, d, d)
    return np.sum(((left * C.T) @ v[..., None])[..., 0] * v, axis=-1)


def _cuts(size: int) -> list[int]:
    return list(range(_CHUNK, size, _CHUNK))


def _polynomials(form: _Form, p: np.ndarray, features: list[Feature]) -> np.ndarray:
    """E_p[prod_j z'Q_j z] for every feature (not divided by S), shape (features, *p.shape), z Gaussian under the tilt by e^{-pS}."""
    widths = 1 / (1 + 2 * p[..., None] * form.lam)
    centre = form.centre + (
        -2 * p[..., None] * form.lam * form.shift * widths
    ) @ form.basis.T.astype(complex)
    matrices = {id(Q): Q for feature in features for Q in feature.factors}
    inner = {key: form.basis.T @ Q @ form.basis for key, Q in matrices.items()}
    pull = {key: (centre @ Q) @ form.basis for key, Q in matrices.items()}

    def first(a: int) -> np.ndarray:
        return widths @ np.diag(inner[a]) + np.sum((centre @ matrices[a]) * centre, axis=-1)

    def second(a: int, b: int) -> np.ndarray:
        trace = np.sum((widths @ (inner[a] * inner[b])) * widths, axis=-1)
        return 2 * trace + 4 * np.sum(pull[a] * widths * pull[b], axis=-1)

    def third(a: int, b: int, c: int) -> np.ndarray:
        flat = widths.reshape(-1, widths.shape[-1])
        trace = np.concatenate(
            [_trace(inner[a], inner[b], inner[c], v) for v in np.split(flat, _cuts(len(flat)))]
        ).reshape(p.shape)
        cross = sum(
            np.sum(((pull[x] * widths) @ inner[y]) * widths * pull[w], axis=-1)
            for x, y, w in ((a, b, c), (b, a, c), (a, c, b))
        )
        return 8 * trace + 8 * cross

    def product(keys: tuple[int, ...]) -> np.ndarray:
        match keys:
            case ():
                return np.ones(p.shape, complex)
            case (a,):
                return first(a)
            case (a, b):
                return second(a, b) + first(a) * first(b)
            case (a, b, c):
                mean = [first(k) for k in keys]
                return (
                    third(a, b, c)
                    + second(a, b) * mean[2]
                    + second(a, c) * mean[1]
                    + second(b, c) * mean[0]
                    + mean[0] * mean[1] * mean[2]
                )
        raise AssertionError("features have at most three factors")

    return np.stack([product(tuple(id(Q) for Q in feature.factors)) for feature in features])
