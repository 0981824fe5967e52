"""Recordings: heads of them as measures, grouped heads, positions, files."""

import numpy as np
import pytest

import largeprompt as lp
from largeprompt.models import RecordedLayer, Recording

EYE = np.eye(2, dtype=np.float32)


def _layer(seed=0, positions=None):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return RecordedLayer(
        normal(4, 6, 8), normal(2, 20, 8), normal(2, 20, 3), 8**-0.5, normal(5, 12), positions
    )


def test_recorded_head_is_plain_softmax_attention():
    layer = _layer()
    head, prompt, queries = layer.head(3)
    scores = layer.queries[3] @ layer.keys[1].T * layer.scaling
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(
        lp.attend(head, prompt, queries), weights @ layer.values[1], atol=1e-5
    )


def test_recorded_head_of_a_causal_model_has_the_queries_that_saw_all_keys():
    layer = _layer(positions=np.arange(14, 20))
    assert layer.head(0).prompt.n == 15
    assert layer.head(0).queries.shape == (6, 8)
    assert layer.head(0, length=18).queries.shape == (3, 8)
    with pytest.raises(ValueError, match="length must be between 1 and 20"):
        layer.head(0, length=21)


def test_recording_load_returns_what_save_wrote(tmp_path):
    recording = Recording("tiny", ((_layer(0), _layer(1)), (_layer(2), _layer(3))), ("a", "b"))
    recording.save(tmp_path / "r.npz")
    again = Recording.load(tmp_path / "r.npz")
    assert (again.model, again.texts, len(again.prompts)) == ("tiny", ("a", "b"), 2)
    np.testing.assert_array_equal(again.prompts[1][0].keys, recording.prompts[1][0].keys)
    assert again.prompts[1][0].scaling == recording.prompts[1][0].scaling
    assert sum(1 for _ in again.heads()) == 8


def test_recording_load_of_other_files_names_the_rule(tmp_path):
    (tmp_path / "text.npz").write_text("no recording")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match=r"written by Recording\.save"):
        Recording.load(tmp_path / "text.npz")
    with pytest.raises(ValueError, match="must have format 1"):
        Recording.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    "arrays",
    [
        {"format": np.array("csr")},
        {"format": np.array(1)},
        {"format": np.array(1), "model": np.array("m"), "a/b": np.zeros(2)},
        {"format": np.array(1), "model": np.array("m"), "texts": np.array(["t"]), "0/0/keys": EYE},
    ],
)
def test_recording_load_of_foreign_archives_is_one_line(arrays, tmp_path):
    np.savez(tmp_path / "foreign.npz", **arrays)
    with pytest.raises(ValueError, match=r"have format 1|written by Recording\.save") as found:
        Recording.load(tmp_path / "foreign.npz")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda a: a.update({"1000000000000/0/queries": a["0/0/queries"]}), "has a member '1000"),
        (lambda a: a.update({"0/0/__class__": EYE}), "has a member '0/0/__class__'"),
        (lambda a: _renamed(a, "0/1/", "0/2/"), "layer 2 of prompt 0 does not follow"),
        (lambda a: a.update(texts=np.array(["a"])), "2 prompts and 1 texts"),
        (lambda a: a.update({"0/0/keys": a["0/0/keys"][0]}), "must have shapes"),
        (lambda a: a.update({"0/0/values": a["0/0/values"][:, 1:]}), "must have shapes"),
        (lambda a: a.update({"0/0/output_matrix": EYE}), r"shape \(width, 12\)"),
        (lambda a: a.update({"0/0/positions": np.arange(5)}), "positions must be indices"),
        (lambda a: a.update({"0/0/positions": np.zeros(6)}), "positions must be indices"),
        (lambda a: a["0/0/queries"].fill(np.nan), "must be finite"),
    ],
)
def test_recording_load_checks_names_order_shapes_and_numbers(changed, reason, tmp_path):
    """Each change of a good file, in one line, before anything large is made of it."""
    recording = Recording("tiny", ((_layer(0), _layer(1)), (_layer(2),)), ("a", "b"))
    recording.save(tmp_path / "r.npz")
    with np.load(tmp_path / "r.npz") as file:
        arrays = {name: file[name].copy() for name in file}
    np.savez(tmp_path / "same.npz", **arrays)
    assert len(Recording.load(tmp_path / "same.npz").prompts) == 2
    changed(arrays)
    np.savez(tmp_path / "changed.npz", **arrays)
    reason = f"{reason}|TypeCheckError"  # where annotations are checked
    with pytest.raises(ValueError, match=reason) as found:
        Recording.load(tmp_path / "changed.npz")
    assert "\n" not in str(found.value)


def _renamed(arrays, before, after):
    for name in [name for name in arrays if name.startswith(before)]:
        arrays[after + name.removeprefix(before)] = arrays.pop(name)


def test_recording_save_in_half_precision_needs_numbers_that_fit(tmp_path):
    layer = RecordedLayer(*(1e5 * np.ones((1, 2, 2), np.float32) for _ in range(3)), scaling=1.0)
    with pytest.raises(ValueError, match="must fit in float16; received 1e"):
        Recording("large", ((layer,),)).save(tmp_path / "r.npz", dtype=np.float16)
    assert not list(tmp_path.iterdir())


def test_recorded_layer_with_heads_that_do_not_divide():
    with pytest.raises(ValueError, match="multiple of that of key-value heads"):
        RecordedLayer(
            np.zeros((3, 1, 2), np.float32),
            np.zeros((2, 1, 2), np.float32),
            np.zeros((2, 1, 2), np.float32),
            1.0,
        )
