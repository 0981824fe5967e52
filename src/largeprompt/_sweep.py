"""Parameter sweeps on any executor: each cell is stored when it is done, failures are collected.

Importing this module does not import JAX, since cells need not use it.
"""

import hashlib
import itertools
import json
import math
import numbers
import os
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from . import _provenance
from ._files import atomic_write
from ._message import error
from ._progress import draw_no_bars, progress_bar

Function = Callable[[dict[str, Any], Any], Any]
_MADE_BY = "largeprompt_made_by"  # attribute of a stored cell: all that its result depends on
_LARGEST = 2**31  # integers of netCDF have 32 bits


class Failure(NamedTuple):
    """Why a cell has no result."""

    reason: str
    traceback: str = ""


def sweep(
    function: Function,
    grid: Mapping[str, Sequence[Any]],
    folder: str | os.PathLike[str],
    executor: Executor | int | None = None,
    seed: int | None = None,
) -> xr.Dataset:
    """Evaluate a function on a grid: a dataset with one dimension for each axis of the grid.

    Each cell is stored in `folder` when it is done, so that running the same lines again after an
    interruption computes only the missing ones. A cell that failed is NaN; `.attrs["failures"]` has
    its configuration and the reason (empty if there is none), and a warning says how many.

    **Arguments:**

    - `function`: a function at the top level of a module. It takes `(configuration, key)` and
      returns an `xarray.Dataset` or a dict of arrays.
    - `grid`: for each axis the sequence of its values (numbers, text, booleans, lists, dicts).
    - `folder`: where finished cells are stored, one netCDF file each.
    - `executor`: a `concurrent.futures.Executor`, for example `Client(...).get_executor()` of Dask
      on a cluster; or a number of processes of this machine (None: one for each core).
    - `seed`: each cell gets a JAX key that depends on the seed and its configuration alone, so
      adding or reordering cells does not change the others. Without it `key` is None.
    """
    axes = {name: _axis(name, values) for name, values in _mapping("grid", grid).items()}
    cells = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    found, failures = list[xr.Dataset | None]([None] * len(cells)), dict[int, Failure]()
    results = _results(function, cells, folder, executor, seed)
    with progress_bar("sweep", len(cells), unit="cells") as advance:
        for number, result in results:
            if isinstance(result, Failure):
                failures[number] = result
            else:
                found[number] = result
            advance(label=f"sweep ({len(failures)} failed)" if failures else None)
    lines = [f"{json.dumps(cells[i])}: {failures[i].reason}" for i in sorted(failures)]
    if len(lines) == len(cells):
        raise RuntimeError(f"every cell failed, the first with {lines[0]}\n{failures[0].traceback}")
    if lines:
        text = f'{len(lines)} of {len(cells)} cells failed and are NaN; see .attrs["failures"]'
        warnings.warn(text, stacklevel=2)
    coordinates = {name: _coordinate(values) for name, values in axes.items()}
    _check_names(found, coordinates)
    nothing = next(data for data in found if data is not None).where(False)
    wholes = (nothing if data is None else data for data in found)
    try:
        return _joined(wholes, coordinates).assign_attrs(failures="\n".join(lines))
    except ValueError as cause:
        rule = "the results of the cells must fit together"
        fix = "give a dimension that differs a coordinate, or use lp.iterate"
        raise error(rule, str(cause), fix) from cause


def iterate(
    function: Function,
    cells: Iterable[Mapping[str, Any]],
    folder: str | os.PathLike[str],
    executor: Executor | int | None = None,
    seed: int | None = None,
) -> Generator[tuple[dict[str, Any], xr.Dataset | Failure], None, None]:
    """Evaluate a function on cells, which may be unlike each other; yield each as it finishes.

    `cells` are dicts of plain values, the configurations; the other arguments are those of `sweep`.
    Yields (configuration, dataset or `Failure`), those first that `folder` has already. Closing the
    iterator, or an interruption, stops the processes.
    """
    cells = list(cells)
    results = _results(function, cells, folder, executor, seed)
    return ((dict(cells[number]), result) for number, result in results)


def _results(
    function: Function, cells: Sequence[Mapping[str, Any]], folder: Any, executor: Any, seed: Any
) -> Iterator[tuple[int, xr.Dataset | Failure]]:
    """Check all arguments; return an iterator of (number of the cell, result)."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, numbers.Integral)):
        raise error("seed must be an integer or None", repr(seed))
    if executor is None or (isinstance(executor, int) and executor is not True and executor > 0):
        on = partial(_on_processes, processes=executor or os.cpu_count() or 1)
    elif isinstance(executor, Executor):
        on = partial(_on_executor, executor=executor)
    else:
        raise error(
            "executor must be a concurrent.futures.Executor, a number of processes, or None",
            repr(executor),
        )
    texts = [
        json.dumps(_plain(f"cell {i}", _mapping(f"cell {i}", cell)), sort_keys=True)
        for i, cell in enumerate(cells)
    ]
    twice = [text for text, times in Counter(texts).items() if times > 1]
    if not texts or twice:
        raise error(
            "cells must be one or more, all of them different",
            f"{twice[0]} twice" if twice else "none",
            "tell repetitions apart by an entry such as 'replicate': 0, 1, 2" if twice else "",
        )
    name, version = _import_path(function), _version(function)
    number = None if seed is None else int(seed)
    made_by = [json.dumps([name, version, number, text]) for text in texts]
    work = partial(_computed, function, version, number)
    return _stored_and_computed(work, texts, made_by, _checked_folder(folder), on)


def _stored_and_computed(
    work: Callable, texts: list[str], made_by: list[str], folder: Path, on: Callable
) -> Iterator[tuple[int, xr.Dataset | Failure]]:
    paths = [folder / f"{hashlib.sha256(m.encode()).hexdigest()[:40]}.nc" for m in made_by]
    missing = []
    for number, path in enumerate(paths):
        stored = _read(path, made_by[number])
        if stored is None:
            missing.append(number)
        else:
            yield number, stored
    submit = {number: partial(work, texts[number], made_by[number]) for number in missing}
    for number, outcome in on(submit):
        if not isinstance(outcome, Failure):
            with atomic_write(paths[number]) as name:
                Path(name).write_bytes(outcome)
            stored = _read(paths[number], made_by[number])
            outcome = Failure("its netCDF file cannot be read") if stored is None else stored
        yield number, outcome


def _computed(
    function: Function, version: str, seed: int | None, text: str, made_by: str
) -> bytes | Failure:
    """The result of a cell as a netCDF file, in any process."""
    try:
        # a script is not imported under its own name where it is not the one that was started
        here = version if function.__module__ in ("__main__", "__mp_main__") else _version(function)
        if here != version:
            raise RuntimeError(
                f"the worker must run the code of the sweep, {version}; received {here}. To fix: "
                "install the same version on both, or restart the workers"
            )
        result = function(json.loads(text), None if seed is None else _key(seed, text))
        if isinstance(result, Mapping) and not isinstance(result, xr.Dataset):
            arrays = {str(name): np.asarray(array) for name, array in result.items()}
            dims = {name: [f"{name}_{i}" for i in range(arrays[name].ndim)] for name in arrays}
            result = xr.Dataset({name: (dims[name], arrays[name]) for name in arrays})
        if not isinstance(result, xr.Dataset):
            raise TypeError(
                "a cell must return an xarray.Dataset or a dict of arrays; "
                f"received {type(result).__name__}"
            )
        if not all(result.sizes.values()):  # netCDF would read it back as unlimited
            raise ValueError(f"a cell must return no empty dimension; received {result.sizes}")
        data = result.drop_encoding().as_numpy().assign_attrs({_MADE_BY: made_by})
        return bytes(data.to_netcdf(engine="scipy"))
    except (Exception, SystemExit) as cause:
        return Failure(f"{type(cause).__name__}: {cause}", traceback.format_exc())


def _key(seed: int, text: str) -> Any:
    """A JAX key that depends on the seed and the configuration alone."""
    import jax

    digest = hashlib.sha256(f"{seed}\n{text}".encode()).digest()
    words = np.frombuffer(digest[:8], ">u4").astype(np.uint32)
    return jax.random.wrap_key_data(jax.device_put(words), impl="threefry2x32")


def _read(path: Path, made_by: str) -> xr.Dataset | None:
    """A stored cell; None if there is no whole file of it."""
    try:
        data = xr.load_dataset(path, engine="scipy", decode_timedelta=False)
    except Exception:  # many classes, depending on what is damaged
        return None
    if data.attrs.pop(_MADE_BY, None) != made_by:
        return None
    for name, variable in data.variables.items():  # netCDF has big-endian numbers and no text
        kind = str if variable.dtype == object else variable.dtype.newbyteorder("=")
        data[name] = variable.astype(kind)
    return data


def _on_executor(tasks: dict[int, Callable], executor: Executor) -> Iterator[tuple[int, Any]]:
    """Yield (number, outcome) as tasks finish."""
    futures = {executor.submit(task): number for number, task in tasks.items()}
    try:
        for future in as_completed(futures):
            cause = future.exception()
            if cause is None:
                yield futures[future], future.result()
            else:
                yield futures[future], Failure(f"lost by the executor: {cause!r}")
    finally:
        for future in futures:
            future.cancel()


def _on_processes(tasks: dict[int, Callable], processes: int) -> Iterator[tuple[int, Any]]:
    """Like `_on_executor`, on new processes of this machine, of which some may die.

    Then the pool breaks without saying which task was to blame. Those that were submitted run
    again, one at a time: this finds the one that kills its process, and finishes the others.
    """
    waiting, suspects, died_alone = deque(tasks), deque[int](), set[int]()
    while waiting or suspects:
        alone = bool(suspects)
        queue, size = (suspects, 1) if alone else (waiting, min(processes, len(waiting)))
        running: dict[Future, int] = {}
        with _pool(size) as pool:
            try:
                while queue or running:
                    # one more for each process, so that none waits for who reads the results
                    while queue and len(running) < (1 if alone else 2 * size):
                        running[pool.submit(tasks[queue[0]])] = queue[0]
                        queue.popleft()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        yield running[future], future.result()
                        del running[future]
            except BrokenProcessPool:
                pass
        for number in running.values():
            if number in died_alone:
                yield number, Failure("its process died twice while it ran alone: out of memory?")
            else:
                suspects.append(number)
        died_alone.update(running.values() if alone else ())


@contextmanager
def _pool(size: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that end when the block does, or when this process dies."""
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(size, context, initializer=_start, initargs=(theirs,))
    try:
        try:
            pool.submit(os.getpid).result()
        except BrokenProcessPool:
            raise error(
                "worker processes must be able to start",
                "one that ended at once",
                "put the code of your script under `if __name__ == '__main__':`; workers import it",
            ) from None
        yield pool
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)
        theirs.close()


def _start(pipe: Any) -> None:
    """Start a worker: it ends with the driver, which also handles Ctrl-C, and draws no bars."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    draw_no_bars()
    # nothing is sent: `poll` returns when the other end is closed
    threading.Thread(target=lambda: (pipe.poll(None), os._exit(1)), daemon=True).start()


def _import_path(function: Any) -> str:
    """The name under which other processes find the function."""
    received = type(function).__name__
    try:
        received = f"{function.__module__}.{function.__qualname__}"
        if attrgetter(function.__qualname__)(sys.modules[function.__module__]) == function:
            return received
    except (AttributeError, KeyError):
        pass
    raise error(
        "function must be found by its name in a module, so that other processes find it",
        received,
        "define it at the top of a module; what it depends on is part of the configuration",
    )


@cache
def _version(function: Any) -> str:
    """Version of the library, and of the file of the function when it was first asked for."""
    source = vars(sys.modules[function.__module__]).get("__file__")
    if source is None:
        raise error(
            "function must come from a file, whose hash shows changes",
            f"{function.__qualname__} of {function.__module__}",
            "define it in a file and import it",
        )
    return _provenance.code_version(Path(source).read_bytes())


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise error(f"{name} must be a dict with text as names", repr(value))
    return value


def _axis(name: str, values: Any) -> list[Any]:
    """The values of an axis, as plain ones."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)) or not values:
        raise error(f"axis {name!r} must be a sequence of one or more values", repr(values))
    return [_plain(f"axis {name!r}", value) for value in values]


def _plain(where: str, value: Any) -> Any:
    """A value as JSON has it; infinity is allowed."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {name: _plain(where, part) for name, part in _mapping(where, value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(where, part) for part in value]
    if value is None or (isinstance(value, (str, bool, int, float)) and value == value):
        return value
    raise error(
        f"{where} must have plain values: numbers, text, booleans, None, lists, dicts",
        repr(value) if isinstance(value, float) else type(value).__name__,
        "" if isinstance(value, float) else "pass array.tolist(), build other objects in function",
    )


def _checked_folder(folder: Any) -> Path:
    try:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
        return path
    except (OSError, TypeError) as cause:
        raise error("folder must be a folder that can be written to", f"{cause}") from cause


def _coordinate(values: list[Any]) -> list[Any]:
    """The values of an axis as a coordinate that netCDF can store; lists and dicts as JSON."""
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        large = any(abs(value) >= _LARGEST for value in values if math.isfinite(value))
        return [float(value) for value in values] if large else values
    return values if kinds in ({str}, {bool}) else [json.dumps(value) for value in values]


def _check_names(found: Iterable[xr.Dataset | None], axes: Iterable[str]) -> None:
    taken = {
        str(name) for data in found if data is not None for name in (*data.variables, *data.dims)
    }
    if taken & set(axes):
        names = ", ".join(sorted(taken & set(axes)))
        raise error("a cell must not return the name of an axis", names, "rename what it returns")


def _joined(found: Iterator[xr.Dataset], axes: dict[str, list[Any]]) -> xr.Dataset:
    """Join cells, in the order of the grid, along its axes; what a cell does not have is NaN."""
    if not axes:
        return next(found)
    (name, values), *rest = axes.items()
    return xr.concat(
        [_joined(found, dict(rest)) for _ in values],
        xr.DataArray(values, dims=name, name=name),
        data_vars="all",
        coords="different",
        compat="equals",
        join="outer",
        combine_attrs="drop_conflicts",
    )
