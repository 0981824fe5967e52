"""The CPU kernels of largeprompt/_native are compiled on installation. Where that fails, XLA does their work."""

from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup

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

setup(ext_modules=[kernels] if headers else [])
