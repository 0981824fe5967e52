"""Several heads in context: the exact risk against brute force, closed forms and differences."""

import jax
import numpy as np
import pytest

import largeprompt as lp
from largeprompt._arrays import flattened
from largeprompt.icl import many_head_risk
from largeprompt.icl.flat_gradients import flat_value_and_gradient
from largeprompt.prompts.gaussian_rule import radial_rule

from ..oracles.many_heads import in_context_losses

EYE = np.eye(5)
TASK = lp.LinearRegression(EYE, task_cov=EYE / 5, noise_variance=0.1)
SHARED = lp.LinearRegression(np.diag([0.5, 2.0]), np.diag([1.0, 0.3]), 0.2)
GENERAL = lp.LinearRegression(
    np.array([[1.0, 0.4], [0.4, 0.8]]), np.diag([1.0, 0.3]), 0.2, query_cov=np.diag([0.5, 0.7])
)
CASES = {
    "isotropic": (TASK, [(0.2 * EYE, 1.3), (-0.35 * EYE, -0.9), (0.1 * EYE, -0.4)], 12),
    "shared axes": (
        SHARED,
        [(np.diag([0.2, 0.1]), 1.5), (np.diag([-0.15, 0.05]), -1.2)],
        30,
    ),
    "general": (
        GENERAL,
        [
            (np.array([[0.2, 0.1], [-0.05, 0.15]]), 1.4),
            (np.array([[-0.1, 0.0], [0.12, -0.2]]), -1.1),
        ],
        30,
    ),
}


def _params(heads):
    return lp.MultiHeadParams([lp.BlockParams(A, b) for A, b in heads])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_risk_of_several_heads_by_simulation(case):
    """Three comparisons at 4 standard errors: a false alarm in fewer than 1 of 5,000 seeds."""
    task, heads, L = CASES[case]
    arrays = (task.cov, task.task_cov, task.noise_variance, task.query_cov)
    losses = in_context_losses([np.asarray(a) for a in arrays], heads, L, 40_000, 2)
    found = task.risk(_params(heads), L)
    assert found.error < 1e-6 * found.value
    deviation = losses.std() / np.sqrt(len(losses))
    assert abs(float(found.value) - losses.mean()) < 4 * deviation


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_gradient_of_the_risk_of_several_heads(case):
    task, heads, L = CASES[case]
    params = _params(heads)
    evaluate = flat_value_and_gradient(task.objective(L, like=params), params)
    flat = flattened(params)
    gradient = evaluate(flat)[1]
    rng, step = np.random.default_rng(0), 1e-4
    # directions among the heads that share what the task has
    for _ in range(2):
        scale = rng.normal(size=len(heads))
        pairs = zip(scale, heads, strict=True)
        move = flattened(_params([(c * A, c * b / 2) for c, (A, b) in pairs]))
        ahead, behind = (evaluate(flat + s * step * move)[0] for s in (1, -1))
        assert gradient @ move == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-7)


# one table of parallel scores serves all dimensions: the larger its range, the fewer lengths
@pytest.mark.parametrize(("a", "L"), [(0.5, 2), (0.5, 1000), (0.9, 10), (1.3, 10)])
def test_risk_of_equal_heads_is_that_of_one(a, L):
    """(A, b/3) and (A, 2b/3) predict what (A, b) does; its risk is in closed form."""
    for d in (1, 2, 5):
        task, A = lp.LinearRegression(np.eye(d), np.eye(d) / d, 0.1), a * np.eye(d)
        one = task.risk(lp.BlockParams(A, 0.9), L)
        found = task.risk(_params([(A, 0.3), (A, 0.6)]), L)
        assert abs(float(found.value - one.value)) <= float(found.error)
        assert float(found.error) < 3e-7 * float(found.value)


def test_risk_error_sees_a_coarse_rule_of_radii(monkeypatch):
    """The first two rules stand in for finer ones: the error is their distance."""
    rule, A = many_head_risk.isotropic_rule, 0.5 * np.eye(1)
    task = lp.LinearRegression(np.eye(1), np.eye(1), 0.1)
    fewer = {level: radial_rule(1, 4 + 2 * level) for level in (1, 2)}
    one = float(task.risk(lp.BlockParams(A, 0.9), 10).value)
    assert rule(1, 1)[0].size < rule(1, 2)[0].size
    monkeypatch.setattr(many_head_risk, "isotropic_rule", lambda d, level: fewer[level])
    found = task.risk(_params([(A, 0.3), (A, 0.6)]), 10)
    assert 1e-7 < abs(float(found.value) - one) < float(found.error)


def test_risk_of_several_heads_without_prompt_noise():
    """Linear attention and the infinite prompt see the sum of b A only."""
    heads = CASES["isotropic"][1]
    A = np.sum([b * A for A, b in heads], axis=0)
    found, one = _params(heads), lp.BlockParams(A, 1.0)
    for risk in (lambda p: TASK.risk(p, np.inf), lambda p: TASK.risk(p, 20, "linear")):
        assert float(risk(found).value) == pytest.approx(float(risk(one).value), rel=1e-12)


def test_risk_of_a_pair_of_opposite_heads():
    """Stated in docs/many_heads.md; linear attention at L - 1 as A -> 0 with bA fixed."""
    pair = _params([(0.3632 * s * EYE, 0.9892 * s) for s in (1, -1)])
    assert float(TASK.risk(pair, 10).value) == pytest.approx(0.2574156, abs=1e-7)
    small = _params([(0.01 * s * EYE, 30.0 * s) for s in (1, -1)])
    linear = float(TASK.risk(lp.BlockParams(0.6 * EYE, 1.0), 99, "linear").value)
    # 100 tokens around their mean are 99, divided by 100: shrink and compare
    found = float(TASK.risk(small, 100).value)
    shrunk = float(TASK.risk(lp.BlockParams(0.6 * 0.99 * EYE, 1.0), 99, "linear").value)
    assert abs(found - shrunk) < 1e-4 < abs(linear - shrunk)


def test_risk_of_general_heads_is_sampled():
    task, heads, L = CASES["general"]
    block = _params(heads)
    general = lp.MultiHeadParams([head.general() for head in block.heads])
    method = lp.MonteCarlo(jax.random.key(0), max_replicates=2048)
    found = task.risk(general, L, method=method)
    assert abs(found.value - float(task.risk(block, L).value)) < 4 * found.error


@pytest.mark.slow
def test_minimiser_of_two_heads_is_an_opposite_pair():
    found = TASK.minimiser(100, heads=2)
    first, second = found.params.heads
    assert found.gradient_norm < 1e-9
    assert float(found.risk) == pytest.approx(0.0808046, abs=1e-7)
    np.testing.assert_allclose(first.A, -np.asarray(second.A), atol=1e-5)
    assert float(first.b) == pytest.approx(-float(second.b), rel=1e-5)
    assert float(TASK.minimiser(100, "linear", heads=2).risk) == pytest.approx(
        float(TASK.minimiser(100, "linear").risk)
    )
    parts = [np.asarray(part) for part in (TASK.cov, TASK.task_cov, TASK.noise_variance)]
    small = lp.LinearRegression(parts[0] / 1000, parts[1], parts[2] / 1000)  # other units
    assert 1000 * float(small.minimiser(100, heads=2).risk) == pytest.approx(float(found.risk))


def _descent(task, y):
    """Minus the gradient in (a_h, b_h), in the metric of A_h = a_h I, by central differences."""

    def risk(y):
        heads = [(a * np.eye(2), b) for a, b in y.reshape(-1, 2)]
        A, b = np.stack([A for A, _ in heads]), np.array([b for _, b in heads])
        return many_head_risk.ManyHeadRisk(task.problem(), 1000.0).value_and_gradient(A, b)[0]

    moves = 1e-4 * np.eye(len(y))
    slopes = np.array([(risk(y + move) - risk(y - move)) / 2e-4 for move in moves])
    return -slopes / np.array([2.0, 1.0] * (len(y) // 2))


@pytest.mark.slow
def test_gradient_flow_of_two_heads():
    start = _params([(0.1 * np.eye(2), 1.0), (-0.08 * np.eye(2), -1.2)])
    task = lp.LinearRegression(np.eye(2), np.eye(2) / 2, 0.1)
    run = lp.gradient_flow(task, start, 1000, t1=2.0)
    # the classical fourth-order rule in (a_h, b_h), A_h = a_h I, by differences of the risk
    y, steps = np.array([0.1, 1.0, -0.08, -1.2]), 8
    for _ in range(steps):
        h = 2.0 / steps
        k1 = _descent(task, y)
        k2 = _descent(task, y + h / 2 * k1)
        k3 = _descent(task, y + h / 2 * k2)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + _descent(task, y + h * k3))
    found = [(float(head.A[0, 0]), float(head.b)) for head in run.final.heads]
    np.testing.assert_allclose(np.ravel(found), y, rtol=1e-4)
    assert float(task.risk(run.final, 1000).value) == pytest.approx(run.risk[-1], rel=1e-9)


@pytest.mark.parametrize(("attention", "L"), [("softmax", 3), ("linear", 3), ("softmax", np.inf)])
def test_batch_loss_by_exact_of_several_heads_against_prompts(attention, L):
    """The loss given w and queries of one batch, and its slope along a direction, by 40,000 prompts
    in NumPy: 4.5 standard errors.
    """
    task, heads, _ = CASES["general"]
    params = _params(heads)
    loss = task.batch_loss(float(L), attention, lp.Exact(), 2, np.float64)
    key, rng, n = jax.random.key(1), np.random.default_rng(0), 40_000
    w, x_q, _ = (np.asarray(part) for part in loss.regression.queries(key, 2))
    noise, root = float(task.noise_variance), np.linalg.cholesky(np.asarray(task.cov))
    move = [(0.3 * np.eye(2), 0.2), (np.array([[0.0, 0.1], [0.2, 0.0]]), -0.1)]
    step = 1e-3
    ends = [
        [
            (A + c * step * dA, b + c * step * db)
            for (A, b), (dA, db) in zip(heads, move, strict=True)
        ]
        for c in (0, 1, -1)
    ]
    totals = np.zeros((3, n))
    for each_w, query in zip(w, x_q, strict=True):
        length = 2 if np.isinf(L) else L
        x = rng.normal(size=(n, length, 2)) @ root.T
        y = x @ each_w + np.sqrt(noise) * rng.normal(size=(n, length))
        for k, some in enumerate(ends):
            prediction = np.zeros(n)
            for A, b in some:
                scores = x @ (A @ query)
                if np.isinf(L):
                    prediction += b * (A @ query) @ np.asarray(task.cov) @ each_w
                elif attention == "linear":
                    prediction += b * np.mean(scores * y, axis=1)
                else:
                    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
                    prediction += b * np.sum(p * y, axis=1)
            totals[k] += 0.5 * ((prediction - each_w @ query) ** 2 + noise) / 2
    value, slope = jax.value_and_grad(lambda params: loss(key, params))(params)
    change = flattened(slope) @ flattened(_params(move))
    for found, drawn in ((value, totals[0]), (change, (totals[1] - totals[2]) / (2 * step))):
        assert abs(float(found) - drawn.mean()) <= 4.5 * drawn.std() / np.sqrt(n) + 1e-6


@pytest.mark.slow
def test_descend_of_two_heads_by_exact():
    """Towards the exact risk, without noise of prompts; several lengths and attentions at once."""
    task, heads, L = CASES["shared axes"]
    start = _params(heads)
    starts = jax.tree.map(lambda leaf: np.stack([leaf] * 3), start)
    keys = jax.random.split(jax.random.key(0), 3)
    exact = {"method": lp.Exact(), "record_every": 20}
    attention = ["softmax", "linear", "softmax"]
    runs = lp.descend_many(keys, task, starts, [L, L, np.inf], 40, 64, attention=attention, **exact)
    for run in runs:
        assert run.finished
        assert run.risk[-1] < run.risk[0]
    alone = lp.descend(keys[0], task, start, L, 40, 64, **exact)
    np.testing.assert_allclose(flattened(alone.final), flattened(runs[0].final), rtol=1e-9)


def test_descend_of_several_general_heads_by_exact_names_the_method_that_serves():
    task, heads, L = CASES["shared axes"]
    general = lp.MultiHeadParams([head.general() for head in _params(heads).heads])
    with pytest.raises(ValueError, match=r"pass method=lp.MonteCarlo\(\)"):
        lp.descend(jax.random.key(0), task, general, L, 2, 8, method=lp.Exact())


@pytest.mark.slow
def test_descend_of_two_heads():
    """By whole prompts: the same batch for both ways to ask for it; recorded risks are exact."""
    task, heads, L = CASES["shared axes"]
    start = _params(heads)
    run = lp.descend(jax.random.key(0), task, start, L, steps=4, batch=32, record_every=2)
    assert run.finished
    assert run.risk[0] == pytest.approx(float(task.risk(start, L).value), rel=1e-6)
    assert np.all(run.risk_error == 0)
    moved = flattened(run.final) - flattened(start)
    assert 0 < np.linalg.norm(moved) < 0.1


def test_descend_of_two_heads_by_exact_in_32_bit_mode(mode_32):
    """Callbacks get and give all digits, as in 64-bit mode."""
    task, heads, L = CASES["shared axes"]
    start = _params(heads)
    run = lp.descend(jax.random.key(0), task, start, L, 2, 8, method=lp.Exact(), record_every=1)
    with jax.enable_x64(True):
        again = lp.descend(jax.random.key(0), task, start, L, 2, 8, method=lp.Exact())
    assert run.finished
    np.testing.assert_allclose(flattened(run.final), flattened(again.final), rtol=1e-12)
    assert np.all(flattened(run.final) != flattened(run.final).astype(np.float32))


@pytest.mark.slow
def test_minimiser_says_where_the_exact_risk_ends(monkeypatch):
    """With tables that are too small for the best pair; the gradient does not vanish there."""
    task = lp.LinearRegression(np.eye(2), np.eye(2) / 2, 0.1)
    monkeypatch.setattr(many_head_risk, "_LARGEST_ISOTROPIC", 2.0)
    with pytest.warns(UserWarning, match="stopped at the range of the exact risk"):
        found = task.minimiser(10, heads=2)
    assert found.at_limit
    assert found.gradient_norm > 1e-6
    assert not task.minimiser(1000, heads=2).at_limit


@pytest.mark.slow
def test_minimiser_of_four_heads_is_no_worse_than_two_pairs():
    """Two pairs found by a simplex search over `task.risk` have 2R = 0.351242."""
    found = TASK.minimiser(20, heads=4)
    assert 2 * float(found.risk) < 0.351242
    assert found.status == "converged"
    assert found.gradient_norm < 1e-8
    assert float(TASK.risk(found.params, 20).value) == pytest.approx(float(found.risk), rel=1e-6)


@pytest.mark.slow
def test_minimiser_of_three_heads():
    """Uneven in size, where one head next to an opposite pair has 0.257297 at the range's end."""
    found = TASK.minimiser(10, heads=3)
    assert float(found.risk) == pytest.approx(0.2566329, abs=1e-7)
    assert found.status == "converged"
    assert found.gradient_norm < 1e-8
    rng = np.random.default_rng(0)
    for factors in 1 + 0.1 * rng.uniform(-1, 1, size=(8, 3, 2)):
        pairs = zip(factors, found.params.heads, strict=True)
        near = _params([(a * np.asarray(head.A), b * float(head.b)) for (a, b), head in pairs])
        assert float(TASK.risk(near, 10).value) > float(found.risk)


def test_minimiser_of_two_heads_in_32_bit_mode(mode_32):
    """The same digits as in 64-bit mode."""
    task = lp.LinearRegression(np.eye(1), noise_variance=0.1)
    found = task.minimiser(1000, heads=2)
    with jax.enable_x64(True):
        expected = task.minimiser(1000, heads=2)
    assert float(found.risk) == float(expected.risk)
    np.testing.assert_array_equal(flattened(found.params), flattened(expected.params))
    assert found.status == expected.status


def test_minimiser_leaves_out_directions_without_variance():
    """A third input that never varies: the heads of the two others, and zeros."""
    whole = lp.LinearRegression(np.diag([1.0, 1.0, 0.0]), np.eye(3) / 3, 0.1)
    part = lp.LinearRegression(np.eye(2), np.eye(2) / 3, 0.1)
    for heads in (1, 2):
        found, expected = (task.minimiser(100, heads=heads) for task in (whole, part))
        assert float(found.risk) == pytest.approx(float(expected.risk), rel=1e-9)
        A = np.asarray(found.params.parts()[0].A)
        np.testing.assert_allclose(A, A[0, 0] * np.diag([1.0, 1.0, 0.0]), atol=1e-9)
