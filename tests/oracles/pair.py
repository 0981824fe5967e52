"""Two tokens, or two softmaxes: moments by quadrature over the logits, and by brute force.

For two tokens the logit d = s_1 - s_2 ~ N(0, 2 sigma^2) is all that matters.
"""

import mpmath as mp
import numpy as np


def two_token_participation(sigma):
    """P_2, P_3, P_22 at L = 2: with w = p_1 p_2 = 1/(4 cosh^2(d/2)) they are 1-2Ew, 1-3Ew,
    E(1-2w)^2.
    """
    with mp.workdps(25):
        variance = 2 * mp.mpf(sigma) ** 2
        if variance == 0:
            return {"P2": mp.mpf(1) / 2, "P3": mp.mpf(1) / 4, "P22": mp.mpf(1) / 4}

        def mean(power):
            top = min(mp.sqrt(variance) * 11, 80)  # the powers of w decay like e^{-d}
            points = mp.linspace(0, top, 2 + int(top))
            return (
                2
                * mp.quad(
                    lambda d: mp.exp(-d * d / (2 * variance)) / (4 * mp.cosh(d / 2) ** 2) ** power,
                    points,
                )
                / mp.sqrt(2 * mp.pi * variance)
            )

        w, w2 = mean(1), mean(2)
        return {"P2": 1 - 2 * w, "P3": 1 - 3 * w, "P22": 1 - 4 * w + 4 * w2}


def two_token_pair(sigma_a, sigma_b, rho):
    """Moments of two softmaxes of two tokens, by the trapezoidal rule over two logits.

    The logits s_1 - s_2 and r_1 - r_2 are normal with deviations sqrt(2) sigma and correlation rho.
    """
    x = np.linspace(-11, 11, 501)
    normal = np.exp(-(x**2) / 2) * (x[1] - x[0]) / np.sqrt(2 * np.pi)
    y, other = (x, normal) if abs(rho) < 1 else (np.zeros(1), np.ones(1))
    a = np.sqrt(2) * sigma_a * x[:, None]
    b = np.sqrt(2) * sigma_b * (rho * x[:, None] + np.sqrt(1 - rho**2) * y)
    p, q = ([1 / (1 + np.exp(-d)), 1 / (1 + np.exp(d))] for d in (a, b))
    return {name: normal @ value @ other for name, value in pair_statistics(p, q, b).items()}


def pair_statistics(p, q, like):
    """The quantities whose averages are the fields of `PairMoments`; p and q list the weights."""

    def total(k, l):
        return sum(pi**k * qi**l for pi, qi in zip(p, q, strict=True)) + 0 * like

    a2, b2, c11 = total(2, 0), total(0, 2), total(1, 1)
    return {
        "c11": c11,
        "c21": total(2, 1),
        "c12": total(1, 2),
        "c22": total(2, 2),
        "a2c11": a2 * c11,
        "b2c11": b2 * c11,
        "a2b2": a2 * b2,
        "c11_squared": c11**2,
    }


def simulated_pair(sigma_a, sigma_b, rho, L, replicates, seed):
    """{name: (mean, standard error)} of the same quantities over sampled prompts."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, L, replicates))
    scores = sigma_a * x, sigma_b * (rho * x + np.sqrt(1 - rho**2) * y)
    p, q = (np.exp(s) / np.exp(s).sum(axis=0) for s in scores)
    found = pair_statistics(p, q, p[0])
    return {k: (v.mean(), v.std(ddof=1) / np.sqrt(replicates)) for k, v in found.items()}
