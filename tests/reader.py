"""Run scripts one after the other in one process, each as the main module.

`python -m tests.reader` reads a JSON object {name: [script, arguments]} from standard input and
writes {name: [output, error]}. Sharing a process shares compiled programs; JAX is put back into
32-bit mode before each script.
"""

import contextlib
import io
import json
import runpy
import sys
import traceback
import warnings
from pathlib import Path


def _read(script: str, arguments: list[str]) -> tuple[str, str]:
    import jax

    jax.config.update("jax_enable_x64", False)
    printed, error = io.StringIO(), ""
    Path("script.py").write_text(script)
    sys.argv = ["script.py", *arguments]
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path("script.py", run_name="__main__")
        except SystemExit as end:
            error = "" if end.code in (None, 0) else f"exit status {end.code}"
        except Exception:
            error = traceback.format_exc()
    return printed.getvalue(), error


if __name__ == "__main__":
    warnings.simplefilter("error")
    wanted = json.load(sys.stdin)
    json.dump({name: _read(*job) for name, job in wanted.items()}, sys.stdout)
