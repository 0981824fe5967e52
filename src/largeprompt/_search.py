"""The search for the shortest prompt that meets a condition."""

import math
from collections.abc import Callable

import numpy as np

_SHORT = 16  # every length up to here is evaluated
_SCAN = 14  # lengths in a thousandfold from there on
_INSIDE = 16  # lengths evaluated at once by a bisection


def smallest_length(
    too_large: Callable[[np.ndarray], np.ndarray],
    longest: float,
    *,
    guess: Callable[[float, float], float] | None = None,
) -> float:
    """The length from which on `too_large` is false, in whole tokens; infinity if above `longest`.

    **Arguments:** `too_large` maps a vector of lengths to booleans. It may turn true again after it
    was false: a coarse scan goes on until it has been false for a thousandfold of lengths, and the
    last crossing counts. Lengths above 1e9 are found to nine digits.

    With `guess` it is taken to change once, and evaluated seldom: at powers of ten up to the first
    that is false, then at `guess(low, high)`, where low is too large and high is not, and at the
    next length.

    >>> import numpy as np
    >>> from largeprompt._search import smallest_length
    >>> print(smallest_length(lambda L: 1 / L > 0.003, longest=1e15))
    334.0
    """
    short, scan, beyond = (_SHORT, _SCAN, _SCAN) if guess is None else (1, 3, 1)
    lengths = np.arange(1.0, short + 1)
    large = too_large(lengths)
    while large[-beyond:].any() and lengths[-1] < longest:
        top = min(1e3 * lengths[-1], longest)
        further = np.geomspace(lengths[-1], top, scan + 1)[1:]
        for part in np.split(further if guess is None else np.round(further), scan // beyond):
            lengths, large = np.append(lengths, part), np.append(large, too_large(part))
            if not large[-beyond:].any():
                break
    above = np.flatnonzero(large)
    if not above.size:
        return 1.0
    last = int(above[-1])
    if last == len(lengths) - 1:
        return math.inf
    low, high = lengths[last], lengths[last + 1]
    # whole tokens, or nine digits where whole tokens are beyond the accuracy of most conditions
    while high - low > max(1.0, 1e-9 * high):
        if guess is None:
            middle = np.unique(np.round(np.geomspace(low, high, _INSIDE + 2)[1:-1]))
        else:
            near = min(max(round(guess(float(low), float(high))), low + 1), high - 1)
            middle = np.unique([near, min(near + 1, high - 1)]).astype(np.float64)
        large = too_large(middle)
        low = middle[large].max(initial=low)
        high = middle[~large & (middle > low)].min(initial=high)
    return float(math.ceil(high))
