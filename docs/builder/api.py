"""Pages of the API reference: one a room, with an entry for every public name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "largeprompt"

TITLES = {
    "measures": "Measures",
    "attention": "Attention",
    "participation": "Participation moments",
    "prompts": "Averages over prompts",
    "concentration": "Concentration",
    "icl": "Learning in context",
    "dynamics": "Training",
    "compression": "Smaller measures",
    "models": "Real transformers",
    "sweep": "Sweeps",
    "plots": "Figures",
}
_FUNCTION = re.compile(r"^def ([a-z]\w*)", re.MULTILINE)
_IMPORT = re.compile(r"^from \.([\w.]+) import (\w+) as \2$", re.MULTILINE)


def entries() -> dict[str, list[tuple[str, str]]]:
    """For each room its entries: the name in code, and the path of its definition."""
    found: dict[str, list[tuple[str, str]]] = {room: [] for room in TITLES}
    for source, name in _IMPORT.findall((PACKAGE / "__init__.pyi").read_text(encoding="utf-8")):
        found[source.split(".")[0].lstrip("_")].append((f"lp.{name}", _definition(source, name)))
    public = {name.removeprefix("lp.") for names in found.values() for name, _ in names}
    for room in found.keys() - {"models"}:
        for name in _classes(room):
            if name not in public:
                root = "largeprompt" if room in public else "lp"  # a function has the room's name
                found[room].append((f"{root}.{room}.{name}", _definition(room, name)))
    public = {name for name, _ in found["models"]}
    stub = (PACKAGE / "models" / "__init__.pyi").read_text(encoding="utf-8")
    for source, name in _IMPORT.findall(stub):
        if f"lp.{name}" not in public:
            found["models"].append((f"lp.models.{name}", f"largeprompt.models.{source}.{name}"))
    for name in _FUNCTION.findall((PACKAGE / "plots.py").read_text(encoding="utf-8")):
        found["plots"].append((f"lp.plots.{name}", f"largeprompt.plots.{name}"))
    return found


def _classes(room: str) -> list[str]:
    """Classes at the door of a room: what functions return, what is inherited from."""
    inside = PACKAGE / room
    source = "\n".join(path.read_text(encoding="utf-8") for path in inside.rglob("*.py"))
    doors = "\n".join(path.read_text(encoding="utf-8") for path in inside.glob("__init__.py*"))
    names = {name for _, name in _IMPORT.findall(doors)}
    return sorted(names & set(re.findall(r"^class (\w+)", source, re.MULTILINE)))


def _definition(folder: str, name: str) -> str:
    """Path of the module that defines a name of a folder: some have a module of the same name."""
    inside = PACKAGE.joinpath(*folder.split("."))
    if not inside.is_dir():
        return f"largeprompt.{folder}.{name}"
    texts = [path.read_text(encoding="utf-8") for path in inside.glob("__init__.py*")]
    modules = {known: source for text in texts for source, known in _IMPORT.findall(text)}
    return f"largeprompt.{folder}.{modules[name]}.{name}"


def pages() -> dict[str, str]:
    """Markdown of each page, by its name."""
    found = {"index": _index()}
    for room, names in entries().items():
        module = f" Module `largeprompt.{room}`." if (PACKAGE / room).is_dir() else ""
        lines = [f"# {TITLES[room]}\n", f"{_summary(room)}{module}\n"]
        for name, path in names:
            short = name.split(".")[-1]
            options = f'    options:\n      heading: "{name}"\n      toc_label: "{short}"\n'
            lines.append(f"::: {path}\n{options}")
        found[room] = "\n".join(lines)
    return found


def _index() -> str:
    """Every name with the first sentence of its room."""
    lines = ["# API reference\n", "`import largeprompt as lp`. Each public name, by module:\n"]
    for room, names in entries().items():
        links = ", ".join(f"[`{name.removeprefix('lp.')}`][{path}]" for name, path in names)
        lines += [f"## [{TITLES[room]}]({room}.md)\n", f"{_summary(room)}\n", f"{links}\n"]
    return "\n".join(lines)


def _summary(room: str) -> str:
    """First line of the docstring of a room."""
    places = (PACKAGE / room / "__init__.py", PACKAGE / f"{room}.py", PACKAGE / f"_{room}.py")
    source = next(path for path in places if path.exists())
    return source.read_text(encoding="utf-8").splitlines()[0].strip('"')
