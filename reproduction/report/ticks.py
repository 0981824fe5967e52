"""Axes of figures on the page: ranges, positions of ticks and their labels."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_MOST = 7  # labels of one axis
_MARGIN = 0.04  # of the range, on both sides
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Axis(NamedTuple):
    """Range of an axis, in powers of ten if it is logarithmic, and values with their labels."""

    low: float
    high: float
    ticks: list[tuple[float, str]]


def choose_axis(values: np.ndarray, log: bool, floor: float | None = None) -> Axis:
    """Range and ticks that show all values, with a margin.

    On a log axis `floor` is the place of zero; its label is "0".
    """
    if not values.size:
        return Axis(0.0, 1.0, [])
    places = np.log10(values) if log else values
    low, high = float(places.min()), float(places.max())
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):  # one value
        half = 0.5 if log else 0.5 * abs(high) or 0.5
        low, high = low - half, high + half
    margin = _MARGIN * (high - low)
    low, high = low - margin, high + margin
    if not log:
        return Axis(low, high, [(tick, number_label(tick)) for tick in _round_numbers(low, high)])
    style = log_label(10**low, 10**high)
    ticks = [(tick, style(tick)) for tick in _round_factors(low, high)]
    if floor is not None and low <= math.log10(floor) <= high:
        ticks = [(floor, "0"), *(tick for tick in ticks if tick[0] > 3 * floor)]
    return Axis(low, high, ticks)


def _round_numbers(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in a range."""
    power = 10.0 ** math.floor(math.log10((high - low) / _MOST))
    step = next(m * power for m in (1, 2, 5, 10) if (high - low) / (m * power) <= _MOST)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _round_factors(low: float, high: float) -> list[float]:
    """Powers of ten in a range of powers; in two decades or less also 2 and 5 times them."""
    first, last = math.floor(low), math.ceil(high)
    if high - low <= 2:
        factors = [float(f"{m}e{i}") for i in range(first, last + 1) for m in (1, 2, 5)]
        found = [f for f in factors if low <= math.log10(f) <= high]
        return found if len(found) > 1 else _round_numbers(10**low, 10**high)
    stride = next(s for s in (1, 2, 3, 5, 10, 20, 50) if (high - low) / s <= _MOST)
    return [10.0**i for i in range(first, last + 1) if low <= i <= high and i % stride == 0]


def log_label(low: float, high: float) -> Callable[[float], str]:
    """Labels of a log axis: plain numbers if all are short, else powers of ten."""
    return number_label if low > 0.005 and high < 2e4 else _with_power


def number_label(value: float) -> str:
    """A number in a few characters, large and small ones with a power of ten.

    >>> [number_label(value) for value in (0.0, 0.25, 10000.0, 1e12, -2e-7)]
    ['0', '0.25', '10000', '10¹²', '−2·10⁻⁷']
    """
    if value == 0 or 1e-3 < abs(value) < 99999:
        return f"{value:g}".replace("-", "−")
    return _with_power(value)


def _with_power(value: float) -> str:
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    mantissa = f"{float(mantissa):g}".replace("-", "−")
    if int(exponent) == 0:
        return mantissa
    power = "10" if int(exponent) == 1 else f"10{str(int(exponent)).translate(_RAISED)}"
    return {"1": power, "−1": f"−{power}"}.get(mantissa, f"{mantissa}·{power}")
