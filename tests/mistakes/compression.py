# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
"""Affine maps, experts, compressed prompts."""

from functools import partial

import numpy as np

import largeprompt as lp

from .things import EYE, GAUSSIAN, HEAD, PROMPT

PAIR = lp.KeyValues(np.ones((3, 2)), np.ones((3, 2)))
_compress = partial(lp.compress, PAIR, EYE)
_linearise = partial(lp.linearise, HEAD, PROMPT, GAUSSIAN)
SMALL = _compress(atoms=1, rank=1)

MISTAKES = {
    "linearise at another point": (lambda: _linearise(at="mean"), "at must be one of"),
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
        "Gaussian queries that reach 4 dimensions",
    ),
    "linearise over a law without a rule": (
        lambda: lp.linearise(
            HEAD, PROMPT, lp.Mixture([1, 1], [GAUSSIAN, lp.Gaussian(np.ones(2), EYE)])
        ),
        "received queries of law Mixture. To fix: pass method=lp.QuasiMonteCarlo",
    ),
    "linearise scores of hundreds": (
        lambda: lp.linearise(
            lp.Head(U=300 * EYE, V=EYE), lp.Empirical([[0.0, 1.0], [1.0, 0.3]]), GAUSSIAN
        ),
        "nodes are not enough",
    ),
    "linearise scores of hundreds exactly": (
        lambda: lp.linearise(
            lp.Head(U=300 * EYE, V=EYE),
            lp.Empirical([[0.0, 1.0], [1.0, 0.3]]),
            GAUSSIAN,
            method=lp.Exact(),
        ),
        "QuasiMonteCarlo",
    ),
    "linearise by another method": (
        lambda: _linearise(method="samples"),
        "method must be Exact, QuasiMonteCarlo, MonteCarlo or None",
    ),
    "linearise samples by a method": (
        lambda: lp.linearise(HEAD, PROMPT, np.ones((9, 2)), method=lp.Exact()),
        "method must be None if nu is an array",
    ),
    "linearise without a key": (
        lambda: _linearise(method=lp.MonteCarlo()),
        "MonteCarlo needs a key",
    ),
    "linearise a matrix": (
        lambda: lp.linearise(EYE, PROMPT, GAUSSIAN),
        "head must be an attention head",
    ),
    "linearise several heads": (
        lambda: lp.linearise(lp.MultiHead([HEAD, HEAD]), PROMPT, GAUSSIAN),
        "head must be one Head",
    ),
    "experts of a matrix": (lambda: lp.compression.experts(EYE, PROMPT), "head must be one Head"),
    "experts of tokens": (
        lambda: lp.compression.experts(HEAD, EYE),
        "mu must be a measure of dimension 2",
    ),
    "experts of a scaled measure": (
        lambda: lp.compression.experts(HEAD, GAUSSIAN.gaussian_at([0.0, 0.0])),
        "pass mu.measure",
    ),
    "experts of a sphere": (
        lambda: lp.compression.experts(HEAD, lp.Sphere(2)),
        "mixture of Gaussians and points",
    ),
    "expand at NaN": (lambda: GAUSSIAN.gaussian_at([0.0, np.nan]), "u must be finite"),
    "compress for several heads": (
        lambda: _compress(
            atoms=1, head=lp.MultiHead([lp.Head.key_value(2, 2, scale=s) for s in (1, 2)])
        ),
        "head must be one Head",
    ),
    "compress for a matrix": (
        lambda: _compress(atoms=1, head=EYE),
        "head must be an attention head",
    ),
    "rank and size": (lambda: _compress(size=100, rank=0), "rank must be left out with size"),
    "truncate to a negative rank": (
        lambda: SMALL.truncated(-1),
        "rank must be a non-negative integer",
    ),
    "truncate for NaN": (lambda: SMALL.truncated(0, EYE * np.nan), "queries must be finite"),
    "truncate by a negative gap": (
        lambda: SMALL.tail.truncated(0, gap=-1.0),
        "gap must be finite and >= 0",
    ),
    "compress an array": (lambda: lp.compress(EYE, EYE, atoms=1), "keys and values"),
    "compress one array of tokens": (lambda: lp.compress(PROMPT, EYE, atoms=1), "keys and values"),
    "compress without a size": (lambda: _compress(), "either atoms or size"),
    "compress with both sizes": (lambda: _compress(atoms=1, size=100), "either atoms or size"),
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
    "negative rank": (lambda: _compress(atoms=1, rank=-1), "rank must be a non-negative integer"),
    "budget too small": (lambda: _compress(size=3), "size must be at least"),
    "fewer atoms than kept": (lambda: _compress(atoms=1, keep=[0, 1]), "atoms must be at least"),
    "nothing left": (lambda: _compress(atoms=0, rank=None), "atoms must be at least"),
    "keep no token": (lambda: _compress(atoms=1, keep=[7]), "keep must have indices"),
    "keep half a token": (lambda: _compress(atoms=1, keep=[0.5]), "keep must have indices"),
    "keep a mask": (
        lambda: _compress(atoms=1, keep=np.array([True, False, True])),
        "np.flatnonzero",
    ),
    "keep only tokens of weight 0": (
        lambda: lp.compress(
            lp.KeyValues(np.ones((3, 2)), np.ones((3, 2)), [-np.inf, 0.0, 0.0]),
            EYE,
            atoms=1,
            rank=None,
            keep=[0],
        ),
        "token of positive weight",
    ),
    "negative atoms": (lambda: _compress(atoms=-1), "atoms must be a non-negative integer"),
    "no size at all": (lambda: _compress(size=0), "size must be a positive integer"),
    "budget too small for tokens to keep": (
        lambda: _compress(size=20, keep=[0, 1]),
        "size must be at least 64 bytes, that of 2 tokens",
    ),
    "no tail and no atoms": (
        lambda: _compress(atoms=0, method="attention matching"),
        "atoms must be at least",
    ),
    "rank above the dimension": (
        lambda: lp.compress(PAIR, np.ones((20, 2)), atoms=1, rank=3),
        "rank must be at most",
    ),
    "no queries": (lambda: lp.compress(PAIR, np.ones((0, 2)), atoms=1), "queries must have shape"),
    "infinite keys": (lambda: lp.KeyValues(EYE * np.inf, EYE), "keys must be finite"),
    "NaN values": (lambda: lp.KeyValues(EYE, EYE * np.nan), "values must be finite"),
    "unknown compression": (lambda: _compress(atoms=1, method="best"), "method must be one of"),
    "unknown choice": (
        lambda: _compress(atoms=1, choose="best"),
        "choose must be 'leverage' or 'attention mass'",
    ),
    "rotary positions of triples": (
        lambda: lp.models.rotate(EYE, 1.0, pairs="thirds"),
        "pairs must be 'halves' or 'neighbours'",
    ),
    "rotary base in words": (lambda: lp.models.rotate(EYE, 1.0, base="ten"), "base must be a num"),
    "array for a rank": (
        lambda: lp.compress(PAIR, EYE, atoms=1, rank=np.ones(3)),
        "rank must be a non-negative integer",
    ),
    "ragged tokens to keep": (
        lambda: lp.compress(PAIR, EYE, atoms=1, keep=[[1], [2, 3]]),
        "keep must be an array of real numbers",
    ),
    "recorded layer of lists": (
        lambda: lp.models.RecordedLayer([[[1.0]]], np.ones((1, 1, 1)), np.ones((1, 1, 1)), 1.0),
        "queries must be a NumPy array",
    ),
    "probe of a prompt": (lambda: lp.models.probe(PROMPT), "recording must be a recording"),
    "weights of a list of names": (
        lambda: lp.models.weights_path(["gpt2"]),
        "weights must be one of",
    ),
    "random tokens without a key": (lambda: _compress(atoms=1, method="random"), "key must be one"),
    "head that scores values": (
        lambda: _compress(atoms=1, head=lp.Head(U=np.ones((4, 2)), V=np.eye(4))),
        "head must score the keys",
    ),
    "append tokens of another head": (
        lambda: SMALL.append(np.ones((2, 3)), np.ones((2, 2))),
        "new tokens must have keys of dimension 2",
    ),
    "append NaN": (lambda: SMALL.append(EYE * np.nan, EYE), "keys must be finite"),
    "fold another token": (lambda: SMALL.fold([1]), "index must have indices of the 1 tokens"),
    "fold to a negative rank": (
        lambda: SMALL.fold([0], rank=-1),
        "rank must be a non-negative integer",
    ),
    "fold for NaN": (
        lambda: SMALL.fold([0], rank=0, queries=EYE * np.nan),
        "queries must be finite",
    ),
    "merge a prompt": (lambda: SMALL.merge(PAIR), "merge joins two compressed prompts"),
    "merge prompts of two heads": (
        lambda: SMALL.merge(lp.compress(lp.KeyValues(np.eye(3), np.eye(3)), np.eye(3), atoms=1)),
        "the other prompt must have keys of dimension 2",
    ),
    "fold without a tail": (lambda: _compress(atoms=3).fold([0]), "Gaussian tail"),
}
