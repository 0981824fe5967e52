"""Second moments that two heads, two queries, or a prompt and its first tokens share, exactly.

Heads a and b with scores s and r read tokens of one prompt. With S = sum e^{s_i}, R = sum e^{r_i},
1/(S R) = int int e^{-tS - wR} dt dw and phi = E e^{-t e^s - w e^r} over one token,

    E[(T_a,L - T_a)(T_b,L - T_b)'] = int int L phi^{L-1} Q + L(L-1) phi^{L-2} F_a F_b' dt dw,
    F_a = V_a E[e^s (x - x_a) e^{-t e^s - w e^r}],
    Q = V_a E[e^{s+r} (x - x_a)(x - x_b)' e^{-t e^s - w e^r}] V_b',

as in `engine`.

**One token.** All is made of B_jl = E[e^j f^l e^{-e-f}], e = t e^s, f = w e^r. For a Gaussian
component Stein's lemma holds with both pulls, G u_a and G u_b, and derivatives in s and r raise j
or l by one. The scores of a are nodes; those of b, given a, are nodes too, shared by all scores of
a unless b hardly varies given a. So all averages at all pairs of t and w are products of matrices.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .. import _checks
from .._arrays import Values
from .engine import (
    AT_ONCE,
    DENSITY_STEP,
    LARGEST,
    RARE,
    ROUNDING,
    SAFETY,
    SCORE_STEP,
    At,
    View,
    at_nodes,
    line,
    log_phi,
    nodes_of,
    scores_of,
    view,
)
from .token_laws import TokenLaw

NODE_STEP = 0.3  # of ln t and ln w: their errors are e^{-pi^2/0.3}
WIDEST, MOST = 40.0, 2**27  # deviation of scores; numbers in memory


class Reader(NamedTuple):
    """A head at a query: its tilt, and its matrix V."""

    tilt: np.ndarray
    V: np.ndarray


class _Piece(NamedTuple):
    """A Gaussian component, or some atoms, at the nodes of both heads."""

    component: int | None
    weights: np.ndarray  # (rows,) of the scores of a
    a: At  # (t, rows)
    powers: list[np.ndarray]  # (rows, w) E[f^l e^-f] given the score of a
    gone: np.ndarray  # (rows, w) E[e^-f - 1]
    f_gone: np.ndarray  # (rows, w) E[f (e^-f - 1)]
    values: tuple[np.ndarray, np.ndarray]  # of atoms: V(x - x_inf), (rows, m) for a and b


class _Case(NamedTuple):
    """What the averages of a call need."""

    law: TokenLaw
    readers: tuple[Reader, Reader]
    views: tuple[View, View]
    nodes: tuple[np.ndarray, np.ndarray]  # ln t, ln w
    L: float


def _pieces(case: _Case) -> Iterator[_Piece]:
    (first, other), (tau, omega), law = case.views, case.nodes, case.law
    nothing = np.zeros((0, 0))
    for i, share in enumerate(law.weights):
        tilt, left, slopes = case.readers[1].tilt, law.covariances[i], [0.0, 0.0]
        if first.deviation[i] > 0:
            axis = first.pull[i] / first.deviation[i]
            left = left - np.outer(axis, axis)
            slopes = [float(first.deviation[i]), float(axis @ tilt)]
        rest = math.sqrt(max(float(tilt @ left @ tilt), 0.0))
        x, mass = line(slopes, case.L)
        scores = [
            seen.centre[i] + slope * x for seen, slope in zip(case.views, slopes, strict=True)
        ]
        y, density = line([rest], case.L)
        if rest <= SCORE_STEP / DENSITY_STEP:  # each row has its own nodes
            found = []
            for some in np.array_split(scores[1], 1 + len(x) * len(y) * len(omega) // AT_ONCE):
                b = at_nodes(omega, np.add.outer(some, rest * y).ravel(), 3)
                parts = (
                    part.reshape(len(omega), -1, len(y)) for part in (*b.powers, b.gone, b.e_gone)
                )
                found.append([(part @ density).T for part in parts])
            *powers, gone, f_gone = map(np.concatenate, zip(*found, strict=True))
        else:
            low, high = scores[1].min() + rest * y[0], scores[1].max() + rest * y[-1]
            shared = np.linspace(low, high, 2 + math.ceil((high - low) / SCORE_STEP))
            chance = np.exp(-(((shared - scores[1][:, None]) / rest) ** 2) / 2)
            chance /= chance.sum(axis=1, keepdims=True)
            b = at_nodes(omega, shared, 3)
            *powers, gone, f_gone = (chance @ part.T for part in (*b.powers, b.gone, b.e_gone))
        a = at_nodes(tau, scores[0], 3)
        yield _Piece(i, share * mass, a, powers, gone, f_gone, (nothing, nothing))
    size = max(1, AT_ONCE // (4 * max(len(tau), len(omega))))
    for start in range(0, len(law.points), size):
        some = slice(start, start + size)
        a, b = (
            at_nodes(ln, seen.scores[some], 1)
            for ln, seen in zip(case.nodes, case.views, strict=True)
        )
        values = first.points[some] @ case.readers[0].V.T, other.points[some] @ case.readers[1].V.T
        powers = [power.T for power in b.powers]
        yield _Piece(None, law.point_weights[some], a, powers, b.gone.T, b.e_gone.T, values)


def _check_work(case: _Case) -> None:
    """Raise before memory is exhausted."""
    widest = max(float(seen.deviation.max(initial=0.0)) for seen in case.views)
    nodes, copies = math.prod(map(len, case.nodes)), 12 + 4 * len(case.readers[0].V)
    if nodes * copies > MOST or widest > WIDEST:
        raise _checks.error(
            f"two heads take scores of deviation up to {WIDEST:g} and {MOST:.0e} numbers",
            f"deviation {widest:.3g} and {nodes * copies:.1e} numbers",
            "scale the heads down, or sample prompts with method=lp.MonteCarlo(key)",
        )


class _Averages(NamedTuple):
    """Averages over one token at all pairs of nodes."""

    log_phi: np.ndarray  # (t, w)
    masses: tuple[np.ndarray, np.ndarray]  # B_10, B_01
    first: tuple[np.ndarray, np.ndarray]  # (m, t, w) F of both heads


def _averages(case: _Case) -> _Averages:
    (a, b), shape = case.views, tuple(map(len, case.nodes))
    Va, Vb = (reader.V for reader in case.readers)
    phi, tail, mass_a, mass_b = np.zeros((4, *shape))
    # F by its difference to t = w = 0, with e^{-e-f} - 1 = (e^-e - 1) + e^-e (e^-f - 1), or not
    near, far = ([np.zeros((len(V), *shape)) for V in (Va, Vb)] for _ in range(2))
    for p in _pieces(case):
        w, e = p.weights, p.a.powers
        f = [w[:, None] * power for power in p.powers]
        gone, f_gone = w[:, None] * p.gone, w[:, None] * p.f_gone
        phi += e[0] @ f[0]
        tail -= (p.a.gone @ w)[:, None] + e[0] @ gone
        b10, b01 = e[1] @ f[0], e[0] @ f[1]
        mass_a, mass_b = mass_a + b10, mass_b + b01
        if p.component is None:
            for i, x in enumerate(p.values[0].T):
                far[0][i] += e[1] @ (x[:, None] * f[0])
                near[0][i] += (p.a.e_gone @ (w * x))[:, None] + e[1] @ (x[:, None] * gone)
            for i, x in enumerate(p.values[1].T):
                far[1][i] += e[0] @ (x[:, None] * f[1])
                near[1][i] += x @ f_gone + p.a.gone @ (x[:, None] * f[1])
            continue
        i = p.component
        near10 = (p.a.e_gone @ w)[:, None] + e[1] @ gone
        near01 = f_gone.sum(axis=0) + p.a.gone @ f[1]
        b11 = e[1] @ f[1]
        for k, V, own, pull, one, by_difference, two in (
            (0, Va, a, b.pull[i], b10, near10, e[2] @ f[0]),
            (1, Vb, b, a.pull[i], b01, near01, e[0] @ f[2]),
        ):
            change = np.multiply.outer(V @ own.pull[i], two) + np.multiply.outer(V @ pull, b11)
            start = V @ (own.means[i] + own.pull[i])
            near[k] += np.multiply.outer(start, by_difference) - change
            far[k] += np.multiply.outer(start, one) - change
    whole = [
        np.exp(np.minimum(ln + seen.log_mass, LARGEST))
        for ln, seen in zip(case.nodes, case.views, strict=True)
    ]
    first = (
        np.where(mass_a > 0.5 * whole[0][:, None], near[0], far[0]),
        np.where(mass_b > 0.5 * whole[1], near[1], far[1]),
    )
    return _Averages(log_phi(tail, phi), (mass_a, mass_b), first)


def _derivatives(B: Callable[[int, int], Values]) -> np.ndarray:
    """Derivatives of e f e^{-e-f} in the scores: none, s, r by none, s, r, of shape (3, 3, ...)."""
    whole, s, r = B(1, 1), B(1, 1) - B(2, 1), B(1, 1) - B(1, 2)
    ss, sr = B(1, 1) - 3 * B(2, 1) + B(3, 1), s - B(1, 2) + B(2, 2)
    rr = B(1, 1) - 3 * B(1, 2) + B(1, 3)
    return np.array([[whole, s, r], [s, ss, sr], [r, sr, rr]])


class _Total(NamedTuple):
    """A sum, the same with all terms positive, and the same of the weights (sum p)(sum q)."""

    value: np.ndarray
    size: np.ndarray
    unit: float


def _of_one_token(case: _Case, once: np.ndarray) -> _Total:
    """Q summed over all pairs of nodes with these weights."""
    a, b = case.views
    Va, Vb = (reader.V for reader in case.readers)
    value = size = np.zeros((len(Va), len(Vb)))
    unit = 0.0
    for p in _pieces(case):
        seen = [power.T @ once for power in p.a.powers[1:]]  # (rows, w)
        if p.component is None:
            read = p.weights * (seen[0] * p.powers[1]).sum(axis=1)
            left = p.values[0] * read[:, None]
            value, size = value + left.T @ p.values[1], size + abs(left).T @ abs(p.values[1])
            unit += float(read.sum())
            continue

        def B(j: int, l: int, p: _Piece = p, seen: list[np.ndarray] = seen) -> float:
            return float(p.weights @ (seen[j - 1] * p.powers[l]).sum(axis=1))

        middle = _derivatives(B)
        whole = float(middle[0, 0])
        i, pulls = p.component, [a.pull[p.component], b.pull[p.component]]
        left, right = np.stack([a.means[i], *pulls]) @ Va.T, np.stack([b.means[i], *pulls]) @ Vb.T
        noise = whole * Va @ case.law.covariances[i] @ Vb.T
        value = value + left.T @ middle @ right + noise
        size = size + abs(left).T @ abs(middle) @ abs(right) + abs(noise)
        unit += whole
    return _Total(value, size, unit)


class Shared(NamedTuple):
    """E[(T_a - T_a,inf)(T_b - T_b,inf)'], of shape (m, m), and a bound on its error."""

    value: np.ndarray
    error: np.ndarray


def _case(law: TokenLaw, readers: tuple[Reader, Reader], L: float, longest: float) -> _Case:
    """The nodes for prompts of L tokens, with scores for up to `longest` tokens."""
    views = view(law, readers[0].tilt), view(law, readers[1].tilt)
    tau, omega = (
        nodes_of(scores_of(law, seen, longest), seen.log_mass, (L, L), order=1, step=NODE_STEP)
        for seen in views
    )
    case = _Case(law, readers, views, (tau, omega), longest)
    _check_work(case)
    return case


def two_heads(law: TokenLaw, readers: tuple[Reader, Reader], L: float) -> Shared:
    """The second moment that two heads share, around their outputs on an infinite prompt."""
    case = _case(law, readers, L, L)
    tau, omega = case.nodes
    one, measure = _averages(case), (tau[1] - tau[0]) * (omega[1] - omega[0])
    found = _of_one_token(case, measure * L * np.exp((L - 1) * one.log_phi))
    twice = measure * L * (L - 1) * np.exp((L - 2) * one.log_phi)
    F, H = (part.reshape(len(part), -1) for part in one.first)
    weighted = F * twice.ravel()
    value, size = found.value + weighted @ H.T, found.size + abs(weighted) @ abs(H).T
    unit = found.unit + float(np.vdot(twice, one.masses[0] * one.masses[1]))
    rounding = sum(
        2.0**-52 * float((abs(np.concatenate([law.means, law.points])) @ abs(r.tilt)).max())
        for r in readers
    )
    relative = ROUNDING + SAFETY * abs(unit - 1) + 4 * rounding
    largest = math.prod(
        float(np.linalg.norm(np.concatenate([v.means, v.pull, v.points]), 2))
        * np.linalg.norm(r.V, 2)
        for v, r in zip(case.views, readers, strict=True)
    )
    return Shared(value, relative * size + 1e3 * math.exp(-RARE) * largest)


def prefix_change(
    law: TokenLaw, readers: tuple[Reader, Reader], first: float, others: float
) -> Shared:
    """E <T_a,L - T_a,first, T_b,L - T_b,first>, both heads reading `others` tokens more in the end.

    With N = sum e^{s_i} V(x_i - x_inf), and 1 and 2 for the first tokens and the others,

        T_first - T_L = int e^{-t S_1} { N_1 (1 - e^{-t S_2}) - N_2 e^{-t S_2} } dt,

    so that the average is a sum of products of averages over the first tokens and over the others,
    each as small as the change: no digits are lost where there are few others.
    """
    case = _case(law, readers, first, first + others)
    tau, omega = case.nodes
    one = _averages(case)
    (a, b), (Va, Vb) = case.views, (reader.V for reader in readers)
    phi_t, tail_t = np.zeros((2, len(tau), 1))
    phi_w, tail_w = np.zeros((2, len(omega)))
    Q, by_t, by_w, crossed, unit = np.zeros((5, len(tau), len(omega)))
    of_b, of_a = np.zeros((len(Vb), *Q.shape)), np.zeros((len(Va), *Q.shape))
    for p in _pieces(case):
        w, e = p.weights, p.a.powers
        f, gone = [w[:, None] * power for power in p.powers], w[:, None] * p.gone
        phi_t[:, 0] += e[0] @ w
        tail_t[:, 0] -= p.a.gone @ w
        phi_w += f[0].sum(0)
        tail_w -= gone.sum(0)
        by_t += p.a.gone @ f[0]  # phi(t, w) - phi(0, w)
        by_w += e[0] @ gone
        crossed += p.a.gone @ gone
        unit += e[1] @ f[1]
        if p.component is None:
            Q += e[1] @ ((p.values[0] * p.values[1]).sum(1)[:, None] * f[1])
            for i, y in enumerate(p.values[1].T):
                of_b[i] += p.a.gone @ (y[:, None] * f[1])
            for i, x in enumerate(p.values[0].T):
                of_a[i] += e[1] @ (x[:, None] * gone)
            continue
        i = p.component
        W, (pa, pb) = Va.T @ Vb, (a.pull[i], b.pull[i])
        B = {(j, l): e[j] @ f[l] for j, l in ((1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3))}
        forms = np.stack([a.means[i], pa, pb]) @ W @ np.stack([b.means[i], pa, pb]).T
        forms[0, 0] += np.trace(W @ law.covariances[i])
        Q += np.tensordot(forms, _derivatives(lambda j, l, B=B: B[j, l]), 2)
        start, pull, pull_a = Vb @ (b.means[i] + pb), Vb @ pb, Vb @ pa
        of_b += np.multiply.outer(start, p.a.gone @ f[1]) - np.multiply.outer(pull_a, B[1, 1])
        of_b -= np.multiply.outer(pull, p.a.gone @ f[2])
        start, pull, pull_b = Va @ (a.means[i] + pa), Va @ pa, Va @ pb
        of_a += np.multiply.outer(start, e[1] @ gone) - np.multiply.outer(pull_b, B[1, 1])
        of_a -= np.multiply.outer(pull, e[2] @ gone)
    whole, log_t, log_w = one.log_phi, log_phi(tail_t, phi_t), log_phi(tail_w, phi_w)
    apart = log_t + log_w  # phi(t, 0) phi(0, w)
    covariance = crossed - tail_t * tail_w
    ratio = np.maximum(covariance / np.exp(np.maximum(apart, -1.0)), -0.999)
    together = np.where(apart > -1, np.log1p(ratio), whole - apart)
    # E (1 - e^{-tS})(1 - e^{-wR}) over the other tokens
    none = np.expm1(others * log_t) * np.expm1(others * log_w) + np.where(
        others * abs(together) < 1,
        np.exp(others * apart) * np.expm1(np.minimum(others * together, 1.0)),
        np.exp(others * whole) - np.exp(others * apart),
    )

    def of_others(values: np.ndarray, alone: np.ndarray, moved: np.ndarray, phi: np.ndarray):
        """E (1 - e^{-tS}) N_b e^{-wR} over the other tokens, or with the heads exchanged."""
        more = np.log1p(np.maximum(phi / np.exp(alone), -1 + 1e-16))
        rest = others * np.exp((others - 1) * alone)
        return rest * (-moved - values * np.expm1((others - 1) * more))

    measure = (tau[1] - tau[0]) * (omega[1] - omega[0])
    left = [measure * np.exp((first - k) * whole) for k in range(3)]
    F, H = one.first
    product = (F * H).sum(0)
    parts = [
        left[1] * first * Q * none,
        left[2] * first * (first - 1) * product * none,
        -left[1] * first * (F * of_others(H, log_w, of_b, by_t)).sum(0),
        -left[1] * first * (H * of_others(F, log_t, of_a, by_w)).sum(0),
        left[0] * others * Q * np.exp((others - 1) * whole),
        left[0] * others * (others - 1) * product * np.exp((others - 2) * whole),
    ]
    mass = left[1] * first * unit + left[2] * first * (first - 1) * one.masses[0] * one.masses[1]
    relative = ROUNDING + SAFETY * abs(float(mass.sum()) - 1)
    size = sum(float(abs(part).sum()) for part in parts)
    return Shared(np.asarray(sum(float(part.sum()) for part in parts)), np.asarray(relative * size))
