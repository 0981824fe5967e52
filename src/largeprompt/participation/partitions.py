"""Set partitions of the factors of a moment, grouped with their multiplicities.

A product of sums over tokens, prod_a sum_i f_a(i), is a sum over the set partitions of its
factors: the factors of one block share a token, different blocks sit on different tokens.  For
iid tokens the m blocks of a partition can be placed in L(L-1)...(L-m+1) ways, so only the
multiset of blocks matters.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

Block = tuple[int, ...]  # componentwise sum of the exponents of the factors in the block


def set_partitions(items: tuple[T, ...]) -> Iterator[tuple[tuple[T, ...], ...]]:
    """Every set partition of `items` (positions are distinct, even if values repeat)."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for partition in set_partitions(rest):
        yield ((first,), *partition)
        for i, block in enumerate(partition):
            yield (*partition[:i], (first, *block), *partition[i + 1 :])


@lru_cache(maxsize=1024)
def merged_blocks(factors: tuple[Block, ...]) -> tuple[tuple[tuple[Block, ...], int], ...]:
    """((blocks, multiplicity), ...) over the set partitions of `factors`.

    A factor is a tuple of exponents, e.g. (j, k) for sum_i s_i^j p_i^k; a block carries the sum
    of its factors.  Four factors (0, 1) give {(0,4)}: 1, {(0,3),(0,1)}: 4, {(0,2),(0,2)}: 3,
    {(0,2),(0,1),(0,1)}: 6, {(0,1)^4}: 1, the fifteen partitions of four things.
    """
    counts: Counter[tuple[Block, ...]] = Counter()
    for partition in set_partitions(factors):
        counts[tuple(sorted(map(_add, partition), reverse=True))] += 1
    return tuple(sorted(counts.items()))


def _add(block: tuple[Block, ...]) -> Block:
    return tuple(map(sum, zip(*block, strict=True)))
