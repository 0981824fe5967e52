# pyright: reportPossiblyUnboundVariable=false
"""High-precision oracles for participation moments; imports nothing of ours.

Everything is mpmath arithmetic with composite Gauss-Legendre rules on panels, over windows found by
walking the integrand itself.  The library uses trapezoidal rules on mapped lattices and places its
nodes by asymptotics, so the two share a formula (docs/finite_prompts.md) but no numerical idea.
"""

from functools import cache
from math import factorial

import mpmath as mp

DIGITS = 25
_DROP = 48  # a tail is left out once its density is e^-48 (1e-21) of the peak
_ORDER = 20  # Gauss-Legendre points in one panel


@cache
def _legendre(order: int, digits: int):
    """Gauss-Legendre nodes and weights on [-1, 1] by Newton's method on the recurrence."""
    with mp.workdps(digits + 10):
        rule = []
        for i in range(1, order + 1):
            x = mp.cos(mp.pi * (i - mp.mpf(1) / 4) / (order + mp.mpf(1) / 2))
            for _ in range(60):
                previous, current = mp.mpf(1), x
                for n in range(2, order + 1):
                    previous, current = (
                        current,
                        ((2 * n - 1) * x * current - (n - 1) * previous) / n,
                    )
                slope = order * (x * current - previous) / (x * x - 1)
                step = current / slope
                x -= step
                if abs(step) < mp.mpf(10) ** (-digits - 5):
                    break
            rule.append((x, 2 / ((1 - x * x) * slope**2)))
        return rule


def _panels(lower, upper, width):
    """Gauss-Legendre nodes and weights on [lower, upper] cut in panels of at most `width`."""
    count = int(mp.ceil((upper - lower) / width))
    half = (upper - lower) / (2 * count)
    for panel in range(count):
        middle = lower + (2 * panel + 1) * half
        for x, weight in _legendre(_ORDER, DIGITS):
            yield middle + half * x, half * weight


def _walk(log_density, start, step, drop=_DROP):
    """First point on the walk start, start + step, ... where the log density fell by `drop`."""
    top, x = log_density(start), start
    while top - log_density(x) < drop:
        x += step
        step *= mp.mpf("1.1")
        top = max(top, log_density(x))
    return x


def scaled_psi(sigma, tau, pairs, centre=0):
    """{(j, k): t^k psi_{j,k}(t)} at t = e^tau, psi_{j,k}(t) = E[(s-c)^j e^{ks} exp(-t e^s)].

    The pair ("tail", 0) stands for 1 - phi_0(t), computed without cancellation.
    """
    sigma, tau, centre = mp.mpf(sigma), mp.mpf(tau), mp.mpf(centre)
    if sigma == 0:
        t = mp.exp(tau)
        return {
            (j, k): -mp.expm1(-t) if j == "tail" else t**k * (-centre) ** j * mp.exp(-t)
            for j, k in pairs
        }
    top_order = max(k for _, k in pairs)

    def log_density(s, k):
        y = tau + s
        return k * y - mp.exp(min(y, mp.mpf(30))) - s * s / (2 * sigma**2)

    def peak(k):  # solves k - e^(tau+s) = s/sigma^2
        x = tau + k * sigma**2 + 2 * mp.log(sigma)
        w = mp.lambertw(mp.exp(x)).real if x < 300 else x - mp.log(x)
        return k * sigma**2 - w, sigma / mp.sqrt(1 + w) / 2

    first, width = peak(0)
    lower = _walk(lambda s: log_density(s, 0), first, -width)
    last, width = peak(top_order)
    upper = _walk(lambda s: log_density(s, top_order), last, width)
    # 1 - exp(-e^y) is about min(1, e^y): not damped on the right.
    middle = min(max(-tau, mp.mpf(0)), sigma**2)
    log_tail = lambda s: min(tau + s, mp.mpf(0)) - s * s / (2 * sigma**2)  # noqa: E731
    upper = max(upper, _walk(log_tail, middle, sigma / 2))
    # exp(-e^y) varies on the scale 1 near y = 0; far from it only the normal density does.
    left, right = min(max(lower, -tau - 6), upper), max(min(upper, -tau + 6), lower)
    nodes = []
    if left > lower:
        nodes += _panels(lower, left, min(mp.mpf(6), 3 * sigma))
    if right > left:
        nodes += _panels(left, right, min(mp.mpf(2), 3 * sigma))
    if upper > right:
        nodes += _panels(right, upper, 3 * sigma)
    sums = dict.fromkeys(pairs, mp.mpf(0))
    for s, weight in nodes:
        z = mp.exp(tau + s)
        density = weight * mp.exp(-s * s / (2 * sigma**2))
        damped = density * mp.exp(-z)
        for j, k in pairs:
            if j == "tail":
                sums[j, k] += -mp.expm1(-z) * density
            else:
                sums[j, k] += damped * z**k * ((s - centre) ** j if j else 1)
    return {pair: value / (sigma * mp.sqrt(2 * mp.pi)) for pair, value in sums.items()}


def set_partitions(items):
    """All set partitions of a list, as lists of blocks."""
    items = list(items)
    if not items:
        yield []
        return
    head, rest = items[0], items[1:]
    for partition in set_partitions(rest):
        yield [[head], *partition]
        for i in range(len(partition)):
            yield [*partition[:i], [head, *partition[i]], *partition[i + 1 :]]


def _log_phi_0(psi):
    return mp.log(psi[0, 0]) if psi[0, 0] < mp.mpf("0.5") else mp.log1p(-psi["tail", 0])


def moments(requests, sigma, L, centre=0):
    """[E prod_a sum_i (s_i-c)^{j_a} p_i^{k_a} for each request ((j_1,k_1), (j_2,k_2), ...)].

    (1/Gamma(K)) int t^{K-1} sum over set partitions of L(L-1)...(L-m+1) phi_0^{L-m} prod psi dt.
    """
    with mp.workdps(DIGITS):
        L, sigma = mp.mpf(L), mp.mpf(sigma)
        plans = []
        for factors in requests:
            terms = []
            for partition in set_partitions(list(factors)):
                blocks = tuple((sum(j for j, _ in b), sum(k for _, k in b)) for b in partition)
                falling = mp.mpf(1)
                for used in range(len(blocks)):
                    falling *= L - used
                if falling != 0:
                    terms.append((falling, blocks))
            plans.append((sum(k for _, k in factors), terms))
        pairs = {(0, 0), ("tail", 0)}
        for _, terms in plans:
            pairs |= {block for _, blocks in terms for block in blocks}
        pairs = sorted(pairs, key=str)

        @cache
        def psi_at(tau):
            return scaled_psi(sigma, tau, pairs, centre)

        def values(tau):
            psi = psi_at(tau)
            log_phi = _log_phi_0(psi)
            out = []
            for _, terms in plans:
                total = mp.mpf(0)
                for falling, blocks in terms:
                    product = falling * mp.exp((L - len(blocks)) * log_phi)
                    for block in blocks:
                        product *= psi[block]
                    total += product
                out.append(total)
            return out

        def log_size(tau):
            return [mp.log(abs(v)) if v != 0 else mp.mpf(-10000) for v in values(tau)]

        # Where the integrands live: hill-climb every one on a coarse lattice, then walk both ways.
        start = -mp.log(L) - min(sigma**2 / 2, sigma * mp.sqrt(2 * mp.log(L + 1)))
        lower, upper = [], []
        for index in range(len(plans)):
            height = lambda tau: log_size(tau)[index]  # noqa: E731, B023
            tau, step = mp.nint(start), mp.mpf(1) + mp.nint(sigma / 2)
            while True:
                best = max((tau - step, tau, tau + step), key=height)
                if best == tau:
                    break
                tau = best
            lower.append(_walk(height, tau, -step))
            upper.append(_walk(height, tau, step / 2))
        low, high = min(lower), max(upper)
        slope = mp.sqrt(2 * mp.log(L + 1)) / max(sigma, mp.mpf("1e-6"))
        width = 2 / min(mp.mpf(1), slope) if sigma > 1 else mp.mpf(2)
        totals = [mp.mpf(0)] * len(plans)
        for tau, weight in _panels(low, high, min(width, mp.mpf(2) + sigma / 2)):
            for index, value in enumerate(values(tau)):
                totals[index] += weight * value
        return [t / factorial(K - 1) for t, (K, _) in zip(totals, plans, strict=True)]


def participation(sigma, L):
    """{name: value} of P_2, P_3, P_4 and P_22."""
    plain = [((0, 2),), ((0, 3),), ((0, 4),), ((0, 2), (0, 2))]
    return dict(zip(("P2", "P3", "P4", "P22"), moments(plain, sigma, L), strict=True))


def participation_moment(ks, sigma, L):
    """E prod_a sum_i p_i^{k_a}."""
    return moments([tuple((0, k) for k in ks)], sigma, L)[0]


def score_moment(factors, sigma, L, centre=0):
    """E prod_a sum_i (s_i - c)^{j_a} p_i^{k_a}."""
    return moments([tuple(factors)], sigma, L, centre)[0]
