"""A grid of cells, and running what is missing of it."""

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

from .._message import message
from ._plain import Words, canonical, derived_key, key_words
from ._progress import progress
from .cell import Cell
from .code import function_version, import_path, load
from .compute import Outcome
from .content import Damaged
from .executors import in_this_process, on_cluster, on_processes
from .result import CellFailure, FinishedCell, SweepResult, finished_cell
from .store import Store

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
    """A function applied to many configurations, each result stored as soon as it is there.

    **Arguments:**

    - `function`: a function of a module, or its import path "package.module:function", that takes `(configuration, key)` and
      returns an `xarray.Dataset` or a dict of arrays.
    - `configurations`: one dict of plain values (numbers, text, lists, dicts) a cell; `grid` makes them from axes.
    - `seed`: gives each cell a random key that depends on the seed and its configuration alone, so that cells can be added and
      reordered and the others keep their results.
    - `keys`: instead of a seed, one key a cell: an integer n for `jax.random.key(n)`, or a JAX key.

    Without seed and keys the function gets None for a key, and JAX is not loaded unless the function does.

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
        code = function_version(load(path))
        texts = [canonical(configuration) for configuration in configurations]
        words = _keys(texts, seed, keys)
        self.cells = tuple(
            Cell(path, code, text, key) for text, key in zip(texts, words, strict=True)
        )
        _refuse_repeated(self.cells)

    def run(
        self,
        folder: str | os.PathLike[str],
        *,
        workers: int | None = None,
        cluster: str | None = None,
    ) -> SweepResult:
        """Compute the cells that `folder` does not hold yet, and store each as soon as it is finished.

        By default in this process; on `workers` processes of this machine; or on the Dask scheduler at `cluster`, such as
        "tcp://host:8786". A cell that fails does not stop the others: look at `.complete` and `.failures` of the result. A
        folder that cannot be written to raises `OSError`. However the run ends, running again goes on where it stopped.
        """
        store = Store(folder)
        executor = _executor(store, workers, cluster)
        missing, damaged = _look(self.cells, store)
        failures: dict[Cell, CellFailure] = {}
        if missing:
            reused, name = len(self.cells) - len(missing), self.cells[0].function.partition(":")[2]
            with (
                closing(_computed(store, executor, missing)) as computed,
                progress(name, len(self.cells), reused, failures) as advance,
            ):
                for cell, failure in computed:
                    if failure is not None:
                        failures[cell] = failure
                    advance()
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
        """Like `run`, but yields each cell as it ends, stored ones first, and shows no progress."""
        store = Store(folder)
        executor = _executor(store, workers, cluster)
        missing, _ = _look(self.cells, store)
        for cell in self.cells:
            if cell not in missing:
                yield finished_cell(store, cell, None, reused=True)
        with closing(_computed(store, executor, missing)) as computed:
            for cell, failure in computed:
                yield finished_cell(store, cell, failure, reused=False)


def _computed(
    store: Store, executor: Executor, cells: Sequence[Cell]
) -> Generator[tuple[Cell, CellFailure | None], None, None]:
    """Compute and store cells; yields each when it is stored, or with its failure."""
    if not cells:
        return
    store.prepare()
    with closing(executor(cells)) as outcomes:
        for outcome in outcomes:
            if outcome.reason:
                yield outcome.cell, _failure(outcome)
                continue
            if outcome.content is not None:
                store.write(outcome.cell.address, outcome.content)
            yield outcome.cell, None


def _keys(configurations: Sequence[str], seed: Any, keys: Any) -> list[Words | None]:
    if seed is not None and keys is not None:
        raise ValueError(
            message("a sweep takes a seed or keys", "both", "leave out one; keys are used as given")
        )
    if keys is not None:
        words = [key_words(key) for key in keys]
        if len(words) != len(configurations):
            raise ValueError(
                message(
                    "a sweep must have one key a configuration",
                    f"{len(words)} keys for {len(configurations)} configurations",
                    "pass seed= to have keys made",
                )
            )
        return words
    if seed is None:
        return [None] * len(configurations)
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise ValueError(
            message(
                "seed must be an integer", repr(seed), "pass for example 0, or JAX keys as keys="
            )
        )
    return [derived_key(int(seed), configuration) for configuration in configurations]


def _refuse_repeated(cells: Sequence[Cell]) -> None:
    if not cells:
        raise ValueError(
            message(
                "a sweep must have at least one cell", "none", "pass at least one configuration"
            )
        )
    cell, times = Counter(cells).most_common(1)[0]
    if times > 1:
        raise ValueError(
            message(
                "the cells of a sweep must differ",
                f"{times} times {cell.configuration}",
                "add an entry that tells repetitions apart, for example 'replicate': 0, 1, 2",
            )
        )


def _executor(store: Store, workers: Any, cluster: Any) -> Executor:
    if workers is not None and cluster is not None:
        raise ValueError(
            message(
                "a sweep runs on local workers or on a cluster",
                f"workers={workers!r} and cluster={cluster!r}",
                "leave out one; the cluster has workers of its own",
            )
        )
    if cluster is not None:
        return partial(on_cluster, address=cluster)
    if workers is None:
        return partial(in_this_process, store=store)
    if isinstance(workers, bool) or not isinstance(workers, numbers.Integral) or workers < 1:
        raise ValueError(
            message(
                "workers must be a positive integer",
                repr(workers),
                "pass the number of processes, at most the number of cores",
            )
        )
    return partial(on_processes, store=store, workers=int(workers))


def _look(cells: Sequence[Cell], store: Store) -> tuple[list[Cell], tuple[str, ...]]:
    """The cells to compute, and the stored ones among them that are not whole."""
    missing, damaged = [], []
    for cell in cells:
        try:
            if store.read(cell.address) is not None:
                continue
        except Damaged as error:
            _LOG.warning("%s: %s; computing it again", store.path(cell.address), error)
            damaged.append(cell.configuration)
        missing.append(cell)
    return missing, tuple(damaged)


def _failure(outcome: Outcome) -> CellFailure:
    cell = outcome.cell
    configuration = json.loads(cell.configuration)
    return CellFailure(cell.address, configuration, cell.key, outcome.reason, outcome.traceback)
