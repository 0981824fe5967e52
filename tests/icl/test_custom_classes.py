"""Custom tasks and parametrisations, those of the documents too, wherever they are accepted."""

import inspect
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

import largeprompt as lp
from largeprompt.icl import ExactRisk

from ..documented import classes_in

pytestmark = pytest.mark.slow
KEY = jax.random.key(1)
TASKS = {
    **classes_in("learning.md", lp.AbstractTask),
    **classes_in("extending.md", lp.AbstractTask),
}
Diagonal = classes_in("learning.md", lp.AbstractParams)["Diagonal"]
HEAD = lp.BlockParams([[0.5]], 0.8)
TASK = lp.LinearRegression(np.diag([1.0, 0.5]), noise_variance=0.1)


class Scaled(lp.AbstractTask):
    """Tokens (1, w) and target w: the risk of a block head (A, b) is (b - 1)^2 scale^2 / 6."""

    scale: float
    name: str = "scaled"
    dim: int = 2

    def sample_w(self, key):
        return self.scale * jax.random.uniform(key, (), minval=-1.0, maxval=1.0)

    def tokens(self, w):
        return lp.Empirical(jnp.stack([jnp.ones_like(w), w])[None])

    def sample_query(self, key, w):
        return jnp.array([1.0, 0.0]), w

    def exact_risk(self, length, attention, like):
        if attention == "linear":
            return None
        return ExactRisk(
            lambda params: (params.matrices()[1][-1] - 1) ** 2 * self.scale**2 / 6, 1e-12
        )


class Powers(lp.AbstractParams):
    """Not in block form: U = x (1, 1)(1, 0)', v = (y, 1); Python floats and a setting as fields."""

    x: float
    y: float
    dimension: int = 3

    def matrices(self):
        eye = jnp.eye(self.dimension, dtype=jnp.asarray(self.x).dtype)
        return self.x * jnp.outer(jnp.ones_like(eye[0]), eye[0]), eye[0] * self.y + eye[-1]


def _modules(cls: type = eqx.Module) -> set[type]:
    deep = {sub for child in cls.__subclasses__() for sub in {child, *_modules(child)}}
    return {sub for sub in deep if sub.__module__.startswith("largeprompt.icl")}


def test_modules_of_icl_are_abstract_or_final():
    for cls in _modules():
        assert inspect.isabstract(cls) == cls.__name__.startswith("Abstract"), cls
        assert inspect.isabstract(cls) or not cls.__subclasses__(), cls


@pytest.mark.parametrize("name", TASKS)
def test_custom_task_has_no_traced_setting(name):
    assert jax.tree.leaves(TASKS[name]()) == []
    assert len(jax.tree.leaves(Scaled(scale=0.5))) == 1


@pytest.mark.parametrize("name", TASKS)
def test_custom_task_through_jit_vmap_and_grad(name):
    task = TASKS[name]()

    def draw(task, key):
        return task.draw(key, 4.0)

    one = jax.jit(draw)(task, KEY)
    many = jax.jit(jax.vmap(draw, (None, 0)))(task, KEY[None])
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(a, b[0], rtol=1e-14)
    objective = task.objective(4, like=HEAD, method=lp.MonteCarlo(KEY, batch=32))
    slope = jax.jit(jax.grad(objective))(HEAD)
    h = 1e-6
    ends = [objective(lp.BlockParams(HEAD.A, HEAD.b + step)) for step in (-h, h)]
    assert float(slope.b) == pytest.approx(float(ends[1] - ends[0]) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_custom_task_risk_by_every_method(name):
    """On a mesh the same numbers; methods that do not serve say which do."""
    task = TASKS[name]()
    found = task.risk(HEAD, 4, method=lp.MonteCarlo(KEY, relative_error=0.05))
    assert 0 < found.error <= 0.05 * found.value
    mesh = Mesh(np.array(jax.devices()[:1]), ("devices",))
    sharded = task.risk(HEAD, 4, method=lp.MonteCarlo(KEY, mesh=mesh, relative_error=0.05))
    np.testing.assert_allclose(sharded.value, found.value, rtol=1e-12)
    for method in (None, lp.Exact(), lp.QuasiMonteCarlo(KEY)):
        with pytest.raises(ValueError, match=r"pass method=lp.MonteCarlo\(key\)"):
            task.risk(HEAD, 4, method=method)


@pytest.mark.parametrize("name", TASKS)
def test_custom_task_in_gradient_flow_and_descend(name):
    task = TASKS[name]()
    run = lp.gradient_flow(task, HEAD, 4, 0.5, saveat=[0.5], method=lp.MonteCarlo(KEY, batch=32))
    assert run.training_loss[-1] < float(run.objective(HEAD))
    assert run.risk_error[-1] > 0
    mesh = Mesh(np.array(jax.devices()[:1]), ("devices",))
    starts = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), HEAD)
    keys, optimiser = jax.random.split(KEY), optax.sgd(0.05)
    options = {"attention": ("softmax", "softmax"), "record_every": 20}
    runs = [
        lp.descend_many(keys, task, starts, [4, 4], 20, 8, optimiser, mesh=m, **options)
        for m in (None, mesh)
    ]
    assert all(run.finished for run in runs[0])
    np.testing.assert_allclose(runs[0][1].final.b, runs[1][1].final.b, rtol=1e-6)
    with pytest.raises(ValueError, match="gradients of sampled prompts"):
        lp.descend(KEY, task, HEAD, 4, 2, method=lp.Exact())


def test_custom_task_with_an_exact_risk():
    task = Scaled(scale=0.5)
    exact = task.risk(HEAD, 7)
    assert float(exact.value) == pytest.approx(0.2**2 * 0.25 / 6, rel=1e-12)
    found = task.risk(HEAD, 7, method=lp.MonteCarlo(KEY))
    assert abs(found.value - exact.value) <= 5 * found.error
    run = lp.gradient_flow(task, HEAD, 7, 2.0)
    assert run.risk[-1] < run.risk[0]
    assert np.all(run.risk_error == 0)
    with pytest.raises(ValueError, match="no risk in closed form"):
        task.risk(HEAD, 7, "linear")


def test_custom_params_through_jit_vmap_and_grad():
    params = Powers(0.3, 0.2)
    general = params.general()

    def risk(params):
        return TASK.risk(params, 8, "linear").value

    value, slope = jax.jit(jax.value_and_grad(risk))(params)
    assert float(value) == pytest.approx(float(risk(general)), rel=1e-13)
    several = jax.jit(jax.vmap(risk))(jax.tree.map(lambda leaf: jnp.full(3, leaf), params))
    np.testing.assert_allclose(several, 3 * [value], rtol=1e-13)
    full = jax.jit(jax.grad(risk))(general)
    assert float(slope.x) == pytest.approx(float(jnp.sum(full.U[:, 0])), rel=1e-10)
    assert float(slope.y) == pytest.approx(float(full.v[0]), rel=1e-10)


def test_custom_params_have_the_risk_of_their_matrices():
    params = Powers(0.3, 0.2)
    for method in (None, lp.QuasiMonteCarlo(KEY), lp.MonteCarlo(KEY, relative_error=0.1)):
        found, expected = (TASK.risk(p, 8, method=method) for p in (params, params.general()))
        assert float(found.value) == pytest.approx(float(expected.value), rel=1e-5)
    diagonal = Diagonal(jnp.array([0.4, 0.6]), jnp.array(0.9))
    block = lp.BlockParams(np.diag([0.4, 0.6]), 0.9)
    np.testing.assert_allclose(TASK.risk(diagonal, 8).value, TASK.risk(block, 8).value, rtol=1e-14)


def test_custom_params_in_gradient_flow():
    """A diagonal start stays diagonal for a diagonal covariance: the flow of the block form."""
    start = Diagonal(jnp.array([0.3, 0.3]), jnp.array(0.3))
    runs = [
        lp.gradient_flow(TASK, params, 50, 5.0, saveat=[5.0])
        for params in (start, start.as_block())
    ]
    np.testing.assert_allclose(runs[0].final.a, np.diag(runs[1].final.A), rtol=1e-6)
    assert not math.isfinite(runs[0].valley_entered)  # it does not say where the valley is
    run = lp.gradient_flow(TASK, Powers(0.3, 0.2), 10, 0.5, saveat=[0.5])
    assert run.training_loss[-1] < float(run.objective(Powers(0.3, 0.2)))


@pytest.mark.parametrize("method", [None, lp.Exact(), lp.MonteCarlo(whole_tokens=True)])
def test_custom_params_in_descend(method):
    """One step along the gradient of a block head, projected on the diagonal."""
    start = Diagonal(jnp.array([0.3, 0.4]), jnp.array(0.3))
    found, block = (
        lp.descend(KEY, TASK, params, 9, 1, 4, optax.sgd(0.1), method=method)
        for params in (start, start.as_block())
    )
    np.testing.assert_allclose(found.final.a, np.diag(block.final.A), rtol=1e-5)
    np.testing.assert_allclose(found.final.b, block.final.b, rtol=1e-5)
    np.testing.assert_allclose(found.risk[0], block.risk[0], rtol=1e-12)
    run = lp.descend(KEY, TASK, Powers(0.3, 0.2), 9, 20, 4, method=method, record_every=20)
    assert run.finished
