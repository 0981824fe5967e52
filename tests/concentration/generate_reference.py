"""Writes reference.json: brute-force averages over queries. Takes some minutes; run it as a module
from the root:

python -m tests.concentration.generate_reference
"""

import json
from pathlib import Path

from ..oracles.query_average import average_squared_error

LENGTHS = (2.0, 100.0, 1e6, 1e9, 1e12)
KAPPAS = (0.25, 1.0, 4.0)


def main() -> None:
    """Compute and write."""
    rows = {str(kappa): average_squared_error(kappa, LENGTHS).tolist() for kappa in KAPPAS}
    path = Path(__file__).with_name("reference.json")
    path.write_text(
        json.dumps({"lengths": LENGTHS, "average_squared_error": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
