"""Every test runs in 64-bit mode with strict promotion: a silent change of precision is an error.

Most of the suite's time is compiling. Programs are kept on disk, so that the workers, the processes that tests start, and the
next run share them: their names are hashes of what is compiled and by what, so a change of the code is never hidden. Tests are
compiled without the optimisations of machine code, which cost more than they save; the processes that run the documents are
compiled as a user's.
"""

import os
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_disable_most_optimizations", True)

PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "programs"
for option, value in {
    "jax_compilation_cache_dir": str(PROGRAMS),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    os.environ[option.upper()] = str(value)  # for the processes that tests start
    jax.config.update(option, value)
