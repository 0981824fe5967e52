# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Heads, queries, engines, layers."""

from functools import reduce

import numpy as np

import largeprompt as lp

from .things import EYE, GAUSSIAN, HEAD, PROMPT

MISTAKES = {
    "attention of a matrix": (
        lambda: lp.attend(EYE, GAUSSIAN, [1, 0]),
        "head must be an attention head",
    ),
    "layer of a number": (lambda: lp.Layer(3), "non-empty sequence of heads"),
    "U not a matrix": (lambda: lp.Head(U=np.ones(2), V=EYE), "U must be a matrix"),
    "no keys": (lambda: lp.Head.key_value(0, 2), "d_k must be a positive integer"),
    "layer of a rectangular head": (
        lambda: lp.Layer([lp.Head(U=np.ones((2, 3)), V=EYE)]),
        "every U must be square",
    ),
    "V of another width": (lambda: lp.Head(U=EYE, V=np.ones((2, 3))), "V must have shape"),
    "NaN in U": (lambda: lp.Head(U=EYE * np.nan, V=EYE), "U must be finite"),
    "K and Q differ": (
        lambda: lp.Head.from_kqv(np.ones((1, 2)), np.ones((2, 2)), EYE),
        "Q must have",
    ),
    "scale NaN": (lambda: lp.Head.from_kqv(EYE, EYE, EYE, scale=np.nan), "scale must be finite"),
    "tokens instead of a measure": (
        lambda: lp.attend(HEAD, EYE, np.ones(2)),
        "measure must be a measure",
    ),
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
    "unknown engine": (
        lambda: lp.attend(HEAD, PROMPT, [1, 0], engine="fast"),
        "engine must be one of",
    ),
    "engine in a list": (
        lambda: lp.attend(HEAD, PROMPT, [1, 0], engine=["dense"]),
        "engine must be one of",
    ),
    "engine an array": (
        lambda: lp.attend(HEAD, PROMPT, [1, 0], engine=np.ones(3)),
        "engine must be one of",
    ),
    "residual an array": (
        lambda: lp.Layer([HEAD], residual=np.ones(2)),
        "residual must be True or False",
    ),
    "layer of tokens": (lambda: lp.Layer([HEAD])(EYE), "measure must be a measure"),
    "block of nothing": (
        lambda: lp.attend(HEAD, PROMPT, [1, 0], block_size=0),
        "block_size must be a positive integer",
    ),
    "linear attention of a matrix": (
        lambda: lp.attend_linear(EYE, GAUSSIAN, [1, 0]),
        "head must be an attention head",
    ),
    "linear attention of tokens": (
        lambda: lp.attend_linear(HEAD, EYE, [1, 0]),
        "measure must be a measure",
    ),
    "masked head": (
        lambda: lp.Head(U=np.ma.array(EYE, mask=EYE > 0), V=EYE),
        "U must be an array without masked entries",
    ),
    "layers whose tokens diverge": (
        lambda: reduce(lambda mu, layer: layer(mu), [lp.Layer([HEAD])] * 20, GAUSSIAN),
        "covariance of the tokens must stay finite through a layer; received one that overflows",
    ),
    "layer that overflows": (
        lambda: lp.Layer([HEAD])(lp.Gaussian([1e200, 0], 1e200 * EYE)),
        "must stay finite through a layer",
    ),
    "layer without heads": (lambda: lp.Layer([]), "heads must be a non-empty"),
    "layer of matrices": (lambda: lp.Layer([EYE]), "heads must be a non-empty"),
    "residual into another dimension": (
        lambda: lp.Layer([lp.Head(U=EYE, V=np.ones((3, 2)))]),
        "residual layer needs outputs",
    ),
    "layer on a uniform law": (
        lambda: lp.Layer([HEAD])(lp.Uniform(2, 1.0)),
        "push samples instead",
    ),
    "no heads": (lambda: lp.MultiHead([]), "heads must be a non-empty sequence of heads"),
    "heads that are None": (lambda: lp.MultiHead(None), "heads must be a non-empty sequence"),
    "heads of different dimensions": (
        lambda: lp.MultiHead([HEAD, lp.Head(U=np.eye(3), V=np.eye(3))]),
        "must all have U and V of the same shape",
    ),
    "heads that are matrices": (lambda: lp.MultiHead([EYE]), "non-empty sequence of heads"),
}
