"""Rotary positions against complex numbers, and against a model of transformers."""

import numpy as np
import pytest

import largeprompt as lp


def _queries():
    return np.random.default_rng(0).normal(size=(2, 5, 8))


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_rotate_is_a_product_of_complex_numbers(pairs):
    z, by = _queries(), np.array([0.0, 1.0, -3.0, 7.0, 100.0])
    found = lp.models.rotate(z, by, base=50.0, pairs=pairs)
    parts = (np.s_[:4], np.s_[4:]) if pairs == "halves" else (np.s_[::2], np.s_[1::2])
    turns = np.exp(1j * by[:, None] * 50.0 ** (-2 * np.arange(4) / 8))
    want = (z[..., parts[0]] + 1j * z[..., parts[1]]) * turns
    np.testing.assert_allclose(found[..., parts[0]], want.real, atol=1e-12)
    np.testing.assert_allclose(found[..., parts[1]], want.imag, atol=1e-12)


def test_rotate_gives_the_queries_of_a_model_at_other_positions():
    """In the first layer of a model that reads one token again and again."""
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=9,
        hidden_size=16,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    model = transformers.LlamaModel(config)
    layer = lp.models.record(model, [4] * 12, queries="all").layers[0]
    first = np.broadcast_to(layer.queries[:, :1], layer.queries.shape)
    found = lp.models.rotate(first, np.arange(12), base=500.0)
    np.testing.assert_allclose(found, layer.queries, atol=1e-6)
    assert not np.allclose(first, layer.queries, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"queries": np.ones((3, 5))}, "with even k"),
        ({"queries": np.full((3, 4), np.nan)}, "queries must be finite"),
        ({"by": np.ones(2)}, "by must be one number or 3"),
        ({"base": -1.0}, "base must be a positive number"),
    ],
)
def test_rotate_names_the_broken_rule(change, rule):
    given = {"queries": np.ones((3, 4)), "by": 1.0} | change
    with pytest.raises(ValueError, match=rule):
        lp.models.rotate(given.pop("queries"), given.pop("by"), **given)
