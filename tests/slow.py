"""Which tests are slow: those that compile, sample, train, minimise, start processes, run studies.

What is left evaluates known numbers, rejects bad input, and reads files: the inner loop.

They are recognised by the names they use, directly or through functions, fixtures and tables of
their file, so that no mark can be forgotten. Other slow tests, such as long simulations, are marked
by hand with `@pytest.mark.slow`.
"""

import ast
from functools import cache

import pytest

SLOW_NAMES = frozenset(
    {
        # processes and browsers
        *("subprocess", "driving", "processes", "browser"),
        # training
        *("gradient_flow", "flow_curves", "descend", "descend_many", "published_experiment"),
        *("compare", "transfer_curve"),
        # minimisation
        *("minimiser", "risk_curves", "prompt_length_for_risk"),
        # compilation of programs: their time, not that of the numbers, is what the test takes
        *("jit", "filter_jit", "vmap", "grad", "hessian", "jacfwd", "jacrev", "value_and_grad"),
        # sampling and simulation
        *("MonteCarlo", "QuasiMonteCarlo", "sample_outputs", "sample_gradients", "simulation"),
        *("sample", "brute_force"),
        # other frameworks, which take seconds to import
        *("torch", "transformers", "tiny_transformer"),
        # studies at quick scale
        *("reproduced", "section_6"),
    }
)


def is_slow(item: pytest.Item) -> bool:
    """Whether a test uses a slow name, or is marked by hand."""
    if item.get_closest_marker("slow"):
        return True
    if isinstance(item, pytest.DoctestItem):
        return bool(_names(ast.parse("".join(e.source for e in item.dtest.examples))) & SLOW_NAMES)
    if not isinstance(item, pytest.Function):
        return False
    used = {item.function.__name__, *item.fixturenames}
    return bool(used & slow_definitions(item.path.read_text()))


@cache
def slow_definitions(source: str) -> frozenset[str]:
    """The functions and tables at the top level of a file that use slow names."""
    uses = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            uses[node.name] = _names(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            uses |= {ast.unparse(target): _names(node.value) for target in targets}
    slow: frozenset[str] = frozenset()
    while (found := slow | {name for name in uses if uses[name] & (SLOW_NAMES | slow)}) != slow:
        slow = found
    return slow


def _names(tree: ast.AST) -> set[str]:
    """Every name, attribute and argument in a piece of code."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found
