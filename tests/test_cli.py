"""The command line, as a user calls it."""

import os
import re
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import largeprompt as lp
from largeprompt import cli
from largeprompt.cli.commands import _GONE, app

from .terminal import on_a_terminal


def _run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def _python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """The command in a process of its own, after `code`."""
    text = f"import sys; from largeprompt.cli import main\n{code}\nmain()"
    known = {name: value for name, value in os.environ.items() if name not in environment}
    return subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        env=known | {name: value for name, value in environment.items() if value},
        timeout=120,
        check=False,
    )


def test_largeprompt_version():
    assert _run("--version").output == f"largeprompt {lp.__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "largeprompt", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"largeprompt {lp.__version__}\n"


def test_largeprompt_without_arguments_shows_help():
    shown = _run().output
    assert all(name in shown for name in ("curve", "regime", "length", "probe", "models"))
    assert not any(f"  {name}  " in shown for name in _GONE)


@pytest.mark.parametrize("name", _GONE)
def test_commands_that_are_gone_say_where_they_went(name):
    result = _run(name, "--study", "x", "--help")
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: `largeprompt {name}` ")
    for path in re.findall(r"lp\.([\w.]+)", line):  # what it names is there
        found = lp
        for part in path.split("."):
            found = getattr(found, part)
        assert callable(found)


@pytest.mark.slow
def test_curve_prints_and_writes(tmp_path):
    data, figure = tmp_path / "curve.nc", tmp_path / "curve.pdf"
    np.savetxt(tmp_path / "cov.csv", [[1.0, 0.5], [0.5, 1.0]], delimiter=",")
    options = ["--covariance", tmp_path / "cov.csv", "--to", "1000", "--points", "3"]
    result = _run("curve", *options, "--out", data, "--figure", figure)
    assert result.exit_code == 0, result.output
    assert "Proposition 3.1" in result.output
    assert figure.read_bytes().startswith(b"%PDF")
    with xr.open_dataset(data) as curve:
        curve.load()
    cov = np.array([[1.0, 0.5], [0.5, 1.0]])
    head, mu = lp.Head(U=0.5 * np.eye(2), V=np.eye(2)), lp.Gaussian(np.zeros(2), cov)
    expected = lp.concentration_curve(
        head, mu, lp.Gaussian(np.zeros(2), np.eye(2)), curve.length.values
    )
    np.testing.assert_allclose(curve.value, expected.value, rtol=1e-13)
    assert f"{float(curve.value[1]):.6e}" in result.output
    again = _run("curve", *options, "--out", data)
    assert "replaced" in again.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cov.csv", "curve.nc", "curve.pdf"]


@pytest.mark.slow
def test_curve_of_samples_prints_the_fitted_slope():
    options = ["--dim", "1", "--from", "10", "--to", "100", "--points", "2", "--scale", "0.1"]
    result = _run("curve", "--method", "montecarlo", *options)
    assert result.exit_code == 0, result.output
    assert "fitted slope" in result.output


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".txt"])
def test_length_reads_the_covariance_from_a_file(suffix, tmp_path):
    path, cov = tmp_path / f"cov{suffix}", np.diag([1.0, 0.5])
    if suffix == ".npy":
        np.save(path, cov)
    else:
        np.savetxt(path, cov, delimiter="," if suffix == ".csv" else " ")
    result = _run("length", "0.01", "--covariance", path, "--query", "tokens")
    mu = lp.Gaussian(np.zeros(2), cov)
    found = lp.prompt_length_for(lp.Head(U=np.eye(2) / 2, V=np.eye(2)), mu, mu, 0.01)
    assert result.stdout == f"{found.sentence}\n"


@pytest.mark.slow
def test_length_exit_status_is_1_if_no_prompt_is_long_enough():
    result = _run("length", "1e-30", "--dim", "1")
    assert result.exit_code == 1
    assert "No prompt" in result.output


def test_regime_prints_and_draws(tmp_path):
    result = _run("regime", "6", "1000", "--figure", tmp_path / "map.png")
    assert result.exit_code == 0
    assert result.output.startswith("frozen")
    assert (tmp_path / "map.png").stat().st_size > 10_000


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with files that are no covariances."""
    monkeypatch.chdir(tmp_path)
    np.savetxt("wide.csv", np.ones((2, 3)), delimiter=",")
    np.savetxt("negative.txt", -np.eye(2))
    np.savetxt("lopsided.txt", [[1.0, 0.5], [0.0, 1.0]])
    np.savetxt("nan.txt", [[np.nan]])
    np.save("eye.npy", np.eye(2))
    np.save("numbers.npy", np.ones(3))
    (tmp_path / "words.csv").write_text("a,b\nc,d\n", encoding="utf-8")
    (tmp_path / "folder.nc").mkdir()


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ("curve --covariance missing.npy", "--covariance must be a file with a square matrix"),
        ("curve --covariance wide.csv", r"received 'wide.csv' \(shape \(2, 3\)\)"),
        ("curve --covariance words.csv", "--covariance must be a file with a square matrix"),
        ("curve --covariance negative.txt", "--covariance: .*positive semi-definite"),
        ("curve --covariance lopsided.txt", "--covariance: .*symmetric"),
        ("curve --covariance nan.txt", "--covariance: .*finite"),
        ("curve --covariance eye.npy --dim 3", "--dim must be that of --covariance, 2, or left"),
        ("curve --scale inf", "--scale must be finite; received inf"),
        ("curve --dim 0", "Invalid value for '--dim'"),
        ("curve --method everything", "Invalid value for '--method'"),
        ("curve --from 10 --to 2", "1 <= --from <= --to; received 10 and 2"),
        ("curve --to inf", "--from and --to must be finite.* received 2 and inf"),
        ("curve --from 0", "--from and --to must be finite, with 1 <= --from"),
        ("curve --figure curve.gif", "a figure file must end in"),
        ("curve --out no/such/folder/curve.nc", "the folder of a data file must exist"),
        ("curve --out folder.nc", "a data file must be one that can be written"),
        ("curve --dim 1 --scale 300 --points 2", "sigma must be at most 40"),
        ("curve --json --csv", "--json and --csv exclude each other"),
        ("length 0.1 --relative --quantity gradient-U", "--relative goes with --quantity output"),
        ("length 0.1 --relative --scale 0", "needs a limit that is not 0"),
        ("length 0", "tolerance must be finite and > 0; received 0"),
        ("regime -- -1 10", "sigma must be finite and >= 0"),
        ("regime 1 0.5", "L must be >= 1"),
        ("models fetch tabpfm", "did you mean 'tabpfn'"),
        ("models fetch tabpfn minilm --archive x", "--archive goes with one name; received 2"),
    ],
)
def test_commands_report_user_errors_on_one_line_in_terms_of_options(arguments, rule, files):
    result = _run(*arguments.split())
    assert result.exit_code == 2, result.output
    *usage, line = [part.strip("│ ") for part in result.stderr.splitlines() if "╰" not in part]
    assert re.search(rule, line)
    assert not usage or usage[0].startswith("Usage: ")
    assert not re.search(r"jnp|\bnp\.|\blp\.|\w=\S|pass |Traceback", result.output)
    assert result.stdout == ""


def test_curve_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", full)
    result = _run("curve", "--dim", "1", "--points", "2", "--out", tmp_path / "curve.nc")
    assert result.exit_code == 2
    assert "error: No space left on device" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_commands_print_warnings_on_one_line(monkeypatch):
    def warned(*_, **__):
        warnings.warn("something\nis odd", stacklevel=1)
        raise ValueError("and that\nis an error")

    monkeypatch.setattr(lp.concentration, "regime", warned)
    for _ in range(2):  # in every run of one process
        result = _run("regime", "1", "10")
        assert result.stderr == "warning: something is odd\nerror: and that is an error\n"


@pytest.mark.slow
def test_commands_interrupted_end_with_the_status_of_the_signal():
    code = """
import os, time, largeprompt
def regime(sigma, length):
    try:
        os.kill(os.getpid(), int(sigma))
        time.sleep(60)
    finally:
        print("tidied up")
import largeprompt.concentration
largeprompt.concentration.regime = regime
"""
    for number in (signal.SIGINT, signal.SIGTERM):
        done = _python(code, "regime", str(int(number)), "1")
        assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"tidied up\n", b"")


@pytest.mark.slow
def test_commands_without_a_home_folder():
    code = """
import pwd
def unknown(*_):
    raise KeyError("no such user")
pwd.getpwuid = unknown
"""
    nowhere = {"HOME": "", "XDG_CACHE_HOME": "", "LARGEPROMPT_MODELS": ""}
    done = _python(code, "regime", "1", "100", **nowhere)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
def test_commands_in_a_locale_that_is_not_utf_8(tmp_path):
    posix = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    path, figure = tmp_path / "Σ.csv", tmp_path / "σ.png"
    path.write_text("1.0\n", encoding="utf-8")
    options = ["--covariance", str(path), "--points", "2", "--figure", str(figure)]
    done = _python("", "curve", *options, **posix)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(b"wrote ")
    assert figure.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "arguments"),
    [
        ("computing the curve", ["curve", "--dim", "1", "--points", "2"]),
        ("searching", ["length", "0.01", "--dim", "1"]),
    ],
)
def test_commands_show_a_progress_bar(monkeypatch, label, arguments):
    terminal = on_a_terminal(monkeypatch)
    app(arguments, standalone_mode=False)
    assert label in terminal.getvalue()


def test_keep_compiled_programs_uses_the_cache_folder_of_the_user(tmp_path, monkeypatch):
    """A folder chosen by the user wins; without a usable folder nothing is cached."""
    variables = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    cli.keep_compiled_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cli.keep_compiled_programs()
    made = tmp_path / "cache" / "largeprompt" / "programs"
    assert made.is_dir()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(made)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    cli.keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
