"""Compile the CPU kernels of largeprompt/_native. If this fails, XLA replaces them.

They use nothing of Python, so one wheel serves every version: cp311-abi3. LARGEPROMPT_PURE=1 builds
a wheel without kernels for all other platforms. LARGEPROMPT_CXXFLAGS has further options for the
compiler, such as "-O0 -g" to debug them.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/largeprompt/_native")
OPTIONS = ["-std=c++17", "-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
OPTIONS += os.environ.get("LARGEPROMPT_CXXFLAGS", "").split()

jaxlib = find_spec("jaxlib")
headers = [
    str(Path(place) / "include") for place in (jaxlib and jaxlib.submodule_search_locations) or ()
]

kernels = Extension(
    "largeprompt._native.kernels",
    sources=[str(path) for path in sorted(FOLDER.glob("*.cc"))],
    depends=[str(path) for path in sorted(FOLDER.glob("*.h"))],
    include_dirs=headers,
    extra_compile_args=OPTIONS,
    language="c++",
    optional=True,
    py_limited_api=True,
)


class CleanBuild(build_ext):
    """Delete the old kernels first, so that a failed compilation does not leave them in place."""

    def build_extension(self, ext: Extension) -> None:
        """Compile, into the source tree for an editable installation."""
        if self.inplace or self.editable_mode:
            for old in FOLDER.glob("kernels.*"):
                old.unlink()
        super().build_extension(ext)


compiled = bool(headers) and not os.environ.get("LARGEPROMPT_PURE")
setup(
    ext_modules=[kernels] if compiled else [],
    cmdclass={"build_ext": CleanBuild},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if compiled else {},
)
