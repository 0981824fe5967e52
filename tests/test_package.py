"""The package as a whole: cost of importing, public names, version."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import largeprompt as lp

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "largeprompt"
STUB = SOURCE / "__init__.pyi"  # lists the public names


def _python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


FIRST_STEPS = """
import json, sys
import largeprompt as lp
found = {"imported": [name for name in ("jax", "numpy") if name in sys.modules]}
lp.Gaussian; lp.attend; lp.Layer
import jax
chosen = jax.config.jax_platforms
jax.config.update("jax_platforms", "no_such_backend")  # fails as long as none has started
try:
    found["started"] = bool(jax.devices())
except RuntimeError:
    found["started"] = False
jax.config.update("jax_platforms", chosen)
lp.attend(lp.Head(U=[[1.0]], V=[[1.0]]), lp.Rademacher(1), [1.0])
found["precision"] = [jax.config.jax_enable_x64, str(jax.numpy.ones(1).dtype)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def first_steps() -> dict:
    """What a new process has loaded and set after importing, after naming, and after a call."""
    return json.loads(_python(FIRST_STEPS))


def test_importing_does_not_load_jax(first_steps):
    """JAX and NumPy are not imported until a name is used."""
    assert first_steps["imported"] == []


def test_using_a_name_does_not_start_a_backend(first_steps):
    assert first_steps["started"] is False


def test_calls_do_not_change_the_global_precision(first_steps):
    assert first_steps["precision"] == [False, "float32"]


def test_help_and_version_do_not_load_jax():
    code = (
        "import sys; from typer.testing import CliRunner\n"
        "from largeprompt.cli.commands import app\n"
        "run = CliRunner().invoke\n"
        "asked = [run(app, [flag]) for flag in ('--help', '--version')]\n"
        "print([answer.exit_code for answer in asked])\n"
        "print(bool(set(asked[0].output) & set('│─╭')))\n"  # no boxes: output is a pipe
        "print(bool({'jax', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    assert _python(code) == "[0, 0]\nFalse\nFalse\n"


def test_public_names_exist_and_match_what_type_checkers_see():
    seen = re.findall(r"^from \S+ import (\w+) as (\w+)$", STUB.read_text(), flags=re.MULTILINE)
    assert sorted(name for name, _ in seen) == sorted(lp.__all__)
    assert all(name == exported for name, exported in seen)
    for name in lp.__all__:
        assert getattr(lp, name).__doc__, f"{name} has no docstring"
    with pytest.raises(AttributeError, match=r"attribute 'Gausian'\. Did you mean 'Gaussian'"):
        lp.Gausian  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert "Gaussian" in dir(lp)


FIRST_IMPORTS = [
    "import largeprompt as lp; lp.participation",
    "import largeprompt as lp; from largeprompt.participation import ParticipationTable",
    "import largeprompt as lp; lp.output_error",
    "from largeprompt.participation.table import ParticipationTable; import largeprompt as lp",
]


@pytest.fixture(scope="module")
def participations() -> dict[str, list]:
    """What `participation` is after each of the first imports, all modules of ours loaded anew."""
    code = (
        "import json, sys\nfound = {}\n"
        f"for first in {FIRST_IMPORTS}:\n"
        "    for name in [name for name in sys.modules if name.startswith('largeprompt')]:\n"
        "        del sys.modules[name]\n"
        "    exec(first)\n"
        "    from largeprompt.participation import MomentTable\n"
        "    from largeprompt import participation\n"
        "    value = round(float(participation(1.0, 50).p2), 6)\n"
        "    found[first] = [lp.participation is participation, value]\n"
        "print(json.dumps(found))"
    )
    return json.loads(_python(code))


@pytest.mark.parametrize("first", FIRST_IMPORTS)
def test_participation_is_a_function_whatever_is_imported_first(first, participations):
    assert participations[first] == [True, 0.048706]


def test_core_depends_on_at_most_eleven_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(project["dependencies"]) <= 11
    extras = project["optional-dependencies"]
    assert "largeprompt[all,docs,models]" in extras["test"]
    assert extras["all"] == ["largeprompt[cli,cluster,report]"]


def test_version_and_date_are_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {lp.__version__}\n" in citation
    day = re.search(r"^date-released: (\S+)$", citation, re.MULTILINE)
    assert day is not None
    assert f"## {lp.__version__} ({day[1]})" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("linearize", "'linearise'"),
        ("Task", "'AbstractTask'"),
        ("probe", "'models.probe'"),
        ("gaussian", "'Gaussian'"),
        ("Trajectory", "'dynamics.Trajectory'"),
        ("plot", "'plots'"),
        ("outputerror", "'OutputError'"),
    ],
)
def test_getattr_suggests_the_right_name(wrong, right):
    with pytest.raises(AttributeError, match=f"no attribute '{wrong}'. Did you mean {right}"):
        getattr(lp, wrong)


@pytest.mark.parametrize("wrong", ["xyzzy", "__wrapped__"])
def test_getattr_without_a_suggestion(wrong):
    with pytest.raises(AttributeError, match=f"has no attribute '{wrong}'"):
        getattr(lp, wrong)
    assert not hasattr(lp, wrong)
