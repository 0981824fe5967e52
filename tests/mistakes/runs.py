# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Studies and sweeps."""

import jax
import numpy as np

import largeprompt as lp
from largeprompt.reproduce.studies import find_study

from .things import EYE, KEY


def _sweep(*arguments, **options):
    return lp.Sweep("tests.sweep.cells:draws", *arguments, **options)


MISTAKES = {
    # studies
    "study of another name": (lambda: find_study("lemma-2.2"), "a study must be one of"),
    "scale of another name": (
        lambda: find_study("lemma-2.1").config("huge"),
        "scale must be 'quick' or 'full'",
    ),
    "not in block form": (lambda: lp.HeadParams(EYE, np.ones(2)).to_block(), "block form"),
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
    "keys too few": (lambda: _sweep([{}], keys=[]), "one key for each configuration"),
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
