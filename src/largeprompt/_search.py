"""The search for the shortest prompt that meets a condition."""

import math
from collections.abc import Callable

import numpy as np

_SHORT = 16  # every length up to here is evaluated
_RATIO = 10 ** (3 / 14)  # of neighbouring lengths from there on
_INSIDE = 16  # lengths evaluated at once around a maximum, or where only signs are known


def scan(longest: float, shortest: float = 1.0) -> np.ndarray:
    """The lengths from `shortest` to `longest` that `last_crossing` evaluates first."""
    short = np.arange(shortest, min(shortest + _SHORT, longest))
    steps = math.ceil(math.log(longest / short[-1]) / math.log(_RATIO))
    return np.append(short, np.geomspace(short[-1], longest, steps + 1)[1:])


def last_crossing(excess: Callable[[np.ndarray], np.ndarray], lengths: np.ndarray) -> float:
    """The length from which on `excess` is at most 0, in whole tokens; infinity if it is positive
    at the last of the `lengths`.

    **Arguments:** `excess` maps a vector of lengths to numbers, or to booleans: True is positive.
    It may change sign any number of times. It is evaluated at the increasing `lengths`, those of
    `scan`, and then around every maximum beyond the last positive value.

    A peak above 0 between two lengths of the scan is found if the scan shows a maximum beside it.
    The scan has neighbours a factor of 1.64 apart. Squared errors are averages of $L^k e^{-Lx}$,
    k <= 4, over x. The narrowest peak of these, k = 4, exceeds half of its height over a factor of
    3.3 in L, so the scan resolves it. Lengths above 1e9 are found to nine digits.

    >>> import numpy as np
    >>> from largeprompt._search import last_crossing, scan
    >>> print(last_crossing(lambda L: 1 / L - 0.003, scan(1e15)))
    334.0
    >>> print(last_crossing(lambda L: L / (1e8 + L) ** 2 - 2.4e-9, scan(1e15)))  # 0 at L = 1
    150000000.0
    """
    first = np.asarray(excess(lengths))
    values = first.astype(np.float64)
    if values[-1] > 0:
        return math.inf
    for _ in range(3):
        maxima = _maxima_beyond(lengths, values)
        if not maxima.size:
            break
        inner = [_between(float(lengths[i - 1]), float(lengths[i + 1])) for i in maxima]
        further = np.setdiff1d(np.concatenate(inner), lengths)
        lengths = np.append(lengths, further)
        values = np.append(values, np.asarray(excess(further), np.float64))
        order = np.argsort(lengths)
        lengths, values = lengths[order], values[order]
    above = np.flatnonzero(values > 0)
    if not above.size:
        return float(lengths[0])
    last = int(above[-1])
    ends = [(float(lengths[i]), float(values[i])) for i in (last, last + 1)]
    return _bisected(excess, *ends, signs_only=first.dtype == bool)


def _maxima_beyond(lengths: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Places of the local maxima beyond the last positive value, where the lengths leave room."""
    above = np.flatnonzero(values > 0)
    inside = np.arange(1, len(values) - 1)
    left, here, right = values[:-2], values[1:-1], values[2:]
    top = (here >= left) & (here >= right) & (here > np.minimum(left, right))
    room = lengths[2:] - lengths[:-2] > 2
    return inside[top & room & (inside > above.max(initial=-1))]


def _between(low: float, high: float) -> np.ndarray:
    """Whole lengths strictly between two."""
    found = np.unique(np.round(np.geomspace(low, high, _INSIDE + 2)[1:-1]))
    return found[(found > low) & (found < high)]


def _bisected(
    excess: Callable[[np.ndarray], np.ndarray],
    left: tuple[float, float],
    right: tuple[float, float],
    *,
    signs_only: bool,
) -> float:
    """The crossing between two (length, excess): the first is positive, the second is not."""
    (low, above), (high, below) = left, right
    # whole tokens, or nine digits where whole tokens are beyond the accuracy of most conditions
    while high - low > max(1.0, 1e-9 * high):
        if signs_only:
            middle = _between(low, high)
        else:  # linear in ln L; a point to either side closes the bracket
            step = math.log(high / low)
            at = math.log(low) + step * above / (above - below)
            guess = np.exp(np.clip(at + step * np.array([-0.02, 0.0, 0.02]), *np.log([low, high])))
            middle = np.append(guess, math.sqrt(low * high))
            middle = np.unique(np.clip(np.round(middle), math.floor(low) + 1, math.ceil(high) - 1))
        values = np.asarray(excess(middle), np.float64)
        large = values > 0
        if large.any():
            low, above = middle[large][-1], values[large][-1]
        beyond = ~large & (middle > low)
        if beyond.any():
            high, below = middle[beyond][0], values[beyond][0]
    return float(math.ceil(high))


def smallest_length(
    too_large: Callable[[np.ndarray], np.ndarray],
    longest: float,
    guess: Callable[[float, float], float],
) -> float:
    """The length from which on `too_large` is false, in whole tokens; infinity if above `longest`.

    **Arguments:** `too_large` maps a vector of lengths to booleans, and changes once. It is
    evaluated seldom: at powers of ten up to the first that is false, then at `guess(low, high)`,
    where low is too large and high is not, and at the next length.

    >>> import numpy as np
    >>> from largeprompt._search import smallest_length
    >>> print(smallest_length(lambda L: 1 / L > 0.003, 1e15, guess=lambda low, high: 1 / 0.003))
    334.0
    """
    low = high = 1.0
    while too_large(np.array([high]))[0]:
        if high >= longest:
            return math.inf
        low, high = high, min(10 * high, longest)
    while high - low > max(1.0, 1e-9 * high):
        near = min(max(round(guess(float(low), float(high))), low + 1), high - 1)
        middle = np.unique([near, min(near + 1, high - 1)]).astype(np.float64)
        large = too_large(middle)
        low = middle[large].max(initial=low)
        high = middle[~large & (middle > low)].min(initial=high)
    return float(math.ceil(high))
