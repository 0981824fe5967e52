"""SIGTERM and Ctrl-C end a command in the same way: what is stored stays, and can be resumed."""

import signal


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; handled wherever an interruption by the keyboard is."""


def catch_sigterm() -> None:
    """Raise `Terminated` on SIGTERM, also in a process that was started with SIGINT ignored."""

    def terminate(*_: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)


def exit_status(interruption: KeyboardInterrupt) -> int:
    """Exit status after an interruption: 128 plus the number of the signal, as shells have it."""
    received = signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT
    return 128 + received
