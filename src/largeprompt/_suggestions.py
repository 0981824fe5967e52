"""Suggestions for public names that do not exist. Imports no room."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

_EXPORT = re.compile(r"import (\w+) as \1$", re.MULTILINE)


def unknown_name(name: str, public: Iterable[str]) -> str:
    """The message for a name that the package does not have, with up to three that it has."""
    paths = {known: known for known in public}
    for door in sorted(Path(__file__).parent.glob("*/__init__.py*")):
        for inner in _EXPORT.findall(door.read_text(encoding="utf-8")):
            paths.setdefault(inner, f"{door.parent.name}.{inner}")
    # case and the spellings of -ise do not matter
    plain = {known.lower().replace("z", "s"): known for known in sorted(paths)}
    wanted = name.lower().replace("z", "s")
    if wanted in plain:
        found = [wanted]
    else:
        found = difflib.get_close_matches(wanted, plain, cutoff=0.8)
        found = found or [known for known in plain if wanted in known]
        found = found or difflib.get_close_matches(wanted, plain, n=1)
    message = f"module 'largeprompt' has no attribute {name!r}."
    names = " or ".join(f"'{paths[plain[one]]}'" for one in found[:3])
    return f"{message} Did you mean {names}?" if found else message
