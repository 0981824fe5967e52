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

Where both heads read the first n_1 tokens and then n_2 more, the change of an output is

    T_n1 - T_n1+n2 = int e^{-t S_1} (N_1 (1 - e^{-t S_2}) - N_2 e^{-t S_2}) dt,

N = sum_i e^{s_i} v_i, with 1 and 2 for the first tokens and the others. The average of a product of
two changes is a sum of products of averages over the first tokens and over the others, each as
small as the change: at n_2 << n_1 no digits are lost.

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
_MOST_NODES = 1400  # of ln t or ln w
_MOST_ATOMS = 2**22
_MOST_AVERAGES = 2**26  # numbers of E[c e^{-t e^s - w e^r}] at all pairs of nodes
_NUMBERS = 2**20  # exponentials in memory at once
_ACCURACY = 1e-9  # largest error, relative to the terms that are added
_ROUNDING, _SAFETY = 2e-14, 4.0
_FIX = "scale the heads down, or average over prompts that are drawn with mu.sample(key, L)"


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
            _FIX,
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


def _reader(
    every: list[_Rows], tilt: np.ndarray, V: np.ndarray, L: float, rare: float = _RARE
) -> _Reader:
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
    if L * log_phi(full) < -rare:
        below = low
        for _ in range(12):
            middle = (below + high) / 2
            below, high = (below, middle) if L * log_phi(middle) < -rare else (middle, high)
        lost = 3 * math.exp(-rare)
    count = 2 + math.ceil((high - low) / _STEP)
    most = min(_MOST_NODES, math.isqrt(_MOST_AVERAGES // (5 + 2 * len(V))))
    if count > most:
        raise _checks.error(
            f"averages of two softmaxes take at most {most} nodes for this output",
            f"{count} for scores that differ by {np.ptp(scores[present]):.3g} and L = {L:g}",
            _FIX,
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
    averages = 5 + 2 * b.values[0].shape[-1]
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
    """E[c e^{-t e^s - w e^r}] on a leading axis: c = 1, e^s, e^r, e^s v_a, e^r v_b, e^{s+r} and
    e^{s+r} <v_a, v_b>.
    """

    whole: np.ndarray
    change: np.ndarray  # less its value at t = w = 0
    by_t: np.ndarray  # for c = 1 and e^r v_b, less its value at t = 0
    by_w: np.ndarray  # for c = 1 and e^s v_a, less its value at w = 0
    crossed: np.ndarray  # E[(1 - e^{-t e^s})(1 - e^{-w e^r})]
    ends: tuple[np.ndarray, np.ndarray]  # E e^{-t e^s} and 1 less it, and the same for w

    @property
    def log_phi(self) -> tuple[np.ndarray, np.ndarray]:
        return log_of_phi(-self.change[0], self.whole[0])

    def errors(self, a: _Reader, b: _Reader) -> list[np.ndarray]:
        """F_a and F_b, by differences to 0 where little has decayed."""
        m = b.values[0].shape[-1]
        parts = zip((1, 2), (a, b), (slice(3, 3 + m), slice(3 + m, 3 + 2 * m)), strict=True)
        return [
            np.where(self.whole[i] > 0.5 * one.share, self.change[at], self.whole[at])
            for i, one, at in parts
        ]


def _averages(
    every: list[_Rows], a: _Reader, b: _Reader, V: tuple[np.ndarray, np.ndarray]
) -> _Averages:
    """The averages at all nodes, with e^{-x-y} - 1 = (e^{-x} - 1) + e^{-x} (e^{-y} - 1)."""
    m = len(V[0])
    of_a, of_b = [0, *range(3, 3 + m)], [0, *range(3 + m, 3 + 2 * m)]
    nodes = len(a.tau), len(b.tau)
    whole, change = np.zeros((2, 5 + 2 * m, *nodes))
    by_t, by_w = np.zeros((2, 1 + m, *nodes))
    crossed, end_t, end_w = np.zeros(nodes), np.zeros((2, nodes[0])), np.zeros((2, nodes[1]))
    for part in _parts(every, a, b):
        shares = [part.weights * growth for growth in part.growth]
        product = shares[0] * part.growth[1]
        columns = [part.weights[..., None], *(share[..., None] for share in shares)]
        pairs = zip(shares, part.values, strict=True)
        columns += [share[..., None] * values for share, values in pairs]
        inner = np.sum(part.values[0] * part.values[1], axis=2)
        inner = inner + np.trace(V[0] @ part.noise @ V[1].T)
        columns += [product[..., None], (product * inner)[..., None]]
        c = np.concatenate(columns, axis=2)  # (rows, columns, c)
        left, gone = (
            np.moveaxis(function(part.exponent) @ c, 2, 0) for function in (np.exp, np.expm1)
        )
        kept, missing = part.decay @ gone, part.missing @ np.moveaxis(c.sum(1), 1, 0)[..., None]
        whole += part.decay @ left
        change += missing + kept
        by_t += part.missing @ left[of_b]
        by_w += kept[of_a]
        crossed += part.missing @ gone[0]
        end_t += [part.decay @ part.weights.sum(1), -missing[0, :, 0]]
        end_w += [left[0].sum(0), -gone[0].sum(0)]
    return _Averages(whole, change, by_t, by_w, crossed, (end_t, end_w))


def _cross(
    law: TokenLaw,
    tilts: tuple[np.ndarray, np.ndarray],
    readers: tuple[np.ndarray, np.ndarray],
    L: float,
    trace: bool,
) -> _Cross:
    """E[(T_a,L - T_a)(T_b,L - T_b)'] of two softmaxes with these tilts and matrices V."""
    every = _rows(law, tilts, L)
    a, b = (_reader(every, *one, L) for one in zip(tilts, readers, strict=True))
    both = _averages(every, a, b, readers)
    log_phi, outer = _measured(both, a, b)
    once, twice = outer * _all_but(1, L, log_phi), outer * _all_but(2, L, log_phi)
    m = len(readers[0])
    F, H = (part.reshape(m, -1) for part in both.errors(a, b))
    weighted = F * twice.ravel()
    value, size = weighted @ H.T, abs(weighted) @ abs(H).T
    unit = np.vdot(twice, both.whole[1] * both.whole[2])
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
    error = _relative_error(every, a, b, float(unit)) * size + _lost(a, b)
    return _Cross(value.trace(), error.trace()) if trace else _Cross(value, error)


def _measured(both: _Averages, a: _Reader, b: _Reader) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of phi, and dt dw, 0 where phi has underflowed or dt dw would overflow."""
    log_phi, good = both.log_phi
    step = (a.tau[1] - a.tau[0]) * (b.tau[1] - b.tau[0])
    logs = a.tau[:, None] + b.tau
    return log_phi, np.where(good & (logs < 700), np.exp(logs) * step, 0.0)


def _relative_error(every: list[_Rows], a: _Reader, b: _Reader, unit: float) -> float:
    """Of the integrals, where `unit` is what they make of 1."""
    aliases = [float(gamma_decay(2 * math.pi / (one.tau[1] - one.tau[0]), 1)) for one in (a, b)]
    lattices = sum(rows.error for rows in every)
    return _ROUNDING + _SAFETY * abs(unit - 1) + sum(aliases) + lattices


def _lost(a: _Reader, b: _Reader) -> float:
    """What lies beyond the last nodes: at most the largest value for a rare share of prompts."""
    largest = (max(float(np.max(np.linalg.norm(v, axis=-1))) for v in one.values) for one in (a, b))
    return (a.lost + b.lost) * math.prod(largest)


def _change(
    law: TokenLaw,
    tilts: tuple[np.ndarray, np.ndarray],
    readers: tuple[np.ndarray, np.ndarray],
    first: float,
    L: float,
) -> _Cross:
    """E <T_a,first - T_a,L, T_b,first - T_b,L>, without cancellation."""
    every, others = _rows(law, tilts, L), L - first
    rare = _RARE + 2 * math.log(L)  # changes are small
    a, b = (_reader(every, *one, first, rare) for one in zip(tilts, readers, strict=True))
    both = _averages(every, a, b, readers)
    log_phi, outer = _measured(both, a, b)
    (phi_t, tail_t), (phi_w, tail_w) = both.ends
    log_t, log_w = log_of_phi(tail_t, phi_t)[0], log_of_phi(tail_w, phi_w)[0]
    # ln of phi(t, w), less that of phi(t, 0) phi(0, w)
    apart = log_t[:, None] + log_w
    covariance = both.crossed - tail_t[:, None] * tail_w
    together = np.where(apart > -1, np.log1p(covariance / np.exp(apart)), log_phi - apart)
    # E (1 - e^{-tS})(1 - e^{-wR}) for the other tokens
    none = np.expm1(others * log_t)[:, None] * np.expm1(others * log_w)
    none = none + np.where(
        others * together < 1,
        np.exp(others * apart) * np.expm1(others * together),
        np.exp(others * log_phi) - np.exp(others * apart),
    )

    def seen(without: np.ndarray, alone: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """E (1 - e^{-tS}) N_b e^{-wR} for the other tokens, from F_b, ln phi(0, w), and what t
        changes in phi and F_b; or with the heads swapped.
        """
        share = moved[0] / np.exp(alone)
        more = np.where(share > -0.5, np.log1p(share), log_phi - alone)
        rest = others * np.exp((others - 1) * alone)
        return rest * (-moved[1:] - without * np.expm1((others - 1) * more))

    F, H = both.errors(a, b)
    none_of_first, one_of_first, two_of_first = (_all_but(k, first, log_phi) for k in range(3))
    one_of_others, two_of_others = (_all_but(k, others, log_phi) for k in (1, 2))
    same, unit = both.whole[-1], both.whole[-2]
    product = np.sum(F * H, axis=0)
    parts = [
        one_of_first * same * none,
        two_of_first * product * none,
        -one_of_first * np.sum(F * seen(H, log_w, both.by_t), axis=0),
        -one_of_first * np.sum(H * seen(F, log_t[:, None], both.by_w), axis=0),
        none_of_first * one_of_others * same,
        none_of_first * two_of_others * product,
    ]
    whole = outer * (one_of_first * unit + two_of_first * both.whole[1] * both.whole[2])
    relative = _relative_error(every, a, b, float(np.where(outer > 0, whole, 0.0).sum()))
    terms = np.where(outer > 0, outer * parts, 0.0)
    return _Cross(terms.sum(), relative * np.abs(terms).sum() + _lost(a, b))


def _all_but(count: int, tokens: float, log_phi: np.ndarray) -> np.ndarray:
    """phi of all tokens but `count` of them, times the number of ways to choose these in order."""
    ways = math.prod(tokens - k for k in range(count))
    return ways * np.exp((tokens - count) * log_phi) if ways else np.zeros_like(log_phi)


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
            "call it outside of the transformation",
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
    found = _certified(_added([*own, crossed]), sizes)
    # heads that cancel leave rounding of either sign
    return to_jax(Bounded(np.maximum(found.value, 0.0), found.error))


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
    shares = np.where(sizes == 0, 0.0, found.error / np.where(sizes == 0, 1.0, sizes))
    relative = np.max(shares, initial=0.0)
    if not relative <= _ACCURACY:
        raise _checks.error(
            f"the relative error of the Laplace integral must be at most {_ACCURACY:.0e}",
            f"{relative:.1e}",
            _FIX,
        )
    return found


def covariance_of_queries(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, z2: ArrayInput, L: ArrayInput
) -> Bounded:
    """Cov(T_L(z), T_L(z2)): the sum over all pairs of heads."""
    found = _at_two(head, mu, (z, z2), L)
    left, right = to_numpy([mean_shift(head, mu, query, L) for query in (z, z2)])

    def outer(a: Values, b: Values) -> Values:
        return a[..., :, None] * b[..., None, :]

    less = outer(abs(left.value), right.error) + outer(left.error, abs(right.value))
    return Bounded(found.value - outer(left.value, right.value), found.error + less)


def prefix_difference(
    head: AbstractHead, mu: AbstractMeasure, z: ArrayInput, first: ArrayInput, L: ArrayInput
) -> Bounded:
    """E |T_L - T_first|^2, a sum over all pairs of heads."""
    each = [pairs(one, mu, z, L) for one in head.heads]
    _require_known("prefix_difference", head, mu, each[0][0], first, each[0][2])
    law, V = to_numpy((needed_law(mu), [one.V for one in head.heads]))
    firsts, L, *tilts = (
        np.asarray(part) for part in (first, each[0][2], *(tilts for _, tilts, _ in each))
    )
    shape = np.broadcast_shapes(firsts.shape, L.shape, *(part.shape[:-1] for part in tilts))
    firsts, L = np.broadcast_to(firsts, shape), np.broadcast_to(L, shape)
    tilts = [np.broadcast_to(part, (*shape, part.shape[-1])) for part in tilts]
    value, error, sizes = (np.zeros(shape) for _ in range(3))
    with np.errstate(all="ignore"):
        for place in np.ndindex(shape):
            ends = float(firsts[place]), float(L[place])
            if ends[0] == ends[1]:
                continue
            for i, j in itertools.product(range(len(V)), repeat=2):
                at = tilts[i][place], tilts[j][place]
                if math.isinf(ends[1]):  # T_L is T
                    found = _cross(law, at, (V[i], V[j]), ends[0], trace=True)
                else:
                    found = _change(law, at, (V[i], V[j]), *ends)
                value[place] += found.value
                error[place] += found.error
                sizes[place] += found.value if i == j else 0.0
    found = _certified(Bounded(value, error), sizes)
    return to_jax(Bounded(np.maximum(found.value, 0.0), found.error))


def _at_two(
    head: AbstractHead,
    mu: AbstractMeasure,
    queries: tuple[ArrayInput, ArrayInput],
    L: ArrayInput,
) -> Bounded:
    """E[(T_L - T)(T'_L - T')'] of the outputs T at the first query and T' at the second."""
    each = [[pairs(one, mu, z, L) for z in queries] for one in head.heads]
    (z, _, _), (z2, _, lengths) = each[0]
    _require_known("averages of two softmaxes", head, mu, z, z2, lengths)
    law, V = to_numpy((needed_law(mu), [one.V for one in head.heads]))
    tilts = [[np.asarray(pair[1]) for pair in both] for both in each]
    shape = np.broadcast_shapes(*(np.shape(part)[:-1] for part in tilts[0]))
    tilts = [[np.broadcast_to(at, (*shape, at.shape[-1])) for at in both] for both in tilts]
    lengths = np.broadcast_to(np.asarray(lengths), shape)
    m = head.out_dim
    value, error = (np.zeros((*shape, m, m)) for _ in range(2))
    sizes = np.zeros(shape)
    for one, query in itertools.product(head.heads, queries):
        sizes = sizes + np.asarray(mixture_tokens.output_error(one, mu, query, L).value)
    with np.errstate(all="ignore"):
        for place in np.ndindex(shape):
            if math.isinf(lengths[place]):  # T_L is T
                continue
            for i, j in itertools.product(range(len(V)), repeat=2):
                at = tilts[i][0][place], tilts[j][1][place]
                found = _cross(law, at, (V[i], V[j]), float(lengths[place]), trace=False)
                value[place] += found.value
                error[place] += found.error
    return _certified(Bounded(value, error), sizes[..., None, None])
