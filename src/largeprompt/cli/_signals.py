"""SIGTERM and Ctrl-C end a command in the same way: what is stored stays, and can be resumed."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

_LATER = 0.05  # seconds


class Interrupted(KeyboardInterrupt):
    """SIGINT was received.

    CPython kills the process at its end, whatever its exit status, if `KeyboardInterrupt` itself
    has left an `exec` of text, as in the definition of a dataclass; a subclass may.
    """


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; handled wherever an interruption by the keyboard is."""


_RAISED: dict[int, type[KeyboardInterrupt]] = {
    signal.SIGINT: Interrupted,
    signal.SIGTERM: Terminated,
}


def catch_signals() -> None:
    """Raise `Terminated` on SIGTERM, and `Interrupted` on SIGINT unless that is ignored.

    A signal is sent again where Python ignores exceptions: in finalisers, in callbacks of weak
    references, of the garbage collector and of C.
    """
    signal.signal(signal.SIGTERM, _raise)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise)
    sys.unraisablehook = _send_again


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise _RAISED[number]


def _send_again(ignored: Any) -> None:
    """Replace Python's report of an ignored exception: an ignored signal comes again."""
    for number, error in _RAISED.items():
        if ignored.exc_type is error:
            if threading.main_thread().is_alive():  # otherwise the process ends already
                threading.Timer(_LATER, os.kill, (os.getpid(), number)).start()
            return
    sys.__unraisablehook__(ignored)


@contextmanager
def uncovered_interruptions() -> Iterator[None]:
    """Raise an interruption itself where code turned it into another exception.

    CPython does so in `__set_name__`, for example while an import defines an enumeration.
    """
    try:
        yield
    except Exception as error:
        before: BaseException | None = error
        while before is not None and not isinstance(before, KeyboardInterrupt):
            before = before.__cause__ or before.__context__
        if before is None:
            raise
        raise before from None


def exit_status(interruption: KeyboardInterrupt) -> int:
    """Exit status after an interruption: 128 plus the number of the signal, as shells have it."""
    received = signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT
    return 128 + received
