"""SIGTERM and Ctrl-C end a command in the same way: what is stored stays, and can be resumed."""

import gc
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_LATER = 0.05  # seconds


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; handled wherever an interruption by the keyboard is."""


def catch_signals() -> None:
    """Raise `Terminated` on SIGTERM, and `KeyboardInterrupt` on SIGINT unless that is ignored."""
    signal.signal(signal.SIGTERM, _raising(Terminated))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raising(KeyboardInterrupt))


def _raising(error: type[KeyboardInterrupt]) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        if _collects_garbage(frame):
            threading.Timer(_LATER, os.kill, (os.getpid(), number)).start()
        else:
            raise error

    return handle


def _collects_garbage(frame: FrameType | None) -> bool:
    """Whether a callback of the garbage collector runs, in which Python ignores exceptions."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        if frame.f_code in callbacks:
            return True
        frame = frame.f_back
    return False


def exit_status(interruption: KeyboardInterrupt) -> int:
    """Exit status after an interruption: 128 plus the number of the signal, as shells have it."""
    received = signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT
    return 128 + received
