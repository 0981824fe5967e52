# pyright: reportArgumentType=false
"""Affine maps, experts, compressed prompts."""

import numpy as np

import largeprompt as lp

from .things import EYE, GAUSSIAN, HEAD, PROMPT

MISTAKES = {
    "linearise at another point": (
        lambda: lp.linearise(HEAD, PROMPT, GAUSSIAN, at="mean"),
        "at must be one of",
    ),
    "linearise tokens": (lambda: lp.linearise(HEAD, EYE, GAUSSIAN), "mu must be a measure"),
    "linearise over queries of another dimension": (
        lambda: lp.linearise(HEAD, PROMPT, lp.Rademacher(3)),
        "nu must be a measure of dimension 2",
    ),
    "linearise over few queries": (
        lambda: lp.linearise(HEAD, PROMPT, np.ones((4, 2))),
        "needs at least 5 queries",
    ),
    "linearise without a rule": (
        lambda: lp.linearise(
            lp.Head(U=np.eye(4), V=np.eye(4)), lp.Rademacher(4), lp.Gaussian(np.ones(4), np.eye(4))
        ),
        "no exact rule",
    ),
    "experts of a prompt": (lambda: lp.compression.experts(HEAD, PROMPT), "Gaussian components"),
}
