# pyright: reportArgumentType=false
"""`MultiHead`: attention, averages and sampling against brute force, single heads and limits."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import largeprompt as lp
from largeprompt._arrays import to_numpy
from largeprompt._linalg import triangular_root
from largeprompt.participation import pair_table, table_error
from largeprompt.prompts.gaussian_rule import Form, fitted_rule, gaussian_rule

from ..differences import assert_slopes
from ..oracles.many_heads import prompts, softmax_outputs

RNG = np.random.default_rng(4)
ROOT = 0.7 * RNG.normal(size=(3, 2))  # a singular covariance
MEAN = RNG.normal(size=3)
MU = lp.Gaussian(MEAN, ROOT @ ROOT.T)
ONE, TWO = (lp.Head(U=0.6 * RNG.normal(size=(3, 3)), V=RNG.normal(size=(2, 3))) for _ in range(2))
OPPOSITE = lp.Head(U=-ONE.U, V=-ONE.V)
HEADS = lp.MultiHead([ONE, TWO, OPPOSITE])
ARRAYS = [(np.asarray(head.U), np.asarray(head.V)) for head in HEADS.heads]
Z = RNG.normal(size=3)
KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def outputs() -> np.ndarray:
    return softmax_outputs(prompts(MEAN, ROOT, 7, 60_000, 0), ARRAYS, Z)


def test_attend_adds_the_heads():
    prompt = RNG.normal(size=(9, 3))
    for measure in (MU, lp.Empirical(prompt), lp.Uniform(3)):
        parts = [lp.attend(head, measure, Z) for head in HEADS.heads]
        np.testing.assert_allclose(lp.attend(HEADS, measure, Z), sum(parts), rtol=1e-12)
        parts = [lp.attend_linear(head, measure, Z) for head in HEADS.heads]
        np.testing.assert_allclose(lp.attend_linear(HEADS, measure, Z), sum(parts), rtol=1e-12)
    expected = softmax_outputs(prompt, ARRAYS, Z)
    np.testing.assert_allclose(lp.attend(HEADS, lp.Empirical(prompt), Z), expected, rtol=1e-12)


def test_attend_jacobians_have_an_axis_of_heads():
    found = lp.attend_jacobians(HEADS, MU, np.stack([Z, -Z]))
    for i, head in enumerate(HEADS.heads):
        one = lp.attend_jacobians(head, MU, np.stack([Z, -Z]))
        np.testing.assert_allclose(found.U[:, i], one.U)
        np.testing.assert_allclose(found.V[:, i], one.V)


def test_layer_takes_a_multi_head():
    heads = [lp.Head(U=s * np.eye(2), V=np.eye(2) / 3) for s in (1, 2)]
    mu = lp.Gaussian(np.ones(2), np.eye(2))
    both, each = lp.Layer(lp.MultiHead(heads))(mu), lp.Layer(heads)(mu)
    np.testing.assert_allclose(both.cov(), each.cov())
    np.testing.assert_allclose(both.mean(), each.mean())


def test_multi_head_averages_by_simulation(outputs):
    """Eight comparisons at 4.5 standard errors: a false alarm in fewer than 1 of 15,000 seeds."""
    limit = np.asarray(lp.attend(HEADS, MU, Z))
    linear = np.asarray(lp.attend_linear(HEADS, MU, Z))
    statistics = [
        (lp.Output(), outputs),
        (lp.SecondMoment(), outputs[:, :, None] * outputs[:, None, :]),
        (lp.OutputError(), ((outputs - limit) ** 2).sum(1)),
        (lp.OutputError(to="linear"), ((outputs - linear) ** 2).sum(1)),
    ]
    for quantity, values in statistics:
        found = lp.expect(quantity, HEADS, MU, Z, 7)
        deviation = values.std(0) / np.sqrt(len(values))
        assert np.all(np.abs(found.value - values.mean(0)) < 4.5 * deviation), quantity.name
        assert np.all(np.asarray(found.error) < 1e-9)


def test_sample_outputs_of_a_multi_head(outputs):
    """Means and second moments of both samples within 5 joint standard errors."""
    drawn = np.asarray(lp.sample_outputs(KEY, HEADS, MU, Z, 7, 20_000))
    for function in (lambda x: x, lambda x: x[:, :, None] * x[:, None, :], lambda x: x**4):
        first, second = function(drawn), function(outputs)
        error = np.sqrt(first.var(0) / len(first) + second.var(0) / len(second))
        assert np.all(np.abs(first.mean(0) - second.mean(0)) < 5 * error)


@pytest.mark.slow
def test_sample_outputs_of_a_multi_head_do_not_depend_on_their_number():
    few, many = (lp.sample_outputs(KEY, HEADS, MU, Z, 5000, n) for n in (2, 3))
    np.testing.assert_allclose(few, many[:2], rtol=1e-12)


def test_gradient_error_adds_the_heads():
    for matrix in ("U", "V"):
        quantity = lp.GradientError(matrix)
        parts = [lp.expect(quantity, head, MU, Z, 7).value for head in HEADS.heads]
        assert lp.expect(quantity, HEADS, MU, Z, 7).value == pytest.approx(float(sum(parts)))
        sampled = lp.expect(quantity, HEADS, MU, Z, 7, lp.MonteCarlo(KEY, max_replicates=1024))
        assert abs(sampled.value - sum(parts)) < 5 * sampled.error


def test_multi_head_of_one_head_is_that_head():
    one = lp.MultiHead([ONE])
    for L in (1, 5, 1e6, np.inf):
        expected = lp.output_error(ONE, MU, Z, L)
        assert lp.output_error(one, MU, Z, L) == pytest.approx(float(expected), rel=1e-12)


def test_multi_head_limits():
    """L = 1: every head reads the one token. L = infinity: no error. Zero heads change nothing."""
    V = np.sum([V for _, V in ARRAYS], axis=0)
    one = lp.finite_second_moment(HEADS, MU, Z, 1) - np.outer(V @ MEAN, V @ MEAN)
    np.testing.assert_allclose(one, V @ ROOT @ ROOT.T @ V.T, rtol=1e-9, atol=1e-12)
    assert lp.output_error(HEADS, MU, Z, np.inf) == 0
    silent = lp.MultiHead([ONE, lp.Head(U=np.zeros((3, 3)), V=np.zeros((2, 3)))])
    expected = float(lp.output_error(ONE, MU, Z, 9))
    assert lp.output_error(silent, MU, Z, 9) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_multi_head_over_laws_of_queries():
    """Gaussian queries against 100 sampled ones (5 standard errors), atoms against their sum."""
    pair = lp.MultiHead([lp.Head(U=s * ONE.U / 8, V=s * ONE.V) for s in (1, -1)])
    nu = lp.Gaussian(np.zeros(3), np.eye(3))
    z = np.asarray(nu.sample(KEY, 100).points)
    found = lp.expect(lp.OutputError(), pair, MU, nu, 100)
    each = np.asarray(lp.output_error(pair, MU, z, 100))
    assert abs(found.value - each.mean()) < 5 * each.std() / np.sqrt(len(z))
    assert found.error < 1e-4 * found.value
    curve = lp.concentration_curve(HEADS, MU, lp.Empirical(z[:2]), [4.0])
    each = [float(lp.output_error(HEADS, MU, query, 4)) for query in z[:2]]
    assert float(curve.value[0]) == pytest.approx(np.mean(each), rel=1e-9)


@pytest.mark.parametrize(
    ("L", "largest", "parallel"),
    [(10.0, 1.0, True), (1e5, 4.0, True), (1e5, 0.5, False), (10.0, 1.0, False)],
)
def test_pair_table_against_pair_moments(L, largest, parallel):
    """Deviations and correlations between the nodes, and the theorem of Price.

    The error of a table is measured at other pairs.
    """
    rng = np.random.default_rng(0)
    sigma_a, sigma_b = largest * rng.uniform(size=(2, 12))
    rho = rng.choice([-1.0, 1.0], 12) if parallel else rng.uniform(-1, 1, 12)
    table = pair_table(L, largest, parallel)
    c, alpha, beta, delta, both = table.values(sigma_a, sigma_b, rho)
    m = to_numpy(lp.pair_moments(sigma_a, sigma_b, rho, L))
    expected = {
        "c": (c, m.c11),
        "alpha": (alpha, 2 * (m.a2c11 - m.c21)),
        "beta": (beta, 2 * (m.b2c11 - m.c12)),
        "delta": (delta, m.c11 - m.c21 - m.c12 + m.c11_squared),
        "both": (both, m.a2b2),
    }
    errors = table_error(L, largest, parallel)(sigma_a, sigma_b)
    for (name, (found, value)), error in zip(expected.items(), errors, strict=True):
        assert np.all(np.abs(found - value) <= error), name
        assert np.all(error < 1e-5 * np.max(np.abs(m.c11))), name
    slopes = table.slopes(sigma_a, sigma_b, rho)
    if not parallel:
        np.testing.assert_allclose(slopes.ab[0], delta, rtol=1e-4)
        np.testing.assert_allclose(2 * slopes.a[0], alpha, atol=1e-5 * np.max(c))


@pytest.mark.parametrize(("d", "level"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_gaussian_rule_of_exponentials(d, level):
    """E e^{xi'M xi} = det(I - 2M)^{-1/2}, in all three symmetries."""
    rng = np.random.default_rng(d)
    M = rng.normal(size=(d, d))
    M = 0.1 * np.eye(d) + 0.02 * (M + M.T) / 2
    for symmetry in ("none", "even", "coordinates"):
        form = np.diag(np.diag(M)) if symmetry == "coordinates" else M
        points, weights = gaussian_rule(d, level, symmetry)
        found = weights @ np.exp(np.sum((points @ form) * points, axis=1))
        exact = np.linalg.det(np.eye(d) - 2 * form) ** -0.5
        assert found == pytest.approx(exact, rel=1e-6)
        assert weights @ points[:, 0] ** 2 == pytest.approx(1, rel=1e-7)
    points, weights = gaussian_rule(d, level, "none")
    assert weights @ np.exp(0.1 * points[:, 0]) == pytest.approx(np.exp(0.005), rel=1e-9)


def _along(scale: float, rest: float, d: int) -> np.ndarray:
    """A diagonal matrix with one strong axis."""
    return np.diag([scale, *[rest] * (d - 1)])


@pytest.mark.parametrize("symmetry", ["none", "even", "coordinates"])
@pytest.mark.parametrize("d", [4, 13, 16, 24])
def test_fitted_rule_of_moments_along_a_strong_axis(d, symmetry):
    """E x^6 = 15 and E x^8 = 105 for the strong axis, and the moments of the other axes."""
    axes = np.eye(d)
    if symmetry != "coordinates":
        axes = np.linalg.qr(np.random.default_rng(d).normal(size=(d, d)))[0]
    form = Form(axes @ _along(0.25, 1e-4, d) @ axes.T, np.zeros(d), 0.0)
    rule = fitted_rule([form], 2, symmetry, np.log(100.0))
    assert rule.gap < 1e-4
    x = rule.points @ axes
    for k, moment in ((2, 1), (4, 3), (6, 15), (8, 105)):
        assert rule.weights @ x[:, 0] ** k == pytest.approx(moment, rel=1e-6), k
    assert rule.weights @ x[:, 1] ** 2 == pytest.approx(1, rel=1e-8)
    exact = np.prod(1 - 2 * np.array([0.1, *[4e-5] * (d - 1)])) ** -0.5
    assert rule.weights @ np.exp(0.4 * form.at(rule.points)) == pytest.approx(exact, rel=1e-5)


def test_fitted_rule_gap_covers_forms_off_the_origin():
    """E e^{tS} of S = |F xi + f|^2, by Gauss-Hermite quadrature in two dimensions."""
    factor, offset = np.array([[0.4, 0.1], [0.0, 0.3]]), np.array([0.5, -0.2])
    form = Form.of_square(factor, offset)
    x, w = np.polynomial.hermite_e.hermegauss(60)
    points = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
    weights = np.outer(w, w).ravel() / (2 * np.pi)
    S = ((points @ factor.T + offset) ** 2).sum(1)
    np.testing.assert_allclose(form.at(points), S, rtol=1e-12)
    for t in (-1.0, 0.3, 0.7):
        expected = weights @ np.exp(t * S), weights @ (S * np.exp(t * S))
        assert form.tilted(t) == pytest.approx(expected, rel=1e-10)
    assert fitted_rule([form], 2, "none", np.log(100.0)).gap < 1e-4


@pytest.mark.parametrize(
    ("d", "L"),
    [(16, 100.0)]
    + [pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 9.0), (13, 1e9), (40, 1e3))],
)
def test_expect_of_equal_heads_over_gaussian_queries_is_that_of_one(d, L):
    """One head is exact by another route, in every dimension."""
    V, nu = np.eye(1, d), lp.Gaussian(np.zeros(d), np.eye(d))
    U = _along(0.3, 0.01, d)
    found = lp.expect(lp.OutputError(), lp.MultiHead([lp.Head(U=U, V=V / 2)] * 2), nu, nu, L)
    one = lp.expect(lp.OutputError(), lp.Head(U=U, V=V), nu, nu, L)
    assert abs(float(found.value - one.value)) <= float(found.error)
    assert float(found.error) < 1e-4 * float(found.value)


@pytest.mark.parametrize("lengths", [1e9, [1e9, 1e12]])
def test_expect_of_several_heads_over_queries_refuses_length_by_length(lengths):
    d = 24
    heads = [lp.Head(U=0.8 * np.eye(d), V=np.eye(1, d)), lp.Head(U=np.eye(d), V=np.eye(1, d))]
    nu = lp.Gaussian(np.zeros(d), np.diag(np.linspace(0.2, 1.0, d)))
    with pytest.raises(ValueError, match=r"relative error of 0\.001; received .* at L = 1e\+09"):
        lp.expect(lp.OutputError(), lp.MultiHead(heads), nu, nu, lengths)


@pytest.mark.slow
def test_multi_head_under_jit_and_grad():
    def total(z):
        return lp.output_error(lp.MultiHead([ONE, TWO]), MU, z, 10.0)

    value, slope = jax.jit(jax.value_and_grad(total))(jnp.asarray(Z))
    np.testing.assert_allclose(value, total(Z), rtol=1e-11)
    assert_slopes(total, [Z], [slope], step=1e-4, rtol=1e-5)


def test_prefix_difference_of_equal_heads_is_that_of_one():
    """(U, V/2) twice: cross moments of two heads against the moments of one."""
    halves = lp.MultiHead([lp.Head(U=ONE.U, V=ONE.V / 2)] * 2)
    firsts, L = np.array([1.0, 3.0, 50.0]), np.array([4.0, 1e6, np.inf])
    expected = lp.prefix_difference(ONE, MU, Z, firsts, L)
    np.testing.assert_allclose(lp.prefix_difference(halves, MU, Z, firsts, L), expected, rtol=1e-9)


@pytest.mark.slow
def test_sample_gradients_of_a_multi_head_have_the_law_of_brute_force():
    """Means, second moments across heads, and fourth moments, within 5 joint standard errors."""
    y = np.array([0.7, -1.1])
    tokens = prompts(MEAN, ROOT, 7, 40_000, 6)
    rows = []
    for U, V in ARRAYS:
        scores = tokens @ (U @ Z)
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        values = tokens @ (V.T @ y)
        values = values - (p * values).sum(1, keepdims=True)
        rows += [np.einsum("nl,nld->nd", p * values, tokens), np.einsum("nl,nld->nd", p, tokens)]
    expected = np.concatenate(rows, axis=1)
    drawn = lp.sample_gradients(KEY, HEADS, MU, Z, 7, 20_000, cotangent=y)
    assert drawn.U.shape == (20_000, 3, 3, 3)
    assert drawn.V.shape == (20_000, 3, 2, 3)
    # every gradient is an outer product with the query, or with the cotangent
    moved, means = np.asarray(drawn.U) @ Z / (Z @ Z), y @ np.asarray(drawn.V) / (y @ y)
    np.testing.assert_allclose(drawn.U, moved[..., None] * Z, atol=1e-9)
    np.testing.assert_allclose(drawn.V, y[:, None] * means[:, :, None, :], atol=1e-9)
    found = np.stack([moved, means], axis=2).reshape(20_000, -1)
    for function in (lambda x: x, lambda x: x[:, :, None] * x[:, None, :], lambda x: x**4):
        first, second = function(found), function(expected)
        error = np.sqrt(first.var(0) / len(first) + second.var(0) / len(second))
        assert np.all(np.abs(first.mean(0) - second.mean(0)) < 5 * error + 1e-9)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_triangular_root_of_singular_matrices(rank):
    rows = (
        np.random.default_rng(rank).normal(size=(5, rank)) * np.array([1, 1e3, 1, 0, 1e-3])[:, None]
    )
    root = np.asarray(triangular_root(jnp.asarray(rows @ rows.T)))
    scale = np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(
        root @ root.T, rows @ rows.T, atol=1e-13 * np.outer(scale, scale).max()
    )
    derivative = jax.jacfwd(lambda x: triangular_root(x * jnp.eye(3)))(2.0)
    np.testing.assert_allclose(derivative, np.eye(3) / 2 / np.sqrt(2), rtol=1e-12)


def test_sample_gradients_of_a_multi_head_call_no_eigh_for_each_prompt():
    """A batch of LAPACK calls may wait for the threads of the program that makes them."""

    def calls(jaxpr, looped: bool) -> list[bool]:
        found = []
        for equation in jaxpr.eqns:
            if equation.primitive.name == "eigh":
                found.append(looped or equation.invars[0].aval.ndim > 2)
            loops = looped or equation.primitive.name in ("scan", "while")
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                found += calls(inner, loops)
        return found

    def drawn(z, function, *more):
        return function(KEY, HEADS, MU, z, 7, 20_000, *more)

    for function, more in ((lp.sample_outputs, ()), (lp.sample_gradients, (np.ones(2),))):
        program = jax.make_jaxpr(lambda z, f=function, m=more: drawn(z, f, *m))(Z)
        assert not any(calls(program.jaxpr, looped=False))


def test_sample_gradients_of_a_multi_head_of_many_tokens():
    """Blocks of tokens are merged: the mean tokens against E T_L of heads that read tokens."""
    drawn = lp.sample_gradients(KEY, HEADS, MU, Z, 9000, 16, cotangent=[1.0, 0.0])
    for h, head in enumerate(HEADS.heads):
        expected = lp.finite_mean(head.reading_tokens(), MU, Z, 9000)
        rows = np.asarray(drawn.V)[:, h, 0]
        assert np.all(np.abs(rows.mean(0) - expected) < 6 * rows.std(0) / 4 + 1e-9)


ATOMS = RNG.normal(size=(4, 3))
VOCABULARY = lp.Empirical(ATOMS, [1, 2, 3, 2])
MIXTURE = lp.Mixture(
    [0.5, 0.3, 0.2], [MU, lp.Gaussian(-MEAN, 0.3 * np.eye(3)), lp.Dirac([0.5, 0.1, -1.0])]
)
QUANTITIES = (lp.Output(), lp.SecondMoment(), lp.OutputError(), lp.OutputError(to="linear"))


def _statistics(outputs: np.ndarray, law) -> list[np.ndarray]:
    limits = [np.asarray(attend(HEADS, law, Z)) for attend in (lp.attend, lp.attend_linear)]
    errors = [((outputs - limit) ** 2).sum(-1) for limit in limits]
    return [outputs, outputs[..., :, None] * outputs[..., None, :], *errors]


@pytest.mark.parametrize("L", [1, 3])
def test_multi_head_averages_of_atoms_against_enumeration(L):
    """All 4^L prompts, to rounding."""
    places = np.stack(np.meshgrid(*[np.arange(4)] * L, indexing="ij"), axis=-1).reshape(-1, L)
    chances = (np.array([1, 2, 3, 2]) / 8)[places].prod(1)
    values = _statistics(softmax_outputs(ATOMS[places], ARRAYS, Z), VOCABULARY)
    for quantity, value in zip(QUANTITIES, values, strict=True):
        found = lp.expect(quantity, HEADS, VOCABULARY, Z, float(L))
        expected = np.tensordot(chances, value, 1)
        gap = np.abs(np.asarray(found.value) - expected)
        assert np.all(gap <= np.asarray(found.error) + 1e-14), quantity.name
        assert np.all(gap <= 1e-11 * np.max(np.abs(expected))), quantity.name


def test_two_queries_and_first_tokens_of_atoms_against_enumeration():
    """All 4^3 prompts, to rounding: one head and three, every length of the first tokens."""
    places = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    chances = (np.array([1, 2, 3, 2]) / 8)[places].prod(1)
    z2 = np.array([0.4, -1.0, 0.2])
    for head, arrays in ((ONE, ARRAYS[:1]), (HEADS, ARRAYS)):
        first, second = (softmax_outputs(ATOMS[places], arrays, z) for z in (Z, z2))
        centred = second - chances @ second
        expected = np.einsum("n,ni,nj->ij", chances, first, centred)
        found = lp.output_covariance(head, VOCABULARY, np.stack([Z, z2]), z2, 3)
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-11)
        own = np.einsum("n,ni,nj->ij", chances, second, centred)
        np.testing.assert_allclose(found[1], own, rtol=0, atol=1e-11)
        seen = lp.prefix_difference(head, VOCABULARY, Z, np.array([1.0, 2.0, 3.0]), 3)
        for count, value in enumerate(np.asarray(seen), start=1):
            gaps = first - softmax_outputs(ATOMS[places[:, :count]], arrays, Z)
            assert abs(float(value) - chances @ (gaps**2).sum(1)) < 1e-11


def test_two_queries_and_first_tokens_of_equal_components_are_those_of_the_gaussian():
    """The closed forms of pair moments and of nested ones, from one token to 1e9."""
    mu, z2 = lp.Mixture([1, 2], [MU, MU]), np.array([0.4, -1.0, 0.2])
    pair = lp.MultiHead([ONE, TWO])
    for head, L in ((ONE, [1.0, 5.0, 1e9, np.inf]), (pair, [30.0])):
        found, expected = (lp.output_covariance(head, law, Z, z2, L) for law in (mu, MU))
        scale = np.max(np.abs(expected), axis=(1, 2), keepdims=True)
        assert np.all(np.abs(found - expected) <= 1e-9 * scale)
    for head, firsts, L in (
        (ONE, [1.0, 2.5, 1e6, 30.0], [4.0, 5.0, 1e9, np.inf]),
        (pair, [7.0], [30.0]),
    ):
        found, expected = (lp.prefix_difference(head, law, Z, firsts, L) for law in (mu, MU))
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_multi_head_averages_of_a_mixture_by_simulation():
    """14 comparisons at 4.5 standard errors, with components of one, two and no dimensions."""
    rng, n, L = np.random.default_rng(8), 40_000, 6
    kind = rng.choice(3, size=(n, L, 1), p=[0.5, 0.3, 0.2])
    draws = [prompts(MEAN, ROOT, L, n, 9), prompts(-MEAN, np.sqrt(0.3) * np.eye(3), L, n, 10)]
    tokens = np.where(kind == 0, draws[0], np.where(kind == 1, draws[1], [0.5, 0.1, -1.0]))
    values = _statistics(softmax_outputs(tokens, ARRAYS, Z), MIXTURE)
    for quantity, value in zip(QUANTITIES, values, strict=True):
        found = lp.expect(quantity, HEADS, MIXTURE, Z, L)
        deviation = value.std(0) / np.sqrt(n)
        assert np.all(np.abs(found.value - value.mean(0)) < 4.5 * deviation), quantity.name
        assert np.all(np.asarray(found.error) < 1e-9)
    first, short = values[0], softmax_outputs(tokens[:, :4], ARRAYS, Z)
    second = softmax_outputs(tokens, ARRAYS, -Z)
    products = (first - first.mean(0))[:, :, None] * (second - second.mean(0))[:, None, :]
    squares = ((first - short) ** 2).sum(1)
    for found, drawn in (
        (lp.output_covariance(HEADS, MIXTURE, Z, -Z, L), products),
        (lp.prefix_difference(HEADS, MIXTURE, Z, 4, L), squares),
    ):
        assert np.all(np.abs(found - drawn.mean(0)) < 4.5 * drawn.std(0) / np.sqrt(n))


def test_output_error_of_a_multi_head_on_equal_components_is_that_of_the_gaussian():
    """The closed forms of pair moments, from one token to 1e9."""
    mu, L = lp.Mixture([1, 2], [MU, MU]), np.array([1.0, 5.0, 1e3, 1e9, np.inf])
    pair = lp.MultiHead([ONE, TWO])
    found, expected = (lp.expect(lp.OutputError(), pair, law, Z, L) for law in (mu, MU))
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-9)
    gap = np.abs(np.asarray(found.value) - np.asarray(expected.value))
    assert np.all(gap <= np.asarray(found.error) + np.asarray(expected.error))


def test_concentration_curve_of_a_multi_head_on_atoms():
    z = np.stack([Z, -0.5 * Z])
    curve = lp.concentration_curve(HEADS, VOCABULARY, lp.Empirical(z), [3.0, 1e4])
    each = lp.output_error(HEADS, VOCABULARY, z[:, None], [3.0, 1e4])
    np.testing.assert_allclose(curve.value, np.mean(each, 0), rtol=1e-12)


def test_upper_bound_of_a_multi_head_holds():
    """Minkowski: the root of the error is at most the sum of the roots of the bounds."""
    nu, L = lp.Empirical([Z, 0.3 * Z]), np.array([1.0, 4.0, 1e5])
    curve = lp.concentration_curve(HEADS, MU, nu, L)
    assert np.all(curve.value <= curve.upper_bound)
    one = lp.concentration_curve(ONE, MU, nu, L)
    twice = lp.concentration_curve(lp.MultiHead([ONE, ONE]), MU, nu, L)
    np.testing.assert_allclose(twice.upper_bound, 4 * one.upper_bound, rtol=1e-12)


def test_horizon_of_several_heads_is_that_of_the_steepest():
    mu = lp.Gaussian(np.zeros(3), np.eye(3))
    each = [lp.horizon(head, mu) for head in (ONE, TWO)]
    assert lp.horizon(lp.MultiHead([ONE, TWO]), mu) == max(each, key=lambda found: found.H)


@pytest.mark.slow
def test_growing_prompt_of_a_multi_head():
    """Distances of the tokens themselves; the scale from the covariance of long prompts."""
    lengths = np.array([3, 20, 4000])
    found = lp.growing_prompt(KEY, HEADS, MU, Z, lengths, prompts=2)
    limit = np.asarray(lp.attend(HEADS, MU, Z))
    key = jax.random.split(KEY, 2)[0]
    tokens = np.asarray(MU.sample(jax.random.fold_in(key, 0), 4096).points)
    expected = [
        np.linalg.norm(softmax_outputs(tokens[:length], ARRAYS, Z) - limit) for length in lengths
    ]
    np.testing.assert_allclose(found.distance[0], expected, rtol=1e-9)
    exact = lp.output_covariance(HEADS, MU, Z, Z, 1e9)
    assert found.scale**2 == pytest.approx(1e9 * np.linalg.norm(exact, 2), rel=1e-5)


@pytest.mark.parametrize("law", [MU, VOCABULARY, MIXTURE], ids=["Gaussian", "atoms", "mixture"])
def test_expect_of_equal_heads_is_that_of_one_at_every_length(law):
    """Equal heads read with V/3 and 2V/3; opposite ones cancel, and their error is not negative."""
    equal = lp.MultiHead(
        [lp.Head(U=ONE.U, V=share * np.asarray(ONE.V)) for share in (1 / 3, 2 / 3)]
    )
    silent = lp.MultiHead([ONE, lp.Head(U=ONE.U, V=-np.asarray(ONE.V))])
    for L in (2.0, 1e4, 1e9):
        for quantity in (lp.SecondMoment(), lp.OutputError()):
            found, one = (lp.expect(quantity, head, law, Z, L) for head in (equal, ONE))
            np.testing.assert_allclose(found.value, one.value, rtol=1e-9)
            assert np.all(np.asarray(found.error) < 1e-9 * np.max(np.abs(found.value)))
        nothing = lp.expect(lp.OutputError(), silent, law, Z, L)
        assert 0 <= float(nothing.value) <= float(nothing.error)


def test_output_error_of_a_multi_head_on_a_mixture_under_vmap_gives_advice_that_works():
    with pytest.raises(ValueError, match="call it outside of the transformation"):
        jax.vmap(lambda z: lp.output_error(HEADS, MIXTURE, z, 5.0))(jnp.stack([Z, -Z]))
    assert lp.output_error(HEADS, MIXTURE, np.stack([Z, -Z]), 5.0).shape == (2,)
