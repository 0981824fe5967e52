"""Wrong versions of the numbers of a study: the changes its checks must notice.

A check that holds whatever the numbers says nothing. So every study lists mutants of its
variables: a factor, a power of the length, an offset of a small part of the effect; of the whole
variable or of each of its slices.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import xarray as xr


class Mutant(NamedTuple):
    """A change of a variable: of all of it, or with `each` of every slice along that dimension by
    itself.
    """

    name: str
    change: Callable[[xr.DataArray], xr.DataArray]
    each: str | None = None

    def of(self, variable: xr.DataArray) -> Iterator[tuple[str, xr.DataArray]]:
        """The changed variable, once or for each slice, with a description."""
        if self.each is None:
            yield self.name, self.change(variable)
            return
        for i in range(variable.sizes[self.each]):
            here = xr.zeros_like(variable, bool)
            here[{self.each: i}] = True
            place = f"{self.each} = {variable[self.each].values[i]}"
            yield f"{self.name} at {place}", self.change(variable).where(here, variable)


def times(*factors: int | float, each: str | None = None) -> tuple[Mutant, ...]:
    """The variable multiplied by a factor."""
    return tuple(Mutant(f"times {c:g}", lambda a, c=c: a * c, each) for c in factors)


def plus(*offsets: int | float, each: str | None = None) -> tuple[Mutant, ...]:
    """An offset added: for differences that should vanish, and for numbers whose scale is one."""
    return tuple(Mutant(f"plus {c:g}", lambda a, c=c: a + c, each) for c in offsets)


def power_of(dim: str, *exponents: int | float, each: str | None = None) -> tuple[Mutant, ...]:
    """The variable multiplied by a power of a coordinate, such as the length."""
    return tuple(
        Mutant(f"times {dim}^{c:g}", lambda a, c=c: a * a[dim] ** c, each) for c in exponents
    )
