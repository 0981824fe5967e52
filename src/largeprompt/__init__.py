"""largeprompt: softmax attention as an operator on measures, at finite and infinite prompt length.

The public names live here, flat. Importing this package starts no JAX work: each name is loaded on first use.
"""

import sys
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import Head as Head
    from .attention import Layer as Layer
    from .attention import attend as attend
    from .attention import attend_jacobians as attend_jacobians
    from .attention import attend_linear as attend_linear
    from .concentration import BoundReport as BoundReport
    from .concentration import Horizon as Horizon
    from .concentration import PromptLength as PromptLength
    from .concentration import Regime as Regime
    from .concentration import SlopeFit as SlopeFit
    from .concentration import assumption_3_3 as assumption_3_3
    from .concentration import bound_report as bound_report
    from .concentration import concentration_curve as concentration_curve
    from .concentration import fit_slope as fit_slope
    from .concentration import growing_prompt as growing_prompt
    from .concentration import horizon as horizon
    from .concentration import largest_c2 as largest_c2
    from .concentration import limit_comparison as limit_comparison
    from .concentration import prompt_length_for as prompt_length_for
    from .concentration import proposition_3_1 as proposition_3_1
    from .concentration import proposition_3_4 as proposition_3_4
    from .concentration import regime as regime
    from .concentration import regime_map as regime_map
    from .concentration import sharp_exponent as sharp_exponent
    from .dynamics import Comparison as Comparison
    from .dynamics import Descent as Descent
    from .dynamics import Trajectory as Trajectory
    from .dynamics import admissible_alpha as admissible_alpha
    from .dynamics import balanced_init as balanced_init
    from .dynamics import compare as compare
    from .dynamics import descend as descend
    from .dynamics import descend_many as descend_many
    from .dynamics import flow_curves as flow_curves
    from .dynamics import gradient_flow as gradient_flow
    from .dynamics import prompt_length_for_risk as prompt_length_for_risk
    from .dynamics import published_experiment as published_experiment
    from .dynamics import risk_curves as risk_curves
    from .dynamics import transfer_curve as transfer_curve
    from .icl import AbstractParams as AbstractParams
    from .icl import AbstractTask as AbstractTask
    from .icl import BlockParams as BlockParams
    from .icl import FactoredParams as FactoredParams
    from .icl import HeadParams as HeadParams
    from .icl import LinearRegression as LinearRegression
    from .icl import Minimiser as Minimiser
    from .icl import MixtureClassification as MixtureClassification
    from .icl import ProductRegression as ProductRegression
    from .measures import AbstractAutodiffMeasure as AbstractAutodiffMeasure
    from .measures import AbstractMeasure as AbstractMeasure
    from .measures import Dirac as Dirac
    from .measures import Empirical as Empirical
    from .measures import Gaussian as Gaussian
    from .measures import Mixture as Mixture
    from .measures import Rademacher as Rademacher
    from .measures import Sphere as Sphere
    from .measures import Uniform as Uniform
    from .participation import Participation as Participation
    from .participation import ParticipationTable as ParticipationTable
    from .participation import participation as participation
    from .participation import participation_moment as participation_moment
    from .participation import score_moment as score_moment
    from .prompts import AbstractMethod as AbstractMethod
    from .prompts import Estimate as Estimate
    from .prompts import Exact as Exact
    from .prompts import MonteCarlo as MonteCarlo
    from .prompts import QuasiMonteCarlo as QuasiMonteCarlo
    from .prompts import estimate as estimate
    from .prompts import finite_mean as finite_mean
    from .prompts import finite_second_moment as finite_second_moment
    from .prompts import gradient_error as gradient_error
    from .prompts import output_error as output_error
    from .prompts import quasi_estimate as quasi_estimate
    from .prompts import sample_gradients as sample_gradients
    from .prompts import sample_outputs as sample_outputs
    from .reproduce.report import plot_curve as plot_curve
    from .reproduce.report import plot_experiment as plot_experiment
    from .reproduce.report import plot_flow as plot_flow
    from .reproduce.report import plot_growing_prompt as plot_growing_prompt
    from .reproduce.report import plot_limits as plot_limits
    from .reproduce.report import plot_regimes as plot_regimes
    from .reproduce.report import plot_risks as plot_risks
    from .reproduce.report import save_figure as save_figure
    from .sweep import CellFailure as CellFailure
    from .sweep import Sweep as Sweep
    from .sweep import SweepResult as SweepResult
    from .sweep import grid as grid

_ROOMS = {
    "measures": (
        "AbstractAutodiffMeasure",
        "AbstractMeasure",
        "Dirac",
        "Empirical",
        "Gaussian",
        "Mixture",
        "Rademacher",
        "Sphere",
        "Uniform",
    ),
    "participation": (
        "Participation",
        "ParticipationTable",
        "participation",
        "participation_moment",
        "score_moment",
    ),
    "attention": ("Head", "Layer", "attend", "attend_jacobians", "attend_linear"),
    "prompts": (
        "AbstractMethod",
        "Estimate",
        "Exact",
        "MonteCarlo",
        "QuasiMonteCarlo",
        "estimate",
        "finite_mean",
        "finite_second_moment",
        "gradient_error",
        "output_error",
        "quasi_estimate",
        "sample_gradients",
        "sample_outputs",
    ),
    "concentration": (
        "BoundReport",
        "Horizon",
        "PromptLength",
        "Regime",
        "SlopeFit",
        "assumption_3_3",
        "bound_report",
        "concentration_curve",
        "fit_slope",
        "growing_prompt",
        "horizon",
        "largest_c2",
        "limit_comparison",
        "prompt_length_for",
        "proposition_3_1",
        "proposition_3_4",
        "regime",
        "regime_map",
        "sharp_exponent",
    ),
    "icl": (
        "AbstractParams",
        "AbstractTask",
        "BlockParams",
        "FactoredParams",
        "HeadParams",
        "LinearRegression",
        "Minimiser",
        "MixtureClassification",
        "ProductRegression",
    ),
    "dynamics": (
        "Comparison",
        "Descent",
        "Trajectory",
        "admissible_alpha",
        "balanced_init",
        "compare",
        "descend",
        "descend_many",
        "flow_curves",
        "gradient_flow",
        "prompt_length_for_risk",
        "published_experiment",
        "risk_curves",
        "transfer_curve",
    ),
    "sweep": ("CellFailure", "Sweep", "SweepResult", "grid"),
    "reproduce.report": (
        "plot_curve",
        "plot_experiment",
        "plot_flow",
        "plot_growing_prompt",
        "plot_limits",
        "plot_regimes",
        "plot_risks",
        "save_figure",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__version__ = version("largeprompt")
__all__ = sorted(_ROOM_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'largeprompt' has no attribute {name!r}")
    value = getattr(import_module(f".{_ROOM_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _Package(ModuleType):
    """The package; importing the room `participation` does not hide the function of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "participation" and isinstance(value, ModuleType):
            value = value.participation
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
