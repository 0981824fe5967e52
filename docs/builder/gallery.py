"""Pages of the gallery: each example with its output and its figure."""

import ast
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from largeprompt._provenance import code_version

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "out" / "gallery"


class Example(NamedTuple):
    """A script that ran: its question (the title), introduction, code, output and figure."""

    name: str
    question: str
    introduction: str
    code: str
    output: str
    figure: Path

    def page(self) -> str:
        """Markdown of the page."""
        return (
            f"# {self.question}\n\n{self.introduction}\n\n"
            f"![The figure that the script draws]({self.figure.name}){{ .figure }}\n\n"
            f'```text title="Output"\n{self.output}```\n\n'
            f'```python title="examples/{self.name}.py"\n{self.code}```\n\n'
            f"Run it: `python examples/{self.name}.py {self.name}.png`\n"
        )

    def card(self) -> str:
        """Entry of the index."""
        return (
            f"-   [![]({self.figure.name})]({self.name}.md)\n\n"
            f"    **[{self.question}]({self.name}.md)**\n"
        )


def examples(names: list[str]) -> list[Example]:
    """Run the examples, two at a time. Outputs of unchanged code are taken from out/gallery."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(_run, names))


def index(found: list[Example]) -> str:
    """Markdown of the first page."""
    cards = "\n".join(example.card() for example in found)
    return (
        "# Gallery\n\nEach script answers one question. Outputs and figures are made when this "
        "site is built, by the scripts in `examples/`.\n\n"
        f'<div class="gallery" markdown>\n\n{cards}\n</div>\n'
    )


def kept(name: str) -> tuple[Path, Path]:
    """Where figure and output of an example are kept; the folder is made."""
    code = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    version = hashlib.sha256(f"{code_version()} {sys.version} {code}".encode()).hexdigest()[:16]
    folder = FOLDER / version
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.png", folder / f"{name}.txt"


def _run(name: str) -> Example:
    script = ROOT / "examples" / f"{name}.py"
    code = script.read_text(encoding="utf-8")
    figure, output = kept(name)
    if not output.exists():
        ran = subprocess.run(
            [sys.executable, str(script), str(figure)],
            capture_output=True,
            text=True,
            env=os.environ | {"MPLBACKEND": "agg"},
        )
        if ran.returncode:
            raise RuntimeError(f"examples/{name}.py failed:\n{ran.stderr}")
        output.write_text(ran.stdout, encoding="utf-8")
    module = ast.parse(code)
    question, _, introduction = (ast.get_docstring(module) or "").partition("\n")
    after = module.body[0].end_lineno or 0  # the docstring is the introduction
    shown = "".join(code.splitlines(keepends=True)[after:]).lstrip()
    printed = output.read_text(encoding="utf-8")
    return Example(name, question, introduction.strip(), shown, printed, figure)
