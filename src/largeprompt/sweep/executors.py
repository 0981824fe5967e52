"""Three ways to compute cells: in this process, in worker processes, on a Dask cluster.

Each is a generator of outcomes in the order of completion. Closing it, or an exception in it, stops
the work at once.
"""

import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from .._extras import require
from .._message import message
from .._progress import draw_no_bars
from .cell import Cell
from .compute import Outcome, compute, compute_and_store
from .store import Store

_STARTS = 3  # attempts to start workers that die at once
_ALONE = 2  # attempts of a cell that kills its process while nothing else runs

Outcomes = Generator[Outcome, None, None]


def in_this_process(cells: Sequence[Cell], store: Store) -> Outcomes:
    """Compute one cell after the other."""
    for cell in cells:
        yield compute_and_store(cell, store)


def on_processes(cells: Sequence[Cell], store: Store, workers: int) -> Outcomes:
    """Compute on new processes of this machine, each with its own JAX.

    When a process dies (killed, out of memory), its pool breaks without saying which cell was to
    blame. The cells that were running are then tried again one at a time, which finds the cell that
    kills its process, and computes the others.
    """
    waiting, suspects, deaths = deque(cells), deque[Cell](), Counter[Cell]()
    while waiting:
        suspects.extend((yield from _until_broken(waiting, store, workers)))
    while suspects:
        for cell in (yield from _until_broken(suspects, store, 1)):  # one at most
            deaths[cell] += 1
            if deaths[cell] < _ALONE:
                suspects.append(cell)
            else:
                why = "killed, or out of memory"
                reason = f"its process died {_ALONE} times with this cell alone: {why}"
                yield Outcome(cell, reason=reason)


def _until_broken(
    waiting: deque[Cell], store: Store, workers: int
) -> Generator[Outcome, None, list[Cell]]:
    """Take cells from `waiting` until it is empty or a process dies; return those then running."""
    before = len(waiting)
    for _ in range(_STARTS):
        lost = yield from _with_one_pool(waiting, store, workers)
        if len(waiting) < before:
            return lost
    raise RuntimeError(
        message(
            "worker processes must be able to start",
            f"{_STARTS} starts in which one died before it received a cell",
            "put the code of your script under `if __name__ == '__main__':`; workers import it",
        )
    )


def _with_one_pool(
    waiting: deque[Cell], store: Store, workers: int
) -> Generator[Outcome, None, list[Cell]]:
    """Like `_until_broken`, but takes no cell if the pool does not start."""
    running: dict[Future, Cell] = {}
    try:
        with _pool(min(workers, len(waiting))) as pool:
            _submit(pool, os.getpid).result()
            while waiting or running:
                while waiting and len(running) < workers:
                    running[_submit(pool, compute_and_store, waiting[0], store)] = waiting[0]
                    waiting.popleft()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    del running[future]
                    yield outcome
    except BrokenProcessPool:
        pass
    finally:
        store.remove_unfinished()  # the pool has ended: no worker is writing
    return list(running.values())


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that exit when this process closes a pipe, or dies."""
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(theirs,))
    try:
        yield pool
    except BaseException:
        ours.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        ours.close()
        theirs.close()


def _submit(pool: ProcessPoolExecutor, function: Callable[..., Any], *arguments: Any) -> Future:
    """Submit a call, which may start a worker: it inherits that SIGINT is blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(function, *arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(lifeline: Connection) -> None:
    """Start a worker: ignore Ctrl-C, which the driver handles, exit with it, and draw no bars."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    draw_no_bars()

    def watch() -> None:
        lifeline.poll(None)  # nothing is sent: returns when the other end closes
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def on_cluster(cells: Sequence[Cell], address: str) -> Outcomes:
    """Compute on the workers of a Dask scheduler, which reassigns the cells of a lost worker.

    The outcomes contain the encoded results, so the workers need no access to the folder.
    """
    distributed = require("distributed", extra="cluster")
    with distributed.Client(address, set_as_default=False) as client:
        cell_of = dict(zip(client.map(compute, cells, pure=False), cells, strict=True))
        for future in distributed.as_completed(list(cell_of), loop=client.loop):
            cell = cell_of.pop(future)
            try:
                outcome = future.result()
            except Exception as error:  # lost too often, or not importable there
                reason = f"lost by the cluster: {type(error).__name__}: {error}"
                outcome = Outcome(cell, reason=reason)
            yield outcome
