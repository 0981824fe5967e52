"""The average of a quantity over prompts of L tokens, by several methods, and sampling."""

from .expect import GradientErrors as GradientErrors
from .expect import expect as expect
from .expect import finite_mean as finite_mean
from .expect import finite_second_moment as finite_second_moment
from .expect import gradient_error as gradient_error
from .expect import output_error as output_error
from .methods import AbstractMethod as AbstractMethod
from .methods import Estimate as Estimate
from .methods import Exact as Exact
from .methods import MonteCarlo as MonteCarlo
from .methods import QuasiMonteCarlo as QuasiMonteCarlo
from .methods import needed_key as needed_key
from .nested_prompts import prefix_difference as prefix_difference
from .quantiles import ErrorQuantiles as ErrorQuantiles
from .quantities import AbstractQuantity as AbstractQuantity
from .quantities import GradientError as GradientError
from .quantities import Output as Output
from .quantities import OutputError as OutputError
from .quantities import SecondMoment as SecondMoment
from .quasi import representative as representative
from .sampling import GradientSamples as GradientSamples
from .sampling import sample_gradients as sample_gradients
from .sampling import sample_outputs as sample_outputs
from .two_queries import output_covariance as output_covariance
from .uncertainty import PromptUncertainty as PromptUncertainty
from .uncertainty import prompt_uncertainty as prompt_uncertainty
