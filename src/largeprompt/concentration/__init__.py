"""Finite against infinite prompts, averaged over queries: curves, rates, regimes, bounds."""

from .almost_sure import growing_prompt as growing_prompt
from .assumption import assumption_3_3 as assumption_3_3
from .bounds import BoundReport as BoundReport
from .bounds import bound_report as bound_report
from .bounds import largest_c2 as largest_c2
from .bounds import proposition_3_1 as proposition_3_1
from .bounds import proposition_3_4 as proposition_3_4
from .comparison import limit_comparison as limit_comparison
from .curve import concentration_curve as concentration_curve
from .length import PromptLength as PromptLength
from .length import prompt_length_for as prompt_length_for
from .rates import Horizon as Horizon
from .rates import Regime as Regime
from .rates import horizon as horizon
from .rates import regime as regime
from .rates import regime_map as regime_map
from .rates import sharp_exponent as sharp_exponent
from .slopes import SlopeFit as SlopeFit
from .slopes import fit_slope as fit_slope
