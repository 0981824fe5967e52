"""Two softmaxes on one prompt of atoms and Gaussians: second moments of their errors, exactly.

They are those of two heads, of two queries, or of a prompt and its first tokens.

Heads a and b with scores s and r read the same tokens. With S = sum_i e^{s_i}, R = sum_i e^{r_i}
and 1/(S R) = int int e^{-tS - wR} dt dw, the errors T_L - T of two heads have

    E[(T_a,L - T_a)(T_b,L - T_b)'] = int int L phi^{L-1} E[e^{s+r} v_a v_b' e^{-t e^s - w e^r}]
                                            + L (L-1) phi^{L-2} F_a F_b' dt dw,

    v_a = V_a (x - x_a),    phi = E e^{-t e^s - w e^r},    F_a = E[e^s v_a e^{-t e^s - w e^r}],

x_a the mean token of the infinite prompt, so that F_a = 0 at t = w = 0. The averages run over one
token: a sum over atoms, and for a Gaussian component over a lattice of its two scores, the token
being linear in them plus independent noise. On nodes of ln t and ln w all averages are products of
matrices, at a cost that does not depend on L. The trapezoidal rules converge geometrically, as in
`laplace_integral`; E[(sum p)(sum q)] = 1 on the same nodes is part of the error.

Where a reads only the first L_1 tokens, the others see phi(0, w):

    int int L_1 phi^{L_1-1} phi(0, w)^{L-L_1} E[e^{s+r} v_a v_b' e^{-t e^s - w e^r}]
            + L_1 (L_1-1) phi^{L_1-2} phi(0, w)^{L-L_1} F_a F_b'
            + L_1 (L-L_1) phi^{L_1-1} phi(0, w)^{L-L_1-1} F_a F_b(0, w)' dt dw.

A single head at one query has its own, faster integral. Known numbers only: traced ones raise.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import _checks
from .._arrays import Values, to_numpy
from .._float64 import is_traced
from .._typing import ArrayInput
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from ..participation.pair_moments import log_of_phi
from . import mixture_tokens
from .gaussian_tokens import Bounded
from .mixture_tokens import needed_law
from .pairs import indexed_pairs, pairs
from .token_laws import DROP, TokenLaw, gamma_decay, lattice_error, reach_of_scores

_STEP = 0.3  # of the nodes in ln t and ln w
_LAST = 50.0  # integrands are cut at tS = 50 for every prompt,
_RARE = 60.0  # or but for a part e^-60 of the prompts, counted as error
_SCORE_STEP, _DENSITY_STEP = 0.25, 0.6  # of the lattices: of a score, and in units of deviations
_MOST_NODES = 700  # of ln t or ln w
_MOST_ATOMS = 2**22
_MOST_AVERAGES = 2**26  # numbers of E[c e^{-t e^s - w e^r}] at all pairs of nodes
_NUMBERS = 2**20  # exponentials in memory at once
_ACCURACY = 1e-9  # largest error, relative to the terms that are added
_ROUNDING, _SAFETY = 2e-14, 4.0


class _Cross(NamedTuple):
    """A second moment, and a bound on its error."""

    value: Any  # (m, m), or its trace
    error: Any


class _Rows(NamedTuple):
    """Atoms in rows that share the first score: a component's lattice, or all atoms without noise
    in rows of one. Arrays have the shape (rows, columns).
    """

    weights: np.ndarray
    points: np.ndarray  # (rows, columns, d) E[x | s, r]
    noise: np.ndarray  # (d, d) covariance of x given its scores
    error: float  # relative, of sums over the lattice


def _rows(law: TokenLaw, tilts: tuple[np.ndarray, np.ndarray], L: float) -> list[_Rows]:
    """The law of one token as seen by two heads."""
    found = []
    if len(law.points):
        atoms = law.point_weights[:, None], law.points[:, None]
        found.append(_Rows(*atoms, np.zeros((law.dim, law.dim)), 0.0))
    for share, mean, G in zip(law.weights, law.means, law.covariances, strict=True):
        axes, slopes = _axes(G, tilts)
        lattices = [_lattice(slope, L) for slope in slopes]
        lattices += [(np.zeros(1), np.ones(1))] * (2 - len(lattices))
        (x, mass), (y, other) = lattices
        directions = np.concatenate([axes, np.zeros((2 - len(axes), law.dim))])
        points = mean + x[:, None, None] * directions[0] + y[:, None] * directions[1]
        error = 0.0
        for slope, (nodes, _) in zip(slopes, lattices, strict=False):
            steepest, step = np.max(np.abs(slope)), nodes[1] - nodes[0]
            error += float(lattice_error(np.full((1, 1), steepest), np.full((1, 1), step))[1])
        found.append(_Rows(share * np.outer(mass, other), points, G - axes.T @ axes, error))
    count = sum(rows.weights.size for rows in found)
    if count > _MOST_ATOMS:
        raise _checks.error(
            f"averages of two softmaxes sum over at most {_MOST_ATOMS} atoms and scores",
            f"{count} of them",
            "pass method=lp.MonteCarlo(key), or scale the heads down",
        )
    return found


def _axes(
    G: np.ndarray, tilts: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Directions D_i in which a token moves with both scores, x = m + sum_i D_i g_i + noise, none
    for scores that do not vary, and the slopes of both scores along each.

    The first score does not vary along a second direction.
    """
    axes, slopes = [], []
    left, size = G, math.sqrt(max(float(np.max(np.abs(np.diag(G)), initial=0.0)), 0.0))
    for u in tilts:
        pull = left @ u
        variance = float(u @ pull)
        if variance > (1e-7 * size * float(np.linalg.norm(u))) ** 2:
            axis = pull / math.sqrt(variance)
            axes.append(axis)
            slopes.append(np.array([axis @ tilt for tilt in tilts]))
            left = left - np.outer(axis, axis)
    return np.reshape(axes, (-1, len(G))), slopes


def _lattice(slopes: np.ndarray, L: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of a standard normal number along which two scores have these slopes, and their
    weights: as far as a score grows, up and down.
    """
    down, up = (
        float(reach_of_scores(np.max(sign * slopes, initial=0.0), np.float64(L)))
        for sign in (-1, 1)
    )
    step = 1 / math.hypot(np.max(np.abs(slopes)) / _SCORE_STEP, 1 / _DENSITY_STEP)
    nodes = np.linspace(-down, up, 2 + math.ceil((down + up) / step))
    mass = np.exp(-(nodes**2) / 2)
    return nodes, mass / mass.sum()


class _Reader(NamedTuple):
    """One head on the tokens."""

    growth: list[np.ndarray]  # e^s of the atoms, at most 1
    values: list[np.ndarray]  # V (x - x_inf), (rows, columns, m)
    tau: np.ndarray  # nodes ln t
    share: float  # E e^s
    lost: float  # share of prompts whose integrand goes beyond the last node


def _reader(every: list[_Rows], tilt: np.ndarray, V: np.ndarray, L: float) -> _Reader:
    weights = np.concatenate([rows.weights.ravel() for rows in every])
    points = np.concatenate([rows.points.reshape(-1, len(tilt)) for rows in every])
    scores, present = points @ tilt, weights > 0
    growth = np.exp(np.where(present, scores - scores[present].max(), 0.0))
    limit = weights * growth
    from_heaviest = points - points[np.argmax(limit)]
    values = (from_heaviest - limit @ from_heaviest / limit.sum()) @ V.T
    low = -math.log(L) - DROP
    full = math.log(_LAST) - math.log(L) - math.log(max(float(growth[present].min()), 1e-300))

    def log_phi(tau: float) -> float:
        t = math.exp(tau) / 2
        tail = float(weights @ -np.expm1(-t * growth))
        return math.log1p(-tail) if tail < 0.5 else math.log(weights @ np.exp(-t * growth) + 1e-300)

    high, lost = full, 0.0
    if L * log_phi(full) < -_RARE:
        below = low
        for _ in range(12):
            middle = (below + high) / 2
            below, high = (below, middle) if L * log_phi(middle) < -_RARE else (middle, high)
        lost = 3 * math.exp(-_RARE)
    count = 2 + math.ceil((high - low) / _STEP)
    most = min(_MOST_NODES, math.isqrt(_MOST_AVERAGES // (3 + 2 * len(V))))
    if count > most:
        raise _checks.error(
            f"averages of two softmaxes take at most {most} nodes for this output",
            f"{count} for scores that differ by {np.ptp(scores[present]):.3g} and L = {L:g}",
            "pass method=lp.MonteCarlo(key), or scale the heads down",
        )
    ends = np.cumsum([rows.weights.size for rows in every])[:-1]
    split = [np.split(a, ends) for a in (growth, values)]
    shapes = [rows.weights.shape for rows in every]
    return _Reader(
        [a.reshape(shape) for a, shape in zip(split[0], shapes, strict=True)],
        [a.reshape(*shape, -1) for a, shape in zip(split[1], shapes, strict=True)],
        np.linspace(low, high, count),
        float(limit.sum()),
        lost,
    )


class _Part(NamedTuple):
    """Some rows of atoms: all that is summed over them."""

    weights: np.ndarray  # (rows, columns)
    growth: tuple[np.ndarray, np.ndarray]  # of both heads
    values: tuple[np.ndarray, np.ndarray]
    noise: np.ndarray
    decay: np.ndarray  # (t, rows) e^{-t e^s}
    missing: np.ndarray  # its difference to 1
    exponent: np.ndarray  # (rows, w, columns) -w e^r


def _parts(every: list[_Rows], a: _Reader, b: _Reader) -> Iterator[_Part]:
    """The atoms in parts that fit into memory."""
    t, w = np.exp(a.tau), np.exp(b.tau)
    averages = 3 + 2 * b.values[0].shape[-1]
    for k, rows in enumerate(every):
        at_once = max(1, _NUMBERS // (len(w) * max(averages, rows.weights.shape[1])))
        for start in range(0, len(rows.weights), at_once):
            some = slice(start, start + at_once)
            first = -t[:, None] * a.growth[k][some, 0]
            yield _Part(
                rows.weights[some],
                (a.growth[k][some], b.growth[k][some]),
                (a.values[k][some], b.values[k][some]),
                rows.noise,
                np.exp(first),
                np.expm1(first),
                -w[:, None] * b.growth[k][some][:, None, :],
            )


class _Averages(NamedTuple):
    """E[c e^{-t e^s - w e^r}] for c = 1, e^s, e^r, e^s v_a and e^r v_b, on a leading axis."""

    whole: np.ndarray
    change: np.ndarray  # less its value at t = w = 0

    @property
    def log_phi(self) -> tuple[np.ndarray, np.ndarray]:
        return log_of_phi(-self.change[0], self.whole[0])

    def errors(self, a: _Reader, b: _Reader) -> list[np.ndarray]:
        """F_a and F_b, by differences to 0 where little has decayed."""
        m = b.values[0].shape[-1]
        parts = zip((1, 2), (a, b), (slice(3, 3 + m), slice(3 + m, None)), strict=True)
        return [
            np.where(self.whole[i] > 0.5 * one.share, self.change[at], self.whole[at])
            for i, one, at in parts
        ]


def _averages(every: list[_Rows], a: _Reader, b: _Reader) -> tuple[_Averages, _Averages]:
    """The averages at all nodes, and those at t = 0, with
    e^{-x-y} - 1 = (e^{-x} - 1) + e^{-x} (e^{-y} - 1).
    """
    m = b.values[0].shape[-1]
    shape = (3 + 2 * m, len(a.tau), len(b.tau))
    both, change = np.zeros(shape), np.zeros(shape)
    alone, changed = np.zeros((2, shape[0], shape[2]))
    for part in _parts(every, a, b):
        shares = [part.weights * growth for growth in part.growth]
        columns = [part.weights[..., None], *(share[..., None] for share in shares)]
        pairs = zip(shares, part.values, strict=True)
        columns += [share[..., None] * values for share, values in pairs]
        c = np.concatenate(columns, axis=2)  # (rows, columns, c)
        left, gone = (
            np.moveaxis(function(part.exponent) @ c, 2, 0) for function in (np.exp, np.expm1)
        )
        both += part.decay @ left
        change += part.missing @ np.moveaxis(c.sum(1), 1, 0)[..., None] + part.decay @ gone
        alone += left.sum(1)
        changed += gone.sum(1)
    return _Averages(both, change), _Averages(alone, changed)


def _cross(
    law: TokenLaw,
    tilts: tuple[np.ndarray, np.ndarray],
    readers: tuple[np.ndarray, np.ndarray],
    L: float,
    trace: bool,
    first: float | None = None,
) -> _Cross:
    """E[(T_a,first - T_a)(T_b,L - T_b)'] of two softmaxes with these tilts and matrices V."""
    first = L if first is None else first
    every = _rows(law, tilts, L)
    a, b = (_reader(every, *one) for one in zip(tilts, readers, (first, L), strict=True))
    both, alone = _averages(every, a, b)
    (log_phi, good), (log_alone, _) = both.log_phi, alone.log_phi
    step = (a.tau[1] - a.tau[0]) * (b.tau[1] - b.tau[0])
    outer = np.where(good, np.exp(a.tau[:, None] + b.tau) * step, 0.0)
    others = L - first

    def chance(of_first: float, of_others: float) -> np.ndarray:
        """e^{-tS - wR} of all tokens but some, averaged, times the measure of t and w."""
        return outer * np.exp(of_first * log_phi + of_others * log_alone)

    once = first * chance(first - 1, others)
    twice = first * (first - 1) * chance(first - 2, others)
    apart = first * others * chance(first - 1, others - 1) if others else np.zeros_like(once)
    m = len(readers[0])
    F, H = (part.reshape(m, -1) for part in both.errors(a, b))
    alone_H = np.broadcast_to(alone.errors(a, b)[1][:, None], (m, *once.shape)).reshape(m, -1)
    value, size, unit = 0.0, 0.0, 0.0
    for weight, right, share in ((twice, H, both.whole[2]), (apart, alone_H, alone.whole[2])):
        weighted = F * weight.ravel()
        value, size = value + weighted @ right.T, size + abs(weighted) @ abs(right).T
        unit = unit + np.vdot(weight, both.whole[1] * share)
    for part in _parts(every, a, b):
        # the average over t and w of t w e^{s+r} e^{-t e^s - w e^r} L phi^{L-1}, of every atom
        seen = (part.decay.T @ once)[:, None, :] @ np.exp(part.exponent)
        read = part.weights * part.growth[0] * part.growth[1] * seen[:, 0]
        left, right = (v.reshape(-1, m) for v in part.values)
        weighted = left * read.reshape(-1, 1)
        noise = read.sum() * readers[0] @ part.noise @ readers[1].T
        value = value + weighted.T @ right + noise
        size = size + abs(weighted).T @ abs(right) + abs(noise)
        unit = unit + read.sum()
    aliases = [float(gamma_decay(2 * math.pi / (one.tau[1] - one.tau[0]), 1)) for one in (a, b)]
    lattices = sum(rows.error for rows in every)
    relative = _ROUNDING + _SAFETY * abs(float(unit) - 1) + sum(aliases) + lattices
    # what lies beyond the last nodes is at most the largest value for a rare share of prompts
    largest = math.prod(
        max(float(np.max(np.linalg.norm(v, axis=-1))) for v in one.values) for one in (a, b)
    )
    error = relative * size + (a.lost + b.lost) * largest
    return _Cross(value.trace(), error.trace()) if trace else _Cross(value, error)


def _crossed(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput, *, trace: bool
) -> Bounded:
    """The sum over all pairs of different heads, at every pair of a query and a length."""
    each = [indexed_pairs(one, mu, z, L) for one in head.heads]
    _require_known("second moments of several heads", head, mu, each[0].queries, each[0].L)
    law, V = to_numpy((needed_law(mu), [one.V for one in head.heads]))
    which, lengths = each[0].which, np.asarray(each[0].L)
    m = head.out_dim
    entries = () if trace else (m, m)
    value, error = (np.zeros((*lengths.shape, *entries)) for _ in range(2))
    known: dict[tuple[int, float], _Cross] = {}
    for place in np.ndindex(lengths.shape):
        query, length = int(which[place]), float(lengths[place])
        if math.isinf(length):
            continue
        if (query, length) not in known:
            tilts = [np.asarray(part.tilts[query]) for part in each]
            known[query, length] = _sum_of_pairs(law, tilts, V, length, trace)
        value[place], error[place] = known[query, length]
    return Bounded(value, error)


def _require_known(what: str, *args: Any) -> None:
    if is_traced(*args):
        raise _checks.error(
            f"{what} on atoms and mixtures take known numbers",
            "arguments traced by jit, vmap or grad",
            "call it outside, or sample: lp.sample_outputs, method=lp.MonteCarlo(key)",
        )


def _sum_of_pairs(
    law: TokenLaw, tilts: list[np.ndarray], V: list[np.ndarray], L: float, trace: bool
) -> _Cross:
    value, error = 0.0, 0.0
    with np.errstate(all="ignore"):
        for i, j in itertools.combinations(range(len(V)), 2):
            found = _cross(law, (tilts[i], tilts[j]), (V[i], V[j]), L, trace)
            value = value + found.value + (found.value if trace else found.value.T)
            error = error + found.error + (found.error if trace else found.error.T)
    return _Cross(value, error)


def mean_shift(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L - T, the sum over the heads."""
    parts = [mixture_tokens.mean_shift(one, mu, z, L) for one in head.heads]
    return _added(parts)


def _added(parts: list[Bounded]) -> Bounded:
    return Bounded(*(np.sum([np.asarray(p) for p in part], 0) for part in zip(*parts, strict=True)))


def output_error(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E |T_L - T|^2: the errors of all heads, and twice what every two of them share."""
    crossed = _crossed(head, mu, z, L, trace=True)
    own = [mixture_tokens.output_error(one, mu, z, L) for one in head.heads]
    sizes = np.sum([np.asarray(part.value) for part in own], 0)
    found = _added([*own, crossed])
    return _certified(found, sizes)


def second_moment(head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, L: ArrayInput) -> Bounded:
    """E T_L T_L' = T T' + T E[T_L - T]' + E[T_L - T] T' + E (T_L - T)(T_L - T)'."""
    crossed = _crossed(head, mu, z, L, trace=False)
    own = [mixture_tokens.second_moment_of_error(one, mu, z, L) for one in head.heads]
    around = _added([*own, crossed])
    whole = np.sum([np.asarray(part.value) for part in own], 0)
    around = _certified(around, np.trace(whole, axis1=-2, axis2=-1)[..., None, None])
    shift = mean_shift(head, mu, z, L)
    means = _added([mixture_tokens.mean(one, mu, z, L) for one in head.heads])
    limit = means.value - shift.value
    cross = limit[..., :, None] * shift.value[..., None, :]
    less = abs(limit)[..., :, None] * (shift.error + means.error)[..., None, :]
    value = limit[..., :, None] * limit[..., None, :] + cross + np.swapaxes(cross, -1, -2)
    error = around.error + less + np.swapaxes(less, -1, -2)
    return Bounded(value + around.value, error)


def _certified(found: Bounded, sizes: Values) -> Bounded:
    """The value; raises where its error is too large for the terms that are added."""
    shares = np.where(sizes > 0, found.error / np.where(sizes > 0, sizes, 1.0), 0.0)
    relative = np.max(shares, initial=0.0)
    if not relative <= _ACCURACY:
        raise _checks.error(
            f"the relative error of the Laplace integral must be at most {_ACCURACY:.0e}",
            f"{relative:.1e}",
            "scale the heads down, or sample prompts with method=lp.MonteCarlo(key)",
        )
    return found


def covariance_of_queries(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, z2: ArrayInput, L: ArrayInput
) -> Bounded:
    """Cov(T_L(z), T_L(z2)): the sum over all pairs of heads."""
    found = _at_two(head, mu, (z, z2), (L, L), trace=False)
    left, right = to_numpy([mean_shift(head, mu, query, L) for query in (z, z2)])

    def outer(a: Values, b: Values) -> Values:
        return a[..., :, None] * b[..., None, :]

    less = outer(abs(left.value), right.error) + outer(left.error, abs(right.value))
    return Bounded(found.value - outer(left.value, right.value), found.error + less)


def prefix_difference(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, first: ArrayInput, L: ArrayInput
) -> Bounded:
    """E |T_L - T_first|^2: both squared errors, less twice what they share."""
    error = mixture_tokens.output_error if len(head.heads) == 1 else output_error
    _require_known("averages of two softmaxes", head, mu, z, first, L)
    first, L = np.broadcast_arrays(np.asarray(first), np.asarray(L))
    shared = _at_two(head, mu, (z, z), (first, L), trace=True)
    whole = [error(head, mu, z, length) for length in (first, L)]
    minus_twice = Bounded(-2 * shared.value, 2 * shared.error)
    return _added([*whole, minus_twice])


def _at_two(
    head: AbstractHead,
    mu: AbstractMeasure,
    queries: tuple[ArrayInput, ArrayInput],
    lengths: tuple[ArrayInput, ArrayInput],
    *,
    trace: bool,
) -> Bounded:
    """E[(T - T_inf)(T' - T'_inf)'] of T at the first query on the first tokens, and T' at the other
    on all.
    """
    each = [
        [pairs(one, mu, z, L) for z, L in zip(queries, lengths, strict=True)] for one in head.heads
    ]
    (z, _, first), (z2, _, L) = each[0]
    _require_known("averages of two softmaxes", head, mu, z, z2, first, L)
    law, V = to_numpy((needed_law(mu), [one.V for one in head.heads]))
    tilts = [[np.asarray(pair[1]) for pair in both] for both in each]
    shape = np.broadcast_shapes(*(np.shape(part)[:-1] for part in tilts[0]))
    tilts = [[np.broadcast_to(at, (*shape, at.shape[-1])) for at in both] for both in tilts]
    first, L = (np.broadcast_to(np.asarray(part), shape) for part in (first, L))
    m = head.out_dim
    value, error = (np.zeros((*shape, *(() if trace else (m, m)))) for _ in range(2))
    sizes = np.zeros(shape)
    for one, query_and_length in itertools.product(head.heads, zip(queries, lengths, strict=True)):
        sizes = sizes + np.asarray(mixture_tokens.output_error(one, mu, *query_and_length).value)
    with np.errstate(all="ignore"):
        for place in np.ndindex(shape):
            if math.isinf(L[place]):  # T_L is T
                continue
            for i, j in itertools.product(range(len(V)), repeat=2):
                at = tilts[i][0][place], tilts[j][1][place]
                found = _cross(law, at, (V[i], V[j]), float(L[place]), trace, float(first[place]))
                value[place] += found.value
                error[place] += found.error
    return _certified(Bounded(value, error), sizes if trace else sizes[..., None, None])
