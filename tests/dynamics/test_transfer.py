"""Gaps between finite and infinite flows, Lemma D.1's envelope, and L(eps)."""

import math

import jax
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.dynamics.transfer import Comparison

TASK = lp.LinearRegression(np.eye(1))
START = lp.BlockParams([[0.5]], 0.5)
TIMES = np.linspace(0.1, 3, 30)


@pytest.fixture(scope="module")
def flows():
    return {L: lp.gradient_flow(TASK, START, L, 3.0, saveat=TIMES) for L in (100, 10_000, math.inf)}


@pytest.mark.slow
def test_compare_has_the_gaps_of_the_recorded_paths(flows):
    found = lp.compare(flows[100], flows[math.inf])
    a, b = (flows[100].params, flows[math.inf].params)
    gap = np.hypot(a.A[:, 0, 0] - b.A[:, 0, 0], a.b - b.b)
    np.testing.assert_allclose(found.parameter_gap, gap)
    np.testing.assert_allclose(found.risk_gap, np.abs(flows[100].risk - flows[math.inf].risk))
    assert found.limiting_risks == (flows[100].risk[-1], flows[math.inf].risk[-1])


@pytest.mark.slow
def test_compare_satisfies_lemma_d_1_and_gaps_shrink(flows):
    near, far = (lp.compare(flows[L], flows[math.inf]) for L in (10_000, 100))
    for found in (near, far):
        assert np.all(np.log10(found.parameter_gap) <= found.log10_envelope)
        np.testing.assert_allclose(
            10**found.log10_envelope, found.g2 * TIMES * np.exp(found.beta * TIMES)
        )
    assert near.parameter_gap.max() < 0.3 * far.parameter_gap.max()
    assert near.informative_until > far.informative_until


@pytest.mark.slow
def test_compare_beta_and_g2_are_suprema_over_the_ball(flows):
    """Against a dense grid of the disc: R_inf = 1/2 (ab - 1)^2, its Hessian by hand."""
    found = lp.compare(flows[100], flows[math.inf])
    points = np.concatenate(
        [np.stack([f.params.A[:, 0, 0], f.params.b], 1) for f in (flows[100], flows[math.inf])]
    )
    centre = (points.min(0) + points.max(0)) / 2  # a slender cloud: the middle of its ends
    angle, radius = np.meshgrid(np.linspace(0, 2 * np.pi, 181), np.linspace(0, 1, 21))
    a = centre[0] + found.radius * (radius * np.cos(angle)).ravel()
    b = centre[1] + found.radius * (radius * np.sin(angle)).ravel()
    hessians = np.array([[b**2, 2 * a * b - 1], [2 * a * b - 1, a**2]]).transpose(2, 0, 1)
    np.testing.assert_allclose(found.beta, np.abs(np.linalg.eigvalsh(hessians)).max(), rtol=0.05)

    finite, limit = (jax.jit(jax.vmap(jax.grad(flows[L].objective))) for L in (100, math.inf))
    disc = jax.vmap(lambda a, b: lp.BlockParams(a[None, None], b))(a, b)
    one, other = finite(disc), limit(disc)
    gaps = np.hypot(one.A[:, 0, 0] - other.A[:, 0, 0], one.b - other.b)
    np.testing.assert_allclose(found.g2, gaps.max(), rtol=0.05)


@pytest.mark.slow
def test_compare_extends_a_stationary_flow():
    times = np.geomspace(0.1, 1e3, 30)
    infinite = lp.gradient_flow(TASK, START, math.inf, saveat=times)
    finite = lp.gradient_flow(TASK, START, 100, 1e3, saveat=times)
    assert infinite.times[-1] < 100
    found = lp.compare(finite, infinite)
    assert found.times[-1] > 300
    # the parameters part, towards the unbalanced minimiser, while the risks stay close
    np.testing.assert_allclose(found.parameter_gap[-1], np.hypot(0.747 - 1, 1.322 - 1), atol=2e-3)
    assert found.risk_gap[-1] < 0.05


@pytest.mark.slow
def test_transfer_curve_reports_the_rate():
    """1/L for linear attention; slower for softmax, whose weights are heavy-tailed once a = 1."""
    linear = lp.transfer_curve(TASK, START, [1e3, 1e4, 1e5], 3.0, "linear")
    softmax = lp.transfer_curve(TASK, START, [1e3, 1e4, 1e5], 3.0)
    for gap in ("parameter_gap", "risk_gap"):
        np.testing.assert_allclose(linear.attrs[f"{gap}_rate"], -1, atol=0.01)
        assert -0.9 < softmax.attrs[f"{gap}_rate"] < -0.3
        assert np.all(np.diff(softmax[gap]) < 0)
    assert np.all(softmax.risk_gap_error == 0)


@pytest.mark.slow
def test_compare_of_sampled_risks_has_an_error():
    """The gap of two risks on the same fresh prompts, against other prompts within 5 standard
    errors.
    """
    task, start = lp.ProductRegression(lp.Rademacher(1)), lp.HeadParams(0.3 * np.eye(2), np.ones(2))
    method = lp.MonteCarlo(jax.random.key(0), batch=64)
    runs = [
        lp.gradient_flow(task, start, L, 1.0, saveat=[0.5, 1.0], method=method)
        for L in (5, math.inf)
    ]
    found = lp.compare(*runs)
    other = lp.MonteCarlo(jax.random.key(1))
    risks = [task.risk(run.final, run.L, method=other) for run in runs]
    gap = abs(risks[0].value - risks[1].value)
    error = np.hypot(found.risk_gap_error[-1], np.hypot(*(r.error for r in risks)))
    assert 0 < found.risk_gap_error[-1] < 0.2
    assert abs(found.risk_gap[-1] - gap) <= 5 * error


@pytest.mark.slow
def test_prompt_length_for_risk_is_the_smallest_length():
    """From more than one token leaves, 0.5, downwards: two and three tokens are best read with
    scores of deviation 16 and 6.
    """
    wanted = [2.0, 0.4, 0.35, 0.01]
    found = lp.prompt_length_for_risk(TASK, wanted)
    for epsilon, length in zip(wanted, found.length.values, strict=True):
        assert TASK.minimiser(length).risk <= epsilon
        assert length == 1 or epsilon < TASK.minimiser(length - 1).risk
    assert found.length.values[:3].tolist() == [1, 2, 3]
    np.testing.assert_allclose(found.flow_excess, found.excess, rtol=1e-6)


def test_prompt_length_for_risk_of_linear_attention():
    """d = 1, Sig = 1, no noise: the best risk is 1/2 (1 - 1/(1 + 2/L)) = 1/(L + 2)."""
    found = lp.prompt_length_for_risk(TASK, 0.01, attention="linear")
    assert found.length.values.tolist() == [98.0]


def test_comparison_envelope_of_known_numbers():
    """g_2 t exp(beta t) = .1 e^2, .2 e^4, .3 e^6 = .739, 10.9, 121, in a ball of radius 11."""
    times = np.array([1.0, 2.0, 3.0])
    found = Comparison(times, times, times, times, (0.0, 0.0), 2.0, 0.1, 11.0)
    np.testing.assert_allclose(10**found.log10_envelope, 0.1 * times * np.exp(2 * times))
    assert found.informative_until == 2.0
    assert found._replace(radius=0.5).informative_until == 0.0
