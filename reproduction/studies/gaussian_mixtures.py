"""Gaussian mixtures: gated experts, denoising and classification in context, at finite length.

The statements are those of *Softmax Attention on Gaussian Mixtures* (arXiv 2610.11798) for infinite
prompts. A denoiser sees L noisy tokens N(m_k, S), S = (gamma^2 + xi^2) I, and a noisy query z of
the same law; it estimates the clean point behind z. A classifier sees L pairs (x, y).
"""

import math
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Key
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import gammaln

import largeprompt as lp
from reproduction.mutants import plus, power_of, times
from reproduction.panels import BLACK, LENGTH, Panel, Series
from reproduction.study import Check, Config, Patch, Study, at_least, at_most, between, power

MEANS = np.array([[3.0, 0.0], [0.0, 3.0]])  # of the figures of the paper
CENTRE, HALF = MEANS.mean(0), (MEANS[0] - MEANS[1]) / 2
EQUAL, UNEQUAL = (2.0, 2.0), (1.0, 4.0)  # gamma^2 and xi^2
CLASS = np.array([1.0, 0.5])  # centre of a class
SAMPLED = ("one head", "two heads", "labels")


def _grid(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss and Hermite in the plane."""
    x, w = hermegauss(n)
    points = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    return points, np.outer(w, w).ravel() / w.sum() ** 2


def _queries(n: int, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Noisy queries of both classes, with weights."""
    points, w = _grid(n)
    return np.concatenate([m + math.sqrt(variance) * points for m in MEANS]), np.tile(w / 2, 2)


def _bayes(z: np.ndarray, law: tuple[float, float]) -> np.ndarray:
    """E[x | z] = gamma^2/s z + xi^2/s sum_k b_k(z) m_k, s = gamma^2 + xi^2."""
    clean, noise = law
    s = clean + noise
    gate = np.tanh(z @ HALF / s)
    return clean / s * z + noise / s * (CENTRE + gate[..., None] * HALF)


def _two_heads(law: tuple[float, float]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(U, V) of two heads whose sum is the Bayes denoiser, by hand.

    In the basis (d, w) of the difference of the means and of their sum, U_1 = dd'/s + wc',
    U_2 = wa', V_1 = xi^2/s dd' + vw', V_2 = qw': head 1 has the gate of the Bayes denoiser, head 2
    none, v + q = xi^2/s w gives the constant, and vc' + qa' the slope that is missing.
    """
    clean, noise = law
    s, d, w = clean + noise, HALF / np.linalg.norm(HALF), CENTRE / np.linalg.norm(CENTRE)
    v, q = noise / (2 * s) * (w + d), noise / (2 * s) * (w - d)
    missing = ((clean - noise) * np.outer(d, d) + clean * np.outer(w, w)) / s**2
    c, a = np.linalg.solve(np.stack([v, q], axis=1), missing)
    first = (np.outer(d, d) / s + np.outer(w, c), noise / s * np.outer(d, d) + np.outer(v, w))
    return [first, (np.outer(w, a), np.outer(q, w))]


def _limit(heads: list[tuple[np.ndarray, np.ndarray]], z: np.ndarray, s: float) -> np.ndarray:
    """T[mu](z) for noisy tokens: sum over heads of V (s U z + sum_k a_k m_k)."""
    total = np.zeros_like(z)
    for U, V in heads:
        u = z @ U.T
        total = total + (s * u + CENTRE + np.tanh(u @ HALF)[:, None] * HALF) @ V.T
    return total


def _excess(outputs: np.ndarray, z: np.ndarray, w: np.ndarray, law: tuple[float, float]) -> float:
    return float(w @ ((outputs - _bayes(z, law)) ** 2).sum(1))


def _best_head(law: tuple[float, float], n: int) -> float:
    """Smallest excess risk of one head with an infinite prompt, from two starts."""
    from scipy.optimize import minimize  # a fifth of a second of import, only where it is used

    (z, w), s = _queries(n, sum(law)), sum(law)

    def excess(p: np.ndarray) -> float:
        U, V = p.reshape(2, 2, 2)
        return _excess(_limit([(U, V)], z, s), z, w, law)

    starts = [np.stack([a * np.eye(2) / s, 0.5 * np.eye(2)]).ravel() for a in (1.0, 0.5)]
    return min(minimize(excess, start, method="BFGS").fun for start in starts)


def _linear_attention(law: tuple[float, float], n: int, lengths: np.ndarray) -> np.ndarray:
    """Excess risk of linear attention A (1/L sum x x') M^-1 z, M = E x x', with the best A."""
    (z, w), clean = _queries(n, sum(law)), law[0] * np.eye(2)
    second = (MEANS[:, :, None] * MEANS[:, None, :]).mean(0)
    M = sum(law) * np.eye(2) + second
    A = (clean + second) @ np.linalg.inv(M)
    x, chance = _queries(3, sum(law))  # exact for polynomials of degree 5 in a token
    y = z @ np.linalg.inv(M)
    squares = ((x @ y.T) ** 2 * ((x @ A.T) ** 2).sum(1)[:, None] * chance[:, None]).sum(0)
    variance = w @ (squares - ((z @ A.T) ** 2).sum(1))
    return _excess(z @ A.T, z, w, law) + variance / lengths


def _softmax(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Softmax weights of prompts (n, L, d) at tilts (n, d)."""
    scores = np.einsum("nld,nd->nl", x, u)
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def _denoised(
    rng: np.random.Generator, law: tuple[float, float], heads: list, L: int
) -> np.ndarray:
    """Squared distance to the Bayes denoiser for a thousand prompts of L tokens, each with its
    own query.
    """
    classes = rng.integers(2, size=(1000, L + 1))
    points = MEANS[classes] + math.sqrt(sum(law)) * rng.standard_normal((1000, L + 1, 2))
    z, x = points[:, 0], points[:, 1:]
    means = (np.einsum("nl,nld->nd", _softmax(x, z @ U.T), x) @ V.T for U, V in heads)
    return ((sum(means) - _bayes(z, law)) ** 2).sum(1)


def _labelled(rng: np.random.Generator, L: int) -> np.ndarray:
    """Squared distance to the posterior mean of the label, for a thousand prompts."""
    labels = rng.choice([-1.0, 1.0], size=(1000, L + 1))
    points = labels[..., None] * CLASS + rng.standard_normal((1000, L + 1, 2))
    z, x = points[:, 0], points[:, 1:]
    return ((_softmax(x, z) * labels[:, 1:]).sum(1) - np.tanh(z @ CLASS)) ** 2


def _sampled(config: Config, rng: np.random.Generator) -> dict:
    """Excess risks from sampled prompts, with standard errors, by NumPy."""
    s = sum(EQUAL)
    one = [(np.eye(2) / s, EQUAL[1] / s * np.eye(2))]
    draws = (
        lambda L: _denoised(rng, EQUAL, one, L),
        lambda L: _denoised(rng, UNEQUAL, _two_heads(UNEQUAL), L),
        lambda L: _labelled(rng, L),
    )
    sizes = list(zip(config["sampled_lengths"], config["thousands"], strict=True))
    values = [[np.concatenate([f(L) for _ in range(n)]) for L, n in sizes] for f in draws]
    dims = ("model", "sampled_length")
    return {
        "sampled": (dims, [[v.mean() for v in row] for row in values]),
        "sampled_error": (
            dims,
            [[v.std(ddof=1) / math.sqrt(v.size) for v in row] for row in values],
        ),
    }


def _experts(lengths: np.ndarray) -> dict:
    """Three experts of different covariances at one query: the gate, the error, and L times it."""
    weights = np.array([0.5, 0.3, 0.2])
    means = np.array([[1.0, 0.0], [-0.5, 1.0], [0.0, -1.0]])
    covs = np.array([[[1.0, 0.3], [0.3, 0.5]], 0.25 * np.eye(2), [[0.0, 0.0], [0.0, 1.0]]])
    mu = lp.Mixture(weights, [lp.Gaussian(m, G) for m, G in zip(means, covs, strict=True)])
    U, V = np.array([[0.8, 0.2], [-0.3, 0.6]]), np.array([[1.0, 0.5], [0.0, 1.0]])
    z = np.array([0.9, -0.7])
    head, u = lp.Head(U=U, V=V), U @ z

    def gate(u: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        logs = np.log(weights) + means @ u + np.einsum("i,kij,j->k", u, covs, u) / 2
        total = np.logaddexp.reduce(logs)
        return np.exp(logs - total), means + covs @ u, total

    a, centres, psi = gate(u)
    T = V @ (a @ centres)
    twice, far, psi_2 = gate(2 * u)
    spread = np.einsum("k,ij,kjl,il->", twice, V, covs, V) + twice @ ((far @ V.T - T) ** 2).sum(1)
    return {
        "expert_gap": float(np.abs(np.asarray(lp.finite_mean(head, mu, z, np.inf)) - T).max()),
        "expert_error": ("length", np.asarray(lp.output_error(head, mu, z, lengths))),
        "expert_pace": math.exp(psi_2 - 2 * psi) * spread,
    }


def _denoisers(config: Config, lengths: np.ndarray) -> dict:
    """Excess risks over the Bayes risk, exactly."""
    n, s = config["nodes"], sum(EQUAL)
    points, w = _grid(n)
    z = MEANS[0] + math.sqrt(s) * points  # the other class is its mirror image
    one = (np.eye(2) / s, EQUAL[1] / s * np.eye(2))
    mu = lp.Mixture([1, 1], [lp.Gaussian(m, s * np.eye(2)) for m in MEANS])
    head = lp.Head(U=one[0], V=one[1])
    errors = np.asarray(lp.output_error(head, mu, z[:, None], lengths))
    every, both = _queries(24, s)
    unequal = _queries(24, sum(UNEQUAL))[0]
    gate = 1 - np.tanh(every @ HALF / s) ** 2
    outputs = np.asarray(lp.finite_mean(head, mu, every, np.inf))
    two = _limit(_two_heads(UNEQUAL), unequal, sum(UNEQUAL))
    return {
        "bayes_risk": 2 * EQUAL[0] * EQUAL[1] / s + (EQUAL[1] / s) ** 2 * HALF @ HALF * both @ gate,
        "one_head": ("length", w @ errors),
        "linear": ("length", _linear_attention(EQUAL, 24, lengths)),
        "linear_limit": float(_linear_attention(EQUAL, 24, np.array([np.inf]))[0]),
        "one_head_gap": float(np.abs(outputs - _bayes(every, EQUAL)).max()),
        "two_heads_gap": float(np.abs(two - _bayes(unequal, UNEQUAL)).max()),
        "best_head_excess": ("law", [_best_head(law, 12) for law in (EQUAL, UNEQUAL)]),
    }


def _order(field: float, strength: float) -> float:
    """The fixed point of u -> tanh(strength u + field) reached from u = 1 for field >= 0."""
    from scipy.optimize import brentq

    if math.isinf(field):
        return math.copysign(1.0, field)
    if field < 0:
        return -_order(-field, strength)

    def gap(u: float) -> float:
        return math.tanh(strength * u + field) - u

    if field == 0 and strength <= 1:
        return 0.0
    found: Any = brentq(gap, 1e-9 if field == 0 else 0.0, 1.0, xtol=1e-15)
    return float(found)


def _iterated(config: Config) -> dict:
    """E u^2 of the iterated denoiser of point masses, u = tanh(lambda^2 u + h).

    A prompt of L points, k of them at the first mean, has the field h = ln(k/(L - k))/2; k is
    binomial, so the average is a finite sum. The infinite prompt has h = 0.
    """
    strengths, lengths = np.array(config["strengths"]), config["sampled_lengths"]
    found = np.empty((len(strengths), len(lengths)))
    for j, L in enumerate(lengths):
        k = np.arange(L // 2, L + 1)
        log_chance = gammaln(L + 1) - gammaln(k + 1) - gammaln(L - k + 1) - L * math.log(2)
        chance = np.exp(log_chance) * np.where(2 * k == L, 1, 2)
        seen = chance > 1e-14
        with np.errstate(divide="ignore"):
            fields = np.log(k / (L - k)) / 2
        for i, strength in enumerate(strengths):
            fixed = [_order(field, strength**2) for field in fields[seen]]
            found[i, j] = chance[seen] @ np.square(fixed)
    limit = [_order(0.0, strength**2) ** 2 for strength in strengths]
    return {"order": (("strength", "sampled_length"), found), "order_limit": ("strength", limit)}


def _classifier(config: Config, lengths: np.ndarray) -> dict:
    """Squared error of the posterior mean of a label, in context, over that of Bayes."""
    parts = [
        lp.Gaussian(sign * np.append(CLASS, 1.0), np.diag([1.0, 1.0, 0.0])) for sign in (1, -1)
    ]
    tokens = lp.Mixture([1, 1], parts)
    head = lp.Head(U=np.diag([1.0, 1.0, 0.0]), V=[[0.0, 0.0, 1.0]])
    points, w = _grid(config["nodes"])
    x = np.pad(CLASS + points, ((0, 0), (0, 1)))  # the other class is its mirror image
    posterior = np.tanh(x[:, :2] @ CLASS)
    outputs = np.asarray(lp.finite_mean(head, tokens, x, np.inf))[:, 0]
    # the posterior mean depends on one normal number: fine nodes for the risk of Bayes
    g = np.linspace(-9, 9, 2001)
    density = np.exp(-(g**2) / 2)
    size = math.sqrt(CLASS @ CLASS)
    bayes = density @ (1 - np.tanh(size**2 + size * g) ** 2) / density.sum()
    return {
        "label_gap": float(np.abs(outputs - posterior).max()),
        "label_bayes": float(bayes),
        "label_excess": (
            "length",
            w @ np.asarray(lp.output_error(head, tokens, x[:, None], lengths)),
        ),
        "label_linear": 1 / (1 + size**2) - float(bayes),
    }


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Limits against formulas by hand, and exact errors and risks at finite length."""
    lengths = np.array(config["lengths"], np.float64)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    parts = _experts(lengths) | _denoisers(config, lengths) | _sampled(config, rng)
    parts |= _iterated(config) | _classifier(config, lengths)
    return xr.Dataset(
        parts,
        {
            "length": lengths,
            "sampled_length": config["sampled_lengths"],
            "model": list(SAMPLED),
            "law": ["gamma = xi", "gamma < xi"],
            "strength": config["strengths"],
        },
    )


def examine(data: xr.Dataset) -> list[Check]:
    """The statements at infinite length, then what is left of them at finite length."""
    L, long = data.length.values, f"L = {power(data.length[-1])}"
    first, hundred, thousand = (data.sel(length=length) for length in (10.0, 100.0, 1000.0))
    two = data.sampled.sel(model="two heads").values
    ends = np.log(data.sampled_length.values[[0, -1]])
    pace = data.expert_error * data.length / data.expert_pace - 1
    slope = np.diff(np.log(data.one_head.values))[-1] / np.diff(np.log(L))[-1]
    label_slope = np.diff(np.log(data.label_excess.values))[-1] / np.diff(np.log(L))[-1]
    clean = EQUAL[0] * np.eye(2) + (MEANS[:, :, None] * MEANS[:, None, :]).mean(0)
    best = np.linalg.inv(np.linalg.inv(clean) + np.eye(2) / EQUAL[1])  # of linear maps of z
    exact = xr.concat([data.one_head, data.label_excess], "model").assign_coords(
        model=[SAMPLED[0], SAMPLED[2]]
    )
    shared = exact.sel(length=data.sampled_length.values.astype(float)).values
    drawn = data.sel(model=[SAMPLED[0], SAMPLED[2]])
    away = np.abs(drawn.sampled.values - shared) / drawn.sampled_error.values
    order = {
        strength: data.order.sel(strength=strength).isel(sampled_length=-1)
        for strength in (0.8, 1.0, 1.2)
    }
    last = float(data.sampled_length[-1])
    size = np.sqrt(data.order_limit)
    critical = 3 ** (2 / 3) * 2 ** (1 / 3) * math.gamma(5 / 6) / math.sqrt(math.pi)
    return [
        at_most("infinite prompt: |T - sum_k a_k V (m_k + G_k U z)|", data.expert_gap, 1e-12),
        at_most("one head, gamma = xi: distance to the Bayes denoiser", data.one_head_gap, 1e-12),
        at_most("two heads, gamma < xi: distance to the Bayes denoiser", data.two_heads_gap, 1e-12),
        at_most("best single head, gamma = xi: excess risk", data.best_head_excess[0], 1e-9),
        between("best single head, gamma < xi: excess risk", data.best_head_excess[1], 0.02, 0.04),
        at_least("linear attention, infinite prompt: excess risk", data.linear_limit, 0.1),
        at_most(
            "iterated denoiser, lambda up to 1: E u^2 of the infinite prompt",
            data.order_limit.where(data.strength <= 1, 0.0).max(),
            1e-12,
        ),
        at_most(
            "iterated denoiser, all lambda: |u - tanh(lambda^2 u)|",
            abs(size - np.tanh(data.strength**2 * size)).max(),
            1e-12,
        ),
        at_least("iterated denoiser, lambda = 1.2: u^2", data.order_limit.sel(strength=1.2), 0.5),
        at_most("labels: distance to the posterior mean of LDA", data.label_gap, 1e-12),
        at_least("labels: excess of linear attention, infinite prompt", data.label_linear, 0.03),
        at_most(f"experts, {long}: L E|T_L - T|^2 against the delta method", abs(pace[-1]), 1e-3),
        between(
            "experts: that distance times L, at the last length over the one before",
            pace[-1] * L[-1] / (pace[-2] * L[-2]),
            0.9,
            1.1,
        ),
        at_least(
            "denoisers at each finite length: linear attention's excess over softmax's, smallest",
            (data.linear / data.one_head).min(),
            1.0,
        ),
        at_least(
            "L = 100: excess of the softmax denoiser over that of the best linear map of z",
            hundred.one_head / data.linear_limit,
            1.0,
        ),
        at_most("L = 1000: the same", thousand.one_head / data.linear_limit, 0.6),
        between("denoiser: exponent of L in the excess at the last length", slope, -0.62, -0.35),
        between(
            "two heads: exponent of L in the excess, L = 10 to 1000",
            math.log(two[-1] / two[0]) / (ends[1] - ends[0]),
            -0.65,
            -0.35,
        ),
        between("two heads, L = 10: excess risk", two[0], 2.6, 3.6),
        between(
            f"iterated denoiser, lambda = 0.8, L = {last:g}: L (1 - lambda^2)^2 E u^2",
            order[0.8] * last * (1 - 0.64) ** 2,
            0.9,
            1.05,
        ),
        between(
            f"lambda = 1, L = {last:g}: E u^2 over its first order L^(-1/3) 3^(2/3) E|g|^(2/3)",
            order[1.0] / (critical * last ** (-1 / 3)),
            0.85,
            1.05,
        ),
        at_most(
            f"lambda = 1.2, L = {last:g}: |E u^2 - limit|",
            abs(order[1.2] - data.order_limit.sel(strength=1.2)),
            0.03,
        ),
        at_least(
            "labels, L = 10: excess of softmax over that of linear attention's limit",
            first.label_excess / data.label_linear,
            1.0,
        ),
        at_most("labels, L = 100: the same", hundred.label_excess / data.label_linear, 0.5),
        between("labels: exponent of L in the excess at the end", label_slope, -1.0, -0.62),
        at_most(
            "excess of linear attention against its closed form",
            abs(data.bayes_risk + data.linear_limit - np.trace(best)),
            1e-5,
            "accuracy",
        ),
        at_most(
            "labels: risk of linear attention against its closed form",
            abs(data.label_bayes + data.label_linear - 1 / (1 + CLASS @ CLASS)),
            1e-12,
            "accuracy",
        ),
        at_most(
            "exact excess risks against samples, in standard errors", away.max(), 5.0, "accuracy"
        ),
        at_most(
            "largest relative standard error of the samples",
            (data.sampled_error / data.sampled).max(),
            0.2,
            "accuracy",
        ),
    ]


def panels(data: xr.Dataset) -> list[Panel]:
    """Denoisers, the iterated denoiser, and labels in context."""
    L, some = data["length"].values, data["sampled_length"].values
    drawn = data.sel(model="two heads")
    bayes, of_labels = (np.full(L.shape, float(data[n])) for n in ("bayes_risk", "label_bayes"))
    denoisers = [
        Series(r"one head, $\gamma=\xi$", L, data["one_head"].values, 0),
        Series(r"linear attention, $\gamma=\xi$", L, data["linear"].values, 1),
        Series(
            r"two heads, $\gamma<\xi$ (sampled)",
            some,
            drawn["sampled"].values,
            2,
            "points",
            drawn["sampled_error"].values,
        ),
        Series(r"Bayes risk, $\gamma=\xi$", L, bayes, BLACK, "dashed"),
    ]
    strength = data["strength"].values
    orders = [
        Series(f"$L={n}$", strength, row, i)
        for i, (n, row) in enumerate(zip(some, data["order"].values.T, strict=True))
    ]
    orders.append(Series("limit", strength, data["order_limit"].values, 6, "dashed"))
    linear = np.full(L.shape, float(data["label_linear"]))
    labels = [
        Series("softmax", L, data["label_excess"].values, 0),
        Series("linear attention, $L=\\infty$", L, linear, 1, "dotted"),
        Series("Bayes risk", L, of_labels, BLACK, "dashed"),
    ]
    return [
        Panel(denoisers, LENGTH, "excess risk", title="denoisers"),
        Panel(orders, r"$\lambda$", "$E\\,u^2$", False, False, "iterated denoiser"),
        Panel(labels, LENGTH, "excess risk", title="labels in context"),
    ]


def broken(patch: Patch) -> None:
    """Gaussian tokens with twice the covariance."""
    exact = lp.Gaussian
    patch(lp, "Gaussian", lambda mean, cov: exact(mean, 2.0 * np.asarray(cov)))


STUDY = Study(
    name="gaussian-mixtures",
    title="Gaussian mixtures: what is left of the infinite prompt",
    source="Softmax Attention on Gaussian Mixtures (arXiv 2610.11798)",
    place=3.6,
    statement="On a Gaussian mixture the infinite prompt gates between linear experts. Two softmax "
    "heads are the Bayes denoiser, one head is if and only if γ = ξ, and linear attention is "
    "strictly worse; the iterated denoiser has a transition at λ = 1; one head gives the posterior "
    "mean of a label. At finite length the order of softmax and linear attention stays, the excess "
    "risk falls slower than 1/L, and the transition is smeared.",
    formula=r"T[\mu](z) = V \sum_k a_k(z)\,(m_k + \Gamma_k U z), \quad a_k \propto \pi_k "
    r"\exp(m_k^\top U z + \tfrac12 z^\top U^\top \Gamma_k U z), \qquad u = \tanh(\lambda^2 u)",
    method="Risks of one head at finite length are exact in the prompt (a Laplace integral over "
    "scores and components, relative error below 1e-9) and averaged over queries by Gauss-Hermite "
    "nodes (error below one per cent). Two heads share their prompt, and their excess risk is "
    "sampled, with standard errors. The iterated denoiser of point masses is a finite sum over "
    "binomial counts. The tokens of a denoiser are noisy, N(m_k, (γ² + ξ²) I), as is its query.",
    unknown="The paper's own proof that two heads suffice; we give a pair of heads by hand.",
    quick={
        "lengths": [10.0, 100.0, 1e3, 1e4],
        "sampled_lengths": [10, 100, 1000],
        "thousands": [4, 4, 4],
        "nodes": 6,
        "strengths": [0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5],
    },
    full={
        "lengths": [10.0, 31.0, 100.0, 316.0, 1e3, 3162.0, 1e4, 1e5],
        "sampled_lengths": [10, 100, 1000],
        "thousands": [40, 40, 20],
        "nodes": 14,
        "strengths": [0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 2.0],
    },
    measure=measure,
    examine=examine,
    panels=panels,
    caption="First: excess risk of denoisers beside the risk it exceeds; linear attention stays "
    "away from the Bayes risk. Second: the iterated denoiser has a transition at λ = 1, smeared "
    "at finite length. Third: the excess risk of softmax on labels falls below that of linear "
    "attention.",
    notices={
        "expert_gap": plus(1e-6),
        "expert_error": times(1.01, 3) + power_of("length", 0.1, -0.1),
        "expert_pace": times(1.01, 3),
        "bayes_risk": times(1.001) + plus(0.01),
        "one_head": times(1.3, 0.7) + power_of("length", 0.3, -0.3),
        "linear": times(0.5),
        "linear_limit": times(1.001, 0.1),
        "one_head_gap": plus(1e-6),
        "two_heads_gap": plus(1e-6),
        "best_head_excess": plus(0.1, each="law") + times(0.1),
        "sampled": times(1.5, 0.5, each="model"),
        "sampled_error": times(5),
        "order": times(1.2, 0.8) + power_of("sampled_length", 0.1),
        "order_limit": plus(0.01, each="strength"),
        "label_gap": plus(1e-6),
        "label_bayes": times(1.001),
        "label_excess": times(1.5, 0.5) + power_of("length", 0.3, -0.4),
        "label_linear": times(1.001, 0.3),
    },
    broken=broken,
)
