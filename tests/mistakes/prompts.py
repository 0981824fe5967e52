# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Finite prompts: lengths, moments, sampling."""

from functools import partial

import jax
import numpy as np

import largeprompt as lp

from .things import EYE, GAUSSIAN, HEAD, KEY, PROMPT, in_32_bits

MIXTURE = lp.Mixture([1, 1], [GAUSSIAN, lp.Gaussian([1.0, 0.0], EYE)])


def _expect(quantity, *method):
    return lp.expect(quantity, HEAD, GAUSSIAN, [1, 0], 5, *method)


_bar = partial(lp.prompt_uncertainty, HEAD)
_covariance = partial(lp.output_covariance, HEAD, GAUSSIAN)
_prefix = partial(lp.prefix_difference, HEAD, GAUSSIAN, [1, 0])
_sample = partial(lp.sample_outputs, KEY, HEAD, GAUSSIAN)

MISTAKES = {
    "head a matrix": (
        lambda: lp.output_error(EYE, GAUSSIAN, [1, 0], 5),
        "head must be an attention head",
    ),
    "sampled head a matrix": (
        lambda: lp.sample_outputs(KEY, EYE, GAUSSIAN, [1, 0], 5, 5),
        "head must be an attention head",
    ),
    "prefix head a matrix": (
        lambda: lp.prefix_difference(EYE, GAUSSIAN, [1, 0], 2, 4),
        "head must be an attention head",
    ),
    "covariance head a matrix": (
        lambda: lp.output_covariance(EYE, GAUSSIAN, [1, 0], [1, 0], 4),
        "head must be an attention head",
    ),
    "uncertainty head a matrix": (
        lambda: lp.prompt_uncertainty(EYE, PROMPT, [1, 0]),
        "head must be an attention head",
    ),
    "tokens an array": (lambda: lp.output_error(HEAD, EYE, [1, 0], 5), "mu must be a measure"),
    "averaged tokens an array": (
        lambda: lp.expect(lp.Output(), HEAD, EYE, [1, 0], 5),
        "mu must be a measure",
    ),
    "order 200": (lambda: lp.participation_moment((200,), 1.0, 10), "add up to at most 64"),
    "integer of 401 digits": (lambda: lp.regime(1.0, 10**400), "an integer of 401 digits"),
    "traced sampling": (
        lambda: jax.jit(lambda z: lp.expect(lp.Output(), HEAD, GAUSSIAN, z, 5, lp.MonteCarlo(KEY)))(
            np.ones(2)
        ),
        "MonteCarlo cannot run under jit",
    ),
    "length below one": (lambda: lp.output_error(HEAD, GAUSSIAN, [1, 0], 0.5), "L must be >= 1"),
    "length beyond 1e100": (
        lambda: lp.output_error(HEAD, GAUSSIAN, [1, 0], 1e155),
        "at most 1e\\+100",
    ),
    "sigma beyond 1e8": (lambda: lp.participation(1e9, 1e3), "at most 1e\\+08"),
    "length NaN": (lambda: lp.finite_mean(HEAD, GAUSSIAN, [1, 0], np.nan), "L must be >= 1"),
    "length negative": (lambda: lp.gradient_error(HEAD, PROMPT, [1, 0], -3), "L must be >= 1"),
    "queries and lengths do not broadcast": (
        lambda: lp.output_error(HEAD, GAUSSIAN, np.ones((3, 2)), np.ones(2)),
        "must broadcast",
    ),
    "no closed form": (
        lambda: lp.output_error(HEAD, lp.Uniform(2), [1, 0], 5),
        r"pass method=lp.QuasiMonteCarlo\(key\) or lp.MonteCarlo\(key\)",
    ),
    "no closed form for the gradient": (
        lambda: lp.gradient_error(HEAD, lp.Sphere(2, 1.0), [1, 0], 5),
        r"pass method=lp.QuasiMonteCarlo\(key\)",
    ),
    "mixture at length below one": (
        lambda: lp.output_error(HEAD, MIXTURE, [1, 0], 0.5),
        "L must be >= 1",
    ),
    "mixture in another dimension": (
        lambda: lp.output_error(lp.Head([[1.0]], [[1.0]]), MIXTURE, [1.0], 5),
        "head and measure must have the same dimension",
    ),
    "mixture with a component that is not exact": (
        lambda: lp.output_error(HEAD, lp.Mixture([1, 1], [GAUSSIAN, lp.Uniform(2)]), [1, 0], 5),
        "Exact.. serves mixtures of Gaussians and of finitely many atoms",
    ),
    "scores of a mixture too wide": (
        lambda: lp.output_error(lp.Head(U=300 * EYE, V=EYE), MIXTURE, [1, 0], 5),
        "scores of Gaussian components must not need more than",
    ),
    "a function of the output of a mixture": (
        lambda: lp.expect(lambda output: output.max(), HEAD, MIXTURE, [1, 0], 5),
        "only MonteCarlo averages this quantity",
    ),
    "sigma complex": (lambda: lp.participation(1j, 5), "must be a real number .*dtype complex128"),
    "sigma negative": (lambda: lp.participation(-1.0, 5), "sigma must be finite and >= 0"),
    "sigma NaN": (lambda: lp.participation(np.nan, 5), "sigma must be finite and >= 0"),
    "sigma infinite": (lambda: lp.participation(np.inf, 5), "sigma must be finite and >= 0"),
    "participation at length zero": (lambda: lp.participation(1.0, 0), "L must be >= 1"),
    "sigma and L do not broadcast": (lambda: lp.participation(np.ones(2), np.ones(3)), "broadcast"),
    "order zero": (lambda: lp.participation_moment((2, 0), 1.0, 5), "ks must be a tuple"),
    "order a truth value": (lambda: lp.participation_moment((True,), 1.0, 5), "ks must be a tuple"),
    "order a float": (lambda: lp.participation_moment((2.5,), 1.0, 5), "ks must be a tuple"),
    "score factors": (
        lambda: lp.score_moment(((1, 0),), 1.0, 5),
        "factors must be a non-empty tuple of integer pairs",
    ),
    "order a text": (lambda: lp.participation_moment(("2",), 1.0, 5), "ks must be a tuple"),
    "sigma a text": (lambda: lp.participation("one", 5), "sigma must be a real number"),
    "score factors of halves": (
        lambda: lp.score_moment(((0.5, 1),), 1.0, 5),
        "factors must be a non-empty tuple of integer pairs",
    ),
    "score factors not pairs": (
        lambda: lp.score_moment((2,), 1.0, 5),
        "factors must be a non-empty tuple of integer pairs",
    ),
    "table of two lengths": (
        lambda: lp.ParticipationTable([1.0, 2.0], 1.0),
        "must be single numbers",
    ),
    "table of no range": (lambda: lp.ParticipationTable(10.0, 0.0), "must be single numbers"),
    "table beyond its range": (lambda: lp.ParticipationTable(10.0, 1.0)(2.0), "table's range"),
    "scores beyond float32": (
        lambda: in_32_bits(lambda: _sample([1e20, 0], 5, 3)),
        "scores must have a variance in the range of float32",
    ),
    "cotangent beyond float32": (
        lambda: in_32_bits(
            lambda: lp.sample_gradients(KEY, HEAD, GAUSSIAN, [1, 0], 5, 3, [1e20, 0])
        ),
        "values along the cotangent must have a variance in the range of float32",
    ),
    "query beyond float32": (
        lambda: in_32_bits(lambda: _sample([1e40, 0], 5, 3)),
        "z must have entries in the range of float32",
    ),
    "sampling an infinite prompt": (
        lambda: _sample([1, 0], np.inf, 3),
        "L must be a whole number >= 1 where prompts are sampled",
    ),
    "sampling half a token": (lambda: _sample([1, 0], 2.5, 3), "L must be a whole number"),
    "sampling scores of signs": (
        lambda: lp.sample_outputs(KEY, HEAD, lp.Rademacher(2), [1, 0], 5, 3),
        r"attend to mu.sample\(key, L\)",
    ),
    "sampling a batch of queries": (lambda: _sample(EYE, 5, 3), "takes one query"),
    "cotangent of another length": (
        lambda: lp.sample_gradients(KEY, HEAD, GAUSSIAN, [1, 0], 5, 3, cotangent=np.ones(3)),
        "cotangent must have shape",
    ),
    "scores of tokens beyond 1e8": (
        lambda: lp.output_error(HEAD, PROMPT, [1e20, 0], 10),
        r"scores of tokens must differ by at most 1e\+08; received .* 1e\+20",
    ),
    "scores of a mixture beyond 1e8": (
        lambda: lp.output_error(HEAD, MIXTURE, [1e20, 0], 10),
        r"scores of tokens must differ by at most 1e\+08",
    ),
    "centre of scores NaN": (
        lambda: lp.score_moment(((1, 1),), 1.0, 10, np.nan),
        "centre must be finite",
    ),
    "centre of scores in words": (
        lambda: lp.score_moment(((1, 1),), 1.0, 10, "mean"),
        "centre must be a real number",
    ),
    "ragged lengths of pairs": (
        lambda: lp.pair_moments(1.0, 1.0, 0.5, [[1], [2, 3]]),
        "L must be a real number",
    ),
    "whole tokens a number": (
        lambda: lp.MonteCarlo(KEY, whole_tokens=3),
        "whole_tokens must be True or False",
    ),
    "distance to an array": (
        lambda: lp.OutputError(EYE),
        "to must be 'limit' or 'linear'; received array",
    ),
    "level in words": (
        lambda: lp.prompt_uncertainty(HEAD, PROMPT, [1, 0], level="high"),
        "level must be a number",
    ),
    "average of something unknown": (
        lambda: _expect("gradient_U_error"),
        r"did you mean lp.GradientError\('U'\)",
    ),
    "average of a class": (lambda: _expect(lp.OutputError), "the class OutputError"),
    "gradient in another matrix": (lambda: lp.GradientError("W"), "matrix must be 'U' or 'V'"),
    "distance to something else": (lambda: lp.OutputError("mean"), "to must be 'limit' or"),
    "method a text": (lambda: _expect(lp.Output(), "montecarlo"), "method must be a method object"),
    "sampling without a key": (
        lambda: _expect(lp.Output(), lp.MonteCarlo()),
        "MonteCarlo needs a key",
    ),
    "a function of the output, exactly": (
        lambda: _expect(lambda output: output[0]),
        "only MonteCarlo averages this quantity",
    ),
    "a function of the output over queries": (
        lambda: lp.expect(lambda output: output[0], HEAD, PROMPT, GAUSSIAN, 5),
        r"pass method=lp.QuasiMonteCarlo\(key\), or lp.MonteCarlo",
    ),
    "queries of another dimension": (
        lambda: lp.expect(lp.Output(), HEAD, GAUSSIAN, lp.Rademacher(3), 5),
        "nu must have the dimension of the head, 2",
    ),
    "quantile of level one": (
        lambda: lp.ErrorQuantiles([0.5, 1.0]),
        "levels must be a number between 0 and 1",
    ),
    "quantiles of no level": (
        lambda: lp.ErrorQuantiles([]),
        "levels must be a number between 0 and 1",
    ),
    "quantiles in a table": (
        lambda: lp.ErrorQuantiles([[0.5]]),
        "levels must be a number between 0 and 1",
    ),
    "quantiles, exactly": (
        lambda: _expect(lp.ErrorQuantiles(0.5)),
        "only MonteCarlo averages this quantity",
    ),
    "quantiles from points": (
        lambda: lp.expect(
            lp.ErrorQuantiles(0.5), HEAD, lp.Uniform(2), [1, 0], 5, lp.QuasiMonteCarlo(KEY)
        ),
        "only MonteCarlo averages this quantity",
    ),
    "average of quantiles": (
        lambda: _expect("quantiles"),
        r"did you mean lp.ErrorQuantiles\(\[0.5, 0.95\]\)",
    ),
    "error bar of a law": (lambda: _bar(GAUSSIAN, [1, 0]), "prompt must be given by its tokens"),
    "error bar of an array": (
        lambda: _bar(EYE, [1, 0]),
        r"wrap tokens of shape \(L, d\) as Empirical",
    ),
    "error bar of one token": (lambda: _bar(lp.Empirical([[1, 0]]), [1, 0]), "at least 2 tokens"),
    "error bar of half a prompt": (
        lambda: _bar(lp.Empirical(EYE, [0, 1]), [1, 0]),
        "both halves of the prompt must have a token of positive weight",
    ),
    "confidence of one": (lambda: _bar(PROMPT, [1, 0], level=1), "level must be < 1"),
    "confidence negative": (
        lambda: _bar(PROMPT, [1, 0], level=-0.5),
        "level must be finite and > 0",
    ),
    "confidence of a point of another length": (
        lambda: _bar(PROMPT, [1, 0]).contains([1.0]),
        r"point must have shape \(..., 2\)",
    ),
    "no relative error": (
        lambda: lp.MonteCarlo(KEY, relative_error=0),
        "relative_error must be finite and > 0",
    ),
    "no budget": (
        lambda: lp.MonteCarlo(KEY, max_replicates=0),
        "max_replicates must be a positive integer",
    ),
    "one scrambling": (
        lambda: lp.QuasiMonteCarlo(KEY, replicates=1),
        "replicates must be at least 2",
    ),
    "no points": (lambda: lp.QuasiMonteCarlo(KEY, points=0), "points must be a positive integer"),
    "a seed for a key": (lambda: lp.MonteCarlo(7), "key must be one JAX random key"),
    "correlation above one": (
        lambda: lp.pair_moments(1.0, 1.0, 1.5, 10),
        "rho must be a correlation, from -1 to 1",
    ),
    "correlation NaN": (lambda: lp.pair_moments(1.0, 1.0, np.nan, 10), "rho must be a correlation"),
    "correlation a text": (lambda: lp.pair_moments(1.0, 1.0, "one", 10), "rho must be a real"),
    "deviation of a pair negative": (lambda: lp.pair_moments(-1.0, 1.0, 0, 10), "finite and >= 0"),
    "deviation of a pair too large": (
        lambda: lp.pair_moments(13.0, 1.0, 0.0, 10),
        "must be at most 12",
    ),
    "pair at length zero": (lambda: lp.pair_moments(1.0, 1.0, 0.0, 0), "L must be >= 1"),
    "pairs do not broadcast": (
        lambda: lp.pair_moments(np.ones(2), np.ones(3), 0.0, 10),
        "must broadcast",
    ),
    "two queries at length zero": (lambda: _covariance([1, 0], [0, 1], 0), "L must be >= 1"),
    "two queries of another dimension": (
        lambda: _covariance([1, 0], [1, 0, 0], 5),
        r"must have shape \(..., 2\)",
    ),
    "two queries with scores too wide": (
        lambda: _covariance([100, 0], [0, 1], 5),
        "must be at most 12",
    ),
    "two queries on uniform tokens": (
        lambda: lp.output_covariance(HEAD, lp.Uniform(2), [1, 0], [0, 1], 5),
        "known for Gaussian tokens",
    ),
    "two batches of queries": (
        lambda: _covariance(np.ones((2, 2)), np.ones((3, 2)), 5),
        "the batches of z and z2 must broadcast",
    ),
    "first tokens beyond the prompt": (lambda: _prefix(10, 5), "first"),
    "no first token": (lambda: _prefix(0.5, 5), "must be >= 1"),
    "first tokens with scores too wide": (
        lambda: lp.prefix_difference(HEAD, GAUSSIAN, [13, 0], 2, 5),
        "at most 12",
    ),
    "first tokens of uniform tokens": (
        lambda: lp.prefix_difference(HEAD, lp.Uniform(2), [1, 0], 2, 5),
        "known for Gaussian tokens",
    ),
    "first tokens beyond a prompt of signs": (
        lambda: lp.prefix_difference(HEAD, lp.Rademacher(2), [1, 0], 10, 5),
        "first",
    ),
    "two queries on signs under jit": (
        lambda: jax.jit(lambda z: lp.output_covariance(HEAD, lp.Rademacher(2), z, [0.0, 1.0], 5.0))(
            np.ones(2)
        ),
        "takes known numbers",
    ),
    "several heads on uniform tokens": (
        lambda: lp.output_error(lp.MultiHead([HEAD, HEAD]), lp.Uniform(2), [1, 0], 5),
        r"To fix: pass method=lp.MonteCarlo\(key\)",
    ),
    "several heads on signs under jit": (
        lambda: jax.jit(
            lambda z: lp.output_error(lp.MultiHead([HEAD, HEAD]), lp.Rademacher(2), z, 5.0)
        )(np.ones(2)),
        "take known numbers",
    ),
    "moments of Assumption 3.3 of several heads": (
        lambda: lp.assumption_3_3(lp.MultiHead([HEAD, HEAD]), GAUSSIAN, GAUSSIAN),
        "pass one of its .heads",
    ),
}
