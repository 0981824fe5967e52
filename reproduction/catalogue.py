"""Find studies: every file of the folder `studies`, and files that are named."""

import ast
import hashlib
import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path

from .study import Study

FOLDER = Path(__file__).parent / "studies"


@cache
def load(file: Path) -> Study:
    """The `STUDY` of a file."""
    if file.parent == FOLDER:
        module = importlib.import_module(f"reproduction.studies.{file.stem}")
    else:
        spec = importlib.util.spec_from_file_location(f"study_in_{file.stem}", file)
        if spec is None or spec.loader is None or not file.is_file():
            raise FileNotFoundError(f"a study must be a Python file; received {str(file)!r}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module  # dataclasses and pickle look there
        spec.loader.exec_module(module)
    study = module.__dict__.get("STUDY")
    if not isinstance(study, Study):
        raise ValueError(f"{file} must define STUDY, a `Study`; received {type(study).__name__}")
    return study


@cache
def catalogue() -> dict[str, Path]:
    """Names and files of the studies of this folder, in the order of the paper."""
    files = [path for path in sorted(FOLDER.glob("*.py")) if not path.stem.startswith("_")]
    studies = {path: load(path) for path in files}
    named = {study.name: path for path, study in studies.items()}
    if len(named) < len(files):
        raise ValueError("the studies of a folder must have names of their own")
    return {name: path for name, path in sorted(named.items(), key=lambda n: load(n[1]).place)}


def find(text: str) -> Path:
    """The file of a study, from its name or its path."""
    if text.endswith(".py"):
        return Path(text).resolve()
    if text not in catalogue():
        known = ", ".join(catalogue())
        raise ValueError(f"a study must be a file, or one of {known}; received {text!r}")
    return catalogue()[text]


@cache
def version(file: Path) -> str:
    """Digest of a study's file, of the helpers it imports from its folder, and of their texts."""
    own, waiting = {file}, [file]
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("reproduction"):
                names = [f"{node.module}.{each.name}" for each in node.names]
                for module in (str(node.module), *names):
                    helper = FOLDER / f"{module.rpartition('.')[2]}.py"
                    if ".studies." in module and helper.is_file() and helper not in own:
                        own.add(helper)
                        waiting.append(helper)
    texts = sorted(FOLDER.glob("texts/*.txt"))
    digest = hashlib.sha256()
    for path in (*sorted(own), *texts):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
