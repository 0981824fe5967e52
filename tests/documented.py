"""The classes that the documents print, for tests of the documents' own code."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def classes_in(document: str, base: type) -> dict[str, type]:
    """The direct or indirect subclasses of `base` in the python blocks of docs/`document`, by name.

    Only these classes and the imports before them are executed.
    """
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL)
    known = {base.__name__, *(cls.__name__ for cls in base.__subclasses__())}
    nodes = ast.parse("\n".join(blocks)).body
    wanted = [node for node in nodes if isinstance(node, ast.ClassDef) and _bases(node) & known]
    names: dict = {"__name__": document}
    for node in nodes[: 1 + nodes.index(wanted[-1])]:
        if node in wanted or isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), document, "exec"), names)
    return {node.name: names[node.name] for node in wanted}


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).split(".")[-1] for base in node.bases}
