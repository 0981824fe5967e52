"""Find tests that pass whatever the code does."""

import ast
import re
from collections.abc import Iterator

# Methods and functions that check, by name: numpy.testing.assert_allclose, pytest.raises, ...
_CHECKS = re.compile(r"_*assert\w*|raises|fail|check_grads")
_ANY_ERROR = {"Exception", "BaseException"}
_HALF_A_RULE = re.compile(r"\bmust( be)?$")
_NEVER_NEGATIVE = {"abs", "len", "square", "norm"}
_METHODS = {"all", "any", "exists", "is_file", "is_dir", "startswith", "endswith", "is_integer"}
_SEARCHES = {"glob", "rglob", "iterdir", "findall", "finditer", "walk"}


def weaknesses(source: str) -> list[str]:
    """The weak places of a file of tests, as "name or line: reason"; empty if there are none."""
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    helpers = {f.name for f in functions if any(_is_check(node) for node in ast.walk(f))}
    found = []
    for function in functions:
        if function.name.startswith("test_"):
            checks = [node for node in ast.walk(function) if _is_check(node, helpers)]
            if not checks:
                found.append(f"{function.name}: nothing is asserted")
            elif not set(checks) - set(_in_loops_over_searches(function)):
                found.append(f"{function.name}: nothing is asserted if a search finds nothing")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            reason = _weak_condition(node.test)
        elif isinstance(node, ast.Call) and _name(node.func) == "raises":
            reason = _weak_expectation(node)
        else:
            continue
        if reason:
            found.append(f"line {node.lineno}: {reason}")
    return found


def _name(node: ast.AST) -> str:
    """The last part of a dotted name; empty for other expressions."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _is_check(node: ast.AST, helpers: set[str] | frozenset[str] = frozenset()) -> bool:
    if isinstance(node, ast.Call):
        return bool(_CHECKS.fullmatch(_name(node.func))) or _name(node.func) in helpers
    return isinstance(node, ast.Assert)


def _in_loops_over_searches(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Everything inside loops over what a search finds, such as `for path in folder.glob("*")`."""
    for loop in ast.walk(function):
        if isinstance(loop, ast.For):
            calls = [node for node in ast.walk(loop.iter) if isinstance(node, ast.Call)]
            if any(_name(call.func) in _SEARCHES for call in calls):
                yield from ast.walk(loop)


def _weak_condition(condition: ast.expr) -> str:
    """Why the condition of an assertion cannot be false; empty if it can."""
    if not any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(condition)):
        return "asserts a constant"
    return "asserts what is always true" if _always(condition, True) else ""


def _always(node: ast.expr, truth: bool) -> bool:
    """Whether the truth of an expression is known, and is `truth`."""
    match node:
        case ast.Constant(value):
            return bool(value) is truth
        case ast.Tuple(elements) | ast.List(elements) | ast.Set(elements):
            return truth and any(not isinstance(element, ast.Starred) for element in elements)
        case ast.Lambda() | ast.GeneratorExp():
            return truth
        case ast.JoinedStr(parts):
            return truth and any(isinstance(part, ast.Constant) for part in parts)
        case ast.Attribute(attr=name):
            return truth and name in _METHODS  # a method that is not called
        case ast.UnaryOp(ast.Not(), operand):
            return _always(operand, not truth)
        case ast.BoolOp(operator, operands):
            enough = any if isinstance(operator, ast.Or) is truth else all
            return enough(_always(operand, truth) for operand in operands)
        case ast.Compare(left, [operator], [right]) if truth:
            return _same(left, operator, right) or _not_negative(left, operator, right)
    return False


def _same(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    """Whether a name or a value is compared with itself; two calls may differ."""
    calls = any(isinstance(node, ast.Call) for node in ast.walk(left))
    compares = isinstance(operator, ast.Eq | ast.Is | ast.LtE | ast.GtE)
    return compares and not calls and ast.dump(left) == ast.dump(right)


def _not_negative(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    """Whether a square, an absolute value or a number of things is compared with zero."""
    match left:
        case ast.BinOp(_, ast.Pow(), ast.Constant(2)):
            positive = True
        case ast.Call(function):
            positive = _name(function) in _NEVER_NEGATIVE
        case _:
            positive = False
    zero = isinstance(right, ast.Constant) and right.value == 0
    return positive and zero and isinstance(operator, ast.GtE)


def _weak_expectation(call: ast.Call) -> str:
    """Why `pytest.raises` accepts errors it should not; empty if it does not."""
    accepted = call.args[0] if call.args else call
    classes = accepted.elts if isinstance(accepted, ast.Tuple) else [accepted]
    if any(_name(cls) in _ANY_ERROR for cls in classes):
        return "accepts any class of error"
    match [option.value for option in call.keywords if option.arg == "match"]:
        case []:
            return "accepts any message"
        case [ast.Constant(str(pattern))]:
            return weak_pattern(pattern)
    return ""


def weak_pattern(pattern: str) -> str:
    """Why a pattern matches messages it should not; empty if it does not."""
    if re.search(pattern, ""):
        return "accepts any message"
    return "accepts any rule" if _HALF_A_RULE.search(pattern) else ""
