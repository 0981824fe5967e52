"""Public functions called with two sets of values compile once."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import numpy as np
import optax
import pytest

import largeprompt as lp

pytestmark = pytest.mark.slow
_EVENT = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The programs compiled, or looked up on disk, while it is open."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **details: str | int) -> None:
        del duration_secs
        if event == _EVENT:
            seen.append(str(details.get("fun_name", "?")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def _case(seed: int) -> tuple[np.random.Generator, lp.Head, lp.Gaussian, np.ndarray]:
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(2, 2))
    head = lp.Head(U=0.3 * rng.normal(size=(2, 2)), V=rng.normal(size=(2, 2)))
    return rng, head, lp.Gaussian(rng.normal(size=2), factor @ factor.T), rng.normal(size=2)


def _attend(seed):
    rng, head, _, z = _case(seed)
    return lp.attend(head, lp.Empirical(rng.normal(size=(50, 2))), z)


def _jacobians(seed):
    rng, head, _, z = _case(seed)
    return lp.attend_jacobians(
        head, lp.Empirical(rng.normal(size=(50, 2)), rng.uniform(size=50)), z
    )


def _infinite(seed):
    _, head, mu, z = _case(seed)
    return lp.attend(head, mu, z), lp.attend_linear(head, mu, z)


def _exact_errors(seed):
    rng, head, mu, z = _case(seed)
    L = rng.uniform(2, 1e6)
    return (
        lp.output_error(head, mu, z, L),
        lp.gradient_error(head, mu, z, L),
        lp.finite_mean(head, mu, z, L),
    )


def _participation(seed):
    rng = np.random.default_rng(seed)
    return lp.participation(rng.uniform(0, 3, size=4), rng.uniform(2, 1e9))


def _discrete(seed):
    rng, head, _, z = _case(seed)
    vocabulary = lp.Empirical(rng.normal(size=(7, 2)), rng.uniform(size=7))
    return lp.output_error(head, vocabulary, z, rng.uniform(2, 1e3))


def _sampled(seed):
    _, head, mu, z = _case(seed)
    key = jax.random.key(seed)
    L = 1000 - seed  # another length of the same capacity
    draws = lp.sample_outputs(key, head, mu, z, L, 3)
    return draws, lp.sample_gradients(key, head, mu, z, L, 3, cotangent=np.ones(2))


def _estimated(seed):
    _, head, mu, z = _case(seed)
    method = lp.MonteCarlo(jax.random.key(seed), max_replicates=128)
    return lp.expect(lp.OutputError(), head, mu, z, 20, method)[:2]


def _curve(seed):
    rng, head, mu, _ = _case(seed)
    nu = lp.Gaussian(np.zeros(2), np.eye(2))
    return lp.concentration_curve(head, mu, nu, np.sort(rng.uniform(2, 1e6, size=5)))


def _risk(seed):
    rng = np.random.default_rng(seed)
    task = lp.LinearRegression(np.diag(rng.uniform(0.5, 1, size=2)), noise_variance=rng.uniform())
    return task.risk(lp.BlockParams(rng.normal(size=(2, 2)), rng.normal()), rng.uniform(5, 1e4))


def _flow(seed):
    rng = np.random.default_rng(seed)
    task = lp.LinearRegression(rng.uniform(0.5, 1, size=(1, 1)))
    times = np.array([0.1, 0.2 + 0.01 * seed])
    return lp.gradient_flow(task, lp.BlockParams([[0.4]], 0.4), 100.0 + seed, 0.3, saveat=times)


SGD = optax.sgd(optax.constant_schedule(1e-2))


def _descent(seed):
    rng = np.random.default_rng(seed)
    task = lp.LinearRegression(np.diag(rng.uniform(0.5, 1, size=2)))
    start = lp.HeadParams(rng.normal(size=(3, 3)), rng.normal(size=3))
    options = {"batch": 8, "record_every": 4, "optimiser": SGD}
    key = jax.random.key(seed)
    exact = lp.descend(key, task, start, 50.0 + seed, 4, method=lp.Exact(), **options)
    return exact, lp.descend(key, task, start, 500 - seed, 4, method=lp.MonteCarlo(), **options)


CASES: list[Callable[[int], object]] = [
    _attend,
    _jacobians,
    _infinite,
    _exact_errors,
    _participation,
    _discrete,
    _sampled,
    _estimated,
    _curve,
    _risk,
    _flow,
    _descent,
]


@pytest.mark.parametrize("call", CASES, ids=lambda call: call.__name__.strip("_"))
def test_other_values_are_not_another_program(call):
    for seed in (1, 2):
        call(seed)
    with compilations() as seen:
        call(3)
    assert not seen


FIRST_CALLS = """
import jax, numpy as np
import largeprompt as lp
from tests.test_compilation import compilations
head, mu, z = lp.Head(np.eye(2), np.eye(2)), lp.Gaussian(np.zeros(2), np.eye(2)), np.ones(2)
task, start = lp.LinearRegression(np.eye(2)), lp.BlockParams(np.eye(2), 1.0)
with compilations() as seen:
    lp.participation(1.0, 50), lp.output_error(head, mu, z, 100), lp.gradient_error(head, mu, z, 9)
    task.risk(start, 100), task.minimiser(100)
    lp.gradient_flow(task, start, 100)
print(seen)
"""


def test_first_calls_of_known_numbers_compile_nothing():
    """In a new process, where no program is compiled yet."""
    found = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_descend_compiles_once_for_each_optimizer_object():
    """No program is shared by optimisers that may differ, here in rate, schedule and clipping."""
    task, start = lp.LinearRegression([[1.0]]), lp.BlockParams([[0.4]], 0.4)
    optimizers = [
        None,
        optax.sgd(1e-3),
        optax.sgd(2e-3),
        optax.sgd(lambda count: 4e-3),
        optax.chain(optax.clip(0.01), optax.sgd(1e-3)),
    ]

    def run(optimizer):
        key = jax.random.key(0)
        return lp.descend(key, task, start, np.inf, 2, 4, optimizer, record_every=2).final.b

    first = [run(optimizer) for optimizer in optimizers]
    with compilations() as seen:
        again = [run(optimizer) for optimizer in optimizers]
    assert not seen
    assert first == again
    assert len(set(map(float, first))) == 4  # the first two take the same steps
    with compilations() as seen:
        run(optax.sgd(1e-3))
    assert seen


def test_another_shape_is_counted():
    """The count itself: a program of a new shape is seen."""
    with compilations() as seen:
        jax.jit(lambda x: x + 1)(np.ones(7))
    assert seen
