"""The published experiment: its hyperparameters, its variants, and a small run of it."""

import jax
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.dynamics.experiment import (
    PUBLISHED,
    Variant,
    balanced_weights,
    effective,
    initial_weights,
    published_init,
    published_task,
    pulls,
    route_ratio,
)


def test_published_hyperparameters():
    lengths = (
        10,
        20,
        30,
        40,
        50,
        60,
        70,
        80,
        90,
        100,
        200,
        300,
        400,
        500,
        600,
        700,
        800,
        900,
        1000,
    )
    assert PUBLISHED.lengths == lengths
    assert (PUBLISHED.inputs, PUBLISHED.batch, PUBLISHED.steps) == (5, 128, 300_000)
    assert (PUBLISHED.rate, PUBLISHED.noise_variance, PUBLISHED.seed) == (1e-3, 0.1, 327)
    start = published_init(jax.random.key(0))
    assert start.scale == pytest.approx(6**-0.5)
    entries = np.concatenate([np.ravel(m) for m in (start.K, start.Q, start.V, start.O)])
    assert entries.shape == (3 * 36 + 6,)
    assert np.max(np.abs(entries)) <= 6**-0.5
    # uniform: the mean of 114 squares is within 6 deviations of 1/18
    assert np.mean(entries**2) == pytest.approx(1 / 18, abs=6 * (4 / 45) ** 0.5 / 6 / 114**0.5)


def test_published_task_covariances():
    """In the released code the Cholesky root is applied twice to prompts, never to queries."""
    paper, released, theory = (published_task(v) for v in ("paper", "released-code", "theory"))
    assert paper.cov[0, 2] == 0.25
    assert np.array_equal(paper.cov, paper.query_cov)
    assert np.array_equal(released.query_cov, np.eye(5))
    eigenvalues = np.linalg.eigvalsh(released.cov)
    assert eigenvalues[[0, -1]] == pytest.approx([0.1304, 5.0041], abs=1e-4)
    assert np.trace(released.cov) == pytest.approx(7.328, abs=1e-3)
    assert float(theory.noise_variance) == 0
    assert np.array_equal(theory.task_cov, np.eye(5))
    assert np.allclose(paper.task_cov, np.eye(5) / 5)


def test_initial_weights_are_shared_in_the_paper_only():
    keys = jax.random.split(jax.random.key(0), 2)
    cases: list[tuple[Variant, bool]] = [("paper", True), ("released-code", False)]
    for variant, shared in cases:
        start = initial_weights(variant, keys)
        assert np.array_equal(start["softmax"][0].K, start["linear"][0].K) is shared
        assert not np.array_equal(start["softmax"][0].K, start["softmax"][1].K)


def test_published_experiment_takes_the_published_step():
    """One step at rate 1e-3 on the squared error is one at rate 2e-3 on half of it."""
    import optax

    found = lp.published_experiment(
        steps=1, lengths=[1e9], method=lp.Exact(), record_every=1, references=False
    )
    key = jax.random.fold_in(jax.random.key(327), 0)
    start = initial_weights("paper", key[None])["softmax"][0]
    run = lp.descend(
        key,
        published_task(),
        start,
        1e9,
        1,
        128,
        optax.sgd(2e-3),
        method=lp.Exact(),
        record_every=1,
    )
    assert found.risk.sel(attention="softmax").values.ravel() == pytest.approx(run.risk, rel=1e-12)
    assert run.risk[1] != run.risk[0]


def test_published_experiment_on_a_small_scale():
    """Two seeds at two lengths: shapes, intervals, and the order of the exact references."""
    found = lp.published_experiment(
        "released-code", steps=300, lengths=[10, 1000], seeds=2, method=lp.Exact(), record_every=150
    )
    assert found.risk.dims == ("attention", "length", "seed", "step")
    assert found.risk.shape == (2, 2, 2, 3)
    assert np.all(found.status == "finished: all steps were taken")
    assert np.all(found.bayes_risk < found.minimiser_risk)
    assert np.all(found.minimiser_risk < found.final_risk)
    assert np.all(np.isfinite(found.final_half_interval))
    exact = found.risk.values[..., -1]
    half = 12.706 * exact.std(axis=2, ddof=1) / np.sqrt(2)  # Student, one degree of freedom
    assert np.allclose(found.final_half_interval, half, rtol=1e-4)
    inverse = np.linalg.inv(published_task("released-code").cov)
    np.testing.assert_allclose(found.predicted, inverse)
    gap = np.sum((found.trained.values - inverse) ** 2, axis=(-2, -1))
    np.testing.assert_allclose(found.limit_gap, np.sqrt(gap / np.sum(inverse**2)))
    assert found.attrs["variant"] == "released-code"


def test_published_experiment_of_the_theory():
    """Flows of long prompts fall to b A = Sig^-1; linear attention keeps |A| = b."""
    found = lp.published_experiment("theory", lengths=[1e6], references=False)
    assert found.risk.dims == ("attention", "length", "time")
    assert found.time.values[[0, -1]] == pytest.approx([0.1, 1000.0])
    assert np.max(np.diff(found.risk.values)) < 1e-14
    assert np.all(found.limit_gap < 1e-3)
    np.testing.assert_allclose(
        found.trained.values[0, 0] @ published_task("theory").cov, np.eye(5), atol=1e-3
    )
    assert np.all(found.route_ratio == 0)
    norm = np.linalg.norm(found.final_A.values, axis=(-2, -1))
    assert norm[1] == pytest.approx(found.final_b.values[1], rel=1e-8)
    assert (found.attrs["method"], found.attrs["init"]) == ("flow", "balanced")


def test_balanced_weights_are_initialisation_9():
    """A = alpha Theta Theta' / |Theta Theta'|, b = alpha, nothing else; a Theta for each key."""
    task = published_task()
    heads = [balanced_weights(task, jax.random.key(i)).general() for i in (0, 1)]
    for head in heads:
        A = np.asarray(head.U)[:5, :5]
        assert np.linalg.norm(A) == pytest.approx(PUBLISHED.alpha, rel=1e-6)
        assert np.linalg.eigvalsh(A).min() > 0
        np.testing.assert_allclose(A, A.T, atol=1e-8)
        assert np.count_nonzero(head.U) == 25
        np.testing.assert_allclose(head.v, [0, 0, 0, 0, 0, PUBLISHED.alpha], rtol=1e-6)
    assert not np.allclose(heads[0].U, heads[1].U)


def test_published_experiment_returns_final_parameters():
    """Their closed-form risk is the test risk; route ratio and pulls follow from them."""
    found = lp.published_experiment(
        steps=20, lengths=[10], seeds=3, method=lp.Exact(), record_every=10, references=False
    ).sel(attention="linear", length=10)
    task = published_task()
    for seed in range(3):
        run = found.isel(seed=seed)
        U, v = np.zeros((6, 6)), np.append(run.final_v_x, run.final_b)
        U[:5, :5], U[5, :5] = run.final_A, run.final_c
        exact = float(task.risk(lp.HeadParams(U, v), 10, "linear").value)
        assert abs(float(run.risk[-1]) - exact) <= 5 * float(run.risk_error[-1])
        sizes = [np.linalg.norm(x) for x in (run.final_c, run.final_v_x, run.final_A)]
        expected = sizes[0] * sizes[1] / sizes[2] / abs(float(run.final_b))
        assert float(run.route_ratio) == pytest.approx(expected, rel=1e-12)
        M = np.asarray(task.cov @ task.task_cov @ task.query_cov)
        block = float(run.final_b) * np.sum(run.final_A.values * M)
        assert float(run.pull_block[-1]) == pytest.approx(block, rel=1e-12)
        other = run.final_v_x.values @ M @ run.final_c.values
        assert float(run.pull_other[-1]) == pytest.approx(other, rel=1e-12)


def test_effective_of_known_weights():
    """U = scale K'Q and v = O V, of one run on a leading axis."""
    K, Q, V = np.array(
        [[[1.0, 2.0], [0.0, 3.0]], [[2.0, 0.0], [1.0, 1.0]], [[1.0, 4.0], [2.0, 5.0]]]
    )
    O = np.array([[3.0, -1.0]])
    weights = jax.tree.map(lambda m: np.asarray(m)[None], lp.FactoredParams(K, Q, V, O, scale=0.5))
    A, b, c, v_x = effective(weights)
    # K'Q = [[2, 0], [7, 3]], O V = (1, 7)
    for found, expected in zip((A, b, c, v_x), ([[[1.0]]], [7.0], [[3.5]], [[1.0]]), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_pulls_of_known_heads():
    """b <A, M> and v_x'M c with M = Sig S Q, which is not symmetric here."""
    task = lp.LinearRegression(
        np.array([[2.0, 1.0], [1.0, 2.0]]), np.diag([1.0, 3.0]), query_cov=np.diag([1.0, 2.0])
    )  # M = [[2, 6], [1, 12]]
    A, c, v_x = (
        np.array([[[1.0, 2.0], [3.0, 4.0]]]),
        np.array([[1.0, -1.0]]),
        np.array([[2.0, 5.0]]),
    )
    block, other = pulls(task, A, np.array([0.5]), c, v_x)
    np.testing.assert_allclose(block, [0.5 * (2 + 12 + 3 + 48)], rtol=1e-12)
    np.testing.assert_allclose(other, [2 * (2 - 6) + 5 * (1 - 12)], rtol=1e-12)


def test_route_ratio_of_known_heads():
    A, b = np.array([[3.0, 0.0], [0.0, 4.0]]), np.array(-2.0)
    found = route_ratio(A[None], b[None], np.array([[0.6, 0.8]]), np.array([[0.0, 3.0]]))
    assert found == pytest.approx([0.3], rel=1e-12)
