# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Measures: shapes, values, kinds."""

import jax
import numpy as np

import largeprompt as lp

from .things import EYE, GAUSSIAN, KEY, PROMPT, Declared, Exponential, Tensor

MISTAKES = {
    # shapes
    "mean not a vector": (lambda: lp.Gaussian(0.0, EYE), "mean must have shape"),
    "mean of another length": (
        lambda: lp.Gaussian(np.zeros(3), EYE),
        r"mean must have shape \(2,\)",
    ),
    "cov not square": (lambda: lp.Gaussian(np.zeros(2), np.ones((2, 3))), "cov must be a square"),
    "cov a number": (lambda: lp.Gaussian(np.zeros(1), 1.0), "cov must be a square"),
    "cov a vector": (lambda: lp.Gaussian(np.zeros(2), np.ones(2)), "cov must be a square"),
    "factor not a matrix": (
        lambda: lp.Gaussian.from_factor(np.zeros(2), np.ones(2)),
        "B must have",
    ),
    "ragged list": (lambda: lp.Dirac([[1.0], [1.0, 2.0]]), "point must be an array of real"),
    "text": (lambda: lp.Dirac("point"), "point must be an array of real"),
    "nothing": (lambda: lp.Dirac(None), "point must be an array of real"),
    "complex": (lambda: lp.Dirac(np.array([1j])), "point must be real"),
    "point without coordinates": (lambda: lp.Dirac([]), "point must have shape"),
    "points a vector": (lambda: lp.Empirical(np.ones(3)), r"points must have shape \(n, d\)"),
    "empty prompt": (lambda: lp.Empirical(np.zeros((0, 2))), "at least one token"),
    "tokens without coordinates": (
        lambda: lp.Empirical(np.zeros((2, 0))),
        "points must have shape",
    ),
    "weights of another length": (
        lambda: lp.Empirical(EYE, [1.0]),
        r"weights must have shape \(2,\)",
    ),
    "A of another width": (lambda: GAUSSIAN.affine(np.ones((2, 3))), "A must have shape"),
    "b of another length": (lambda: GAUSSIAN.affine(EYE, np.ones(3)), "b must have shape"),
    "u of another length": (lambda: GAUSSIAN.log_mgf(np.ones(3)), r"u must have shape \(2,\)"),
    "u a batch": (lambda: GAUSSIAN.tilted_mean(np.ones((4, 2))), "u must have shape"),
    "u of another length, Rademacher": (lambda: lp.Rademacher(2).tilt(np.ones(3)), "u must have"),
    "u of another length, Sphere": (
        lambda: lp.Sphere(3, 1.0).tilted_cov(np.ones(2)),
        "u must have",
    ),
    "u of another length, Dirac": (lambda: lp.Dirac([1.0]).tilt(np.ones(2)), "u must have shape"),
    "radius a vector": (lambda: lp.Sphere(2, np.ones(2)), "radius must have shape"),
    # values
    "cov not symmetric": (
        lambda: lp.Gaussian(np.zeros(2), [[1, 0.1], [0, 1]]),
        "must be symmetric",
    ),
    "cov not PSD": (lambda: lp.Gaussian(np.zeros(2), [[1, 2], [2, 1]]), "positive semi-definite"),
    "cov negative": (lambda: lp.Gaussian(np.zeros(1), [[-1.0]]), "positive semi-definite"),
    "NaN in mean": (lambda: lp.Gaussian([np.nan, 0], EYE), "mean must be finite"),
    "inf in cov": (lambda: lp.Gaussian([0, 0], [[np.inf, 0], [0, 1]]), "cov must be finite"),
    "NaN in tokens": (lambda: lp.Empirical([[np.nan]]), "points must be finite"),
    "inf in tokens": (lambda: lp.Empirical([[np.inf]]), "points must be finite"),
    "negative weight": (lambda: lp.Empirical(EYE, [1.0, -1.0]), "weights must be >= 0"),
    "weights sum to zero": (lambda: lp.Empirical(EYE, [0.0, 0.0]), "positive finite sum"),
    "weights overflow": (lambda: lp.Empirical(EYE, [1.7e308, 1.7e308]), "positive finite sum"),
    "NaN weight": (lambda: lp.Empirical(EYE, [1.0, np.nan]), "weights must be finite"),
    "negative mixture weight": (
        lambda: lp.Mixture([2, -1], [GAUSSIAN, PROMPT]),
        "weights must be >=",
    ),
    "half-width zero": (lambda: lp.Uniform(2, 0.0), "a must be > 0"),
    "half-width NaN": (lambda: lp.Uniform(2, np.nan), "a must be finite"),
    "radius negative": (lambda: lp.Sphere(2, -1.0), "radius must be > 0"),
    "dimension zero": (lambda: lp.Rademacher(0), "d must be a positive integer"),
    "dimension a float": (lambda: lp.Rademacher(2.0), "d must be a positive integer"),
    "dimension a bool": (lambda: lp.Uniform(True, 1.0), "d must be a positive integer"),
    "n zero": (lambda: GAUSSIAN.sample(KEY, 0), "n must be a positive integer"),
    "n negative": (lambda: PROMPT.sample(KEY, -3), "n must be a positive integer"),
    "n a float": (lambda: lp.Sphere(2, 1.0).sample(KEY, 3.5), "n must be a positive integer"),
    "no key": (lambda: GAUSSIAN.sample(None, 3), "key must be one JAX random key"),
    "a seed for a key": (lambda: lp.Rademacher(2).sample(0, 3), "key must be one JAX random key"),
    "a batch of keys": (lambda: PROMPT.sample(jax.random.split(KEY), 3), "key must be one JAX"),
    "NaN in u": (lambda: PROMPT.tilted_mean([np.nan, 0]), "u must be finite"),
    "inf in u of signs": (lambda: lp.Rademacher(2).tilt([np.inf, 0]), "u must be finite"),
    "dimension of 401 digits": (lambda: lp.Rademacher(10**400), "d must be at most"),
    "n of 401 digits": (lambda: PROMPT.sample(KEY, 10**400), "n must be at most"),
    "check a word": (lambda: lp.Gaussian([0], [[1]], check="no"), "check must be True or False"),
    # numbers of other libraries
    "key for a point": (lambda: lp.Dirac(KEY), "point must be an array of real numbers"),
    "masked u": (
        lambda: lp.Sphere(2).log_mgf(np.ma.array([1.0, 2.0], mask=[True, False])),
        "u must be an array without masked entries",
    ),
    "text in u": (
        lambda: lp.Uniform(2).log_mgf(np.array(["a", "b"])),
        "u must be an array of real numbers",
    ),
    "masked tokens": (
        lambda: lp.Empirical(np.ma.array(EYE, mask=EYE > 0)),
        "points must be an array without masked entries; received a masked array with 2 of them",
    ),
    "masked weights": (
        lambda: lp.Empirical(EYE, np.ma.array([1.0, 2.0], mask=[True, False])),
        "weights must be an array without masked entries",
    ),
    "tensor with a gradient": (lambda: lp.Dirac(Tensor()), r"pass tensor.detach\(\)"),
    # domain of psi
    "u outside the domain": (lambda: Declared().tilt([1.5]), "must lie in the domain of this"),
    "query outside the domain": (
        lambda: lp.attend(lp.Head([[1.0]], [[1.0]]), Declared(), [1.5]),
        "U z must lie in the domain",
    ),
    "domain not declared": (lambda: Exponential().tilted_mean([1.5]), "log_mgf must be finite"),
    # kinds
    "mixture of nothing": (lambda: lp.Mixture([], []), "components must be a non-empty sequence"),
    "mixture of a number": (lambda: lp.Mixture([1.0], 3), "components must be a non-empty"),
    "mixture of arrays": (lambda: lp.Mixture([1.0], [EYE]), "components must be a non-empty"),
    "mixture of dimensions": (
        lambda: lp.Mixture([1, 1], [GAUSSIAN, lp.Dirac([1.0])]),
        "one dimension",
    ),
    "sum of dimensions": (lambda: GAUSSIAN + lp.Rademacher(3), "one dimension"),
    "sum with an array": (
        lambda: GAUSSIAN + np.ones(2),
        "terms of a sum must be a non-empty sequence of measures",
    ),
    "fewer values than keys": (
        lambda: lp.KeyValues(np.ones((3, 2)), np.ones((2, 2))),
        "values must have shape",
    ),
    "log weights without weight": (
        lambda: lp.KeyValues(EYE, EYE, [-np.inf, -np.inf]),
        "log_weights must be real",
    ),
}
