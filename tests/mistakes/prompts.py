# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Finite prompts: lengths, moments, sampling."""

import numpy as np

import largeprompt as lp

from .things import EYE, GAUSSIAN, HEAD, KEY, PROMPT

MISTAKES = {
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
}
