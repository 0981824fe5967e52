"""Mean, second moment and squared error of the output as Laplace integrals of orders 1 and 2.

b = x - x_inf is a token less the mean token of the infinite prompt: T_L - T is the mean of V b.
"""

from collections.abc import Callable

from .._arrays import Values
from ..attention import AbstractHead
from .laplace_integral import Block, Columns, Form
from .token_laws import NoisyAtoms


def _squares(law: NoisyAtoms, V: Values) -> Values:
    """E[V b b' V' | s], b = x - x_inf, for each atom: (atoms, m, m)."""
    values = law.centred @ V.T
    squares = values[:, :, None] * values[:, None, :]
    return squares + law.of_noise((V @ law.noise @ V.T).T).T if law.lattice else squares


def _mean_sums(head: AbstractHead, law: NoisyAtoms) -> Callable[[Block], Columns]:
    """E_t[u V b]."""
    values = law.centred @ head.V.T
    return lambda block: (block.shift(values),)


def _matrix_sums(head: AbstractHead, law: NoisyAtoms) -> Callable[[Block], Columns]:
    """E_t[u V b] and E_t[u^2 V b b' V']."""
    values, m = law.centred @ head.V.T, head.out_dim
    squares = _squares(law, head.V).reshape(-1, m * m)
    return lambda block: (block.shift(values), block.moment(2, squares).reshape(-1, m, m))


def _output_sums(head: AbstractHead, law: NoisyAtoms) -> Callable[[Block], Columns]:
    """|E_t[u V b]|^2 and E_t |u V b|^2."""
    values = law.centred @ head.V.T
    squares = (values**2).sum(1)
    if law.lattice:
        W = head.V.T @ head.V
        squares = squares + law.of_noise((W * law.noise).sum((-2, -1)))
    return lambda block: ((block.shift(values) ** 2).sum(1), block.moment(2, squares))


def _mean_at_length(columns: Columns, u2: Values, inverse: Values) -> tuple[Values, Values]:
    return columns[0][None], abs(columns[0])[None]


def _matrix_at_length(columns: Columns, u2: Values, inverse: Values) -> tuple[Values, Values]:
    mean, second = columns
    inverse = inverse[..., None, None]
    value = inverse * second + (1 - inverse) * mean[:, :, None] * mean[:, None, :]
    return value, abs(value)


def _output_at_length(columns: Columns, u2: Values, inverse: Values) -> tuple[Values, Values]:
    square, second = columns
    value = inverse * second + (1 - inverse) * square
    return value, value


def largest_output(head: AbstractHead, law: NoisyAtoms) -> Values:
    """Largest E[|V b|^2 | s] of an atom: T_L - T_inf is a mean of V b."""
    return square_of_atoms(law, head.V).max()


def square_of_atoms(law: NoisyAtoms, V: Values) -> Values:
    """E[|V b|^2 | s] for each atom."""
    noise = law.of_noise((V.T @ V * law.noise).sum((-2, -1))) if law.lattice else 0.0
    return ((law.centred @ V.T) ** 2).sum(1) + noise


def _largest_mean(head: AbstractHead, law: NoisyAtoms) -> Values:
    return largest_output(head, law) ** 0.5


MEAN = Form(
    1, _mean_sums, _mean_at_length, _largest_mean, lambda head: 1, lambda head: (head.out_dim,)
)
MATRIX = Form(
    2,
    _matrix_sums,
    _matrix_at_length,
    largest_output,
    lambda head: 1,
    lambda head: (head.out_dim, head.out_dim),
)
OUTPUT = Form(2, _output_sums, _output_at_length, largest_output, lambda head: 1, lambda head: ())
