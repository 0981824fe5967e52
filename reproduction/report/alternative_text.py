"""What a panel shows, in words, from its numbers: for readers who do not see the picture."""

import numpy as np

from ..panels import Panel, Series
from .labels import label_text

_MOST = 6  # curves described one by one


def describe(panel: Panel) -> str:
    """Axes and their scales, and for each curve where it starts and ends.

    >>> curve = Series("error", np.array([1.0, 100.0]), np.array([0.5, 0.01]), 0)
    >>> describe(Panel([curve], "$L$", "value"))
    'value against L, both axes logarithmic. error: falls from 0.5 at 1 to 0.01 at 100.'
    """
    named = [s for s in panel.series if s.in_legend and s.name and panel.shown(s).any()]
    unique = list({series.name: series for series in named}.values())
    lines = [f"{label_text(s.name)}: {_course(panel, s)}" for s in unique[:_MOST]]
    if len(unique) > _MOST:
        lines.append(f"and {len(unique) - _MOST} more curves")
    title = f"{label_text(panel.title)}. " if panel.title else ""
    axes = f"{label_text(panel.y)} against {label_text(panel.x)}, {_scales(panel)}"
    return f"{title}{'. '.join([axes, *lines])}."


def _scales(panel: Panel) -> str:
    if panel.log_x and panel.log_y:
        return "both axes logarithmic"
    if panel.log_x or panel.log_y:
        return f"{'x' if panel.log_x else 'y'} axis logarithmic"
    return "linear axes"


def _course(panel: Panel, series: Series) -> str:
    """Where a curve starts and ends, and whether it falls or rises; the range of points."""
    kept = panel.shown(series)
    x, y = series.x[kept], series.y[kept]
    several = sum(s.name == series.name for s in panel.series)
    if several > 1:
        return f"{several} curves"
    if len(x) == 1:
        return f"{y[0]:.3g} at {x[0]:.3g}"
    if series.style == "points" and np.any(np.diff(x) <= 0):
        ranges = f"x from {x.min():.3g} to {x.max():.3g}, y from {y.min():.3g} to {y.max():.3g}"
        return f"{len(x)} points, {ranges}"
    steps = np.diff(y)
    if np.allclose(y, y[0], rtol=1e-3, atol=0):
        return f"constant at {y[0]:.3g}"
    verb = "falls" if np.all(steps <= 0) else "rises" if np.all(steps >= 0) else "goes"
    return f"{verb} from {y[0]:.3g} at {x[0]:.3g} to {y[-1]:.3g} at {x[-1]:.3g}"
