# pyright: reportArgumentType=false
"""The table against participation, its derivatives, its range, and its behaviour as a pytree."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largeprompt.participation.table import ParticipationTable
from largeprompt.participation.weight_moments import participation


@pytest.mark.parametrize(
    "case", [(1.0, 3.0), (2.0, 12.0), (1e3, 6.0), (1e12, 6.0), (1e9, 0.4), (37.5, 20.0)]
)
def test_certified_error_holds_between_the_nodes(case):
    length, top = case
    table = ParticipationTable(length, top)
    assert 0 < float(table.error) <= 1e-10
    sigma = np.concatenate([[0.0, top], np.random.default_rng(1).uniform(0, top, 1000)])
    found, exact = table(sigma), participation(sigma, length)
    for name in ("p2", "p3", "p22"):
        gap = np.max(
            np.abs(np.asarray(getattr(found, name)) / np.asarray(getattr(exact, name)) - 1)
        )
        assert gap <= table.error, (name, gap)
    np.testing.assert_array_equal(found.error, table.error)


def test_derivatives():
    table = ParticipationTable(200.0, 5.0)
    sigma = jnp.array([0.0, 0.02, 0.9, 2.2, 4.99])

    def derivatives(moments, orders):
        def values(s):
            found = moments(s)
            return jnp.stack([found.p2, found.p3, found.p22])

        for _ in range(orders):
            values = jax.jacfwd(values)
        return jax.jit(jax.vmap(values))(sigma)

    exact = lambda s: participation(s, 200.0)  # noqa: E731
    np.testing.assert_allclose(derivatives(table, 1), derivatives(exact, 1), rtol=1e-8, atol=1e-15)
    slope = jax.jit(jax.vmap(jax.jacfwd(lambda s: exact(s).p2)))
    inner, step = sigma[1:-1], 1e-4
    around = (slope(inner + step) - slope(inner - step)) / (2 * step)
    np.testing.assert_allclose(derivatives(table, 2)[1:-1, 0], around, rtol=1e-6)
    reverse = jax.vmap(jax.grad(lambda s: table(s).p22))(sigma)
    np.testing.assert_allclose(reverse, derivatives(table, 1)[:, 2], rtol=1e-12)
    assert jax.grad(lambda s: table(s).p2)(0.0) == 0.0


def test_infinite_prompt():
    table = ParticipationTable(math.inf, 4.0)
    found = table(jnp.linspace(0, 4, 5))
    assert not np.any([found.p2, found.p3, found.p22])
    assert jax.grad(lambda s: table(s).p2)(1.0) == 0.0


def test_outside_the_range():
    table = ParticipationTable(10.0, 2.0)
    for bad in (2.0001, -0.1, math.nan, [1.0, 3.0]):
        with pytest.raises(ValueError, match="sigma must"):
            table(bad)
    with pytest.raises(Exception, match="sigma must"):
        jax.block_until_ready(eqx.filter_jit(lambda t, s: t(s).p2)(table, jnp.array(2.1)))


def test_bad_construction():
    for length, top in ((0.5, 1.0), (10.0, -1.0), (10.0, math.inf), (10.0, 0.0)):
        with pytest.raises(ValueError, match="must be"):
            ParticipationTable(length, top)
    with pytest.raises(ValueError, match="known numbers"):
        jax.jit(lambda n: ParticipationTable(n, 1.0)(0.5).p2)(10.0)


def test_passes_through_jit_without_recompiling_for_another_length():
    traces = []

    @jax.jit
    def use(table, sigma):
        traces.append(1)
        return table(sigma).p2

    first, second = ParticipationTable(100.0, 3.0), ParticipationTable(150.0, 3.0)
    assert first.coefficients.shape == second.coefficients.shape
    np.testing.assert_allclose(use(first, 1.0), participation(1.0, 100.0).p2, rtol=1e-10)
    np.testing.assert_allclose(use(second, 1.0), participation(1.0, 150.0).p2, rtol=1e-10)
    assert len(traces) == 1


def test_32_bit_mode(mode_32):
    table = ParticipationTable(100.0, 3.0)
    assert table(np.float32(1.0)).p2.dtype == np.float64
    np.testing.assert_allclose(
        np.asarray(table(1.0).p2), np.asarray(participation(1.0, 100.0).p2), rtol=1e-10
    )
    with pytest.raises(ValueError, match="jax_enable_x64"):
        jax.jit(lambda s: table(s).p2)(1.0)
