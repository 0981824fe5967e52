"""Figures and the report page. Everything shown is read from datasets; nothing is computed."""

from .figures import plot_curve as plot_curve
from .figures import plot_growing_prompt as plot_growing_prompt
from .figures import plot_limits as plot_limits
from .figures import plot_regimes as plot_regimes
from .style import save_figure as save_figure
from .training_figures import plot_experiment as plot_experiment
from .training_figures import plot_flow as plot_flow
from .training_figures import plot_risks as plot_risks
