"""TabPFN in JAX against the layers of PyTorch, and its recordings against plain attention."""

import jax
import numpy as np
import pytest
import torch
from benchmarks.fresh_process import Stages
from safetensors.torch import save_file

import largeprompt as lp
from largeprompt.models import TabPFN

from ..oracles import tabpfn as ground_truth
from .tiny_tabpfn import HEADS, rows, save, tiny


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("tiny"))


def test_tabpfn_logits_are_those_of_pytorch(loaded):
    """Test rows include one far outside, and one in a feature that the context has constant."""
    model, state = loaded
    X, y = rows(60)
    X_test = rows(300, seed=1)[0]
    X_test[1, 2], X_test[2, 1] = -1e6, 9.0
    found = model.read(X, y).logits(X_test)
    wanted = ground_truth.logits(state, HEADS, X, y, X_test)
    assert found.shape == (300, 3)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.std(wanted, axis=0).min() > 0.01  # the logits do depend on the row


def test_predict_proba_is_the_softmax_of_the_logits(loaded):
    model, state = loaded
    X, y = rows(40)
    found = model.predict_proba(X, y, X[:7])
    logits = torch.tensor(ground_truth.logits(state, HEADS, X, y, X[:7]))
    np.testing.assert_allclose(found, torch.softmax(logits, 1).numpy(), atol=1e-5)


def test_read_does_not_depend_on_the_order_of_rows(loaded):
    model, _ = loaded
    X, y = rows(50)
    order = np.random.default_rng(0).permutation(50)
    first = model.read(X, y).logits(X[:9])
    np.testing.assert_allclose(model.read(X[order], y[order]).logits(X[:9]), first, atol=1e-5)
    assert abs(model.read(X, y[order]).logits(X[:9]) - first).max() > 1e-3  # labels do matter


def test_read_compiles_once_for_equal_shapes(loaded):
    model, _ = loaded
    X, y = rows(33)
    model.read(X, y).logits(X[:11])
    stages = Stages()
    stages.listen()
    model.read(X + 1, y).logits(2 * X[:11])
    assert stages.compiled == 0


def test_chunks_of_rows_give_the_rows_one_by_one(loaded):
    """Three hundred rows are more than one chunk, in the context and among the test rows."""
    model, _ = loaded
    X, y = rows(300)
    learner = model.read(X, y)
    one_by_one = [learner.logits(X[i : i + 1])[0] for i in (0, 255, 256, 299)]
    np.testing.assert_allclose(learner.logits(X)[[0, 255, 256, 299]], one_by_one, atol=1e-5)


def test_record_holds_the_attention_of_every_layer(loaded):
    """Outputs of recorded heads, put through the rest of a layer, are the tokens of the next."""
    model, _ = loaded
    X, y = rows(30)
    recording = model.record(X, y, X[:8])
    learner = model.read(X, y)
    assert recording.texts == ("test rows", "context rows")
    assert [len(layers) for layers in recording.prompts] == [3, 3]
    tokens = learner.embedded(X[:8])
    for number, layer in enumerate(recording.layers):
        weights = model.layers[number]
        assert layer.scaling == pytest.approx(8**-0.5)
        assert layer.queries.shape == (2, 8, 8)
        outputs = [lp.attend(*layer.head(head)) for head in range(HEADS)]
        read = np.concatenate(outputs, axis=1, dtype=np.float32) @ layer.output_matrix.T
        x = weights.norm_1(tokens + (read + weights.output.offset))
        hidden = jax.nn.gelu(weights.hidden(x), approximate=False)
        expected = weights.norm_2(x + weights.shrink(hidden))
        tokens = learner.after(number, tokens)
        np.testing.assert_allclose(tokens, expected, atol=1e-5)
    for test_rows, own_rows in zip(*recording.prompts, strict=True):
        np.testing.assert_array_equal(test_rows.keys, own_rows.keys)
        assert own_rows.queries.shape == (2, 30, 8)


def test_record_has_the_queries_of_labelled_rows(loaded):
    """In layer 0: W_q (A x + a + B y + b) + b_q, by the tensors of the checkpoint."""
    model, state = loaded
    X, y = rows(30)
    state = {name.removeprefix("module."): value.numpy() for name, value in state.items()}
    x = ground_truth.inputs(X, X[:1], 7)[:30]
    tokens = x @ state["encoder.weight"].T + state["encoder.bias"]
    tokens = tokens + y[:, None] * state["y_encoder.weight"][:, 0] + state["y_encoder.bias"]
    prefix = "transformer_encoder.layers.0.self_attn.in_proj_"
    every = tokens @ state[f"{prefix}weight"].T + state[f"{prefix}bias"]
    layer = model.record(X, y, X[:2]).prompts[1][0]
    for part, found in enumerate((layer.queries, layer.keys, layer.values)):
        wanted = every[:, 16 * part : 16 * (part + 1)].reshape(30, 2, 8)
        np.testing.assert_allclose(np.swapaxes(found, 0, 1), wanted, atol=1e-5)


X, Y = rows(20)
MISTAKES = {
    "too many features": (lambda m: m.read(np.ones((20, 8)), Y), "at most 7 features"),
    "one dimension": (lambda m: m.read(X[0], Y), r"shape \(rows, features\)"),
    "missing value": (lambda m: m.read(np.where(X == 4, np.nan, X), Y), "X must be finite"),
    "equal rows": (lambda m: m.read(np.ones((20, 3)), Y), "not constant"),
    "labels of other rows": (lambda m: m.read(X, Y[1:]), "one label for each of the 20 rows"),
    "fractions": (lambda m: m.read(X, Y / 2), "labels 0, 1, "),
    "too many classes": (lambda m: m.read(X, Y + 2), "at most 4 classes"),
    "one class": (lambda m: m.read(X, 0 * Y), "at least two"),
    "other test features": (lambda m: m.read(X, Y).logits(X[:, :4]), r"shape \(rows, 5\)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_tabpfn_names_the_mistake(loaded, name):
    call, rule = MISTAKES[name]
    with pytest.raises(ValueError, match=rule) as caught:
        call(loaded[0])
    assert ". To fix: " in str(caught.value)


def test_tabpfn_load_names_what_is_missing(loaded, tmp_path):
    state = dict(loaded[1])
    weight = state.pop("module.decoder.2.weight")
    with pytest.raises(ValueError, match=r"finite tensor 'decoder\.2\.weight'; received 43 others"):
        TabPFN.load(save(tmp_path / "less.safetensors", state))
    bad = {**state, "module.decoder.2.weight": weight * float("nan")}
    with pytest.raises(ValueError, match="received NaN"):
        TabPFN.load(save(tmp_path / "nan.safetensors", bad))
    with pytest.raises(FileNotFoundError):
        TabPFN.load(tmp_path / "nothing.safetensors")


def test_tabpfn_load_of_other_files_is_one_line(loaded, tmp_path):
    """A pickle, a truncated file, one without the number of heads, types that NumPy has not."""
    state, good = loaded[1], tmp_path / "good.safetensors"
    save(good, state)
    path = tmp_path / "other.safetensors"
    torch.save((state, None, {"nhead": HEADS}), path)
    found = [path.read_bytes(), good.read_bytes()[:-3], b""]
    save_file(state, path)
    found.append(path.read_bytes())
    small = {name: value.to(torch.float8_e4m3fn) for name, value in state.items()}
    found.append(save(path, small).read_bytes())
    for data in found:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"be a \.safetensors file with 'nhead'") as caught:
            TabPFN.load(path)
        assert "\n" not in str(caught.value)
