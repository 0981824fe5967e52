"""The type checker finds nothing. It runs as a test, so that other tests run beside it."""

import os
import subprocess
import sys
from pathlib import Path


def test_pyright_finds_no_errors():
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
        cwd=Path(__file__).parents[1],
        # room for young objects: a tenth of its time is spent looking for garbage
        env={"NODE_OPTIONS": "--max-semi-space-size=256"} | os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("0 errors")
