"""The modules of docs/builder, which mkdocs loads by path."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def builder(name: str) -> ModuleType:
    """A module of docs/builder that needs no mkdocs."""
    return module_at(ROOT / "docs" / "builder" / f"{name}.py")


def module_at(path: Path) -> ModuleType:
    """The module in a file outside of packages."""
    spec = importlib.util.spec_from_file_location(f"site_builder_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generated_pages() -> set[str]:
    """Pages of the site that are not in docs: they are made when it is built."""
    examples = {f"gallery/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    reference = {f"api/{name}.md" for name in builder("api").pages()}
    return {"changelog.md", "contributing.md", "gallery/index.md"} | examples | reference
