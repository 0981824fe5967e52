"""The shape of the source: which way imports point, names, words, line lengths, documentation."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import largeprompt as lp

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "largeprompt"
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = (
    "measures",
    "participation",
    "attention",
    "prompts",
    "concentration",
    "icl",
    "dynamics",
    "compression",
    "models",
    "sweep",
    "reproduce",
    "cli",
    "__main__",  # python -m largeprompt
)
LONGEST_LINE = 100


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path: Path) -> list[tuple[str, ...]]:
    """What a file imports from the package: ("room", "module", "name") and the like."""
    package = ["largeprompt", *path.relative_to(SOURCE).parent.parts]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module or "").split(".")]
            found += [[*module, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name.split(".") for alias in node.names]
    targets = [[part for part in target if part] for target in found]
    return [tuple(target[1:]) for target in targets if target[0] == "largeprompt" and target[1:]]


def _python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _edges() -> set[tuple[str, str]]:
    """(room, room that it imports)."""
    return {
        (_room(path), target[0])
        for path in SOURCE.rglob("*.py")
        if _room(path) in ROOMS
        for target in _imports(path)
        if target[0] in ROOMS and target[0] != _room(path)
    }


def test_imports_point_to_the_left():
    edges = _edges()
    assert len(edges) > 10
    for room, other in edges:
        assert ROOMS.index(other) < ROOMS.index(room), f"{room} imports {other}"


def test_imports_of_root_helpers_reach_no_room():
    helpers = [path for path in SOURCE.glob("*.py") if _room(path) not in ROOMS]
    assert SOURCE / "_checks.py" in helpers
    for path in helpers:
        assert not {target[0] for target in _imports(path)} & set(ROOMS), path.name


def test_imports_of_other_rooms_are_public():
    found = {
        (path.relative_to(SOURCE).as_posix(), ".".join(target))
        for path in SOURCE.rglob("*.py")
        for target in _imports(path)
        if target[0] in ROOMS and target[0] != _room(path)
        if any(part.startswith("_") for part in target[1:])
    }
    assert not found


def test_module_names_are_not_shared_by_rooms():
    rooms_of = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        if path.stem != "__init__":
            rooms_of[path.stem].add(_room(path) if path.parent != SOURCE else "")
    shared = {name for name, rooms in rooms_of.items() if len(rooms) > 1}
    assert not shared


def test_import_graph_in_the_documentation_is_true():
    """The block of docs/architecture.md has one line `room --> room` for each import of a room."""
    edges = sorted(_edges(), key=lambda edge: (ROOMS.index(edge[0]), ROOMS.index(edge[1])))
    expected = [f"    {room} --> {other}" for room, other in edges if room != "__main__"]
    block = re.search(r"```mermaid\ngraph RL\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert block is not None
    assert block[1].splitlines() == expected, "\n".join(expected)


def test_rooms_are_described_in_the_documentation():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")} - {"_native"}
    assert folders == set(ROOMS) - {"__main__"}
    for room in folders:
        assert f"| `{room}` |" in PAGE.read_text(), room


def test_lines_are_at_most_100_columns_long():
    found = {
        path.relative_to(ROOT).as_posix()
        for path in _python_files("src", "tests", "benchmarks", "examples")
        if any(len(line) > LONGEST_LINE for line in path.read_text().splitlines())
    }
    assert not found


def test_public_names_are_documented():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(path.read_text() for path in pages)
    missing = {
        name for name in lp.__all__ if not re.search(rf"lp\.{name}\b|`{name}\b|\b{name}\(", text)
    }
    assert not missing


WORDS = (r"\bcompan(?:y|ies)\b", r"\bstretch(?:es)?\b", r"\bheld\b(?![- ]out)", r"\brefusals?\b",
         r"\bof one's own\b", r"To fix: name one")  # fmt: skip
SOURCE_WORDS = (r"\boracles?\b", r"\bcontents?\b")


def test_words_that_mean_something_else_do_not_occur():
    files = _python_files("src", "tests", "benchmarks", "examples")
    files += [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = set()
    for path in files:
        if path == Path(__file__):
            continue
        words = WORDS + SOURCE_WORDS if path.is_relative_to(SOURCE) else WORDS
        for word in re.findall("|".join(words), path.read_text()):
            found.add((path.relative_to(ROOT).as_posix(), word))
    assert not found


# Concrete classes that nothing outside their own module may ask for: capabilities are methods.
CONCRETE = [
    "Dirac",
    "Gaussian",
    "Empirical",
    "Mixture",
    "Rademacher",
    "Uniform",
    "Sphere",
    "AffineImage",
    "IndependentSum",
    "Tilted",
    "LinearRegression",
    "ProductRegression",
    "HeadParams",
    "BlockParams",
    "FactoredParams",
    "MultiHeadParams",
    "MultiHead",
]


def test_classes_are_not_asked_for_by_isinstance_or_match():
    found = []
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for node in ast.walk(tree):
            names: set[str] = set()
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            elif isinstance(node, ast.MatchClass):
                names = {n.id for n in ast.walk(node.cls) if isinstance(n, ast.Name)}
            found += [(path.name, name) for name in names & set(CONCRETE) - own]
    assert not found
