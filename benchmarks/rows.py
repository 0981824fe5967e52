"""Rows of a benchmark: seconds of ours, of peers, and a limit of the machine."""

from dataclasses import asdict, dataclass, field

import numpy as np

from .timing import Timing


@dataclass(frozen=True)
class Row:
    """One case of a section. Times are seconds for the same work; `limit` is the machine's best."""

    section: str
    case: str
    ours: Timing
    peers: dict[str, float] = field(default_factory=dict)
    limit: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times faster than the fastest peer."""
        return min(self.peers.values()) / self.ours.median if self.peers else None

    @property
    def fraction(self) -> float | None:
        """Of the limit reached."""
        return self.limit / self.ours.median if self.limit else None

    def stored(self) -> dict:
        """As JSON."""
        return asdict(self) | {
            "ours": self.ours._asdict(),
            "ratio": self.ratio,
            "fraction": self.fraction,
        }


@dataclass(frozen=True)
class Growth:
    """How the time of something grows: seconds at some sizes, and the exponent fitted to them."""

    what: str
    over: str
    sizes: list[float]
    seconds: list[float]

    @property
    def exponent(self) -> float:
        """Of the power of the size."""
        return float(np.polyfit(np.log(self.sizes), np.log(self.seconds), 1)[0])

    def stored(self) -> dict:
        """As JSON."""
        return asdict(self) | {"exponent": self.exponent}


def table_of_rows(rows: list[dict]) -> str:
    """Markdown, from stored rows."""
    lines = [
        "| section | case | ours, s (fastest to slowest) | first call, s | peers, s "
        "| times faster than the fastest peer | limit, s | fraction of the limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours = row["ours"]
        peers = ", ".join(f"{name} {t:.3g}" for name, t in row["peers"].items()) or "none"
        cells = [
            row["section"],
            row["case"],
            f"{ours['median']:.3g} ({ours['fastest']:.3g} to {ours['slowest']:.3g})",
            f"{ours['first']:.2g}",
            peers,
            f"{row['ratio']:.3g}" if row["ratio"] else "",
            f"{row['limit']:.3g}" if row["limit"] else "",
            f"{row['fraction']:.0%}" if row["fraction"] else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table_of_growth(growth: list[dict]) -> str:
    """Markdown, from stored growth."""
    lines = ["| what | grows with | sizes | seconds | exponent |", "|---|---|---|---|---|"]
    for g in growth:
        sizes = ", ".join(f"{s:g}" for s in g["sizes"])
        seconds = ", ".join(f"{s:.2g}" for s in g["seconds"])
        lines.append(f"| {g['what']} | {g['over']} | {sizes} | {seconds} | {g['exponent']:.2f} |")
    return "\n".join(lines)
