"""Convergence along one growing prompt, and the law of the iterated logarithm.

T_L - T is asymptotically the mean of L independent copies of V (x - x_u) e^{<u,x> - psi(u)}, x_u
the tilted mean. So, with probability one,

    limsup |T_L - T| / sqrt(2 ln ln L / L) = sqrt(lambda_max),

lambda_max of V E[(x - x_u)(x - x_u)' e^{2<u,x>}] V' / e^{2 psi(u)}. This covariance is closed form,
from the tilts by u and 2u; for Gaussian tokens it is e^{sigma^2} V(G + Guu'G)V'.
"""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float, Int, Key

from .. import _checks
from .._float64 import not_traced
from .._lengths import token_count
from .._softmax_sums import SoftmaxSums
from .._typing import Array, ArrayInput, KeyInput
from ..attention import AbstractHead, attend
from ..attention.softmax import queries_of
from ..measures import AbstractMeasure, Dirac
from ..prompts import MonteCarlo
from ._attributes import attributes

_BLOCK = 4096  # tokens drawn at once: part of what defines the random stream


@_checks.accepts(head=AbstractHead, mu=AbstractMeasure)
@not_traced
def growing_prompt(
    key: KeyInput,
    head: AbstractHead,
    mu: AbstractMeasure,
    z: ArrayInput,
    lengths: Sequence[int] | ArrayInput,
    prompts: int = 1,
) -> xr.Dataset:
    """$|T_L(z) - T(z)|$ along prompts that grow token by token, and the envelope of the law of the
    iterated logarithm.

    **Arguments:** increasing whole `lengths` >= 3 to record; `prompts` independent prompts. The
    tokens of a prompt depend on the key and its index only: other lengths record the same path.

    **Returns:** a dataset with `distance` over ("prompt", "length") and `envelope` =
    $sqrt(2 lambda_max ln ln L / L)$ over "length".

    >>> import jax, jax.numpy as jnp
    >>> import largeprompt as lp
    >>> head, mu = lp.Head(U=jnp.eye(2), V=jnp.eye(2)), lp.Gaussian(jnp.zeros(2), jnp.eye(2))
    >>> path = lp.growing_prompt(jax.random.key(0), head, mu, jnp.ones(2) / 2, [10, 1000, 100_000])
    >>> bool((path.distance[0, -1] < path.envelope[-1]).item())
    True
    """
    queries, batch = queries_of(head, mu, z)
    wanted = np.array([token_count(L) for L in _checks.known("lengths", lengths).ravel().tolist()])
    if batch or not wanted.size or wanted[0] < 3 or np.any(np.diff(wanted) <= 0):
        raise _checks.error(
            f"growing_prompt takes a query of shape ({head.query_dim},) and increasing "
            "lengths >= 3",
            f"a batch of shape {batch} and lengths {wanted.tolist()[:5]}",
            "pass for example np.unique(np.geomspace(3, 1e6, 50).astype(int))",
        )
    keys = jax.random.split(_checks.key(key), _checks.count("prompts", prompts))
    limit = attend(head, mu, queries[0])
    distances = np.stack(
        [
            np.asarray(
                _path(
                    k,
                    head,
                    mu,
                    queries[0],
                    limit,
                    jnp.asarray(wanted),
                    int(-(-wanted[-1] // _BLOCK)),
                )
            )
            for k in keys
        ]
    )
    scale = float(iterated_logarithm_scale(head, mu, queries[0]))
    envelope = scale * np.sqrt(2 * np.log(np.log(wanted)) / wanted)
    found = attributes(head, mu, Dirac(queries[0]), MonteCarlo(key))
    found["scale"] = scale
    return xr.Dataset(
        {"distance": (("prompt", "length"), distances), "envelope": ("length", envelope)},
        {"length": wanted.astype(np.float64), "prompt": np.arange(prompts)},
        found,
    )


@eqx.filter_jit
def iterated_logarithm_scale(
    head: AbstractHead, mu: AbstractMeasure, z: Float[Array, " d"]
) -> Float[Array, ""]:
    """sqrt(lambda_max) of the asymptotic covariance of sqrt(L) (T_L - T), which for heads a and b
    is e^{psi(u_a + u_b) - psi(u_a) - psi(u_b)} V_a E[(x - T_a)(x - T_b)'] V_b', x tilted by
    u_a + u_b.
    """
    covariance = jnp.zeros(())
    for a, b in itertools.product(head.heads, head.heads):
        first, second = a.U @ z, b.U @ z
        both = first + second
        shifts = [mu.tilted_mean(both) - mu.tilted_mean(u) for u in (first, second)]
        square = mu.tilted_cov(both) + shifts[0][:, None] * shifts[1]
        mass = jnp.exp(mu.log_mgf(both) - mu.log_mgf(first) - mu.log_mgf(second))
        covariance = covariance + mass * (a.V @ square @ b.V.T)
    return jnp.sqrt(jnp.linalg.norm(covariance, 2))


@eqx.filter_jit
def _path(
    key: Key[Array, ""],
    head: AbstractHead,
    mu: AbstractMeasure,
    z: Float[Array, " d"],
    limit: Float[Array, " m"],
    lengths: Int[Array, " n"],
    blocks: int,
) -> Float[Array, " n"]:
    """Distances at the lengths; memory does not depend on them."""

    def block(carry: tuple, index: Array) -> tuple:
        totals, found = carry
        tokens = mu.sample(jax.random.fold_in(key, index), _BLOCK).points
        error, after = -limit, []
        for one, total in zip(head.heads, totals, strict=True):
            scores = jnp.matmul(tokens, one.U @ z, precision="highest")
            values = jnp.matmul(tokens, one.V.T, precision="highest")
            each = SoftmaxSums(scores, (jnp.ones_like(scores), values))
            inside = jax.lax.associative_scan(SoftmaxSums.merge, each)
            before = jax.tree.map(lambda a: jnp.broadcast_to(a, (_BLOCK, *a.shape)), total)
            _, (outputs,) = before.merge(inside).averages()
            error = error + outputs
            after.append(total.merge(jax.tree.map(lambda a: a[-1], inside)))
        distance = jnp.linalg.norm(error, axis=1)
        position = lengths - 1 - index * _BLOCK
        here = (position >= 0) & (position < _BLOCK)
        found = jnp.where(here, distance[jnp.clip(position, 0, _BLOCK - 1)], found)
        return (after, found), None

    dtype = mu.dtype
    sums = (jnp.zeros((), dtype), jnp.zeros(head.out_dim, dtype))
    empty = SoftmaxSums(jnp.array(-jnp.inf, dtype), sums)
    start = ([empty] * len(head.heads), jnp.zeros(lengths.shape, dtype))
    (_, found), _ = jax.lax.scan(block, start, jnp.arange(blocks))
    return found
