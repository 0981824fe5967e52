"""Mean and second moments of T_L - T at given queries, exactly, for tokens of Gaussians and atoms.

A head at a query z has the tilt u = U z; a token x has the score s = <u, x>, and S = sum_i e^{s_i}.
With 1/S^K = (1/Gamma(K)) int t^{K-1} e^{-tS} dt, phi = E e^{-t e^s} over one token, and values
V(x - x_inf) measured from the mean token x_inf of the infinite prompt,

    E[T_L - T] = int L phi^{L-1} F dt,    F = V E[e^s (x - x_inf) e^{-t e^s}],
    E[(T_L - T)(T_L - T)'] = int t { L phi^{L-1} Q + L(L-1) phi^{L-2} F F' } dt,
    Q = V E[e^{2s} (x - x_inf)(x - x_inf)' e^{-t e^s}] V'.

Squared errors are traces of these: nothing cancels, and nothing depends on the number of tokens.
`engine_pairs` has the same for two heads or two queries, `engine_traced` for traced arguments.

**One token.** In ln t all is made of B_j = E[e^j e^{-e}], e = t e^s. An atom has a known score. For
a Gaussian component N(m, G), g = G u, Stein's lemma takes the token out of the average,

    E[f (x - m)] = g E f',    E[f (x - m)(x - m)'] = G E f + g g' E f'',    f a function of s,

and the derivatives of e^j e^{-e} in s are j B_j - B_{j+1}. So a component costs averages over its
scores alone, whatever the dimension.

**Accuracy.** The trapezoidal rules in ln t and s converge geometrically: at these steps what they
miss is below 1e-15. E (sum p)^2 = 1 on the same nodes, and sums with all terms positive, bound what
is left. At small t, F is computed from its difference to t = 0, where it vanishes.
"""

import math
from typing import NamedTuple

import numpy as np

from .. import _checks
from .._arrays import Values, library
from .token_laws import TokenLaw

DROP = 37.0  # what has less than e^-37 of the weight is left out
RARE = 400.0  # integrands end where all but e^-400 of the prompts have decayed,
LAST = 50.0  # or at tS = 50 for every prompt
NODE_STEP = 0.22  # of ln t
SCORE_STEP, DENSITY_STEP = 0.2, 0.6  # of scores: absolute, and in deviations
TAIL = math.sqrt(2 * DROP)
LARGEST = 340.0  # of ln(t e^s): the square is finite
AT_ONCE = 2**20  # nodes times scores in memory
WIDEST = 1e8  # the largest difference of scores
MOST = 10**9  # nodes times scores in all
ROUNDING, SAFETY = 2e-14, 4.0


class View(NamedTuple):
    """A law as seen by one head; means and points are relative to x_inf."""

    centre: np.ndarray  # (k,) mean scores of the Gaussians
    deviation: np.ndarray  # (k,)
    pull: np.ndarray  # (k, d) G u
    means: np.ndarray  # (k, d)
    scores: np.ndarray  # (n,) of the atoms
    points: np.ndarray  # (n, d)
    limit: np.ndarray  # (d,) x_inf
    log_mass: float  # ln E e^s


def view(law: TokenLaw, tilt: np.ndarray) -> View:
    """The law seen by a head of this tilt."""
    pull = law.covariances @ tilt
    variance = np.maximum(pull @ tilt, 0.0)
    centre, scores = law.means @ tilt, law.points @ tilt
    exponents = np.concatenate([centre + variance / 2, scores])
    weights = np.concatenate([law.weights, law.point_weights])
    top = exponents[weights > 0].max()
    gate = weights * np.exp(np.minimum(exponents - top, 0.0))
    values = np.concatenate([law.means + pull, law.points])
    # differences to the heaviest part keep their digits where it has nearly all the weight
    heaviest = values[np.argmax(gate)]
    rest = gate @ (values - heaviest) / gate.sum()
    means, points = (part - heaviest - rest for part in (law.means, law.points))
    log_mass = float(top + np.log(gate.sum()))
    deviation = np.sqrt(variance)
    return View(centre, deviation, pull, means, scores, points, heaviest + rest, log_mass)


def line(slopes: list[float], L: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a standard normal number along which scores have these slopes.

    Second moments see the law tilted up to four times (with their derivatives), the limit once; but
    scores that no prompt of L tokens has matter to neither.
    """
    steepest = max(map(abs, slopes))
    if steepest == 0:
        return np.zeros(1), np.ones(1)
    seen = math.sqrt(2 * (DROP + 2 * math.log(L)))

    def reach(slope: float) -> float:
        needed = max(seen, slope + TAIL) if slope < seen else seen
        return min(4 * slope + TAIL, needed)

    down, up = reach(max(0.0, -min(slopes))), reach(max(0.0, *slopes))
    step = 1 / math.hypot(steepest / SCORE_STEP, 1 / DENSITY_STEP)
    x = np.linspace(-down, up, 2 + math.ceil((down + up) / step))
    mass = np.exp(-(x**2) / 2)
    return x, mass / mass.sum()


class Scores(NamedTuple):
    """Scores of one Gaussian, or of atoms, with their weights."""

    values: np.ndarray
    weights: np.ndarray


def scores_of(law: TokenLaw, seen: View, L: float) -> list[Scores]:
    """The scores of each Gaussian, then those of the atoms."""
    apart = np.ptp(np.concatenate([seen.centre, seen.scores])) + seen.deviation.max(initial=0.0)
    if not apart <= WIDEST:
        raise _checks.error(
            f"the scores of tokens must differ by at most {WIDEST:g}",
            f"scores that differ by {apart:.3g}",
            "remove tokens that are outliers, or scale the head down",
        )
    found = []
    for share, centre, deviation in zip(law.weights, seen.centre, seen.deviation, strict=True):
        x, mass = line([float(deviation)], L)
        found.append(Scores(centre + deviation * x, share * mass))
    return [*found, Scores(seen.scores, law.point_weights)]


def nodes_of(
    parts: list[Scores], log_mass: float, ends: tuple[float, float], *, order: int, step: float
) -> np.ndarray:
    """Nodes of ln t for prompts of ends[0] to ends[1] tokens.

    The integrand is c t^order at small t, until most prompts decay, or the tokens that matter to
    second moments: those of the law tilted twice.
    """
    scores, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    scores, weights = scores[weights > 0], weights[weights > 0]
    twice = np.log(weights) + 2 * scores
    heavy = float(scores[twice > twice.max() - DROP].max())
    low = -max(math.log(ends[1]) + log_mass, heavy) - DROP / order
    high = math.log(LAST / ends[0]) - float(scores.min())

    def is_rare(tau: float) -> bool:
        e = np.exp(np.minimum(tau - math.log(2) + scores, LARGEST))
        log = log_phi(weights @ -np.expm1(-e), weights @ np.exp(-e))
        return bool(ends[0] * log < -RARE)

    below = low
    for _ in range(12 if is_rare(high) else 0):
        middle = (below + high) / 2
        below, high = (below, middle) if is_rare(middle) else (middle, high)
    return np.linspace(low, high, 2 + math.ceil((high - low) / step))


def log_phi(tail: Values, phi: Values) -> Values:
    """ln phi to full accuracy, from 1 - phi where that is small."""
    return np.where(tail < 0.5, np.log1p(-np.minimum(tail, 0.5)), np.log(np.maximum(phi, 1e-300)))


def _check_work(numbers: int, seen: View) -> None:
    if numbers > MOST:
        raise _checks.error(
            f"scores of Gaussian components must not need more than {MOST:.0e} exponentials",
            f"{numbers:.1e}, for scores of deviation {seen.deviation.max():.3g}",
            "scale the head down, or sample prompts with method=lp.MonteCarlo(key)",
        )


class At(NamedTuple):
    """Functions of e = t e^s at nodes x scores."""

    gone: np.ndarray  # e^-e - 1
    e_gone: np.ndarray  # e (e^-e - 1)
    powers: list[np.ndarray]  # e^j e^-e for j = 0, 1, ...


def at_nodes(tau: np.ndarray, scores: np.ndarray, most: int) -> At:
    """The functions with powers up to `most`."""
    e = np.exp(np.minimum(tau[:, None] + scores, LARGEST))
    gone, powers = np.expm1(-e), [np.exp(-e)]
    for _ in range(most):
        powers.append(powers[-1] * e)
    return At(gone, e * gone, powers)


class Sums(NamedTuple):
    """Averages over one token for one head, at the nodes of ln t."""

    step: Values
    log_phi: Values  # (nodes,)
    mass: Values  # (nodes,) B_1
    square: Values  # (nodes,) B_2
    first: Values  # (nodes, m) t F, and the same with all terms positive
    first_size: Values
    second: Values  # (nodes, m, m) t^2 Q, or traces (nodes,), and with all terms positive
    second_size: Values
    relative: Values  # relative error: of rounded scores, and of the nodes where it matters
    largest: float  # |V(x - x_inf)|^2 of a token that prompts may have


def one_head(
    law: TokenLaw, tilt: np.ndarray, V: np.ndarray, ends: tuple[float, float], *, trace: bool
) -> Sums:
    """The averages of one head, for prompts of ends[0] to ends[1] tokens."""
    seen = view(law, tilt)
    parts = scores_of(law, seen, ends[1])
    tau = nodes_of(parts, seen.log_mass, ends, order=2, step=NODE_STEP)
    _check_work(len(tau) * sum(len(part.values) for part in parts[:-1]), seen)
    phi, tail, mass, square = np.zeros((4, len(tau)))
    # F by its difference to t = 0, and as it stands; each with all terms positive
    near, near_size, far, far_size = np.zeros((4, len(tau), len(V)))
    second, second_size = np.zeros((2, len(tau), *(() if trace else (len(V), len(V)))))
    largest = 0.0

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(a @ b) if trace else np.outer(a, b)

    def add(values: np.ndarray, matrix: Values) -> None:
        second[...] += np.multiply.outer(values, matrix)
        second_size[...] += np.multiply.outer(abs(values), abs(matrix))

    size = max(1, AT_ONCE // len(tau))
    for i, (scores, w) in enumerate(parts[:-1]):
        found = np.zeros((7, len(tau)))
        for start in range(0, len(w), size):
            at = at_nodes(tau, scores[start : start + size], 4)
            some = w[start : start + size]
            found += [part @ some for part in (*at.powers, at.gone, at.e_gone)]
        b0, b1, b2, b3, b4, less, gone = found
        centre, pull, cov = V @ seen.means[i], V @ seen.pull[i], V @ law.covariances[i] @ V.T
        change = np.outer(b2, pull)
        start = centre + pull
        near += np.outer(gone, start) - change
        near_size += np.outer(-gone, abs(start)) + abs(change)
        far += np.outer(b1, start) - change
        far_size += np.outer(b1, abs(start)) + abs(change)
        cross = product(centre, pull)
        add(b2, product(centre, centre) + (cov.trace() if trace else cov))
        add(2 * b2 - b3, cross + cross.T)
        add(4 * b2 - 5 * b3 + b4, product(pull, pull))
        phi, tail, mass, square = phi + b0, tail - less, mass + b1, square + b2
        ends_of_line = centre + np.outer((scores[[0, -1]] - seen.centre[i]), pull) / max(
            float(seen.deviation[i]) ** 2, 1e-300
        )
        largest = max(largest, float((ends_of_line**2).sum(1).max() + cov.trace()))
    for start in range(0, len(law.points), size):
        some = slice(start, start + size)
        w, values = law.point_weights[some], seen.points[some] @ V.T
        at = at_nodes(tau, seen.scores[some], 2)
        weighted = w[:, None] * values
        near += at.e_gone @ weighted
        near_size -= at.e_gone @ abs(weighted)
        far += at.powers[1] @ weighted
        far_size += at.powers[1] @ abs(weighted)
        if trace:
            found = at.powers[2] @ (values * weighted).sum(1)
            second, second_size = second + found, second_size + found
        else:
            squares = (values[:, :, None] * weighted[:, None, :]).reshape(len(w), -1)
            second += (at.powers[2] @ squares).reshape(second.shape)
            second_size += (at.powers[2] @ abs(squares)).reshape(second.shape)
        phi, tail = phi + at.powers[0] @ w, tail - at.gone @ w
        mass, square = mass + at.powers[1] @ w, square + at.powers[2] @ w
        largest = max(largest, float((values**2).sum(1)[w > 0].max(initial=0.0)))
    is_near = (mass > 0.5 * np.exp(np.minimum(tau + seen.log_mass, LARGEST)))[:, None]
    first, first_size = np.where(is_near, near, far), np.where(is_near, near_size, far_size)
    of_scores = np.concatenate([law.means, law.points])
    rounding = 2.0**-52 * float((abs(of_scores) @ abs(tilt)).max())
    rounding += 2.0**-52 * max(float(np.ptp(part.values)) for part in parts if len(part.values))
    return Sums(
        float(tau[1] - tau[0]),
        log_phi(tail, phi),
        mass,
        square,
        first,
        first_size,
        second,
        second_size,
        4 * rounding,
        largest,
    )


class Moments(NamedTuple):
    """Moments of T_L - T at lengths (q,), and bounds on their errors."""

    shift: np.ndarray  # (q, m)
    shift_error: np.ndarray
    second: np.ndarray  # (q, m, m), or traces (q,)
    second_error: np.ndarray


def moments(sums: Sums, L: np.ndarray) -> Moments:
    """The moments of one head at finite lengths."""
    shift, size, second, positive, relative = with_sizes(sums, L)
    left_out = 3 * math.exp(-RARE) * sums.largest
    entries = (slice(None), *(None,) * (second.ndim - 1))
    return Moments(
        shift,
        relative[:, None] * size + math.sqrt(left_out),
        second,
        relative[entries] * positive + left_out,
    )


def with_sizes(sums: Sums, L: Values) -> tuple[Values, Values, Values, Values, Values]:
    """E[T_L - T] and its second moment at finite lengths, each followed by the same with all terms
    positive, and the relative error.
    """
    xp, column = library(sums, L), L[:, None]
    once = sums.step * xp.exp(xp.log(column) + (column - 1) * sums.log_phi)
    twice = sums.step * column * (column - 1) * xp.exp((column - 2) * sums.log_phi)
    unit = twice @ sums.mass**2 + once @ sums.square
    first, size = sums.first, sums.first_size
    if sums.second.ndim == 1:
        square, square_size = (first**2).sum(1), (abs(first) * size).sum(1)
    else:
        square = first[:, :, None] * first[:, None, :]
        square_size = abs(first)[:, :, None] * size[:, None, :]
        square_size = square_size + xp.swapaxes(square_size, 1, 2)
    value = xp.tensordot(twice, square, 1) + xp.tensordot(once, sums.second, 1)
    positive = xp.tensordot(twice, square_size, 1) + xp.tensordot(once, sums.second_size, 1)
    relative = ROUNDING + SAFETY * abs(unit - 1) + sums.relative
    return once @ first, once @ size, value, positive, relative
