# pyright: reportArgumentType=false, reportOperatorIssue=false
"""Parameters and sweeps."""

import functools
import sys

import numpy as np

import largeprompt as lp

from .. import cells
from .things import EYE


def _sweep(grid, **options):
    return lp.sweep(options.pop("function", cells.draws), grid, "nowhere", **options)


def _iterate(configurations):
    return lp.iterate(cells.draws, configurations, "nowhere")


MISTAKES = {
    "not in block form": (lambda: lp.HeadParams(EYE, np.ones(2)).to_block(), "block form"),
    # sweeps
    "cell function made on the spot": (
        lambda: _sweep({"seed": [1]}, function=lambda cell, key: {}),
        "function must be found by its name in a module.*To fix: define it at the top",
    ),
    "cell function of an object": (
        lambda: _sweep({"seed": [1]}, function=functools.partial(cells.draws)),
        "found by its name in a module.*received partial",
    ),
    "cell function without a source": (
        lambda: _sweep({"seed": [1]}, function=sys.exit),
        "must come from a file",
    ),
    "grid without axes": (lambda: lp.sweep(cells.draws, [1], "nowhere"), "grid must be a dict"),
    "number for an axis": (
        lambda: _sweep({"sigma": 1.0}),
        "axis 'sigma' must be a sequence of one or more values; received 1.0",
    ),
    "text for an axis": (lambda: _sweep({"sigma": "ab"}), "axis 'sigma' must be a sequence"),
    "empty axis": (lambda: _sweep({"sigma": []}), "axis 'sigma' must be .* one or more values"),
    "NaN on an axis": (lambda: _sweep({"x": [np.nan]}), "axis 'x' must have plain values"),
    "one value twice on an axis": (lambda: _sweep({"x": [1, 1]}), "cells must be .* different"),
    "cell not a dict": (lambda: _iterate([3]), "cell 0 must be a dict"),
    "array in a cell": (
        lambda: _iterate([{}, {"cov": [EYE]}]),
        r"cell 1 must have plain values.*received ndarray.*tolist",
    ),
    "number for a name in a cell": (lambda: _iterate([{"x": {1: 2}}]), "must be a dict with text"),
    "one cell twice": (lambda: _iterate([{"x": 1}, {"x": 1}]), "different; received .* twice"),
    "no cells": (lambda: _iterate([]), "must be one or more"),
    "seed not whole": (lambda: _sweep({"x": [1]}, seed=0.5), "seed must be an integer"),
    "no processes": (lambda: _sweep({"x": [1]}, executor=0), "executor must be"),
    "address for an executor": (lambda: _sweep({"x": [1]}, executor="tcp://h:1"), "executor must"),
    "file for a folder": (
        lambda: lp.sweep(cells.draws, {"seed": [1]}, __file__),
        "folder must be a folder that can be written to",
    ),
}
