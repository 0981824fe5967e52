"""The claims of the paper, one file each. A study returns data and draws nothing; `study.py` says
how to write one.
"""

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

from ..._message import error
from ..._provenance import code_version
from ...models.fetch import altered_file
from . import (
    almost_sure_convergence,
    assumption_3_3,
    assumption_4_2,
    best_heads,
    depth,
    finite_length_risk,
    finite_prompts,
    gaussian_mixtures,
    lemma_2_1,
    non_gaussian_limit,
    one_prompt,
    proposition_3_1,
    proposition_3_4,
    real_transformers,
    section_6,
    softmax_operator,
    softmax_regimes,
    theorem_4_3,
    theorem_5_1,
)
from .study import Check as Check
from .study import Findings as Findings
from .study import Study as Study
from .study import Verdict as Verdict
from .study import at_least as at_least
from .study import at_most as at_most
from .study import between as between

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        softmax_operator,
        lemma_2_1,
        non_gaussian_limit,
        almost_sure_convergence,
        finite_prompts,
        proposition_3_1,
        assumption_3_3,
        proposition_3_4,
        softmax_regimes,
        gaussian_mixtures,
        one_prompt,
        depth,
        finite_length_risk,
        best_heads,
        assumption_4_2,
        theorem_4_3,
        theorem_5_1,
        section_6,
    )
}

# studies that need weights of models: they run if they are named, and not by default
OPTIONAL_STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY for module in (real_transformers,)
}


def every_study() -> dict[str, Study]:
    """All studies by name, optional ones last."""
    return {**STUDIES, **OPTIONAL_STUDIES}


def find_study(name: str) -> Study:
    """Return the study called `name`."""
    found = every_study()
    if name not in found:
        raise error(
            f"a study must be one of {', '.join(found)}",
            repr(name),
            "`largeprompt studies` lists them",
        )
    return found[name]


def check_weights(names: Iterable[str]) -> None:
    """Raise unless all weights that these studies need were fetched and are unaltered."""
    for study in map(find_study, names):
        files = {name: altered_file(name) for name in study.weights}
        bad = [f"{name} ({file})" for name, file in files.items() if file]
        if bad:
            raise error(
                f"the study {study.name} needs weights of models",
                f"missing or altered files of {', '.join(bad)}",
                f"run `{fetching(study)}`",
            )


def fetching(study: Study) -> str:
    """The command that fetches what a study needs."""
    return f"largeprompt models fetch {' '.join(study.weights)}"


def study_version(name: str) -> str:
    """Code version of a study: the package's sources, but of the studies only those it imports."""
    own = {Path(sys.modules[find_study(name).measure.__module__].__file__ or "")}
    waiting = list(own)
    while waiting:
        file, imported = waiting.pop(), set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 1:  # from a file of its folder
                modules = [node.module] if node.module else [each.name for each in node.names]
                imported |= {file.with_name(f"{module}.py") for module in modules}
        imported = {path for path in imported if path.is_file()}
        waiting += imported - own
        own |= imported
    sources = b"".join(path.read_bytes() for path in sorted(own))
    return code_version(sources, without="reproduce/studies/")
