"""A prompt of L tokens: exact moments, and sampling exact in law."""

from .estimate import Estimate as Estimate
from .estimate import estimate as estimate
from .gaussian import GradientError as GradientError
from .moments import finite_mean as finite_mean
from .moments import finite_second_moment as finite_second_moment
from .moments import gradient_error as gradient_error
from .moments import output_error as output_error
from .participation import Participation as Participation
from .participation import participation as participation
from .participation import participation_moment as participation_moment
from .quasi import quasi_estimate as quasi_estimate
from .sampling import GradientSamples as GradientSamples
from .sampling import sample_gradients as sample_gradients
from .sampling import sample_outputs as sample_outputs
from .score_moments import score_moment as score_moment
from .table import ParticipationTable as ParticipationTable
