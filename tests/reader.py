"""A reader who tries everything that is printed: runs scripts one after the other in one process, each in a namespace of its own.

`python tests/reader.py` takes a JSON object {name: [script, arguments]} on standard input and answers {name: [output, error]}. One process
serves all, so that what they compile is compiled once; JAX's precision is put back before each.
"""

import contextlib
import io
import json
import sys
import traceback
import warnings


def _read(script: str, arguments: list[str]) -> tuple[str, str]:
    import jax

    jax.config.update("jax_enable_x64", False)
    printed, error = io.StringIO(), ""
    sys.argv = ["script", *arguments]
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(script, "script", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            error = "" if end.code in (None, 0) else f"exit status {end.code}"
        except Exception:
            error = traceback.format_exc()
    return printed.getvalue(), error


if __name__ == "__main__":
    warnings.simplefilter("error")
    wanted = json.load(sys.stdin)
    json.dump({name: _read(*job) for name, job in wanted.items()}, sys.stdout)
