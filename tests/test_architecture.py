"""The shape of the source: which way imports point, doors of rooms, classes, line lengths."""

import ast
from pathlib import Path

import largeprompt as lp

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "largeprompt"
ROOMS = ["measures", "participation", "attention", "prompts", "concentration", "icl", "dynamics"]
ROOMS += ["compression", "models", "plots", "cli", "__main__"]
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path: Path) -> list[list[str]]:
    """What a file imports from the package, as [room, module, name] and the like."""
    package = ["largeprompt", *path.relative_to(SOURCE).parent.parts]
    found = []
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module or "").split(".")]
            found += [[part for part in (*module, alias.name) if part] for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name.split(".") for alias in node.names]
    return [target[1:] for target in found if target[0] == "largeprompt" and target[1:]]


def test_imports_point_to_the_left_and_through_doors():
    """A helper at the root imports no room. Nothing private is imported from another room."""
    for path in FILES:
        here = _room(path)
        for target in _imports(path):
            if target[0] in ROOMS and target[0] != here:
                assert here in ROOMS, (path, target)
                assert ROOMS.index(target[0]) < ROOMS.index(here), (path, target)
                assert not any(part.startswith("_") for part in target[1:]), (path, target)


def test_rooms_of_the_source_have_a_place():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders - {"_native"} <= set(ROOMS)


def test_classes_of_the_library_are_not_asked_for():
    """What a measure, a task, a head or parameters can do is a method."""
    abstract = (lp.AbstractMeasure, lp.AbstractTask, lp.AbstractParams)
    final = {
        name
        for name in lp.__all__
        if isinstance(kind := getattr(lp, name), type) and issubclass(kind, abstract)
        if not name.startswith("Abstract")
    }
    assert {"Gaussian", "LinearRegression", "BlockParams"} <= final
    for path, tree in TREES.items():
        nodes = list(ast.walk(tree))
        calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        asked = [n.args[1] for n in calls if ast.unparse(n.func) == "isinstance"]
        asked += [n.cls for n in nodes if isinstance(n, ast.MatchClass)]
        names = {n.id for part in asked for n in ast.walk(part) if isinstance(n, ast.Name)}
        own = {n.name for n in nodes if isinstance(n, ast.ClassDef)}
        assert not names & final - own, path


def test_lines_are_at_most_100_columns_long():
    for folder in ("src", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            assert max(map(len, path.read_text().splitlines()), default=0) <= 100, path
