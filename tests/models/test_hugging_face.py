"""`record` against the attention weights that transformers itself returns."""

import numpy as np
import pytest

import largeprompt as lp
from largeprompt.models import Recording

from .tiny_transformers import GROUPED, INNER, SIZES, tiny_transformer

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def _ids(length, seed=0):
    return np.random.default_rng(seed).integers(3, 60, size=length)


def _softmax(scores):
    terms = np.exp(scores - scores.max(-1, keepdims=True))
    return terms / terms.sum(-1, keepdims=True)


def _weights(layer, head):
    """Attention weights of a recorded head, (queries, keys)."""
    scores = layer.scaling * layer.queries[head] @ layer.keys[layer.group(head)].T
    if layer.positions is not None:
        scores[np.arange(layer.n) > layer.positions[:, None]] = -np.inf
    return _softmax(scores)


def _own_weights(model, **inputs):
    """The model's own attention weights, (prompts, heads, queries, keys) for each layer."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model.eval()(**inputs, output_attentions=True).attentions
    model.set_attn_implementation(before)
    return [np.asarray(layer) for layer in found]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "bert"])
def test_record_has_the_models_own_attention(family, implementation):
    model, ids = tiny_transformer(family), _ids(40)
    own = _own_weights(model, input_ids=torch.as_tensor(ids)[None])
    model.set_attn_implementation(implementation)
    model.train()
    recording = lp.models.record(model, ids, queries=12)
    assert model.config._attn_implementation == implementation
    assert all(module.training for module in model.modules())
    assert len(recording.layers) == 2
    for layer, wanted in zip(recording.layers, own, strict=True):
        assert layer.error is not None
        assert layer.error < 2e-6
        assert layer.queries.shape == (4, 12, 8)
        assert (layer.positions is None) == (family == "bert")
        for head in range(4):
            np.testing.assert_allclose(_weights(layer, head), wanted[0, head, -12:], atol=2e-6)


def test_record_by_default_keeps_a_quarter_of_a_causal_prompt_and_all_of_an_encoders():
    assert lp.models.record(tiny_transformer("llama"), _ids(40)).layers[0].queries.shape[1] == 10
    assert lp.models.record(tiny_transformer("bert"), _ids(40)).layers[0].queries.shape[1] == 40
    every = lp.models.record(tiny_transformer("llama"), _ids(40), queries="all").layers[0]
    np.testing.assert_array_equal(every.positions, np.arange(40))


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "bert"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_record_without_padding(family, side):
    model, rows = tiny_transformer(family), [_ids(30, 1), _ids(19, 2)]
    ids, mask = np.zeros((2, 30), int), np.zeros((2, 30), int)
    for row, tokens in enumerate(rows):
        part = slice(30 - len(tokens), None) if side == "left" else slice(0, len(tokens))
        ids[row, part], mask[row, part] = tokens, 1
    inputs = {"input_ids": torch.as_tensor(ids), "attention_mask": torch.as_tensor(mask)}
    recording = lp.models.record(model, inputs, queries=5)
    positions = torch.as_tensor(np.maximum(np.cumsum(mask, axis=1) - 1, 0))
    own = _own_weights(model, **inputs, position_ids=positions)
    for row, tokens in enumerate(rows):
        seen = np.flatnonzero(mask[row])
        for layer, wanted in zip(recording.prompts[row], own, strict=True):
            assert layer.n == len(tokens)
            assert layer.error is not None
            assert layer.error < 2e-6
            if family == "bert":
                assert layer.positions is None
            else:
                np.testing.assert_array_equal(layer.positions, np.arange(len(tokens))[-5:])
            for head in range(4):
                expected = wanted[row, head][np.ix_(seen[-5:], seen)]
                np.testing.assert_allclose(_weights(layer, head), expected, atol=3e-6)


def test_record_of_layers_that_share_their_weights():
    """ALBERT calls one module for every layer."""
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        **{**SIZES, **INNER, "num_hidden_layers": 3}, embedding_size=16
    )
    model, ids = transformers.AlbertModel(config).eval(), _ids(30)
    own = _own_weights(model, input_ids=torch.as_tensor(ids)[None])
    recording = lp.models.record(model, [ids, ids[:20]], queries=7, progress=False)
    assert [len(layers) for layers in recording.prompts] == [3, 3]
    for layer, wanted in zip(recording.layers, own, strict=True):
        assert layer.queries.shape == (4, 7, 8)
        for head in range(4):
            np.testing.assert_allclose(_weights(layer, head), wanted[0, head, -7:], atol=2e-6)


def test_record_of_a_hybrid_model_says_how_many_layers_have_attention(tmp_path):
    """Jamba: two layers of four attend, the others are state space models."""
    torch.manual_seed(0)
    config = transformers.JambaConfig(
        **{**GROUPED, "num_hidden_layers": 4},
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
        mamba_d_state=4,
    )
    model = transformers.JambaForCausalLM(config)
    recording = lp.models.record(model, _ids(40), queries=12)
    assert [layer.name for layer in recording.layers] == [
        "model.layers.1.self_attn",
        "model.layers.3.self_attn",
    ]
    for one in (recording, _saved_and_loaded(recording, tmp_path)):
        first = str(one).splitlines()[0]
        assert first.startswith("Recording of JambaForCausalLM: 2 of 4 layers")
        assert one.missing_layers == 2
    with pytest.raises(ValueError, match="where 2 of 4 have it"):
        lp.models.compress_prompt(model, recording, tokens=36)


def _saved_and_loaded(recording, folder):
    recording.save(folder / "recording.npz")
    return Recording.load(folder / "recording.npz")


def test_record_in_chunks_is_the_same():
    model, ids = tiny_transformer("llama"), _ids(40)
    whole = lp.models.record(model, ids, queries=20)
    parts = lp.models.record(model, ids, queries=20, chunk=13)
    for one, other in zip(whole.layers, parts.layers, strict=True):
        np.testing.assert_array_equal(one.positions, other.positions)
        np.testing.assert_allclose(one.queries, other.queries, atol=1e-5)
        np.testing.assert_allclose(one.keys, other.keys, atol=1e-5)
        assert other.error is not None
        assert other.error < 2e-6
    with pytest.raises(ValueError, match="layers are all causal"):
        lp.models.record(tiny_transformer("bert"), ids, chunk=13)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "bert"])
def test_record_finds_the_output_matrix(family):
    model, ids = tiny_transformer(family), _ids(16)
    modules = dict(model.named_modules())
    recording = lp.models.record(model, ids, queries=16)
    for layer in recording.layers:
        outputs = []
        for head in range(4):
            outputs.append(_weights(layer, head) @ layer.values[layer.group(head)])
        joined = np.concatenate(outputs, axis=-1)
        assert layer.output_matrix is not None
        place = layer.name.replace(".self", ".output") if family == "bert" else layer.name
        names = ("o_proj", "c_proj", "dense")
        matrix = next(modules[f"{place}.{n}"] for n in names if f"{place}.{n}" in modules)
        with torch.no_grad():
            bias = 0.0 if matrix.bias is None else matrix.bias
            wanted = matrix(torch.as_tensor(joined, dtype=torch.float32)) - bias
        np.testing.assert_allclose(joined @ layer.output_matrix.T, wanted, atol=1e-5)


def test_record_texts_and_print():
    class Words:
        def __call__(self, text, verbose=True):
            ids = [3 + sum(map(ord, word)) % 50 for word in text.split()]
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    texts = ["one two three four five six", "seven eight nine ten"]
    recording = lp.models.record(tiny_transformer("llama"), texts, tokenizer=Words(), queries=2)
    assert [layers[0].n for layers in recording.prompts] == [6, 4]
    lines = str(recording).splitlines()
    assert lines[0] == "Recording of LlamaForCausalLM"
    assert lines[1] == "prompt 0: one two three four five six"
    assert lines[3].split()[:5] == ["0", "4/2", "6", "2", "8"]
    assert float(lines[3].split()[5]) < 2e-6
    assert lines[3].endswith("model.layers.0.self_attn")
    short = lp.models.record(tiny_transformer("llama"), texts, tokenizer=Words(), length=3)
    assert [layers[0].n for layers in short.prompts] == [3, 3]


def test_record_and_load(tmp_path):
    recording = lp.models.record(tiny_transformer("llama"), [list(_ids(9)), list(_ids(7))])
    assert str(_saved_and_loaded(recording, tmp_path)) == str(recording)


def test_record_of_a_model_in_half_precision():
    model = tiny_transformer("llama").to(torch.bfloat16)
    layer = lp.models.record(model, _ids(30)).layers[1]
    assert layer.keys.dtype == np.float32
    assert layer.error is not None
    assert 1e-5 < layer.error < 2e-2


@pytest.mark.parametrize(
    ("inputs", "options", "rule"),
    [
        ("some text", {}, "texts need tokenizer="),
        ("  ", {}, "every text must have at least one word"),
        ([], {}, "a prompt must have at least one token"),
        ([1.5, 2.0], {}, "inputs must be texts, token ids"),
        ([1, 2, 60], {}, "input_ids must be between 0 and 59, the vocab.*; received 60"),
        ({"input_ids": [[1.5, 2.0]]}, {}, "input_ids must be integers"),
        ({"input_ids": []}, {}, "inputs must have at least one prompt"),
        ([1, 2, 3], {"queries": 4}, "at least as long as the window of recorded queries"),
        ([1, 2, 3], {"queries": 0}, "queries must be a positive integer"),
        ([1] * 65, {}, "at most 64 tokens"),
        ({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}, {}, "may hide padding only"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, {}, "one number for each token"),
        ({"input_ids": [[1, 2]], "attention_mask": [[[1]]]}, {}, r"shape \(prompts, tokens\)"),
    ],
)
def test_record_of_bad_inputs_names_the_rule(inputs, options, rule):
    model = tiny_transformer("llama")
    with pytest.raises(ValueError, match=rule) as found:
        lp.models.record(model, inputs, **options)
    assert "\n" not in str(found.value)
    assert model.config._attn_implementation == "sdpa"


def test_record_of_models_that_bypass_the_interface_names_the_class():
    bloom = transformers.BloomModel(
        transformers.BloomConfig(vocab_size=60, hidden_size=32, n_layer=1, n_head=4)
    )
    with pytest.raises(ValueError, match="BloomModel, which calls its own attention"):
        lp.models.record(bloom, [1, 2, 3])
    with pytest.raises(ValueError, match="must be a model of the transformers library"):
        lp.models.record(torch.nn.Linear(2, 2), [1, 2, 3])


class _Elsewhere:
    """A tensor that, like one on a GPU, gives NumPy nothing before it is moved."""

    def __init__(self, tensor):
        self._tensor, self.device, self.ndim = tensor, torch.device("cuda"), tensor.ndim

    def __array__(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")

    def __len__(self):
        return len(self._tensor)

    def __getitem__(self, place):
        return _Elsewhere(self._tensor[place])

    def detach(self):
        return self

    def cpu(self):
        return self._tensor


def test_record_of_ids_on_another_device():
    model, ids = tiny_transformer("llama"), torch.as_tensor(_ids(20))
    wanted = lp.models.record(model, ids, queries=3).layers[1].queries
    mask = torch.ones_like(ids)
    for inputs in (
        _Elsewhere(ids),
        [_Elsewhere(ids)],
        {"input_ids": _Elsewhere(ids[None]), "attention_mask": _Elsewhere(mask[None])},
    ):
        found = lp.models.record(model, inputs, queries=3).layers[1].queries
        np.testing.assert_array_equal(found, wanted)
    for inputs in (ids.to("meta"), [ids.to("meta")], {"input_ids": ids[None].to("meta")}):
        with pytest.raises(ValueError, match="must have values; received a tensor on the device"):
            lp.models.record(model, inputs)


def test_record_restores_the_model_after_an_error():
    sizes = {**GROUPED, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    model = transformers.Qwen2Model(transformers.Qwen2Config(**sizes)).train()
    with pytest.raises(ValueError, match="Qwen2Attention with a window of 8 tokens"):
        lp.models.record(model, _ids(20))
    assert model.config._attn_implementation == "sdpa"
    assert model.training
    assert len(lp.models.record(model, _ids(8)).layers) == 2


def test_record_of_weights_that_overflow():
    model = tiny_transformer("gpt2")
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.bias.fill_(float("inf"))
    with pytest.raises(ValueError, match=r"NaN or infinity in transformer\.h\.1\.attn"):
        lp.models.record(model, _ids(8))


def test_record_of_a_model_without_weights():
    with torch.device("meta"):
        model = transformers.LlamaModel(transformers.LlamaConfig(**GROUPED))
    with pytest.raises(ValueError, match="received a model on the device 'meta'"):
        lp.models.record(model, [1, 2, 3])
