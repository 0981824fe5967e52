"""Every test runs in 64-bit mode with strict promotion: a silent change of precision is an error.

Most of the suite's time is compiling. Programs are kept on disk, so that the workers, the processes that tests start, and the
next run share them: their names are hashes of what is compiled and by what, so a change of the code is never hidden. Tests are
compiled without the optimisations of machine code and by the older of XLA's two emitters: both compile faster, which saves more than
it costs. The process that runs the documents compiles as a user's, the studies and the command as the command does.
"""

import os
from pathlib import Path
from typing import Any

import jax
import pytest
from xdist.scheduler import LoadScopeScheduling

from largeprompt.cli._compiling import compile_quickly


def _own_core() -> None:
    """Give each of several workers a core of its own, where there are enough: threads that share cores lose a fifth of the time."""
    worker, workers = (
        os.environ.get("PYTEST_XDIST_WORKER"),
        os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"),
    )
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= int(workers):
            os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw"))]})


_own_core()  # before JAX counts the cores
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_disable_most_optimizations", True)
compile_quickly()

PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "programs"
for option, value in {
    "jax_compilation_cache_dir": str(PROGRAMS),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    os.environ[option.upper()] = str(value)  # for the processes that tests start
    jax.config.update(option, value)


@pytest.fixture
def mode_32():
    """Run one test in JAX's default 32-bit mode."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.fixture(scope="module")
def optimised():
    """Compile with all optimisations, as for a user: for tests that compute longer than they compile."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


# Tests that compile the same programs run one after the other in one process; the longest companies begin first.
_COMPANIES = {
    "paper": ("tests/test_paper",),
    "prompts": ("tests/prompts", "tests/participation", "src/largeprompt/p"),
    "flows": (
        "tests/dynamics/test_flow",
        "tests/dynamics/test_transfer",
        "src/largeprompt/dynamics",
        "src/largeprompt/reproduce",
        "tests/test_bad_input",
    ),
    "descent": ("tests/dynamics", "tests/icl", "src/largeprompt/icl"),
    "documents": ("tests/test_package", "tests/test_docs"),
    "sweeps": ("tests/sweep",),
    "devices": ("tests/test_devices",),
    "concentration": ("tests/concentration", "src/largeprompt/concentration"),
    "measures": ("tests/measures", "tests/attention", "src/largeprompt"),
    "commands": ("tests",),
}


def _company(path: str) -> int:
    """The first company whose paths begin that of a test."""
    return next(i for i, paths in enumerate(_COMPANIES.values()) if path.startswith(paths))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _company(item.nodeid))


class Companies(LoadScopeScheduling):
    """Sends a company to a process as a whole."""

    def _split_scope(self, nodeid: str) -> str:
        return list(_COMPANIES)[_company(nodeid)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Companies:
    config.option.loadscopereorder = False  # the order of the companies is ours
    return Companies(config, log)
