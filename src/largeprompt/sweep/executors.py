"""Where cells are computed: in this process, in processes of this machine, on a Dask cluster.

Each is a generator of outcomes in the order in which they come. Closing it, or an exception in it, ends the work at once.
"""

import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

from .._message import message
from .cell import Cell
from .compute import Outcome, compute, compute_and_store
from .store import Store

_STARTS = 3  # how often workers are started that die at once
_ALONE = 2  # how often a cell may take its process down with it while nothing else runs

Outcomes = Generator[Outcome, None, None]


def in_this_process(cells: Sequence[Cell], store: Store) -> Outcomes:
    """One cell after the other."""
    for cell in cells:
        yield compute_and_store(cell, store)


def on_processes(cells: Sequence[Cell], store: Store, workers: int) -> Outcomes:
    """On processes of this machine, started afresh so that each has a JAX of its own.

    A process that dies (killed, out of memory) breaks its pool and does not say which cell it was at: the cells then under way
    are tried again one by one, so that a cell that kills its process is found out and the others are computed.
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
                reason = f"its process died {_ALONE} times with this cell alone: killed, or out of memory"
                yield Outcome(cell, reason=reason)


def _until_broken(
    waiting: deque[Cell], store: Store, workers: int
) -> Generator[Outcome, None, list[Cell]]:
    """Take cells from `waiting` until it is empty or a process dies; return the cells that were then under way."""
    before = len(waiting)
    for _ in range(_STARTS):
        lost = yield from _with_one_pool(waiting, store, workers)
        if len(waiting) < before:
            return lost
    raise RuntimeError(
        message(
            "worker processes must be able to start",
            f"{_STARTS} starts in which one died before it had a cell",
            "put what your script does under `if __name__ == '__main__':`, since each worker imports it first",
        )
    )


def _with_one_pool(
    waiting: deque[Cell], store: Store, workers: int
) -> Generator[Outcome, None, list[Cell]]:
    """The same, except that nothing is taken when the pool does not even start."""
    running: dict[Future, Cell] = {}
    try:
        with _pool(min(workers, len(waiting))) as pool:
            pool.submit(os.getpid).result()
            while waiting or running:
                while waiting and len(running) < workers:
                    running[pool.submit(compute_and_store, waiting[0], store)] = waiting[0]
                    waiting.popleft()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    del running[future]
                    yield outcome
    except BrokenProcessPool:
        pass
    finally:
        store.remove_unfinished()  # the pool has ended, and no worker writes any more
    return list(running.values())


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes hold one end of a pipe: when the other end closes, by us or by our death, they end."""
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(theirs,))
    try:
        yield pool
    except BaseException:
        ours.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        ours.close()
        theirs.close()


def _begin(lifeline: Connection) -> None:
    """Start of a worker: Ctrl-C is the driver's to answer, and a worker does not outlive its driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        lifeline.poll(None)  # nothing is ever sent: this returns when the other end is closed
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def on_cluster(cells: Sequence[Cell], address: str) -> Outcomes:
    """On the workers of a Dask scheduler, which moves the cells of a lost worker to another by itself.

    The outcomes bring the bytes with them: the workers need not see the folder.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise ValueError(
            message(
                "a cluster needs the package `distributed`",
                "an installation without it",
                "install largeprompt with the extra `cluster`",
            )
        ) from error

    with Client(address, set_as_default=False) as client:
        cell_of = dict(zip(client.map(compute, cells, pure=False), cells, strict=True))
        for future in as_completed(list(cell_of), loop=client.loop):
            cell = cell_of.pop(future)
            try:
                outcome = future.result()
            except (
                Exception
            ) as error:  # lost more often than Dask tries again, or not importable there
                outcome = Outcome(
                    cell, reason=f"lost by the cluster: {type(error).__name__}: {error}"
                )
            yield outcome
