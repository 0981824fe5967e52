"""Lemma 2.1: on Gaussian tokens attention is affine in the query; on other tokens it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Key
from scipy.special import ive

import largeprompt as lp
from reproduction.mutants import plus, times
from reproduction.panels import Panel, Series
from reproduction.studies._draws import normals
from reproduction.study import Check, Config, Patch, Study, at_least, at_most

_NODES = (64, 48)  # of the quadrature, and of a second one that tests it


def quadrature_prompt(
    mean: Float[Array, " d"], factor: Float[Array, "d k"], tilt: Float[Array, " d"], nodes: int
) -> lp.Empirical:
    """A weighted prompt whose softmax attention at `tilt` equals that of N(m, B B') to rounding.

    With x = m + B g only the direction a = B'u of g is tilted; the others keep mean zero.
    Gauss-Hermite nodes along a therefore integrate numerator and denominator of attention to
    rounding, without using the lemma, as long as |a| is well inside their range.
    """
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    along = tilt @ factor
    length = jnp.linalg.norm(along)
    direction = jnp.where(length > 0, along / jnp.where(length > 0, length, 1.0), 0.0)
    return lp.Empirical(mean + places[:, None] * (factor @ direction), weights)


def _configuration(key: Key[Array, ""], d: int, centred: bool, rank: int) -> tuple:
    """Random mean, covariance factor, head and query; the score deviation is about two."""
    mean, factor, U, V, z = normals(key, (d,), (d, d), (d, d), (d + 1, d), (d,))
    kept = jnp.where(jnp.arange(d) < rank, 1.0, 0.0)
    scale = d**-0.5
    mean, factor = (0.0 if centred else 1.0) * mean, factor * kept * scale
    return mean, factor, lp.Head(U=U * scale, V=V), 2 * scale * z


def _worst_gaps(key: Key[Array, ""], d: int, repeats: int) -> tuple[float, float]:
    """Largest relative differences of the lemma to quadrature, and between the two quadratures.

    Tokens are centred or not; covariances have full rank, half rank, or are zero.
    """
    worst = np.zeros(2)
    for _ in range(repeats):
        for centred in (True, False):
            for rank in (d, (d + 1) // 2, 0):
                key, here = jax.random.split(key)
                mean, factor, head, z = _configuration(here, d, centred, rank)
                by_lemma = lp.attend(head, lp.Gaussian.from_factor(mean, factor), z)
                integral, coarse = (
                    np.asarray(lp.attend(head, quadrature_prompt(mean, factor, head.U @ z, n), z))
                    for n in _NODES
                )
                scale = max(np.max(np.abs(integral)), 1.0)
                gaps = [np.max(np.abs(other - integral)) for other in (by_lemma, coarse)]
                worst = np.maximum(worst, np.array(gaps) / scale)
    return float(worst[0]), float(worst[1])


def _along_a_line(points: int) -> xr.Dataset:
    """First coordinate of T[mu](t e_1) for four laws of mean 0 and covariance I."""
    t = np.linspace(-4, 4, points)
    laws = {
        "Gaussian": lp.Gaussian(np.zeros(2), np.eye(2)),
        "Rademacher": lp.Rademacher(2),
        "Uniform": lp.Uniform(2, 3**0.5),
        "Sphere": lp.Sphere(2, 2**0.5),
    }
    head, z = lp.Head(U=np.eye(2), V=np.eye(2)), np.stack([t, np.zeros(points)], axis=1)
    outputs = [np.asarray(lp.attend(head, law, z))[:, 0] for law in laws.values()]
    return xr.Dataset(
        {"output": (("law", "query"), outputs), "linear": ("query", t)},
        {"law": list(laws), "query": t},
    )


def measure(config: Config, key: Key[Array, ""]) -> xr.Dataset:
    """Lemma 2.1 against quadrature, and other laws along a line of queries."""
    dims = config["dimensions"]
    keys = jax.random.split(key, len(dims))
    found = [_worst_gaps(k, d, config["repeats"]) for k, d in zip(keys, dims, strict=True)]
    gaps, own = zip(*found, strict=True)
    return (
        _along_a_line(config["queries"])
        .assign(gap=("dimension", list(gaps)), integral_gap=("dimension", list(own)))
        .assign_coords(dimension=list(dims))
    )


def _closed_forms(t: np.ndarray) -> dict[str, np.ndarray]:
    """First coordinates of the tilted means at t e_1 for the laws of `_along_a_line`."""
    a, r = 3**0.5, 2**0.5
    small = np.abs(t) < 1e-6
    safe = np.where(small, 1.0, t)
    return {
        "Gaussian": t,
        "Rademacher": np.tanh(t),
        "Uniform": np.where(small, t, a / np.tanh(a * safe) - 1 / safe),
        "Sphere": r * np.sign(t) * ive(1, r * np.abs(t)) / ive(0, r * np.abs(t)),
    }


def examine(data: xr.Dataset) -> list[Check]:
    """The lemma in every dimension; other laws deviate from it exactly as their closed forms do."""
    checks = [
        at_most(f"Lemma 2.1, d = {d}: T = Vm + VGUz", data.gap.sel(dimension=d), 1e-12)
        for d in data.dimension.values
    ]
    straight = np.abs(data.output.sel(law="Gaussian") - data.linear).max()
    checks += [
        at_most(
            f"quadrature with {_NODES[0]} against {_NODES[1]} nodes",
            data.integral_gap.max(),
            1e-12,
            "accuracy",
        ),
        at_most("Lemma 2.1 along a line of queries: distance to linear attention", straight, 1e-12),
    ]
    for law, predicted in _closed_forms(data["query"].values).items():
        if law != "Gaussian":
            found = data.output.sel(law=law)
            bend = np.abs(found - data.linear).max()
            away = np.abs(found.values - predicted).max()
            checks += [
                at_least(
                    f"control: {law} tokens, largest distance to linear attention",
                    bend,
                    0.1,
                    "control",
                ),
                at_most(
                    f"control: {law} tokens, distance to their closed form", away, 1e-12, "control"
                ),
            ]
    return checks


def panels(data: xr.Dataset) -> list[Panel]:
    """Output along a line of queries for four laws."""
    z = data["query"].values
    curves = [
        Series(f"{law} tokens", z, data["output"].sel(law=law).values, i)
        for i, law in enumerate(data["law"].values)
    ]
    linear = Series("linear attention", z, data["linear"].values, 6, "dotted")
    return [Panel([*curves, linear], "query $z_1$", "output $T[\\mu](z)_1$", False, False)]


def broken(patch: Patch) -> None:
    """Scores divided by two, on Gaussian tokens."""
    exact = lp.attend

    def wrong(head, measure, z, **options):
        halved = lp.Head(U=head.U / 2, V=head.V) if isinstance(measure, lp.Gaussian) else head
        return exact(halved, measure, z, **options)

    patch(lp, "attend", wrong)


STUDY = Study(
    name="lemma-2.1",
    title="On Gaussian tokens softmax attention is affine in the query",
    source="Lemma 2.1",
    place=2.1,
    of_paper=True,
    statement="If the tokens are N(m, Γ), attention over an infinite prompt equals V m + V Γ U z "
    "at every query z, also if Γ is singular. This is a property of Gaussian tokens: for "
    "Rademacher tokens, uniform tokens or tokens on a sphere the output is not affine in the "
    "query.",
    formula=r"T[\mathcal{N}(m,\Gamma)](z) = V m + V \Gamma U z",
    method="The lemma against the attention integral, by 64-point Gauss-Hermite quadrature in the "
    "one tilted direction (exact to rounding, checked with 48 points), for random heads, means and "
    "queries and for covariances of full rank, half rank and rank 0. The figure shows the first "
    "output coordinate along a line of queries for four laws of the same mean and covariance; the "
    "last three are compared with tanh, the Langevin function and a ratio of Bessel functions.",
    quick={"dimensions": [1, 2, 5, 20], "repeats": 1, "queries": 65},
    full={"dimensions": [1, 2, 5, 20, 50, 100], "repeats": 5, "queries": 257},
    measure=measure,
    examine=examine,
    panels=panels,
    caption="Output along a line of queries for four laws of tokens with the same mean and "
    "covariance. Only for Gaussian tokens it lies on the straight line of linear attention.",
    notices={
        "gap": plus(1e-9, each="dimension"),
        "integral_gap": plus(1e-9, each="dimension"),
        "output": times(1 + 1e-9, 1.01, each="law") + plus(0.01, each="law"),
        "linear": times(1.01) + plus(0.01),
    },
    broken=broken,
)
