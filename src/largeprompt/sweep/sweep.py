"""Define a sweep, and run the cells that are not stored yet."""

import itertools
import json
import logging
import numbers
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from .._message import error
from .._progress import progress_bar
from .cell import Cell, KeyWords, canonical, derived_key, key_words
from .cell_function import function_version, import_path, load
from .compute import Outcome
from .executors import in_this_process, on_cluster, on_processes
from .result import CellFailure, FinishedCell, SweepResult, finished_cell
from .store import Damaged, Store

_LOG = logging.getLogger("largeprompt.sweep")

Executor = Callable[[Sequence[Cell]], Generator[Outcome, None, None]]


def grid(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination of the values given for each name, the last name varying fastest.

    ```
    >>> grid(sigma=[1.0, 2.0], L=[10, 100])[1]
    {'sigma': 1.0, 'L': 100}

    ```
    """
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


class Sweep:
    """A function applied to many configurations, with each result stored as soon as it is computed.

    **Arguments:**

    - `function`: a function of a module, or its import path "package.module:function". It takes
      `(configuration, key)` and returns an `xarray.Dataset` or a dict of arrays.
    - `configurations`: for each cell a dict of plain values (numbers, text, lists, dicts); `grid`
      makes them from axes.
    - `seed`: each cell gets a random key that depends on the seed and its configuration alone, so
      adding or reordering cells does not change the results of the others.
    - `keys`: instead of a seed, one key for each cell: a JAX key, or an integer n for
      `jax.random.key(n)`.

    Without seed and keys the function is called with key None, and JAX is imported only if the
    function imports it.

    ```
    >>> import largeprompt as lp, tempfile
    >>> cells = lp.grid(sigma=[0.5, 1.0], replicate=[0, 1], L=[100], draws=[8])
    >>> sweep = lp.Sweep("largeprompt.sweep.example:sampled_error", cells, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = sweep.run(folder), sweep.run(folder)
    >>> first.computed, second.computed, second.reused
    (4, 0, 4)

    ```
    """

    def __init__(
        self,
        function: str | Callable,
        configurations: Iterable[Mapping[str, Any]],
        *,
        seed: int | None = None,
        keys: Iterable[Any] | None = None,
    ) -> None:
        path = import_path(function)
        found = load(path)
        texts = [canonical(configuration) for configuration in configurations]
        words = _keys(texts, seed, keys)
        codes = [function_version(found, text) for text in texts]
        self.cells = tuple(Cell(path, *rest) for rest in zip(codes, texts, words, strict=True))
        _check_distinct(self.cells)

    def run(
        self,
        folder: str | os.PathLike[str],
        *,
        workers: int | None = None,
        cluster: str | None = None,
    ) -> SweepResult:
        """Compute the cells that are not in `folder` yet, and store each as soon as it is finished.

        Cells run in this process by default, on `workers` processes of this machine, or on the Dask
        scheduler at `cluster`, such as "tcp://host:8786". A cell that fails does not stop the
        others: see `.complete` and `.failures` of the result. Raises `OSError` if the folder cannot
        be written to. After an interruption, running again continues where it stopped.
        """
        store = Store(folder)
        executor = _executor(store, workers, cluster)
        missing, damaged = _missing_cells(self.cells, store)
        failures: dict[Cell, CellFailure] = {}
        if missing:
            reused, name = len(self.cells) - len(missing), self.cells[0].function.partition(":")[2]
            with (
                closing(_computed(store, executor, missing)) as computed,
                progress_bar(name, len(self.cells), done=reused, unit="cells") as advance,
            ):
                for cell, failure in computed:
                    if failure is not None:
                        failures[cell] = failure
                    advance(label=f"{name} ({len(failures)} failed)" if failures else name)
        return SweepResult(
            self.cells,
            store,
            tuple(failures[cell] for cell in self.cells if cell in failures),
            damaged,
            computed=len(missing) - len(failures),
            reused=len(self.cells) - len(missing),
        )

    def iterate(
        self,
        folder: str | os.PathLike[str],
        *,
        workers: int | None = None,
        cluster: str | None = None,
    ) -> Generator[FinishedCell, None, None]:
        """Like `run`, but yields each cell when it is finished, stored ones first; no bar."""
        store = Store(folder)
        executor = _executor(store, workers, cluster)
        missing, _ = _missing_cells(self.cells, store)
        for cell in self.cells:
            if cell not in missing:
                yield finished_cell(store, cell, None, reused=True)
        with closing(_computed(store, executor, missing)) as computed:
            for cell, failure in computed:
                yield finished_cell(store, cell, failure, reused=False)


def _computed(
    store: Store, executor: Executor, cells: Sequence[Cell]
) -> Generator[tuple[Cell, CellFailure | None], None, None]:
    """Compute and store cells; yield each when it is stored, or with its failure."""
    if not cells:
        return
    store.prepare()
    with closing(executor(cells)) as outcomes:
        for outcome in outcomes:
            if outcome.reason:
                yield outcome.cell, _failure(outcome)
                continue
            if outcome.encoded is not None:
                store.write(outcome.cell.address, outcome.encoded)
            yield outcome.cell, None


def _keys(configurations: Sequence[str], seed: Any, keys: Any) -> list[KeyWords | None]:
    if seed is not None and keys is not None:
        raise error("a sweep takes a seed or keys", "both", "leave out one; keys are used as given")
    if keys is not None:
        words = [key_words(key) for key in keys]
        if len(words) != len(configurations):
            raise error(
                "a sweep must have one key for each configuration",
                f"{len(words)} keys for {len(configurations)} configurations",
                "pass seed= to derive keys from the configurations",
            )
        return words
    if seed is None:
        return [None] * len(configurations)
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise error(
            "seed must be an integer", repr(seed), "pass for example 0, or JAX keys as keys="
        )
    return [derived_key(int(seed), configuration) for configuration in configurations]


def _check_distinct(cells: Sequence[Cell]) -> None:
    if not cells:
        raise error(
            "a sweep must have at least one cell", "none", "pass at least one configuration"
        )
    cell, times = Counter(cells).most_common(1)[0]
    if times > 1:
        raise error(
            "the cells of a sweep must differ",
            f"{times} times {cell.configuration}",
            "add an entry that tells repetitions apart, for example 'replicate': 0, 1, 2",
        )


def _executor(store: Store, workers: Any, cluster: Any) -> Executor:
    if workers is not None and cluster is not None:
        raise error(
            "a sweep runs on local workers or on a cluster",
            f"workers={workers!r} and cluster={cluster!r}",
            "leave out one; the cluster brings its own workers",
        )
    if cluster is not None:
        return partial(on_cluster, address=cluster)
    if workers is None:
        return partial(in_this_process, store=store)
    if isinstance(workers, bool) or not isinstance(workers, numbers.Integral) or workers < 1:
        raise error(
            "workers must be a positive integer",
            repr(workers),
            "pass the number of processes, at most the number of cores",
        )
    return partial(on_processes, store=store, workers=int(workers))


def _missing_cells(cells: Sequence[Cell], store: Store) -> tuple[list[Cell], tuple[str, ...]]:
    """Cells to compute, and the configurations of the stored ones that are damaged."""
    missing, damaged = [], []
    for cell in cells:
        try:
            if store.read(cell.address) is not None:
                continue
        except Damaged as cause:
            _LOG.warning("%s: %s; computing it again", store.path(cell.address), cause)
            damaged.append(cell.configuration)
        missing.append(cell)
    return missing, tuple(damaged)


def _failure(outcome: Outcome) -> CellFailure:
    cell = outcome.cell
    configuration = json.loads(cell.configuration)
    return CellFailure(cell.address, configuration, cell.key, outcome.reason, outcome.traceback)
