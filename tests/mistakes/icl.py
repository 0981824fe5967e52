# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Tasks, parameters, risks."""

import jax.numpy as jnp
import numpy as np

import largeprompt as lp

from .things import EYE, KEY, START, TASK, in_32_bits

MISTAKES = {
    "risk at ragged lengths": (
        lambda: TASK.risk(START, [[1], [2, 3]]),
        "L must be a real number",
    ),
    "risk of a head": (
        lambda: TASK.risk(lp.Head(U=np.eye(3), V=np.ones((1, 3))), 10),
        "params must be parameters of a head",
    ),
    "minimiser of a task without a signal": (
        lambda: lp.LinearRegression(EYE, np.zeros((2, 2))).minimiser(10),
        "the best head is not unique where tokens tell nothing about the labels",
    ),
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
    "noise beyond float32": (
        lambda: in_32_bits(lambda: lp.LinearRegression(jnp.eye(2), noise_variance=1e39)),
        "noise_variance must have entries in the range of float32",
    ),
    "query_cov of another size": (
        lambda: lp.LinearRegression(EYE, query_cov=np.eye(3)),
        "query_cov must have shape",
    ),
    "descent: a text for a method": (
        lambda: lp.descend(
            KEY, lp.LinearRegression(EYE), lp.BlockParams(EYE, 1.0), 5, 1, method="exact"
        ),
        r"pass method=lp.Exact\(\), lp.MonteCarlo\(\)",
    ),
    "descent: a method with a key": (
        lambda: lp.descend(
            KEY, lp.LinearRegression(EYE), lp.BlockParams(EYE, 1.0), 5, 1, method=lp.MonteCarlo(KEY)
        ),
        "descend takes key, batch and mesh itself; received a MonteCarlo with its own key",
    ),
    "descent: exact gradients of another task": (
        lambda: lp.descend(
            KEY,
            lp.ProductRegression(lp.Rademacher(2)),
            lp.BlockParams(EYE, 1.0),
            5,
            1,
            method=lp.Exact(),
        ),
        "ProductRegression has only gradients of sampled prompts",
    ),
    "descent: prompts of half a token": (
        lambda: lp.descend(KEY, lp.LinearRegression(EYE), lp.BlockParams(EYE, 1.0), 2.5, 1),
        "L must be a whole number",
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
    "experiment: no such initialisation": (
        lambda: lp.published_experiment(init="zero"),
        "init must be 'published' or 'balanced'",
    ),
    "experiment: a rate of zero": (
        lambda: lp.published_experiment(rate=0.0),
        "rate must be finite and > 0",
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
        lambda: lp.LinearRegression(EYE).risk(lp.BlockParams(1e4 * EYE, 1.0), 5),
        "score variance must have norm at most 1e\\+06",
    ),
    "general risk without a key": (
        lambda: lp.LinearRegression(np.eye(3)).risk(lp.HeadParams(np.eye(4), np.ones(4)), 5),
        r"pass method=lp.QuasiMonteCarlo\(key\) or lp.MonteCarlo\(key\), or BlockParams",
    ),
    "general risk by a method without a key": (
        lambda: lp.LinearRegression(np.eye(3)).risk(
            lp.HeadParams(np.eye(4), np.ones(4)), 5, method=lp.QuasiMonteCarlo()
        ),
        "QuasiMonteCarlo needs a key",
    ),
    "risk of sampled prompts without a key": (
        lambda: lp.LinearRegression(EYE).risk(lp.BlockParams(EYE, 1.0), 5, method=lp.MonteCarlo()),
        "MonteCarlo needs a key",
    ),
    "risk of half a token by sampling": (
        lambda: lp.LinearRegression(EYE).risk(
            lp.BlockParams(EYE, 1.0), 2.5, method=lp.MonteCarlo(KEY)
        ),
        "L must be a whole number",
    ),
    "bayes risk of half a token": (
        lambda: lp.LinearRegression(EYE).bayes_risk(2.5, lp.MonteCarlo(KEY)),
        "whole number of tokens",
    ),
    "bayes risk without a method": (
        lambda: lp.LinearRegression(np.diag([1.0, 2.0])).bayes_risk(5),
        r"pass method=lp.MonteCarlo\(key\)",
    ),
    "product task of an array": (
        lambda: lp.ProductRegression(EYE),
        "inputs must be a measure",
    ),
    "no parameters of heads": (
        lambda: lp.MultiHeadParams([]),
        "heads must be a non-empty sequence of parameters",
    ),
    "heads of parameters that are None": (
        lambda: lp.MultiHeadParams(None),
        "heads must be a non-empty sequence of parameters",
    ),
    "parameters of different dimensions": (
        lambda: lp.MultiHeadParams([START, lp.BlockParams(np.eye(3), 1.0)]),
        "heads must act on tokens of one dimension",
    ),
    "zero heads to minimise": (
        lambda: TASK.minimiser(10, heads=0),
        "heads must be a positive integer",
    ),
    "several general heads exactly": (
        lambda: TASK.risk(lp.MultiHeadParams([START.general(), START]), 10),
        r"lp.MonteCarlo\(key\), or heads of BlockParams",
    ),
    "several heads at length zero": (
        lambda: TASK.risk(lp.MultiHeadParams([START, START]), 0),
        "L must be >= 1",
    ),
    "several heads of huge scores": (
        lambda: TASK.risk(lp.MultiHeadParams([lp.BlockParams(99 * EYE, 1.0), START]), 10),
        "must have deviations of at most 5.6",
    ),
}
