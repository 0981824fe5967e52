"""Grids of cells that survive the death of whatever computes them."""

from .result import CellFailure as CellFailure
from .result import SweepResult as SweepResult
from .sweep import Sweep as Sweep
from .sweep import grid as grid
