"""The classes that the documents print, for tests of the documents' own code."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def classes_in(document: str, base: type) -> dict[str, type]:
    """The subclasses of `base` in the python blocks of docs/`document`, by name.

    Only imports and classes are executed, not what the document prints.
    """
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL)
    nodes = ast.parse("\n".join(blocks)).body
    kept: list[ast.stmt] = [
        node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef)
    ]
    names: dict = {"__name__": document}
    exec(compile(ast.Module(kept, []), document, "exec"), names)
    classes = {k: v for k, v in names.items() if isinstance(v, type) and v.__module__ == document}
    return {name: cls for name, cls in classes.items() if issubclass(cls, base)}
