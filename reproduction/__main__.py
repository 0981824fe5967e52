"""`python -m reproduction`: run studies, store their results, write figures and the page."""

import argparse
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from importlib.metadata import version
from pathlib import Path

_NEEDED = ("matplotlib", "jinja2", "latex2mathml", "contourpy")  # by the page


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the command; returns its exit status. `executor` computes in place of new processes."""
    options = _parser().parse_args(arguments)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"error: the page needs {', '.join(missing)}; pip install '.[report]'", file=sys.stderr
        )
        return 2
    _settings(options.full)
    from . import run  # imports JAX, which reads the settings

    try:
        if options.list:
            run.show_list()
            return 0
        if options.report:
            return run.report(options)
        return run.reproduce(options, executor)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Test every statement of the paper and write data, figures and a page.",
        epilog="Exit status: 0 if every statement holds, 1 if one does not or has no result, 2 for "
        "wrong arguments, 130 after Ctrl-C; --resume continues.",
    )
    add = parser.add_argument
    help_study = "only this study, by name or file; may be repeated (default: all without weights)"
    add("--study", action="append", metavar="NAME|FILE", default=[], help=help_study)
    add("--out", type=Path, default=Path("out/reproduce"), help="folder of the results")
    add("--resume", action="store_true", help="keep the results in the folder, compute the others")
    add("--full", action="store_true", help="at the paper's scale, which takes hours")
    add("--seed", type=int, default=0, help="seed of the random keys of all studies")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=_positive, help="processes (default: one for each core)")
    where.add_argument("--cluster", help="address of a Dask scheduler to run on")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list the studies and end")
    what.add_argument(
        "--report", type=Path, metavar="DIR", help="write figures and page of DIR again"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print verdicts as one JSON object")
    form.add_argument("--csv", action="store_true", help="print verdicts as comma-separated values")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; received {text}")
    return number


def _settings(full: bool) -> None:
    """Settings that JAX and NumPy read when they start, here and in the processes started here.

    The matrices of studies are small, and most programs take longer to compile than to run: one
    thread, quick compilation, and a cache of compiled programs, unless the user chose otherwise.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    flags = {} if full else {"xla_backend_optimization_level": "1"}
    if flags and version("jaxlib").startswith("0.10."):  # the only one that knows this flag
        flags["xla_cpu_use_fusion_emitters"] = "false"
    known = os.environ.get("XLA_FLAGS", "")
    chosen = [f"--{name}={value}" for name, value in flags.items() if name not in known]
    os.environ["XLA_FLAGS"] = " ".join([known, *chosen]).strip()
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    cache = home / "largeprompt" / "programs"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # no cache: every run compiles everything
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
