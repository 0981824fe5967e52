"""Settings of all tests: 64-bit mode, strict promotion, programs compiled fast and kept on disk."""

import gc
import os
from pathlib import Path

from largeprompt._compiler_options import quick_to_compile

FLAGS = quick_to_compile() | {"xla_backend_optimization_level": 0}  # a third of the time
SETTINGS = {
    "XLA_FLAGS": " ".join(f"--{name}={str(value).lower()}" for name, value in FLAGS.items()),
    "OPENBLAS_NUM_THREADS": "1",  # threads of small products wait for each other
    "JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parents[1] / ".pytest_cache" / "programs"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",  # writing others takes as long
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # a tenth of the time
}
os.environ.update(SETTINGS | os.environ)  # before JAX is imported, and for started processes
import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

if "LARGEPROMPT_CHECK_TYPES" in os.environ:
    jaxtyping.install_import_hook("largeprompt", "beartype.beartype")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
gc.set_threshold(200_000, 20, 100)  # programs live long: looking for garbage took a seventh


@pytest.fixture(autouse=True, scope="module")
def few_programs():  # before they exhaust the memory maps of a process, 65,530 on Linux
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_text().count("\n") > 45_000:
        jax.clear_caches()


@pytest.fixture
def mode_32():  # JAX's default, for one test
    with jax.enable_x64(False):
        yield
