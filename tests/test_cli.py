"""The command line as a user meets it."""

from typer.testing import CliRunner

import largeprompt as lp
from largeprompt import studies
from largeprompt.cli import app
from largeprompt.studies.base import at_most


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"largeprompt {lp.__version__}\n"


def test_no_arguments_show_help():
    result = CliRunner().invoke(app, [])
    assert "reproduce" in result.output


def test_reproduce_exits_with_the_verdict(monkeypatch):
    for value, code, word in ((0.0, 0, "holds"), (1.0, 1, "fails"), (float("nan"), 1, "fails")):
        checks = [at_most("a [made-up] statement", value, 0.5)]
        monkeypatch.setattr(studies, "run_all", lambda key, checks=checks: checks)
        result = CliRunner().invoke(app, ["reproduce"])
        assert result.exit_code == code
        assert word in result.output
        assert "[made-up]" in result.output


def test_nothing_computed_is_not_success(monkeypatch):
    monkeypatch.setattr(studies, "run_all", lambda key: [])
    assert CliRunner().invoke(app, ["reproduce"]).exit_code == 1
