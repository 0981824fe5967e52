"""The command line as a user meets it."""

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import largeprompt as lp
from largeprompt.cli import app


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"largeprompt {lp.__version__}\n"


def test_no_arguments_show_help():
    result = CliRunner().invoke(app, [])
    assert "reproduce" in result.output


def _run(*arguments):
    return CliRunner().invoke(app, list(arguments))


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


def test_sampled_curve_reports_its_slope():
    options = ["--dim", "1", "--from", "10", "--to", "100", "--points", "2", "--scale", "0.1"]
    result = _run("curve", "--method", "montecarlo", *options)
    assert result.exit_code == 0, result.output
    assert "fitted slope" in result.output


@pytest.mark.parametrize(
    "covariance", ["eigenvalues:1,0.5", "file:{folder}/cov.npy", "file:{folder}/cov.csv"]
)
def test_covariance_families(covariance, tmp_path):
    np.save(tmp_path / "cov.npy", np.diag([1.0, 0.5]))
    np.savetxt(tmp_path / "cov.csv", np.diag([1.0, 0.5]), delimiter=",")
    result = _run("length", "0.01", "--covariance", covariance.format(folder=tmp_path))
    assert result.exit_code == 0, result.output
    assert "tokens bring the squared error down to 0.01" in result.output


def test_length_that_does_not_exist_is_exit_status_1():
    result = _run("length", "1e-30", "--dim", "1")
    assert result.exit_code == 1
    assert "No prompt" in result.output


def test_regime_in_words(tmp_path):
    result = _run("regime", "6", "1000", "--figure", str(tmp_path / "map.png"))
    assert result.exit_code == 0
    assert result.output.startswith("frozen")
    assert (tmp_path / "map.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["curve", "--covariance", "rho:x"],
        ["curve", "--covariance", "circle"],
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
def test_mistakes_end_in_one_line(arguments):
    result = _run(*arguments)
    assert result.exit_code == 2
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.output
    assert lines[-1].startswith(("error: ", "╰", "Error")) or "Usage" in result.stderr


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", full)
    result = _run("curve", "--dim", "1", "--points", "2", "--out", str(tmp_path / "curve.nc"))
    assert result.exit_code == 2
    assert "error: No space left on device" in result.stderr
    assert list(tmp_path.iterdir()) == []
