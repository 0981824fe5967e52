"""The propositions as written, constants that dominate and touch, and Assumption 3.3 against other
integrals.
"""

import itertools
import math

import jax
import numpy as np
import pytest

import largeprompt as lp

QUANTITIES = {
    "output": lp.OutputError(),
    "gradient_U": lp.GradientError("U"),
    "gradient_V": lp.GradientError("V"),
}
LENGTHS = [1.0, 2.0, 5.0, 100.0, 1e4, 1e8, math.inf]


def _scalar(u):
    mu = lp.Gaussian(np.zeros(1), np.eye(1))
    return lp.Head(U=[[u]], V=[[1.0]]), mu, mu


def test_propositions_as_written():
    c1, c2, sigma, L = 2.0, 0.7, 1.5, 50
    assert lp.proposition_3_1(c1, c2, sigma, L) == pytest.approx(
        c1 * sigma**6 * math.log(L) / L ** (c2 / sigma**2)
    )
    assert lp.proposition_3_4(c1, c2, sigma, L, "V") == lp.proposition_3_1(c1, c2, sigma, L)
    assert lp.proposition_3_4(c1, c2, sigma, L, "U") == pytest.approx(
        c1 * sigma**12 * math.log(L) ** 2 / L ** (c2 / sigma**2)
    )


@pytest.mark.slow
@pytest.mark.parametrize("quantity", ["output", "gradient_U", "gradient_V"])
def test_bound_report_constant_dominates_and_touches(quantity):
    curve = lp.concentration_curve(*_scalar(1.0), LENGTHS, QUANTITIES[quantity])
    report = lp.bound_report(curve, c2=0.5)
    L = np.array(LENGTHS[1:-1])
    if quantity == "output":
        bound = lp.proposition_3_1(report.c1, 0.5, report.sigma, L)
    else:
        bound = lp.proposition_3_4(report.c1, 0.5, report.sigma, L, quantity[-1])
    ratio = bound / curve.value.values[1:-1]
    assert ratio.min() == pytest.approx(1.0)
    assert L[np.argmin(ratio)] == report.tight_at
    assert report.looseness == pytest.approx((np.median(ratio), ratio.max()))
    assert set(report.not_applicable) == {1.0, math.inf}
    assert "ln L = 0" in report.not_applicable[1.0]
    assert lp.largest_c2(curve, report.c1) == pytest.approx(0.5)


@pytest.mark.slow
def test_bound_report_largest_c2_for_all_lengths():
    """For c_2 below sigma^2 theta the smallest c_1 stops growing with the range."""
    curve = lp.concentration_curve(*_scalar(1.0), np.geomspace(2, 1e15, 40))
    report = lp.bound_report(curve)
    assert report.admissible_c2 == pytest.approx(lp.sharp_exponent(1.0))
    assert report.c2 == report.admissible_c2
    above = [lp.bound_report(curve.isel(length=slice(0, n)), c2=0.9).c1 for n in (20, 30, 40)]
    assert above[0] < above[1] / 3 < above[2] / 9
    below = [lp.bound_report(curve.isel(length=slice(0, n)), c2=0.5).c1 for n in (20, 30, 40)]
    assert below[0] == below[1] == below[2]


def _steep(kappa, multiplicity, quantity, lengths, *, blind=False):
    """Curve at a kappa of that multiplicity; a `blind` head reads one other direction only."""
    d = multiplicity + 1
    mu = lp.Gaussian(np.zeros(d), np.eye(d))
    U = np.sqrt(kappa) * np.diag([1.0] * multiplicity + [0.3])
    head = lp.Head(U=U, V=np.eye(d)[-1:] if blind else np.eye(d))
    return lp.concentration_curve(head, mu, mu, lengths, QUANTITIES[quantity])


def _power_of_logarithm(curve):
    """beta of L^-theta (ln L)^beta from the local slopes at two lengths, the next order removed."""
    logs = np.log(curve.length.values)
    excess = (curve.local_slope.values + curve.attrs["sharp_exponent"]) * logs**2
    return float(np.diff(excess)[0] / np.diff(logs)[0])


@pytest.mark.slow
@pytest.mark.parametrize("multiplicity", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("quantity", "kappa", "extra"),
    [
        ("output", 0.5, 1),
        ("output", 1.0, 0),
        ("gradient_V", 1.0, 0),
        ("gradient_U", 0.5, 3),
        ("gradient_U", 1.0, 2),
    ],
)
def test_bound_report_largest_c2_is_attained_or_not(quantity, kappa, extra, multiplicity):
    """Attained if the error carries no more of ln L than the bound, by slopes at 1e30 and 1e40."""
    curve = _steep(kappa, multiplicity, quantity, [1e30, 1e40])
    beta = _power_of_logarithm(curve)
    assert beta == pytest.approx(multiplicity / 2 + extra, abs=0.05)
    assert curve.attrs["log_exponent"] == multiplicity / 2 + extra
    report = lp.bound_report(curve)
    attained = beta < (2 if quantity == "gradient_U" else 1) + 0.2
    assert report.attained is attained
    assert (report.c2 == report.admissible_c2) is attained
    assert bool([note for note in report.notes if "not attained" in note]) is not attained


@pytest.mark.slow
def test_bound_report_of_a_head_that_does_not_read_the_steepest_directions():
    """One power of ln L less: with multiplicity 3 the supremum for the output is attained."""
    for quantity, beta, attained in (("output", 0.5, True), ("gradient_U", 2.5, False)):
        curve = _steep(1.0, 3, quantity, [1e30, 1e40], blind=True)
        assert _power_of_logarithm(curve) == pytest.approx(beta, abs=0.05)
        assert lp.bound_report(curve).attained is attained


def test_bound_report_below_half_attains_the_exponent_one():
    curve = _steep(0.25, 5, "output", [1e30, 1e40])
    assert _power_of_logarithm(curve) == pytest.approx(0.0, abs=0.05)
    assert curve.attrs["log_exponent"] == 0
    report = lp.bound_report(curve)
    assert report.attained
    assert report.c2 == report.admissible_c2 == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantity", "kappa"), [("output", 0.5), ("output", 1.0), ("gradient_U", 1.0)]
)
def test_bound_report_takes_a_c2_whose_constant_serves_longer_prompts(quantity, kappa):
    """Multiplicity 5: the c_1 of lengths to 1e12 serves to 1e40; that of the supremum does not."""
    curve = _steep(kappa, 5, quantity, np.geomspace(2, 1e40, 11))
    short = curve.isel(length=curve.length.values <= 1e12)
    report = lp.bound_report(short)
    assert report.admissible_c2 is not None
    assert report.admissible_c2 / 2 <= report.c2 < report.admissible_c2
    assert lp.bound_report(curve, c2=report.c2).c1 <= 1.02 * report.c1
    supremum = [lp.bound_report(part, c2=report.admissible_c2).c1 for part in (short, curve)]
    assert supremum[1] > 2 * supremum[0]


def test_bound_report_of_queries_with_a_mean_in_the_steepest_direction():
    """The error then carries e^{c sqrt(ln L)}, more than any power of ln L: never attained."""
    mu, shift = lp.Gaussian([0.0], [[1.0]]), 2.0
    head = lp.Head(U=[[1.0]], V=[[1.0]])
    curve = lp.concentration_curve(head, mu, lp.Gaussian([shift], [[1.0]]), [1e20, 1e40])
    logs = np.log(curve.length.values)
    excess = curve.local_slope.values + curve.attrs["sharp_exponent"]
    c = shift / 1.25**0.25
    np.testing.assert_allclose(excess, c / (2 * np.sqrt(logs)) + 0.5 / logs, rtol=0.05)
    report = lp.bound_report(curve)
    assert report.attained is False
    assert report.admissible_c2 is not None
    assert report.c2 < report.admissible_c2
    # a mean of the tokens, or of queries across the steepest direction, changes nothing
    flat = lp.Head(U=np.diag([1.0, 0.3]), V=np.eye(2))
    tokens, queries = lp.Gaussian([1.0, 1.0], np.eye(2)), lp.Gaussian([0.0, 3.0], np.eye(2))
    assert lp.bound_report(lp.concentration_curve(flat, tokens, queries, [2.0, 1e9])).attained


def test_bound_report_notes_where_the_hypotheses_fail():
    head = lp.Head(U=np.eye(2) / 2, V=np.eye(2))
    shifted = lp.Gaussian([1.0, 0.0], np.eye(2))
    wide = lp.Gaussian(np.zeros(2), 4 * np.eye(2))
    curve = lp.concentration_curve(head, shifted, wide, [2.0, 10.0])
    notes = " ".join(lp.bound_report(curve, c2=5.0).notes)
    assert "not centred" in notes
    assert "variance proxy 4" in notes
    assert "no infinite range" in notes
    plain = lp.concentration_curve(*_scalar(0.5), [2.0, 10.0])
    assert lp.bound_report(plain, c2=0.1).notes == ()


def _scalar_moments(u, m, g, a, c, normalised):
    """The nine moments in one dimension, by Gauss-Hermite in both variables after completing no
    square.
    """
    x, w = np.polynomial.hermite_e.hermegauss(120)
    w = w / w.sum()
    z, found = a + np.sqrt(c) * x, np.empty((3, 3))
    token = m + np.sqrt(g) * x
    for (i, p), (j, q) in itertools.product(enumerate((0, 4, 8)), repeat=2):
        if normalised:
            tilted = np.array([w @ (np.abs(m + g * u * zz + np.sqrt(g) * x) ** p) for zz in z])
            found[i, j] = w @ (np.abs(z) ** q * tilted)
        else:
            scores = np.exp(u * np.outer(z, token))
            found[i, j] = (w * np.abs(z) ** q) @ scores @ (w * np.abs(token) ** p)
    return found


def test_assumption_3_3_of_gaussians_in_one_dimension():
    u, m, g, a, c = 0.4, 0.3, 0.8, -0.5, 0.6
    head = lp.Head(U=[[u]], V=[[1.0]])
    moments = lp.assumption_3_3(head, lp.Gaussian([m], [[g]]), lp.Gaussian([a], [[c]]))
    np.testing.assert_allclose(moments.tilted, _scalar_moments(u, m, g, a, c, True), rtol=1e-10)
    np.testing.assert_allclose(moments.joint, _scalar_moments(u, m, g, a, c, False), rtol=1e-9)
    assert np.all(moments.tilted_error == 0)
    assert np.all(moments.why == "")


def test_assumption_3_3_without_scores_is_a_product():
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 3, 3))
    G, C = A @ A.T, B @ B.T
    head = lp.Head(U=np.zeros((3, 3)), V=np.eye(3))
    moments = lp.assumption_3_3(head, lp.Gaussian(np.zeros(3), G), lp.Gaussian(np.zeros(3), C))

    def fourth(S):  # E|x|^4 = (tr S)^2 + 2 tr S^2
        return np.trace(S) ** 2 + 2 * np.trace(S @ S)

    for values in (moments.tilted.values, moments.joint.values):
        assert values[0, 0] == pytest.approx(1)
        assert values[1, 0] == pytest.approx(fourth(G))
        assert values[1, 1] == pytest.approx(fourth(G) * fourth(C))
        np.testing.assert_allclose(values, np.outer(values[:, 0], values[0]), rtol=1e-10)


def test_assumption_3_3_against_simulation():
    """Three dimensions, off centre: within 6 standard errors of 4e5 draws, entry by entry (orders 0
    and 4; order 8 is too noisy).
    """
    rng = np.random.default_rng(4)
    U, A = rng.normal(size=(2, 3, 3)) / 3
    G, m, a = A @ A.T + 0.2 * np.eye(3), 0.3 * rng.normal(size=3), 0.3 * rng.normal(size=3)
    head, mu, nu = lp.Head(U=U, V=np.eye(3)), lp.Gaussian(m, G), lp.Gaussian(a, 0.5 * np.eye(3))
    moments = lp.assumption_3_3(head, mu, nu)
    z = a + np.sqrt(0.5) * rng.normal(size=(400_000, 3))
    free = m + rng.normal(size=(400_000, 3)) @ np.linalg.cholesky(G).T
    for name, x, weight in (
        ("tilted", free + z @ U.T @ G, 1.0),
        ("joint", free, np.exp(np.einsum("ni,ij,nj->n", free, U, z))),
    ):
        for i, j in itertools.product(range(2), repeat=2):
            draws = (
                weight * np.linalg.norm(x, axis=1) ** (4 * i) * np.linalg.norm(z, axis=1) ** (4 * j)
            )
            spread = np.std(draws) / np.sqrt(len(draws)) if np.ndim(draws) else 0.0
            assert abs(np.mean(draws) - float(moments[name][i, j])) <= 6 * spread + 1e-12


def test_assumption_3_3_joint_moments_are_infinite_from_norm_one_on():
    mu = lp.Gaussian(np.zeros(2), np.diag([4.0, 0.0]))
    nu = lp.Gaussian(np.zeros(2), np.eye(2))
    below, above = (
        lp.assumption_3_3(lp.Head(U=u * np.eye(2), V=np.eye(2)), mu, nu) for u in (0.49, 0.5)
    )
    assert np.all(np.isfinite(below.joint))
    assert np.all(np.isinf(above.joint))
    assert np.all(np.isfinite(above.tilted))
    assert "outgrows" in str(above.why.values[0, 0])


def test_assumption_3_3_of_other_laws():
    head = lp.Head(U=0.3 * np.eye(2), V=np.eye(2))
    signs = lp.Rademacher(2)
    exact = lp.assumption_3_3(head, signs, signs)
    # |x|^2 = 2 always: moments are powers of 2, times E e^{<x,Uz>} for the joint ones
    powers = np.array([1.0, 4.0, 16.0])
    np.testing.assert_allclose(exact.tilted, np.outer(powers, powers), rtol=1e-12)
    mass = np.cosh(0.3) ** 2
    np.testing.assert_allclose(exact.joint, mass * np.outer(powers, powers), rtol=1e-12)
    assert np.all(exact.tilted_error == 0)

    parts = [lp.Gaussian([1.0, 0.0], 0.5 * np.eye(2)), lp.Gaussian([-1.0, 0.0], 0.5 * np.eye(2))]
    nu = lp.Gaussian(np.zeros(2), np.eye(2))
    mixed = lp.assumption_3_3(
        head, lp.Mixture([0.5, 0.5], parts), nu, lp.QuasiMonteCarlo(jax.random.key(0))
    )
    separate = [lp.assumption_3_3(head, part, nu).joint for part in parts]
    np.testing.assert_allclose(mixed.joint, (separate[0] + separate[1]) / 2, rtol=1e-12)
    # no token: the moments of the query alone, within 6 standard errors of eight scramblings
    gap = np.abs(mixed.tilted.values[0] - [1.0, 8.0, 384.0])
    assert np.all(gap <= 6 * mixed.tilted_error.values[0] + 1e-12)
