"""The explicit bound: its proof step by step, and the bound itself beside exact errors."""

import numpy as np
import pytest

import largeprompt as lp


def test_upper_bound_proof_derivative_of_p2_in_the_variance():
    """d P_2 / d sigma^2 = P_2 - 4 P_3 + 3 P_22, by central differences."""
    for variance in (0.3, 2.0, 9.0):
        for L in (2.0, 7.0, 1e5):
            step = 1e-4 * variance
            ends = [lp.participation(np.sqrt(variance + sign * step), L).p2 for sign in (1, -1)]
            p = lp.participation(np.sqrt(variance), L)
            slope = float(p.p2 - 4 * p.p3 + 3 * p.p22)
            assert float(ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-6)


def test_upper_bound_proof_inequalities_of_the_weights():
    """Y_2^2 <= Y_3 and Y_2 >= 1/L, for weights of every kind."""
    rng = np.random.default_rng(0)
    for L in (1, 2, 5, 100):
        p = rng.dirichlet(np.full(L, 0.1), size=1000)
        y2, y3 = (p**2).sum(1), (p**3).sum(1)
        assert np.all(y2**2 <= y3 * (1 + 1e-12))
        assert np.all(y2 >= (1 - 1e-12) / L)


def _problem(seed, d=3):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(d, d))
    mu = lp.Gaussian(rng.normal(size=d), root @ root.T / d)
    return lp.Head(U=rng.normal(size=(d, d)) / 3, V=rng.normal(size=(2, d))), mu, rng.normal(size=d)


LENGTHS = np.array([1.0, 2.0, 10.0, 1e3, 1e9])


@pytest.mark.parametrize("quantity", [lp.OutputError(), lp.GradientError("V")])
@pytest.mark.parametrize("seed", range(3))
def test_upper_bound_at_one_query_holds_and_is_sharp(seed, quantity):
    head, mu, z = _problem(seed)
    curve = lp.concentration_curve(head, mu, lp.Dirac(z), LENGTHS, quantity)
    ratio = curve.upper_bound.values / curve.value.values
    assert np.all(ratio >= 1)
    assert ratio[-1] == pytest.approx(1, abs=1e-6)
    lower = curve.lower_bound.values / curve.value.values
    assert np.all((lower >= 0) & (lower <= 1 + 1e-12))
    assert lower[-1] == pytest.approx(1, abs=1e-6)
    # the other lower side, at the same query
    if quantity.label == "output":
        G, u = np.asarray(mu.covariance), np.asarray(head.U) @ z
        V, g = np.asarray(head.V), G @ u
        R = G - np.outer(g, g) / (u @ g)
        lower = np.trace(V @ R @ V.T) / LENGTHS + np.sum((V @ g) ** 2) / LENGTHS**2
        assert np.all(lower <= curve.value.values)


def test_upper_bound_over_gaussian_queries_against_a_product_rule():
    """Gauss-Hermite points, 60 in each of two dimensions; singular and off-centre laws too."""
    head, mu, _ = _problem(5, d=2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    for root in (np.array([[0.4, 0.1], [0.0, 0.3]]), np.array([[0.4, 0.0], [0.2, 0.0]])):
        centre = np.array([0.3, -0.5])
        curve = lp.concentration_curve(head, mu, lp.Gaussian(centre, root @ root.T), LENGTHS)
        xi = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
        points = lp.Empirical(centre + xi @ root.T, np.outer(weights, weights).ravel())
        dense = lp.concentration_curve(head, mu, points, [10.0])
        assert float(curve.upper_bound[2]) == pytest.approx(float(dense.upper_bound[0]), rel=1e-9)
        assert np.all(curve.value <= curve.upper_bound)


def test_lower_bound_proof_of_p2_and_p3():
    """Y_2 Y_3 <= Y_4; d P_3 / ds by differences; both bounds beside exact moments."""
    p = np.random.default_rng(0).dirichlet(np.full(7, 0.2), size=1000)
    y2, y3, y4 = ((p**k).sum(1) for k in (2, 3, 4))
    assert np.all(y2 * y3 <= y4 * (1 + 1e-12))
    for s in (0.05, 0.5, 2.0, 6.0):
        for L in (1.0, 3.0, 50.0, 1e6):
            moments = lp.participation(np.sqrt(s), L)
            lower = np.exp(s) / L - 2 * (np.exp(3 * s) - np.exp(s)) / L**2
            assert lower <= float(moments.p2) * (1 + 1e-10)
            assert float(moments.p3) <= np.exp(3 * s) / L**2
            step = 1e-4 * s
            ends = [float(lp.participation(np.sqrt(s + c * step), L).p3) for c in (1, -1)]
            more = [lp.participation_moment(k, np.sqrt(s), L) for k in ((4,), (2, 3))]
            slope = 3 * float(moments.p3) - 9 * float(more[0]) + 6 * float(more[1])
            assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_lower_bound_over_gaussian_queries():
    """Averages of the formula over Gauss-Hermite points; 0 from kappa = 1/6 on."""
    mu, L = lp.Gaussian([0.0], [[1.0]]), 1e4
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    for kappa in (0.05, 0.1):
        s = kappa * nodes**2
        p2 = np.exp(s) / L - 2 * (np.exp(3 * s) - np.exp(s)) / L**2
        expected = weights @ ((1 + s) * p2 - 6 * s * np.exp(3 * s) / L**2) / weights.sum()
        curve = lp.concentration_curve(lp.Head(U=[[np.sqrt(kappa)]], V=[[1.0]]), mu, mu, [L])
        assert float(curve.lower_bound[0]) == pytest.approx(expected, rel=1e-9)
        assert 0.99 * curve.value[0] < curve.lower_bound[0] <= curve.value[0]
    wide = lp.concentration_curve(lp.Head(U=[[0.5]], V=[[1.0]]), mu, mu, [L, np.inf])
    assert np.all(wide.lower_bound == 0)


def test_upper_bound_is_infinite_from_kappa_one_half_on():
    mu = lp.Gaussian([0.0], [[1.0]])
    for kappa, finite in ((0.49, True), (0.5, False), (2.0, False)):
        head = lp.Head(U=[[np.sqrt(kappa)]], V=[[1.0]])
        curve = lp.concentration_curve(head, mu, mu, [10.0, np.inf])
        assert bool(np.isfinite(curve.upper_bound[0])) is finite
        assert curve.upper_bound[1] == 0


def test_upper_bound_is_left_out_where_it_is_not_known():
    head, mu, z = _problem(0)
    assert "upper_bound" not in lp.concentration_curve(
        head, mu, lp.Dirac(z), [10.0], lp.GradientError("U")
    )
    signs = lp.concentration_curve(head, lp.Rademacher(3), lp.Dirac(z), [10.0])
    assert "upper_bound" not in signs
