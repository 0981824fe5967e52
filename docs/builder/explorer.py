"""The explorer, put together from docs/explorer: one HTML file without external resources.

Run it to write the page and open it: `python docs/builder/explorer.py [FILE]`.

The scripts are ES modules that import each other. A page opened from a file cannot load modules, so
each becomes a function that returns its exports, after those it imports.
"""

import re
import sys
import webbrowser
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ROOT / "docs" / "explorer"
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


def page() -> str:
    """HTML of the explorer."""
    html = _text("page.html")
    parts = {name: _text(name) for name in ("style.css", "tables.json")}
    parts["scripts"] = "\n".join(map(_enclosed, _SCRIPTS))
    for name, part in parts.items():
        html = html.replace(f"/* {name} */", part.strip())
    return html


def _enclosed(script: str) -> str:
    """A module as a function, called at once, that returns its exports."""
    source = _text(script)
    exports = ", ".join(name for _, name in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \2Module;", source))
    name = script.removesuffix(".js")
    return f"const {name}Module = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"


def _text(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "out" / "explorer.html").resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")
    print(f"explorer: {target}")
    if not webbrowser.open(target.as_uri()):
        print("no browser was found: open the file yourself", file=sys.stderr)
