"""Attention as an operator on measures."""

from .head import AbstractHead as AbstractHead
from .head import Head as Head
from .head import MultiHead as MultiHead
from .layer import Layer as Layer
from .linear import attend_linear as attend_linear
from .softmax import Jacobians as Jacobians
from .softmax import attend as attend
from .softmax import attend_jacobians as attend_jacobians
