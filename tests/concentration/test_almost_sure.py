"""Growing prompts: the same outputs as attention over the tokens drawn, and the constant of the
iterated logarithm.
"""

import jax
import numpy as np
import pytest

import largeprompt as lp
from largeprompt.concentration import almost_sure

KEY = jax.random.key(2)


def _problem(measure=None):
    head = lp.Head(U=[[0.7, 0.2], [0.0, 0.5]], V=[[1.0, 0.0], [1.0, 2.0]])
    mu = lp.Gaussian([0.2, 0.0], [[1.0, 0.3], [0.3, 0.5]]) if measure is None else measure
    return head, mu, np.array([0.8, -0.4])


@pytest.mark.slow
def test_growing_prompt_distances_are_those_of_its_tokens():
    head, mu, z = _problem()
    lengths = [3, 100, 4096, 4097, 9000]
    path = lp.growing_prompt(KEY, head, mu, z, lengths)
    key = jax.random.split(KEY, 1)[0]
    blocks = [mu.sample(jax.random.fold_in(key, b), almost_sure._BLOCK).points for b in range(3)]
    tokens = np.concatenate([np.asarray(b) for b in blocks])
    for i, L in enumerate(lengths):
        output = lp.attend(head, lp.Empirical(tokens[:L]), z)
        expected = np.linalg.norm(np.asarray(output - lp.attend(head, mu, z)))
        assert float(path.distance[0, i]) == pytest.approx(expected, rel=1e-9)
    assert float(lp.growing_prompt(KEY, head, mu, z, [100]).distance[0, 0]) == float(
        path.distance[0, 1]
    )


@pytest.mark.slow
def test_growing_prompt_scale_is_that_of_the_exact_error():
    """L E|T_L - T|^2 tends to the trace of the covariance whose largest eigenvalue sets the
    envelope; here m = 1, so they are equal.
    """
    for mu in (None, lp.Rademacher(2), lp.Uniform(2, 1.0)):
        head, mu, z = _problem(mu)
        head = lp.Head(U=head.U, V=[[1.0, -0.5]])
        scale = float(almost_sure.iterated_logarithm_scale(head, mu, jax.numpy.asarray(z)))
        curve = lp.concentration_curve(head, mu, lp.Dirac(z), [1e9], method=lp.QuasiMonteCarlo(KEY))
        assert 1e9 * float(curve.value[0]) == pytest.approx(scale**2, rel=1e-3)


@pytest.mark.slow
def test_growing_prompt_ends_below_the_envelope():
    """At L = 2e4 |T_L - T| is near normal; sqrt(2 ln ln L) = 2.1 deviations of the widest
    direction. Of 40 prompts in two output dimensions about 3 are outside; more than 15 has
    probability below 1e-6.
    """
    head, mu, z = _problem()
    path = lp.growing_prompt(KEY, head, mu, z, [200, 20_000], prompts=40)
    last = path.distance.values[:, -1]
    assert np.sum(last > float(path.envelope[-1])) <= 15
    assert np.median(last) < np.median(path.distance.values[:, 0]) / 3
    assert np.median(last) > float(path.envelope[-1]) / 20
