"""Does a sample represent the tail that carries its average?"""

import numpy as np

HEAVY = 0.7  # a sample mean whose terms have this tail index converges too slowly to be trusted


def tail_index(terms: np.ndarray) -> np.ndarray:
    """Tail index k of non-negative terms along the first axis: P(term > x) ~ x^(-1/k); at most 0
    where the tail is light.

    The moment estimator of Dekkers, Einmahl & de Haan (Ann. Statist. 17, 1989), from the largest 3
    sqrt(n) of n terms. A mean of terms with k >= 1/2 has no central limit theorem; from about 0.7
    on, its standard error means nothing.

    >>> import numpy as np
    >>> u = (np.arange(10_000) + 0.5) / 10_000
    >>> print(tail_index(np.stack([u**-0.25, u**-0.9, 1 - u], axis=1)).round(1))
    [ 0.2  0.9 -1. ]
    """
    count = len(terms)
    top = min(int(3 * np.sqrt(count)), count // 2)
    if top < 8:
        return np.full(terms.shape[1:], np.inf)
    largest = np.sort(terms, axis=0)[-top - 1 :]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(largest[1:]) - np.log(largest[:1])
        first, second = logs.mean(axis=0), (logs**2).mean(axis=0)
        found = first + 1 - 0.5 / (1 - first**2 / second)
    # equal terms have no tail
    return np.where(largest[-1] > largest[0], found, -1.0)
