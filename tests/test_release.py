"""What a release publishes: source distribution and wheels, their metadata and files."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from largeprompt import _native

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
_NOT_PUBLISHED = shutil.ignore_patterns(
    ".*", "build", "dist", "out", "site", "*.egg-info", "__pycache__", "*.so"
)


def _build(source: Path, *options: str, **environment: str) -> Path:
    """The folder of what `python -m build` makes of a copy of the source."""
    folder = source.parent / "-".join(["dist", *environment])
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), *options]
    done = subprocess.run(
        [*command, str(source)], capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("release") / "source"
    shutil.copytree(ROOT, target, ignore=_NOT_PUBLISHED)
    return target


@pytest.fixture(scope="module")
def published(source) -> Path:
    # optimising the kernels would take most of the time; their speed is not tested here
    return _build(source, LARGEPROMPT_CXXFLAGS="-O0")


def test_release_metadata_is_valid(published):
    files = [str(path) for path in published.iterdir()]
    assert len(files) == 2
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_release_source_has_tests_documents_and_examples(published):
    (archive,) = published.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    for folder in ("src", "tests", "docs", "examples", "benchmarks", "reproduction"):
        expected = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.suffix in {".py", ".pyi", ".md", ".cc", ".h", ".json"}
            if "__pycache__" not in path.parts and not path.match("*.egg-info/*")
        }
        assert expected <= names, folder


def test_release_wheel_has_the_kernels_and_all_files_of_the_package(published):
    (wheel,) = published.glob("*.whl")
    package = ROOT / "src" / "largeprompt"
    expected = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".so"}
    }
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert expected <= names
    if _native.available():  # so a compiler is here
        assert "-cp311-abi3-" in wheel.name
        assert "largeprompt/_native/kernels.abi3.so" in names


def test_release_wheel_answers_once_installed(published, tmp_path):
    (wheel,) = published.glob("*.whl")
    options = ["--no-deps", "--no-index", "--no-compile", "--target", str(tmp_path)]
    install = [sys.executable, "-m", "pip", "install", *options, str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    script = "import largeprompt as lp; print(lp.__file__, lp.regime(3.0, 1000).name)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / "largeprompt/__init__.py"), "rare", "tokens"]


def test_release_without_kernels_is_a_wheel_for_every_platform(source, published):
    (wheel,) = _build(source, "--wheel", LARGEPROMPT_PURE="1").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as file:
        assert not [name for name in file.namelist() if name.endswith(".so")]
