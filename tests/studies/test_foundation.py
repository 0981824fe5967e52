"""The studies hold on the code as it is, and notice when the operator is broken."""

import math

import jax
import jax.numpy as jnp
import pytest

from largeprompt.attention import Head, attend
from largeprompt.measures import Empirical, Gaussian
from largeprompt.studies import (
    STUDIES,
    concentration,
    depth,
    finite_prompts,
    lemma_2_1,
    softmax_operator,
)
from largeprompt.studies.base import Check, at_least, at_most, between

KEY = jax.random.key(0)


def _holds(checks) -> bool:
    assert checks
    return all(check.holds for check in checks)


@pytest.mark.parametrize("name", STUDIES)
def test_every_statement_holds(name):
    assert _holds(STUDIES[name](KEY))


def test_lemma_2_1_notices_scores_divided_by_two(monkeypatch):
    def half_scores(head, measure, z):
        halved = Head(U=head.U / 2, V=head.V) if isinstance(measure, Gaussian) else head
        return attend(halved, measure, z)

    monkeypatch.setattr(lemma_2_1, "attend", half_scores)
    assert not _holds(lemma_2_1.run(KEY))


def test_softmax_operator_notices_a_wrong_weight(monkeypatch):
    def first_token_twice(tokens):
        return Empirical(tokens, [2.0] + [1.0] * (len(tokens) - 1))

    monkeypatch.setattr(softmax_operator, "Empirical", first_token_twice)
    assert not _holds(softmax_operator.run(KEY))


def test_depth_notices_tokens_of_another_law(monkeypatch):
    exact = Gaussian.sample
    monkeypatch.setattr(
        Gaussian, "sample", lambda self, key, n: exact(self, key, n).affine(2 * jnp.eye(3))
    )
    assert not _holds(depth.run(KEY))


def test_finite_prompts_notices_a_wrong_covariance(monkeypatch):
    def doubled(mean, cov):
        return Gaussian(mean, 2 * jnp.asarray(cov))

    monkeypatch.setattr(finite_prompts, "Gaussian", doubled)
    assert not _holds(finite_prompts.run(KEY))


def test_concentration_notices_a_wrong_covariance(monkeypatch):
    monkeypatch.setattr(concentration, "Gaussian", lambda mean, cov: Gaussian(mean, 3 * cov))
    failed = {check.statement for check in concentration.run(KEY) if not check.holds}
    assert any("slope at kappa = 1," in statement for statement in failed)
    assert any("tilted E|x|^4" in statement for statement in failed)


def test_verdicts_are_computed():
    assert at_most("", 1.0, 1.0).holds
    assert not at_most("", 1.1, 1.0).holds
    assert not at_least("", 0.9, 1.0).holds
    assert between("", 0.5, 0.0, 1.0).holds
    assert not between("", -0.5, 0.0, 1.0).holds
    for value in (math.nan, math.inf, -math.inf):
        assert not Check("", value, -math.inf, math.inf).holds
