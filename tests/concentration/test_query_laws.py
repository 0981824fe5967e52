"""Averages over queries of random laws against plain sums over dense grids: the claimed error
covers the distance.
"""

import itertools

import jax
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.prompts import query_averages, query_rules

LENGTHS = np.array([1.0, 1e3, 1e9])
_QUANTITIES = (lp.OutputError(), lp.GradientError("U"), lp.GradientError("V"))


def _pointwise(quantity, head, mu, z):
    """The exact error at every query and length, shape (queries, lengths)."""
    return np.asarray(lp.expect(quantity, head, mu, z[:, None, :], LENGTHS).value)


def _grid(axes):
    """Points and weights of the product of one-dimensional rules."""
    points = np.stack(np.meshgrid(*[x for x, _ in axes], indexing="ij"), -1)
    weights = np.prod(np.stack(np.meshgrid(*[w for _, w in axes], indexing="ij"), -1), -1)
    return points.reshape(-1, len(axes)), weights.ravel()


def _random_problem(rng, d):
    """A head and Gaussian tokens, nothing symmetric, off centre."""
    root = rng.normal(size=(d, d))
    head = lp.Head(U=rng.normal(size=(d, d)) / 2, V=rng.normal(size=(2, d)))
    return head, lp.Gaussian(rng.normal(size=d), root @ root.T / d)


def _normal_axis(deviation, reach, step):
    """The trapezoidal rule for a standard normal coordinate; coarser where it hardly moves the
    query.
    """
    step = step if deviation > 1e-2 else 2 * step
    x = np.arange(-reach / step, reach / step + 1) * step
    return x, step * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
def test_concentration_curve_error_covers_gaussian_queries(seed):
    """Means to 6, anisotropy to 1e-8, narrow and wide laws, in one and two dimensions."""
    rng = np.random.default_rng(seed)
    d = 1 + seed % 2
    head, mu = _random_problem(rng, d)
    deviations = 10.0 ** rng.uniform(-4, 0, size=d)
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    mean = rng.uniform(0, 6) * axes @ rng.normal(size=d) / np.sqrt(d)
    nu = lp.Gaussian(mean, (axes * deviations**2) @ axes.T)
    quantity = _QUANTITIES[seed % 3]
    curve = lp.concentration_curve(head, mu, nu, LENGTHS, quantity)

    rules = [_normal_axis(s, 10.0, 0.3) for s in deviations]
    points, weights = _grid(rules)
    # every second point along each axis is the rule of twice the step
    odd, _ = _grid([(np.arange(len(x)) % 2, w) for x, w in rules])
    kept = weights > 1e-19  # e^S <= 1e9 / L of the bulk: what is left out is below 1e-10 of it
    z = mean + (points[kept] * deviations) @ axes.T
    errors = _pointwise(quantity, head, mu, z)
    shares = 2.0**d * weights[kept] * ~np.any(odd[kept], axis=1)
    sums = [shares @ errors, weights[kept] @ errors]
    doubt = np.abs(sums[1] - sums[0]) + 1e-10 * sums[1]
    assert np.all(np.abs(curve.value - sums[1]) <= curve.error + doubt)
    assert np.all(doubt < 1e-5 * sums[1])  # the judge is sharp enough to judge
    assert np.all(curve.error < 1e-6 * curve.value)


def _circle(kappa, natural_angle, radius):
    """A von Mises law by four thousand equal angles."""
    angle = 2 * np.pi * np.arange(4000) / 4000
    weights = np.exp(kappa * (np.cos(angle - natural_angle) - 1))
    kept = weights > 1e-14
    points = radius * np.stack([np.cos(angle), np.sin(angle)], -1)
    return points[kept], weights[kept] / weights.sum()


def _interval(a, natural):
    """A tilted uniform law on [-a, a] by panels that narrow towards the end where it peaks."""
    x, w = np.polynomial.legendre.leggauss(10)
    edges = np.concatenate([[0.0], 2 * a * 2.0 ** np.arange(-12, 1)])
    depth, weight = (
        np.concatenate(part)
        for part in zip(
            *[
                ((low + high) / 2 + (high - low) / 2 * x, (high - low) / 2 * w)
                for low, high in itertools.pairwise(edges)
            ],
            strict=True,
        )
    )
    weight = weight * np.exp(-abs(natural) * depth)
    return (a - depth) * (1 if natural >= 0 else -1), weight / weight.sum()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_concentration_curve_error_covers_bounded_queries(seed):
    """Circles, von Mises laws to concentration 1e4, boxes and tilted boxes: their quadrature's own
    error is in the error.
    """
    rng = np.random.default_rng(100 + seed)
    head, mu = _random_problem(rng, 2)
    if seed % 2:
        kappa, angle, radius = 10.0 ** rng.uniform(0, 4), rng.uniform(0, 6), rng.uniform(0.5, 3)
        natural = kappa / radius * np.array([np.cos(angle), np.sin(angle)])
        nu = lp.Sphere(2, radius).tilt(natural)
        points, weights = _circle(kappa, angle, radius)
    else:
        head, mu = _random_problem(rng, 1)
        a, natural = rng.uniform(0.5, 3), rng.normal() * 10.0 ** rng.uniform(-1, 2)
        nu = lp.Uniform(1, a).tilt([natural])
        points, weights = _interval(a, natural)
        points = points[:, None]
    quantity = _QUANTITIES[seed % 3]
    expected = weights @ _pointwise(quantity, head, mu, points) / weights.sum()
    curve = lp.concentration_curve(head, mu, nu, LENGTHS, quantity)
    assert np.all(np.abs(curve.value - expected) <= curve.error + 1e-9 * expected)


@pytest.mark.slow
def test_concentration_curve_error_covers_a_rule_that_is_too_coarse():
    """Tokens that are signs visit every query: 64 points on a circle do not resolve scores of
    deviation 30, and the error says so.
    """
    head, nu = lp.Head(U=30 * np.eye(2), V=np.eye(2)), lp.Sphere(2, 1.0)
    curve = lp.concentration_curve(head, lp.Rademacher(2), nu, LENGTHS[:2])
    # 2000 equal angles; signs look the same from all eight parts of the circle
    angle = 2 * np.pi * (np.arange(250) + 0.5) / 2000
    z = np.stack([np.cos(angle), np.sin(angle)], -1)
    signs = lp.Empirical(list(itertools.product((-1.0, 1.0), repeat=2)))
    expected = np.asarray(lp.output_error(head, signs, z[:, None, :], LENGTHS[:2])).mean(axis=0)
    assert np.any(np.abs(curve.value - expected) > 1e-6 * expected)
    assert np.all(np.abs(curve.value - expected) <= curve.error + 1e-8 * expected)


def test_concentration_curve_takes_no_finer_rule_in_vain(monkeypatch):
    """The moments of gradients at 1e40 tokens have a relative error above the goal, 1e-10, which
    no rule over queries lowers.
    """
    levels = []

    def averages(*arguments):
        levels.append(arguments[-1])
        return query_rules.averages(*arguments)

    monkeypatch.setattr(query_averages, "averages", averages)
    mu = lp.Gaussian(np.zeros(6), np.eye(6))
    head = lp.Head(U=np.diag([1.0] * 5 + [0.3]), V=np.eye(6))
    curve = lp.concentration_curve(head, mu, mu, [1e40], lp.GradientError("U"))
    assert float(curve.error[0] / curve.value[0]) > 1e-10
    assert levels == [0]


def _two_equal_parts(d):
    normal = lp.Gaussian(np.zeros(d), np.eye(d))
    return lp.Mixture([1.0, 1.0], [normal, normal])


@pytest.mark.parametrize("deviation", [0.5, 2.0, 3.0])
def test_quasi_monte_carlo_sees_the_tail(deviation):
    """Two equal Gaussians are one: its exact errors judge, within 5 errors of 8 scramblings
    (Student: false alarms below 1%).
    """
    d = 2
    normal = lp.Gaussian(np.zeros(d), np.eye(d))
    head, z = lp.Head(U=np.eye(d), V=np.eye(d)), deviation * np.array([0.6, 0.8])
    lengths = np.array([10.0, 1e4, 1e9])
    method = lp.QuasiMonteCarlo(jax.random.key(1))
    found = lp.expect(lp.OutputError(), head, _two_equal_parts(d), z, lengths, method)
    exact = np.asarray(lp.output_error(head, normal, z, lengths))
    assert np.all(np.abs(found.value - exact) <= 5 * found.error)
    assert np.all(found.error < 0.01 * exact)


class _WithoutTilts(lp.AbstractAutodiffMeasure):
    """A standard normal law that says nothing of its tilts: only plain points represent it."""

    dim: int = 2

    def log_mgf(self, u):
        return jax.numpy.asarray(u) @ jax.numpy.asarray(u) / 2

    def sample(self, key, n):
        return lp.Empirical(jax.random.normal(key, (n, 2)))


def test_quasi_monte_carlo_error_covers_a_tail_it_does_not_see():
    """At sigma = 3 a long prompt sees tokens that 4096 points do not: the value is far off, and the
    error says so.
    """
    head, z = lp.Head(U=np.eye(2), V=np.eye(2)), np.array([3.0, 0.0])
    lengths = np.array([2.0, 1e4, 1e9])
    method = lp.QuasiMonteCarlo(jax.random.key(1))
    found = lp.expect(lp.OutputError(), head, _WithoutTilts(), z, lengths, method)
    exact = np.asarray(lp.output_error(head, lp.Gaussian([0.0, 0.0], np.eye(2)), z, lengths))
    assert abs(found.value[-1] / exact[-1] - 1) > 0.3
    assert np.all(np.abs(found.value - exact) <= 5 * found.error)
    assert found.error[0] < 0.2 * exact[0]  # short prompts hardly see it either


def test_concentration_curve_over_random_queries_sees_their_tail():
    """kappa = 1: rare large queries carry the average. Within 5 errors of the exact curve of one
    Gaussian.
    """
    head, nu = lp.Head(U=np.eye(1), V=np.eye(1)), lp.Gaussian([0.0], [[1.0]])
    lengths = [10.0, 1e3]
    found = lp.concentration_curve(
        head, _two_equal_parts(1), nu, lengths, method=lp.QuasiMonteCarlo(jax.random.key(3))
    )
    exact = lp.concentration_curve(head, nu, nu, lengths)
    assert np.all(np.abs(found.value - exact.value) <= 5 * found.error)
    assert np.all(found.error < 0.1 * exact.value)


def test_concentration_curve_raises_without_the_tail_of_queries():
    """A heavy-tailed law of queries that is only sampled: at L = 1e9 a few of 2^15 points carry the
    average.
    """

    class Wide(_WithoutTilts):
        def log_mgf(self, u):
            return 4 * super().log_mgf(u)

        def sample(self, key, n):
            return lp.Empirical(2 * super().sample(key, n).points)

    head, mu = lp.Head(U=np.eye(2), V=np.eye(2)), lp.Gaussian(np.zeros(2), np.eye(2))
    short = lp.concentration_curve(
        head, mu, Wide(), [10.0], method=lp.QuasiMonteCarlo(jax.random.key(0))
    )
    exact = lp.concentration_curve(head, mu, lp.Gaussian(np.zeros(2), 4 * np.eye(2)), [10.0])
    assert abs(float(short.value[0] - exact.value[0])) <= 5 * float(short.error[0])
    with pytest.raises(ValueError, match="tail index"):
        lp.concentration_curve(
            head, mu, Wide(), [1e15], method=lp.QuasiMonteCarlo(jax.random.key(0))
        )


@pytest.mark.slow
def test_expect_of_several_heads_raises_without_the_tail_of_queries():
    """Two equal halves are one head, and two equal parts one Gaussian, whose averages are exact:
    within 5 errors at L = 10; at L = 1e9 rare large queries carry the average (3.52e-6).
    """
    one, halves = (
        lp.Head(U=np.eye(1), V=np.eye(1)),
        lp.MultiHead([lp.Head(U=np.eye(1), V=np.eye(1) / 2)] * 2),
    )
    mu = lp.Gaussian([0.0], [[1.0]])
    method = lp.QuasiMonteCarlo(jax.random.key(0), replicates=3)
    found = lp.expect(lp.OutputError(), halves, mu, _two_equal_parts(1), 10.0, method)
    exact = lp.output_error(one, mu, mu, 10.0)
    assert abs(found.value - exact) <= 5 * found.error < 0.5 * exact
    with pytest.raises(ValueError, match=r"tail index above 0.7 from L = 1e\+09"):
        lp.expect(lp.OutputError(), halves, mu, _two_equal_parts(1), 1e9, method)
