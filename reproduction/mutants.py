"""Wrong versions of a study's numbers, which its checks must detect.

A check that holds for any numbers says nothing. Every study therefore lists mutants of its
variables: multiplied by a factor or by a power of the length, or shifted, as a whole or one slice
at a time.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import xarray as xr


class Mutant(NamedTuple):
    """A change of a whole variable, or of one slice along the dimension `each` at a time."""

    name: str
    change: Callable[[xr.DataArray], xr.DataArray]
    each: str | None = None

    def of(self, variable: xr.DataArray) -> Iterator[tuple[str, xr.DataArray]]:
        """Yield the changed variable with a description, once or for each slice."""
        if self.each is None:
            yield self.name, self.change(variable)
            return
        for i in range(variable.sizes[self.each]):
            here = xr.zeros_like(variable, bool)
            here[{self.each: i}] = True
            place = f"{self.each} = {variable[self.each].values[i]}"
            yield f"{self.name} at {place}", self.change(variable).where(here, variable)


def times(*factors: int | float, each: str | None = None) -> tuple[Mutant, ...]:
    """Multiply the variable by a factor."""
    return tuple(Mutant(f"times {c:g}", lambda a, c=c: a * c, each) for c in factors)


def plus(*offsets: int | float, each: str | None = None) -> tuple[Mutant, ...]:
    """Add an offset: for differences that should vanish, and for numbers of order one."""
    return tuple(Mutant(f"plus {c:g}", lambda a, c=c: a + c, each) for c in offsets)


def power_of(dim: str, *exponents: int | float, each: str | None = None) -> tuple[Mutant, ...]:
    """Multiply the variable by a power of a coordinate, such as the length."""
    return tuple(
        Mutant(f"times {dim}^{c:g}", lambda a, c=c: a * a[dim] ** c, each) for c in exponents
    )
