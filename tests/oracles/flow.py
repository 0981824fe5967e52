"""Gradient flows by NumPy and SciPy: the infinite-prompt flow as printed in the paper, and flows of
risks integrated by brute force.
"""

import numpy as np
from scipy.integrate import solve_ivp


def infinite_flow(cov, A, b, times):
    """A' = b Sig^2 - b^2 Sig^2 A Sig, b' = tr(A'Sig^2) - b tr(A'Sig^2 A Sig), for S_w = I; (A, b)
    at the times.
    """
    d = len(cov)
    square = cov @ cov

    def field(t, y):
        A, b = y[:-1].reshape(d, d), y[-1]
        dA = b * square - b**2 * square @ A @ cov
        db = np.trace(A.T @ square) - b * np.trace(A.T @ square @ A @ cov)
        return np.append(dA, db)

    start = np.append(A, b)
    found = solve_ivp(field, (0, times[-1]), start, t_eval=times, rtol=1e-11, atol=1e-13)
    return found.y[:-1].T.reshape(-1, d, d), found.y[-1]


def scalar_flow(cov, x, times):
    """d = 1, a = b = x: x' = s^2 x (1 - s x^2), solved by hand: x^2 is a logistic curve."""
    growth = np.exp(2 * cov**2 * np.asarray(times))
    return np.sqrt(x**2 * growth / (1 + cov * x**2 * (growth - 1)))


def scalar_finite_flow(participation, variance, a, b, L, times):
    """d = 1, no noise: the flow of R_L(a, b) = 1/2 E_x[ b^2 { q (1 - P_2 - 6 P_3 + 6 P_22) + s P_2
    } - 2 b (1 - P_2) x^2 s a + x^2 ] with q = (x a s)^2, by Gauss-Hermite nodes in x, central
    differences and SciPy. `participation(sigma, L)` gives (P_2, P_3, P_22).
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    x = nodes * np.sqrt(variance)
    weights = weights / weights.sum()

    def risk(y):
        a, b = y
        p2, p3, p22 = participation(np.abs(x * a) * np.sqrt(variance), L)
        q = (x * a * variance) ** 2
        second = q * (1 - p2 - 6 * p3 + 6 * p22) + variance * p2
        return 0.5 * weights @ (b**2 * second - 2 * b * (1 - p2) * x**2 * variance * a + x**2)

    def field(t, y):
        h = 1e-4
        steps = h * np.eye(2)
        return [-(risk(y + s) - risk(y - s)) / (2 * h) for s in steps]

    return solve_ivp(
        field, (0, times[-1]), [a, b], t_eval=times, method="LSODA", rtol=1e-8, atol=1e-10
    ).y.T
