"""Training: stochastic descent with exact and sampled gradients, and the published experiment."""

from .descent import Descent as Descent
from .descent import descend as descend
from .descent import descend_many as descend_many
from .experiment import published_experiment as published_experiment
