"""Error bars of one prompt, against loops over its tokens, simulations and exact errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import binom

import largeprompt as lp
from largeprompt.prompts.pareto import pareto_index

from ..oracles import uncertainty as judge

RNG = np.random.default_rng(5)
TOKENS = RNG.standard_normal((60, 3))
HEAD = lp.Head(U=RNG.standard_normal((3, 3)) / 3, V=RNG.standard_normal((2, 3)))
Z = RNG.standard_normal((4, 3))
HEADS = lp.MultiHead(
    [HEAD, lp.Head(U=-HEAD.U, V=-HEAD.V), lp.Head(U=0.5 * HEAD.U.T, V=0.3 * HEAD.V)]
)


def _fields(found) -> tuple:
    return found.output, found.covariance, found.half_difference, found.effective_tokens


@pytest.mark.parametrize("weights", [None, RNG.uniform(0.1, 2.0, 60)])
@pytest.mark.parametrize("count", [60, 7, 2])
def test_prompt_uncertainty_agrees_with_loops_over_tokens(weights, count):
    tokens = TOKENS[:count]
    weights = None if weights is None else weights[:count]
    found = lp.prompt_uncertainty(HEAD, lp.Empirical(tokens, weights), Z)
    logs = None if weights is None else np.log(weights)
    for i, z in enumerate(Z):
        expected = judge.error_bar(tokens, np.asarray(HEAD.U) @ z, np.asarray(HEAD.V), logs)
        for ours, theirs in zip(_fields(found), expected, strict=True):
            assert_allclose(ours[i], theirs, rtol=1e-12, atol=1e-14)


def test_prompt_uncertainty_tail_indices_are_of_weights_and_of_influence():
    tokens = np.random.default_rng(8).standard_normal((4000, 3))
    found = lp.prompt_uncertainty(HEAD, lp.Empirical(tokens), Z[0])
    tilt, V = np.asarray(HEAD.U) @ Z[0], np.asarray(HEAD.V)
    weights = np.array(judge.softmax(list(tokens @ tilt)))
    assert found.weight_tail_index == pytest.approx(judge.tail_index(weights), abs=0.02)
    terms = [judge.influence(tokens, tilt, V), *judge.signed_terms(tokens, tilt, V)]
    each = pareto_index(np.stack(terms), np.zeros(len(terms)))
    assert found.term_tail_index == pytest.approx(max(each), rel=1e-9)
    assert each[0] == pytest.approx(judge.tail_index(terms[0]), abs=0.02)
    assert abs(found.term_tail_index - found.weight_tail_index) > 0.05
    assert found.tail_index == max(found.weight_tail_index, found.term_tail_index)


@pytest.mark.parametrize("count", [21, 100, 1000])
def test_pareto_index_is_the_published_estimator(count):
    terms = np.exp([[0.3], [1.0], [3.0]] * np.random.default_rng(6).standard_normal((3, count)))
    expected = [judge.zhang_stephens(row) for row in terms]
    assert_allclose(pareto_index(terms, np.zeros(3)), expected, rtol=1e-9)


def test_pareto_index_of_ties():
    """The tail of 1000 terms has 95: filled by equal terms it is light; with 1 to 4 others beyond
    them it is unknown; terms equal up to rounding count as equal.
    """
    terms = np.ones((5, 1000))
    terms[1, :95] = 7.0
    terms[2, :96] = 7.0
    terms[3, :4] = 7.0
    terms[4, :50] += 1e-15
    found = pareto_index(terms, np.full(5, 1e-14))
    assert found[1] < -1
    assert found[[0, 2, 3, 4]].tolist() == [-np.inf, -np.inf, np.inf, -np.inf]


def test_pareto_index_of_few_terms_is_unknown():
    terms = np.random.default_rng(1).uniform(size=(1, 21))
    assert np.isfinite(pareto_index(terms, np.zeros(1)))
    assert pareto_index(terms[:, :20], np.zeros(1)) == np.inf
    assert pareto_index(np.ones((1, 20)), np.zeros(1)) == -np.inf


def test_pareto_index_of_terms_that_underflow():
    terms = np.exp(-50.0 * np.arange(1000.0))[None]
    assert pareto_index(terms, np.zeros(1)) > 10


# Laws of tokens by NumPy alone: draw(rng, L), and the output of the infinite prompt at a tilt.

_FACTOR, _CENTRE = np.array([[1.0, 0.3], [0.0, 0.8]]), np.array([0.5, -1.0])
_MEANS = np.array([[2.0, 0.0], [-1.0, 1.0]])
_ATOMS = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0], [2.0, 1.0]])
_SHARES = np.array([0.4, 0.3, 0.2, 0.1])


def _gaussian(rng, L):
    return rng.standard_normal((L, 2)) @ _FACTOR + _CENTRE


def _mixture(rng, L):
    second = (rng.random(L) >= 0.3).astype(int)
    return _MEANS[second] + rng.standard_normal((L, 2)) * np.array([0.5, 1.0])[second, None]


def _mixture_limit(u):
    logs = np.log([0.3, 0.7]) + _MEANS @ u + np.array([0.25, 1.0]) * (u @ u) / 2
    return np.array(judge.softmax(list(logs))) @ (_MEANS + np.outer([0.25, 1.0], u))


def _discrete(rng, L):
    return _ATOMS[rng.choice(4, L, p=_SHARES)]


def _discrete_limit(u):
    return np.array(judge.softmax(list(np.log(_SHARES) + _ATOMS @ u))) @ _ATOMS


def _exponential(rng, L):
    return rng.exponential(size=(L, 2))


def _gaussian_limit(u):
    return _CENTRE + _FACTOR.T @ _FACTOR @ u


# Coverage of the 95% region at L = 200: 8,000 prompts of a separate simulation in NumPy.
COVERAGE = {
    "Gaussian": (_gaussian, _gaussian_limit, (0.5, 0.0), 0.932),
    "Gaussian, large scores": (_gaussian, _gaussian_limit, (3.0, 0.0), 0.060),
    "mixture": (_mixture, _mixture_limit, (0.4, 0.5), 0.930),
    "discrete": (_discrete, _discrete_limit, (0.8, 0.6), 0.946),
    "exponential": (_exponential, lambda u: 1 / (1 - u), (0.2, 0.0), 0.910),
    "exponential, no variance": (_exponential, lambda u: 1 / (1 - u), (0.7, 0.0), 0.281),
}
PROMPTS = 300


@eqx.filter_jit
def _bars(tokens, z):
    head = lp.Head(U=np.eye(2), V=np.eye(2))
    return jax.vmap(lambda own: lp.prompt_uncertainty(head, lp.Empirical(own), z))(tokens)


@pytest.fixture(scope="module")
def simulated() -> dict:
    """For each law: whether the region contains the limit, and the reading, of 300 prompts."""
    found = {}
    for law, (draw, limit, tilt, _) in COVERAGE.items():
        rng, u = np.random.default_rng(11), np.array(tilt)
        tokens = np.stack([draw(rng, 200) for _ in range(PROMPTS)])
        bars = _bars(tokens, u)
        found[law] = np.asarray(bars.contains(limit(u))), bars.reading
    return found


@pytest.mark.parametrize("law", COVERAGE)
def test_prompt_uncertainty_covers_as_often_as_in_the_simulation(law, simulated):
    """False alarm below 1e-6 for each law: binomial bounds around coverages known to 0.02."""
    inside, expected = simulated[law][0].sum(), COVERAGE[law][3]
    low = binom.ppf(5e-7, PROMPTS, max(expected - 0.02, 0.0))
    high = binom.isf(5e-7, PROMPTS, expected + 0.02)
    assert low <= inside <= high


def test_prompt_uncertainty_warns_where_the_bar_fails(simulated):
    """The share of prompts read as too short is above 1/2 or below 1/5; false alarms below 1e-6,
    as the true shares are beyond 0.65 and 0.1.
    """
    short = {
        law: np.mean(readings == "the prompt is too short to know")
        for law, (_, readings) in simulated.items()
    }
    fails = {law for law, (*_, coverage) in COVERAGE.items() if coverage < 0.5}
    assert {law for law, share in short.items() if share > 0.5} == fails
    assert {law for law, share in short.items() if share < 0.2} == set(COVERAGE) - fails


def test_prompt_uncertainty_warns_of_heavy_values_with_equal_weights():
    """Values of tail index 1, equal scores: the weights are harmless, the terms are not."""
    values = np.random.default_rng(2).standard_cauchy((2000, 1))
    found = lp.prompt_uncertainty(lp.Head(U=[[0.0]], V=[[1.0]]), lp.Empirical(values), [1.0])
    assert found.weight_tail_index == -np.inf
    assert found.reading == "the prompt is too short to know"


@pytest.mark.parametrize("sigma", [0.5, 1.0])
@pytest.mark.parametrize("dim", [1, 3])
def test_prompt_uncertainty_warns_of_heavy_values_with_other_weights(sigma, dim):
    """Cauchy values independent of the scores: no T exists. 60 prompts of 200 tokens; at most 2 in
    100 read "holds" in 2,000 prompts of a separate simulation, so more than 8 have a probability
    below 1e-5.
    """
    rng = np.random.default_rng(21)
    scores = sigma * rng.standard_normal((60, 200, 1))
    values = rng.standard_normal((60, 200, dim))
    values[..., -1] = rng.standard_cauchy((60, 200))
    head = lp.Head(U=np.eye(1 + dim), V=np.eye(1 + dim)[1:])
    z = np.eye(1 + dim)[0]
    prompts = [lp.Empirical(x) for x in np.concatenate([scores, values], axis=2)]
    readings = [str(lp.prompt_uncertainty(head, prompt, z).reading) for prompt in prompts]
    assert sum(r == "the error bar holds" for r in readings) <= 8
    assert sum(r == "the prompt is too short to know" for r in readings) > 40


def test_prompt_uncertainty_of_a_rare_wide_component_at_1000_tokens():
    """98% N(0, 1) and 2% N(0, 16), scores .6 x: at L = 1000 the region covers with probability .40
    and 5 in 100 prompts read "holds" (500 prompts of a separate simulation): of 60 prompts more
    than 12 have a probability below 1e-5.
    """
    rng = np.random.default_rng(22)
    wide = np.where(rng.random((60, 1000, 1)) < 0.02, 4.0, 1.0)
    head = lp.Head(U=[[0.6]], V=[[1.0]])
    prompts = [lp.Empirical(x) for x in wide * rng.standard_normal((60, 1000, 1))]
    readings = [str(lp.prompt_uncertainty(head, prompt, [1.0]).reading) for prompt in prompts]
    assert sum(r == "the error bar holds" for r in readings) <= 12


def test_prompt_uncertainty_properties_in_32_bit_mode(mode_32):
    found = lp.prompt_uncertainty(HEAD, lp.Empirical(TOKENS.astype(np.float32)), Z)
    for name in ("standard_error", "squared_error", "shape_matrix", "tail_index", "output"):
        assert getattr(found, name).dtype == np.float64
    np.testing.assert_allclose(found.standard_error[0] ** 2, np.diag(found.covariance[0]))
    assert found.contains(found.output).all()


def test_prompt_uncertainty_beside_the_exact_error():
    """Mean over 400 prompts; 5 standard errors (a false alarm below 1e-6) and the bias of the
    estimate, which falls short by 2 to 3 per cent here.
    """
    mu = lp.Gaussian([0.0, 1.0], [[1.0, 0.4], [0.4, 0.5]])
    head, z = lp.Head(np.eye(2), np.eye(2)), np.array([0.5, 0.0])
    rng, L = np.random.default_rng(4), 200
    draws = rng.multivariate_normal(mu.mean(), mu.cov(), size=(400, L))
    bars = _bars(draws, z)
    exact = lp.output_error(head, mu, z, L)
    for estimate, bias in (
        (bars.squared_error, 0.05),
        (jnp.sum(bars.half_difference**2, axis=-1), 0.03),
    ):
        error = np.std(estimate) / np.sqrt(len(estimate))
        assert abs(np.mean(estimate) - exact) < 5 * error + bias * exact
        assert error < 0.1 * exact


def test_prompt_uncertainty_of_one_query_and_of_a_batch():
    prompt = lp.Empirical(TOKENS)
    batch = lp.prompt_uncertainty(HEAD, prompt, Z.reshape(2, 2, 3))
    assert batch.output.shape == (2, 2, 2)
    assert batch.covariance.shape == (2, 2, 2, 2)
    assert batch.reading.shape == batch.contains(np.zeros(2)).shape == (2, 2)
    one = lp.prompt_uncertainty(HEAD, prompt, Z[3])
    for alone, among in zip(jax.tree.leaves(one), jax.tree.leaves(batch), strict=True):
        among = among[1, 1] if among.ndim >= 2 else among
        assert_allclose(alone, among, rtol=1e-12)
    assert lp.prompt_uncertainty(HEAD, prompt, Z[:0]).output.shape == (0, 2)


def test_prompt_uncertainty_in_blocks_of_queries(monkeypatch):
    prompt = lp.Empirical(TOKENS)
    whole = lp.prompt_uncertainty(HEAD, prompt, Z)
    monkeypatch.setattr("largeprompt.prompts.uncertainty._NUMBERS", 3 * 60 * 2)
    for one, other in zip(
        jax.tree.leaves(whole), jax.tree.leaves(lp.prompt_uncertainty(HEAD, prompt, Z)), strict=True
    ):
        assert_allclose(one, other, rtol=1e-12)


def test_prompt_uncertainty_under_jit_and_vmap():
    def call(tokens, weights, z):
        return lp.prompt_uncertainty(HEAD, lp.Empirical(tokens, weights), z)

    weights = jnp.asarray(np.random.default_rng(0).uniform(0.1, 2.0, 60))
    known = call(TOKENS, weights, Z)
    jitted = jax.jit(call)(TOKENS, weights, Z)
    mapped = jax.jit(jax.vmap(call, in_axes=(None, None, 0)))(TOKENS, weights, Z)
    for result in (jitted, mapped):
        for one, other in zip(_fields(known), _fields(result), strict=True):
            assert_allclose(one, other, rtol=1e-12, atol=1e-14)
        assert_allclose(result.tail_index, known.tail_index, rtol=1e-9)
        assert np.all(result.radius == known.radius)


def test_prompt_uncertainty_has_derivatives():
    """First and second derivative in the scale of the scores, against differences."""

    @jax.jit
    def derivatives(scale):
        def squared_error(scale):
            head = lp.Head(U=scale * HEAD.U, V=HEAD.V)
            return lp.prompt_uncertainty(head, lp.Empirical(TOKENS), Z[0]).squared_error

        first = jax.grad(squared_error)
        return squared_error(scale), first(scale), jax.grad(first)(scale)

    before, at, after = (derivatives(1 + step) for step in (-1e-5, 0.0, 1e-5))
    for order in (0, 1):
        assert_allclose(at[order + 1], (after[order] - before[order]) / 2e-5, rtol=1e-6)


def test_prompt_uncertainty_of_equal_scores_is_the_error_of_a_mean():
    head = lp.Head(U=np.zeros((3, 3)), V=np.eye(3))
    found = lp.prompt_uncertainty(head, lp.Empirical(TOKENS), Z[0])
    assert_allclose(found.covariance, np.cov(TOKENS.T, bias=True) / 60, rtol=1e-12)
    assert_allclose(found.effective_tokens, 60.0, rtol=1e-12)
    assert found.weight_tail_index == -np.inf
    assert np.isfinite(found.term_tail_index)


def test_prompt_uncertainty_of_scores_that_are_equal_up_to_rounding():
    """Tokens a_i (1, 2, 3)/10 at the tilt (1, 1, -1): their scores vanish but for rounding."""
    tokens = np.outer(1e4 * np.random.default_rng(1).standard_normal(100), [0.1, 0.2, 0.3])
    head = lp.Head(U=np.eye(3), V=np.eye(3))
    found = lp.prompt_uncertainty(head, lp.Empirical(tokens), [1.0, 1.0, -1.0])
    assert found.weight_tail_index == -np.inf


def test_prompt_uncertainty_in_different_units():
    """A coordinate in other units changes neither the degrees of freedom nor the region."""
    units = np.array([1.0, 1e-9])
    head = lp.Head(U=HEAD.U, V=units[:, None] * HEAD.V)
    found = lp.prompt_uncertainty(head, lp.Empirical(TOKENS), Z[0])
    expected = lp.prompt_uncertainty(HEAD, lp.Empirical(TOKENS), Z[0])
    assert found.radius == expected.radius
    edge = np.linalg.cholesky(expected.shape_matrix) @ np.array([0.6, -0.8])
    assert found.contains(units * (expected.output + 0.999 * edge))
    assert not found.contains(units * (expected.output + 1.001 * edge))


def test_prompt_uncertainty_of_equal_tokens_is_zero():
    found = lp.prompt_uncertainty(HEAD, lp.Empirical(np.full((50, 3), 0.1)), Z[0])
    assert not np.any(found.covariance)
    assert not np.any(found.half_difference)
    assert found.radius == 0
    assert found.contains(found.output)
    assert not found.contains(found.output + 1e-3)
    assert found.reading == "the error bar holds"


def test_prompt_uncertainty_of_values_on_a_line():
    """One degree of freedom; a point off the line is outside."""
    head = lp.Head(U=HEAD.U, V=np.outer([1.0, 2.0], [0.3, -0.5, 0.7]))
    found = lp.prompt_uncertainty(head, lp.Empirical(TOKENS), Z[0])
    assert found.radius == pytest.approx(1.959963984540054)
    step = found.standard_error  # along the line
    off = np.array([1e-3, -1e-3])
    assert found.contains(found.output + 1.95 * step)
    assert not found.contains(found.output + 1.97 * step)
    assert not found.contains(found.output + off)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_prompt_uncertainty_region_and_its_matrix(level):
    found = lp.prompt_uncertainty(HEAD, lp.Empirical(TOKENS), Z[0], level=level)
    assert found.radius**2 == pytest.approx(-2 * np.log(1 - level))  # two degrees of freedom
    assert_allclose(found.shape_matrix, found.radius**2 * found.covariance)
    edge = np.linalg.cholesky(found.shape_matrix) @ np.array([0.6, -0.8])
    assert found.contains(found.output + 0.999 * edge)
    assert not found.contains(found.output + 1.001 * edge)
    assert_allclose(found.standard_error**2, np.diag(found.covariance))
    assert found.squared_error == pytest.approx(np.trace(found.covariance))


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_prompt_uncertainty_of_huge_and_tiny_tokens(scale):
    head = lp.Head(U=HEAD.U / scale, V=HEAD.V)
    expected = lp.prompt_uncertainty(HEAD, lp.Empirical(TOKENS), Z)
    found = lp.prompt_uncertainty(head, lp.Empirical(scale * TOKENS), Z)
    assert_allclose(found.standard_error, scale * expected.standard_error, rtol=1e-10)
    assert_allclose(found.tail_index, expected.tail_index, rtol=1e-9)


def test_prompt_uncertainty_does_not_depend_on_an_offset_of_the_tokens():
    found = lp.prompt_uncertainty(HEAD, lp.Empirical(TOKENS + 1e6), Z)
    expected = lp.prompt_uncertainty(HEAD, lp.Empirical(TOKENS), Z)
    assert_allclose(found.covariance, expected.covariance, rtol=1e-8, atol=1e-12)


def test_prompt_uncertainty_of_one_dominant_token():
    found = lp.prompt_uncertainty(HEAD, lp.Empirical(100 * TOKENS), Z[0])
    assert found.effective_tokens == pytest.approx(1.0)
    assert found.reading == "the prompt is too short to know"


def test_prompt_uncertainty_of_several_heads():
    """Sums over heads in NumPy; the influence of a token against the slope in its weight."""
    found = lp.prompt_uncertainty(HEADS, lp.Empirical(TOKENS), Z[0])
    parts, moved = [], np.zeros((60, 2))
    for head in HEADS.heads:
        scores = TOKENS @ np.asarray(head.U) @ Z[0]
        p = np.exp(scores - scores.max())
        p /= p.sum()
        values = TOKENS @ np.asarray(head.V).T
        parts.append((p, p @ values))
        moved = moved + p[:, None] * (values - p @ values)
    assert_allclose(found.output, sum(output for _, output in parts), rtol=1e-10)
    assert_allclose(found.covariance, moved.T @ moved, rtol=1e-10)
    assert_allclose(found.effective_tokens, min(1 / (p @ p) for p, _ in parts), rtol=1e-10)
    # the derivative of the output in the weight of token i is its influence
    step, i = 1e-6, 11
    weights = np.ones(60)
    weights[i] += step
    ahead = lp.attend(HEADS, lp.Empirical(TOKENS, weights), Z[0])
    assert_allclose((ahead - found.output) / step, moved[i], rtol=1e-4, atol=1e-8)
    half = lp.attend(HEADS, lp.Empirical(TOKENS[:30]), Z[0]) - found.output
    assert_allclose(found.half_difference, half, rtol=1e-8, atol=1e-12)
    each = [lp.prompt_uncertainty(head, lp.Empirical(TOKENS), Z[0]) for head in HEADS.heads]
    assert found.tail_index == max(float(one.tail_index) for one in each)


def test_prompt_uncertainty_of_heads_that_cancel():
    """(U, V) and (U, -V) add up to nothing; equal halves to the whole head."""
    silent = lp.MultiHead([HEAD, lp.Head(U=HEAD.U, V=-HEAD.V)])
    found = lp.prompt_uncertainty(silent, lp.Empirical(TOKENS), Z)
    assert_allclose(found.covariance, 0.0, atol=1e-28)
    halves = lp.MultiHead([lp.Head(U=HEAD.U, V=HEAD.V / 2)] * 2)
    one, two = (lp.prompt_uncertainty(h, lp.Empirical(TOKENS), Z) for h in (HEAD, halves))
    assert_allclose(two.covariance, one.covariance, rtol=1e-12)
    assert two.radius == one.radius


def test_prompt_uncertainty_of_several_heads_covers():
    """An opposite pair on 200 Gaussian prompts: 95% regions, five binomial deviations."""
    rng, eye = np.random.default_rng(3), np.eye(2)
    pair = lp.MultiHead([lp.Head(U=s * 0.5 * eye, V=s * eye) for s in (1, -1)])
    z = np.array([0.6, -0.8])
    inside = [
        bool(lp.prompt_uncertainty(pair, lp.Empirical(rng.normal(size=(200, 2))), z).contains(z))
        for _ in range(200)
    ]
    assert abs(np.mean(inside) - 0.94) < 5 * np.sqrt(0.95 * 0.05 / 200)
