"""Tokens after one layer that reads a finite prompt: mean and covariances, exactly.

Tokens z and z', iid N(m, G), read one prompt of L other tokens of the same law, y = z + T_L(z) and
y' = z' + T_L(z'). With f(z) = E[T_L(z) | z],

    E y = m + E f(z),    Cov(y) = Cov(z + f(z)) + E Cov(T_L(z) | z),
    Cov(y, y') = E Cov(T_L(z), T_L(z') | z, z'),

the last because z and z' are independent: what they share is the error of the prompt. For U = a b'
of rank one the output depends on r = b'z alone, so the averages over queries are Gauss-Hermite sums
in one and in two variables.

In self-attention z and z' are tokens of the prompt, and each also reads the other. To first order
in 1/L this adds (V G B' + B G V')/L to Cov(y, y'), B = I + V G U: the influence of a token x on the
output at z is e^<u,x> V(x - T)/(L E e^<u,x>), and the tilted law has the covariance G.
"""

import numpy as np
import xarray as xr
from numpy.polynomial.hermite_e import hermegauss

import largeprompt as lp

MEAN, VARIANCES = np.full(3, 0.3), np.array([1.0, 0.5, 0.0])
SCORES, QUERIES = np.array([0.6, -0.4, 0.2]), np.array([0.7, 0.6, -0.4])  # a and b
VALUES = np.array([[0.8, -0.4, 0.2], [0.6, 1.0, 0.4], [-0.2, 0.4, 0.6]])
_NODES = 24
_TOKENS = 128  # that read one prompt
_AT_ONCE = 250  # prompts in memory


def _head_and_law() -> tuple[lp.Head, lp.Gaussian]:
    return lp.Head(U=np.outer(SCORES, QUERIES), V=VALUES), lp.Gaussian(MEAN, np.diag(VARIANCES))


def _nodes(n: int) -> tuple[np.ndarray, np.ndarray]:
    """E[z | r] at n nodes of r = b'z, and weights."""
    x, w = hermegauss(n)
    along = VARIANCES * QUERIES
    return MEAN + np.outer(x, along / np.sqrt(QUERIES @ along)), w / w.sum()


def _outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[..., :, None] * b[..., None, :]


def exact_law(L: float, pair_nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E y, Cov(y) and Cov(y, y'); the last from `pair_nodes` nodes for each of the two tokens."""
    head, mu = _head_and_law()
    z, w = _nodes(_NODES)
    f = np.asarray(lp.finite_mean(head, mu, z, L))
    squares = np.asarray(lp.finite_second_moment(head, mu, z, L))
    of_f = w @ f
    cross = np.einsum("k,kij->ij", w, _outer(z - MEAN, f))
    of_output = np.einsum("k,kij->ij", w, squares) - _outer(of_f, of_f)
    cov = np.diag(VARIANCES) + cross + cross.T + of_output
    z, w = _nodes(pair_nodes)
    i, j = np.triu_indices(pair_nodes)
    found = np.asarray(lp.output_covariance(head, mu, z[i], z[j], L))
    both = (found + np.swapaxes(found, 1, 2)) / 2  # of (i, j) and (j, i)
    chance = w[i] * w[j] * np.where(i == j, 1, 2)
    return MEAN + of_f, cov, np.einsum("k,kij->ij", chance, both)


def limit_law() -> tuple[np.ndarray, np.ndarray]:
    """E y and Cov(y) for the infinite prompt: B m + V m and B G B', B = I + V G U."""
    G = np.diag(VARIANCES)
    B = np.eye(3) + VALUES @ G @ np.outer(SCORES, QUERIES)
    return B @ MEAN + VALUES @ MEAN, B @ G @ B.T


def reading_each_other() -> np.ndarray:
    """V G B' + B G V': L times what self-attention adds to Cov(y, y'), to first order."""
    G = np.diag(VARIANCES)
    B = np.eye(3) + VALUES @ G @ np.outer(SCORES, QUERIES)
    return VALUES @ G @ B.T + B @ G @ VALUES.T


def particles(
    rng: np.random.Generator, L: int, prompts: int, themselves: bool = False
) -> list[tuple]:
    """The same three from sampled prompts, each with its standard error, by NumPy.

    With `themselves`, the tokens that read are those of the prompt: self-attention.
    """
    x, z = (MEAN + np.sqrt(VARIANCES) * rng.standard_normal((prompts, n, 3)) for n in (L, _TOKENS))
    z = x if themselves else z
    tokens = z.shape[1]
    y = np.empty_like(z)
    for here in (slice(start, start + _AT_ONCE) for start in range(0, prompts, _AT_ONCE)):
        scores = (z[here] @ QUERIES)[:, :, None] * (x[here] @ SCORES)[:, None]
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y[here] = z[here] + p @ x[here] / p.sum(-1, keepdims=True) @ VALUES.T
    mean = y.mean((0, 1))
    centred = y - mean
    total, squares = centred.sum(1), np.einsum("nai,naj->nij", centred, centred)
    shared = (_outer(total, total) - squares) / (tokens * (tokens - 1))
    draws = (y.mean(1), squares / tokens, shared)
    return [(d.mean(0), d.std(0, ddof=1) / prompts**0.5) for d in draws]


def pushed_tokens(
    rng: np.random.Generator, lengths: list[int], prompts: int, pair_nodes: int
) -> xr.Dataset:
    """Exact and sampled law of the tokens after the layer, at each length."""
    exact = [exact_law(float(L), pair_nodes) for L in lengths]
    drawn = [particles(rng, L, prompts) for L in lengths]
    names = {"mean": ("i",), "cov": ("i", "j"), "shared": ("i", "j")}
    parts = {}
    for k, (name, axes) in enumerate(names.items()):
        dims = ("pushed_length", *axes)
        parts[f"pushed_{name}"] = (dims, [law[k] for law in exact])
        parts[f"pushed_{name}_sampled"] = (dims, [law[k][0] for law in drawn])
        parts[f"pushed_{name}_error"] = (dims, [law[k][1] for law in drawn])
    mean, cov = limit_law()
    parts |= {"pushed_mean_limit": ("i", mean), "pushed_cov_limit": (("i", "j"), cov)}
    shared, error = particles(rng, lengths[-1], 4 * prompts, themselves=True)[2]
    parts |= {
        "self_shared_sampled": (("i", "j"), shared),
        "self_shared_error": (("i", "j"), error),
        "self_shared_extra": (("i", "j"), reading_each_other() / lengths[-1]),
    }
    return xr.Dataset(parts, {"pushed_length": np.array(lengths, np.float64)})
