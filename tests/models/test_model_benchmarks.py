"""`benchmarks.compressed_decoder` and `benchmarks.linearised_model` on tiny models."""

from typing import get_args

import numpy as np
import pytest

import largeprompt as lp
from largeprompt.compression.compress import Method

pytestmark = pytest.mark.slow
pytest.importorskip("torch")
pytest.importorskip("transformers")


def _cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_compressed_decoder_prints_every_method(monkeypatch, capsys):
    """A cache of all tokens has no divergence, a smaller one has."""
    from benchmarks import compressed_decoder, texts

    from .tiny_transformers import tiny_transformer

    def tokenizer(text, verbose):
        return {"input_ids": [3 + ord(letter) % 57 for letter in text]}

    model = tiny_transformer("llama", num_hidden_layers=1, max_position_embeddings=128)
    letters = "".join(map(chr, np.random.default_rng(0).integers(0, 1000, 200)))
    monkeypatch.setattr(lp.models, "load_pretrained", lambda path: (model, tokenizer))
    monkeypatch.setattr(texts, "reported", lambda: {"letters": letters})
    compressed_decoder.main(["model", "48", "--sizes=8,16", "--prompts=1", "--queries=16"])
    lines = capsys.readouterr().out.splitlines()
    rows = {cells[0]: cells[1:] for cells in map(_cells, lines) if cells[0] in get_args(Method)}
    assert set(rows) == set(get_args(Method))
    for method, (small, whole, seconds) in rows.items():
        assert float(small.split()[0]) > 0.001
        if method not in ("centroids", "attention matching"):  # tokens with weights: one fewer
            assert abs(float(whole.split()[0])) < 0.001
        assert float(seconds) >= 0
    with pytest.raises(SystemExit, match="unknown option --size=8"):
        compressed_decoder.main(["model", "--size=8"])


def test_compressed_decoder_times_models(monkeypatch, capsys):
    """On the CPU, where the clock of the GPU is replaced; every timed call runs."""
    from benchmarks import compressed_decoder

    calls = []

    def seconds(call, *_):
        calls.append(call().logits.shape)
        return 2.0 if len(calls) % 3 else 1.0  # twice full attention, then compressed

    monkeypatch.setattr(compressed_decoder, "_seconds", seconds)
    monkeypatch.setattr(compressed_decoder, "_LAYERS", 1)
    compressed_decoder.gpu_model(lengths=(8,), device="cpu", width=32)
    rows = [_cells(line) for line in capsys.readouterr().out.splitlines() if line[:3] in ROWS]
    assert [row[0] for row in rows] == ["1", "8", "32"]
    assert all(row[-1] == "2.0" for row in rows)
    assert [shape[0] for shape in calls] == [1] * 3 + [8] * 3 + [32] * 3


ROWS = ("| 1", "| 8", "| 3")


def test_linearised_model_prints_tasks_and_times(tmp_path):
    pytest.importorskip("sklearn")
    from benchmarks import linearised_model

    from .tiny_tabpfn import tiny

    model, _ = tiny(tmp_path, scale=2.0, layers=2)
    data = linearised_model.study(model, "iris", splits=2)
    header, cells = (
        _cells(line) for line in (linearised_model._HEADER, linearised_model.row("iris", data))
    )
    found = dict(zip(header, cells, strict=True))
    assert (found["task"], found["context"]) == ("iris", "100")
    mean = float(data.agreement.sel(attention="affine").mean())
    assert found["agreement"].startswith(f"{mean:.3f} ± ")
    for kind, name in (("softmax", "softmax, ms a row"), ("affine", "affine")):
        seconds = np.median(data.seconds.sel(attention=kind))
        assert found[name] == f"{1e3 * seconds:.2f}"
    (line,) = linearised_model.times(model, lengths=(30,)).splitlines()[2:]
    assert _cells(line)[0] == "30"
    assert all(float(cell) >= 0 for cell in _cells(line))
