# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Every mistake a user can make with measures and attention, and the rule the message must state.

Run as a module it makes each mistake and prints what was raised, as JSON.
"""

import json

import jax
import numpy as np

import largeprompt as lp
from largeprompt.studies.record import find_study

EYE = np.eye(2)
KEY = jax.random.key(0)
HEAD = lp.Head(U=EYE, V=EYE)
GAUSSIAN = lp.Gaussian(np.zeros(2), EYE)
PROMPT = lp.Empirical(EYE)
TASK = lp.LinearRegression(EYE)
START = lp.BlockParams(0.3 * EYE, 0.3)


def _sweep(*arguments, **options):
    return lp.Sweep("tests.sweep.cells:draws", *arguments, **options)


MISTAKES = {
    # training
    "flow to a negative time": (lambda: lp.gradient_flow(TASK, START, 10, -1.0), "t1 must be"),
    "flow with times that decrease": (
        lambda: lp.gradient_flow(TASK, START, 10, 1.0, saveat=[1.0, 0.5]),
        "saveat must be increasing times",
    ),
    "flow of a head of another size": (
        lambda: lp.gradient_flow(TASK, lp.BlockParams(np.eye(3), 1.0), 10),
        "params must act on tokens of dimension 3",
    ),
    "flow of a general head without a key": (
        lambda: lp.gradient_flow(TASK, START.general(), 10),
        "averaged over random tasks and needs a key",
    ),
    "flow from scores too large to average": (
        lambda: lp.gradient_flow(TASK, lp.BlockParams(100 * EYE, 1.0), 10),
        "must start where its risk is finite",
    ),
    "flow of another task without a key": (
        lambda: lp.gradient_flow(lp.ProductRegression(lp.Rademacher(2)), START.general(), 10),
        "is sampled and needs a key",
    ),
    "balanced start of scale zero": (lambda: lp.balanced_init(TASK, 0.0), "alpha must be"),
    "balanced start without direction": (
        lambda: lp.balanced_init(TASK, 0.5, np.zeros((2, 2))),
        "theta must not be zero",
    ),
    "transfer to infinity": (
        lambda: lp.transfer_curve(TASK, START, [10, np.inf], 1.0),
        "compares finite lengths with the infinite one",
    ),
    "epsilon zero": (lambda: lp.prompt_length_for_risk(TASK, 0.0), "epsilon must be"),
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
    # kinds
    "mixture of nothing": (lambda: lp.Mixture([], []), "components must be a non-empty sequence"),
    "mixture of arrays": (lambda: lp.Mixture([1.0], [EYE]), "components must be a non-empty"),
    "mixture of dimensions": (
        lambda: lp.Mixture([1, 1], [GAUSSIAN, lp.Dirac([1.0])]),
        "one dimension",
    ),
    "sum of dimensions": (lambda: GAUSSIAN + lp.Rademacher(3), "one dimension"),
    "sum with an array": (lambda: GAUSSIAN + np.ones(2), "terms of a sum must be"),
    # heads and attention
    "U not square": (lambda: lp.Head(U=np.ones((2, 3)), V=EYE), "U must be a square"),
    "V of another width": (lambda: lp.Head(U=EYE, V=np.ones((2, 3))), "V must have shape"),
    "NaN in U": (lambda: lp.Head(U=EYE * np.nan, V=EYE), "U must be finite"),
    "K and Q differ": (
        lambda: lp.Head.from_kqv(np.ones((1, 2)), np.ones((1, 3)), EYE),
        "Q must have",
    ),
    "scale NaN": (lambda: lp.Head.from_kqv(EYE, EYE, EYE, scale=np.nan), "scale must be finite"),
    "tokens instead of a measure": (lambda: lp.attend(HEAD, EYE, np.ones(2)), "acts on a measure"),
    "measure of another dimension": (
        lambda: lp.attend(HEAD, lp.Rademacher(3), np.ones(2)),
        "head of dimension 2 and a measure of dimension 3",
    ),
    "query of another dimension": (
        lambda: lp.attend(HEAD, GAUSSIAN, np.ones(3)),
        "z must have shape",
    ),
    "query a number": (lambda: lp.attend_linear(HEAD, GAUSSIAN, 1.0), "z must have shape"),
    "NaN in query": (lambda: lp.attend(HEAD, GAUSSIAN, [np.nan, 0]), "z must be finite"),
    "inf in query": (lambda: lp.attend_jacobians(HEAD, PROMPT, [np.inf, 0]), "z must be finite"),
    "unknown engine": (lambda: lp.attend(HEAD, PROMPT, [1, 0], engine="fast"), "engine must be"),
    "block of nothing": (
        lambda: lp.attend(HEAD, PROMPT, [1, 0], block_size=0),
        "block_size must be",
    ),
    "layer without heads": (lambda: lp.Layer([]), "heads must be a non-empty"),
    "layer of matrices": (lambda: lp.Layer([EYE]), "heads must be a non-empty"),
    "residual into another dimension": (
        lambda: lp.Layer([lp.Head(U=EYE, V=np.ones((3, 2)))]),
        "residual layer needs outputs",
    ),
    "layer on a mixture": (
        lambda: lp.Layer([HEAD])(lp.Mixture([1], [GAUSSIAN])),
        "push samples instead",
    ),
    # finite prompts
    "length below one": (lambda: lp.output_error(HEAD, GAUSSIAN, [1, 0], 0.5), "L must be >= 1"),
    "length NaN": (lambda: lp.finite_mean(HEAD, GAUSSIAN, [1, 0], np.nan), "L must be >= 1"),
    "length negative": (lambda: lp.gradient_error(HEAD, PROMPT, [1, 0], -3), "L must be >= 1"),
    "queries and lengths do not broadcast": (
        lambda: lp.output_error(HEAD, GAUSSIAN, np.ones((3, 2)), np.ones(2)),
        "must broadcast",
    ),
    "no closed form": (
        lambda: lp.output_error(HEAD, lp.Rademacher(2), [1, 0], 5),
        "use quasi_estimate",
    ),
    "no closed form for the gradient": (
        lambda: lp.gradient_error(HEAD, lp.Sphere(2, 1.0), [1, 0], 5),
        "use quasi_estimate",
    ),
    "sigma negative": (lambda: lp.participation(-1.0, 5), "sigma must be finite and >= 0"),
    "sigma NaN": (lambda: lp.participation(np.nan, 5), "sigma must be finite and >= 0"),
    "sigma infinite": (lambda: lp.participation(np.inf, 5), "sigma must be finite and >= 0"),
    "participation at length zero": (lambda: lp.participation(1.0, 0), "L must be >= 1"),
    "sigma and L do not broadcast": (lambda: lp.participation(np.ones(2), np.ones(3)), "broadcast"),
    "order zero": (lambda: lp.participation_moment((2, 0), 1.0, 5), "ks must be a tuple"),
    "order a float": (lambda: lp.participation_moment((2.5,), 1.0, 5), "ks must be a tuple"),
    "score factors": (lambda: lp.score_moment(((1, 0),), 1.0, 5), "factors must be"),
    "order a text": (lambda: lp.participation_moment(("2",), 1.0, 5), "ks must be a tuple"),
    "sigma a text": (lambda: lp.participation("one", 5), "sigma must be a real number"),
    "score factors of halves": (lambda: lp.score_moment(((0.5, 1),), 1.0, 5), "factors must be"),
    "score factors not pairs": (lambda: lp.score_moment((2,), 1.0, 5), "factors must be"),
    "table of two lengths": (
        lambda: lp.ParticipationTable([1.0, 2.0], 1.0),
        "must be single numbers",
    ),
    "table of no range": (lambda: lp.ParticipationTable(10.0, 0.0), "must be single numbers"),
    "table beyond its range": (lambda: lp.ParticipationTable(10.0, 1.0)(2.0), "table's range"),
    "sampling an infinite prompt": (
        lambda: lp.sample_outputs(KEY, HEAD, GAUSSIAN, [1, 0], np.inf, 3),
        "L .a prompt to be sampled. must be a positive integer",
    ),
    "sampling half a token": (
        lambda: lp.sample_outputs(KEY, HEAD, GAUSSIAN, [1, 0], 2.5, 3),
        "must be a positive integer",
    ),
    "sampling scores of signs": (
        lambda: lp.sample_outputs(KEY, HEAD, lp.Rademacher(2), [1, 0], 5, 3),
        "route='tokens'",
    ),
    "sampling a batch of queries": (
        lambda: lp.sample_outputs(KEY, HEAD, GAUSSIAN, EYE, 5, 3),
        "takes one query",
    ),
    "cotangent of another length": (
        lambda: lp.sample_gradients(KEY, HEAD, GAUSSIAN, [1, 0], 5, 3, cotangent=np.ones(3)),
        "cotangent must have shape",
    ),
    "estimate of something unknown": (
        lambda: lp.estimate(KEY, "error", HEAD, GAUSSIAN, [1, 0], 5),
        "quantity must be one of",
    ),
    "estimate without a query": (
        lambda: lp.estimate(KEY, "output_error", HEAD, GAUSSIAN),
        "needs head",
    ),
    "estimate by an unknown route": (
        lambda: lp.estimate(KEY, "output_error", HEAD, GAUSSIAN, [1, 0], 5, route="magic"),
        "route must be",
    ),
    "gradient by scores": (
        lambda: lp.estimate(KEY, "gradient_U_error", HEAD, GAUSSIAN, [1, 0], 5, route="scores"),
        "use route='tokens'",
    ),
    "estimate to no error": (
        lambda: lp.estimate(KEY, "output_error", HEAD, GAUSSIAN, [1, 0], 5, relative_error=0),
        "relative_error must be > 0",
    ),
    "estimate of no budget": (
        lambda: lp.estimate(KEY, "output_error", HEAD, GAUSSIAN, [1, 0], 5, max_replicates=0),
        "max_replicates must be a positive integer",
    ),
    "one scrambling": (
        lambda: lp.quasi_estimate(KEY, "output_error", HEAD, PROMPT, [1, 0], 5, replicates=1),
        "replicates must be at least 2",
    ),
    "quasi of something unknown": (
        lambda: lp.quasi_estimate(KEY, "error", HEAD, PROMPT, [1, 0], 5),
        "quantity must be one of",
    ),
    # concentration
    "curve of something unknown": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2.0], "outputs"),
        "quantity must be one of",
    ),
    "curve by no method": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2.0], method="guess"),
        "method must be 'exact' or 'montecarlo'",
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
        "nu must be a measure",
    ),
    "curve of another dimension": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, lp.Rademacher(3), [2.0]),
        "nu must have the dimension of the head, 2",
    ),
    "sampled curve without a key": (
        lambda: lp.concentration_curve(HEAD, GAUSSIAN, GAUSSIAN, [2], method="montecarlo"),
        "method='montecarlo' needs a key",
    ),
    "sampled curve of half a token": (
        lambda: lp.concentration_curve(
            HEAD, GAUSSIAN, GAUSSIAN, [2.5], method="montecarlo", key=KEY
        ),
        "L .a prompt to be sampled. must be a positive integer",
    ),
    "random points without a key": (
        lambda: lp.concentration_curve(HEAD, lp.Uniform(2, 1.0), GAUSSIAN, [2.0]),
        "needs a key",
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
    "relative to nothing": (
        lambda: lp.prompt_length_for(HEAD, GAUSSIAN, [0.0, 0.0], 0.1, relative=True),
        "a relative tolerance needs a limit that is not 0",
    ),
    "relative tolerance of a gradient": (
        lambda: lp.prompt_length_for(
            HEAD, GAUSSIAN, [1.0, 0.0], 0.1, relative=True, quantity="gradient_U"
        ),
        "relative tolerances are for quantity='output'",
    ),
    "bound at one token": (lambda: lp.proposition_3_1(1, 1, 1, [1, 2]), "L must be >= 2"),
    "bound of a small sigma": (lambda: lp.proposition_3_1(1, 1, 0.5, 2), "sigma must be .* >= 1"),
    "bound with no constant": (lambda: lp.proposition_3_1(0, 1, 1, 2), "c1 must be .* > 0"),
    "bound in no parameter": (
        lambda: lp.proposition_3_4(1, 1, 1, 2, "W"),
        "parameter must be 'U' or 'V'",
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
        "confidence must lie between 0 and 1",
    ),
    "growing prompt that shrinks": (
        lambda: lp.growing_prompt(KEY, HEAD, GAUSSIAN, [1.0, 0.0], [10, 5]),
        "increasing lengths",
    ),
    "figure of nothing": (lambda: lp.plot_curve([]), "plot_curve needs at least one dataset"),
    "figure with few names": (
        lambda: lp.plot_curve(lp.concentration_curve(HEAD, GAUSSIAN, PROMPT, [2.0]), ["a", "b"]),
        "labels must name every curve",
    ),
    "figure in an unknown form": (
        lambda: lp.save_figure(lp.plot_regimes(lp.regime_map(resolution=4)), "map.gif"),
        "a figure file must end in",
    ),
    "figure nowhere": (
        lambda: lp.save_figure(lp.plot_regimes(lp.regime_map(resolution=4)), "no/such/map.pdf"),
        "the folder of a figure must exist",
    ),
    "scores too wide for a short prompt": (
        lambda: lp.participation(500.0, 2),
        "sigma must be at most 40 for prompts of fewer than 100 tokens",
    ),
    "a curve of such scores": (
        lambda: lp.concentration_curve(lp.Head(U=300 * EYE, V=EYE), GAUSSIAN, GAUSSIAN, [2.0, 1e6]),
        "sigma must be at most 40",
    ),
    # in-context learning
    "block not square": (lambda: lp.BlockParams(np.ones((2, 3)), 1.0), "A must be a square matrix"),
    "head of another length": (lambda: lp.HeadParams(EYE, np.ones(3)), r"v must have shape \(2,\)"),
    "output not a row": (
        lambda: lp.FactoredParams(EYE, EYE, EYE, np.ones(2)),
        r"O must have shape \(1, 2\)",
    ),
    "noise negative": (
        lambda: lp.LinearRegression(EYE, noise_variance=-1),
        "noise_variance must be finite and >= 0",
    ),
    "query_cov of another size": (
        lambda: lp.LinearRegression(EYE, query_cov=np.eye(3)),
        "query_cov must have shape",
    ),
    "descent: no such oracle": (
        lambda: lp.descend(
            KEY, lp.LinearRegression(EYE), lp.BlockParams(EYE, 1.0), 5, 1, oracle="magic"
        ),
        "oracle must be",
    ),
    "descent: reduced oracle of another task": (
        lambda: lp.descend(
            KEY, lp.ProductRegression(lp.Rademacher(2)), lp.BlockParams(EYE, 1.0), 5, 1
        ),
        "linear regression only",
    ),
    "descent: prompts of half a token": (
        lambda: lp.descend(KEY, lp.LinearRegression(EYE), lp.BlockParams(EYE, 1.0), 2.5, 1),
        "positive integer",
    ),
    "descent: no steps": (
        lambda: lp.descend(KEY, lp.LinearRegression(EYE), lp.BlockParams(EYE, 1.0), 5, 0),
        "steps must be a positive integer",
    ),
    "descent: head of another size": (
        lambda: lp.descend(KEY, lp.LinearRegression(EYE), lp.BlockParams(np.eye(3), 1.0), 5, 1),
        "params must act on tokens of dimension 3",
    ),
    "descent: runs and lengths": (
        lambda: lp.descend_many(
            KEY[None],
            lp.LinearRegression(EYE),
            lp.BlockParams(EYE, 1.0),
            [5, 6],
            1,
            attention=["softmax"],
        ),
        "one entry for each run",
    ),
    "experiment: no such variant": (
        lambda: lp.published_experiment("draft"),
        "variant must be one of",
    ),
    "task_cov of another size": (
        lambda: lp.LinearRegression(EYE, np.eye(3)),
        r"task_cov must have shape \(2, 2\)",
    ),
    "params of another size": (
        lambda: lp.LinearRegression(EYE).risk(lp.BlockParams(np.eye(3), 1.0), 10),
        "params must act on tokens of dimension 3",
    ),
    "risk of no tokens": (
        lambda: lp.LinearRegression(EYE).risk(lp.BlockParams(EYE, 1.0), 0),
        "L must be >= 1",
    ),
    "risk of hard attention": (
        lambda: lp.LinearRegression(EYE).risk(lp.BlockParams(EYE, 1.0), 5, "hard"),
        "attention must be 'softmax' or 'linear'",
    ),
    "risk of scores too wide": (
        lambda: lp.LinearRegression(EYE).risk(lp.BlockParams(100 * EYE, 1.0), 5),
        "score variance must have norm at most 16",
    ),
    "general risk without a key": (
        lambda: lp.LinearRegression(EYE).risk(lp.HeadParams(np.eye(3), np.ones(3)), 5),
        "needs a key",
    ),
    "bayes risk of half a token": (
        lambda: lp.LinearRegression(EYE).bayes_risk(2.5, KEY),
        "whole number of tokens",
    ),
    "product task of Gaussians": (
        lambda: lp.ProductRegression(GAUSSIAN),
        "inputs must be a Rademacher or a Uniform measure",
    ),
    # studies
    "study of another name": (lambda: find_study("lemma-2.2"), "a study must be one of"),
    "scale of another name": (lambda: find_study("lemma-2.1").config("huge"), "scale must be"),
    "not in block form": (lambda: lp.to_block(lp.HeadParams(EYE, np.ones(2))), "block form"),
    # sweeps
    "cell function with a dot": (
        lambda: lp.Sweep("tests.sweep.cells.draws", [{}]),
        "must be named 'package.module:function'",
    ),
    "cell function of no module": (lambda: lp.Sweep("no.such:function", [{}]), "be importable"),
    "cell function made on the spot": (
        lambda: lp.Sweep(lambda configuration, key: {}, [{}]),
        "must be importable from a module",
    ),
    "cell function without a source": (
        lambda: lp.Sweep("sys:exit", [{}]),
        "must come from a source file",
    ),
    "a constant for a function": (
        lambda: lp.Sweep("tests.sweep.cells:SIZE", [{}]),
        "must be callable",
    ),
    "configuration not a dict": (lambda: _sweep([3]), "a configuration must be a dict"),
    "array in a configuration": (
        lambda: _sweep([{"cov": [EYE]}]),
        r"plain values.*received ndarray at configuration\['cov'\]\[0\]",
    ),
    "NaN in a configuration": (lambda: _sweep([{"x": np.nan}]), "received NaN at"),
    "number for a name in a configuration": (lambda: _sweep([{"x": {1: 2}}]), "plain values"),
    "one cell twice": (lambda: _sweep([{"x": 1}, {"x": 1}]), "cells of a sweep must differ"),
    "no cells": (lambda: _sweep([]), "at least one cell"),
    "seed and keys": (lambda: _sweep([{}], seed=0, keys=[0]), "a seed or keys"),
    "keys too few": (lambda: _sweep([{}], keys=[]), "one key a configuration"),
    "seed not whole": (lambda: _sweep([{}], seed=0.5), "seed must be an integer"),
    "negative key": (lambda: _sweep([{}], keys=[-1]), "a key must be an integer"),
    "batch for a key": (
        lambda: _sweep([{}], keys=[jax.random.split(KEY)]),
        "a key must be an integer",
    ),
    "no workers": (lambda: _sweep([{}]).run("nowhere", workers=0), "workers must be a positive"),
    "workers and cluster": (
        lambda: _sweep([{}]).run("nowhere", workers=1, cluster="tcp://host:1"),
        "on local workers or on a cluster",
    ),
}


def _raised(call) -> str | None:
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(json.dumps({name: _raised(call) for name, (call, _) in MISTAKES.items()}))
