"""Least squares for the values of atoms: the part of a compression's error that they can repair."""

import numpy as np

_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # relative to the mean of sum_i p_i^2
_BLOCKS = 8  # of consecutive queries, each predicted from the others


def value_changes(p: np.ndarray, errors: np.ndarray) -> np.ndarray | None:
    """Changes d_i of the values that minimise E|sum_i p_i d_i - errors|^2 + penalty |d|^2.

    **Arguments:** `p` (q, n), the weights of the atoms; `errors` (q, v), the output less that of
    the compression. The penalty has the least error on blocks of queries that are left out; None
    if no change at all has a smaller one.
    """
    q = len(p)
    if q < _BLOCKS or not p.shape[1]:
        return None
    gram = p @ p.T
    unit = max(float(np.trace(gram)) / q, 1e-300)
    eigenvalues, axes = np.linalg.eigh(gram)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    shares = eigenvalues / (eigenvalues + unit * np.array(_PENALTIES)[:, None])
    left_out = block_residuals((axes * shares[:, None]) @ axes.T, errors)
    found = np.sum(left_out**2, axis=(1, 2))
    best = int(np.argmin(found))
    if not found[best] < np.sum(errors**2):
        return None
    shrunk = axes / (eigenvalues + _PENALTIES[best] * unit)
    return p.T @ (shrunk @ (axes.T @ errors))


def block_residuals(hats: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Residuals (.., q, v) of linear fits whose matrices `hats` (.., q, q) are given, each block
    fitted without itself.
    """
    residuals = targets - hats @ targets
    size, longer = divmod(len(targets), _BLOCKS)
    cut = longer * (size + 1)
    for first, last, width in ((0, cut, size + 1), (cut, len(targets), size)):
        if first < last:
            index = np.arange(first, last).reshape(-1, width)
            own = np.eye(width) - hats[..., index[:, :, None], index[:, None, :]]
            solved = np.linalg.solve(own, residuals[..., index, :])
            residuals[..., first:last, :] = solved.reshape(*hats.shape[:-2], last - first, -1)
    return residuals
