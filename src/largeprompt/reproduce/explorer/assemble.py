"""The page of the explorer, put together from its parts: one file without external resources.

The scripts are ES modules that import each other. A page opened from a file cannot load modules, so
each becomes a function that returns its exports, after those it imports.
"""

import re
from functools import cache
from pathlib import Path

from ..._files import atomic_write, check_target

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    "participation.js",
    "matrices.js",
    "tables.js",
    "learning.js",
    "numbers.js",
    "sampling.js",
    "python.js",
    "charts.js",
    "explorer.js",
)
_IMPORT = re.compile(r"^import (\{[^}]*\}) from \"\./([a-z]+)\.js\";$", flags=re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const) (\w+))", flags=re.MULTILINE)


@cache
def page() -> str:
    """HTML of the explorer.

    >>> from largeprompt.reproduce.explorer import page
    >>> page()[:15]
    '<!doctype html>'
    """
    scripts = map(_enclosed, _SCRIPTS)
    parts = {
        "/* style.css */": _text("style.css"),
        "/* tables.json */": (_ASSETS.parent / "tables.json").read_text(encoding="utf-8"),
        "/* scripts */": "\n".join(scripts),
    }
    html = _text("page.html")
    for place, part in parts.items():
        html = html.replace(place, part.strip())
    return html


def _enclosed(script: str) -> str:
    """A module as a function, called at once, that returns its exports."""
    source = _text(script)
    exports = ", ".join(name for _, name in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \2Module;", source))
    name = script.removesuffix(".js")
    return f"const {name}Module = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"


def write_page(path: Path) -> Path:
    """Write the explorer to an .html file; an existing file is replaced when the new is complete.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from largeprompt.reproduce.explorer import write_page
    >>> write_page(Path(tempfile.mkdtemp()) / "explorer.html").name
    'explorer.html'
    """
    check_target(path, "page", (".html", ".htm"))
    with atomic_write(path) as name:
        Path(name).write_text(page(), encoding="utf-8")
    return path


def _text(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
