"""A law of many tokens at all lengths. Alone, also on a GPU: `python -m benchmarks.discrete`."""

from collections.abc import Iterator

import jax
import numpy as np

import largeprompt as lp
from largeprompt.prompts.error_table import error_table

from .rows import Row, table_of_rows
from .timing import race

_ATOMS, _DIM, _QUERIES, _LENGTHS = 20_000, 64, 50, 61


def discrete_law() -> Iterator[Row]:
    """Squared errors of the output: 20,000 tokens in 64 dimensions, 50 queries, 61 lengths to 1e15.

    The peer calls `output_error` for each query and length: the time of one call, scaled.
    """
    rng = np.random.default_rng(0)
    mu = lp.Empirical(rng.normal(size=(_ATOMS, _DIM)))
    head = lp.Head(U=np.eye(_DIM) / _DIM**0.5, V=np.eye(_DIM))
    z, lengths = rng.normal(size=(_QUERIES, _DIM)), np.geomspace(1, 1e15, _LENGTHS)
    built = error_table(head, [mu], z)
    times = race(
        {
            "all": lambda: error_table(head, [mu], z).at(lengths),
            "lengths": lambda: built.at(lengths),
            "one": lambda: jax.block_until_ready(lp.output_error(head, mu, z[0], 1e3)),
        },
        rounds=3,
    )
    case = f"{_QUERIES} queries, {_LENGTHS} lengths"
    peers = {"a call for each query and length": times["one"].median * _QUERIES * _LENGTHS}
    yield Row(case, times["all"], peers)
    yield Row(f"{_LENGTHS} more lengths", times["lengths"])


if __name__ == "__main__":
    with jax.enable_x64(True):
        rows = [row.stored() for row in discrete_law()]
    print(f"{jax.devices()[0].device_kind}\n\n{table_of_rows(rows)}")
