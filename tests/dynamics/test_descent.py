"""Descent: records, checkpoints, many runs together, divergence, and equal laws by all methods."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import largeprompt as lp
from largeprompt.dynamics import Descent
from largeprompt.dynamics.group import advance
from largeprompt.icl import Attention

KEY = jax.random.key(0)
TASK = lp.LinearRegression([[1.0]], noise_variance=0.1)
START = lp.HeadParams([[0.5, 0.1], [0.0, 0.2]], [0.1, 0.6])
ATTENTIONS: tuple[Attention, ...] = ("softmax", "linear")
SAMPLED = {"whole": lp.MonteCarlo(whole_tokens=True), "scores": lp.MonteCarlo()}
ROOT = Path(__file__).parents[2]


def _stacked(params, runs):
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * runs), params)


@pytest.mark.slow
def test_descend_resumes_a_killed_run_bit_for_bit(tmp_path):
    """SIGKILL in the middle of saving; a second process ends where an undisturbed run does."""

    def run(save):
        command = [sys.executable, "-m", "tests.dynamics.killed", str(tmp_path), str(save)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    killed = run(3)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    with open(tmp_path / "runs-0.eqx", "rb") as saved:
        assert 0 < json.loads(saved.readline())["step"] < 400
    resumed, undisturbed = run(-1).stdout.split()
    assert resumed == undisturbed
    assert len(resumed) == 16


def _run(folder=None, steps=50, batch=8, L=10.0, key=KEY, optimiser=None, **more):
    optimiser = optax.sgd(1e-2, momentum=0.9) if optimiser is None else optimiser
    return lp.descend(
        key,
        TASK,
        START,
        L,
        steps,
        batch,
        optimiser,
        method=lp.Exact(),
        record_every=20,
        folder=folder,
        **more,
    )


@pytest.mark.slow
def test_descend_resumes_only_the_same_configuration(tmp_path):
    whole = _run(steps=70)
    assert whole.steps.tolist() == [0, 20, 40, 60, 70]
    assert _run(tmp_path).steps.tolist() == [0, 20, 40, 50]
    longer = _run(tmp_path, steps=70)
    for found, expected in zip(jax.tree.leaves(longer), jax.tree.leaves(whole), strict=True):
        assert np.array_equal(found, expected)
    assert np.array_equal(_run(tmp_path, steps=70).risk, whole.risk)  # nothing left to do
    for rule, change in {
        "batch 4 where it has 8": {"batch": 4},
        "L = 11": {"L": 11.0},
        "keys": {"key": jax.random.key(1)},
        "attention|linear": {"attention": "linear"},
        "steps = 30": {"steps": 30},
    }.items():
        with pytest.raises(ValueError, match=rule):
            _run(tmp_path, **{"steps": 70, **change})
    file = tmp_path / "runs-0.eqx"
    for damaged in (b"half a file", file.read_bytes()[:-20], file.read_bytes() + b"more"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="readable checkpoint"):
            _run(tmp_path, steps=70)


@pytest.mark.slow
def test_descend_resumes_only_with_the_same_optimizer(tmp_path):
    """Its name, and its initial state: numbers of parts, shapes, injected rates."""
    momentum = _run(tmp_path, optimizer_name="momentum")
    same = _run(tmp_path, optimiser=optax.sgd(1e-2, momentum=0.9), optimizer_name="momentum")
    assert np.array_equal(same.risk, momentum.risk)
    for rule, change in {
        "optimizer_name None where it has momentum": {},
        "optimizer_name another where it has": {"optimizer_name": "another"},
        "initial optimizer state": {"optimizer_name": "momentum", "optimiser": optax.adam(1e-2)},
    }.items():
        with pytest.raises(ValueError, match=rule):
            _run(tmp_path, **change)

    def injected(rate):
        return optax.inject_hyperparams(optax.sgd)(learning_rate=rate)

    _run(tmp_path / "injected", optimiser=injected(0.1))
    with pytest.raises(ValueError, match="initial optimizer state"):
        _run(tmp_path / "injected", optimiser=injected(0.2))


def test_descend_keeps_the_name_of_the_default_optimizer(tmp_path):
    options: dict = {"method": lp.Exact(), "folder": tmp_path}
    lp.descend(KEY, TASK, START, 10.0, 5, 8, **options)
    with pytest.raises(ValueError, match=r"None where it has optax.sgd\(0.001\)"):
        lp.descend(KEY, TASK, START, 10.0, 5, 8, optax.sgd(1e-2), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "lengths", "tolerance"),
    [(lp.Exact(), [1.0, jnp.inf, 30.0], 1e-12), (lp.MonteCarlo(), [3.0, 20_000.0, 30.0], 1e-6)],
)
def test_descend_many_gives_the_runs_of_descend(method, lengths, tolerance):
    """Several lengths and attentions in one loop, infinity too."""
    keys = jax.random.split(KEY, 3)
    attention: list[Attention] = ["softmax", "softmax", "linear"]
    together = lp.descend_many(
        keys,
        TASK,
        _stacked(START, 3),
        lengths,
        50,
        8,
        method=method,
        attention=attention,
        record_every=25,
    )
    for i, run in enumerate(together):
        alone = lp.descend(
            keys[i],
            TASK,
            START,
            lengths[i],
            50,
            8,
            method=method,
            attention=attention[i],
            record_every=25,
        )
        assert run.finished
        assert np.allclose(run.final.U, alone.final.U, rtol=tolerance)
        assert np.abs(np.asarray(run.final.v) - np.asarray(START.v)).max() > 1e-4


@pytest.mark.slow
def test_descend_methods_lead_to_the_same_law_of_final_risks():
    """120 seeds each, 60 steps, batches of 8: Kolmogorov-Smirnov at a false-alarm rate of 1e-6."""
    seeds = 120
    finals: dict[tuple[str, Attention], list] = {}
    for number, (name, method) in enumerate(SAMPLED.items()):
        for attention in ATTENTIONS:
            runs = lp.descend_many(
                jax.random.split(jax.random.key(number), seeds),
                TASK,
                _stacked(START, seeds),
                [5.0] * seeds,
                60,
                8,
                optax.sgd(0.01),
                method=method,
                attention=(attention,) * seeds,
                record_every=60,
            )
            assert all(run.finished for run in runs)
            finals[name, attention] = [run.final.U[0, 0] * run.final.v[1] for run in runs]
    for attention in ATTENTIONS:
        pair = finals["whole", attention], finals["scores", attention]
        result: Any = stats.ks_2samp(pair[0], pair[1])
        assert result.pvalue > 1e-6
        assert np.std(pair[0]) > 0.005  # seeds differ, so there is a law to compare


@pytest.mark.slow
def test_descend_on_factored_and_block_heads():
    """The risk of block heads is exact, and descent lowers it; factors move by the chain rule."""
    block = lp.BlockParams([[0.4]], 0.4)
    run = lp.descend(
        KEY, TASK, block, 40.0, 300, 64, optax.sgd(0.1), method=lp.Exact(), record_every=100
    )
    assert run.risk[-1] == pytest.approx(float(TASK.risk(run.final, 40.0).value), rel=1e-12)
    assert run.risk[-1] < 0.5 * run.risk[0]
    factored = lp.FactoredParams(2.0 * np.eye(2), START.U, np.eye(2), START.v[None], scale=0.5)
    one = lp.descend(KEY, TASK, factored, 40.0, 1, 8, optax.sgd(1.0), method=lp.Exact())
    general = lp.descend(KEY, TASK, START, 40.0, 1, 8, optax.sgd(1.0), method=lp.Exact())
    moved = general.final.U - START.U  # U = scale K'Q: dK = scale Q dU', dQ = scale K dU
    assert np.allclose(one.final.Q - factored.Q, 0.5 * 2.0 * moved, rtol=1e-10)
    assert np.allclose(one.final.K - factored.K, 0.5 * START.U @ moved.T, rtol=1e-10)
    assert np.allclose(one.final.O[0] - factored.O[0], general.final.v - START.v, rtol=1e-10)
    found = one.risk[0], general.risk[0]
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    truth = TASK.risk(START, 40.0)
    assert abs(truth.value - found[0]) < 6 * np.hypot(truth.error, one.risk_error[0])


@pytest.mark.slow
def test_descend_on_prompts_of_other_tasks():
    task = lp.ProductRegression(lp.Rademacher(1), noise_variance=0.1)
    run = lp.descend(
        KEY,
        task,
        lp.BlockParams([[0.3]], 0.3),
        6,
        60,
        16,
        optax.sgd(0.1),
        method=lp.MonteCarlo(),
        record_every=60,
    )
    assert run.finished
    assert run.risk[-1] + 3 * run.risk_error[-1] < run.risk[0]


def test_descend_warns_before_it_draws_many_tokens():
    """Warnings are errors in the tests: nothing is drawn."""
    task, start = lp.LinearRegression(np.eye(1)), lp.BlockParams(np.eye(1), 0.5)
    with pytest.raises(UserWarning, match=r"draws .* = 1.3e\+10 tokens.*method=lp.Exact"):
        lp.descend(jax.random.key(0), task, start, L=1e8, steps=1)


def test_descend_reports_divergence():
    run = _run(optimiser=optax.sgd(1e6))
    assert run.status.startswith("diverged: parameters are not finite at step")
    assert "smaller rate" in run.status
    assert not run.finished


def test_advance_takes_the_steps_of_gradient_descent():
    """The loss (b - 3)^2 of every key: after n steps at rate r, b = 3 + (1 - 2r)^n (b_0 - 3)."""
    starts = [lp.BlockParams(np.zeros((1, 1)), b) for b in (1.0, 5.0)]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    state = params, jax.vmap(optax.sgd(0.25).init)(params)
    losses = _Parabola(np.full(2, 3.0))
    keys = jax.random.split(KEY, 2)
    params, _ = advance(losses, optax.sgd(0.25), keys, state, np.int32(2), np.int32(5))
    np.testing.assert_allclose(params.b, 3 + 0.5**3 * np.array([-2.0, 2.0]), rtol=1e-12)


def test_advance_draws_anew_at_every_step():
    """The loss b times a normal of the key: changes differ, wherever a chunk ends."""
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], lp.BlockParams([[0.0]], 0.0))
    state = params, jax.vmap(optax.sgd(1.0).init)(params)
    keys, path = KEY[None], [state]
    for k in range(3):
        losses = _Noise(np.ones(1))
        path.append(advance(losses, optax.sgd(1.0), keys, path[-1], np.int32(k), np.int32(k + 1)))
    whole, _ = advance(_Noise(np.ones(1)), optax.sgd(1.0), keys, state, np.int32(0), np.int32(3))
    ends = np.array([float(params.b[0]) for params, _ in path])
    assert len(np.unique(np.diff(ends).round(6))) == 3
    assert float(whole.b[0]) == pytest.approx(ends[-1], rel=1e-12)


class _Noise(eqx.Module):
    scale: Any

    def __call__(self, key, params):
        return params.b * self.scale * jax.random.normal(key)


class _Parabola(eqx.Module):
    at: Any

    def __call__(self, key, params):
        return (params.b - self.at) ** 2


def test_descent_is_finished_only_by_its_status():
    steps = np.arange(2)
    for status, finished in (("finished: all steps were taken", True), ("finished early", False)):
        run = Descent(steps, {"b": np.array([1.0, 2.0])}, steps, steps, status)
        assert run.finished is finished
        assert run.final["b"] == 2.0
