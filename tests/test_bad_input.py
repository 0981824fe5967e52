"""Every mistake a user can make with measures and attention: one table, one form of message."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt import _checks

from .mistakes import MISTAKES

ROOT = Path(__file__).parents[1]

EYE = np.eye(2)
KEY = jax.random.key(0)
HEAD = lp.Head(U=EYE, V=EYE)
GAUSSIAN = lp.Gaussian(np.zeros(2), EYE)


@pytest.fixture(scope="module")
def messages() -> dict:
    """Errors of all mistakes, from a process without the run-time type checker."""
    command = [sys.executable, "-m", "tests.mistakes"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_rule_and_received(mistake, messages):
    text = messages[mistake]
    assert text is not None, "no ValueError was raised"
    assert re.search(MISTAKES[mistake][1], text)
    assert "; received " in text


@_checks.accepts(head=lp.attention.AbstractHead)
def _annotated(
    head: object,
    measure: lp.AbstractMeasure,
    params: lp.AbstractParams | None = None,
    engine: Literal["auto", "dense", "fused"] = "auto",
    matrix: Literal["U", "V"] | None = "U",
    relative: bool = False,
    level: float = 0.5,
    rate: float | None = None,
    folder: str | Path | None = None,
) -> str:
    return "accepted"


WRONG = {
    "head": (GAUSSIAN, "head must be an attention head; received Gaussian"),
    "measure": (HEAD, "measure must be a measure; received Head"),
    "params": (EYE, "params must be the parameters of a head; received ndarray"),
    "engine": (EYE, "engine must be one of ('auto', 'dense', 'fused'); received array"),
    "matrix": ("W", "matrix must be 'U' or 'V'; received 'W'"),
    "relative": (EYE, "relative must be True or False; received array"),
    "level": ("high", "level must be a number; received 'high'"),
    "rate": (np.nan, "rate must be finite; received nan"),
    "folder": (3, "folder must be a path; received 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_accepts_checks_an_argument_by_its_annotation(name):
    value, text = WRONG[name]
    arguments = {"head": HEAD, "measure": GAUSSIAN}
    assert _annotated(**arguments) == _annotated(HEAD, GAUSSIAN, None, matrix=None) == "accepted"
    with pytest.raises(ValueError, match=re.escape(text)):
        _annotated(**(arguments | {name: value}))


TRACED = {
    "cov not PSD": (
        lambda x: lp.Gaussian(x, jnp.outer(x, x) - 2 * jnp.eye(2)).cov(),
        "semi-definite",
    ),
    "cov not symmetric": (lambda x: lp.Gaussian(x, jnp.outer(x, x + 1)).cov(), "symmetric"),
    "NaN token": (
        lambda x: lp.Empirical(x[None] / 0 - x[None] / 0).mean(),
        "points must be finite",
    ),
    "negative weight": (lambda x: lp.Empirical(EYE, -x).mean(), "weights must be >= 0"),
    "zero weights": (lambda x: lp.Empirical(EYE, 0 * x).mean(), "positive finite sum"),
    "radius": (lambda x: lp.Sphere(2, -x[0]).mean(), "radius must be > 0"),
    "query": (lambda x: lp.attend(HEAD, GAUSSIAN, x / 0), "z must be finite"),
}


@pytest.mark.parametrize("mistake", TRACED)
def test_values_are_checked_under_jit(mistake):
    call, rule = TRACED[mistake]
    with pytest.raises(eqx.EquinoxRuntimeError, match=rule) as caught:
        jax.block_until_ready(eqx.filter_jit(call)(jnp.array([0.5, 1.5])))
    assert "To fix: " in str(caught.value)


def test_integers_and_lists_are_cast():
    assert lp.Gaussian([0, 1], [[1, 0], [0, 2]]).mean().dtype == jnp.float64
    assert lp.Empirical([[1, 2], [3, 4]], [1, 3]).mean() == pytest.approx([2.5, 3.5])
    assert lp.attend(HEAD, GAUSSIAN, [1, 2]).tolist() == [1.0, 2.0]
    assert lp.Head(U=[[1]], V=[[2]]).V.dtype == jnp.float64


def test_output_error_of_tokens_whose_scores_differ_by_a_thousand():
    """Prompts without the outlier, one in 2^10, miss all of it; the others only e^-1000 of it."""
    outlier = lp.Empirical([[1e3, 0.0], [0.0, 0.0]])
    assert lp.output_error(HEAD, outlier, np.ones(2), 10) == pytest.approx(1e6 / 2**10, rel=1e-10)


def test_mixed_precision_goes_to_the_wider_type():
    single = np.eye(2, dtype=np.float32)
    assert lp.Gaussian(np.zeros(2), single).cov().dtype == jnp.float64
    assert lp.Head(U=single, V=EYE).U.dtype == jnp.float64
    assert (
        lp.attend(lp.Head(U=single, V=single), lp.Empirical(single), np.ones(2)).dtype
        == jnp.float32
    )


CONSTRUCTORS = {
    "Dirac": lambda x: lp.Dirac(x[:2]),
    "Gaussian": lambda x: lp.Gaussian(x[:2], jnp.outer(x[:2], x[:2]) + jnp.eye(2)),
    "from_factor": lambda x: lp.Gaussian.from_factor(x[:2], x[:2, None]),
    "Empirical": lambda x: lp.Empirical(x[:4].reshape(2, 2), x[2:4]),
    "Mixture": lambda x: lp.Mixture(x[:2], [lp.Dirac(x[:2]), lp.Rademacher(2)]),
    "Uniform": lambda x: lp.Uniform(2, x[0]),
    "Sphere": lambda x: lp.Sphere(2, x[0]),
    "affine": lambda x: lp.Rademacher(2).affine(x[:4].reshape(2, 2), x[:2]),
    "sum": lambda x: lp.Sphere(2, x[0]) + lp.Uniform(2, x[1]),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_jit_vmap_and_grad_go_through_constructors(name):
    """Gradient of log_mgf in the constructor's arguments against central differences."""
    u = jnp.array([0.4, -0.8])

    def value(x):
        return CONSTRUCTORS[name](x).log_mgf(u)

    x = np.array([0.9, 0.7, 1.3, 0.4])
    batch = jax.jit(jax.vmap(jax.grad(value)))(np.stack([x, x + 0.1]))
    evaluate = jax.jit(value)
    step = 1e-5
    for i in range(4):
        move = step * np.eye(4)[i]
        difference = (evaluate(x + move) - evaluate(x - move)) / (2 * step)
        assert np.allclose(batch[0, i], difference, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_sampling_a_gaussian_is_differentiable_even_where_it_is_singular(rank):
    """The symmetric root is smooth at equal eigenvalues."""
    projector = np.diag([1.0] * rank + [0.0] * (2 - rank))

    def moved(sigma):
        return lp.Gaussian(np.zeros(2), sigma**2 * projector).sample(KEY, 3).points

    slope = jax.jit(jax.jacfwd(moved))(1.5)
    assert np.allclose(slope, moved(1.5) / 1.5, rtol=1e-10, atol=1e-12)
