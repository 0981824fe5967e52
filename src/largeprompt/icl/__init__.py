"""In-context learning: tasks, parameters, and risks at every prompt length."""

from .linear_regression import LinearRegression as LinearRegression
from .linear_regression import Minimiser as Minimiser
from .other_tasks import ProductRegression as ProductRegression
from .params import AbstractParams as AbstractParams
from .params import BlockParams as BlockParams
from .params import FactoredParams as FactoredParams
from .params import HeadParams as HeadParams
from .params import MultiHeadParams as MultiHeadParams
from .risks import AbstractRisk as AbstractRisk
from .risks import Attention as Attention
from .risks import BatchLoss as BatchLoss
from .risks import ExactRisk as ExactRisk
from .risks import FreshRisk as FreshRisk
from .risks import RiskFunction as RiskFunction
from .risks import checked_attention as checked_attention
from .task import AbstractTask as AbstractTask
