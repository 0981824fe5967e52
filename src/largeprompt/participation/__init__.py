"""Special functions of score deviation and prompt length: moments of softmax weights."""

from .along_length import Along as Along
from .along_length import gradient_moments_along as gradient_moments_along
from .along_length import participation_along as participation_along
from .exponential import LARGEST as LARGEST
from .exponential import LONGEST as LONGEST
from .exponential import ExponentialTable as ExponentialTable
from .exponential import NumpyTable as NumpyTable
from .exponential import exponential_table as exponential_table
from .gradient_moments import GradientMoments as GradientMoments
from .gradient_moments import gradient_moments as gradient_moments
from .nested_moments import nested_moments as nested_moments
from .pair_moments import PairMoments as PairMoments
from .pair_moments import pair_moments as pair_moments
from .pair_table import MANY as MANY
from .pair_table import PairTable as PairTable
from .pair_table import pair_table as pair_table
from .pair_table import range_for as range_for
from .pair_table import tabulated as tabulated
from .score_moments import score_moment as score_moment
from .table import MomentTable as MomentTable
from .table import ParticipationTable as ParticipationTable
from .table import output_moment_table as output_moment_table
from .weight_moments import Participation as Participation
from .weight_moments import moment_functions as moment_functions
from .weight_moments import participation as participation
from .weight_moments import participation_moment as participation_moment
