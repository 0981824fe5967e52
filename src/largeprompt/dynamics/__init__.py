"""Training: gradient flow and descent, at finite and infinite prompt length."""

from .curves import flow_curves as flow_curves
from .curves import risk_curves as risk_curves
from .descent import Descent as Descent
from .descent import descend as descend
from .descent import descend_many as descend_many
from .experiment import published_experiment as published_experiment
from .flow import gradient_flow as gradient_flow
from .initial import admissible_alpha as admissible_alpha
from .initial import balanced_init as balanced_init
from .length_for_risk import prompt_length_for_risk as prompt_length_for_risk
from .trajectory import Trajectory as Trajectory
from .transfer import Comparison as Comparison
from .transfer import compare as compare
from .transfer import transfer_curve as transfer_curve
