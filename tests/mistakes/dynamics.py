# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Flows and descent."""

import jax
import numpy as np

import largeprompt as lp

from .things import EYE, GAUSSIAN, KEY, START, TASK

MISTAKES = {
    "flow of a measure": (lambda: lp.gradient_flow(GAUSSIAN, START, 10), "task must be a task"),
    "descent of a measure": (
        lambda: lp.descend(KEY, GAUSSIAN, START, 10, 2),
        "task must be a task",
    ),
    "alpha of a measure": (lambda: lp.admissible_alpha(GAUSSIAN), "task must be a task"),
    "comparison of numbers": (lambda: lp.compare(1, 2), "finite must be a trajectory"),
    "fractional length of sampled prompts": (
        lambda: lp.descend(KEY, TASK, START, 9.5, 2),
        "L must be a whole number",
    ),
    "flow under jit": (
        lambda: jax.jit(lambda b: lp.gradient_flow(TASK, lp.BlockParams(EYE, b), 10).risk)(1.0),
        "gradient_flow cannot run under jit",
    ),
    "descent with a number for a name": (
        lambda: lp.descend(KEY, TASK, START, 10, 5, optimizer_name=1),
        "optimizer_name must be text or None; received 1",
    ),
    "descent with a rate for an optimiser": (
        lambda: lp.descend(KEY, TASK, START, 10, 5, optimiser=0.1),
        r"optimiser must be one of optax; received 0.1. To fix: pass optax.sgd\(0.1\)",
    ),
    "flow of a matrix": (
        lambda: lp.gradient_flow(TASK, EYE, 10),
        "params must be the parameters of a head",
    ),
    "flow with a tolerance in words": (
        lambda: lp.gradient_flow(TASK, START, 10, rtol="small"),
        "rtol must be a number",
    ),
    "flow with a negative tolerance": (
        lambda: lp.gradient_flow(TASK, START, 10, atol=-1.0),
        "atol must be finite and > 0",
    ),
    "flow of an array of attentions": (
        lambda: lp.gradient_flow(TASK, START, 10, attention=EYE),
        "attention must be 'softmax' or 'linear'",
    ),
    "flow at ragged times": (
        lambda: lp.gradient_flow(TASK, START, 10, 1.0, saveat=[[1], [2, 3]]),
        "saveat must be a real number",
    ),
    "descent into a number": (
        lambda: lp.descend(KEY, TASK, START, 10, 5, folder=3),
        "folder must be a path",
    ),
    "risks by another method": (
        lambda: lp.risk_curves(TASK, [10], lp.Exact()),
        "method must be a MonteCarlo method",
    ),
    "experiment without a seed": (
        lambda: lp.published_experiment(seed=None),
        "seed must be a non-negative integer",
    ),
    "experiment of no steps": (
        lambda: lp.published_experiment(steps="many"),
        "steps must be a positive integer",
    ),
    "flows drawn by a list": (
        lambda: lp.plots.flow(3, ["risk"]),
        "quantity must be 'risk' or 'b'",
    ),
    "flow to a negative time": (lambda: lp.gradient_flow(TASK, START, 10, -1.0), "t1 must be > 0"),
    "flow with times that decrease": (
        lambda: lp.gradient_flow(TASK, START, 10, 1.0, saveat=[1.0, 0.5]),
        "saveat must be increasing times",
    ),
    "flow of a head of another size": (
        lambda: lp.gradient_flow(TASK, lp.BlockParams(np.eye(3), 1.0), 10),
        "params must act on tokens of dimension 3",
    ),
    "flow of a general head without a key": (
        lambda: lp.gradient_flow(
            lp.LinearRegression(np.eye(3)), lp.HeadParams(np.eye(4), np.ones(4)), 10
        ),
        r"pass method=lp.QuasiMonteCarlo\(key\)",
    ),
    "flow from scores too large to average": (
        lambda: lp.gradient_flow(TASK, lp.BlockParams(1e4 * EYE, 1.0), 10),
        "must start where its risk is finite",
    ),
    "flow of another task without a key": (
        lambda: lp.gradient_flow(lp.ProductRegression(lp.Rademacher(2)), START.general(), 10),
        r"pass method=lp.MonteCarlo\(key\)",
    ),
    "flow on no prompts": (
        lambda: lp.gradient_flow(
            lp.ProductRegression(lp.Rademacher(2)),
            START.general(),
            10,
            method=lp.MonteCarlo(KEY, batch=0),
        ),
        "batch must be a positive integer",
    ),
    "descent on more tokens than can be drawn": (
        lambda: lp.descend(KEY, TASK, START, 1e9, 10),
        r"pass method=lp.Exact\(\)",
    ),
    "descent of another task on more tokens than can be drawn": (
        lambda: lp.descend(KEY, lp.ProductRegression(lp.Rademacher(2)), START, 1e9, 10),
        "pass a shorter L or a smaller batch",
    ),
    "risk of a prompt longer than is averaged": (
        lambda: TASK.risk(START, 1e31),
        r"for L up to 1e\+30",
    ),
    "balanced_init of another task": (
        lambda: lp.balanced_init(lp.ProductRegression(lp.Rademacher(2)), 0.5),
        "balanced_init needs a task with covariance",
    ),
    "admissible_alpha of another task": (
        lambda: lp.admissible_alpha(lp.ProductRegression(lp.Rademacher(2))),
        "admissible_alpha needs a task with covariance",
    ),
    "flow_curves of another task": (
        lambda: lp.flow_curves(lp.ProductRegression(lp.Rademacher(2)), START, [10]),
        "flow_curves needs a task with covariance",
    ),
    "length for the risk of another task": (
        lambda: lp.prompt_length_for_risk(lp.ProductRegression(lp.Rademacher(2)), 0.1),
        "the task must know its Bayes risk",
    ),
    "balanced start of scale zero": (
        lambda: lp.balanced_init(TASK, 0.0),
        "alpha must be finite and > 0",
    ),
    "balanced start without direction": (
        lambda: lp.balanced_init(TASK, 0.5, np.zeros((2, 2))),
        "theta must not be zero",
    ),
    "transfer to infinity": (
        lambda: lp.transfer_curve(TASK, START, [10, np.inf], 1.0),
        "compares finite lengths with the infinite one",
    ),
    "epsilon zero": (lambda: lp.prompt_length_for_risk(TASK, 0.0), "epsilon must be > 0"),
}
