"""Attention on smaller measures: affine maps of the query, experts, compressed prompts."""

from .experts import Experts as Experts
from .experts import experts as experts
from .linearised import AffineMap as AffineMap
from .linearised import linearise as linearise
