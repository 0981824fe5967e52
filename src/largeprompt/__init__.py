"""largeprompt: softmax attention as an operator on measures, at finite and infinite prompt length.

The public names are listed in `__init__.pyi`. Each is imported on first use, so that importing the
package starts no JAX work. The classes of results are in their rooms: `lp.dynamics.Trajectory`.
"""

from importlib.metadata import version
from typing import Any

import lazy_loader

__version__ = version("largeprompt")
# `participation` is a function and the room it comes from: `lp.participation` is the function
_imported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _imported(name)
    if name.startswith("_"):
        raise AttributeError(f"module 'largeprompt' has no attribute {name!r}")
    from ._suggestions import unknown_name  # only where a name is wrong

    raise AttributeError(unknown_name(name, __all__))
