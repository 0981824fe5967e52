"""Closed-form risk of a general head: linear attention at every length, both attentions at L = inf.

A head acts on a query (x_q, 0) by two blocks of U = [[A, .], [c', .]] and reads out v = (a, b).
With h = w'Sig w + tau^2 the mean prediction given w and the query is

    m = v'G_w u = x_q'(N'w + e),      N = b Sig A + Sig a c',      e = A'Sig a + b h c,

and linear attention adds the variance (m^2 + (v'G_w v)(u'G_w u)) / L. N'w is odd in w and e is
even, so their product averages to zero; h has mean h_1 = tr(Sig S) + tau^2 and variance
h_2 = 2 tr(Sig S Sig S). With S the covariance of w, Q that of queries, and |z|^2 = z'Q z,

    M       = |A'Sig a + b h_1 c|^2 + b^2 h_2 |c|^2                                     (= E |e|^2)
    2 R_inf = tau^2 + tr((N - I) Q (N - I)'S) + M
    2 R_L   = 2 R_inf + { tr(N Q N'S) + M + b^2 h_2 |c|^2 + 4 b a'Sig S Sig A Q c
                          + (a'Sig a + b^2 h_1)(tr(A'Sig A Q) + h_1 |c|^2) } / L.

*Two routes.* A head can score by x and read y (A, b: the block form), or score by y and read x
(c, a). M, which is at least b^2 h_2 |c|^2, makes them exclude each other, and at finite L the
second can have local minima of its own (docs/descent.md).
"""

import jax.numpy as jnp
from jaxtyping import Float

from .._typing import Array
from ._exact_risk import Problem, label_size


def linear_risk(
    problem: Problem,
    U: Float[Array, "D D"],
    v: Float[Array, " D"],
    inverse_length: Float[Array, ""],
) -> Float[Array, ""]:
    """R_L of linear attention; 1/L = 0 is the infinite prompt of both attentions (Lemma 2.1)."""
    Sig, B, S = problem.cov, problem.root, problem.task_cov
    d = len(Sig)
    # acting on xi, where x_q = B xi: then |z|^2 is the squared norm of B'z
    A, c = _product(U[:d, :d], B), _product(U[d, :d], B)
    a, b = v[:d], v[d]
    pull, scores = _product(Sig, a), _product(Sig, A)
    N = b * scores + jnp.outer(pull, c)
    h_1, h_2 = label_size(problem), 2 * jnp.sum(_product(Sig, S) * _product(S, Sig))
    c_size = jnp.sum(c**2)
    even = jnp.sum((_product(pull, A) + b * h_1 * c) ** 2) + b**2 * h_2 * c_size
    infinite = problem.noise + jnp.sum((N - B) * _product(S, N - B)) + even
    tokens = (_product(a, pull) + b**2 * h_1) * (jnp.sum(A * scores) + h_1 * c_size)
    crossed = b**2 * h_2 * c_size + 4 * b * _product(_product(S, pull), _product(scores, c))
    variance = jnp.sum(N * _product(S, N)) + even + tokens + crossed
    return 0.5 * (infinite + inverse_length * variance)


def _product(left: Array, right: Array) -> Array:
    """A matrix product in full precision."""
    return jnp.matmul(left, right, precision="highest")
