"""Exponents and regimes against the variational problem they come from; fits against another
library; lengths against the error itself.
"""

import math
from typing import Any

import jax
import mpmath
import numpy as np
import pytest
import xarray as xr
from scipy import optimize, stats

import largeprompt as lp
from largeprompt.concentration import length
from largeprompt.concentration.rates import regime_exponent, steepness


@pytest.mark.parametrize("kappa", [0.0, 0.3, 0.5, 0.7, 1.0, 4.0, 1e3, 1e12])
def test_sharp_exponent_minimises_error_against_rarity(kappa):
    """At sigma^2 = x ln L the error is L^-f(x) and the query has probability L^(-x/(2 kappa)):
    theta = min f(x) + x/(2 kappa).
    """
    if kappa == 0:
        assert lp.sharp_exponent(kappa) == 1
        return
    found: Any = optimize.minimize_scalar(
        lambda x: regime_exponent(x) + x / (2 * kappa),
        bounds=(0, 2),
        method="bounded",
        options={"xatol": 1e-12},
    )
    best = min(found.fun, 1.0, 1 / kappa)  # the ends x = 0 and x = 2
    assert lp.sharp_exponent(kappa) == pytest.approx(best, rel=1e-6)
    with mpmath.workdps(40):
        k = mpmath.mpf(kappa)
        exact = mpmath.sqrt(mpmath.mpf(1) / 4 + 1 / k) - mpmath.mpf(1) / 2 if k > 0.5 else 1
        assert float(exact) == pytest.approx(lp.sharp_exponent(kappa), rel=1e-14)


def test_regime_exponent_is_continuous_with_its_slope():
    for x in (2 / 3, 2.0):
        below, at, above = (regime_exponent(x + h) for h in (-1e-6, 0.0, 1e-6))
        assert abs(above - below) < 3e-6
        assert abs((above - at) - (at - below)) < 1e-11


def test_regime_exponent_is_that_of_participation():
    """Ln P_2 / ln L tends to -f(x): at ln L = 60 and 120 the gap is small and shrinks."""
    for x in (0.3, 1.0, 1.6):
        gaps = []
        for log_length in (60.0, 120.0):
            p2 = float(lp.participation(math.sqrt(x * log_length), math.exp(log_length)).p2)
            gaps.append(abs(-math.log(p2) / log_length - regime_exponent(x)))
        assert gaps[1] < gaps[0] < 0.08
        assert gaps[1] < 0.05


@pytest.mark.parametrize(
    ("sigma", "L", "name"),
    [
        (0.0, 1, "self-averaging"),
        (0.0, 10, "self-averaging"),
        (1.0, 1, "frozen"),
        (1.0, 4, "rare tokens"),
        (1.0, 5, "self-averaging"),
        (3.0, 90, "frozen"),
        (3.0, 91, "rare tokens"),
        (3.0, math.inf, "self-averaging"),
        (1e200, 1e100, "frozen"),
    ],
)
def test_regime_names(sigma, L, name):
    found = lp.regime(sigma, L)
    assert found.name == name
    words = {"self-averaging": "self-averaging", "rare tokens": "rare tokens", "frozen": "maximum"}
    assert words[name] in found.sentence
    assert 0 <= found.exponent <= 1


@pytest.mark.parametrize(("sigma", "L"), [(0.0, 8), (1.0, 2), (3.0, 30), (3.0, 1000), (6.0, 1000)])
def test_regime_error_against_simulation(sigma, L):
    """20,000 prompts in NumPy: within 6 standard errors (a false alarm: below 1e-7)."""
    rng = np.random.default_rng(7)
    found = lp.regime(sigma, L)
    squares, errors = [], []
    for _ in range(20):
        tokens = rng.normal(size=(1000, L))
        weights = np.exp(sigma * (tokens - tokens.max(axis=1, keepdims=True)))
        weights /= weights.sum(axis=1, keepdims=True)
        squares.append(np.sum(weights**2, axis=1))
        errors.append((np.sum(weights * tokens, axis=1) - sigma) ** 2 / (1 + sigma**2))
    for value, samples in ((found.p2, squares), (found.relative_error, errors)):
        samples = np.concatenate(samples)
        error = samples.std() / math.sqrt(samples.size) + 1e-15
        assert abs(samples.mean() - value) < 6 * error
    assert f"P_2 = {found.p2:.2g}" in found.sentence
    assert f"squared error is {found.relative_error:.2g} of" in found.sentence


def test_regime_at_the_ends():
    assert lp.regime(5.0, 1)[-3:-1] == (1.0, 1.0)  # one token has all the weight
    assert lp.regime(5.0, math.inf)[-3:-1] == (0.0, 0.0)
    assert lp.regime(0.0, 2**70).p2 == pytest.approx(2.0**-70)
    # two tokens share the weight where their scores are close: 1 - P_2 -> 1/(sigma sqrt(pi))
    shared = 1 - lp.regime(1e3, 2).p2
    assert shared == pytest.approx(1 / (1e3 * math.sqrt(math.pi)), rel=1e-5)
    assert lp.regime(1e200, 1e6).p2 == 1.0


def test_regime_map_agrees_with_regime():
    data = lp.regime_map(sigma_max=5.0, longest=1e6, resolution=7)
    for sigma in data.sigma.values:
        for L in data.length.values:
            here = float(data.exponent.sel(sigma=sigma, length=L))
            assert here == pytest.approx(lp.regime(sigma, L).exponent)


def test_horizon_of_self_attention():
    rng = np.random.default_rng(0)
    A, U = rng.normal(size=(2, 3, 3))
    Sig = A @ A.T
    values, axes = np.linalg.eigh(Sig)
    root = axes @ np.diag(np.sqrt(values)) @ axes.T
    H = np.linalg.norm(root @ U @ root, 2)
    head, mu = lp.Head(U=U, V=np.eye(3)), lp.Gaussian(np.zeros(3), Sig)
    found = lp.horizon(head, mu)
    assert pytest.approx(H) == found.H
    assert found.output_law_rate == pytest.approx(1 / (2 * (1 + H**2)))
    assert found.pointwise_rate == pytest.approx(lp.sharp_exponent(H**2) / 2)
    assert steepness(head, mu, mu) == pytest.approx(H**2)


def _curve(L, value, error):
    return xr.Dataset({"value": ("length", value), "error": ("length", error)}, {"length": L})


def test_fit_slope_against_scipy():
    rng = np.random.default_rng(1)
    L = np.geomspace(10, 1e4, 12)
    error = 0.05 * rng.uniform(0.5, 2, 12) * L**-0.8
    value = L**-0.8 + error * rng.normal(size=12)
    fit = lp.fit_slope(_curve(L, value, error))
    (slope, intercept), cov = optimize.curve_fit(
        lambda x, a, b: a * x + b,
        np.log(L),
        np.log(value),
        sigma=error / value,
        absolute_sigma=True,
    )
    assert fit.slope == pytest.approx(slope)
    assert fit.intercept == pytest.approx(intercept)
    assert fit.standard_error == pytest.approx(
        math.sqrt(cov[0, 0]) * math.sqrt(max(1.0, fit.misfit)), rel=1e-6
    )


def _misses(confidence, freedom):
    """Law of the number of intervals, of a thousand, that miss the slope.

    The interval has the normal quantile if chi^2 per degree of freedom is at most 1, and otherwise
    Student's quantile times its root: on a straight line it covers a little too often.
    """
    normal_misses, student = 1 - confidence, stats.t(freedom).ppf((1 + confidence) / 2)
    chi2 = stats.chi2(freedom)
    enlarged = chi2.expect(lambda c: 2 * stats.norm.sf(student * np.sqrt(c / freedom)), lb=freedom)
    return stats.binom(1000, normal_misses * chi2.cdf(freedom) + enlarged)


def test_fit_slope_intervals_cover():
    """A thousand straight lines, of which 90% intervals miss about 61.

    False alarms and unnoticed intervals of 80% or 98% have probabilities below 1e-4.
    """
    low, high = _misses(0.9, freedom=6).ppf([5e-5, 1 - 5e-5])
    assert _misses(0.8, freedom=6).cdf(high) < 1e-4
    assert _misses(0.98, freedom=6).sf(low - 1) < 1e-4
    rng = np.random.default_rng(2)
    L = np.geomspace(10, 1e4, 8)
    error = 0.02 * L**-1.0
    missed = 0
    for _ in range(1000):
        fit = lp.fit_slope(_curve(L, L**-1.0 + error * rng.normal(size=8), error), confidence=0.9)
        missed += not fit.low <= -1 <= fit.high
    assert low <= missed <= high


def test_fit_slope_of_a_bent_curve():
    L = np.geomspace(10, 1e6, 20)
    value = 1 / L + 1e-3 / np.sqrt(L)
    fit = lp.fit_slope(_curve(L, value, 1e-12 * value))
    assert fit.misfit > 1e10
    assert fit.standard_error > 1e-3


def _configuration():
    head = lp.Head(U=[[0.8, 0.1], [0.0, 0.5]], V=np.eye(2))
    return head, lp.Gaussian(np.zeros(2), [[1.0, 0.2], [0.2, 0.6]])


@pytest.mark.parametrize("tolerance", [10.0, 0.3, 1e-3, 1e-9])
def test_prompt_length_for_one_query(tolerance):
    head, mu = _configuration()
    z = np.array([1.0, -0.5])
    found = lp.prompt_length_for(head, mu, z, tolerance)
    L = np.array([max(found.length - max(1, 1e-8 * found.length), 1.0), found.length])
    error = np.asarray(lp.output_error(head, mu, z, L))
    assert error[1] <= tolerance * (1 + 1e-12)
    assert found.length == 1 or error[0] > tolerance
    assert found.error == pytest.approx(error[1], rel=1e-9)
    assert found.length == int(found.length)


def test_prompt_length_for_a_law_of_queries():
    head, mu = _configuration()
    found = lp.prompt_length_for(head, mu, mu, 0.05, relative=True)
    slope = np.asarray(head.V @ mu.covariance @ head.U)
    size = np.trace(slope @ np.asarray(mu.covariance) @ slope.T)
    assert found.tolerance == pytest.approx(0.05 * size)
    around = lp.concentration_curve(head, mu, mu, [found.length - 1, found.length]).value
    assert float(around[1]) <= found.tolerance < float(around[0])


def test_prompt_length_for_atoms():
    head, _ = _configuration()
    mu, z = lp.Rademacher(2), np.array([0.7, 0.7])
    found = lp.prompt_length_for(head, mu, z, 0.01, relative=True)
    atoms = lp.Empirical([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    error = np.asarray(lp.output_error(head, atoms, z, np.array([found.length - 1, found.length])))
    limit = np.asarray(lp.attend(head, mu, z))
    assert found.tolerance == pytest.approx(0.01 * limit @ limit)
    assert error[1] <= found.tolerance < error[0]


def test_prompt_length_for_an_unreachable_tolerance():
    head = lp.Head(U=20 * np.eye(1), V=np.eye(1))
    mu = lp.Gaussian(np.zeros(1), np.eye(1))
    found = lp.prompt_length_for(head, mu, np.ones(1), 1e-3)
    assert found.length == math.inf
    assert "No prompt of up to 1e+15 tokens" in found.sentence
    assert found.error > 1e-3


def test_prompt_length_for_in_32_bit_mode():
    head, mu = _configuration()
    expected = lp.prompt_length_for(head, mu, np.array([1.0, -0.5]), 1e-3)
    with jax.enable_x64(False):
        found = lp.prompt_length_for(head, mu, np.array([1.0, -0.5]), 1e-3)
    assert found.length == expected.length


def test_prompt_length_for_is_the_length_from_which_on_it_holds():
    """dT/dU at d = 50 has errors 50, 643, 570, ..., 63 at L = 1, 2, 3, ..., 40: the answer is
    beyond the hump, and not one token more.
    """
    head, mu = lp.Head(U=0.1 * np.eye(50), V=np.eye(50)), lp.Gaussian(np.zeros(50), np.eye(50))
    z, lengths = np.eye(50)[0], np.arange(1.0, 401.0)
    errors = np.asarray(lp.gradient_error(head, mu, z, lengths).U)
    for tolerance in (700.0, 600.0, 60.0, 49.0):
        found = lp.prompt_length_for(head, mu, z, tolerance, quantity=lp.GradientError("U"))
        assert found.length == 1 + np.max(lengths[errors > tolerance], initial=0.0)


def test_prompt_length_for_a_rare_token_that_takes_the_weight():
    """One token in 1e8 of weight e^13.8: a prompt of one token hardly errs, one of a million
    does. The number of rare tokens is binomial, so the error is a plain sum.
    """
    share, score, tolerance = 1e-8, 13.8155, 1.05e-4

    def error(L):
        k = np.arange(60)
        limit = share * np.exp(score) / (share * np.exp(score) + 1 - share)
        outputs = k * np.exp(score) / (k * np.exp(score) + L - k)
        return stats.binom.pmf(k, L, share) @ (outputs - limit) ** 2

    tokens = lp.Empirical([[0.0], [1.0]], weights=[1 - share, share])
    unit = lp.Head(U=[[1.0]], V=[[1.0]])
    found = lp.prompt_length_for(unit, tokens, [score], tolerance)
    assert error(1) < tolerance < error(1e6) / 20
    assert 8.9e7 < found.length < 9.1e7
    assert error(found.length - 100) > tolerance > error(found.length + 100)


@pytest.mark.parametrize(("d", "deviation"), [(20, 6.0), (50, 8.0), (100, 10.0)])
def test_prompt_length_for_gradients_of_large_scores(d, deviation):
    """dT/dU errs least at L = 1: a tolerance just above that is met far beyond the peak, or not at
    all; a dense grid of exact errors has none above it from there on.
    """
    head, mu = lp.Head(U=np.eye(d), V=np.eye(d)), lp.Gaussian(np.zeros(d), np.eye(d))
    z, quantity = deviation * np.eye(d)[0], lp.GradientError("U")
    grid = np.geomspace(1, 1e15, 400)
    errors = np.asarray(lp.gradient_error(head, mu, z, grid).U)
    tolerance = 1.01 * errors[0]
    found = lp.prompt_length_for(head, mu, z, tolerance, quantity=quantity)
    last = grid[np.flatnonzero(errors > tolerance)[-1]]
    if last == grid[-1]:
        assert found.length == math.inf
    else:
        assert last < found.length <= grid[grid > last][0]


def test_prompt_length_for_meets_a_tie():
    """Constant scores: the error is 2/L."""
    mu = lp.Gaussian(np.zeros(2), np.eye(2))
    found = lp.prompt_length_for(lp.Head(U=np.zeros((2, 2)), V=np.eye(2)), mu, np.ones(2), 0.01)
    assert found.length == 200
    assert found.interval == (200, 200)


def test_prompt_length_for_wide_scores_over_queries():
    """kappa = 16: nodes that long prompts need are beyond what short prompts can resolve, and the
    search takes others for these.
    """
    head, mu = lp.Head(U=4 * np.eye(2), V=np.eye(2)), lp.Gaussian(np.zeros(2), np.eye(2))
    found = lp.prompt_length_for(head, mu, mu, 0.1, relative=True)
    assert found.tolerance == pytest.approx(3.2)
    around = lp.output_error(head, mu, mu, [0.999 * found.length, found.length])
    assert around[0] > 3.2 >= around[1] * (1 - 1e-9)
    short = lp.prompt_length_for(head, mu, mu, 20.0)
    around = [float(lp.output_error(head, mu, mu, L)) for L in (short.length - 1, short.length)]
    assert around[0] > 20 >= around[1]


class _Laplace(lp.AbstractAutodiffMeasure):
    """Density e^(-2|x|): known by its cumulant function and a sampler alone."""

    dim: int = 1

    def log_mgf(self, u: Any):
        return -jax.numpy.sum(jax.numpy.log1p(-((u / 2) ** 2)))

    def in_domain(self, u: Any):
        return jax.numpy.all(jax.numpy.abs(u) < 2)

    def sample(self, key, n):
        return lp.Empirical(jax.random.laplace(key, (n, 1)) / 2)


@pytest.mark.slow
def test_prompt_length_for_random_points_has_an_interval():
    """The tolerance is relative to the known limit; the interval holds the length of the same law
    on a fine grid, whose error is exact.
    """
    unit, z = lp.Head(U=[[1.0]], V=[[1.0]]), lp.Dirac([0.4])
    method = lp.QuasiMonteCarlo(jax.random.key(0), points=512, replicates=4)
    found = lp.prompt_length_for(unit, _Laplace(), z, 0.01, relative=True, method=method)
    limit = 2 * 0.25 * 0.4 / (1 - 0.25 * 0.16)
    assert found.tolerance == pytest.approx(0.01 * limit**2, rel=1e-12)
    x = np.arange(-15, 15, 0.01)
    grid = lp.Empirical(x[:, None], np.exp(-2 * np.abs(x)))
    known = lp.prompt_length_for(unit, grid, [0.4], found.tolerance)
    assert 2100 < known.length < 2400
    low, high = found.interval
    assert low < known.length < high == found.length
    assert f"Within two standard errors: {low:.0f} to {high:.0f} tokens." in found.sentence


@pytest.mark.slow
def test_prompt_length_for_says_where_the_error_is_not_known():
    """A law of queries that is only sampled: its tail is missing at long lengths."""

    class Sampled(lp.AbstractAutodiffMeasure):
        dim: int = 2

        def log_mgf(self, u: Any):
            return u @ u / 2

        def sample(self, key, n):
            return lp.Empirical(jax.random.normal(key, (n, 2)))

    head, mu = lp.Head(U=np.eye(2), V=np.eye(2)), lp.Gaussian(np.zeros(2), np.eye(2))
    method = lp.QuasiMonteCarlo(jax.random.key(0), replicates=2)
    found = lp.prompt_length_for(head, mu, Sampled(), 0.5, method=method)
    exact = lp.prompt_length_for(head, mu, mu, 0.5)
    assert found.interval[0] <= exact.length <= 1.5 * found.interval[1]
    assert "tokens are not known" in found.sentence


def test_prompt_length_for_gives_up_on_slow_averages(monkeypatch):
    monkeypatch.setattr(length, "_PATIENCE", 1e-9)
    head, mu = _configuration()
    with pytest.raises(ValueError, match="the scan of all lengths must take less"):
        lp.prompt_length_for(head, mu, mu, 0.1)
