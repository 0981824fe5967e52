# pyright: reportArgumentType=false
"""Tables against the moments they hold: values, derivatives, range, behaviour as pytrees."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largeprompt.participation import (
    LARGEST,
    ParticipationTable,
    moment_functions,
    output_moment_table,
    participation,
)


@pytest.mark.parametrize(
    "case",
    [(1.0, 3.0), (2.0, 12.0), (1e3, 6.0), (1e12, 6.0), (1e9, 0.4), (37.5, 20.0), (200.0, 300.0)],
)
def test_participation_table_keeps_its_certified_error_between_the_nodes(case):
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


def test_participation_table_derivatives():
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


def test_participation_table_of_an_infinite_prompt():
    table = ParticipationTable(math.inf, 4.0)
    found = table(jnp.linspace(0, 4, 5))
    assert not np.any([found.p2, found.p3, found.p22])
    assert jax.grad(lambda s: table(s).p2)(1.0) == 0.0


def test_participation_table_raises_outside_its_range():
    table = ParticipationTable(10.0, 2.0)
    beyond = r"sigma must lie in the table's range \[0, sigma_max\]; received a larger value"
    for bad in (2.0001, [1.0, 3.0]):
        with pytest.raises(ValueError, match=beyond):
            table(bad)
    for bad in (-0.1, math.nan):
        with pytest.raises(ValueError, match="sigma must be finite and >= 0"):
            table(bad)
    with pytest.raises(eqx.EquinoxRuntimeError, match=beyond):
        jax.block_until_ready(eqx.filter_jit(lambda t, s: t(s).p2)(table, jnp.array(2.1)))


def test_participation_table_needs_a_known_length():
    with pytest.raises(ValueError, match="known numbers"):
        jax.jit(lambda n: ParticipationTable(n, 1.0)(0.5).p2)(10.0)


def test_participation_table_compiles_once_for_several_lengths():
    traces = []

    @jax.jit
    def use(table, sigma):
        traces.append(1)
        return table(sigma).p2

    first, second = ParticipationTable(100.0, 3.0), ParticipationTable(150.0, 3.0)
    assert first.moments.coefficients.shape == second.moments.coefficients.shape
    np.testing.assert_allclose(use(first, 1.0), participation(1.0, 100.0).p2, rtol=1e-10)
    np.testing.assert_allclose(use(second, 1.0), participation(1.0, 150.0).p2, rtol=1e-10)
    assert len(traces) == 1


def test_participation_table_in_32_bit_mode(mode_32):
    table = ParticipationTable(100.0, 3.0)
    assert table(np.float32(1.0)).p2.dtype == np.float64
    np.testing.assert_allclose(
        np.asarray(table(1.0).p2), np.asarray(participation(1.0, 100.0).p2), rtol=1e-10
    )
    with pytest.raises(ValueError, match="jax_enable_x64"):
        jax.jit(lambda s: table(s).p2)(1.0)


@pytest.mark.parametrize("L", [1.0, 1.5, 30.0, 1e9, 1e30])
def test_output_moment_table_keeps_its_error_between_the_nodes(L):
    table = output_moment_table(L)
    assert float(table.error) < 2e-10
    s = np.expm1(np.random.default_rng(2).uniform(0, np.log1p(LARGEST), 1000))
    found = np.asarray(table(jnp.asarray(s)))
    expected = moment_functions(np.sqrt(s), L)
    assert np.max(np.abs(found / expected - 1)) <= float(table.error) + 1e-13 * np.log(10 * L)


def test_output_moment_table_beyond_its_range_and_at_its_ends():
    table = output_moment_table(30.0)
    assert np.all(np.isnan(table(jnp.asarray([2 * LARGEST, np.inf, np.nan]))))
    np.testing.assert_allclose(table(jnp.asarray(-1e-17))[0], 1 / 30, rtol=1e-12)
    assert not np.any(output_moment_table(math.inf)(jnp.asarray([0.0, 3.0])))


def test_output_moment_tables_of_several_lengths_stack():
    lengths = (10.0, 1e4, math.inf)
    tables = [output_moment_table(L) for L in lengths]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tables)
    s = jnp.asarray([0.5, 2.0, 4.0])
    together = jax.jit(jax.vmap(lambda table, x: table(x)))(stacked, s)
    for row, table, x in zip(together, tables, s, strict=True):
        np.testing.assert_allclose(row, table(x), rtol=1e-14)
