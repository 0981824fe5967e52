"""The check of types and shapes that all tests run under."""

from dataclasses import dataclass

import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError

from largeprompt._message import message
from largeprompt.sweep.result import CellFailure

from .type_checks import checked, kind


@checked
def doubled(x: Float[np.ndarray, " n"], name: str = "") -> Float[np.ndarray, " n"]:
    return x[:1] if name == "short" else 2 * x


def test_checked_rejects_a_kind_of_call_that_has_not_passed():
    for _ in range(2):
        np.testing.assert_array_equal(doubled(np.ones(3)), 2 * np.ones(3))
        with pytest.raises(TypeCheckError, match="parameters of"):
            doubled(np.ones((3, 3)))
        with pytest.raises(TypeCheckError, match="parameters of"):
            doubled(np.ones(3, int))
        with pytest.raises(TypeCheckError, match="parameters of"):
            doubled(x=3.0)  # pyright: ignore[reportArgumentType]


def test_checked_rejects_a_result_of_another_kind_after_a_good_one():
    @checked
    def part(x: Float[np.ndarray, " n"], n: int) -> Float[np.ndarray, " n"]:
        return x[:n]

    part(np.ones(3), 3)  # the second call has arguments of the same kind
    with pytest.raises(TypeCheckError, match="return value of"):
        part(np.ones(3), 2)


def test_checked_calls_the_closure_that_is_meant():
    def times(factor: int):
        @checked
        def product(x: int) -> int:
            return product(x - 1) + factor if x else 0

        return product

    assert [times(factor)(3) for factor in (2, 5, 7)] == [6, 15, 21]
    with pytest.raises(TypeCheckError, match="parameters of"):
        times(2)("3")


def test_checked_dataclass_and_methods():
    @checked
    @dataclass
    class Pair:
        left: int

        @staticmethod
        @checked
        def half(x: float) -> float:
            return x / 2

    assert Pair(1).left == 1
    assert Pair.half(1.0) == 0.5
    with pytest.raises(TypeCheckError, match="parameters of"):
        Pair("1")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeCheckError, match="parameters of"):
        Pair.half("1")  # pyright: ignore[reportArgumentType]


def test_checked_containers_that_are_deep_or_long():
    """Tuples that share their items have 2^60 leaves; these checks are repeated at each call."""

    @checked
    def first(x: tuple | list[int]) -> int | None:
        return x[0] if isinstance(x, list) else None

    deep = ()
    for _ in range(60):
        deep = (deep, deep)
    assert first(deep) is None
    assert kind(deep) != kind(deep)
    assert first([1] * 100) == 1
    with pytest.raises(TypeCheckError, match="parameters of"):
        first(["1"] * 100)  # pyright: ignore[reportArgumentType]


def test_functions_of_the_package_are_checked():
    with pytest.raises(TypeCheckError, match=r"parameters of largeprompt\._message\.message"):
        message(1, "2", "3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeCheckError, match=r"parameters of .*CellFailure"):
        CellFailure("address", {}, None, "reason", 1)  # pyright: ignore[reportArgumentType]
