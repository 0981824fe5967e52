"""The law of the query, from a measure or from one query."""

from .. import _checks
from .._typing import ArrayInput
from ..measures import AbstractMeasure, Dirac


def query_law(name: str, nu: AbstractMeasure | ArrayInput) -> AbstractMeasure:
    """A measure as it is, a query of shape (d,) as the measure that draws it."""
    if isinstance(nu, AbstractMeasure):
        return nu
    query = _checks.float_array(name, nu)
    if query.ndim != 1:
        raise _checks.error(
            f"{name} must be a measure or one query of shape (d,)",
            f"shape {query.shape}",
            "wrap several queries as Empirical(points)",
        )
    return Dirac(query)
