"""The engine for tokens of Gaussians and atoms: against mpmath, closed forms and delta methods."""

import mpmath
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.prompts.engine import moments, one_head
from largeprompt.prompts.engine_pairs import Reader, two_heads
from largeprompt.prompts.token_laws import TokenLaw

G = np.array([[1.0, 0.3], [0.3, 0.6]])
M = np.array([0.1, -0.2])
V = np.array([[1.0, 0.4], [-0.3, 0.6]])
W = np.array([[0.2, -1.0], [0.7, 0.5]])


def _gaussian(mean=M, cov=G) -> TokenLaw:
    d = len(mean)
    return TokenLaw(np.zeros((0, d)), np.zeros(0), mean[None], cov[None], np.ones(1))


ATOMS = np.array([[0.5, 1.0], [-1.0, 0.2]])
MIXED = TokenLaw(ATOMS, np.array([0.2, 0.1]), M[None], G[None], np.array([0.7]))


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 8.0, 40.0])
def test_one_head_of_two_tokens_in_digits(sigma):
    """E T_2 = (1 - P_2) sigma for tokens N(0, 1), where E (p_1^2 + p_2^2) is one integral over the
    difference of two scores.
    """
    with mpmath.workdps(30):
        width = sigma * mpmath.sqrt(2)
        marks = [0, *(x for x in (1, 5, 20, 60) if x < 12 * width), 12 * width]
        distinct = mpmath.quad(lambda D: mpmath.npdf(D, 0, width) / mpmath.cosh(D / 2) ** 2, marks)
        p2 = float(mpmath.mpf(1) - distinct)
    law, L = _gaussian(np.zeros(1), np.eye(1)), np.array([2.0])
    found = moments(one_head(law, np.array([sigma]), np.eye(1), (2.0, 2.0), trace=True), L)
    np.testing.assert_allclose(-found.shift[0, 0] / sigma, p2, rtol=1e-12)
    assert abs(found.shift[0, 0] + sigma * p2) <= found.shift_error[0, 0]


def test_one_head_gives_the_same_for_one_length_and_for_many():
    L = np.array([1.0, 2.5, 1e3, 1e9, 1e15])
    tilt = np.array([1.1, -0.5])
    together = moments(one_head(MIXED, tilt, V, (1.0, 1e15), trace=False), L)
    for i, length in enumerate(L):
        one = moments(one_head(MIXED, tilt, V, (length, length), trace=False), L[i : i + 1])
        np.testing.assert_allclose(one.second[0], together.second[i], rtol=1e-11)
        assert np.all(abs(one.shift[0] - together.shift[i]) <= together.shift_error[i])


@pytest.mark.parametrize("angle", [0.0, 1e-8, 1e-4, 1e-2, 0.3, np.pi])
@pytest.mark.parametrize("L", [1.0, 3.0, 1e4])
def test_two_heads_nearly_equal_or_opposite_on_gaussian_tokens(angle, L):
    """The closed form in pair moments, for heads that differ by a rotation of the tilt."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    u, z = np.array([1.1, 0.5]), np.ones(2)
    heads = [lp.Head(U=np.diag(tilt), V=read) for tilt, read in ((u, V), (turn @ u, W))]
    mu = lp.Gaussian(M, G)
    both = lp.expect(lp.OutputError(), lp.MultiHead(heads), mu, z, L).value
    shared = (both - sum(lp.output_error(head, mu, z, L) for head in heads)) / 2
    found = two_heads(_gaussian(), (Reader(u, V), Reader(turn @ u, W)), L)
    np.testing.assert_allclose(np.trace(found.value), shared, atol=1e-11 * both)


def test_two_heads_do_not_see_how_a_law_is_split_into_components():
    readers = Reader(np.array([1.1, 0.5]), V), Reader(np.array([-0.4, 0.9]), W)
    whole = two_heads(MIXED, readers, 10.0)
    halves = np.array([0.25, 0.45])
    split = TokenLaw(ATOMS, MIXED.point_weights, np.stack([M, M]), np.stack([G, G]), halves)
    np.testing.assert_allclose(two_heads(split, readers, 10.0).value, whole.value, rtol=1e-11)
    assert np.all(whole.error < 1e-10 * abs(whole.value))


def test_one_head_raises_for_scores_that_take_too_long():
    with pytest.raises(ValueError, match="must not need more than"):
        one_head(_gaussian(), np.array([4000.0, 0.0]), V, (10.0, 10.0), trace=True)


def test_two_heads_raise_for_scores_that_take_too_much_memory():
    readers = Reader(np.array([60.0, 0.0]), V), Reader(np.array([0.0, 1.0]), V)
    with pytest.raises(ValueError, match="two heads take scores of deviation up to"):
        two_heads(_gaussian(), readers, 10.0)
