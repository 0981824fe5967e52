"""One cell of a sweep: what is to be computed, by what code, under which address it is stored."""

import hashlib
import json
from dataclasses import dataclass

from ._plain import Words


@dataclass(frozen=True)
class Cell:
    """A function, a configuration (canonical JSON), a key and the version of the code: everything a result depends on."""

    function: str
    code: str
    configuration: str
    key: Words | None

    @property
    def address(self) -> str:
        """Hash of all of it, the name of the stored cell."""
        parts = [self.function, self.code, self.configuration, self.key]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]
