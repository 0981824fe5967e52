"""A Gaussian configuration from options: dimension, covariance family, scale of the head, law of the query."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import numpy as np

    from ..attention import Head
    from ..measures import AbstractMeasure, Gaussian

Dim = Annotated[int, typer.Option("--dim", "-d", help="Dimension of tokens and queries.")]
Covariance = Annotated[
    str,
    typer.Option(
        "--covariance",
        help="Covariance of the tokens: identity, rho:0.5 (entries rho^|i-j|), eigenvalues:1,0.5,0.1 (diagonal), or "
        "file:cov.npy (also .csv or .txt). Eigenvalues and files decide the dimension.",
    ),
]
Scale = Annotated[
    float, typer.Option("--scale", "-s", help="Scale of the head: U = scale x identity.")
]
Query = Annotated[
    str,
    typer.Option(
        "--query", help="Law of the query: gaussian (N(0, I)), tokens, or sphere (radius sqrt(d))."
    ),
]


def covariance_matrix(family: str, dim: int) -> "np.ndarray":
    """The matrix an option of the command line names."""
    import numpy as np

    kind, _, rest = family.partition(":")
    try:
        if kind == "identity" and not rest:
            return np.eye(_positive(dim))
        if kind == "rho":
            index = np.arange(_positive(dim))
            return float(rest) ** np.abs(index[:, None] - index)
        if kind == "eigenvalues":
            return np.diag([float(value) for value in rest.split(",")])
    except ValueError as error:
        raise ValueError(
            f"--covariance must be identity, rho:NUMBER or eigenvalues:A,B,...; received {family!r} with --dim {dim} "
            f"({error}). To fix: write for example rho:0.5."
        ) from error
    if kind == "file":
        return _from_file(Path(rest))
    raise ValueError(
        f"--covariance must be identity, rho:NUMBER, eigenvalues:A,B,... or file:PATH; received {family!r}. To fix: write "
        "for example rho:0.5."
    )


def _positive(dim: int) -> int:
    if dim < 1:
        raise ValueError("the dimension must be at least 1")
    return dim


def _from_file(path: Path) -> "np.ndarray":
    import numpy as np

    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"a covariance file must hold a square matrix (.npy, .csv or .txt); received {str(path)!r} ({error}). To fix: "
            "save one with numpy.save or numpy.savetxt."
        ) from error


def configuration(
    dim: int, covariance: str, scale: float, query: str
) -> tuple["Head", "Gaussian", "AbstractMeasure"]:
    """(head, token law, query law)."""
    import numpy as np

    from ..attention import Head
    from ..measures import Gaussian, Sphere

    cov = covariance_matrix(covariance, dim)
    mu = Gaussian(np.zeros(len(cov)), cov)
    d = mu.dim
    laws = {
        "gaussian": lambda: Gaussian(np.zeros(d), np.eye(d)),
        "tokens": lambda: mu,
        "sphere": lambda: Sphere(d, d**0.5),
    }
    if query not in laws:
        raise ValueError(
            f"--query must be one of {', '.join(laws)}; received {query!r}. To fix: name one of them."
        )
    return Head(U=scale * np.eye(d), V=np.eye(d)), mu, laws[query]()
