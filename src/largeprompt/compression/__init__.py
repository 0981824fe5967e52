"""Attention on smaller measures: affine maps of the query, experts, compressed prompts."""

from .compress import compress as compress
from .compressed import Compressed as Compressed
from .compressed import CompressionError as CompressionError
from .experts import Experts as Experts
from .experts import experts as experts
from .gaussian_tail import Tail as Tail
from .linearised import AffineMap as AffineMap
from .linearised import linearise as linearise
