# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Curves, rates, bounds."""

import jax

import largeprompt as lp

from .things import EYE, GAUSSIAN, HEAD, KEY, PROMPT

MISTAKES = {
    "curve of a matrix": (
        lambda: lp.concentration_curve(EYE, GAUSSIAN, GAUSSIAN, [10]),
        "head must be an attention head",
    ),
    "length for a matrix": (
        lambda: lp.prompt_length_for(EYE, GAUSSIAN, [1, 0], 0.1),
        "head must be an attention head",
    ),
    "horizon of an array": (lambda: lp.horizon(HEAD, EYE), "mu must be a measure"),
    "slope of a number": (lambda: lp.fit_slope(3), "curve must be a dataset"),
    "regime beyond 1e100": (lambda: lp.regime(1.0, 1e300), "at most 1e\\+100"),
    "curve under jit": (
        lambda: jax.jit(
            lambda U: lp.concentration_curve(lp.Head(U=U, V=EYE), GAUSSIAN, GAUSSIAN, [2.0]).value
        )(EYE),
        "concentration_curve cannot run under jit",
    ),
    "curve of something unknown": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2.0], "outputs"),
        r"quantity must be Output.*did you mean lp.OutputError\(\)",
    ),
    "curve by no method": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2.0], method="guess"),
        "method must be a method object",
    ),
    "curve without lengths": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, []),
        "lengths must be a non-empty sequence",
    ),
    "curve of lengths below one": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [0.5, 2.0]),
        "L must be >= 1",
    ),
    "curve over points": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, EYE, [2.0]),
        r"nu must be a measure or one query.*shape \(2, 2\)",
    ),
    "curve of another dimension": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, lp.Rademacher(3), [2.0]),
        "nu must have the dimension of the head, 2",
    ),
    "sampled curve without a key": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2], method=lp.MonteCarlo()),
        "MonteCarlo needs a key",
    ),
    "sampled curve of half a token": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2.5], method=lp.MonteCarlo(KEY)),
        "L must be a whole number >= 1 where prompts are sampled",
    ),
    "random points without a key": (
        lambda: lp.concentration_curve(HEAD, lp.Uniform(2, 1.0), GAUSSIAN, [2.0]),
        r"pass method=lp.QuasiMonteCarlo\(key\)",
    ),
    "curve of a vector": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2.0], lp.Output()),
        "one number for every length",
    ),
    "negative steepness": (lambda: lp.sharp_exponent(-1), "kappa must be finite and >= 0"),
    "steepness a word": (lambda: lp.sharp_exponent("one"), "kappa must be a number"),
    "regime of a negative deviation": (lambda: lp.regime(-1, 10), "sigma must be finite and >= 0"),
    "regime of no tokens": (lambda: lp.regime(1, 0), "L must be >= 1"),
    "regime of nan": (lambda: lp.regime(float("nan"), 10), "sigma must be finite"),
    "map of nothing": (lambda: lp.regime_map(sigma_max=0), "sigma_max must be finite and > 0"),
    "horizon of other tokens": (
        lambda: lp.horizon(HEAD, lp.Rademacher(2)),
        "the horizon is defined for Gaussian tokens",
    ),
    "tolerance zero": (
        lambda: lp.prompt_length_for(HEAD, GAUSSIAN, [1.0, 0.0], 0.0),
        "tolerance must be finite and > 0",
    ),
    "relative an array": (
        lambda: lp.prompt_length_for(HEAD, GAUSSIAN, [1.0, 0.0], 0.1, relative=EYE),
        "relative must be True or False",
    ),
    "length at a ragged query": (
        lambda: lp.prompt_length_for(HEAD, GAUSSIAN, [[1], [2, 3]], 0.1),
        "z must be an array of real numbers",
    ),
    "bound beyond the largest float": (
        lambda: lp.proposition_3_4(1, 1, 1e39, 10, "U"),
        "the bound must be below 1e308",
    ),
    "relative to nothing": (
        lambda: lp.prompt_length_for(HEAD, GAUSSIAN, [0.0, 0.0], 0.1, relative=True),
        "a relative tolerance needs a limit that is not 0",
    ),
    "relative tolerance of a gradient": (
        lambda: lp.prompt_length_for(
            HEAD, GAUSSIAN, [1.0, 0.0], 0.1, relative=True, quantity=lp.GradientError("U")
        ),
        "relative tolerances are for quantity=OutputError",
    ),
    "bound at one token": (lambda: lp.proposition_3_1(1, 1, 1, [1, 2]), "L must be >= 2"),
    "bound of complex lengths": (
        lambda: lp.proposition_3_1(1, 1, 1, 1j),
        "L must be a real number",
    ),
    "bound of ragged lengths": (
        lambda: lp.proposition_3_4(1, 1, 1, [[2], [3, 4]], "U"),
        "L must be a real number",
    ),
    "bound of no number": (
        lambda: lp.proposition_3_1(1, 1, 1, float("nan")),
        "L must be >= 2.*received nan",
    ),
    "report of a number": (lambda: lp.bound_report(3), "curve must be a dataset"),
    "report of another dataset": (
        lambda: lp.bound_report(lp.regime_map(resolution=3)),
        "curve must be a dataset that concentration_curve returned.*without value, error",
    ),
    "slope of another dataset": (
        lambda: lp.fit_slope(lp.regime_map(resolution=3)),
        "curve must be a dataset that concentration_curve returned.*without value, error",
    ),
    "slope with confidence in words": (
        lambda: lp.fit_slope(lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2.0]), "high"),
        "confidence must be a number",
    ),
    "constant for a number": (lambda: lp.largest_c2(3, 1.0), "curve must be a dataset"),
    "report on a distance to linear attention": (
        lambda: lp.bound_report(
            lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2.0], lp.OutputError(to="linear")),
            0.5,
        ),
        "the propositions bound the squared errors of the output and of its gradients",
    ),
    "growing prompt of ragged lengths": (
        lambda: lp.growing_prompt(KEY, HEAD, GAUSSIAN, [1.0, 0.0], [[2], [3, 4]]),
        "lengths must be a real number",
    ),
    "length by sampling": (
        lambda: lp.prompt_length_for(HEAD, GAUSSIAN, [1.0, 0.0], 0.1, method=lp.MonteCarlo(KEY)),
        r"pass lp.QuasiMonteCarlo\(key\), or sample a few lengths with lp.concentration_curve",
    ),
    "length of tokens without an exact average": (
        lambda: lp.prompt_length_for(HEAD, lp.Uniform(2), [1.0, 0.0], 0.1),
        r"lp.QuasiMonteCarlo\(key\), or sample a few lengths with lp.concentration_curve",
    ),
    "length of several heads of sampled tokens": (
        lambda: lp.prompt_length_for(
            lp.MultiHead([HEAD, HEAD]),
            lp.Uniform(2),
            [1.0, 0.0],
            0.1,
            method=lp.QuasiMonteCarlo(KEY),
        ),
        r"To fix: sample a few lengths with lp.concentration_curve",
    ),
    "length of a mean": (
        lambda: lp.prompt_length_for(HEAD, GAUSSIAN, [1.0, 0.0], 0.1, quantity=lp.Output()),
        "a length is sought for a distance to the infinite prompt",
    ),
    "bound of a small sigma": (lambda: lp.proposition_3_1(1, 1, 0.5, 2), "sigma must be .* >= 1"),
    "bound with no constant": (lambda: lp.proposition_3_1(0, 1, 1, 2), "c1 must be .* > 0"),
    "bound in no parameter": (
        lambda: lp.proposition_3_4(1, 1, 1, 2, "W"),
        "parameter must be 'U' or 'V'",
    ),
    "report with a constant beyond the largest float": (
        lambda: lp.bound_report(lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2.0]), 1e20),
        "c2 must be such that c1 stays below",
    ),
    "report on one token": (
        lambda: lp.bound_report(lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [1.0]), 1.0),
        "the curve needs lengths L >= 2",
    ),
    "report without an exponent": (
        lambda: lp.bound_report(lp.concentration_curve(HEAD, GAUSSIAN, PROMPT, [2.0])),
        "c2 must be given",
    ),
    "slope through one point": (
        lambda: lp.fit_slope(lp.concentration_curve(HEAD, GAUSSIAN, PROMPT, [2.0])),
        "a slope needs two lengths",
    ),
    "certain confidence": (
        lambda: lp.fit_slope(lp.concentration_curve(HEAD, GAUSSIAN, PROMPT, [2.0, 3.0]), 1.0),
        "confidence must be < 1",
    ),
    "growing prompt that shrinks": (
        lambda: lp.growing_prompt(KEY, HEAD, GAUSSIAN, [1.0, 0.0], [10, 5]),
        "increasing lengths",
    ),
    "scores too wide for a short prompt": (
        lambda: lp.participation(500.0, 2),
        "sigma must be at most 40 for prompts of fewer than 100 tokens",
    ),
    "a curve of such scores": (
        lambda: lp.concentration_curve(lp.Head(U=300 * EYE, V=EYE), GAUSSIAN, GAUSSIAN, [2.0, 1e6]),
        "sigma must be at most 40",
    ),
}
