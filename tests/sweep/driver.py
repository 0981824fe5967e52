"""A sweep in a process that tests can kill: `python -m tests.sweep.driver FOLDER '{...}'`."""

import json
import resource
import signal
import sys
from multiprocessing.synchronize import Event

from tests.without_dask import hide_dask

if __name__ in ("__main__", "__mp_main__"):  # the driver and its workers
    hide_dask()

from largeprompt.sweep import Sweep


def main(
    folder: str, count: int = 8, file_limit: int = 0, workers: int | None = None, **cell
) -> int:
    """Exit status 0 if the sweep is complete."""
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    sweep = Sweep("tests.sweep.cells:draws", [{"seed": seed, **cell} for seed in range(count)])
    print("ready", flush=True)
    return 0 if sweep.run(folder, workers=workers).complete else 1


def forked(ready: Event, folder: str, **arguments) -> None:
    """The same in a process that was forked with all modules imported."""
    ready.set()
    sys.exit(main(folder, **arguments))


if __name__ == "__main__":
    # a process started in the background may ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1], **json.loads(sys.argv[2])))
