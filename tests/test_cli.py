"""The command line, as a user calls it."""

import os
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import largeprompt as lp
from largeprompt import _compiler_options, dynamics
from largeprompt.cli import _compiling
from largeprompt.cli._signals import Terminated
from largeprompt.cli.commands import app

from .terminal import on_a_terminal


def test_largeprompt_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"largeprompt {lp.__version__}\n"


def test_python_m_largeprompt_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "largeprompt", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"largeprompt {lp.__version__}\n"


def test_largeprompt_without_arguments_shows_help():
    result = CliRunner().invoke(app, [])
    assert "reproduce" in result.output


def _run(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.slow
def test_curve_prints_and_writes(tmp_path):
    data, figure = tmp_path / "curve.nc", tmp_path / "curve.pdf"
    options = ["--dim", "2", "--covariance", "rho:0.5", "--to", "1000", "--points", "3"]
    result = _run("curve", *options, "--out", str(data), "--figure", str(figure))
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
    again = _run("curve", *options, "--out", str(data))
    assert "replaced" in again.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curve.nc", "curve.pdf"]


@pytest.mark.slow
def test_curve_of_samples_prints_the_fitted_slope():
    options = ["--dim", "1", "--from", "10", "--to", "100", "--points", "2", "--scale", "0.1"]
    result = _run("curve", "--method", "montecarlo", *options)
    assert result.exit_code == 0, result.output
    assert "fitted slope" in result.output


@pytest.mark.parametrize(
    "covariance",
    ["eigenvalues:1,0.5", "rows:1,0;0,0.5", "file:{folder}/cov.npy", "file:{folder}/cov.csv"],
)
def test_length_accepts_every_form_of_covariance(covariance, tmp_path):
    np.save(tmp_path / "cov.npy", np.diag([1.0, 0.5]))
    np.savetxt(tmp_path / "cov.csv", np.diag([1.0, 0.5]), delimiter=",")
    result = _run("length", "0.01", "--covariance", covariance.format(folder=tmp_path))
    assert result.exit_code == 0, result.output
    assert "tokens bring the squared error down to 0.01" in result.output


@pytest.mark.slow
def test_length_exit_status_is_1_if_no_prompt_is_long_enough():
    result = _run("length", "1e-30", "--dim", "1")
    assert result.exit_code == 1
    assert "No prompt" in result.output


def test_regime_prints_and_draws(tmp_path):
    result = _run("regime", "6", "1000", "--figure", str(tmp_path / "map.png"))
    assert result.exit_code == 0
    assert result.output.startswith("frozen")
    assert (tmp_path / "map.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["curve", "--covariance", "rho:x"],
        ["curve", "--covariance", "circle"],
        ["curve", "--covariance", "rows:1,0;0"],
        ["curve", "--covariance", "file:missing.npy"],
        ["curve", "--covariance", "eigenvalues:-1"],
        ["curve", "--dim", "0"],
        ["curve", "--query", "everything"],
        ["curve", "--quantity", "everything"],
        ["curve", "--method", "everything"],
        ["curve", "--from", "10", "--to", "2"],
        ["curve", "--figure", "curve.gif"],
        ["curve", "--out", "no/such/folder/curve.nc"],
        ["length", "-1"],
        ["regime", "--", "-1", "10"],
    ],
)
def test_commands_report_user_errors_without_traceback(arguments):
    result = _run(*arguments)
    assert result.exit_code == 2
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.output
    assert lines[-1].startswith(("error: ", "╰", "Error")) or "Usage" in result.stderr


def test_curve_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", full)
    result = _run("curve", "--dim", "1", "--points", "2", "--out", str(tmp_path / "curve.nc"))
    assert result.exit_code == 2
    assert "error: No space left on device" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_flow_prints_both_phases_and_writes(tmp_path):
    data, figure = tmp_path / "flow.nc", tmp_path / "flow.png"
    options = ["-d", "1", "--covariance", "identity", "-L", "100,inf", "--alpha", "0.5"]
    result = _run("flow", *options, "--out", str(data), "--figure", str(figure))
    assert result.exit_code == 0, result.output
    assert "admissible below 1.414" in result.output
    assert result.output.count("stationary at time") == 2
    assert figure.read_bytes().startswith(b"\x89PNG")
    with xr.open_dataset(data) as flows:
        np.testing.assert_allclose(flows.b.values[:, -1], [1.322, 1.0], atol=5e-4)


def test_risk_prints_the_best_heads(tmp_path):
    figure = tmp_path / "risk.svg"
    result = _run("risk", "-d", "1", "-L", "10,100", "--noise", "0", "--figure", str(figure))
    assert result.exit_code == 0, result.output
    task = lp.LinearRegression([[1.0]], [[0.2]])
    for L in (10, 100):
        assert f"{float(task.minimiser(L).risk):.6f}" in result.output
    assert figure.exists()


@pytest.mark.slow
def test_train_resumes_with_its_own_options(tmp_path):
    folder = tmp_path / "run"
    options = ["--steps", "20", "-L", "10", "--method", "exact", "--out", str(folder)]
    first = _run("train", *options)
    assert first.exit_code == 0, first.output
    names = {"options.json", "experiment.nc", "experiment.png", "experiment.pdf"}
    assert names <= {path.name for path in folder.iterdir()}
    with xr.open_dataset(folder / "experiment.nc") as data:
        before = data.load()
    assert "--resume" in _run("train", *options).output
    again = _run("train", "--resume", str(folder))
    assert again.exit_code == 0, again.output
    with xr.open_dataset(folder / "experiment.nc") as data:
        xr.testing.assert_equal(before.final_risk, data.final_risk)


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_train_interrupted_says_how_to_continue(tmp_path, monkeypatch, error, status):
    def interrupted(**options):
        raise error

    monkeypatch.setattr(dynamics, "published_experiment", interrupted)
    result = _run("train", "--out", str(tmp_path))
    assert result.exit_code == status
    assert result.stderr == f"stopped; continue with: largeprompt train --resume {tmp_path}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "arguments"),
    [
        ("computing the curve", ["curve", "--dim", "1", "--points", "2"]),
        ("searching", ["length", "0.01", "--dim", "1"]),
        ("minimising", ["risk", "-d", "1", "-L", "10,100", "--noise", "0"]),
        ("integrating the flows", ["flow", "-d", "1", "-L", "100,inf", "--alpha", "0.5"]),
        ("2 runs", ["train", "--steps", "20", "-L", "10", "--method", "exact"]),
    ],
)
def test_commands_show_a_progress_bar(monkeypatch, label, arguments):
    terminal = on_a_terminal(monkeypatch)
    app(arguments, standalone_mode=False)
    assert label in terminal.getvalue()


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["flow", "-L", "ten"], "--lengths must be numbers"),
        (["flow", "--attention", "hard"], "is not one of 'softmax', 'linear'"),
        (["train", "--resume", "nowhere"], "--resume must name a folder"),
        (["train", "--out", "a", "--resume", "b"], "exclude each other"),
        (["train", "--variant", "papre"], "is not one of 'paper'"),
        (["risk", "-L", "0"], "L must be >= 1"),
    ],
)
def test_training_commands_report_user_errors_without_traceback(
    arguments, rule, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = _run(*arguments)
    assert result.exit_code == 2
    assert rule in " ".join(result.output.replace("│", " ").split())
    assert "Traceback" not in result.output


def test_keep_compiled_programs_uses_the_cache_folder_of_the_user(tmp_path, monkeypatch):
    """A folder chosen by the user wins; without a usable folder nothing is cached."""
    variables = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    _compiling.keep_compiled_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _compiling.keep_compiled_programs()
    made = tmp_path / "cache" / "largeprompt" / "programs"
    assert made.is_dir()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(made)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    _compiling.keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"


def test_compile_quickly_sets_the_older_emitter_unless_the_user_chose(monkeypatch):
    """XLA aborts on unknown flags, so only known versions of jaxlib get it."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    monkeypatch.setattr(_compiler_options, "version", lambda package: "0.10.1")
    _compiling.compile_quickly()
    assert os.environ["XLA_FLAGS"] == (
        "--xla_dump_to=here --xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
    )
    _compiling.compile_quickly()
    assert os.environ["XLA_FLAGS"].count("fusion_emitters") == 1
    chosen = "--xla_cpu_use_fusion_emitters=true --xla_backend_optimization_level=3"
    monkeypatch.setenv("XLA_FLAGS", chosen)
    _compiling.compile_quickly()
    assert os.environ["XLA_FLAGS"] == chosen
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(_compiler_options, "version", lambda package: "9.9.0")
    _compiling.compile_quickly()
    assert os.environ["XLA_FLAGS"] == "--xla_backend_optimization_level=1"


def test_one_thread_for_matrices_unless_the_user_chose(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    _compiling.one_thread_for_matrices()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    _compiling.one_thread_for_matrices()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"


def test_commands_do_not_import_numpy_before_its_settings():
    code = "import sys; from largeprompt.cli.commands import app; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
