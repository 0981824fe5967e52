# pyright: reportReturnType=false
"""Write reference.json: participation moments to 20 digits from the mpmath oracle (about half an
hour).

Run from the root of the repository: python -m tests.participation.generate_reference [output.json]
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import mpmath as mp

from ..oracles import participation as oracle

SIGMAS = ("0", "1e-8", "1e-3", "0.1", "0.7", "1", "1.3", "2", "3", "4.5", "6", "9", "12")
LENGTHS = ("1.0000001", "1.5", "2", "20", "1e3", "1e6", "1e9", "1e12")
SLOPES = [("1e-3", "1e3"), ("0.5", "2"), ("1", "100"), ("1.5", "1e9"), ("3", "50"), ("6", "1e6")]
MOMENTS = [((2, 2, 2), "1", "5"), ((2, 2, 2, 2), "2", "50"), ((3, 2), "0.5", "1e6")]
MOMENTS += [((5, 3), "3", "1.5"), ((4, 2, 1), "4", "1e4"), ((8,), "1", "30")]

SCORES = [(((1, 1),), "2", "30", "0"), (((2, 1), (1, 2)), "1", "4", "0.7")]
GRADIENTS = [("1", "1e6"), ("2", "5"), ("4", "1e9")]


def _digits(value) -> str:
    return mp.nstr(value, 20, strip_zeros=False)


def value_row(case):
    sigma, length = case
    values = oracle.participation(sigma, length)
    return {"sigma": sigma, "L": length} | {name: _digits(v) for name, v in values.items()}


def slope_row(case):
    """dP/dsigma by the fourth-order central difference of the oracle."""
    sigma, length = case
    with mp.workdps(oracle.DIGITS):
        centre = mp.mpf(sigma)
        step = min(centre / 4, mp.mpf("1e-4"))
        around = {m: oracle.participation(centre + m * step, length) for m in (-2, -1, 1, 2)}
        row = {"sigma": sigma, "L": length}
        for name in ("P2", "P3", "P22"):
            f = {m: values[name] for m, values in around.items()}
            row[name] = _digits((8 * (f[1] - f[-1]) - (f[2] - f[-2])) / (12 * step))
        return row


def moment_row(case):
    ks, sigma, length = case
    value = oracle.participation_moment(ks, sigma, length)
    return {"ks": ks, "sigma": sigma, "L": length, "value": _digits(value)}


def score_row(case):
    factors, sigma, length, centre = case
    value = oracle.score_moment(factors, sigma, length, centre)
    return {
        "factors": factors,
        "sigma": sigma,
        "L": length,
        "centre": centre,
        "value": _digits(value),
    }


def gradient_row(case):
    """The moments of the gradient error from score moments; at 25 digits their cancellation is
    harmless.
    """
    sigma, length = case
    one, mean, square, two = (0, 1), (1, 1), (2, 1), (0, 2)
    requests = [(square, square), (square, mean, mean), (mean,) * 4, (square, one), (mean, mean)]
    requests += [((2, 2),), ((1, 2), mean), (two, mean, mean), (square, two), (two,)]
    with mp.workdps(oracle.DIGITS):
        v = mp.mpf(sigma) ** 2
        centre = min(v, mp.mpf(sigma) * mp.sqrt(2 * mp.log(mp.mpf(length))))
        ss, smm, m4, s, mm, d1, d2, d3, c1, p2 = oracle.moments(requests, sigma, length, centre)
        return {
            "sigma": sigma,
            "L": length,
            "variance_error": mp.nstr((ss - 2 * smm + m4) / v**2 - 2 * (s - mm) / v + 1, 12),
            "dispersion": mp.nstr((d1 - 2 * d2 + d3) / v, 12),
            "coupling": mp.nstr((c1 - d3) / v - p2, 12),
        }


def main(path: str) -> None:
    grid = [(s, n) for i, s in enumerate(SIGMAS) for n in LENGTHS[i % 2 :: 2]]
    with ProcessPoolExecutor() as pool:
        tables = {
            "values": list(pool.map(value_row, grid)),
            "slopes": list(pool.map(slope_row, SLOPES)),
            "moments": list(pool.map(moment_row, MOMENTS)),
            "scores": list(pool.map(score_row, SCORES)),
            "gradients": list(pool.map(gradient_row, GRADIENTS)),
        }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(tables, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).with_name("reference.json")))
