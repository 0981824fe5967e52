"""Answers of commands for people and for programs, and examples in `--help`."""

import csv
import inspect
import io
import json
import shlex

import pytest
from typer.testing import CliRunner

from largeprompt.cli._output import Answer
from largeprompt.cli.commands import app
from largeprompt.cli.model_commands import models
from largeprompt.concentration import regime

CURVE = ("curve", "--dim", "1", "--from", "10", "--to", "100", "--points", "2")
COMMANDS = {
    "curve": (CURVE, {"length", "squared_error", "error", "local_slope"}),
    "regime": (
        ("regime", "3", "1000"),
        {"sigma", "length", "regime", "x", "effective_tokens", "p2", "relative_error"},
    ),
    "length": (("length", "0.5", "--dim", "1"), {"length", "squared_error", "tolerance"}),
}


def _run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_print_the_same_numbers_in_every_form(name):
    arguments, names = COMMANDS[name]
    rows = list(csv.DictReader(io.StringIO(_run(*arguments, "--csv").stdout)))
    found = json.loads(_run(*arguments, "--json").stdout)
    assert set(rows[0]) == names
    stored = found["rows"] or [found["facts"]]
    assert [{key: str(row[key]) for key in names} for row in stored] == rows
    plain = _run(*arguments).stdout
    assert not set(plain) & set("│┃━─╭")
    assert all(note in plain for note in found["notes"])


def test_every_command_has_both_forms():
    commands = [*app.registered_commands, *models.registered_commands]
    assert len(commands) > len(COMMANDS)  # the others are run by their own tests
    for command in commands:
        assert command.callback is not None
        assert {"as_json", "as_csv"} <= set(inspect.signature(command.callback).parameters)


def test_regime_has_its_numbers_as_facts():
    facts = json.loads(_run("regime", "3", "1000", "--json").stdout)["facts"]
    found = regime(3.0, 1000)
    assert facts["effective_tokens"] == 1 / found.p2
    assert (facts["p2"], facts["relative_error"]) == (found.p2, found.relative_error)
    facts = json.loads(_run("regime", "3", "inf", "--json").stdout)["facts"]
    assert facts["effective_tokens"] == "inf"


def test_answer_in_json_has_no_number_that_json_lacks(capsys):
    answer = Answer()
    answer.column("L", "L", [1.0, float("inf"), float("nan")])
    answer.print(as_json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["L"] for row in rows] == [1.0, "inf", None]


def test_answer_has_lines_around_it_on_a_terminal(monkeypatch, capsys):
    answer = Answer("a title")
    answer.column("word", "word", ["[bold]"])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    answer.print()
    shown = capsys.readouterr().out
    assert "[bold]" in shown
    assert "│" in shown


COMMAND_LINES = {
    prefix + (command.name or getattr(command.callback, "__name__", "")): command
    for prefix, group in (("", app), ("models ", models))
    for command in group.registered_commands
}


@pytest.mark.parametrize(("name", "command"), COMMAND_LINES.items(), ids=COMMAND_LINES)
def test_help_shows_an_example_that_parses(name, command):
    shown = " ".join(CliRunner().invoke(app, [*name.split(), "--help"]).stdout.split())
    assert f"Example: largeprompt {name}" in shown
    lines = [line.strip() for line in command.callback.__doc__.splitlines()]
    example = next(line for line in lines if line.startswith("Example: "))
    asked = CliRunner().invoke(app, [*shlex.split(example)[2:], "--help"])
    assert asked.exit_code == 0, asked.output


@pytest.mark.parametrize("group", [(), ("models",)], ids=["largeprompt", "models"])
def test_help_of_groups_shows_the_line_of_a_command(group):
    shown = CliRunner().invoke(app, [*group, "--help"]).stdout
    (example,) = (line.strip() for line in shown.splitlines() if "Example: " in line)
    name = " ".join(shlex.split(example)[2 : 3 + len(group)])
    assert name in COMMAND_LINES
