"""A prompt of L tokens: exact moments, and sampling exact in law."""

from .estimate import estimate as estimate
from .gaussian_tokens import GradientError as GradientError
from .methods import AbstractMethod as AbstractMethod
from .methods import Estimate as Estimate
from .methods import Exact as Exact
from .methods import MonteCarlo as MonteCarlo
from .methods import QuasiMonteCarlo as QuasiMonteCarlo
from .methods import needed_key as needed_key
from .moments import finite_mean as finite_mean
from .moments import finite_second_moment as finite_second_moment
from .moments import gradient_error as gradient_error
from .moments import output_error as output_error
from .quasi import quasi_estimate as quasi_estimate
from .sampling import GradientSamples as GradientSamples
from .sampling import sample_gradients as sample_gradients
from .sampling import sample_outputs as sample_outputs
