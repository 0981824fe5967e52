"""Fault-tolerant parameter sweeps."""

from .result import CellFailure as CellFailure
from .result import FinishedCell as FinishedCell
from .result import SweepResult as SweepResult
from .sweep import Sweep as Sweep
from .sweep import grid as grid
