"""What mistakes are made with."""

import jax
import numpy as np

import largeprompt as lp

EYE = np.eye(2)
KEY = jax.random.key(0)
HEAD = lp.Head(U=EYE, V=EYE)
GAUSSIAN = lp.Gaussian(np.zeros(2), EYE)
PROMPT = lp.Empirical(EYE)
TASK = lp.LinearRegression(EYE)
START = lp.BlockParams(0.3 * EYE, 0.3)
