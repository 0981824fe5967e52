"""Set partitions: counted by Bell numbers, grouped with multiplicities."""

import pytest

from largeprompt.participation.partitions import merged_blocks, set_partitions

BELL = [1, 1, 2, 5, 15, 52, 203]


@pytest.mark.parametrize("size", range(7))
def test_set_partitions_are_counted_by_bell_numbers(size):
    partitions = list(set_partitions(tuple(range(size))))
    assert len(set(map(frozenset, partitions))) == len(partitions) == BELL[size]


def test_merged_blocks_of_four_factors():
    counts = {tuple(k for _, k in blocks): n for blocks, n in merged_blocks(((0, 1),) * 4)}
    assert counts == {(4,): 1, (3, 1): 4, (2, 2): 3, (2, 1, 1): 6, (1, 1, 1, 1): 1}


def test_merged_blocks_add_exponents():
    assert dict(merged_blocks(((2, 1), (1, 2)))) == {((3, 3),): 1, ((2, 1), (1, 2)): 1}
