"""In-context learning: tasks, parameters, and risks at every prompt length."""

from .linear_regression import LinearRegression as LinearRegression
from .linear_regression import Minimiser as Minimiser
from .other_tasks import MixtureClassification as MixtureClassification
from .other_tasks import ProductRegression as ProductRegression
from .params import BlockParams as BlockParams
from .params import FactoredParams as FactoredParams
from .params import HeadParams as HeadParams
from .params import to_block as to_block
from .params import to_factored as to_factored
from .task import Task as Task
