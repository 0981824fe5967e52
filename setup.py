"""Compile the CPU kernels of largeprompt/_native. If this fails, XLA replaces them."""

from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/largeprompt/_native")
OPTIONS = ["-std=c++17", "-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]

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
)


class CleanBuild(build_ext):
    """Delete the old kernels first, so that a failed compilation does not leave them in place."""

    def build_extension(self, ext: Extension) -> None:
        """Compile, into the source tree for an editable installation."""
        if self.inplace or self.editable_mode:
            for old in FOLDER.glob("kernels.*"):
                old.unlink()
        super().build_extension(ext)


setup(ext_modules=[kernels] if headers else [], cmdclass={"build_ext": CleanBuild})
