"""Options that several commands share, and the objects they stand for."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    import numpy as np

    from ..attention import Head
    from ..measures import AbstractMeasure, Gaussian
    from ..prompts import AbstractMethod, AbstractQuantity

QuantityName = Literal["output", "gradient-U", "gradient-V"]
MethodName = Literal["exact", "montecarlo"]
QueryName = Literal["gaussian", "tokens", "sphere"]

Dim = Annotated[int, typer.Option("--dim", "-d", help="Dimension of tokens and queries.")]
Covariance = Annotated[
    str,
    typer.Option(
        "--covariance",
        help="Covariance of the tokens: identity, rho:0.5 (entries rho^|i-j|), "
        "eigenvalues:1,0.5,0.1 (diagonal), 'rows:2,0.5;0.5,1', or file:cov.npy (also .csv or "
        ".txt). All but the first two set the dimension.",
    ),
]
Scale = Annotated[
    float, typer.Option("--scale", "-s", help="Scale of the head: U = scale x identity.")
]
Query = Annotated[
    QueryName,
    typer.Option(
        "--query", help="Law of the query: N(0, I), the law of the tokens, or the sphere |z|^2 = d."
    ),
]
Quantity = Annotated[
    QuantityName,
    typer.Option("--quantity", help="Output of attention, or its derivative in U or V."),
]
Method = Annotated[
    MethodName,
    typer.Option(
        "--method",
        help="Exact in the prompt length, or an average over sampled prompts.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed, where random numbers are used.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the data to this .nc file.")]
Figure = Annotated[
    Path | None, typer.Option("--figure", help="Draw to this .pdf, .png or .svg file.")
]


def quantity_object(name: QuantityName) -> "AbstractQuantity":
    """The quantity that `--quantity` names."""
    from ..prompts import GradientError, OutputError

    match name:
        case "output":
            return OutputError()
        case "gradient-U":
            return GradientError("U")
        case "gradient-V":
            return GradientError("V")


def method_object(name: MethodName, query: QueryName, seed: int) -> "AbstractMethod":
    """The method that `--method` and `--seed` stand for; a sphere of queries may need points."""
    import jax

    from ..prompts import Exact, MonteCarlo, QuasiMonteCarlo

    key = jax.random.key(seed)
    if name == "montecarlo":
        return MonteCarlo(key, progress=True)
    return QuasiMonteCarlo(key) if query == "sphere" else Exact()


def covariance_matrix(family: str, dim: int) -> "np.ndarray":
    """The matrix that `--covariance` and `--dim` stand for."""
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
        if kind == "rows":
            return np.array([[float(v) for v in row.split(",")] for row in rest.split(";")])
    except ValueError as error:
        raise ValueError(
            "--covariance must be identity, rho:NUMBER, eigenvalues:A,B,... or rows:A,B;C,D; "
            f"received {family!r} with --dim {dim} ({error})"
        ) from error
    if kind == "file":
        return _from_file(Path(rest))
    raise ValueError(
        "--covariance must be identity, rho:NUMBER, eigenvalues:A,B,..., rows:A,B;C,D or "
        f"file:PATH; "
        f"received {family!r}"
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
            "a covariance file must hold a square matrix (.npy, .csv or .txt); "
            f"received {str(path)!r} ({error}). To fix: save one with numpy.save or numpy.savetxt."
        ) from error


def configuration(
    dim: int, covariance: str, scale: float, query: QueryName
) -> tuple["Head", "Gaussian", "AbstractMeasure"]:
    """Head, law of the tokens and law of the query."""
    import numpy as np

    from ..attention import Head
    from ..measures import Gaussian, Sphere

    cov = covariance_matrix(covariance, dim)
    mu = Gaussian(np.zeros(len(cov)), cov)
    d = mu.dim
    match query:
        case "gaussian":
            nu = Gaussian(np.zeros(d), np.eye(d))
        case "tokens":
            nu = mu
        case "sphere":
            nu = Sphere(d, d**0.5)
    return Head(U=scale * np.eye(d), V=np.eye(d)), mu, nu
