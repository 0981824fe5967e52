"""Two tokens: every moment is a one-dimensional integral over the logit d = s_1 - s_2 ~ N(0, 2
sigma^2).
"""

import mpmath as mp


def two_token_participation(sigma):
    """P_2, P_3, P_22 at L = 2: with w = p_1 p_2 = 1/(4 cosh^2(d/2)) they are 1-2Ew, 1-3Ew,
    E(1-2w)^2.
    """
    with mp.workdps(25):
        variance = 2 * mp.mpf(sigma) ** 2
        if variance == 0:
            return {"P2": mp.mpf(1) / 2, "P3": mp.mpf(1) / 4, "P22": mp.mpf(1) / 4}

        def mean(power):
            top = mp.sqrt(variance) * 11
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
