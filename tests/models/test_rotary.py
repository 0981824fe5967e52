"""Rotary positions against complex numbers, and against a model of transformers."""

import numpy as np
import pytest

import largeprompt as lp
from largeprompt.models.rotary import rotations


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


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"queries": np.ones((3, 5))}, "with even k"),
        ({"queries": np.full((3, 4), np.nan)}, "queries must be finite"),
        ({"by": np.ones(2)}, "by must be one number or 3"),
        ({"base": -1.0}, "base must be finite and > 0"),
    ],
)
def test_rotate_names_the_broken_rule(change, rule):
    given = {"queries": np.ones((3, 4)), "by": 1.0} | change
    with pytest.raises(ValueError, match=rule):
        lp.models.rotate(given.pop("queries"), given.pop("by"), **given)


SIZES = {
    "vocab_size": 9,
    "hidden_size": 32,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SCALED = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {"rope_parameters": SCALED}),
        ("Qwen3", {"head_dim": 16, "num_key_value_heads": 2}),
        ("Cohere", {}),
    ],
)
def test_rotations_move_queries_as_the_model_does(family, options):
    """In the first layer of models that read one token again and again."""
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **options, pad_token_id=0)
    model = getattr(transformers, f"{family}Model")(config)
    layer = lp.models.record(model, [4] * 30, queries="all").layers[0]
    first, second = rotations(model, 2, 16)
    assert first is not None
    assert second is not None
    assert first.pairs == ("neighbours" if family == "Cohere" else "halves")
    found = first.moved(layer.queries[:, :10], 20)
    np.testing.assert_allclose(found, layer.queries[:, 20:], atol=1e-6)
    assert not np.allclose(layer.queries[:, :10], layer.queries[:, 20:], atol=1e-3)


def test_rotations_of_models_without_them_or_with_others():
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    torch.manual_seed(0)
    gpt2 = transformers.GPT2Model(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2))
    assert rotations(gpt2, 2, 16) == [None, None]
    part = transformers.GPTNeoXConfig(**SIZES)  # a quarter of each head turns
    assert rotations(transformers.GPTNeoXModel(part), 2, 16) == [None, None]
    some = transformers.SmolLM3Config(
        **SIZES, num_key_value_heads=2, no_rope_layers=[1, 0], pad_token_id=0
    )
    first, second = rotations(transformers.SmolLM3Model(some), 2, 16)
    assert first is not None
    assert second is None
