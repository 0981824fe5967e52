"""Averages over a Gaussian query of functions of its score variance, by one-dimensional quadrature.

Let z ~ N(a, C) and S = |F z|^2: the variance of the scores a query sees. For a polynomial q,
divided by a power of S if need be, and any smooth h,

    E[q(z) h(S)] = int h(s) f_q(s) ds,      f_q(s) = 1/(2 pi i) int e^{ps} E[q(z) e^{-pS}] dp,

and E[q e^{-pS}] is closed form: under the (complex) tilt z is again Gaussian.

*Nodes.* With K(p) = log E e^{-pS}, every s is the mean -K'(p) of the law tilted at one real p, and
r = -sign(p) sqrt(-2 (K + ps)), the signed root of its large-deviation rate, is a coordinate in
which every law looks like a standard normal one: narrow and wide laws, edges and far tails alike.
The trapezoidal rule in r therefore needs neither a search for the mass nor a cut-off.

*Density.* The contour is a hyperbola through the saddle point p with asymptotes at 22.5 degrees
from the vertical. On it E e^{-pS + ps}, central or not, falls from its value at the saddle: with
y_i = rho_i (p - saddle),

    exponent = sum_i [y_i - log(1 + y_i)]/2 + tau_i y_i^2/(1 + y_i),

whose real part is <= 0 for angles below 45 degrees.

*Certificate.* E[q e^{-pS}] is known at every real p: the rule must reproduce it across the window,
and E S. The largest relative gap is part of the error of every average.
"""

import math
from typing import NamedTuple

import numpy as np

from .._linalg import covariance_root

STEP = 0.25  # of the coarsest rule in r; halved with every level
_DROP = 42.0  # contours and nodes end where e^-DROP of the peak is left
_ANGLE = math.pi / 8  # halfway between the vertical and 45 degrees: the widest strip of analyticity
_CONTOUR_STEP = 0.07  # e^{-2 pi _ANGLE / step} = 5e-16
_TILTS = 24  # real p at which the rule is compared with E[q e^{-pS}]
_WORK = 2**21  # complex numbers worked on at once
# of E S: below, E[q / S^power | S] is continued as a constant, since q is lost in rounding
_FLOOR = 1e-20


class Feature(NamedTuple):
    """prod_j z'Q_j z / S^power for symmetric matrices Q_j, or a linear form <linear, z>; 0 where
    S = 0 and power > 0.
    """

    factors: tuple[np.ndarray, ...] = ()
    power: int = 0
    linear: np.ndarray | None = None  # only without factors

    def at(self, z: np.ndarray) -> np.ndarray:
        """The polynomial at queries of shape (n, d), not divided by S."""
        if self.linear is not None:
            return z @ self.linear
        return np.prod([np.ones(len(z)), *(np.sum((z @ Q) * z, axis=1) for Q in self.factors)], 0)


class Average(NamedTuple):
    """E[q(z) h(S)] ~ sum_j weights[q, j] h(variances[j]).

    `coarse` are the weights of a coarser rule on the same nodes, `gap` the largest relative error
    of the rule, for each q, on averages that are known in closed form, and `geometric` whether the
    rule's error is about the square of the coarser one's. `points` are S and the weights of random
    points behind the rule, whose tail can be examined.
    """

    variances: np.ndarray
    weights: np.ndarray
    coarse: np.ndarray
    gap: np.ndarray | float = 0.0
    geometric: bool = False
    points: tuple[np.ndarray, np.ndarray] | None = None


class _Form(NamedTuple):
    """S = offset + sum_i (sqrt(lam_i) xi_i + sqrt(shift_i))^2 and z = centre + basis xi, for
    independent standard normals xi_i.

    `pull` is sqrt(lam shift), with its sign.
    """

    centre: np.ndarray
    basis: np.ndarray
    lam: np.ndarray
    shift: np.ndarray
    pull: np.ndarray
    offset: float

    @property
    def pole(self) -> float:
        """The rightmost singularity of E e^{-pS}."""
        return -0.5 / float(self.lam.max())


class _Saddles(NamedTuple):
    """For saddle points p: s = -K'(p), the rate I = K + ps <= 0, the root r, and 1 + 2 p lam_i for
    every lam_i > 0.
    """

    p: np.ndarray
    s: np.ndarray
    rate: np.ndarray
    r: np.ndarray
    dilation: np.ndarray
    lam: np.ndarray
    shift: np.ndarray


def gaussian_average(
    mean: np.ndarray,
    cov: np.ndarray,
    factor: np.ndarray,
    features: list[Feature],
    log_length: float,
    level: int = 0,
) -> Average:
    """The rule for z ~ N(mean, cov), S = |factor z|^2, good for h between 1/L and 1 up to the
    given ln L.
    """
    form = _diagonal(mean, cov, factor)
    if form.lam.max(initial=0.0) <= 0:
        still = np.ones((1, len(form.lam)))
        total = np.real(_polynomials(form, np.zeros(1, complex), still, features))
        at_once = total * inverse_powers(np.array([form.offset]), features)
        return Average(np.array([form.offset]), at_once, at_once)
    step = STEP / 2**level
    reach = math.sqrt(2 * _DROP)
    # the certificate looks further than h needs
    right = math.sqrt(2 * log_length) + reach
    away = _solve(form, step * np.arange(math.ceil(-reach / step) + 0.5, right / step))
    saddles = _saddles(form, away)
    densities = _densities(form, saddles, away, [Feature(), *features])
    # ds/dr = -r/p, since d rate = -r dr and d rate/dp = p ds/dp
    jacobian = np.where(
        saddles.p == 0, np.sqrt(_curvature(saddles)), -saddles.r / _nonzero(saddles.p)
    )
    scaled = densities * jacobian * step
    gap = _gap(form, saddles, scaled, features)
    used = saddles.r <= math.sqrt(2 * (log_length + _DROP))
    s, variances = saddles.s[used], form.offset + saddles.s[used]
    mass, *weighted = (scaled * np.exp(saddles.rate))[:, used]
    weights = np.stack(weighted) * inverse_powers(variances, features)
    lost = s < _FLOOR * float(np.sum(form.lam + form.shift))
    if form.offset == 0 and lost.any():
        first = int(np.argmin(lost))
        for row, feature in zip(weights, features, strict=True):
            if feature.power:
                row[lost] = mass[lost] * row[first] / mass[first]
    every_other = np.where(np.arange(len(s)) % 2 == 0, 2.0, 0.0)
    return Average(variances, weights, weights * every_other, gap, geometric=True)


def inverse_powers(variances: np.ndarray, features: list[Feature]) -> np.ndarray:
    """S^-power for every feature, shape (features, variances); 0 where S = 0 and power > 0."""
    safe = _nonzero(variances, np.inf)
    return np.stack(
        [np.ones_like(safe) if not f.power else safe ** -float(f.power) for f in features]
    )


def _nonzero(x: np.ndarray, instead: float = 1.0) -> np.ndarray:
    return np.where(x == 0, instead, x)


def _diagonal(mean: np.ndarray, cov: np.ndarray, factor: np.ndarray) -> _Form:
    """Singular values of factor x root(cov) rather than eigenvalues: small ones keep twice the
    digits.
    """
    root = covariance_root(cov)
    left, singular, right = np.linalg.svd(factor @ root, full_matrices=False)
    kept = singular > 1e-15 * singular.max(initial=0.0)
    lam = np.where(kept, singular**2, 0.0)
    target = factor @ mean
    along = np.where(kept, left.T @ target, 0.0)
    offset = float(np.sum((target - left @ along) ** 2))
    # rounding must not pass for a part of the mean that the query cannot move
    offset = offset if offset > 1e-28 * float(target @ target) else 0.0
    # directions that S does not see
    unseen = root @ _null_space(right)
    return _Form(
        mean,
        np.concatenate([root @ right.T, unseen], axis=1),
        _padded(lam, unseen),
        _padded(along**2, unseen),
        _padded(np.sqrt(lam) * along, unseen),
        offset,
    )


def _null_space(rows: np.ndarray) -> np.ndarray:
    """Orthonormal columns that complete the given orthonormal rows to a basis."""
    return np.linalg.svd(rows, full_matrices=True)[2][len(rows) :].T


def _padded(values: np.ndarray, unseen: np.ndarray) -> np.ndarray:
    return np.concatenate([values, np.zeros(unseen.shape[1])])


def _saddles(form: _Form, away: np.ndarray) -> _Saddles:
    """Everything at the saddle points p = pole + away."""
    lam, shift = form.lam[form.lam > 0], form.shift[form.lam > 0]
    p = form.pole + away
    dilation = 2 * lam * (away[:, None] + (0.5 / lam + form.pole))
    s = np.sum(lam / dilation + shift / dilation**2, axis=1)
    rate = -0.5 * np.sum(_log_excess(2 * lam * p[:, None] / dilation, dilation), axis=1)
    rate -= 2 * p**2 * np.sum(shift * lam / dilation**2, axis=1)
    return _Saddles(p, s, rate, -np.sign(p) * np.sqrt(-2 * rate), dilation, lam, shift)


def _log_excess(w: np.ndarray, dilation: np.ndarray) -> np.ndarray:
    """Log(dilation) - w >= 0 for w = 1 - 1/dilation, by its series where the two nearly cancel."""
    small = np.abs(w) < 0.1
    x = np.where(small, w, 0.0)
    series = np.polynomial.polynomial.polyval(x, [0.0, 0.0, *(1 / np.arange(2, 18))])
    return np.where(small, series, np.log(dilation) - w)


def _solve(form: _Form, r: np.ndarray) -> np.ndarray:
    """The distances from the pole whose saddle points have the given roots r, by bisection of
    their logarithm.
    """
    low, high = np.full(r.shape, -60.0), np.full(r.shape, 140.0)
    top = float(form.lam.max())
    for _ in range(64):
        middle = (low + high) / 2
        above = _saddles(form, np.exp(middle) / top).r > r
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.exp((low + high) / 2) / top


def _curvature(saddles: _Saddles) -> np.ndarray:
    """K''(p)."""
    scale = saddles.lam / saddles.dilation
    return np.sum(2 * scale**2 + 4 * scale * saddles.shift / saddles.dilation**2, axis=1)


def _densities(
    form: _Form, saddles: _Saddles, away: np.ndarray, features: list[Feature]
) -> np.ndarray:
    """f_q(s) e^{-rate} for every feature q, shape (features, s)."""
    width = 1 / np.sqrt(_curvature(saddles))
    rho = 2 * saddles.lam / saddles.dilation
    tau = saddles.shift / (2 * saddles.lam * saddles.dilation)

    def hyperbola(x: np.ndarray) -> np.ndarray:
        return math.sin(_ANGLE) * (1 - np.cosh(x)) + 1j * math.cos(_ANGLE) * np.sinh(x)

    def exponent(moved: np.ndarray, rows: slice) -> np.ndarray:
        y = rho[rows, None, :] * moved[..., None]
        return np.sum(0.5 * (y - np.log1p(y)) + tau[rows, None, :] * y * y / (1 + y), axis=-1)

    ends = np.arange(2.0, 80.0, 0.5)
    found = []
    block = max(1, _WORK // (len(form.lam) * 2 * len(ends)))
    for start in range(0, len(away), block):
        rows = slice(start, start + block)
        small = np.real(exponent(width[rows, None] * hyperbola(ends), rows)) < -_DROP
        reach = ends[np.argmax(small, axis=1)]
        count = math.ceil(reach.max() / _CONTOUR_STEP)
        step = reach / count
        x = step[:, None] * np.arange(count + 1)
        moved = width[rows, None] * hyperbola(x)
        speed = width[rows, None] * (
            1j * math.cos(_ANGLE) * np.cosh(x) - math.sin(_ANGLE) * np.sinh(x)
        )
        halves = np.where(np.arange(count + 1) == 0, 0.5, 1.0)  # the contour is symmetric
        along = np.exp(exponent(moved, rows)) * speed * (step[:, None] * halves) / math.pi
        from_pole = away[rows, None] + moved
        means = _polynomials(form, form.pole + from_pole, _widths(form, from_pole), features)
        found.append(np.sum((along * means).imag, axis=-1))
    return np.concatenate(found, axis=1)


def _gap(form: _Form, saddles: _Saddles, scaled: np.ndarray, features: list[Feature]) -> np.ndarray:
    """For each feature, the largest relative difference between the rule and E[q e^{-pS}] at real
    p; differences in the mass and in E S count for all.
    """
    p, s, rate = saddles.p, saddles.s, saddles.rate
    gaps, common = [], []
    # further to the left h does not vary; tilts whose mass leaves the window on the right do not
    # count
    for j in np.linspace(int(np.argmax(saddles.r > -2)), len(p) - 1, _TILTS).astype(int):
        tilted = rate - rate[j] - p[j] * (s - s[j])
        if max(tilted[0], tilted[-1]) > -_DROP + 5:
            continue
        terms = scaled * np.exp(tilted)
        from_pole = np.array([p[j] - form.pole], complex)
        widths = _widths(form, from_pole)
        known = _polynomials(form, p[j : j + 1].astype(complex), widths, [Feature(), *features])
        off = np.abs(terms.sum(axis=1) - np.real(known[:, 0]))
        relative = off / np.maximum(np.abs(terms).sum(axis=1), 1e-300)
        common += [relative[0], abs(terms[0] @ s / s[j] - 1)]  # the mass, and the tilted mean
        gaps.append(relative[1:])
    if not gaps:
        return np.full(len(features), np.inf)
    return np.maximum(np.max(gaps, axis=0), max(common))


def _widths(form: _Form, from_pole: np.ndarray) -> np.ndarray:
    """1 / (1 + 2 p lam), at p = pole + from_pole: the variances of xi under the tilt, shape (*p,
    d).
    """
    seen = form.lam > 0
    gaps = 0.5 / _nonzero(form.lam) + form.pole
    dilation = 2 * form.lam * (from_pole[..., None] + gaps)
    return 1 / np.where(seen, dilation, 1.0)


def _trace(A: np.ndarray, B: np.ndarray, C: np.ndarray, v: np.ndarray) -> np.ndarray:
    """tr(A D B D C D) for D = diag of every row of v."""
    d = v.shape[-1]
    left = ((A * v[:, None, :]).reshape(-1, d) @ B.astype(complex)).reshape(-1, d, d)
    return np.sum(((left * C.T) @ v[..., None])[..., 0] * v, axis=-1)


def _polynomials(
    form: _Form, p: np.ndarray, widths: np.ndarray, features: list[Feature]
) -> np.ndarray:
    """E_p of every feature (not divided by S), shape (features, *p.shape); z is Gaussian under the
    tilt by e^{-pS}.
    """
    centre = form.centre + (-2 * p[..., None] * form.pull * widths) @ form.basis.T.astype(complex)
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
        at_once = max(1, _WORK // flat.shape[1] ** 2)
        cuts = list(range(at_once, len(flat), at_once))
        trace = np.concatenate(
            [_trace(inner[a], inner[b], inner[c], v) for v in np.split(flat, cuts)]
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

    def mean(feature: Feature) -> np.ndarray:
        if feature.linear is not None:
            return centre @ feature.linear
        return product(tuple(id(Q) for Q in feature.factors))

    return np.stack([mean(feature) for feature in features])
