"""The package as a whole: what importing costs, which way imports point, what the documents claim."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import largeprompt as lp

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "largeprompt"
STUB = SOURCE / "__init__.pyi"  # lists the public names
ROOMS = (
    "measures",
    "participation",
    "attention",
    "prompts",
    "concentration",
    "icl",
    "dynamics",
    "sweep",
    "reproduce",
    "cli",
    "__main__",  # python -m largeprompt
)


def _python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_importing_does_not_load_jax():
    """Cheap to import, and no backend is started: jax is not even loaded until a name is used."""
    assert _python(
        "import sys, largeprompt; print('jax' in sys.modules, 'numpy' in sys.modules)"
    ) == ("False False\n")


def test_using_a_name_does_not_start_a_backend():
    code = (
        "import largeprompt as lp; lp.Gaussian; lp.attend; lp.Layer\n"
        "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    )
    assert _python(code) == "False\n"


def test_the_global_precision_is_left_alone():
    code = (
        "import largeprompt as lp, jax; lp.attend(lp.Head(U=[[1.0]], V=[[1.0]]), lp.Rademacher(1), [1.0])\n"
        "print(jax.config.jax_enable_x64, lp.Gaussian([0.0], [[1.0]]).mean().dtype)"
    )
    assert _python(code) == "False float32\n"


def test_help_and_version_do_not_load_jax():
    code = (
        "import sys; from typer.testing import CliRunner; from largeprompt.cli.commands import app\n"
        "run = CliRunner().invoke\n"
        "print([run(app, [flag]).exit_code for flag in ('--help', '--version')], 'jax' in sys.modules)"
    )
    assert _python(code) == "[0, 0] False\n"


def test_public_names_exist_and_match_what_type_checkers_see():
    seen = re.findall(r"^from \S+ import (\w+) as (\w+)$", STUB.read_text(), flags=re.MULTILINE)
    assert sorted(name for name, _ in seen) == sorted(lp.__all__)
    assert all(name == exported for name, exported in seen)
    for name in lp.__all__:
        assert getattr(lp, name).__doc__, f"{name} has no docstring"
    with pytest.raises(AttributeError, match="attribute Gausian"):
        lp.Gausian  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert "Gaussian" in dir(lp)


@pytest.mark.parametrize(
    "first",
    [
        "import largeprompt as lp; lp.participation",
        "import largeprompt as lp; from largeprompt.participation import ParticipationTable",
        "import largeprompt as lp; lp.output_error",
        "from largeprompt.participation.table import ParticipationTable; import largeprompt as lp",
    ],
)
def test_participation_is_a_function_whatever_is_imported_first(first):
    code = (
        f"{first}; from largeprompt.participation import MomentTable\n"
        "from largeprompt import participation\n"
        "print(lp.participation is participation, round(float(participation(1.0, 50).p2), 6))"
    )
    assert _python(code) == "True 0.048706\n"


def _imported_rooms(path: Path) -> set[str]:
    """Rooms of the package that a file imports, relative imports resolved."""
    package = ["largeprompt", *path.relative_to(SOURCE).parent.parts]
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module or "").split(".")]
            targets = [[*module, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        else:
            continue
        for target in (list(filter(None, t)) for t in targets):
            if target[0] == "largeprompt" and len(target) > 1 and target[1] in ROOMS:
                rooms.add(target[1])
    return rooms


def test_imports_point_to_the_left():
    """Measures <- attention <- prompts <- ... : a room may use only the rooms before it."""
    files = [
        path for path in SOURCE.rglob("*.py") if path.name != "__init__.py" or path.parent != SOURCE
    ]
    checked = 0
    for path in files:
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room not in ROOMS:
            assert not _imported_rooms(path), f"{path.name} stands below all rooms"
            continue
        for other in _imported_rooms(path):
            assert ROOMS.index(other) <= ROOMS.index(room), f"{path} imports {other}"
            checked += 1
    assert checked > 5


def test_every_test_file_is_collected():
    """Pytest collects test_*.py: a file with tests under another name would never run."""
    for path in (ROOT / "tests").rglob("*.py"):
        defines_tests = re.search(r"^def test_", path.read_text(), flags=re.MULTILINE)
        assert bool(defines_tests) == path.name.startswith("test_"), path


def test_every_test_can_fail():
    """A test body must hold an assertion or an expected exception."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                source = ast.unparse(node)
                assert "assert" in source or "pytest.raises" in source, f"{path.name}: {node.name}"


def test_version_is_stated_once():
    assert lp.__version__ in (ROOT / "CITATION.cff").read_text()
    assert f"## {lp.__version__}" in (ROOT / "CHANGELOG.md").read_text()
