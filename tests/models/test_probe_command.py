"""`largeprompt probe`: on texts, on tables, in a pipe, and what it says of wrong files."""

import re
import sys

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import largeprompt as lp
from largeprompt import _progress
from largeprompt.cli.commands import app
from largeprompt.cli.model_commands import _rows


def _run(*arguments):
    return CliRunner().invoke(app, ["probe", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tiny random encoder and the tokenizer of five words."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "tiny"
    config = transformers.BertConfig(
        vocab_size=10,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=48,
        initializer_range=0.5,
    )
    transformers.BertModel(config).save_pretrained(path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e"]
    (path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(path / "vocab.txt")).save_pretrained(path)
    return path


@pytest.mark.slow
def test_probe_command_prints_and_writes(folder, tmp_path):
    text = tmp_path / "words.txt"
    text.write_text(" ".join(np.random.default_rng(0).choice(list("abcde"), 90)))
    result = _run(folder, "--text", text, "--out", tmp_path / "out", "--sinks", 2)
    assert result.exit_code == 0, result.output
    assert "effective tokens" in result.output
    figure = tmp_path / "out" / "probe.png"
    assert f"figure: {figure}\n" in result.output
    assert figure.stat().st_size > 50_000
    data = xr.load_dataset(tmp_path / "out" / "probe.nc", engine="scipy")
    assert dict(data.sizes)["layer"] == 2
    assert (data.tokens == 48).all()  # cut to the positions of the model
    averaging = int((data.regime == "self-averaging").sum())
    assert f"{averaging} self-averaging" in result.output
    assert data.attrs["model"] == "tiny"
    assert data.attrs["sinks"] == 2
    assert float(data.recording_error.max()) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "probe needs --text or --table"),
        (["--text", "a.txt", "--table", "b.csv"], "probe needs --text or --table"),
        (["--text", "nowhere.txt"], "No such file"),
    ],
)
def test_probe_command_names_what_is_wrong(arguments, text):
    result = _run("model", *arguments)
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert text in result.output
    assert result.output.count("\n") == 1


@pytest.mark.slow
def test_probe_command_prints_lines_as_it_goes(folder, tmp_path, monkeypatch):
    """Standard error of the runner is no terminal."""
    monkeypatch.setattr(_progress, "_EVERY", 0.0)
    (tmp_path / "words.txt").write_text("a b c d e " * 9)
    result = _run(folder, "--text", tmp_path / "words.txt", "--out", tmp_path / "out")
    found = re.findall(r"^probing.*: (\d) of 4 heads$", result.stderr, re.MULTILINE)
    assert found == ["1", "2", "3", "4"]


@pytest.mark.slow
def test_probe_command_prints_warnings_on_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(_progress, "_EVERY", 1e9)
    (tmp_path / "words.txt").write_text("a b c d e " * 9)
    result = _run(
        folder, "--text", tmp_path / "words.txt", "--queries", 5, "--out", tmp_path / "out"
    )
    assert result.exit_code == 0, result.output
    *warned, data, figure = result.stderr.splitlines()
    assert data == f"wrote {tmp_path / 'out' / 'probe.nc'}"
    assert figure == f"wrote {tmp_path / 'out' / 'probe.png'}"
    assert [line.partition(": ")[0] for line in warned] == ["warning"] * len(warned)
    fix = "record more queries, or predict more rows of a table"
    assert warned[0].endswith(f"5 are recorded: {fix}")
    assert "probing.py" not in result.stderr


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_probe_command_without_a_package_names_the_extra(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "words.txt").write_text("a b c")
    result = _run(tmp_path, "--text", tmp_path / "words.txt")
    assert result.exit_code != 0
    assert f"real models need {package}: run pip install {package}, or" in result.output
    assert result.output.count("\n") == 1


def test_probe_command_reads_tables(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("x,y,class\n" + "".join(f"{i},{i / 2},{'ab'[i % 2]}\n" for i in range(9)))
    X, y = _rows(table)
    np.testing.assert_array_equal(X[:, 1], np.arange(9) / 2)
    np.testing.assert_array_equal(y, np.arange(9) % 2)
    table.write_text("1,2,0\n" * 9)
    assert _rows(table)[0].shape == (9, 2)
    table.write_text("x,y\n" + "red,1\n" * 9)
    with pytest.raises(ValueError, match=r"numbers in all columns but the last.* 'red' in row 0"):
        _rows(table)
    table.write_text("1,2,0\n" * 8 + "1,0\n")
    with pytest.raises(ValueError, match="received 2 and not 3 in row 8"):
        _rows(table)
    table.write_text("1,0\n")
    with pytest.raises(ValueError, match="at least 8 rows"):
        _rows(table)


@pytest.mark.parametrize("names", ["x;y;class\n", ""])
@pytest.mark.parametrize("quote", ['"', ""])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", ", "])
def test_probe_command_reads_forms_of_csv(tmp_path, delimiter, quote, names):
    """With text classes and no line of names the first row is a row."""
    table = tmp_path / "table.csv"
    rows = [(f"{i}", f"{i / 2}", "ab"[i % 2]) for i in range(9)]
    lines = [delimiter.join(f"{quote}{entry}{quote}" for entry in row) for row in rows]
    table.write_text("\ufeff" + names.replace(";", delimiter) + "\r\n".join(lines) + "\r\n\r\n")
    X, y = _rows(table)
    np.testing.assert_array_equal(X, np.stack([np.arange(9), np.arange(9) / 2], axis=1))
    np.testing.assert_array_equal(y, np.arange(9) % 2)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (
            b"",
            "a table must have a feature, a class, and at least 8 rows; received .* with no rows",
        ),
        (b"x,y,class\n", "a table must have a feature.* with no rows"),
        (b"7\n" * 9, "with 9 rows of 1 columns"),
        (b"1,5;2,0;a\n" * 9, "write decimals with a point"),
        (
            b"\x89PNG\r\n\xff",
            r"a file must be text in UTF-8; received .*table\.csv' \(invalid start",
        ),
    ],
)
def test_probe_command_on_a_bad_table_is_one_line(tmp_path, content, rule, recwarn):
    table = tmp_path / "table.csv"
    table.write_bytes(content)
    result = _run("tabpfn", "--table", table)
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert re.search(rule, result.output)
    assert not recwarn


def test_probe_command_on_a_sorted_table_shows_every_class(tmp_path, monkeypatch):
    """The context has rows of all classes, and the same ones in every run."""
    table, seen = tmp_path / "table.csv", []

    class Learner:
        def record(self, X, y, X_test):
            seen.append((X, y, X_test))
            raise ValueError("enough")

    monkeypatch.setattr(lp.models.TabPFN, "load", lambda path: Learner())
    table.write_text("".join(f"{i},{'abc'[i // 20]}\n" for i in range(60)))
    for _ in range(2):
        assert "enough" in _run(tmp_path, "--table", table).output
    (X, y, X_test), (again, *_) = seen
    np.testing.assert_array_equal(X, again)
    assert np.bincount(y).min() >= 10
    np.testing.assert_array_equal(y, X[:, 0] // 20)
    np.testing.assert_array_equal(np.sort(np.append(X, X_test)), np.arange(60))


@pytest.mark.slow
def test_probe_command_on_a_table(tmp_path):
    """A tiny in-context learner: numbers of the file are those of its recording."""
    pytest.importorskip("torch")
    from .tiny_tabpfn import rows, tiny

    model, _ = tiny(tmp_path, scale=2.0, layers=1)
    X, y = rows(80)
    table = tmp_path / "table.csv"
    names = np.array(["red", "green", "violet"])[y]
    lines = [",".join(map(repr, map(float, row))) for row in X]
    table.write_text(
        "\n".join(["a,b,c,d,e,colour", *(f"{x},{z}" for x, z in zip(lines, names, strict=True))])
    )
    result = _run(tmp_path / "tiny.safetensors", "--table", table, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "differs from the model's own by at most" in result.output
    found = xr.load_dataset(tmp_path / "out" / "probe.nc", engine="scipy")
    assert float(found.recording_error.max()) < 1e-5
    assert (found.tokens == 60).all()  # three quarters of the rows
    assert found.queries[:, 0, 0].values.tolist() == [20, 60]
    classes = np.unique(names, return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(80)
    layer = model.record(X[order[20:]], classes[order[20:]], X[order[:20]]).prompts[1][0]
    scores = layer.scaling * np.einsum("hqk,hnk->hqn", layer.queries, layer.keys)
    wanted = np.sqrt(scores.var(axis=-1).mean(axis=-1))
    np.testing.assert_allclose(found.score_deviation[1, 0], wanted, rtol=1e-4)


def test_probe_command_on_a_table_names_a_wrong_model(folder, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("1,2,0\n" * 9)
    result = _run(folder / "config.json", "--table", table)
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert "a TabPFN checkpoint must be a .safetensors file" in result.output
