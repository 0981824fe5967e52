"""The core works without the packages of the extras, and says which extra to install."""

import subprocess
import sys

import pytest

from largeprompt._extras import MissingExtra, require

EXTRAS = ("matplotlib", "jinja2", "latex2mathml", "typer", "rich", "dask", "distributed")
BLOCK = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {EXTRAS}:
            return self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""


def _python(code: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", BLOCK + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_largeprompt_works_without_extras():
    code = """
import jax
import largeprompt as lp
import numpy as np
mu, head = lp.Gaussian(np.zeros(1), np.eye(1)), lp.Head(U=[[1.0]], V=[[1.0]])
print(round(float(lp.output_error(head, mu, [1.0], 1)), 9))
curve = lp.concentration_curve(head, mu, mu, [2.0, 10.0])
print(float(curve.value[0]) > float(curve.value[1]))
task = lp.LinearRegression([[1.0]])
print(lp.descend(jax.random.key(0), task, lp.balanced_init(task, 0.5), 10, 2).finished)
try:
    lp.plots.curve(curve)
except ImportError as error:
    print(error)
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr
    *found, message = done.stdout.splitlines()
    assert found == ["2.0", "True", "True"]
    assert message.startswith("figures need matplotlib")
    assert message.endswith("or pip install '.[report]' in a checkout of largeprompt")


def test_command_line_names_its_extra():
    done = _python("import runpy; runpy.run_module('largeprompt', run_name='__main__')")
    assert done.returncode == 1
    assert done.stderr == (
        "error: the command line needs typer, rich: run pip install typer rich, "
        "or pip install '.[cli]' in a checkout of largeprompt\n"
    )


def test_require_returns_the_module():
    assert require("json.decoder", extra="report").JSONDecoder
    with pytest.raises(MissingExtra, match=r"needs no_such_package: .*'\.\[cluster\]' in a check"):
        require("no_such_package.part", extra="cluster")


def test_require_names_every_missing_package_of_the_extra(monkeypatch):
    for name in ("torch", "gguf"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match="need torch, gguf: run pip install torch gguf, or"):
        require("torch", extra="models")
