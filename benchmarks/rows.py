"""Lines of the tables of the benchmarks, and their Markdown."""

from dataclasses import asdict, dataclass, field

import numpy as np

from .timing import Timing


@dataclass(frozen=True)
class Row:
    """One case of a section: ours, peers, and a limit of the machine, in seconds for the same work.

    `unequal` says what peers reach that cannot do the same work.
    """

    case: str
    ours: Timing
    peers: dict[str, float] = field(default_factory=dict)
    limit: float | None = None
    unequal: str = ""

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


@dataclass(frozen=True)
class FirstCall:
    """A first call, without and with a filled cache of programs: medians of seconds and of MiB.

    `ratio` and `goal` are multiples of the yardstick's time.
    """

    call: str
    without: dict[str, float]
    filled: dict[str, float]
    ratio: float
    rounds: int
    goal: float | None = None
    compiles_nothing: bool = False  # the goal instead of a time

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached, if there is one."""
        if self.compiles_nothing:
            return self.without["compiled"] == 0
        return None if self.goal is None else self.ratio <= self.goal

    def stored(self) -> dict:
        """As JSON."""
        return asdict(self) | {"reached": self.reached}


def table_of_rows(rows: list[dict]) -> str:
    """Markdown, from stored rows."""
    lines = [
        "| case | ours, s (fastest to slowest) | first call, s | peers, s "
        "| times faster than the fastest peer | limit, s | fraction of the limit |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours = row["ours"]
        peers = ", ".join(f"{name} {t:.3g}" for name, t in row["peers"].items())
        cells = [
            row["case"],
            f"{ours['median']:.3g} ({ours['fastest']:.3g} to {ours['slowest']:.3g})",
            f"{ours['first']:.2g}",
            peers or row["unequal"] or "none",
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


def table_of_first_calls(calls: list[dict]) -> str:
    """Markdown, from stored first calls."""
    lines = [
        "| first call | import, s | arguments, s | **call, s** | trace | lower | compile | run "
        "| programs compiled | peak, MiB | grown, MiB | **of the yardstick** | goal | reached "
        "| call with a filled cache, s | times faster | programs compiled |",
        "|---" * 17 + "|",
    ]
    for c in calls:
        without, filled = c["without"], c["filled"]
        names = ("import", "arguments", "total", "trace", "lower", "compile", "run")
        goal = "compiles nothing" if c["compiles_nothing"] else c["goal"]
        cells = [
            c["call"],
            *(f"{without[name]:.2f}" for name in names),
            f"{without['compiled']:.0f}",
            f"{without['peak']:.0f}",
            f"{without['growth']:.0f}",
            f"{c['ratio']:.2f}",
            "" if goal is None else str(goal),
            {None: "", True: "yes", False: "no"}[c["reached"]],
            f"{filled['total']:.2f}",
            f"{without['total'] / filled['total']:.1f}",
            f"{filled['compiled']:.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    ours = calls[1:]  # the first is the yardstick
    cold, warm = (sum(c[cache]["total"] for c in ours) for cache in ("without", "filled"))
    lines.append(
        f"\nOur calls take {cold:.0f} s together, and {warm:.0f} s with a filled cache. "
        f"Rounds (medians are shown): {calls[0]['rounds']}."
    )
    return "\n".join(lines)


TABLES = {
    "Row": table_of_rows,
    "Growth": table_of_growth,
    "FirstCall": table_of_first_calls,
}
