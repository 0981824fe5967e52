# pyright: reportArgumentType=false
"""Affine maps, experts, compressed prompts."""

import numpy as np

import largeprompt as lp

from .things import EYE, GAUSSIAN, HEAD, PROMPT

PAIR = lp.KeyValues(np.ones((3, 2)), np.ones((3, 2)))

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
    "compress an array": (lambda: lp.compress(EYE, EYE, atoms=1), "keys and values"),
    "compress one array of tokens": (lambda: lp.compress(PROMPT, EYE, atoms=1), "keys and values"),
    "compress without a size": (lambda: lp.compress(PAIR, EYE), "either atoms or size"),
    "compress with both sizes": (
        lambda: lp.compress(PAIR, EYE, atoms=1, size=100),
        "either atoms or size",
    ),
    "compress for queries of another dimension": (
        lambda: lp.compress(PAIR, np.ones((4, 3)), atoms=1),
        "queries must have shape",
    ),
    "compress for NaN": (
        lambda: lp.compress(PAIR, EYE * np.nan, atoms=1),
        "queries must be finite",
    ),
    "rank above the number of queries": (
        lambda: lp.compress(PAIR, np.ones((1, 2)), atoms=1, rank=2),
        "rank must be at most",
    ),
    "negative rank": (
        lambda: lp.compress(PAIR, EYE, atoms=1, rank=-1),
        "rank must be a positive integer",
    ),
    "budget too small": (lambda: lp.compress(PAIR, EYE, size=3), "size must be at least"),
    "fewer atoms than kept": (
        lambda: lp.compress(PAIR, EYE, atoms=1, keep=[0, 1]),
        "atoms must be at least",
    ),
    "nothing left": (
        lambda: lp.compress(PAIR, EYE, atoms=0, rank=None),
        "atoms must be at least",
    ),
    "keep no token": (lambda: lp.compress(PAIR, EYE, atoms=1, keep=[7]), "keep must have indices"),
    "unknown compression": (
        lambda: lp.compress(PAIR, EYE, atoms=1, method="best"),
        "method must be one of",
    ),
    "unknown choice": (
        lambda: lp.compress(PAIR, EYE, atoms=1, choose="best"),
        "choose must be one of",
    ),
    "rotary positions of triples": (
        lambda: lp.models.rotate(EYE, 1.0, pairs="thirds"),
        "pairs must be one of",
    ),
    "random tokens without a key": (
        lambda: lp.compress(PAIR, EYE, atoms=1, method="random"),
        "key must be one",
    ),
    "head that scores values": (
        lambda: lp.compress(PAIR, EYE, atoms=1, head=lp.Head(U=np.ones((4, 2)), V=np.eye(4))),
        "head must score the keys",
    ),
    "fold without a tail": (
        lambda: lp.compress(PAIR, EYE, atoms=3).fold([0]),
        "Gaussian tail",
    ),
}
