"""Settings of JAX for all tests, and groups of tests that share compiled programs.

Tests run in 64-bit mode with strict promotion, so that a silent change of precision is an error.

Most of the suite's time is compilation. Compiled programs are cached on disk, and shared by the
workers, the processes that tests start, and the next run; JAX names them by a hash of what is
compiled, so changed code is compiled again. Programs are shared only if all tests, documents and
studies compile with the same options: the older of XLA's two emitters, as `largeprompt reproduce`,
and no optimisations of LLVM, since most programs here run once.
"""

import gc
import os
from pathlib import Path
from typing import Any

# small matrix products on several threads wait for each other where cores are busy
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and PyTorch

import jax
import pytest
from xdist.scheduler import LoadScopeScheduling

from . import type_checks
from .mlir_contexts import share_mlir_contexts
from .slow import is_slow

PACKAGE = Path(__file__).parents[1] / "src" / "largeprompt"


def _check_types() -> None:
    """Check types and shapes of the package's functions, those of nested ones too."""
    files = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    names = {".".join(file.parts) for file in files if file.name != "__init__"}
    type_checks.install(f"largeprompt.{name}" for name in sorted(names))


_check_types()  # before the package is imported
from largeprompt._compiler_options import quick_to_compile  # noqa: E402


def _pin_to_core() -> None:
    """Pin each worker to one core if there are enough: sharing cores costs a fifth of the time."""
    worker, workers = (
        os.environ.get("PYTEST_XDIST_WORKER"),
        os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"),
    )
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= int(workers):
            # a worker that replaces a crashed one has a number beyond their count
            os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


_pin_to_core()  # before JAX counts the cores
# traces and programs live long: looking for garbage among them takes a twentieth of the time
gc.set_threshold(200_000, 20, 100)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
# one thread compiles a program: the workers fill the cores
_FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS]).strip()
for name, value in quick_to_compile().items():
    if name not in os.environ["XLA_FLAGS"]:
        os.environ["XLA_FLAGS"] += f" --{name}={str(value).lower()}"
share_mlir_contexts()

PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "programs"
for option, value in {
    # Python's call stacks are not looked up for each operation of a program: a tenth of the time
    "jax_traceback_in_locations_limit": 0,
    "jax_traceback_filtering": "off",  # tests of bad input raise thousands of exceptions
    "jax_compilation_cache_dir": str(PROGRAMS),
    "jax_persistent_cache_min_compile_time_secs": 0.05,  # writing others takes as long
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    os.environ[option.upper()] = str(value)  # for the processes that tests start
    jax.config.update(option, value)


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Drop compiled programs before they exhaust the memory maps of a process (65,530 on Linux)."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_text().count("\n") > 45_000:
        jax.clear_caches()
        gc.collect()


def pytest_sessionfinish() -> None:
    """Leave nothing to the ten garbage collections of pytest's end, half a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def mode_32():
    """Run one test in JAX's default 32-bit mode."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


# Tests that compile the same programs run in one process. Long groups come first, so that the
# workers end together.
_GROUPS = {
    "prompts": ("tests/prompts", "tests/participation", "src/largeprompt/p"),
    "paper": ("tests/test_paper",),
    "flows": (
        "tests/dynamics/test_flow",
        "tests/dynamics/test_transfer",
        "src/largeprompt/dynamics",
        "src/largeprompt/reproduce",
        "tests/test_bad_input",
    ),
    "descent": ("tests/dynamics", "tests/icl", "src/largeprompt/icl"),
    "reproduce": ("tests/reproduce",),
    "concentration": ("tests/concentration", "src/largeprompt/concentration"),
    "measures": ("tests/measures", "tests/attention", "src/largeprompt"),
    "models": ("tests/models", "tests/compression"),
    # the site shows what the tests of examples made
    "documents": ("tests/test_package", "tests/test_docs", "tests/test_site"),
    "types": ("tests/test_types",),
    "sweeps": ("tests/sweep",),
    "devices": ("tests/test_devices",),
    "others": ("tests",),
}


def _group(path: str) -> str:
    """The first group that has a prefix of the path of a test."""
    return next(name for name, prefixes in _GROUPS.items() if path.startswith(prefixes))


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item):
            item.add_marker("slow")
    order = list(_GROUPS)
    items.sort(key=lambda item: order.index(_group(item.nodeid)))


class GroupScheduling(LoadScopeScheduling):
    """Send each group to one worker.

    `--dist loadgroup` with the mark `xdist_group` is meant for this, but it ignores the mark under
    pytest 9.2 (pytest-xdist 3.8, its issue 1386).
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    config.option.loadscopereorder = False  # keep the order of the groups
    return GroupScheduling(config, log)
