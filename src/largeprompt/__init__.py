"""largeprompt: softmax attention as an operator on measures, at finite and infinite prompt length.

The public names are listed in `__init__.pyi`. Each is imported on first use, so that importing the
package starts no JAX work. The classes of results are in their rooms: `lp.dynamics.Trajectory`.
"""

from importlib.metadata import version

import lazy_loader

__version__ = version("largeprompt")
# `participation` is a function and the room it comes from: `lp.participation` is the function
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
