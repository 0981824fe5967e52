"""The tests themselves: all of them are collected, and none passes whatever the code does."""

import re
from pathlib import Path

import pytest

from .assertions import weak_pattern, weaknesses
from .mistakes import MISTAKES

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))


def test_every_test_file_is_collected():
    """Pytest collects test_*.py: a file with tests under another name would never run."""
    tested = [path for path in FILES if re.search(r"^def test_", path.read_text(), re.MULTILINE)]
    assert tested == [path for path in FILES if path.name.startswith("test_")]
    assert Path(__file__) in tested


def test_every_test_can_fail():
    found = [
        f"{path.relative_to(TESTS)}, {weakness}"
        for path in FILES
        for weakness in weaknesses(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_names_its_rule(mistake):
    assert weak_pattern(MISTAKES[mistake][1]) == ""


WEAK = {
    "nothing is asserted": ["f(x)", "x = f('assert')", "pytest.importorskip('jax')"],
    "asserts a constant": ["assert True", "assert 1 == 1", "assert 'x'", "assert (1, 'text')"],
    "asserts what is always true": [
        "assert x or True",
        "assert not (x and False)",
        "assert True and (x or 1)",
        "assert (x, 'text')",
        "assert [f(x)]",
        "assert (y for y in x)",
        "assert lambda: x",
        "assert f'text {x}'",
        "assert x == x",
        "assert x**2 >= 0",
        "assert len(f(x)) >= 0",
        "assert np.abs(x) >= 0",
        "assert x.all",
        "assert path.exists",
    ],
    "nothing is asserted if a search finds nothing": [
        "for path in x.glob('*'):\n  assert f(path)",
        "for m in sorted(re.findall('a', x)):\n  with pytest.raises(E, match='a'):\n   f(m)",
    ],
    "accepts any class of error": [
        "with pytest.raises(Exception, match='text'):\n  f(x)",
        "with pytest.raises((ValueError, BaseException), match='text'):\n  f(x)",
    ],
    "accepts any message": [
        "with pytest.raises(ValueError):\n  f(x)",
        "with pytest.raises(ValueError, match=''):\n  f(x)",
        "with raises(ValueError, match='.*'):\n  f(x)",
    ],
    "accepts any rule": [
        "with pytest.raises(ValueError, match='must be'):\n  f(x)",
        "with pytest.raises(ValueError, match='L must'):\n  f(x)",
    ],
}


@pytest.mark.parametrize(
    ("reason", "body"), [(reason, body) for reason, bodies in WEAK.items() for body in bodies]
)
def test_weaknesses_finds(reason, body):
    (found,) = weaknesses(f"def test_f(x):\n {body}\n")
    assert found.endswith(f": {reason}")


@pytest.mark.parametrize(
    "body",
    [
        "assert f(x)",
        "assert x",
        "assert not x or f(x)",
        "assert x.all()",
        "assert f(x) == f(x)",
        "assert len(x) > 0",
        "assert x**3 >= 0",
        "assert [*x]",
        "np.testing.assert_allclose(f(x), 1)",
        "_compare(x)",
        "with pytest.raises(ValueError, match='L must be >= 1'):\n  f(x)",
        "assert f(x)\n for path in x.glob('*'):\n  assert f(path)",
        "for y in (1, 2):\n  assert f(y)",
    ],
)
def test_weaknesses_accepts(body):
    helper = "def _compare(x):\n assert x == f(1)\n"
    assert weaknesses(f"{helper}def test_f(x):\n {body}\n") == []
