"""The command with two fake studies, in a process that tests can stop.

`python -m tests.reproduce.command foreground reproduce ...` ends on SIGINT, as in a terminal; with
`background` SIGINT is ignored, as after `largeprompt reproduce ... &` in a script.
"""

import os
import signal
import sys
import time

from tests.without_dask import hide_dask

if __name__ in ("__main__", "__mp_main__"):  # the command and its workers
    hide_dask()

import xarray as xr

from largeprompt.cli import main
from largeprompt.reproduce import studies
from largeprompt.reproduce.studies import at_most

from .fake_studies import fake_study

WAIT = "SECONDS_OF_THE_SLOW_STUDY"


def _wait(config, key) -> xr.Dataset:
    time.sleep(float(os.environ.get(WAIT, "0")))
    return xr.Dataset()


def _made(measure, name):
    return fake_study(measure, lambda data: [at_most("a claim", 0.0, 0.5)], name)


STUDIES = {
    "fast": _made(lambda config, key: xr.Dataset(), "fast"),
    "slow": _made(_wait, "slow"),
}

if __name__ in ("__main__", "__mp_main__"):  # the command and its workers
    studies.STUDIES = STUDIES

if __name__ == "__main__":
    place = sys.argv.pop(1)
    handler = signal.default_int_handler if place == "foreground" else signal.SIG_IGN
    signal.signal(signal.SIGINT, handler)
    main()
